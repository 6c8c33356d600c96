"""The logit layer that all depths share: from predicted embeddings to logits."""

from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from transformers import PreTrainedConfig, PreTrainedModel

# Names of configuration fields that scale or soft-cap the logits of a backbone.
MULTIPLIERS = ("logit_scale", "lm_head_multiplier")
DIVISORS = ("logits_scaling",)
SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")


@dataclass(frozen=True)
class LogitShape:
    r"""
    The scaling and soft-capping that some backbones apply to their logits. Calling the object applies both: the
    scaling `z = logits * multiplier / divisor`, then, unless it is `None`, the soft cap
    `soft_cap * tanh(z / soft_cap)`.
    """

    multiplier: float = 1.0
    divisor: float = 1.0
    soft_cap: float | None = None

    @classmethod
    def of(cls, config: PreTrainedConfig) -> "LogitShape":
        """Return the shape that the fields of a configuration of Transformers describe."""
        # Some encoder-decoder models have one configuration per side. `getattr` on a configuration is slow.
        fields = vars(config)
        if isinstance(fields.get("decoder"), PreTrainedConfig):
            fields = vars(fields["decoder"])
        multiplier, divisor, soft_cap = (
            next((fields[name] for name in names if isinstance(fields.get(name), (int, float))), default)
            for names, default in ((MULTIPLIERS, 1.0), (DIVISORS, 1.0), (SOFT_CAPS, None))
        )
        return cls(multiplier, divisor, soft_cap)

    @property
    def scale(self) -> float:
        return self.multiplier / self.divisor

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        # Separate operations, as in the backbones, for bit-identical logits.
        if self.multiplier != 1.0:
            logits = logits * self.multiplier
        if self.divisor != 1.0:
            logits = logits / self.divisor
        return self.cap(logits)

    def cap(self, logits: torch.Tensor) -> torch.Tensor:
        """Return `logits` with the soft cap but without the scaling; unchanged if there is no cap."""
        return logits if self.soft_cap is None else torch.tanh(logits / self.soft_cap) * self.soft_cap


@dataclass(frozen=True)
class LogitLayer:
    r"""
    The output embedding `W` with its bias, scaling and soft cap. Calling it turns predictions `(..., d)` into logits
    `(..., vocab_size)`.
    """

    weight: torch.Tensor  # (vocab_size, d)
    bias: torch.Tensor | None = None  # (vocab_size,)
    shape: LogitShape = field(default_factory=LogitShape)

    @classmethod
    def of(cls, model: PreTrainedModel) -> "LogitLayer":
        """Return the logit layer of a language model, sharing its weights."""
        layer = model.get_output_embeddings()
        # PEFT's wrapper of single trainable tokens has no bias.
        if hasattr(layer, "base_layer") or not hasattr(layer, "bias"):
            raise ValueError(
                "`target_modules` and `trainable_token_indices` must not include the output embedding, nor an input "
                "embedding tied to it: the N-gram loss would ignore an adapter on it. Use PEFT's `modules_to_save`."
            )
        bias = _final_bias(model)
        return cls(output_weight(model), layer.bias if bias is None else bias.view(-1), LogitShape.of(model.config))

    def __call__(self, predictions: torch.Tensor) -> torch.Tensor:
        return self.shape(F.linear(predictions, self.weight, self.bias))

    @property
    def scaled_bias(self) -> torch.Tensor | None:
        return self.bias if self.bias is None or self.shape.scale == 1.0 else self.bias * self.shape.scale

    def scaled(self, predictions: torch.Tensor) -> torch.Tensor:
        """Return the predictions times the scale: their product with `weight`, plus `scaled_bias`, is to be capped."""
        return predictions if self.shape.scale == 1.0 else predictions * self.shape.scale

    def select(self, tokens: torch.Tensor) -> "LogitLayer":
        """Return a layer for the given token ids only: its logit i is that of `tokens[i]`."""
        return replace(self, weight=self.weight[tokens], bias=None if self.bias is None else self.bias[tokens])


def logits_of(model: PreTrainedModel, predictions: torch.Tensor) -> torch.Tensor:
    """
    Return the logits `(..., vocab_size)` of predictions `(..., d)`. Unlike `LogitLayer`, this calls the model's own
    output embedding, so an adapter on it takes effect.
    """
    logits = model.get_output_embeddings()(predictions)
    bias = _final_bias(model)
    return LogitShape.of(model.config)(logits if bias is None else logits + bias)


def keep_positions(states: torch.Tensor, logits_to_keep: int | torch.Tensor) -> torch.Tensor:
    """
    Return the part of `states`, `(batch_size, T, d)`, that Transformers' `logits_to_keep` asks for: the last positions
    (0: all), those of an index, those of an index per row, or those where a mask is `True`.
    """
    if isinstance(logits_to_keep, int):
        return states[:, -logits_to_keep:]
    if logits_to_keep.ndim == 2 and logits_to_keep.dtype != torch.bool:
        return torch.take_along_dim(states, logits_to_keep[..., None], dim=1)
    return states[logits_to_keep] if logits_to_keep.ndim == 2 else states[:, logits_to_keep]


def output_weight(model: PreTrainedModel) -> torch.Tensor:
    """Return the output embedding `W`, `(vocab_size, d)`. Raise a `ValueError` if it is offloaded or sharded."""
    weight = model.get_output_embeddings().weight
    if weight.device.type == "meta" or hasattr(weight, "placements"):
        raise ValueError(
            f"`{type(model).__name__}` has an offloaded or sharded output embedding, which loss and ensemble read: "
            "keep it on one device, or use `ensemble_lambda=0` without `labels`."
        )
    return weight


def target_embeddings(model: PreTrainedModel, token_ids: torch.Tensor) -> torch.Tensor | None:
    """Return the output embeddings `e(x)` of tokens, `(*token_ids.shape, d)`; `None` if the heads need no tokens."""
    if not model.ngram_needs_tokens:
        return None
    # Detached, so that the loss does not reach `W` through the inputs of the logit layer (paper, section 3.2.2).
    return F.embedding(token_ids, output_weight(model).detach())


def _final_bias(model: PreTrainedModel) -> torch.Tensor | None:
    """Return the bias that Marian and BART add to the logits, `(1, vocab_size)`; `None` for models without one."""
    return getattr(model, "final_logits_bias", None)
