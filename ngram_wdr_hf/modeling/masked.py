"""What is different for masked language models: the words to predict are those that were masked."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils import can_return_tuple

from ..method.configuration import NgramConfigMixin, check_fraction
from ..method.differences import conjugate_of
from ..method.documents import IGNORE_INDEX, read_documents
from ..method.heads import NgramPredictions
from ..method.logits import LogitLayer, logits_of, target_embeddings
from ..method.loss import at_least_one, mean_nll, ngram_loss
from .base import NgramHeadsMixin
from .signature import forward_like

COMPOSITIONS = ("all", "masked")


@dataclass(repr=False)
class NgramMaskedConfigMixin(NgramConfigMixin):
    __doc__ = f"""{NgramConfigMixin.__doc__.rstrip()}
        wdr_compose (`str`, *optional*, defaults to `"all"`):
            Of a masked language model, which words a masked word is composed with: `"all"`, the next ones, seen or
            not; `"masked"`, the next ones only where they are masked, too.

    A masked language model has WDR heads only, no ensemble and no drafts.
    """

    wdr_compose: str = "all"

    @property
    def keys_to_ignore_at_inference(self) -> list[str]:
        return [*super().keys_to_ignore_at_inference, "head_counts"]

    def validate_ngram_fields(self) -> None:
        super().validate_ngram_fields()
        if self.wdr_compose not in COMPOSITIONS:
            raise ValueError(f"`wdr_compose` must be one of {', '.join(COMPOSITIONS)}, got {self.wdr_compose!r}.")
        if self.ngram_target != "wdr":
            raise ValueError(
                "A masked language model's heads predict word differences at the masked word: leave out "
                f"`ngram_target={self.ngram_target!r}`, or use `ngram_size=1` for the plain model."
            )
        if self.ensemble_lambda or self.draft_vocab_size is not None:
            raise ValueError(
                "A masked language model has no ensemble and no drafts: leave out `ensemble_lambda` and "
                "`draft_vocab_size`."
            )
        if getattr(self, "is_decoder", False):
            raise ValueError("A masked language model reads in both directions: leave out `is_decoder=True`.")


@dataclass
class NgramMaskedLMOutput(MaskedLMOutput):
    r"""
    The backbone's output, and:

    head_losses (`torch.FloatTensor` of shape `(ngram_size,)`, *optional*, returned when `labels` is provided):
        Detached: the NLL of the masked word by the model itself, then by each head, each a mean over its own targets.
    head_counts (`torch.LongTensor` of shape `(ngram_size,)`, *optional*, returned when `labels` is provided):
        How many targets these are.
    """

    head_losses: torch.FloatTensor | None = None
    head_counts: torch.LongTensor | None = None


class NgramMaskedMixin(NgramHeadsMixin):
    r"""
    Put before a masked language model of Transformers, it adds the WDR heads and their loss (paper, appendix on masked
    language modeling). Head n predicts, from the same vector that the model predicts the masked word `x[i]` from, the
    n-level word difference there, `(-1)^n Δ_n e[i]`. Composed with the next words it is the masked word again:
    `e(x[i]) = (-1)^n Δ_n e[i] + sum_{k=1..n} (-1)^(k+1) C(n,k) e(x[i+k])`, and the loss is the cross entropy of `x[i]`
    through the shared output embedding. In training, `1/2 L_0 + 1/(2(N-1)) sum_n L_n`, every `L_n` a sum over its
    targets divided by the number of masked words.

    A word is masked where it has a label. There is no target for head n where one of the n next words is padding or
    belongs to another document (`position_ids` that restart), nor, with `wdr_compose="masked"`, where one of them has
    no label.

    In training mode with labels, `loss` is this loss and no logits are returned. Otherwise `logits` are those of the
    plain backbone, and with labels `loss` is the mean NLL of the masked words.
    """

    ngram_output_class = NgramMaskedLMOutput

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        backbone_forward = getattr(super(), "forward", None)
        if backbone_forward is not None and cls.forward is backbone_forward:
            cls.forward = forward_like(backbone_forward, NgramMaskedMixin.__doc__, with_lambda=False)

    @can_return_tuple
    def _ngram_forward(
        self,
        labels: torch.LongTensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        **inputs,
    ) -> NgramMaskedLMOutput:
        labels = None if labels is None else labels.long()
        self._ngram_check_tokens(inputs, labels)
        hidden_states, fields = self._ngram_run_backbone(inputs)
        if labels is None:
            fields["logits"] = logits_of(self, self._ngram_transform(hidden_states))
            return self._ngram_output(fields)
        predictions = self._ngram_predict(hidden_states, inputs, labels)
        fields["head_counts"] = torch.tensor([len(ids) for ids in predictions.targets], device=hidden_states.device)
        if self.training:
            smoothing = check_fraction("label_smoothing", self.config.label_smoothing)
            fields["loss"], fields["head_losses"] = ngram_loss(
                predictions, LogitLayer.of(self), smoothing, num_items_in_batch
            )
        else:
            fields["head_losses"] = mean_nll(predictions, LogitLayer.of(self))
            scores = fields["logits"] = logits_of(self, predictions.main)
            if not getattr(self.config, "sparse_prediction", False):
                # Logits of the masked tokens alone are for backbones that are asked for these.
                fields["logits"] = logits_of(self, self._ngram_transform(hidden_states))
            scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
            count = len(scores) if num_items_in_batch is None else num_items_in_batch
            nll = F.cross_entropy(scores, predictions.targets[0], reduction="sum")
            fields["loss"] = nll / at_least_one(count, scores.device)
        return self._ngram_output(fields)

    def _ngram_transform(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """What the logit layer, and the heads, see of the hidden states."""
        raise NotImplementedError

    def _ngram_watched_backbone(self) -> torch.nn.Module:
        # What some masked language models call their decoder is the output embedding.
        return self.base_model

    def _ngram_predict(
        self, hidden_states: torch.Tensor, text: dict[str, Any], labels: torch.LongTensor
    ) -> NgramPredictions:
        """The predicted embeddings of the masked tokens, by the model itself and by each head where it has targets."""
        rows, columns = (labels != IGNORE_INDEX).nonzero(as_tuple=True)
        main = self._ngram_transform(hidden_states[rows, columns])
        masked_tokens = labels[rows, columns]
        predicted, targets = [main], [masked_tokens]
        if not self.ngram_heads:
            return NgramPredictions(predicted, targets)
        compose = self.config.wdr_compose
        if compose == "all" and text.get("input_ids") is None:
            raise ValueError(
                "The words that a masked word is composed with are read from `input_ids`: with labels, pass these "
                "instead of `inputs_embeds`."
            )
        known = labels if compose == "masked" else torch.where(labels == IGNORE_INDEX, text["input_ids"], labels)
        runs, _ = read_documents(text, hidden_states)
        # The masked tokens that n next tokens can be composed with, fewer for every head, and these embeddings.
        left, following = torch.arange(len(rows), device=rows.device), []
        for n, head in enumerate(self.ngram_heads, start=1):
            next_columns = columns[left] + n
            exists = next_columns < labels.shape[1]
            next_columns = next_columns.clamp(max=labels.shape[1] - 1)
            next_tokens = known[rows[left], next_columns]
            stays = exists & (runs[rows[left], next_columns] > n) & (next_tokens != IGNORE_INDEX)
            left, following = left[stays], [embeddings[stays] for embeddings in following]
            following.append(target_embeddings(self, next_tokens[stays]))
            predicted.append(head(main[left]) + conjugate_of(following))
            targets.append(masked_tokens[left])
        return NgramPredictions(predicted, targets)
