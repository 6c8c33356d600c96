"""The base of every model with N-gram heads: the heads on a backbone."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, initialization

from ..method.documents import IGNORE_INDEX
from ..method.head_training import HeadTraining, head_weights
from ..method.heads import NgramHead
from .checkpoint import CheckpointMixin
from .signature import with_fields
from .watch import HeadWatchMixin


class NgramHeadsMixin(CheckpointMixin, HeadWatchMixin):
    """Mixin that adds the N-gram heads to a Transformers language model. Subclasses define what the heads predict."""

    # The class of the outputs.
    ngram_output_class: type[Any]
    # The arguments of `forward` that no backbone has.
    ngram_arguments: tuple[str, ...] = ()
    # The prefix of the arguments that describe the predicted text.
    ngram_text_prefix = ""
    # The number of training steps so far, the seed of the heads' sample of positions. A tensor with one number spares
    # `torch.compile` from compiling every step anew.
    ngram_step: int | torch.Tensor = 0
    # Factors of the heads' loss weights, for a schedule; `None` for 1.
    ngram_head_factors: Sequence[float] | None = None

    def __init__(self, config: PreTrainedConfig, *args, **kwargs):
        # `from_pretrained(..., ngram_size=4)` sets fields after the configuration was validated.
        config.validate_ngram_fields()
        super().__init__(config, *args, **kwargs)
        self._ngram_add_heads()
        self._ngram_watch_backbone()
        self.post_init()

    def _ngram_add_heads(self) -> None:
        """Create `ngram_heads`: N - 1 heads, as wide as the output embedding."""
        config, width = self.config, self.get_output_embeddings().weight.shape[1]
        reads_tokens = config.ngram_head_reads == "hidden+tokens"
        self.ngram_heads = nn.ModuleList(
            NgramHead(
                width,
                config.ngram_head_activation,
                config.ngram_target,
                n if reads_tokens else 0,
                config.ngram_head_expansion,
            )
            for n in range(1, config.ngram_size)
        )

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # The backbone is created and initialised before the heads exist.
        heads = getattr(self, "ngram_heads", None)
        if heads is not None and isinstance(module, nn.Linear) and any(module is part for part in heads.modules()):
            initialization.normal_(module.weight, std=self._ngram_head_deviation())
            initialization.zeros_(module.bias)
        else:
            super()._init_weights(module)

    def _ngram_head_deviation(self) -> float:
        """
        Return the standard deviation for initialising the heads' weights: the backbone's, from `initializer_range` or
        `init_std` in its configuration, or else 0.02.
        """
        names = ("initializer_range", "init_std")
        return next((value for name in names if (value := getattr(self.config, name, None))), 0.02)

    def _ngram_head_training(self, samples: bool = True, **fields: Any) -> HeadTraining:
        """
        Return how the heads are trained in this step; without `samples`, at all positions. `fields` are other fields
        of [`HeadTraining`].
        """
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

    @property
    def ngram_vocab_size(self) -> int:
        """The number of tokens in the vocabulary that the model predicts; with an encoder-decoder, the decoder's."""
        return self.config.vocab_size

    def _ngram_run_backbone(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        """
        Run the backbone's base model on `inputs`. Return its last hidden states, `(batch_size, T, d)`, and the other
        fields of its output by name.
        """
        base_model = self.base_model
        if base_model is self:
            # Some backbones do not name their base model by their `base_model_prefix`.
            base_model = next(child for child in self.children() if isinstance(child, PreTrainedModel))
        fields = dict(base_model(**inputs, return_dict=True))
        return fields.pop("last_hidden_state"), fields

    def _ngram_output(self, fields: dict[str, Any]) -> Any:
        """
        Return `fields` as an object of the model's output class. If the class lacks some of them, because only this
        backbone returns them, a subclass with additional fields is used.
        """
        output_class = self.ngram_output_class
        if not fields.keys() <= output_class.__dataclass_fields__.keys():
            output_class = with_fields(output_class, frozenset(fields))
        return output_class(**fields)

    def _ngram_check_tokens(self, text: dict[str, Any], labels: torch.Tensor | None) -> None:
        """
        Raise a `ValueError` unless `text` has either token ids or embeddings, and all ids are inside the vocabulary.
        Labels, if given, must have the shape of the tokens and be inside the vocabulary, too, or -100.
        """
        input_ids, inputs_embeds = text.get("input_ids"), text.get("inputs_embeds")
        ids_name = f"`{self.ngram_text_prefix}input_ids`"
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(
                f"{ids_name} or `{self.ngram_text_prefix}inputs_embeds` must be given, but not both. Pass one of them."
            )
        vocab_size = self.ngram_vocab_size
        if input_ids is not None:
            check_token_ids(ids_name, input_ids, vocab_size)
        if labels is None:
            return
        tokens_shape = (text["inputs_embeds"][..., 0] if input_ids is None else input_ids).shape
        if labels.shape != tokens_shape:
            raise ValueError(
                f"`labels` must have the shape of the input tokens, {tuple(tokens_shape)}, got {tuple(labels.shape)}. "
                "Pass one label per token, -100 for none."
            )
        check_token_ids("`labels`", labels, vocab_size, IGNORE_INDEX)


def check_token_ids(name: str, token_ids: torch.Tensor, vocab_size: int, allowed: int | None = None) -> None:
    """
    Raise a `ValueError` about `name` if an id is not from 0 to `vocab_size - 1` and not `allowed` (`None`: no further
    value). Ids on other devices than the CPU are not checked, as that would synchronise the device.
    """
    if torch.compiler.is_compiling() or token_ids.device.type != "cpu" or token_ids.numel() == 0:
        return
    if allowed is not None:
        token_ids = token_ids.masked_fill(token_ids == allowed, 0)
    # A decoding step has one token: `aminmax` would be slower.
    lowest, highest = (token_ids.item(),) * 2 if token_ids.numel() == 1 else (x.item() for x in token_ids.aminmax())
    if lowest < 0 or highest >= vocab_size:
        raise ValueError(
            f"{name} must be ids from 0 to {vocab_size - 1}, got ids from {lowest} to {highest}. Use the tokenizer "
            "that the model was trained with."
        )
