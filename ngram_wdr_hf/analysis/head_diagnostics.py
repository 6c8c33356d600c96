"""Accuracy of each head, acceptance rate of its drafts and gain of the ensemble, from one pass over a text."""

import itertools
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.pair_batches import PairBatches
from ..data.rows import EvaluationRows
from ..data.token_stream import EvaluationWindows, TokenStream
from ..data.tokenizers import end_token_id
from ..evaluation.head_acceptance import best_tokens, count_accepted
from ..evaluation.scores import evaluating
from ..method.documents import IGNORE_INDEX
from ..method.ensemble import Ensemble
from ..method.logits import LogitLayer
from ..method.loss import chunk_rows

# The end of a sentence, with closing quotation marks and brackets. `Mr.` is none.
SENTENCE_END = re.compile(r"""\s*[.!?]+["'”’»)\]]*\s*""")
# The lower bounds of the bins of gains: position in the sentence, and count in training.
POSITIONS = (1, 2, 3, 4, 5, 9, 17, 33)
FREQUENCIES = (0, 10, 100, 1_000, 10_000, 100_000)


class GainBin(NamedTuple):
    """
    The ensemble's gain on a group of tokens, such as the positions `5–8`: their mean NLL without the ensemble minus
    that with it, in nats, and the standard error of this mean for independent tokens (NaN for a single token).
    """

    label: str
    num_tokens: int
    mean: float
    standard_error: float


@dataclass
class HeadDiagnostics:
    """
    Measurements of a model on a text: targets, mean NLL and accuracy by depth (0 is the next-token prediction, n the
    prediction of head n); by head, the number of positions where all earlier drafts were accepted, and where its own
    draft was accepted, too; the gain of an ensemble on all tokens, by position in the sentence from 1, and by training
    count of the token.
    """

    ensemble: Ensemble
    num_targets: list[int]
    nlls: list[float]
    accuracies: list[float]
    num_drafts: list[int]
    num_accepted: list[int]
    gain: GainBin
    gain_by_place: list[GainBin]
    gain_by_frequency: list[GainBin]

    @property
    def perplexities(self) -> list[float]:
        """For each depth, the perplexity by token: `exp` of `nlls`, which are cut off at 700."""
        return [math.exp(min(nll, 700.0)) for nll in self.nlls]

    @property
    def acceptance(self) -> list[float]:
        """For each head, the acceptance rate of its drafts where all earlier drafts were accepted; 0 without any."""
        return [a / d if d else 0.0 for a, d in zip(self.num_accepted, self.num_drafts, strict=True)]

    @property
    def tokens_per_pass(self) -> float:
        """Expected tokens per forward pass with drafts by all heads: one token and the accepted drafts."""
        return 1.0 + sum(itertools.accumulate(self.acceptance, lambda chance, share: chance * share))


@torch.no_grad()
def head_diagnostics(
    model: PreTrainedModel,
    text: EvaluationWindows | EvaluationRows | PairBatches,
    ensemble_lambda: float | None = None,
    sentence_ends: Collection[int] = (),
    token_counts: Sequence[int] | np.ndarray | None = None,
    batch_size: int = 8,
    ensemble_weights: Sequence[float] | None = None,
) -> HeadDiagnostics:
    r"""
    Measure accuracy and acceptance rate of every depth and the gain of an ensemble, in one pass over a text. A greedy
    draft is accepted if it equals the model's choice, with its own ensemble. That is known only where the text
    continues as drafted, so head n is measured where all earlier drafts were accepted and equal the text.

    Args:
        model (`PreTrainedModel`): A model of this package; without heads, it has depth 0 only.
        text (`EvaluationWindows`, `EvaluationRows` or `PairBatches`): The text, or pairs for an encoder-decoder model.
        ensemble_lambda (`float`, *optional*): The λ to measure the gain of; the model's own ensemble by default.
        sentence_ends (`Collection[int]`, *optional*): In running text, the tokens that end a sentence. Of rows and
            pairs, each is one sentence.
        token_counts (`Sequence[int]`, *optional*): Count of each token in training, by default in `text`.
        batch_size (`int`, *optional*, defaults to 8): Windows or rows per batch.
        ensemble_weights (`Sequence[float]`, *optional*): The N weights to measure the gain of, instead of a λ.
    """
    own, ensemble = model.ngram_ensemble(), model.ngram_ensemble(ensemble_lambda, ensemble_weights)
    layer, vocabulary = LogitLayer.of(model), model.ngram_draft_vocabulary()
    num_heads = model.config.ngram_size - 1
    # By depth: targets, NLLs, hits. By head: drafts, accepted ones.
    sums, draft_sums = np.zeros((num_heads + 1, 3)), np.zeros((2, num_heads), dtype=int)
    gains, tokens, places = [], [], []
    with evaluating(model):
        for batch in DataLoader(text, None if isinstance(text, PairBatches) else batch_size):
            predictions = model.ngram_predictions(**{name: tensor.to(model.device) for name, tensor in batch.items()})
            embeddings, targets = predictions.embeddings, predictions.targets
            by_depth = [_measure(layer, *pair) for pair in zip(embeddings, targets, strict=True)]
            ensembled = {each: _measure(layer, predictions.ensemble(each), targets[0]) for each in {own, ensemble}}
            drafts = [best for _, best in by_depth[1:]]
            if vocabulary is not None:
                drafts = [vocabulary[best_tokens(layer.select(vocabulary), each)] for each in embeddings[1:]]
            sums += [
                [len(nlls), float(nlls.sum()), int((best == of_depth).sum())]
                for (nlls, best), of_depth in zip(by_depth, targets, strict=True)
            ]
            draft_sums += np.array(count_accepted(drafts, ensembled[own][1], targets), dtype=int)
            is_target = targets[0] != IGNORE_INDEX
            gains.append((by_depth[0][0] - ensembled[ensemble][0]).numpy())
            tokens.append(targets[0][is_target].cpu().numpy())
            places.append(is_target.cumsum(1)[is_target].cpu().numpy())
    gains, tokens = np.concatenate(gains), np.concatenate(tokens)
    counts = count_tokens(text, model.ngram_vocab_size) if token_counts is None else np.asarray(token_counts)
    is_running = isinstance(text, EvaluationWindows)
    places = _places(tokens, sentence_ends) if is_running else np.concatenate(places)
    num_targets, nll_sums, num_correct = sums.T
    return HeadDiagnostics(
        ensemble=ensemble,
        num_targets=num_targets.astype(int).tolist(),
        nlls=(nll_sums / num_targets.clip(min=1)).tolist(),
        accuracies=(num_correct / num_targets.clip(min=1)).tolist(),
        num_drafts=draft_sums[0].tolist(),
        num_accepted=draft_sums[1].tolist(),
        gain=_gain_bin("all", gains),
        gain_by_place=_gain_bins(gains, places, POSITIONS),
        gain_by_frequency=_gain_bins(gains, counts[tokens], FREQUENCIES),
    )


def _measure(
    layer: LogitLayer, predictions: torch.Tensor, targets: torch.LongTensor
) -> tuple[torch.Tensor, torch.LongTensor]:
    """
    Return the NLL of each target, row by row in float64, and the most likely tokens, `(batch_size, T)`, -1 without a
    target. Logits are computed chunk by chunk.
    """
    is_target, size = targets != IGNORE_INDEX, chunk_rows(layer.weight)
    nlls, best = [], []
    for rows, labels in zip(predictions[is_target].split(size), targets[is_target].split(size), strict=True):
        logits = layer(rows)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        # On the CPU, because not every accelerator has float64.
        nlls.append(F.cross_entropy(logits, labels, reduction="none").cpu().double())
        best.append(logits.argmax(-1))
    return torch.cat(nlls), torch.full_like(targets, -1).masked_scatter(is_target, torch.cat(best))


def _places(tokens: np.ndarray, sentence_ends: Collection[int]) -> np.ndarray:
    """Return the position in its sentence of each token of a running text, from 1."""
    numbers = np.arange(len(tokens))
    is_first = np.append(True, np.isin(tokens, list(sentence_ends))[:-1])
    return numbers - np.maximum.accumulate(np.where(is_first, numbers, 0)) + 1


def _gain_bins(gains: np.ndarray, values: np.ndarray, firsts: Sequence[int]) -> list[GainBin]:
    """Return the gain of each bin of values that is not empty; `firsts` are the bins' lower bounds."""
    bins, found = np.digitize(values, firsts) - 1, []
    for i, (first, end) in enumerate(itertools.zip_longest(firsts, firsts[1:])):
        label = f"{first:,}+" if end is None else f"{first:,}–{end - 1:,}" if end > first + 1 else f"{first:,}"
        found += [_gain_bin(label, gains[bins == i])] if (bins == i).any() else []
    return found


def _gain_bin(label: str, gains: np.ndarray) -> GainBin:
    error = float(gains.std(ddof=1)) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
    return GainBin(label, len(gains), float(gains.mean()), error)


def count_tokens(text: TokenStream | EvaluationWindows | PairBatches, vocab_size: int) -> np.ndarray:
    """Return the count of each token in running text or in the targets of sentence pairs, `(vocab_size,)`."""
    if isinstance(text, PairBatches):
        tokens = np.concatenate(text.target_tokens())
    else:
        tokens = text.stream.ids if isinstance(text, EvaluationWindows) else text.ids
    return np.bincount(tokens, minlength=vocab_size)


def find_sentence_ends(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of the tokens that end a sentence or a line, and of the end of a document."""
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    ends = [token for token, text in enumerate(texts) if "\n" in text or SENTENCE_END.fullmatch(text)]
    return sorted({*ends, end_token_id(tokenizer)} - {None})
