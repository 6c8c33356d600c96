"""The mixin that gives a causal language model of Transformers its N-gram heads."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import initialization
from transformers.cache_utils import Cache
from transformers.generation.utils import ALL_CACHE_NAMES
from transformers.modeling_outputs import CausalLMOutputWithCrossAttentions
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils import can_return_tuple

from .base_wdr_ngram import NgramHeadsMixin
from .configuration_wdr_ngram import check_fraction
from .ensemble_wdr_ngram import (
    NgramHistoryLayer,
    StaticNgramHistoryLayer,
    can_host_history,
    history_of,
    mean_of_past,
    tokens_in,
)
from .generation_wdr_ngram import NgramGenerationMixin
from .heads_wdr_ngram import predict_from_past
from .logits_wdr_ngram import LogitShape
from .loss_wdr_ngram import IGNORE_INDEX, at_least_one, grid_nll, mean_nll, ngram_loss
from .routers_wdr_ngram import add_router_loss
from .signature_wdr_ngram import forward_like, with_fields


@dataclass
class NgramCausalLMOutput(CausalLMOutputWithCrossAttentions):
    r"""
    The backbone's output, and:

    head_losses (`torch.FloatTensor` of shape `(ngram_size,)`, *optional*, returned when `labels` is provided):
        Detached: the NLL of the next word, then of each head, each a mean over its own targets.
    last_hidden_state (`torch.FloatTensor` of shape `(batch_size, K, d)`, *optional*, returned with \
    `return_last_hidden_state=True`):
        What the heads see at the positions that have logits.
    """

    head_losses: torch.FloatTensor | None = None
    last_hidden_state: torch.FloatTensor | None = None


class NgramMixin(NgramHeadsMixin, NgramGenerationMixin):
    r"""
    Put before a causal language model of Transformers, it adds the N-gram heads, their loss and the ensemble:
    `class WDRNgramLlamaForCausalLM(NgramMixin, LlamaForCausalLM)`. The backbone's base model and its output embedding
    are called as they are, and `forward` takes the backbone's own arguments and one more:

    ensemble_lambda (`float` or `Sequence[float]`, *optional*):
        The paper's λ for this call; the configuration's by default. `generate` passes it on. With several values, in
        evaluation mode with labels, `loss` has one value for each, found in one pass, and no logits are returned.

    In training mode with labels, `loss` is the N-gram loss and no logits are computed. Otherwise `logits` are those of
    the ensembled prediction, and with labels `loss` is its mean next-word NLL: `exp(loss)` is the perplexity that the
    paper reports.

    With heads, no prediction crosses padding or a document's boundary (`position_ids` that restart), the next word's
    included. Without heads (`ngram_size=1`) the labels alone say what is a target, as in the backbone.
    """

    ngram_output_class = NgramCausalLMOutput
    # The argument, and the output, that hold the cache.
    cache_name = "past_key_values"
    # Whether the rows of a batch can have their words in different columns, their positions given: drafts need that.
    rows_can_move = True

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        backbone_forward = getattr(super(), "forward", None)
        # A subclass may have a forward of its own; only the backbone's is replaced.
        if backbone_forward is not None and cls.forward is backbone_forward:
            parameters = inspect.signature(backbone_forward).parameters
            cls.cache_name = next((name for name in ALL_CACHE_NAMES if name in parameters), cls.cache_name)
            if "rows_can_move" not in vars(cls) and not cls.text_prefix:
                cls.rows_can_move = "position_ids" in parameters
            cls.forward = forward_like(backbone_forward, NgramMixin.__doc__)

    def _add_heads(self) -> None:
        super()._add_heads()
        if self.ngram_heads and self.config.draft_vocab_size is not None:
            self.register_buffer("draft_token_ids", torch.arange(self.config.draft_vocab_size))
        if not self.config.is_encoder_decoder:
            # Tells Trainer that the labels are shifted here, so that it counts the targets of a batch right.
            self.loss_type = "ForCausalLM"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self and hasattr(self, "draft_token_ids"):
            initialization.copy_(self.draft_token_ids, torch.arange(len(self.draft_token_ids)))

    @can_return_tuple
    def _ngram_forward(
        self,
        labels: torch.LongTensor | None = None,
        shift_labels: torch.LongTensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        ensemble_lambda: float | Sequence[float] | None = None,
        return_last_hidden_state: bool = False,
        **inputs,
    ) -> NgramCausalLMOutput:
        next_tokens = self._next_tokens(labels, shift_labels)
        lambdas = self._resolve_lambdas(ensemble_lambda, next_tokens)
        inputs = self._backbone_inputs(inputs, next_tokens)
        text = self._text_of(inputs)
        self._check_inputs(text, next_tokens, lambdas)

        past = inputs.get(self.cache_name)
        past_length = self._past_length(past)
        hidden_states, fields = self._run_backbone(inputs)
        past = past if fields.get(self.cache_name) is None else fields[self.cache_name]

        if next_tokens is None:
            main, mean, _ = self._look_back(hidden_states, text, past, past_length, lambdas, logits_to_keep)
            fields["logits"] = self._logits(main, mean, lambdas)
            if return_last_hidden_state:
                fields["last_hidden_state"] = main
        else:
            targets = self._targets(next_tokens, hidden_states, text, past_length)
            if self.training:
                predictions = [hidden_states, *self._head_predictions(hidden_states, text)]
                fields |= self._training_loss(predictions, targets, num_items_in_batch)
                add_router_loss(self, fields, text.get("attention_mask"))
            else:
                # The loss needs every position's logits; they are cut down afterwards.
                main, mean, said = self._look_back(hidden_states, text, past, past_length, lambdas)
                said = self._head_predictions(hidden_states, text) if said is None else said
                fields |= self._evaluate(main, mean, said, targets, lambdas, num_items_in_batch)
                if fields["logits"] is not None:
                    fields["logits"] = slice_logits_to_keep(fields["logits"], logits_to_keep)
        output_class = self.ngram_output_class
        if not fields.keys() <= output_class.__dataclass_fields__.keys():
            output_class = with_fields(output_class, frozenset(fields))
        return output_class(**fields)

    def _past_length(self, past: Cache | None) -> int | torch.Tensor:
        """How many tokens the cache holds, before the backbone adds to it."""
        return tokens_in(past) if past is None or isinstance(past, Cache) else 0

    def _history(self, past: Any) -> NgramHistoryLayer | StaticNgramHistoryLayer | None:
        """What the ensemble remembers, in the cache; `None` without one."""
        if past is not None and not can_host_history(past):
            raise ValueError(
                f"A {type(self).__name__} keeps its past in a {type(past).__name__}, which has no place for what the "
                "heads said: use `ensemble_lambda=0`, or `use_cache=False`."
            )
        return history_of(past, len(self.ngram_heads))

    def _backbone_inputs(self, inputs: dict[str, Any], next_tokens: torch.LongTensor | None) -> dict[str, Any]:
        """What the backbone is called with."""
        return inputs

    def _text_of(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """What `inputs` say about the tokens that are predicted, by the names of a decoder-only model."""
        return inputs

    def _training_loss(
        self,
        predictions: list[torch.Tensor],
        targets: list[torch.LongTensor],
        num_items_in_batch: int | torch.Tensor | None,
    ) -> dict[str, torch.Tensor]:
        """The output's losses."""
        smoothing = check_fraction("label_smoothing", self.config.label_smoothing)
        loss, head_losses = ngram_loss(predictions, targets, self._logit_layer(), smoothing, num_items_in_batch)
        return {"loss": loss, "head_losses": head_losses}

    def _resolve_lambdas(
        self, ensemble_lambda: float | Sequence[float] | None, next_tokens: torch.LongTensor | None
    ) -> list[float] | float:
        """The λ of this call, or a list of them."""
        if not isinstance(ensemble_lambda, (list, tuple)):
            return self.resolve_lambda(ensemble_lambda)
        if self.training or next_tokens is None or not ensemble_lambda:
            raise ValueError("Several values of `ensemble_lambda` at once are for evaluation mode, with `labels`.")
        return [self.resolve_lambda(value) for value in ensemble_lambda]

    def _look_back(
        self,
        hidden_states: torch.Tensor,
        text: dict[str, Any],
        cache: Cache | None,
        past_length: int | torch.Tensor,
        lambdas: list[float] | float,
        logits_to_keep: int | torch.Tensor = 0,
    ) -> tuple[torch.Tensor, torch.Tensor | None, list[torch.Tensor] | None]:
        """
        For the positions to keep: the main prediction, and if some λ asks for it what is to be mixed with it and the
        heads' past predictions that it is made of.
        """
        if lambdas == 0 or not self.ngram_heads:
            return slice_logits_to_keep(hidden_states, logits_to_keep), None, None
        history = self._history(cache)
        last_record = None if history is None else history.last_record()
        records = self._records(hidden_states, text, past_length, last_record)
        states_so_far, records_so_far = (
            (hidden_states, records) if history is None else history.extend(hidden_states, records)
        )
        # The last positions can be had from the last few hidden states; any others need them all.
        length = hidden_states.shape[1]
        kept = min(logits_to_keep or length, length) if isinstance(logits_to_keep, int) else length
        window = kept + len(self.ngram_heads)
        states, token_ids = states_so_far[:, -window:], records_so_far[:, -window:, 0]
        main = states[:, states.shape[1] - kept :]
        said = predict_from_past(
            self.ngram_heads, states, self._target_embeddings(token_ids), first=states.shape[1] - kept
        )
        mean = mean_of_past(main, said, records[:, length - kept :, 1])
        if not isinstance(logits_to_keep, int):
            main, mean = (slice_logits_to_keep(prediction, logits_to_keep) for prediction in (main, mean))
        return main, mean, said

    def _logits(self, main: torch.Tensor, mean: torch.Tensor | None, ensemble_lambda: float) -> torch.Tensor:
        predictions = main if mean is None else torch.lerp(main, mean, ensemble_lambda)
        return LogitShape.of(self.config)(self._product(predictions))

    def _product(self, predictions: torch.Tensor) -> torch.Tensor:
        """The product with the output embedding, adapters and bias included."""
        return self.get_output_embeddings()(predictions)

    def _evaluate(
        self,
        main: torch.Tensor,
        mean: torch.Tensor | None,
        said: list[torch.Tensor],
        targets: list[torch.LongTensor],
        lambdas: list[float] | float,
        num_items_in_batch: int | torch.Tensor | None,
    ) -> dict[str, torch.Tensor | None]:
        """
        The output's `loss`, the mean next-word NLL over the targets or Trainer's count, for each λ if there are
        several; its `head_losses`; its `logits`, if there is one λ.
        """
        if isinstance(lambdas, list):
            logits = None
            nlls = grid_nll(main, main if mean is None else mean, targets[0], [0.0, *lambdas], self._logit_layer())
            main_nll, nll = nlls[0], nlls[1:]
        else:
            logits = self._logits(main, mean, lambdas)
            scores = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
            nll = F.cross_entropy(scores, targets[0].flatten(), ignore_index=IGNORE_INDEX, reduction="sum")
            # Without the ensemble, the logits are those of the main prediction.
            main_nll = nll.detach() if mean is None else None
        count = at_least_one((targets[0] != IGNORE_INDEX).sum(), main.device)
        loss = nll / (count if num_items_in_batch is None else at_least_one(num_items_in_batch, main.device))

        # Past predictions from before these positions, out of the cache, have no targets here.
        said = [past[:, past.shape[1] - target.shape[1] :] for past, target in zip(said, targets[1:], strict=True)]
        known = [] if main_nll is None else [(main_nll / count)[None]]
        predictions = [main, *said][len(known) :]
        head_losses = mean_nll(predictions, targets[len(known) :], self._logit_layer())
        return {"loss": loss, "head_losses": torch.cat([*known, head_losses]), "logits": logits}

    def _records(
        self,
        hidden_states: torch.Tensor,
        text: dict[str, Any],
        past_length: int | torch.Tensor,
        last_record: torch.Tensor | None,
    ) -> torch.Tensor:
        """What the history keeps of each token: its id, its run length and its position, `(batch_size, T, 3)`."""
        input_ids = text.get("input_ids")
        runs, position_ids = self._runs(hidden_states, text, past_length, last_record)
        if input_ids is None:
            # Nothing is known of the tokens behind embeddings: no head's prediction can pass them.
            input_ids = runs = torch.zeros_like(position_ids)
        return torch.stack([input_ids, runs, position_ids], dim=-1)

    def _head_predictions(self, hidden_states: torch.Tensor, text: dict[str, Any]) -> list[torch.Tensor]:
        """For each head n, what it says n steps before about the word after each of the times n, ..., T-1."""
        embeddings = self._target_embeddings(text.get("input_ids"))
        return predict_from_past(self.ngram_heads, hidden_states, embeddings)

    def _targets(
        self,
        next_tokens: torch.LongTensor,
        hidden_states: torch.Tensor,
        text: dict[str, Any],
        past_length: int | torch.Tensor,
    ) -> list[torch.LongTensor]:
        """For the next word and each head, the tokens to predict, aligned with the predictions; -100 where none."""
        if not self.ngram_heads:
            return [next_tokens]
        runs, _ = self._runs(hidden_states, text, past_length)
        next_tokens = next_tokens.masked_fill(~self._has_next(runs), IGNORE_INDEX)
        return [
            next_tokens[:, n:].masked_fill(runs[:, n:] <= n, IGNORE_INDEX) for n in range(len(self.ngram_heads) + 1)
        ]

    def _has_next(self, runs: torch.Tensor) -> torch.Tensor:
        """Where the word after a token belongs to the token's document."""
        # It does if it continues a run; of the one after the last nothing is known.
        return (runs > 0) & F.pad(runs[:, 1:] > 1, (0, 1), value=True)

    def _next_tokens(
        self, labels: torch.LongTensor | None, shift_labels: torch.LongTensor | None
    ) -> torch.LongTensor | None:
        """For each position the token that follows it, -100 where it is no target."""
        if shift_labels is not None:
            return shift_labels.long()
        return None if labels is None else F.pad(labels[..., 1:].long(), (0, 1), value=IGNORE_INDEX)

    def _check_inputs(
        self,
        text: dict[str, Any],
        next_tokens: torch.LongTensor | None,
        lambdas: list[float] | float,
    ) -> None:
        self._check_tokens(text, next_tokens)
        if next_tokens is None or text.get("input_ids") is not None:
            return
        needs_ids = self.config.ngram_target == "wdr" or (not self.training and lambdas != 0)
        if self.ngram_heads and needs_ids:
            raise ValueError(
                "The N-gram loss and the ensemble are made from the tokens themselves: with labels, pass "
                f"`{self.text_prefix}input_ids` instead of `{self.text_prefix}inputs_embeds`."
            )
