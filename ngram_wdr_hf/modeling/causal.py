"""The mixin that adds N-gram heads to a causal language model of Transformers."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import Cache, initialization
from transformers.generation.utils import ALL_CACHE_NAMES
from transformers.modeling_outputs import CausalLMOutputWithCrossAttentions
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils import can_return_tuple

from ..decoding.cache_history import (
    NgramHistory,
    StaticNgramHistory,
    can_host_history,
    history_of,
    tokens_in,
)
from ..method.configuration import check_fraction
from ..method.documents import IGNORE_INDEX, read_documents
from ..method.heads import NgramPredictions
from ..method.logits import LogitLayer, logits_of, target_embeddings
from ..method.loss import at_least_one, grid_nll, mean_nll, ngram_loss
from .base import NgramHeadsMixin
from .generation import NgramGenerationMixin
from .routers import add_router_loss
from .signature import ENSEMBLE_ARGUMENTS, forward_like


@dataclass
class NgramCausalLMOutput(CausalLMOutputWithCrossAttentions):
    r"""
    The backbone's output, and:

    head_losses (`torch.FloatTensor` of shape `(ngram_size,)`, *optional*, returned when `labels` is provided):
        The mean NLL of each depth over its own targets, detached. Index 0 is the next token's, without the ensemble.
    head_counts (`torch.LongTensor` of shape `(ngram_size,)`, *optional*, returned when `labels` is provided):
        The number of targets of each depth; in training, of those that `head_losses` is computed on.
    last_hidden_state (`torch.FloatTensor` of shape `(batch_size, K, d)`, *optional*, returned with \
    `return_last_hidden_state=True` and without `labels`):
        The hidden states at the positions that have logits.
    """

    head_losses: torch.FloatTensor | None = None
    head_counts: torch.Tensor | None = None
    last_hidden_state: torch.FloatTensor | None = None


class NgramMixin(NgramHeadsMixin, NgramGenerationMixin):
    r"""
    Mixin that adds N-gram heads, their loss and the ensemble to a causal language model of Transformers:
    `class WDRNgramLlamaForCausalLM(NgramMixin, LlamaForCausalLM)`. It calls the backbone's base model and output
    embedding unchanged. `forward` takes the backbone's arguments and three more:

    ensemble_lambda (`float` or `Sequence[float]`, *optional*):
        The paper's λ for this call; the configuration's by default. `generate` passes it on. Several values are
        evaluated in one pass, in evaluation mode with labels: `loss` has one value per λ, and there are no `logits`.
    ensemble_weights (`Sequence[float]`, *optional*):
        The N weights of the ensemble for this call, instead of a λ. Several sets of weights are evaluated like several
        λ, after them.

    last_hidden_state (`torch.Tensor` of shape `(batch_size, T, d)`, *optional*):
        The hidden states of a frozen backbone, if they are known. The backbone is not run then, of an encoder-decoder
        neither side, and the training loss is that of the heads only: `head_losses[0]` is 0.

    In training mode with labels, `loss` is the N-gram loss, and there are `logits` only if `logits_to_keep` asks for
    them. In evaluation mode with labels, `loss` is the mean next-token NLL of the ensemble: `exp(loss)` is the
    perplexity in the paper. `logits` are always those of the ensemble. Without labels and ensemble, most models call
    their backbone's `forward` and return its output.

    WDR heads and heads that read tokens need `input_ids`: they cannot be trained with `inputs_embeds`, and head n
    takes part in the ensemble only where the last n tokens were given as ids. Simple heads that read only the hidden
    state work with both.

    With heads, no prediction of any depth crosses padding or a document boundary (`position_ids` that do not continue
    by 1). Without heads (`ngram_size=1`), the labels alone define the targets, as in the backbone.
    """

    ngram_output_class = NgramCausalLMOutput
    ngram_arguments = (*ENSEMBLE_ARGUMENTS, "last_hidden_state", "return_last_hidden_state")
    ngram_cache_name = "past_key_values"
    # Whether positions can be given per batch row. Drafting needs that, as rows accept different numbers of tokens.
    ngram_rows_can_move = True
    # The backbone's own `forward`, for calls without labels and ensemble; `None` if it takes other inputs.
    ngram_plain_forward: Callable | None = None

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        backbone_forward = getattr(super(), "forward", None)
        # Replace only the backbone's forward, not one that a subclass defines.
        if backbone_forward is not None and cls.forward is backbone_forward:
            parameters = inspect.signature(backbone_forward).parameters
            cls.ngram_cache_name = next((name for name in ALL_CACHE_NAMES if name in parameters), cls.ngram_cache_name)
            if "ngram_rows_can_move" not in vars(cls) and not cls.ngram_text_prefix:
                cls.ngram_rows_can_move = "position_ids" in parameters
            has_same_inputs = cls._ngram_backbone_inputs is NgramMixin._ngram_backbone_inputs
            can_be_called = has_same_inputs and "logits_to_keep" in parameters
            cls.ngram_plain_forward = backbone_forward if can_be_called else None
            cls.forward = forward_like(backbone_forward, NgramMixin.__doc__)

    def _ngram_add_heads(self) -> None:
        super()._ngram_add_heads()
        if self.ngram_heads and self.config.draft_vocab_size is not None:
            self.register_buffer("draft_token_ids", torch.arange(self.config.draft_vocab_size))
        if not self.config.is_encoder_decoder:
            # Trainer reads this to count targets: the labels are shifted in the model.
            self.loss_type = "ForCausalLM"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self and hasattr(self, "draft_token_ids"):
            initialization.copy_(self.draft_token_ids, torch.arange(len(self.draft_token_ids)))

    @can_return_tuple
    def _ngram_forward(
        self,
        labels: torch.Tensor | None = None,
        shift_labels: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        ensemble_lambda: float | Sequence[float] | None = None,
        ensemble_weights: Sequence[float] | Sequence[Sequence[float]] | None = None,
        return_last_hidden_state: bool = False,
        **inputs,
    ) -> NgramCausalLMOutput:
        next_tokens, is_shifted = self._ngram_next_tokens(labels, shift_labels), shift_labels is not None
        if ensemble_lambda is None and "block_table" in inputs:
            # Continuous batching has no argument for λ, and refuses an ensemble.
            ensemble_lambda = 0.0
        ensemble: Any = self._ngram_ensembles(ensemble_lambda, ensemble_weights, next_tokens)
        adds_nothing = next_tokens is None and ensemble == 0 and not return_last_hidden_state
        if adds_nothing and self.ngram_plain_forward and inputs.get("last_hidden_state") is None:
            self._ngram_check_text(inputs, None)
            return self.ngram_plain_forward(**inputs, logits_to_keep=logits_to_keep, return_dict=True)
        # The loss needs every position, so with labels the logits are sliced afterwards.
        keep = logits_to_keep if next_tokens is None and isinstance(logits_to_keep, int) else 0
        keeps_all = isinstance(logits_to_keep, int) and logits_to_keep == 0
        uses_ensemble = ensemble != 0 and not (self.training and next_tokens is not None and keeps_all)
        predictions, fields = self._ngram_predict(inputs, next_tokens, uses_ensemble, keep, is_shifted)

        if next_tokens is None or (self.training and not keeps_all):
            fields["logits"] = logits_of(self, slice_logits_to_keep(predictions.ensemble(ensemble), logits_to_keep))
        if next_tokens is None:
            if return_last_hidden_state:
                fields["last_hidden_state"] = slice_logits_to_keep(predictions.main, logits_to_keep)
        elif self.training:
            fields |= self._ngram_training_loss(predictions, num_items_in_batch)
            add_router_loss(self, fields, inputs.get(f"{self.ngram_text_prefix}attention_mask"))
        else:
            fields |= self._ngram_evaluate(predictions, ensemble, num_items_in_batch)
            # A slice of all positions would be another tensor than the one with the loss's gradient.
            if fields["logits"] is not None and not keeps_all:
                fields["logits"] = slice_logits_to_keep(fields["logits"], logits_to_keep)
            self._ngram_watch_loss(fields, inputs)
        return self._ngram_output(fields)

    def ngram_predictions(
        self, labels: torch.Tensor | None = None, shift_labels: torch.Tensor | None = None, **inputs
    ) -> NgramPredictions:
        """
        Return the predictions of all depths for a batch, with targets if labels are given. The arguments are those of
        `forward`. `shift_labels` are labels that are already shifted; they take precedence over `labels`.
        """
        next_tokens = self._ngram_next_tokens(labels, shift_labels)
        inputs = {**inputs, "use_cache": False}
        is_shifted = shift_labels is not None
        return self._ngram_predict(inputs, next_tokens, uses_ensemble=True, is_shifted=is_shifted)[0]

    def _ngram_predict(
        self,
        inputs: dict[str, Any],
        next_tokens: torch.Tensor | None,
        uses_ensemble: bool,
        keep: int = 0,
        is_shifted: bool = False,
    ) -> tuple[NgramPredictions, dict[str, Any]]:
        """
        Run the backbone and the heads. Return the predictions of the tokens after the last `keep` positions (0: all),
        and the other fields of the backbone's output. The heads are applied only if the loss (`next_tokens` given) or
        the ensemble needs them; otherwise there is only depth 0. `is_shifted` tells that `next_tokens` were given as
        such, and not made from labels.
        """
        inputs = self._ngram_backbone_inputs(inputs, next_tokens)
        text = self._ngram_text(inputs)
        self._ngram_check_text(text, next_tokens)
        past = inputs.get(self.ngram_cache_name)
        past_length = self._ngram_past_length(past)
        if inputs.get("last_hidden_state") is None:
            hidden_states, fields = self._ngram_run_backbone(inputs)
        else:
            hidden_states, fields = inputs["last_hidden_state"].to(self.dtype), {}
        past = past if fields.get(self.ngram_cache_name) is None else fields[self.ngram_cache_name]
        # A model may be spread over several devices. From here on, everything is where the output embedding is.
        weight = self.get_output_embeddings().weight
        device = hidden_states.device if weight.is_meta else weight.device
        hidden_states, next_tokens, past_length = (_to(x, device) for x in (hidden_states, next_tokens, past_length))
        text = {name: _to(text.get(name), device) for name in ("input_ids", "attention_mask", "position_ids")}

        if not self.ngram_heads or not (uses_ensemble or next_tokens is not None):
            targets = None if next_tokens is None else [next_tokens]
            return NgramPredictions([hidden_states[:, -keep:]], targets), fields
        history = self._ngram_history(past, hidden_states.device) if uses_ensemble else None
        last_record = None if history is None else history.last_record()
        runs, position_ids = read_documents(text, hidden_states, past_length, last_record)
        states, token_ids = hidden_states, text.get("input_ids")
        if token_ids is None:
            token_ids = torch.zeros_like(position_ids)
            if self.config.ngram_needs_tokens:
                # The tokens of `inputs_embeds` are unknown.
                runs = runs.clamp(max=1)
        if history is not None:
            records = torch.stack([token_ids, runs, position_ids], dim=-1)
            states, records = history.extend(hidden_states, records)
            token_ids = records[..., 0]
        if next_tokens is not None:
            next_tokens = next_tokens.masked_fill(~self._ngram_has_next(runs, is_shifted), IGNORE_INDEX)
        # The last `kept` positions need only that many hidden states, and one more per head.
        kept = min(keep or runs.shape[1], runs.shape[1])
        window = kept + len(self.ngram_heads)
        embeddings = target_embeddings(self, token_ids[:, -window:])
        runs = runs[:, runs.shape[1] - kept :]
        training = None
        if self.training:
            tokens = self.ngram_draft_vocabulary() if self.config.head_loss_tokens == "draft" else None
            # Hidden states that are given lead back to no model. The ensemble needs the heads at all positions.
            trains_model = inputs.get("last_hidden_state") is None
            training = self._ngram_head_training(not uses_ensemble, tokens=tokens, trains_model=trains_model)
        predictions = NgramPredictions.from_past(
            self.ngram_heads, states[:, -window:], embeddings, runs, next_tokens, training
        )
        return predictions, fields

    def _ngram_training_loss(
        self, predictions: NgramPredictions, num_items_in_batch: int | torch.Tensor | None
    ) -> dict[str, torch.Tensor]:
        """
        Return the output fields `loss`, `head_losses` and `head_counts` in training mode. The loss is that of
        `ngram_loss`, with the configuration's label smoothing.
        """
        smoothing = check_fraction("label_smoothing", self.config.label_smoothing)
        loss, head_losses = ngram_loss(predictions, LogitLayer.of(self), smoothing, num_items_in_batch)
        counts = _count(predictions.targets)
        if predictions.training is not None and not predictions.training.trains_model:
            counts[0] = 0
        return {"loss": loss, "head_losses": head_losses, "head_counts": counts}

    def _ngram_evaluate(
        self,
        predictions: NgramPredictions,
        ensemble: float | tuple[float, ...] | list[float | tuple[float, ...]],
        num_items_in_batch: int | torch.Tensor | None,
    ) -> dict[str, torch.Tensor | None]:
        """
        Return the output fields `loss`, `head_losses`, `head_counts` and `logits` in evaluation mode. The loss is the
        ensemble's next-token NLL, divided by the number of targets or `num_items_in_batch`. With a list of ensembles,
        it has one value for each, and `logits` is `None`.
        """
        layer, targets, logits, main_nll = LogitLayer.of(self), predictions.targets[0], None, None
        if isinstance(ensemble, list):
            nlls = grid_nll(predictions, [0.0, *ensemble], layer)
            main_nll, nll = nlls[0], nlls[1:]
        else:
            logits = logits_of(self, predictions.ensemble(ensemble))
            scores = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
            nll = F.cross_entropy(scores, targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum")
            if ensemble == 0:
                main_nll = nll.detach()
        counts = _count(predictions.targets)
        count = at_least_one(counts[0], nll.device)
        loss = nll / (count if num_items_in_batch is None else at_least_one(num_items_in_batch, nll.device))
        if main_nll is None:
            head_losses = mean_nll(predictions, layer)
        else:
            head_losses = torch.cat([(main_nll / count)[None], mean_nll(predictions.of_heads(), layer)])
        return {"loss": loss, "head_losses": head_losses, "head_counts": counts, "logits": logits}

    def _ngram_ensembles(
        self, ensemble_lambda: Any, ensemble_weights: Any, next_tokens: torch.Tensor | None
    ) -> float | tuple[float, ...] | list[float | tuple[float, ...]]:
        """
        Return the ensemble of this call: λ, or a tuple of N weights. Return a list if several are given, those by λ
        first; that takes evaluation mode and targets. With neither argument, the ensemble is the configuration's.
        """
        lambdas = list(ensemble_lambda) if isinstance(ensemble_lambda, (list, tuple)) else None
        weights = [] if ensemble_weights is None else list(ensemble_weights)
        # An array of NumPy's stands for a list. Any other value, even a bad one, is a weight.
        is_grid = lambdas is not None or any(
            isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) == 1 for value in weights[:1]
        )
        if not is_grid:
            return self.ngram_ensemble(ensemble_lambda, ensemble_weights)
        if self.training or next_tokens is None or lambdas == []:
            raise ValueError(
                "`ensemble_lambda` takes several values only in evaluation mode with `labels`, and not an empty list. "
                "Pass one number."
            )
        return [self.ngram_ensemble(value) for value in lambdas or ()] + [
            self.ngram_ensemble(ensemble_weights=value) for value in weights
        ]

    def _ngram_next_tokens(
        self, labels: torch.Tensor | None, shift_labels: torch.Tensor | None
    ) -> torch.Tensor | None:
        """
        Return the target after each position, `(batch_size, T)`, -100 for none: `shift_labels`, or else `labels`
        shifted by one. `None` if neither is given.
        """
        if shift_labels is not None:
            return shift_labels.long()
        return None if labels is None else F.pad(labels[..., 1:].long(), (0, 1), value=IGNORE_INDEX)

    def _ngram_has_next(self, runs: torch.Tensor, is_shifted: bool) -> torch.Tensor:
        """
        Return whether the token after each position belongs to the same document, as booleans `(batch_size, T)`. It is
        False at padding, and True at any other last position, where the next token is unknown. Before padding, it is
        True for next tokens that were given as such, and False for those made from labels, where it is padding.
        """
        continues = runs[:, 1:] != 1 if is_shifted else runs[:, 1:] > 1
        return (runs > 0) & F.pad(continues, (0, 1), value=True)

    def _ngram_backbone_inputs(self, inputs: dict[str, Any], next_tokens: torch.Tensor | None) -> dict[str, Any]:
        """Return the arguments for the backbone: `inputs`, unless a subclass completes or changes them."""
        return inputs

    def _ngram_text(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs that describe the predicted text, under the names that a decoder-only model uses."""
        return inputs

    def _ngram_past_length(self, past: Any) -> int | torch.Tensor:
        """Return the number of tokens in the cache before this call; 0 without a cache, or if it is no `Cache`."""
        return tokens_in(past) if past is None or isinstance(past, Cache) else 0

    def _ngram_history(self, past: Any, device: torch.device) -> NgramHistory | StaticNgramHistory | None:
        """
        Return the ensemble's history in the cache, added if missing, on the given device; `None` without a cache.
        Raise a `ValueError` if the cache cannot host one.
        """
        if past is not None and not can_host_history(past):
            raise ValueError(
                f"`ensemble_lambda` > 0 cannot be used with the cache of {type(self).__name__}: {type(past).__name__} "
                "cannot store past predictions. Set `ensemble_lambda=0` or `use_cache=False`."
            )
        return history_of(past, len(self.ngram_heads), device)

    def _ngram_check_text(self, text: dict[str, Any], next_tokens: torch.Tensor | None) -> None:
        """
        Check tokens and labels as `_ngram_check_tokens` does. Also raise a `ValueError` for labels with embeddings
        instead of token ids, if the heads need tokens.
        """
        self._ngram_check_tokens(text, next_tokens)
        if next_tokens is None or text.get("input_ids") is not None:
            return
        if self.config.ngram_needs_tokens:
            raise ValueError(
                f"`{self.ngram_text_prefix}inputs_embeds` cannot be used with `labels`: the heads' losses need "
                f"the tokens. Pass `{self.ngram_text_prefix}input_ids` instead."
            )


def _to(value: Any, device: torch.device) -> Any:
    """Return a tensor on a device, and any other value as it is."""
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _count(targets: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the number of targets of each depth, integers of shape `(len(targets),)`."""
    return torch.stack([(target != IGNORE_INDEX).sum() for target in targets])
