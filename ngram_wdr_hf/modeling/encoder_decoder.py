"""The mixin for encoder-decoder models: heads predict the decoder's text, and labels are not shifted."""

import inspect
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import Seq2SeqLMOutput

from ..method.bag_of_words import bag_of_words_nll
from ..method.configuration import NgramConfigMixin, is_number
from ..method.documents import IGNORE_INDEX
from ..method.heads import NgramPredictions
from ..method.logits import LogitLayer
from ..method.loss import at_least_one
from .base import check_token_ids
from .causal import NgramMixin
from .checkpoint import logger
from .positions import positions_of_rows
from .signature import ENSEMBLE_ARGUMENTS


@dataclass(repr=False)
class NgramSeq2SeqConfigMixin(NgramConfigMixin):
    __doc__ = f"""{(NgramConfigMixin.__doc__ or "").rstrip()}
        bow_loss_weight (`float`, *optional*, defaults to 0.0):
            The weight of the bag-of-words loss (Ma et al. 2018), the paper's baseline: all positions together predict
            every token of the target sentence. 0 disables it.
    """

    bow_loss_weight: float = 0.0

    def validate_ngram_fields(self) -> None:
        super().validate_ngram_fields()
        weight = self.bow_loss_weight
        if not is_number(weight) or not 0.0 <= weight < float("inf"):
            raise ValueError(f"`bow_loss_weight` must be a finite number >= 0, got {weight!r}. Use 0 to disable it.")
        self.bow_loss_weight = float(weight)


@dataclass
class NgramSeq2SeqLMOutput(Seq2SeqLMOutput):
    r"""
    The backbone's output, and:

    head_losses (`torch.FloatTensor` of shape `(ngram_size,)`, *optional*, returned when `labels` is provided):
        The mean NLL of each depth over its own targets, detached. Index 0 is the next token's, without the ensemble.
    head_counts (`torch.LongTensor` of shape `(ngram_size,)`, *optional*, returned when `labels` is provided):
        The number of targets of each depth; in training, of those that `head_losses` is computed on.
    bow_loss (`torch.FloatTensor`, a scalar, *optional*, returned in training with `bow_loss_weight` > 0):
        The bag-of-words loss without its weight, detached. It is part of `loss`, with its weight.
    last_hidden_state (`torch.FloatTensor` of shape `(batch_size, K, d)`, *optional*, returned with \
    `return_last_hidden_state=True` and without `labels`):
        The hidden states at the positions that have logits.
    """

    head_losses: torch.FloatTensor | None = None
    head_counts: torch.Tensor | None = None
    bow_loss: torch.FloatTensor | None = None
    last_hidden_state: torch.FloatTensor | None = None


class NgramSeq2SeqMixin(NgramMixin):
    r"""
    [`NgramMixin`] for an encoder-decoder model of Transformers, with the heads on its decoder:
    `class WDRNgramBartForConditionalGeneration(NgramSeq2SeqMixin, BartForConditionalGeneration)`.

    Everything applies to the decoder's text. `labels` are aligned with the decoder's predictions and are not shifted.
    Missing `decoder_input_ids` are made from the labels, as in the backbone. `decoder_position_ids` of shape
    `(batch_size, T)` override the decoder's own positions. With `bow_loss_weight` > 0 in the configuration, the
    bag-of-words loss is added to the training loss.
    """

    config: NgramSeq2SeqConfigMixin
    ngram_output_class = NgramSeq2SeqLMOutput
    ngram_text_prefix = "decoder_"

    @property
    def ngram_rows_can_move(self) -> bool:  # pyrefly: ignore[bad-override]
        # `positions_of_rows` needs a position table that takes `position_ids`.
        position_table = getattr(self.get_decoder(), "embed_positions", None)
        return (
            isinstance(position_table, nn.Embedding)
            and "position_ids" in inspect.signature(position_table.forward).parameters
        )

    def _ngram_backbone_inputs(self, inputs: dict[str, Any], next_tokens: torch.Tensor | None) -> dict[str, Any]:
        if inputs.get("input_ids") is not None:
            check_token_ids("`input_ids`", inputs["input_ids"], self.config.vocab_size)
        if next_tokens is None:
            return inputs
        if inputs.get("use_cache"):
            logger.warning_once("`use_cache=True` is changed to `False` because `labels` are given.")
        inputs = {**inputs, "use_cache": False}
        if inputs.get("decoder_input_ids") is None and inputs.get("decoder_inputs_embeds") is None:
            check_token_ids("`labels`", next_tokens, self.ngram_vocab_size, IGNORE_INDEX)
            inputs["decoder_input_ids"] = self._ngram_decoder_inputs(next_tokens)
        return inputs

    def _ngram_decoder_inputs(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the decoder's input ids for `labels`, shifted to the right by the backbone's own function."""
        prepare = getattr(self, "prepare_decoder_input_ids_from_labels", None)
        if prepare is not None:
            return prepare(labels)
        # Some backbones have only a function in their module.
        shift = sys.modules[self.ngram_backbone_class().__module__].shift_tokens_right
        return shift(labels, self.config.pad_token_id, self.config.decoder_start_token_id)

    def _ngram_text(self, inputs: dict[str, Any]) -> dict[str, Any]:
        names = ("input_ids", "inputs_embeds", "attention_mask", "position_ids")
        return {name: inputs.get(f"decoder_{name}") for name in names}

    def _ngram_run_backbone(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        inputs = dict(inputs)
        with positions_of_rows(self.get_decoder(), inputs.pop("decoder_position_ids", None)):
            return super()._ngram_run_backbone(inputs)

    def _ngram_next_tokens(
        self, labels: torch.Tensor | None, shift_labels: torch.Tensor | None
    ) -> torch.Tensor | None:
        labels = labels if shift_labels is None else shift_labels
        return None if labels is None else labels.long()

    def _ngram_has_next(self, runs: torch.Tensor, is_shifted: bool) -> torch.Tensor:
        # A position's label is its next token, also at the last position before padding.
        return runs > 0

    def _ngram_training_loss(
        self, predictions: NgramPredictions, num_items_in_batch: int | torch.Tensor | None
    ) -> dict[str, torch.Tensor]:
        losses = super()._ngram_training_loss(predictions, num_items_in_batch)
        weight = self.config.bow_loss_weight
        if weight:
            layer, targets = LogitLayer.of(self), predictions.targets[0]
            if layer.shape.soft_cap is not None:
                raise ValueError(
                    f"`bow_loss_weight` > 0 cannot be used with {type(self).__name__}, whose logits are soft-capped: "
                    "set it to 0."
                )
            bow_loss = bag_of_words_nll(layer.scaled(predictions.main), targets, layer.weight, layer.scaled_bias)
            count = (targets != IGNORE_INDEX).sum() if num_items_in_batch is None else num_items_in_batch
            bow_loss = bow_loss / at_least_one(count, bow_loss.device)
            losses |= {"loss": losses["loss"] + weight * bow_loss, "bow_loss": bow_loss.detach()}
        return losses

    def _prepare_text_encoder_decoder_kwargs_for_generation(
        self, inputs_tensor: torch.Tensor, model_kwargs: dict[str, Any], *args, **kwargs
    ) -> dict[str, Any]:
        encoder_kwargs = {name: value for name, value in model_kwargs.items() if name not in ENSEMBLE_ARGUMENTS}
        prepared = super()._prepare_text_encoder_decoder_kwargs_for_generation(
            inputs_tensor, encoder_kwargs, *args, **kwargs
        )
        model_kwargs["encoder_outputs"] = prepared["encoder_outputs"]
        return model_kwargs
