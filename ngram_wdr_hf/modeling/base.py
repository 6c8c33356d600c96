"""The base of every model with N-gram heads: the heads on a backbone, and what all kinds of models do with them."""

import operator
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import field, make_dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, initialization

from ..method.head_training import HeadTraining, head_weights
from ..method.heads import NgramHead, NgramHeads, NgramPredictions
from ..method.logits import LogitLayer
from ..method.loss import ngram_loss
from .checkpoint import CheckpointMixin

# The arguments of `forward` that no backbone has.
OWN_ARGUMENTS = ("ensemble_lambda", "ensemble_weights", "last_hidden_state")
UNTRAINED_HEADS = (
    "This backward pass trains the backbone but not its N-gram heads. Pass `labels` to the model in training mode "
    "(`model.train()`; `from_pretrained` returns a model in evaluation mode) and use its `loss` (in Trainer, without "
    "`label_smoothing_factor` or `compute_loss_func`; with TRL, use `NgramSFTTrainer`), or freeze the heads with "
    "`model.ngram_heads.requires_grad_(False)`."
)
FROZEN_HEADS = (
    "The model trains on the losses of N-gram heads that are frozen. Train the heads, too (with PEFT, by "
    '`modules_to_save=["ngram_heads"]`), or set `model.config.head_gradient = 0.0` and `head_loss_weight = 1.0` to '
    "train the model as if it had none."
)
MORE_HEADS = (
    "These weights have more N-gram heads than the model, which has {}: load them into a model with the `ngram_size` "
    "of their training."
)


class NgramHeadsMixin(CheckpointMixin):
    """Mixin that adds the N-gram heads to a Transformers language model. Subclasses define what the heads predict."""

    # The name of the Auto class that loads such a model, and the class of its outputs.
    ngram_auto_class: str
    ngram_output_class: type[Any]
    # The prefix of the arguments that describe the predicted text.
    ngram_text_prefix = ""
    # The number of training steps so far, the seed of the heads' sample of positions. A tensor with one number spares
    # `torch.compile` from compiling every step anew.
    ngram_step: int | torch.Tensor = 0
    # Factors of the heads' loss weights, for a schedule; `None` for 1.
    ngram_head_factors: Sequence[float] | None = None
    # Whether the heads read the hidden states of the next call of the decoder.
    _ngram_reads_states = False

    def __init__(self, config: PreTrainedConfig, *args, **kwargs):
        if not hasattr(config, "validate_ngram_fields"):
            raise ValueError(f"`config` must be a {self.config_class.__name__}, got a {type(config).__name__}.")
        # `from_pretrained(..., ngram_size=4)` sets fields after the configuration was validated.
        config.validate_ngram_fields()
        super().__init__(config, *args, **kwargs)
        self._ngram_add_heads()
        # A bound method, because `deepcopy` rebinds it to the copied model.
        self._ngram_decoder().register_forward_hook(self._ngram_expect_heads)
        self.post_init()

    def _ngram_add_heads(self) -> None:
        """Create `ngram_heads`: N - 1 heads, as wide as the output embedding."""
        self.ngram_needs_tokens = self.config.ngram_needs_tokens
        self.ngram_heads = NgramHeads.of(self.config, self.get_output_embeddings().weight.shape[1])

    @property
    def ngram_head_list(self) -> list[NgramHead]:
        """The heads of all N - 1 depths. Where PEFT trains `ngram_heads`, those of the active adapter."""
        return self.ngram_heads.active.by_depth(self.config.ngram_size - 1)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # The backbone is created and initialised before the heads exist.
        heads = getattr(self, "ngram_heads", None)
        if heads is not None and isinstance(module, nn.Linear) and any(module is part for part in heads.modules()):
            initialization.normal_(module.weight, std=self._ngram_head_deviation())
            initialization.zeros_(module.bias)
        else:
            super()._init_weights(module)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        count = len(self.ngram_heads.active)
        if any(name.startswith(f"{prefix}ngram_heads.{count}.") for name in state_dict):
            warnings.warn(MORE_HEADS.format(count), stacklevel=2)

    def _ngram_head_deviation(self) -> float:
        """Return the standard deviation of the heads' initial weights: the backbone's, or else 0.02."""
        names = ("initializer_range", "init_std")
        return next((value for name in names if (value := getattr(self.config, name, None))), 0.02)

    @property
    def ngram_vocab_size(self) -> int:
        """The number of tokens in the vocabulary that the model predicts; with an encoder-decoder, the decoder's."""
        return self.config.vocab_size

    def _ngram_decoder(self) -> nn.Module:
        """Return the module whose first output is the last hidden states."""
        return self.get_decoder()

    def _ngram_expect_heads(self, decoder: nn.Module, args: tuple, outputs: Any) -> None:
        """Forward hook of the decoder: warn in a backward pass through hidden states that no head reads."""
        reads_states, self._ngram_reads_states = self._ngram_reads_states, False
        if self.training and not reads_states:
            self._ngram_warn_in_backward(outputs[0])

    def _ngram_warn_in_backward(self, tensor: torch.Tensor) -> None:
        """Warn in a backward pass to `tensor` that has given no gradient to the trainable heads."""
        parameters = [parameter for parameter in self.ngram_heads.parameters() if parameter.requires_grad]

        def warn(_: torch.Tensor) -> None:
            if all(parameter.grad is None for parameter in parameters):
                warnings.warn(UNTRAINED_HEADS, stacklevel=2)

        if parameters and tensor.requires_grad and not torch.compiler.is_compiling():
            tensor.register_hook(warn)

    def _ngram_run_backbone(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        """Run the base model. Return its last hidden states, `(batch_size, T, d)`, and its other outputs by name."""
        base_model = self.base_model
        if base_model is self:
            # Some backbones do not name their base model by their `base_model_prefix`.
            base_model = next(child for child in self.children() if isinstance(child, PreTrainedModel))
        fields = dict(base_model(**inputs, return_dict=True))
        return fields.pop("last_hidden_state"), fields

    def _ngram_head_training(self, samples: bool = True, **fields: Any) -> HeadTraining:
        """Return how the heads are trained in this step, with other `fields` of it; all positions unless `samples`."""
        config = self.config
        weights = head_weights(config.ngram_size, config.head_loss_weight, config.head_loss_decay)
        if self.ngram_head_factors is not None:
            weights = self._ngram_scheduled(weights)
        rate = config.head_sample_rate if samples else 1.0
        # Without a sample, compiled code must not depend on the step.
        step = self.ngram_step if rate < 1.0 else 0
        return HeadTraining(weights, config.head_gradient, rate, step, **fields)

    # Compiled code would have the products as constants, and every step would be compiled anew.
    @torch.compiler.disable
    def _ngram_scheduled(self, weights: Sequence[float]) -> list[float]:
        """Return loss weights by depth, with those of the heads multiplied by `ngram_head_factors`."""
        factors: Any = self.ngram_head_factors
        return [weights[0], *map(operator.mul, weights[1:], factors)]

    def _ngram_training_loss(
        self, predictions: NgramPredictions, num_items_in_batch: int | torch.Tensor | None
    ) -> dict[str, torch.Tensor]:
        """Return the output fields `loss`, `head_losses` and `head_counts` in training mode."""
        if predictions.main.requires_grad and not torch.compiler.is_compiling():
            training, heads = predictions.training, list(self.ngram_heads.parameters())
            trains_by_heads = training is not None and training.gradient and any(training.weights[1:])
            if trains_by_heads and not any(parameter.requires_grad for parameter in heads):
                warnings.warn(FROZEN_HEADS, stacklevel=2)
        smoothing = self.config.label_smoothing
        loss, head_losses = ngram_loss(predictions, LogitLayer.of(self), smoothing, num_items_in_batch)
        return {"loss": loss, "head_losses": head_losses, "head_counts": predictions.counts()}

    def _ngram_add_router_loss(self, fields: dict[str, Any], attention_mask: torch.Tensor | None) -> None:
        """Add the load-balancing loss to `fields["loss"]`, as the stock class does, if there are router logits."""
        if not any(value for name, value in fields.items() if name.endswith("router_logits")):
            return
        # Transformers has it as a function in the module of each architecture, and nowhere else.
        module = sys.modules[self.ngram_backbone_class().__module__]
        sizes = [getattr(self, name, None) for name in ("num_experts", "num_experts_per_tok", "router_aux_loss_coef")]
        if not hasattr(module, "load_balancing_loss_func") or None in (*sizes, fields.get("router_logits")):
            raise ValueError(
                f"`output_router_logits=True` is not supported in training for {type(self).__name__}, whose "
                "load-balancing loss is unknown: set it to `False`."
            )
        loss = module.load_balancing_loss_func(fields["router_logits"], *sizes[:2], attention_mask)
        fields |= {"aux_loss": loss, "loss": fields["loss"] + sizes[2] * loss.to(fields["loss"].device)}

    def _ngram_output(self, fields: dict[str, Any]) -> Any:
        """Return `fields` as an object of the model's output class, with more fields if this backbone has more."""
        output_class = self.ngram_output_class
        if not fields.keys() <= output_class.__dataclass_fields__.keys():
            output_class = _with_fields(output_class, frozenset(fields))
        return output_class(**fields)


@cache
def _with_fields(output_class: type, names: frozenset[str]) -> type:
    """Return a subclass of `output_class`, of the same name, with a field for each of `names` that it lacks."""
    extra_names = sorted(names - output_class.__dataclass_fields__.keys())
    fields = [(name, Any, field(default=None)) for name in extra_names]
    return make_dataclass(output_class.__name__, fields, bases=(output_class,))
