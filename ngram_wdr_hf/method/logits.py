"""The logit layer: what turns a predicted embedding into logits, shared by the next word and all heads."""

from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from transformers import PreTrainedConfig, PreTrainedModel

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

    @classmethod
    def of(cls, model: PreTrainedModel) -> "LogitLayer":
        """That of a language model."""
        layer = model.get_output_embeddings()
        if hasattr(layer, "base_layer"):
            raise ValueError(
                "The N-gram loss reads the output embedding's weights and cannot see an adapter on it: take it out of "
                "the adapter's `target_modules` (with PEFT, train it in full by `modules_to_save`)."
            )
        bias = _final_bias(model)
        return cls(output_weight(model), layer.bias if bias is None else bias.view(-1), LogitShape.of(model.config))

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


def logits_of(model: PreTrainedModel, predictions: torch.Tensor) -> torch.Tensor:
    """The logits of predicted embeddings, `(..., vocab_size)`, by the model's own modules: adapters are included."""
    product = model.get_output_embeddings()(predictions)
    bias = _final_bias(model)
    return LogitShape.of(model.config)(product if bias is None else product + bias)


def output_weight(model: PreTrainedModel) -> torch.Tensor:
    """The output embedding `W`, to be read here."""
    weight = model.get_output_embeddings().weight
    if weight.device.type == "meta" or hasattr(weight, "placements"):
        raise ValueError(
            "The N-gram loss and the ensemble read the output embedding's weights, and these are offloaded or "
            "sharded: keep the output embedding whole on a device, or use `ensemble_lambda=0` without labels."
        )
    return weight


def target_embeddings(model: PreTrainedModel, token_ids: torch.LongTensor | None) -> torch.Tensor | None:
    """The output embeddings `e(x)` that WDR heads compute with, detached; `None` for simple heads."""
    if not model.ngram_heads or model.config.ngram_target == "simple":
        return None
    # Without the detachment the logit layer's input would be made of its own weights (paper, section 3.2.2).
    return F.embedding(token_ids, output_weight(model).detach())


def _final_bias(model: PreTrainedModel) -> torch.Tensor | None:
    """The logit bias that Marian and BART keep beside the output embedding, `(1, vocab_size)`."""
    return getattr(model, "final_logits_bias", None)
