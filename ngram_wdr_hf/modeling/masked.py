"""The mixin for masked language models: heads predict masked tokens."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils import can_return_tuple

from ..method.configuration import NgramConfigMixin
from ..method.documents import IGNORE_INDEX, read_documents
from ..method.heads import NgramPredictions
from ..method.logits import LogitLayer, logits_of, target_embeddings
from ..method.loss import at_least_one, mean_nll
from .base import OWN_ARGUMENTS, NgramHeadsMixin

COMPOSITIONS = ("all", "masked")


@dataclass(repr=False)
class NgramMaskedConfigMixin(NgramConfigMixin):
    r"""
    [`NgramConfigMixin`] for masked language models, which have WDR heads only, no ensemble and no drafts.

    Args:
        wdr_compose (`str`, *optional*, defaults to `"all"`):
            Which tokens head n composes a masked token with: `"all"`, the next n tokens, masked or not; `"masked"`,
            the next n tokens only if all of them are masked, too (head n has no target elsewhere).
    """

    wdr_compose: str = "all"

    def validate_ngram_fields(self) -> None:
        super().validate_ngram_fields()
        if self.wdr_compose not in COMPOSITIONS:
            raise ValueError(f"`wdr_compose` must be one of {', '.join(COMPOSITIONS)}, got {self.wdr_compose!r}.")
        if self.ngram_target != "wdr":
            raise ValueError(f"`ngram_target` must be 'wdr' for a masked language model, got {self.ngram_target!r}.")
        given = {name: getattr(self, name) for name in ("ensemble_lambda", "ensemble_weights", "draft_vocab_size")}
        given["head_loss_tokens='draft'"] = self.head_loss_tokens == "draft"
        given["ngram_head_reads='previous+token'"] = self.ngram_head_reads == "previous+token"
        given["is_decoder=True"] = getattr(self, "is_decoder", False)
        for name in filter(given.get, given):
            raise ValueError(f"`{name}` cannot be used with masked language models: remove it.")


@dataclass
class NgramMaskedLMOutput(MaskedLMOutput):
    r"""
    The backbone's output, and:

    head_losses (`torch.FloatTensor` of shape `(ngram_size,)`, *optional*, returned when `labels` is provided):
        The mean NLL of each depth over its own targets, detached.
    head_counts (`torch.LongTensor` of shape `(ngram_size,)`, *optional*, returned when `labels` is provided):
        The number of these targets.
    """

    head_losses: torch.FloatTensor | None = None
    head_counts: torch.Tensor | None = None


class NgramMaskedMixin(NgramHeadsMixin):
    r"""
    Mixin that adds WDR heads and their loss to a masked language model of Transformers (paper, appendix on masked
    language modeling). From the vector that predicts the masked token `x[i]`, head n predicts its n-level word
    difference `(-1)^n Δ_n e[i]`. Composing it with the next n tokens gives the masked token's embedding:
    `e(x[i]) = (-1)^n Δ_n e[i] + sum_{k=1..n} (-1)^(k+1) C(n,k) e(x[i+k])`. `L_n` is the cross entropy of `x[i]`
    through the shared output embedding, summed over head n's targets and divided by the number of masked tokens. The
    training loss is `1/2 L_0 + 1/(2(N-1)) sum_n L_n`.

    A token with a label is masked. Head n has no target where one of the next n tokens is padding or belongs to
    another document (`position_ids` that do not continue by 1), or has no label with `wdr_compose="masked"`.

    In training mode with labels, `loss` is this loss and no logits are returned. Otherwise `logits` are those of the
    plain backbone, and with labels `loss` is the mean NLL of the masked tokens.
    """

    config: NgramMaskedConfigMixin
    ngram_auto_class = "AutoModelForMaskedLM"
    ngram_output_class = NgramMaskedLMOutput

    @can_return_tuple
    def ngram_forward(
        self,
        inputs: dict[str, Any],
        labels: torch.Tensor | None = None,
        *,
        num_items_in_batch: int | torch.Tensor | None = None,
        **kwargs,
    ) -> NgramMaskedLMOutput:
        """Do what every `forward` does. `inputs` and `kwargs` are the backbone's own arguments."""
        if unknown := set(OWN_ARGUMENTS) & kwargs.keys():
            raise TypeError(f"`{unknown.pop()}` is no argument of masked language models, which have no ensemble.")
        inputs = {**inputs, **kwargs}
        self._ngram_reads_states = labels is not None
        hidden_states, fields = self._ngram_run_backbone(inputs)
        if labels is None:
            fields["logits"] = logits_of(self, self._ngram_transform(hidden_states))
            return self._ngram_output(fields)
        labels = labels.long()
        predictions = self._ngram_predict(hidden_states, inputs, labels)
        if self.training:
            return self._ngram_output(fields | self._ngram_training_loss(predictions, num_items_in_batch))
        fields |= {"head_losses": mean_nll(predictions, LogitLayer.of(self)), "head_counts": predictions.counts()}
        if getattr(self.config, "sparse_prediction", False):
            # As in the stock class, there are logits of the masked tokens alone.
            scores = fields["logits"] = logits_of(self, predictions.main)
        else:
            fields["logits"] = logits_of(self, self._ngram_transform(hidden_states))
            scores = fields["logits"][labels != IGNORE_INDEX]
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        count = len(scores) if num_items_in_batch is None else num_items_in_batch
        nll = F.cross_entropy(scores, predictions.targets[0], reduction="sum")
        fields["loss"] = nll / at_least_one(count, scores.device)
        self._ngram_warn_in_backward(fields["loss"])
        return self._ngram_output(fields)

    def _ngram_transform(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return hidden states after the backbone's layers before its output embedding. Every class defines this."""
        raise NotImplementedError

    def _ngram_decoder(self) -> torch.nn.Module:
        # In some masked language models `get_decoder` returns the output embedding.
        return self.base_model

    def _ngram_predict(
        self, hidden_states: torch.Tensor, text: dict[str, Any], labels: torch.Tensor
    ) -> NgramPredictions:
        """Return the predictions of the masked tokens, each depth `(number of its targets, d)`."""
        rows, columns = (labels != IGNORE_INDEX).nonzero(as_tuple=True)
        main = self._ngram_transform(hidden_states[rows, columns])
        masked_tokens = labels[rows, columns]
        predicted, targets = [main], [masked_tokens]
        training = self._ngram_head_training() if self.training else None
        head_inputs = main if training is None else training.scale_gradient(main)
        if self.config.ngram_size == 1:
            return NgramPredictions(predicted, targets)
        compose = self.config.wdr_compose
        if compose == "all" and text.get("input_ids") is None:
            raise ValueError("`inputs_embeds` cannot be used with `labels`: the heads need the tokens, `input_ids`.")
        known = labels if compose == "masked" else torch.where(labels == IGNORE_INDEX, text["input_ids"], labels)
        runs, _ = read_documents(text, hidden_states)
        # `remaining`: the masked tokens whose next n tokens can be composed. `following`: the embeddings of those.
        remaining, following = torch.arange(len(rows), device=rows.device), []
        for n, head in enumerate(self.ngram_head_list, start=1):
            next_columns = columns[remaining] + n
            exists = next_columns < labels.shape[1]
            next_columns = next_columns.clamp(max=labels.shape[1] - 1)
            next_tokens = known[rows[remaining], next_columns]
            is_kept = exists & (runs[rows[remaining], next_columns] > n) & (next_tokens != IGNORE_INDEX)
            remaining, following = remaining[is_kept], [embeddings[is_kept] for embeddings in following]
            following.append(target_embeddings(self, next_tokens[is_kept]))
            chosen, neighbors = remaining, following
            if training is not None and training.samples:
                target = torch.full_like(labels, IGNORE_INDEX)
                target[rows[remaining], columns[remaining]] = masked_tokens[remaining]
                is_chosen = training.choose(target, n)[rows[remaining], columns[remaining]]
                chosen, neighbors = remaining[is_chosen], [embeddings[is_chosen] for embeddings in following]
            predicted.append(head.predict(head_inputs[chosen], neighbors))
            targets.append(masked_tokens[chosen])
        return NgramPredictions(predicted, targets, training=training)
