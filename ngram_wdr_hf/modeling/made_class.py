"""Classes with N-gram heads for backbones that have none of their own."""

import inspect
from typing import Any

from transformers import GenerationMixin, PreTrainedModel
from transformers.generation.utils import ALL_CACHE_NAMES

from .base import OWN_ARGUMENTS, NgramHeadsMixin


def make_class(
    backbone: Any,
    mixins: tuple[type[NgramHeadsMixin], type],
    config_name: str,
    model_type: str,
    module: str,
    members: dict[str, Any],
) -> Any:
    """
    Return the class with heads for a `backbone` that has none of its own, as two class statements in `module` would
    define it and its configuration. `mixins` are those of the model and of the configuration.
    """

    def make(name: str, bases: tuple[type, ...], what: str, **members: Any) -> Any:
        doc = f"A [`{bases[1].__name__}`] with {what}: see [`{bases[0].__name__}`]."
        return type(f"WDRNgram{name}", bases, {"__module__": module, "__doc__": doc, **members})

    mixin, config_mixin = mixins
    config_class = make(config_name, (config_mixin, backbone.config_class), "the N-gram fields", model_type=model_type)
    members = {"config_class": config_class, **members}
    model_class = make(backbone.__name__, (mixin, backbone, GenerationMixin), "N-gram heads", **members)
    own_arguments = [name for name in inspect.signature(mixin.forward).parameters if name not in OWN_ARGUMENTS]
    if own_arguments != list(inspect.signature(backbone.forward).parameters):
        _take_arguments_of(backbone, model_class)
    return model_class


def _take_arguments_of(backbone: type[PreTrainedModel], model_class: Any) -> None:
    """
    Give a class a `forward` with its backbone's arguments, where these differ from the mixin's, and ours by name.
    Transformers and Trainer read the signature; nothing else can be written down before the backbone is known.
    """
    parameters = list(inspect.signature(backbone.forward).parameters.values())
    names = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD][1:]
    end = len(parameters) - (parameters[-1].kind is inspect.Parameter.VAR_KEYWORD)
    own = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in OWN_ARGUMENTS]

    def forward(self, *args, **kwargs):
        return self.ngram_forward({}, **dict(zip(names[: len(args)], args, strict=True)), **kwargs)

    vars(forward)["__signature__"] = inspect.Signature([*parameters[:end], *own, *parameters[end:]])
    forward.__doc__ = model_class.forward.__doc__
    model_class.forward = forward
    cache_names = (name for name in ALL_CACHE_NAMES if name in names)
    model_class.ngram_cache_name = next(cache_names, model_class.ngram_cache_name)
    if not model_class.ngram_text_prefix and "ngram_rows_can_move" not in vars(model_class):
        model_class.ngram_rows_can_move = "position_ids" in names
