"""What a model with heads takes and returns: all that its backbone does, and a little more."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import field, make_dataclass
from functools import cache
from typing import Any


def forward_like(backbone_forward: Callable, documentation: str, with_lambda: bool = True) -> Callable:
    """
    A `forward` that calls `_ngram_forward`, with the backbone's own signature, which Transformers and Trainer read,
    and `ensemble_lambda` if asked for.
    """
    signature = inspect.signature(backbone_forward)
    parameters = list(signature.parameters.values())
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [parameter.name for parameter in parameters if parameter.kind is kind][1:]
    if with_lambda:
        if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
            kind = inspect.Parameter.KEYWORD_ONLY
        else:
            names.append("ensemble_lambda")
        added = inspect.Parameter("ensemble_lambda", kind, default=None, annotation=float | Sequence[float] | None)
        has_kwargs = parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
        parameters.insert(len(parameters) - has_kwargs, added)

    def forward(self, *args, **kwargs):
        if len(args) > len(names):
            raise TypeError(f"forward takes at most {len(names)} positional arguments, got {len(args)}.")
        return self._ngram_forward(**dict(zip(names[: len(args)], args, strict=True)), **kwargs)

    forward.__signature__ = signature.replace(parameters=parameters)
    forward.__doc__ = documentation
    return forward


@cache
def with_fields(output_class: type, names: frozenset[str]) -> type:
    """`output_class` with room for whatever else a backbone returns."""
    others = sorted(names - output_class.__dataclass_fields__.keys())
    fields = [(name, Any, field(default=None)) for name in others]
    return make_dataclass(output_class.__name__, fields, bases=(output_class,))
