"""What every model with N-gram heads has: the heads on its backbone, and the logit layer that they share."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_utils import PreTrainedModel

from .checkpoint_wdr_ngram import CheckpointMixin
from .documents_wdr_ngram import read_attention_mask, run_lengths
from .heads_wdr_ngram import NgramHead
from .logits_wdr_ngram import LogitLayer, LogitShape
from .loss_wdr_ngram import IGNORE_INDEX
from .watch_wdr_ngram import HeadWatchMixin


class NgramHeadsMixin(CheckpointMixin, HeadWatchMixin):
    """Put before a language model of Transformers, it adds the N-gram heads; what they predict is not said here."""

    # What the arguments about the predicted text begin with.
    text_prefix = ""

    def __init__(self, config: PreTrainedConfig, *args, **kwargs):
        # `from_pretrained(..., ngram_size=4)` changes the configuration after it was made.
        config.validate_ngram_fields()
        super().__init__(config, *args, **kwargs)
        self._add_heads()
        self._watch_backbone()
        self.post_init()

    def _add_heads(self) -> None:
        width = self.get_output_embeddings().weight.shape[1]
        self.ngram_heads = nn.ModuleList(
            NgramHead(width, self.config.ngram_head_activation) for _ in range(self.config.ngram_size - 1)
        )

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # The backbone is made, and initialised, before the heads are.
        heads = getattr(self, "ngram_heads", None)
        if heads is not None and isinstance(module, nn.Linear) and any(module is part for part in heads.modules()):
            initialization.normal_(module.weight, std=self._head_deviation())
            initialization.zeros_(module.bias)
        else:
            super()._init_weights(module)

    def _head_deviation(self) -> float:
        """The deviation of the heads' first weights: that of the backbone's."""
        names = ("initializer_range", "init_std")
        return next((value for name in names if (value := getattr(self.config, name, None))), 0.02)

    def _run_backbone(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        """The hidden states as the logit layer sees them, `(batch_size, T, d)`, and the other fields of the output."""
        base_model = self.base_model
        if base_model is self:
            # Some backbones call their base model by another name than they say.
            base_model = next(child for child in self.children() if isinstance(child, PreTrainedModel))
        fields = dict(base_model(**inputs, return_dict=True))
        return fields.pop("last_hidden_state"), fields

    def _runs(
        self,
        hidden_states: torch.Tensor,
        text: dict[str, Any],
        past_length: int | torch.Tensor,
        last_record: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens' `run_lengths` and their positions, `(batch_size, T)` each."""
        batch_size, length = hidden_states.shape[:2]
        position_ids = text.get("position_ids")
        if position_ids is None:
            position_ids = torch.arange(length, device=hidden_states.device)[None] + past_length
        position_ids = position_ids.expand(batch_size, length)
        is_real, is_linked = read_attention_mask(text.get("attention_mask"), length, past_length)
        previous = () if last_record is None else last_record[:, 1:].unbind(-1)
        return run_lengths(position_ids, is_real, is_linked, *previous), position_ids

    def _target_vocab_size(self) -> int:
        return self.config.vocab_size

    def _target_embeddings(self, token_ids: torch.LongTensor | None) -> torch.Tensor | None:
        """The output embeddings `e(x)` that the WDR arithmetic works on, detached; `None` for simple heads."""
        if not self.ngram_heads or self.config.ngram_target == "simple":
            return None
        # Without the detachment the logit layer's input would be made of its own weights (paper, section 3.2.2).
        return F.embedding(token_ids, self._output_weight().detach())

    def _output_weight(self) -> torch.Tensor:
        """The output embedding `W`, to be read here."""
        weight = self.get_output_embeddings().weight
        if weight.device.type == "meta" or hasattr(weight, "placements"):
            raise ValueError(
                "The N-gram loss and the ensemble read the output embedding's weights, and these are offloaded or "
                "sharded: keep the output embedding whole on a device, or use `ensemble_lambda=0` without labels."
            )
        return weight

    def _logit_layer(self) -> LogitLayer:
        """The logit layer as the loss sees it."""
        layer = self.get_output_embeddings()
        if hasattr(layer, "base_layer"):
            raise ValueError(
                "The N-gram loss reads the output embedding's weights and cannot see an adapter on it: take it out of "
                "the adapter's `target_modules` (with PEFT, train it in full by `modules_to_save`)."
            )
        return LogitLayer(self._output_weight(), layer.bias, LogitShape.of(self.config))

    def _check_tokens(self, text: dict[str, Any], labels: torch.LongTensor | None) -> None:
        """Raises a `ValueError` unless the tokens and the labels of a text are such."""
        input_ids, inputs_embeds = text.get("input_ids"), text.get("inputs_embeds")
        ids_name = f"`{self.text_prefix}input_ids`"
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(f"Pass either {ids_name} or `{self.text_prefix}inputs_embeds`.")
        vocab_size = self._target_vocab_size()
        if input_ids is not None:
            check_token_ids(ids_name, input_ids, vocab_size)
        if labels is None:
            return
        tokens_shape = (inputs_embeds[..., 0] if input_ids is None else input_ids).shape
        if labels.shape != tokens_shape:
            raise ValueError(
                f"`labels` must have the shape of the tokens they label, {tuple(tokens_shape)}, got "
                f"{tuple(labels.shape)}."
            )
        check_token_ids("`labels`", labels, vocab_size, IGNORE_INDEX)


def check_token_ids(name: str, token_ids: torch.LongTensor, vocab_size: int, allowed: int | None = None) -> None:
    """Raises a `ValueError` for ids outside the vocabulary, where looking does not stall an accelerator."""
    if torch.compiler.is_compiling() or token_ids.device.type != "cpu" or token_ids.numel() == 0:
        return
    if allowed is not None:
        token_ids = token_ids.masked_fill(token_ids == allowed, 0)
    # One token, a step of decoding, needs no search.
    lowest, highest = (token_ids.item(),) * 2 if token_ids.numel() == 1 else (x.item() for x in token_ids.aminmax())
    if lowest < 0 or highest >= vocab_size:
        raise ValueError(
            f"{name} must lie in the vocabulary of {vocab_size} tokens, got ids from {lowest} to {highest}: is this "
            "the tokenizer the model was trained with?"
        )
