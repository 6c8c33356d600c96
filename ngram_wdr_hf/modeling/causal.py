"""The mixin that adds N-gram heads to a causal language model of Transformers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import Cache, initialization
from transformers.modeling_outputs import CausalLMOutputWithCrossAttentions
from transformers.utils import can_return_tuple

from ..decoding.cache_history import NgramHistory, StaticNgramHistory, can_host_history, history_of, tokens_in
from ..method.configuration import refuse_misspelt
from ..method.documents import IGNORE_INDEX, has_next, read_documents
from ..method.heads import NgramPredictions
from ..method.logits import LogitLayer, keep_positions, logits_of, target_embeddings
from ..method.loss import at_least_one, grid_nll, mean_nll
from .base import OWN_ARGUMENTS, NgramHeadsMixin
from .generation import NgramGenerationMixin


@dataclass
class NgramCausalLMOutput(CausalLMOutputWithCrossAttentions):
    r"""
    The backbone's output, and:

    head_losses (`torch.FloatTensor` of shape `(ngram_size,)`, *optional*, returned when `labels` is provided):
        The mean NLL of each depth over its own targets, detached. Index 0 is the next token's, without the ensemble.
    head_counts (`torch.LongTensor` of shape `(ngram_size,)`, *optional*, returned when `labels` is provided):
        The number of targets of each depth that `head_losses` is computed on.
    last_hidden_state (`torch.FloatTensor` of shape `(batch_size, K, d)`, *optional*, without `labels`):
        With `return_last_hidden_state=True`, the hidden states at the positions that have logits.
    """

    head_losses: torch.FloatTensor | None = None
    head_counts: torch.Tensor | None = None
    last_hidden_state: torch.FloatTensor | None = None


class NgramMixin(NgramHeadsMixin, NgramGenerationMixin):
    r"""
    Mixin that adds N-gram heads, their loss and the ensemble to a causal language model of Transformers:
    `class WDRNgramLlamaForCausalLM(NgramMixin, LlamaForCausalLM)`. `forward` takes the backbone's arguments and three
    more:

    ensemble_lambda (`float` or `Sequence[float]`, *optional*):
        The paper's λ for this call; the configuration's by default. `generate` passes it on. Several values are
        evaluated in one pass, in evaluation mode with labels: `loss` has one value per λ, and there are no `logits`.
    ensemble_weights (`Sequence[float]`, *optional*):
        The N weights of the ensemble for this call, instead of a λ. Several sets are evaluated like several λ.
    last_hidden_state (`torch.Tensor` of shape `(batch_size, T, d)`, *optional*):
        The hidden states of a frozen backbone, if they are known. The backbone is not run then, and the training loss
        is that of the heads only: `head_losses[0]` is 0.

    In training mode with labels, `loss` is the N-gram loss, that of [`plain_ngram_loss`] computed in chunks, and there
    are `logits` only if `logits_to_keep` asks for them. In evaluation mode with labels, `loss` is the mean next-token
    NLL of the ensemble: `exp(loss)` is the perplexity in the paper. `logits` are always those of the ensemble.

    WDR heads and heads that read tokens need `input_ids`: they cannot be trained with `inputs_embeds`, and head n
    takes part in the ensemble only where the last n tokens were given as ids.

    With heads, no prediction of any depth crosses padding or a document boundary (`position_ids` that do not continue
    by 1). Without heads (`ngram_size=1`), the labels alone define the targets, as in the backbone.
    """

    ngram_auto_class = "AutoModelForCausalLM"
    ngram_output_class = NgramCausalLMOutput
    ngram_cache_name = "past_key_values"
    # Whether the label of a token is predicted at the position before it, as in decoder-only models.
    ngram_shifts_labels = True
    # Whether positions can be given per batch row. Drafting needs that, as rows accept different numbers of tokens.
    ngram_rows_can_move = True

    # `shift_labels` is among `kwargs`: Trainer expects every named argument with "label" in its name in a batch.
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        ensemble_lambda: float | Sequence[float] | None = None,
        ensemble_weights: Sequence[float] | Sequence[Sequence[float]] | None = None,
        last_hidden_state: torch.Tensor | None = None,
        **kwargs,
    ) -> NgramCausalLMOutput:
        inputs = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "attention_mask": attention_mask}
        inputs |= {"position_ids": position_ids, "past_key_values": past_key_values, "use_cache": use_cache}
        own = (ensemble_lambda, ensemble_weights, last_hidden_state)
        return self.ngram_forward(inputs, labels, logits_to_keep, *own, **kwargs)

    @can_return_tuple
    def ngram_forward(
        self,
        inputs: dict[str, Any],
        labels: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        ensemble_lambda: float | Sequence[float] | None = None,
        ensemble_weights: Sequence[float] | Sequence[Sequence[float]] | None = None,
        last_hidden_state: torch.Tensor | None = None,
        *,
        shift_labels: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        return_last_hidden_state: bool = False,
        **kwargs,
    ) -> NgramCausalLMOutput:
        """Do what every `forward` does. `inputs` and `kwargs` are the backbone's own arguments."""
        if kwargs and not torch.compiler.is_compiling():
            refuse_misspelt(kwargs, OWN_ARGUMENTS)
        inputs = {**inputs, **kwargs}
        next_tokens, is_shifted = self._ngram_next_tokens(labels, shift_labels), shift_labels is not None
        keeps_all = isinstance(logits_to_keep, int) and logits_to_keep == 0
        # The training loss has no ensemble.
        only_trains = self.training and next_tokens is not None and keeps_all
        ensemble: Any = 0.0
        if not only_trains or ensemble_lambda is not None or ensemble_weights is not None:
            ensemble = self._ngram_ensembles(ensemble_lambda, ensemble_weights, next_tokens)
        if ensemble != 0 and "block_table" in inputs:
            raise ValueError(
                "The paged cache of continuous batching cannot host an ensemble: use `ensemble_lambda=0`."
            )
        # The loss needs every position, so with labels the logits are sliced afterwards.
        keep = logits_to_keep if next_tokens is None and isinstance(logits_to_keep, int) else 0
        predictions, fields = self._ngram_predict(
            inputs, next_tokens, ensemble != 0 and not only_trains, keep, is_shifted, last_hidden_state
        )
        if next_tokens is None or (self.training and not keeps_all):
            fields["logits"] = logits_of(self, keep_positions(predictions.ensemble(ensemble), logits_to_keep))
        if next_tokens is None:
            if return_last_hidden_state:
                fields["last_hidden_state"] = keep_positions(predictions.main, logits_to_keep)
        elif self.training:
            fields |= self._ngram_training_loss(predictions, num_items_in_batch)
            self._ngram_add_router_loss(fields, inputs.get(f"{self.ngram_text_prefix}attention_mask"))
        else:
            fields |= self._ngram_evaluate(predictions, ensemble, num_items_in_batch)
            # A slice of all positions would be another tensor than the one with the loss's gradient.
            if fields["logits"] is not None and not keeps_all:
                fields["logits"] = keep_positions(fields["logits"], logits_to_keep)
            if ensemble == 0:
                self._ngram_warn_in_backward(fields["loss"])
        return self._ngram_output(fields)

    def ngram_predictions(
        self, labels: torch.Tensor | None = None, shift_labels: torch.Tensor | None = None, **inputs
    ) -> NgramPredictions:
        """Return the predictions of all depths for a batch, with targets if labels are among the inputs."""
        next_tokens, inputs = self._ngram_next_tokens(labels, shift_labels), {**inputs, "use_cache": False}
        return self._ngram_predict(inputs, next_tokens, uses_ensemble=True, is_shifted=shift_labels is not None)[0]

    def _ngram_predict(
        self,
        inputs: dict[str, Any],
        next_tokens: torch.Tensor | None,
        uses_ensemble: bool,
        keep: int = 0,
        is_shifted: bool = False,
        last_hidden_state: torch.Tensor | None = None,
    ) -> tuple[NgramPredictions, dict[str, Any]]:
        """
        Run the backbone and the heads. Return the predictions of the tokens after the last `keep` positions (0: all),
        and the other fields of the backbone's output. Without targets (`next_tokens`) and ensemble, there is only
        depth 0. `is_shifted` tells that `next_tokens` were given as such, and not made from labels.
        """
        inputs = self._ngram_backbone_inputs(inputs, next_tokens)
        text, past = self._ngram_text(inputs), inputs.get(self.ngram_cache_name)
        past_length = self._ngram_past_length(past)
        applies_heads = self.config.ngram_size > 1 and (uses_ensemble or next_tokens is not None)
        if next_tokens is not None:
            self._ngram_check_labels(text, next_tokens)
        if last_hidden_state is None:
            self._ngram_reads_states = applies_heads
            hidden_states, fields = self._ngram_run_backbone(inputs)
        else:
            hidden_states, fields = last_hidden_state.to(self.dtype), {}
        past = past if fields.get(self.ngram_cache_name) is None else fields[self.ngram_cache_name]
        # A model may be spread over several devices. From here on, everything is where the output embedding is.
        weight = self.get_output_embeddings().weight
        device = hidden_states.device if weight.is_meta else weight.device
        hidden_states = hidden_states.to(device)
        next_tokens = None if next_tokens is None else next_tokens.to(device)
        if not applies_heads:
            targets = None if next_tokens is None else [next_tokens]
            return NgramPredictions([hidden_states[:, -keep:]], targets), fields

        names = ("input_ids", "attention_mask", "position_ids")
        text = {name: text[name].to(device) for name in names if isinstance(text.get(name), torch.Tensor)}
        past_length = past_length.to(device) if isinstance(past_length, torch.Tensor) else past_length
        history = self._ngram_history(past, hidden_states.device) if uses_ensemble else None
        last_record = None if history is None else history.last_record()
        runs, position_ids = read_documents(text, hidden_states, past_length, last_record)
        states, token_ids = hidden_states, text.get("input_ids")
        if token_ids is None:
            token_ids = torch.zeros_like(position_ids)
            if self.ngram_needs_tokens:
                # The tokens of `inputs_embeds` are unknown.
                runs = runs.clamp(max=1)
        if history is not None:
            records = torch.stack([token_ids, runs, position_ids], dim=-1)
            states, records = history.extend(hidden_states, records)
            token_ids = records[..., 0]
        if next_tokens is not None:
            is_target = has_next(runs, is_shifted) if self.ngram_shifts_labels else runs > 0
            next_tokens = next_tokens.masked_fill(~is_target, IGNORE_INDEX)
        # The last `kept` positions need only that many hidden states, and one more per head.
        kept = min(keep or runs.shape[1], runs.shape[1])
        window = kept + self.config.ngram_size - 1
        embeddings = target_embeddings(self, token_ids[:, -window:])
        runs = runs[:, runs.shape[1] - kept :]
        training = None
        if self.training:
            tokens = self.ngram_draft_vocabulary() if self.config.head_loss_tokens == "draft" else None
            # Hidden states that are given lead back to no model. The ensemble needs the heads at all positions.
            training = self._ngram_head_training(
                not uses_ensemble, tokens=tokens, trains_model=last_hidden_state is None
            )
        predictions = NgramPredictions.from_past(
            self.ngram_head_list, states[:, -window:], embeddings, runs, next_tokens, training
        )
        return predictions, fields

    def _ngram_evaluate(
        self,
        predictions: NgramPredictions,
        ensemble: float | tuple[float, ...] | list[float | tuple[float, ...]],
        num_items_in_batch: int | torch.Tensor | None,
    ) -> dict[str, torch.Tensor | None]:
        """
        Return the output fields `loss`, the ensemble's next-token NLL, `head_losses`, `head_counts` and `logits` in
        evaluation mode. With a list of ensembles, `loss` has one value for each, and `logits` is `None`.
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
        counts = predictions.counts()
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
        Return the ensemble of this call, by default the configuration's: λ, or a tuple of N weights; a list if several
        are given, those by λ first.
        """
        has_lambdas = isinstance(ensemble_lambda, (list, tuple))
        weights = [] if ensemble_weights is None else list(ensemble_weights)
        if not has_lambdas and not isinstance(next(iter(weights), None), (list, tuple)):
            return self.ngram_ensemble(ensemble_lambda, ensemble_weights)
        lambdas = list(ensemble_lambda) if has_lambdas else []
        if self.training or next_tokens is None or not [*lambdas, *weights]:
            raise ValueError("`ensemble_lambda` takes several values only in evaluation mode with `labels`.")
        return [self.ngram_ensemble(value) for value in lambdas] + [
            self.ngram_ensemble(ensemble_weights=value) for value in weights
        ]

    def _ngram_next_tokens(
        self, labels: torch.Tensor | None, shift_labels: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Return the target after each position, `(batch_size, T)`, -100 for none; `None` without labels."""
        if shift_labels is not None or labels is None:
            return None if shift_labels is None else shift_labels.long()
        if not self.ngram_shifts_labels:
            return labels.long()
        return F.pad(labels[..., 1:].long(), (0, 1), value=IGNORE_INDEX)

    def _ngram_backbone_inputs(self, inputs: dict[str, Any], next_tokens: torch.Tensor | None) -> dict[str, Any]:
        """Return the arguments for the backbone: `inputs`, unless a subclass completes or changes them."""
        return inputs

    def _ngram_text(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs that describe the predicted text, under the names that a decoder-only model uses."""
        return inputs

    def _ngram_past_length(self, past: Any) -> int | torch.Tensor:
        """Return the number of tokens in the cache before this call; 0 without one of Transformers' own caches."""
        return tokens_in(past) if isinstance(past, Cache) else 0

    def _ngram_history(self, past: Any, device: torch.device) -> NgramHistory | StaticNgramHistory | None:
        """Return the ensemble's history in the cache, added if missing; `None` without a cache."""
        if past is not None and not can_host_history(past):
            names = f"{type(past).__name__}, the cache of {type(self).__name__}"
            raise ValueError(f"`ensemble_lambda` > 0 cannot be used with {names}: use 0, or `use_cache=False`.")
        return history_of(past, self.config.ngram_size - 1, device)

    def _ngram_check_labels(self, text: dict[str, Any], next_tokens: torch.Tensor) -> None:
        """Raise a `ValueError` for labels without token ids, or of another shape, which might be broadcast."""
        prefix, tokens = self.ngram_text_prefix, text.get("input_ids")
        if tokens is None and self.ngram_needs_tokens:
            advice = f"the heads need the tokens, `{prefix}input_ids`"
            raise ValueError(f"`{prefix}inputs_embeds` cannot be used with `labels`: {advice}.")
        shape = text["inputs_embeds"].shape[:2] if tokens is None else tokens.shape
        if next_tokens.shape != shape:
            shapes = f"{tuple(shape)}, got {tuple(next_tokens.shape)}"
            raise ValueError(f"`labels` must have the shape of the tokens, {shapes}.")

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self and hasattr(self, "draft_token_ids"):
            initialization.copy_(self.draft_token_ids, torch.arange(len(self.draft_token_ids)))

    def _ngram_add_heads(self) -> None:
        super()._ngram_add_heads()
        if self.config.ngram_size > 1 and self.config.draft_vocab_size is not None:
            self.register_buffer("draft_token_ids", torch.arange(self.config.draft_vocab_size))
        if self.ngram_shifts_labels:
            # Trainer reads this to count targets: the labels are shifted in the model.
            self.loss_type = "ForCausalLM"
