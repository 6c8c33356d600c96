"""The logit layer: what turns a predicted embedding into logits, shared by the next word and all heads."""

from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from transformers.configuration_utils import PreTrainedConfig

# By the backbone's name for it: what its logits are multiplied by, divided by, and bounded with.
MULTIPLIERS = ("logit_scale", "lm_head_multiplier")
DIVISORS = ("logits_scaling",)
SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")


@dataclass(frozen=True)
class LogitShape:
    r"""
    What some backbones do to the product with the output embedding.

    Args:
        multiplier (`float`, *optional*, defaults to 1.0): It is multiplied by this,
        divisor (`float`, *optional*, defaults to 1.0): divided by this,
        soft_cap (`float`, *optional*): and bounded to between minus this and this, by a tanh.
    """

    multiplier: float = 1.0
    divisor: float = 1.0
    soft_cap: float | None = None

    @classmethod
    def of(cls, config: PreTrainedConfig) -> "LogitShape":
        """As the fields of a configuration of Transformers tell."""
        # Asked for at every step of decoding, where looking into the dictionary is cheapest.
        fields = vars(config)
        # Some encoder-decoder models have a configuration for each side.
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
        # Each in the backbone's own way, so that the outcome is the same to the last bit.
        if self.multiplier != 1.0:
            logits = logits * self.multiplier
        if self.divisor != 1.0:
            logits = logits / self.divisor
        return self.cap(logits)

    def cap(self, logits: torch.Tensor) -> torch.Tensor:
        """The last of the three alone."""
        return logits if self.soft_cap is None else torch.tanh(logits / self.soft_cap) * self.soft_cap


@dataclass(frozen=True)
class LogitLayer:
    r"""
    Args:
        weight (`torch.Tensor` of shape `(vocab_size, d)`): The output embedding `W`.
        bias (`torch.Tensor` of shape `(vocab_size,)`, *optional*): The logit bias.
        shape ([`LogitShape`], *optional*): What happens to their product.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    shape: LogitShape = field(default_factory=LogitShape)

    def __call__(self, predictions: torch.Tensor) -> torch.Tensor:
        return self.shape(F.linear(predictions, self.weight, self.bias))

    @property
    def scaled_bias(self) -> torch.Tensor | None:
        return self.bias if self.bias is None or self.shape.scale == 1.0 else self.bias * self.shape.scale

    def scaled(self, predictions: torch.Tensor) -> torch.Tensor:
        """With these and `scaled_bias`, a plain product gives the logits, but for the soft cap."""
        return predictions if self.shape.scale == 1.0 else predictions * self.shape.scale

    def select(self, tokens: torch.LongTensor) -> "LogitLayer":
        """For some tokens only."""
        return replace(self, weight=self.weight[tokens], bias=None if self.bias is None else self.bias[tokens])
