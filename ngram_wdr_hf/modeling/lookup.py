"""Model classes by name in the module `transformers`."""

import sys

from transformers import PreTrainedModel


def offer_by_name(model_class: type[PreTrainedModel]) -> None:
    """
    Make a class an attribute of the module `transformers`, where `transformers serve` and TRL look up the class that a
    checkpoint's configuration names.
    """
    modules = [sys.modules["transformers"]]
    server = sys.modules.get("transformers.cli.serving.model_manager")
    if server is not None:
        # Transformers executes its `__init__.py` twice. The server may have the first of the two module objects.
        modules.append(server.transformers)
    for module in modules:
        setattr(module, model_class.__name__, model_class)
