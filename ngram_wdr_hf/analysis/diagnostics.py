"""What each head knows, how often its drafts stand, and where the ensemble helps: from one pass over a text."""

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
from ..decoding.statistics import SpeculationStatistics
from ..evaluation.modes import evaluating
from ..method.documents import IGNORE_INDEX
from ..method.logits import LogitLayer
from ..method.loss import chunk_rows
from ..training.common.model import positions
from .gain_bins import FREQUENCIES, PLACES, GainBin, GainTally, Places

# A sentence ends with these, and with what closes a quotation or a bracket after them.
SENTENCE_END = re.compile(r"""\s*[.!?]+["'”’»)\]]*\s*""")


@dataclass
class HeadDiagnostics:
    r"""
    What a text tells about a model. Depth 0 is the next word, depth n what head n says.

    Args:
        ensemble_lambda (`float`): The λ whose gains these are.
        num_targets (`list[int]`): For each depth, how many tokens of the text it predicts.
        nlls (`list[float]`): For each depth, the mean NLL of these tokens.
        accuracies (`list[float]`): For each depth, how many of them it takes for the likeliest.
        num_drafts (`list[int]`): For each head, at how many places all drafts before its own stood.
        num_accepted (`list[int]`): For each head, at how many of these its own stood, too.
        gain ([`GainBin`]): The ensemble's, on all tokens.
        gain_by_place (`list[GainBin]`): By the token's place in its sentence, from 1 on; without empty bins.
        gain_by_frequency (`list[GainBin]`): By how often the token was seen; without empty bins.
    """

    ensemble_lambda: float
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
        """For each depth, by token."""
        return [math.exp(min(nll, 700.0)) for nll in self.nlls]

    @property
    def acceptance(self) -> list[float]:
        """For each head, how often its draft stands if all before it do."""
        return [a / d if d else 0.0 for a, d in zip(self.num_accepted, self.num_drafts, strict=True)]

    @property
    def tokens_per_pass(self) -> float:
        """What a forward pass would bring with drafts by all heads: one token, and those that stand."""
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
) -> HeadDiagnostics:
    r"""
    Reads a text once, and finds for every depth how well it predicts, how often its greedy drafts stand, and where the
    ensemble gains. The figures are those of the model's own evaluation: `nlls` are its `head_losses`.

    A draft stands if it is what the model, with its own λ, says at that place. Drafts are chained as in
    `generate(use_mtp=True)`, head n's made with the n words before it, of which the first is the text's and the others
    are drafts. What the model would say after a draft is known where the text goes on with it: so head n is judged at
    the places where all drafts before its own stood and are the text's words.

    Args:
        model (`PreTrainedModel`): With N-gram heads, or without: then there is depth 0 alone.
        text (`EvaluationWindows` or `PairBatches`): Running text, or the sentence pairs of an encoder-decoder model.
        ensemble_lambda (`float`, *optional*): The λ whose gain is measured; the model's own by default.
        sentence_ends (`Collection[int]`, *optional*):
            In running text, the tokens after which a sentence begins, as [`find_sentence_ends`] finds them. Without
            any, places are counted from the beginning of the text. Of a pair, the target is one sentence.
        token_counts (`Sequence[int]`, *optional*):
            How often each token of the vocabulary was seen in training ([`count_tokens`]); in `text`, by default.
        batch_size (`int`, *optional*, defaults to 8): Windows at a time; of `PairBatches`, an item is a batch.
        on_batch (`Callable`, *optional*): Called after each batch.
    """
    if not hasattr(model, "ngram_lambda"):
        raise ValueError(
            f"Head diagnostics are for this package's models that predict the next word, and this is a "
            f"{type(model).__name__}: make one with `with_ngram_heads`."
        )
    if not isinstance(text, (EvaluationWindows, PairBatches)):
        raise ValueError(
            "Head diagnostics read `EvaluationWindows(TokenStream([ids], num_words), window_size)` of running text, "
            f"or the `PairBatches` of an encoder-decoder model: not a {type(text).__name__}."
        )
    if not len(text):
        raise ValueError("The text has no token to predict: give a longer one.")
    ensemble_lambda = model.ngram_lambda(ensemble_lambda)
    vocab_size = model.ngram_vocab_size
    counts = torch.as_tensor(count_tokens(text, vocab_size) if token_counts is None else token_counts)
    if counts.shape != (vocab_size,):
        raise ValueError(
            f"`token_counts` must have one count for each of the {vocab_size} tokens, got the shape "
            f"{tuple(counts.shape)}."
        )
    num_targets = nll_sums = num_right = num_drafts = num_accepted = 0
    gain, by_place, by_frequency = GainTally((0,)), GainTally(PLACES), GainTally(FREQUENCIES)
    places = Places(sentence_ends, isinstance(text, PairBatches))
    for batch in DataLoader(text, batch_size if isinstance(text, EvaluationWindows) else None):
        with evaluating(model):
            judged = _judge(model, {name: tensor.to(model.device) for name, tensor in batch.items()}, ensemble_lambda)
        num_targets = num_targets + judged.num_targets
        nll_sums = nll_sums + judged.nll_sums
        num_right = num_right + judged.num_right
        num_drafts = num_drafts + judged.num_drafts
        num_accepted = num_accepted + judged.num_accepted
        is_target = judged.targets != IGNORE_INDEX
        gain.add(judged.gains, torch.zeros_like(judged.targets[is_target]))
        by_place.add(judged.gains, places.of(judged.targets, is_target))
        by_frequency.add(judged.gains, counts[judged.targets[is_target]])
        on_batch()
    return HeadDiagnostics(
        ensemble_lambda=ensemble_lambda,
        num_targets=num_targets.tolist(),
        nlls=(nll_sums / num_targets.clamp(min=1)).tolist(),
        accuracies=(num_right.double() / num_targets.clamp(min=1)).tolist(),
        num_drafts=num_drafts.tolist(),
        num_accepted=num_accepted.tolist(),
        gain=replace(gain.bins()[0], label="all"),
        gain_by_place=by_place.bins(),
        gain_by_frequency=by_frequency.bins(),
    )


def draft_statistics(
    model: PreTrainedModel, prompts: Iterable[Mapping[str, torch.Tensor]], max_new_tokens: int = 48
) -> SpeculationStatistics:
    r"""
    What the heads bring in real greedy generation if all of them draft at every step, and nothing is copied.

    Args:
        model (`PreTrainedModel`): With N-gram heads.
        prompts (`Iterable[Mapping[str, torch.Tensor]]`): What `generate` is called with, each of one row.
        max_new_tokens (`int`, *optional*, defaults to 48):
            How many tokens each is continued by, at most; fewer where the model cannot see so many.
    """
    total = SpeculationStatistics()
    for prompt in prompts:
        length = 1 if model.config.is_encoder_decoder else prompt["input_ids"].shape[1]
        with evaluating(model):
            found = model.generate(
                **prompt,
                # The model's own limit beside another one is worth a warning to Transformers.
                max_length=None,
                max_new_tokens=min(max_new_tokens, (positions(model) or math.inf) - length),
                do_sample=False,
                num_beams=1,
                use_mtp=True,
                draft_threshold=0.0,
                prompt_lookup_num_tokens=0,
                return_dict_in_generate=True,
            ).speculation
        total = SpeculationStatistics(
            num_tokens=total.num_tokens + found.num_tokens,
            num_forwards=total.num_forwards + found.num_forwards,
            num_row_forwards=total.num_row_forwards + found.num_row_forwards,
            num_drafted=_add(total.num_drafted, found.num_drafted),
            num_accepted=_add(total.num_accepted, found.num_accepted),
        )
    return total


def _add(ones: list[int], others: list[int]) -> list[int]:
    return [one + other for one, other in itertools.zip_longest(ones, others, fillvalue=0)]


def count_tokens(text: TokenStream | EvaluationWindows | PairBatches, vocab_size: int) -> np.ndarray:
    """How often each token stands in running text, or in the targets of sentence pairs: `(vocab_size,)`."""
    if isinstance(text, EvaluationWindows):
        text = text.stream
    counts = np.zeros(vocab_size, dtype=np.int64)
    for piece in text.target_tokens() if isinstance(text, PairBatches) else text.pieces:
        counts += np.bincount(piece, minlength=vocab_size)
    return counts


def find_sentence_ends(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """
    The tokens after which a sentence begins: the end of a text, a line break, and `.`, `!` or `?` with what may close
    a quotation or a bracket after it. (`Mr.` as one word ends none; the point in `3.5` does if it is a token.)
    """
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    is_end = ["\n" in text or SENTENCE_END.fullmatch(text) is not None for text in texts]
    return [token for token in range(len(texts)) if is_end[token] or token == tokenizer.eos_token_id]


class _Judged(NamedTuple):
    """
    Of one batch: for every depth the number of targets, the sum of their NLLs and how many are right, for every head
    its drafts and how many stand; the next tokens, `(batch_size, T)`, and the gain on each that is a target.
    """

    num_targets: torch.Tensor
    nll_sums: torch.Tensor
    num_right: torch.Tensor
    num_drafts: torch.Tensor
    num_accepted: torch.Tensor
    targets: torch.LongTensor
    gains: torch.Tensor


def _judge(model: PreTrainedModel, batch: dict[str, torch.Tensor], ensemble_lambda: float) -> _Judged:
    own_lambda = model.ngram_lambda()
    predictions = model.ngram_predictions(**batch)
    targets = predictions.targets
    layer, draft_vocabulary = LogitLayer.of(model), model.ngram_draft_vocabulary()
    by_lambda = {
        value: _look_at(layer, predictions.ensemble(value), targets[0]) for value in {0.0, own_lambda, ensemble_lambda}
    }
    by_head = [
        _look_at(layer, *pair, draft_vocabulary) for pair in zip(predictions.embeddings[1:], targets[1:], strict=True)
    ]
    by_depth = [by_lambda[0.0], *by_head]
    num_drafts, num_accepted = _chain([looked.draft for looked in by_head], by_lambda[own_lambda].best, targets)
    return _Judged(
        num_targets=torch.tensor([len(looked.nlls) for looked in by_depth]),
        nll_sums=torch.stack([looked.nlls.sum() for looked in by_depth]),
        num_right=torch.stack(
            [(looked.best == target).sum().cpu() for looked, target in zip(by_depth, targets, strict=True)]
        ),
        num_drafts=torch.tensor(num_drafts, dtype=torch.long),
        num_accepted=torch.tensor(num_accepted, dtype=torch.long),
        targets=targets[0].cpu(),
        gains=by_lambda[0.0].nlls - by_lambda[ensemble_lambda].nlls,
    )


class _Looked(NamedTuple):
    """The NLLs of the targets, in float64; the likeliest token of all, and of those to draft, -1 without a target."""

    nlls: torch.Tensor
    best: torch.LongTensor
    draft: torch.LongTensor


def _look_at(
    layer: LogitLayer,
    predictions: torch.Tensor,
    targets: torch.LongTensor,
    draft_vocabulary: torch.LongTensor | None = None,
) -> _Looked:
    """Goes over the targets' logits, a few rows at a time."""
    is_target = targets != IGNORE_INDEX
    nlls, best = [], torch.full_like(targets, -1)
    best_rows, draft_rows = [], []
    size = chunk_rows(layer.weight)
    for rows, wanted in zip(predictions[is_target].split(size), targets[is_target].split(size), strict=True):
        logits = layer(rows)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        # Sums over a long text need the digits, which not every accelerator has.
        nlls.append(F.cross_entropy(logits, wanted, reduction="none").cpu().double())
        best_rows.append(logits.argmax(-1))
        if draft_vocabulary is not None:
            draft_rows.append(draft_vocabulary[logits[:, draft_vocabulary].argmax(-1)])
    best[is_target] = torch.cat(best_rows)
    draft = best if draft_vocabulary is None else best.masked_scatter(is_target, torch.cat(draft_rows))
    return _Looked(torch.cat(nlls), best, draft)


def _chain(
    drafts: list[torch.LongTensor], said: torch.LongTensor, targets: list[torch.LongTensor]
) -> tuple[list[int], list[int]]:
    """For each head how many of its drafts came after drafts that stood, and how many of them stood themselves."""
    num_drafts, num_accepted = [], []
    stood = torch.ones_like(said, dtype=torch.bool)
    for n, draft in enumerate(drafts, start=1):
        # Column t is about the drafts that were made at time t: head n's is for the word after time t + n.
        length = draft.shape[1]
        is_judged = stood[:, :length] & (targets[n] != IGNORE_INDEX)
        stands = is_judged & (draft == said[:, n:])
        num_drafts.append(int(is_judged.sum()))
        num_accepted.append(int(stands.sum()))
        stood = stands & (draft == targets[n])
    return num_drafts, num_accepted
