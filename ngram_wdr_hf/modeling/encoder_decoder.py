"""The mixin for encoder-decoder models: heads predict the decoder's text, and labels are not shifted."""

import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import nn
from transformers import Cache
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.utils import ModelOutput, TransformersKwargs

from ..method.bag_of_words import bag_of_words_nll
from ..method.configuration import NgramConfigMixin, is_number
from ..method.documents import IGNORE_INDEX
from ..method.heads import NgramPredictions
from ..method.logits import LogitLayer
from ..method.loss import at_least_one
from .causal import NgramMixin
from .row_positions import positions_of_rows


@dataclass(repr=False)
class NgramSeq2SeqConfigMixin(NgramConfigMixin):
    r"""
    [`NgramConfigMixin`] for encoder-decoder models, with one more field.

    Args:
        bow_loss_weight (`float`, *optional*, defaults to 0.0):
            The weight of the bag-of-words loss (Ma et al. 2018), the paper's baseline. 0 disables it.
    """

    bow_loss_weight: float = 0.0

    def validate_ngram_fields(self) -> None:
        super().validate_ngram_fields()
        weight = self.bow_loss_weight
        if not is_number(weight) or weight < 0.0:
            raise ValueError(f"`bow_loss_weight` must be a finite number >= 0, got {weight!r}. Use 0 to disable it.")


@dataclass
class NgramSeq2SeqLMOutput(Seq2SeqLMOutput):
    r"""
    The backbone's output, `head_losses`, `head_counts` and `last_hidden_state` as in [`NgramCausalLMOutput`], and:

    bow_loss (`torch.FloatTensor`, a scalar, *optional*, returned in training with `bow_loss_weight` > 0):
        The bag-of-words loss without its weight, detached. It is part of `loss`, with its weight.
    """

    head_losses: torch.FloatTensor | None = None
    head_counts: torch.Tensor | None = None
    bow_loss: torch.FloatTensor | None = None
    last_hidden_state: torch.FloatTensor | None = None


class NgramSeq2SeqMixin(NgramMixin):
    r"""
    [`NgramMixin`] for an encoder-decoder model of Transformers, with the heads on its decoder:
    `class WDRNgramBartForConditionalGeneration(NgramSeq2SeqMixin, BartForConditionalGeneration)`.

    `labels` are aligned with the decoder's predictions and are not shifted. Missing `decoder_input_ids` are made from
    the labels, as in the backbone. `decoder_position_ids`, `(batch_size, T)`, override the decoder's own positions.
    """

    config: NgramSeq2SeqConfigMixin
    ngram_auto_class = "AutoModelForSeq2SeqLM"
    ngram_output_class = NgramSeq2SeqLMOutput
    ngram_text_prefix = "decoder_"
    ngram_shifts_labels = False

    def forward(  # pyrefly: ignore[bad-override]
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: ModelOutput | tuple | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        decoder_inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        ensemble_lambda: float | Sequence[float] | None = None,
        ensemble_weights: Sequence[float] | Sequence[Sequence[float]] | None = None,
        last_hidden_state: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> NgramSeq2SeqLMOutput:
        inputs = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "attention_mask": attention_mask}
        inputs |= {"decoder_input_ids": decoder_input_ids, "decoder_inputs_embeds": decoder_inputs_embeds}
        inputs |= {"decoder_attention_mask": decoder_attention_mask, "encoder_outputs": encoder_outputs}
        inputs |= {"past_key_values": past_key_values, "use_cache": use_cache}
        own = {"ensemble_lambda": ensemble_lambda, "ensemble_weights": ensemble_weights}
        return self.ngram_forward(inputs, labels, last_hidden_state=last_hidden_state, **own, **kwargs)

    @property
    def ngram_rows_can_move(self) -> bool:  # pyrefly: ignore[bad-override]
        # `positions_of_rows` needs a position table that takes `position_ids`.
        table = getattr(self.get_decoder(), "embed_positions", None)
        return isinstance(table, nn.Embedding) and "position_ids" in inspect.signature(table.forward).parameters

    def _ngram_backbone_inputs(self, inputs: dict[str, Any], next_tokens: torch.Tensor | None) -> dict[str, Any]:
        if next_tokens is None:
            return inputs
        inputs = {**inputs, "use_cache": False}
        if inputs.get("decoder_input_ids") is None and inputs.get("decoder_inputs_embeds") is None:
            inputs["decoder_input_ids"] = self._ngram_shift_right(next_tokens)
        return inputs

    def _ngram_shift_right(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the decoder's input for predicting `tokens`, made by the backbone's own function."""
        prepare = getattr(self, "prepare_decoder_input_ids_from_labels", None)
        if prepare is not None:
            return prepare(tokens)
        # Some backbones have only a function in their module.
        shift = sys.modules[self.ngram_backbone_class().__module__].shift_tokens_right
        return shift(tokens, self.config.pad_token_id, self.config.decoder_start_token_id)

    def _ngram_text(self, inputs: dict[str, Any]) -> dict[str, Any]:
        names = ("input_ids", "inputs_embeds", "attention_mask", "position_ids")
        return {name: inputs.get(f"decoder_{name}") for name in names}

    def _ngram_run_backbone(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        inputs = dict(inputs)
        with positions_of_rows(self.get_decoder(), inputs.pop("decoder_position_ids", None)):
            return super()._ngram_run_backbone(inputs)

    def _ngram_training_loss(
        self, predictions: NgramPredictions, num_items_in_batch: int | torch.Tensor | None
    ) -> dict[str, torch.Tensor]:
        losses = super()._ngram_training_loss(predictions, num_items_in_batch)
        weight = self.config.bow_loss_weight
        if weight:
            layer, targets = LogitLayer.of(self), predictions.targets[0]
            if layer.shape.soft_cap is not None:
                name = type(self).__name__
                raise ValueError(f"`bow_loss_weight` > 0 cannot be used with the soft-capped logits of {name}.")
            bow_loss = bag_of_words_nll(layer.scaled(predictions.main), targets, layer.weight, layer.scaled_bias)
            count = (targets != IGNORE_INDEX).sum() if num_items_in_batch is None else num_items_in_batch
            bow_loss = bow_loss / at_least_one(count, bow_loss.device)
            losses |= {"loss": losses["loss"] + weight * bow_loss, "bow_loss": bow_loss.detach()}
        return losses
