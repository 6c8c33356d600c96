"""The configuration fields that every model with N-gram heads shares."""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

from transformers.activations import ACT2FN

from .typing_bases import BackboneConfig

CHOICES = {
    "ngram_target": ("wdr", "simple"),
    "ngram_head_reads": ("hidden", "hidden+tokens", "previous+token"),
    "head_loss_tokens": ("all", "draft"),
    "ngram_head_activation": ACT2FN,
}


@dataclass(repr=False)
class NgramConfigMixin(BackboneConfig):
    r"""
    The N-gram fields of a Transformers config: `class MyConfig(NgramConfigMixin, BackboneConfig)`.

    Args:
        ngram_size (`int`, *optional*, defaults to 4):
            The paper's N: how many tokens ahead to predict. N - 1 heads are added; 1 is the plain backbone.
        ngram_target (`str`, *optional*, defaults to `"wdr"`):
            What a head predicts of a future token: `"wdr"`, its n-level word difference representation, or
            `"simple"`, its embedding.
        ensemble_lambda (`float`, *optional*, defaults to 0.0):
            The paper's λ: the weight, from 0 to 1, of the heads' past predictions in evaluation and generation.
        label_smoothing (`float`, *optional*, defaults to 0.0):
            The ε of label smoothing, from 0 to 1, in the training loss of every depth.
        ngram_head_activation (`str`, *optional*, defaults to `"relu"`):
            The Transformers name of the activation between the two linear layers of a head.
        ngram_head_expansion (`int`, *optional*, defaults to 1):
            The width of a head between its two linear layers, in multiples of the model's width d. 1 is the paper's.
        draft_vocab_size (`int`, *optional*):
            How many tokens the heads choose from when they draft for `generate(use_mtp=True)`: those given to
            `ngram_set_draft_tokens`, or else the first of the vocabulary. All tokens by default.
        head_gradient (`float`, *optional*, defaults to 1.0):
            The share γ, from 0 to 1, of the heads' gradient that reaches the hidden states and the output embedding.
            1 is the paper's; with 0, the heads learn from the model without changing it.
        head_loss_weight (`float`, *optional*):
            The weight w > 0 of the heads in the loss `L_0 + w mean(L_n)`; the paper's halves of both by default.
        head_loss_decay (`float`, *optional*, defaults to 1.0):
            The loss weight of head n+1 relative to that of head n, above 0 and at most 1. Their sum stays the same.
        head_sample_rate (`float`, *optional*, defaults to 1.0):
            The share ρ of its targets that each head is trained on in a step, above 0 and at most 1. They are chosen
            at random, and their loss is divided by ρ.
        head_loss_tokens (`str`, *optional*, defaults to `"all"`):
            The vocabulary of the heads' training loss: `"all"` tokens, or only the `"draft"` tokens. This is cheaper,
            but only good for drafting: the ensemble needs probabilities of all tokens.
        ngram_head_reads (`str`, *optional*, defaults to `"hidden"`):
            What head n reads: `"hidden"`, the hidden state, as in the paper; `"hidden+tokens"`, also the n tokens
            before the predicted one; `"previous+token"`, the output of head n - 1 and the token before the predicted
            one. All depths share one head then, `z_n = z_{n-1} + MLP([z_{n-1}; e(x_{t+n})])` with `z_0 = h_t`, and
            there is no largest depth for drafts.
        ensemble_weights (`Sequence[float]`, *optional*):
            The N weights of the ensemble `w_0 h + sum_n w_n ê_n`, instead of a λ. See [`fit_ensemble`].
        draft_by_default (`bool`, *optional*, defaults to `False`):
            Whether `generate` drafts with the heads where that is possible, without `use_mtp=True`.
    """

    ngram_size: int = 4
    ngram_target: str = "wdr"
    ensemble_lambda: float = 0.0
    label_smoothing: float = 0.0
    ngram_head_activation: str = "relu"
    ngram_head_expansion: int = 1
    draft_vocab_size: int | None = None
    head_gradient: float = 1.0
    head_loss_weight: float | None = None
    head_loss_decay: float = 1.0
    head_sample_rate: float = 1.0
    head_loss_tokens: str = "all"
    ngram_head_reads: str = "hidden"
    ensemble_weights: Sequence[float] | None = None
    draft_by_default: bool = False

    @property
    def keys_to_ignore_at_inference(self) -> list[str]:
        # Trainer's predictions have a batch dimension, which these fields have not.
        return [*super().keys_to_ignore_at_inference, "head_losses", "head_counts"]

    @classmethod
    def get_config_dict(
        cls, pretrained_model_name_or_path: str | os.PathLike, **kwargs
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        fields, kwargs = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        if fields.get("model_type") == cls._ngram_backbone_config().model_type:
            # Transformers would warn that loading a plain backbone is not supported.
            fields["model_type"] = cls.model_type
            # A plain class that loads and saves a trunk keeps fields that describe heads it no longer has.
            fields = {name: value for name, value in fields.items() if name not in cls._ngram_fields()}
        return fields, kwargs

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs):
        refuse_misspelt(kwargs, cls._ngram_fields())
        return super().from_dict(config_dict, **kwargs)

    @classmethod
    def _ngram_backbone_config(cls) -> type:
        """Return the stock configuration class that this class adds fields to."""
        return next(parent for parent in cls.__mro__ if not issubclass(parent, NgramConfigMixin))

    @classmethod
    def _ngram_fields(cls) -> tuple[str, ...]:
        """Return the names of the fields that are not the stock configuration's."""
        stock_fields = cls._ngram_backbone_config().__dataclass_fields__
        return tuple(name for name in cls.__dataclass_fields__ if name not in stock_fields)

    @property
    def ngram_needs_tokens(self) -> bool:
        """Whether the heads need the tokens before the predicted one: WDR heads do, and heads that read tokens."""
        return self.ngram_size > 1 and (self.ngram_target == "wdr" or self.ngram_head_reads != "hidden")

    def __post_init__(self, **kwargs):
        refuse_misspelt(kwargs, self._ngram_fields())
        super().__post_init__(**kwargs)
        self.validate_ngram_fields()

    def validate_ngram_fields(self) -> None:
        """Raise a `ValueError` for an invalid N-gram field. Models call this, too: fields may have been set since."""
        check_integer("ngram_size", self.ngram_size, advice="Use 1 for the plain model.")
        check_integer("ngram_head_expansion", self.ngram_head_expansion)
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"`{name}` must be one of {', '.join(choices)}, got {getattr(self, name)!r}.")
        for name in ("ensemble_lambda", "label_smoothing", "head_gradient", "head_loss_decay", "head_sample_rate"):
            check_fraction(name, getattr(self, name))
        for name in ("head_loss_decay", "head_sample_rate", "head_loss_weight"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value > 0):
                raise ValueError(f"`{name}` must be a finite number > 0, got {value!r}.")
        check_draft_vocab_size(self.draft_vocab_size)
        if self.ensemble_weights is not None:
            self.ensemble_weights = check_ensemble_weights(self.ensemble_weights, self.ngram_size)
            if self.ensemble_lambda:
                exclusive = f"`ensemble_weights` and `ensemble_lambda={self.ensemble_lambda}`"
                raise ValueError(f"{exclusive} exclude each other: remove one.")


def is_number(value: object) -> bool:
    """Return whether a value is a finite number; a `bool` is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def check_integer(name: str, value: int, lowest: int = 1, advice: str = "") -> None:
    """Raise a `ValueError` about `name`, ending with `advice`, unless `value` is an integer >= `lowest`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise ValueError(f"`{name}` must be an integer >= {lowest}, got {value!r}. {advice}".rstrip())


def check_fraction(name: str, value: float) -> None:
    """Raise a `ValueError` about `name` unless `value` is a number from 0 to 1."""
    if not is_number(value) or not 0.0 <= value <= 1.0:
        raise ValueError(f"`{name}` must be a number from 0 to 1, got {value!r}.")


def check_ensemble_weights(weights: Sequence[float], ngram_size: int) -> list[float]:
    """Return the weights as a list. Raise a `ValueError` unless they are N finite numbers, N > 1."""
    weights = list(weights)
    if ngram_size == 1:
        raise ValueError("`ensemble_weights` needs a model with heads: use `ngram_size` >= 2, or remove it.")
    if len(weights) != ngram_size or not all(map(is_number, weights)):
        raise ValueError(f"`ensemble_weights` must be {ngram_size} finite numbers, one per depth, got {weights!r}.")
    return weights


def check_draft_vocab_size(size: int | None, vocab_size: float = math.inf) -> None:
    """Raise a `ValueError` unless `size` is an integer from 1 to `vocab_size`, or `None` for the full vocabulary."""
    if size is not None:
        check_integer("draft_vocab_size", size, advice="Use `None` to draft from the full vocabulary.")
    if size is not None and size > vocab_size:
        raise ValueError(f"`draft_vocab_size` must be at most the vocabulary size, {vocab_size}, got {size}.")


def refuse_misspelt(given: Iterable[str], own: tuple[str, ...]) -> None:
    """Raise a `TypeError` for a name that is almost one of our `own`: `**kwargs` of Transformers would swallow it."""
    for name in given:
        if intended := _intended(name, own):
            raise TypeError(f"`{name}` is unknown: `{intended}` is probably meant.")


@cache
def _intended(name: str, own: tuple[str, ...]) -> str | None:
    """Return the name of ours that `name` misspells; `None` if it is one of ours, or not close to any."""
    return None if name in own else next(iter(get_close_matches(name, own, n=1, cutoff=0.85)), None)
