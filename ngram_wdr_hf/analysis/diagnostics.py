"""Accuracy of each head, acceptance rate of its drafts and gain of the ensemble, from one pass over a text."""

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.pair_batches import PairBatches
from ..data.stream import EvaluationWindows, TokenStream
from ..data.tokenizer import end_token_id
from ..decoding.statistics import SpeculationStatistics
from ..evaluation.acceptance import count_accepted
from ..evaluation.lengths import max_positions
from ..evaluation.modes import evaluating
from ..evaluation.unavailable import Unavailable
from ..method.documents import IGNORE_INDEX
from ..method.ensemble import Ensemble
from ..method.logits import LogitLayer
from ..method.loss import chunk_rows
from ..training.common.model import can_drop_drafts
from .gain_bins import FREQUENCIES, POSITIONS, GainBin, GainTally, SentencePositions

# The end of a sentence, with closing quotation marks and brackets.
SENTENCE_END = re.compile(r"""\s*[.!?]+["'”’»)\]]*\s*""")


@dataclass
class HeadDiagnostics:
    r"""
    Measurements of a model on a text. Depth 0 is the next-token prediction, depth n the prediction of head n.

    Args:
        ensemble (`Ensemble`): The ensemble of the gains, λ or weights.
        num_targets (`list[int]`): For each depth, the number of targets.
        nlls (`list[float]`): For each depth, the mean NLL.
        accuracies (`list[float]`): For each depth, the share of targets that are its most likely token.
        num_drafts (`list[int]`): For each head, the number of positions where all earlier drafts were accepted.
        num_accepted (`list[int]`): For each head, the number of these where its own draft was accepted, too.
        gain ([`GainBin`]): The ensemble's gain on all tokens.
        gain_by_place (`list[GainBin]`): The gain by position in the sentence, from 1; without empty bins.
        gain_by_frequency (`list[GainBin]`): The gain by training count of the token; without empty bins.
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
    text: EvaluationWindows | PairBatches,
    ensemble_lambda: float | None = None,
    sentence_ends: Collection[int] = (),
    token_counts: Sequence[int] | np.ndarray | None = None,
    batch_size: int = 8,
    on_batch: Callable[[], None] = lambda: None,
    ensemble_weights: Sequence[float] | None = None,
) -> HeadDiagnostics:
    r"""
    Measure accuracy and acceptance rate of every depth and the gain of the ensemble, in one pass over a text. The
    values equal the model's own evaluation: `nlls` are its `head_losses`.

    A greedy draft is accepted if it equals the model's choice, with the model's own ensemble. As in
    `generate(use_mtp=True)`, head n drafts after the next token of the text and the n - 1 drafts before its own. The
    model's choice after a draft is known only where the text has the same token. So head n is measured at positions
    where all earlier drafts were accepted and equal the text.

    Args:
        model (`PreTrainedModel`): A model of this package; without heads, it has depth 0 only.
        text (`EvaluationWindows` or `PairBatches`): Running text, or sentence pairs for an encoder-decoder
            model.
        ensemble_lambda (`float`, *optional*): The λ to measure the gain of; the model's own ensemble by default.
        sentence_ends (`Collection[int]`, *optional*):
            In running text, the tokens that end a sentence, see [`find_sentence_ends`]. Without them, positions are
            counted from the beginning of the text. The target of a pair is one sentence.
        token_counts (`Sequence[int]`, *optional*):
            Count of each token in training, see [`count_tokens`]; by default, counts in `text`.
        batch_size (`int`, *optional*, defaults to 8): Windows per batch; ignored for `PairBatches`.
        on_batch (`Callable`, *optional*): Function called after each batch, such as for a progress bar.
        ensemble_weights (`Sequence[float]`, *optional*): The N weights to measure the gain of, instead of a λ.
    """
    if not hasattr(model, "ngram_ensemble"):
        raise ValueError(
            f"`model` must be a next-token model of this package, got {type(model).__name__}: add heads with "
            "`with_ngram_heads`."
        )
    if not isinstance(text, (EvaluationWindows, PairBatches)):
        raise ValueError(
            f"`text` must be `EvaluationWindows` or `PairBatches`, got {type(text).__name__}: wrap running text in "
            "`EvaluationWindows(TokenStream([ids], num_words), window_size)`."
        )
    if not len(text):
        raise Unavailable("`text` has no token to predict: give a longer one.")
    ensemble = model.ngram_ensemble(ensemble_lambda, ensemble_weights)
    vocab_size = model.ngram_vocab_size
    counts = torch.as_tensor(count_tokens(text, vocab_size) if token_counts is None else token_counts)
    if counts.shape != (vocab_size,):
        raise ValueError(
            f"`token_counts` must have the shape ({vocab_size},), one count per token of the vocabulary, got "
            f"{tuple(counts.shape)}."
        )
    num_targets = nll_sums = num_correct = num_drafts = num_accepted = 0
    gain, by_position, by_frequency = GainTally((0,)), GainTally(POSITIONS), GainTally(FREQUENCIES)
    positions_in_sentence = SentencePositions(sentence_ends, isinstance(text, PairBatches))
    for batch in DataLoader(text, batch_size if isinstance(text, EvaluationWindows) else None):
        with evaluating(model):
            inputs = {name: tensor.to(model.device) for name, tensor in batch.items()}
            measured = _measure_batch(model, inputs, ensemble)
        num_targets = num_targets + measured.num_targets
        nll_sums = nll_sums + measured.nll_sums
        num_correct = num_correct + measured.num_correct
        num_drafts = num_drafts + measured.num_drafts
        num_accepted = num_accepted + measured.num_accepted
        is_target = measured.targets != IGNORE_INDEX
        gain.add(measured.gains, torch.zeros_like(measured.targets[is_target]))
        by_position.add(measured.gains, positions_in_sentence.of(measured.targets, is_target))
        by_frequency.add(measured.gains, counts[measured.targets[is_target]])
        on_batch()
    return HeadDiagnostics(
        ensemble=ensemble,
        num_targets=num_targets.tolist(),
        nlls=(nll_sums / num_targets.clamp(min=1)).tolist(),
        accuracies=(num_correct.double() / num_targets.clamp(min=1)).tolist(),
        num_drafts=num_drafts.tolist(),
        num_accepted=num_accepted.tolist(),
        gain=replace(gain.bins()[0], label="all"),
        gain_by_place=by_position.bins(),
        gain_by_frequency=by_frequency.bins(),
    )


def draft_statistics(
    model: PreTrainedModel, prompts: Iterable[Mapping[str, torch.Tensor]], max_new_tokens: int = 48
) -> SpeculationStatistics:
    r"""
    Generate greedily after each prompt, with drafts by all heads at every step and without prompt lookup. Return the
    statistics of all prompts together: tokens, forward passes, drafted and accepted tokens by depth. Raise
    `Unavailable` if the model cannot draft.

    Args:
        model (`PreTrainedModel`): A model with N-gram heads.
        prompts (`Iterable[Mapping[str, torch.Tensor]]`): Arguments of `generate`, with one batch row each.
        max_new_tokens (`int`, *optional*, defaults to 48):
            Maximum number of new tokens per prompt, also limited by the model's positions.
    """
    if not can_drop_drafts(model):
        raise Unavailable(f"`model` has a state that cannot undo rejected drafts, got {type(model).__name__}.")
    total = SpeculationStatistics()
    for prompt in prompts:
        length = 1 if model.config.is_encoder_decoder else prompt["input_ids"].shape[1]
        with evaluating(model):
            total += model.generate(
                **prompt,
                # Avoids Transformers' warning about two limits.
                max_length=None,
                max_new_tokens=min(max_new_tokens, (max_positions(model) or math.inf) - length),
                do_sample=False,
                num_beams=1,
                use_mtp=True,
                draft_threshold=0.0,
                prompt_lookup_num_tokens=0,
                return_dict_in_generate=True,
            ).speculation
    return total


def count_tokens(text: TokenStream | EvaluationWindows | PairBatches, vocab_size: int) -> np.ndarray:
    """Return the count of each token in running text or in the targets of sentence pairs, `(vocab_size,)`."""
    if isinstance(text, EvaluationWindows):
        text = text.stream
    counts = np.zeros(vocab_size, dtype=np.int64)
    for piece in text.target_tokens() if isinstance(text, PairBatches) else text.pieces:
        counts += np.bincount(piece, minlength=vocab_size)
    return counts


def find_sentence_ends(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """
    Return the ids of the tokens that end a sentence: the end of a document, tokens with a line break, and `.`, `!` or
    `?`, also repeated or with closing quotation marks or brackets. (The single token `Mr.` does not end a sentence;
    the point in `3.5` does if it is a token.)
    """
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    is_end = ["\n" in text or SENTENCE_END.fullmatch(text) is not None for text in texts]
    end = end_token_id(tokenizer)
    return [token for token in range(len(texts)) if is_end[token] or token == end]


class _BatchMeasurements(NamedTuple):
    """
    Measurements of one batch. `num_targets`, `nll_sums` and `num_correct` (most likely tokens that equal the target)
    have one entry per depth, `num_drafts` and `num_accepted` one per head. `targets` are the next tokens,
    `(batch_size, T)`, -100 without a target. `gains` has one entry per target, row by row: NLL with λ = 0 minus NLL
    with the ensemble.
    """

    num_targets: torch.Tensor
    nll_sums: torch.Tensor
    num_correct: torch.Tensor
    num_drafts: torch.Tensor
    num_accepted: torch.Tensor
    targets: torch.LongTensor
    gains: torch.Tensor


def _measure_batch(model: PreTrainedModel, batch: dict[str, torch.Tensor], ensemble: Ensemble) -> _BatchMeasurements:
    own_ensemble = model.ngram_ensemble()
    predictions = model.ngram_predictions(**batch)
    targets = predictions.targets
    layer, draft_vocabulary = LogitLayer.of(model), model.ngram_draft_vocabulary()
    by_ensemble = {
        value: _measure_depth(layer, predictions.ensemble(value), targets[0])
        for value in {0.0, own_ensemble, ensemble}
    }
    by_head = [
        _measure_depth(layer, *pair, draft_vocabulary)
        for pair in zip(predictions.embeddings[1:], targets[1:], strict=True)
    ]
    by_depth = [by_ensemble[0.0], *by_head]
    choices = by_ensemble[own_ensemble].best
    num_drafts, num_accepted = count_accepted([depth.draft for depth in by_head], choices, targets)
    return _BatchMeasurements(
        num_targets=torch.tensor([len(depth.nlls) for depth in by_depth]),
        nll_sums=torch.stack([depth.nlls.sum() for depth in by_depth]),
        num_correct=torch.stack(
            [(depth.best == target).sum().cpu() for depth, target in zip(by_depth, targets, strict=True)]
        ),
        num_drafts=torch.tensor(num_drafts, dtype=torch.long),
        num_accepted=torch.tensor(num_accepted, dtype=torch.long),
        targets=targets[0].cpu(),
        gains=by_ensemble[0.0].nlls - by_ensemble[ensemble].nlls,
    )


class _DepthMeasurements(NamedTuple):
    """
    Measurements of one depth. `nlls` has one entry per target, row by row, in float64. `best` and `draft` are the most
    likely token of all and of those that may be drafted, `(batch_size, T)`, -1 without a target.
    """

    nlls: torch.Tensor
    best: torch.LongTensor
    draft: torch.LongTensor


def _measure_depth(
    layer: LogitLayer,
    predictions: torch.Tensor,
    targets: torch.LongTensor,
    draft_vocabulary: torch.LongTensor | None = None,
) -> _DepthMeasurements:
    """
    Measure the predictions of a depth at its targets, with logits chunk by chunk. `draft_vocabulary` holds the ids of
    the tokens that may be drafted, `None` for all.
    """
    is_target = targets != IGNORE_INDEX
    nlls, best = [], torch.full_like(targets, -1)
    best_rows, draft_rows = [], []
    size = chunk_rows(layer.weight)
    for rows, labels in zip(predictions[is_target].split(size), targets[is_target].split(size), strict=True):
        logits = layer(rows)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        # On the CPU, because not every accelerator has float64.
        nlls.append(F.cross_entropy(logits, labels, reduction="none").cpu().double())
        best_rows.append(logits.argmax(-1))
        if draft_vocabulary is not None:
            draft_rows.append(draft_vocabulary[logits[:, draft_vocabulary].argmax(-1)])
    best[is_target] = torch.cat(best_rows)
    draft = best if draft_vocabulary is None else best.masked_scatter(is_target, torch.cat(draft_rows))
    return _DepthMeasurements(torch.cat(nlls), best, draft)
