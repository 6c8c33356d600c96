"""The forward signature and the output class of a model with heads, derived from its backbone's."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import field, make_dataclass
from functools import cache
from typing import Any

import torch

from ..method.names import refuse_misspelt

# The arguments that a model with an ensemble adds to its backbone's `forward`.
ENSEMBLE_ARGUMENTS = {
    "ensemble_lambda": float | Sequence[float] | None,
    "ensemble_weights": Sequence[float] | Sequence[Sequence[float]] | None,
}


def forward_like(backbone_forward: Callable, documentation: str | None, with_lambda: bool = True) -> Callable:
    """
    Return a `forward` with the docstring `documentation` that calls `_ngram_forward` with all arguments by name. It
    has the backbone's signature, because Transformers and Trainer inspect it, plus `ensemble_lambda` and
    `ensemble_weights` if `with_lambda`.
    """
    signature = inspect.signature(backbone_forward)
    parameters = list(signature.parameters.values())
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [parameter.name for parameter in parameters if parameter.kind is kind][1:]
    if with_lambda:
        if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
            kind = inspect.Parameter.KEYWORD_ONLY
        else:
            names.extend(ENSEMBLE_ARGUMENTS)
        has_kwargs = parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
        end = len(parameters) - has_kwargs
        parameters[end:end] = [
            inspect.Parameter(name, kind, default=None, annotation=annotation)
            for name, annotation in ENSEMBLE_ARGUMENTS.items()
        ]

    known = {parameter.name for parameter in parameters}

    def forward(self, *args, **kwargs):
        if not (torch.compiler.is_compiling() or kwargs.keys() <= known):
            refuse_misspelt(kwargs.keys() - known, self.ngram_arguments)
        if len(args) > len(names):
            raise TypeError(
                f"`forward` takes at most {len(names)} arguments by position, got {len(args)}: pass more by name."
            )
        return self._ngram_forward(**dict(zip(names[: len(args)], args, strict=True)), **kwargs)

    vars(forward)["__signature__"] = signature.replace(parameters=parameters)
    forward.__doc__ = documentation
    return forward


@cache
def with_fields(output_class: type, names: frozenset[str]) -> type:
    """
    Return a subclass of `output_class`, of the same name, with an additional field for each of `names` that it lacks.
    The default of these fields is `None`.
    """
    extra_names = sorted(names - output_class.__dataclass_fields__.keys())
    fields = [(name, Any, field(default=None)) for name in extra_names]
    return make_dataclass(output_class.__name__, fields, bases=(output_class,))
