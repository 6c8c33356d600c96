"""How often the heads' greedy drafts are accepted, measured on a text."""

from collections.abc import Sequence

import torch
from torch import nn

from ..method.documents import IGNORE_INDEX
from ..method.logits import LogitLayer
from ..method.loss import chunk_rows
from .scores import ScoredText, sample_predictions, sum_over_processes


@torch.no_grad()
def head_acceptance(model: nn.Module, text: ScoredText, batch_size: int = 8, max_tokens: int = 5_000) -> list[float]:
    """
    Return the acceptance rate of each head's greedy drafts on a random sample of a text: how often head n's draft is
    the model's own choice, where the drafts of the heads before it were accepted and equal the text. 0 for a head
    without such drafts. In a distributed run, every process must call this, for its share of the text.
    """
    counts = torch.zeros(2, model.config.ngram_size - 1, dtype=torch.long)
    vocabulary, layer = model.ngram_draft_vocabulary(), LogitLayer.of(model)
    draft_layer = layer if vocabulary is None else layer.select(vocabulary)
    for predictions in sample_predictions(model, text, batch_size, max_tokens):
        choices = best_tokens(layer, predictions.ensemble(model.ngram_ensemble()))
        drafts = [best_tokens(draft_layer, prediction) for prediction in predictions.embeddings[1:]]
        if vocabulary is not None:
            drafts = [vocabulary[draft] for draft in drafts]
        counts += torch.tensor(count_accepted(drafts, choices, predictions.targets))
    num_drafts, num_accepted = sum_over_processes(counts.to(model.device)).tolist()
    return [accepted / max(1, checked) for accepted, checked in zip(num_accepted, num_drafts, strict=True)]


def best_tokens(layer: LogitLayer, predictions: torch.Tensor) -> torch.Tensor:
    """Return the most likely token of predictions `(..., d)`, of shape `(...)`, with logits chunk by chunk."""
    rows = predictions.flatten(0, -2)
    best = [layer(chunk).argmax(-1) for chunk in rows.split(chunk_rows(layer.weight))]
    return torch.cat(best).view(predictions.shape[:-1])


def count_accepted(
    drafts: Sequence[torch.Tensor], model_choices: torch.Tensor, targets: Sequence[torch.Tensor]
) -> tuple[list[int], list[int]]:
    """
    For each head, count the drafts whose earlier drafts were accepted and equal the text, and those of them that are
    accepted: equal to `model_choices`, the model's own next tokens `(batch_size, T)`. `targets` begins with depth 0.
    """
    num_drafts, num_accepted = [], []
    is_prefix_accepted = torch.ones_like(model_choices, dtype=torch.bool)
    for n, draft in enumerate(drafts, start=1):
        # Column t holds the drafts made at position t: head n's is for the token at position t + n + 1.
        length = draft.shape[1]
        is_checked = is_prefix_accepted[:, :length] & (targets[n] != IGNORE_INDEX)
        is_accepted = is_checked & (draft == model_choices[:, n:])
        num_drafts.append(int(is_checked.sum()))
        num_accepted.append(int(is_accepted.sum()))
        is_prefix_accepted = is_accepted & (draft == targets[n])
    return num_drafts, num_accepted
