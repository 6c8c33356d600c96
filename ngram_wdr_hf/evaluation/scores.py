"""The exact NLL of a text under a model, for several ensembles in one pass."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, Dataset

from ..method.documents import IGNORE_INDEX
from ..method.ensemble import Ensemble, is_lambda
from .modes import evaluating

if TYPE_CHECKING:
    from ..method.heads import NgramPredictions
    from ..modeling.causal import NgramMixin

# A mean over no targets would be 0, and the perplexity a perfect 1.
NO_TARGETS = "`text` has no targets, so it has no perplexity: give a longer text."


class ScoredText(Protocol):
    """
    A text to score, such as `EvaluationWindows`, `EvaluationRows`, `PairBatches` or `MaskedText`. An item is a
    dictionary of the model's inputs, with the labels under `labels_name`. If `is_batched` is true, an item is a whole
    batch; a text without this attribute has single items. `score` also reads `num_words`.
    """

    labels_name: str

    def __len__(self) -> int: ...

    def __getitem__(self, i: int, /) -> dict[str, torch.Tensor]: ...


def by_kind(ensembles: Iterable[Ensemble]) -> list[Ensemble]:
    """Return the ensembles in the order of their scores: values of λ, then weights, both sorted."""
    return sorted(ensembles, key=lambda ensemble: (not is_lambda(ensemble), ensemble))


@dataclass
class Scores:
    """
    The NLL of a text under a model.

    Args:
        ensembles (`list[Ensemble]`): The ensembles: values of λ, then weights.
        nll_sums (`list[float]`): For each ensemble, the sum of its next-token NLLs over the text.
        head_nlls (`list[float]`): The mean NLL of each depth over its own targets; depth 0 is the next-token
            prediction with λ = 0.
        num_tokens (`int`): Number of next-token targets.
        num_words (`int`): Number of words and line breaks, equal to `num_tokens` for a word tokenizer.
    """

    ensembles: list[Ensemble]
    nll_sums: list[float]
    head_nlls: list[float]
    num_tokens: int
    num_words: int

    def count(self, unit: str) -> int:
        """Return the number of units, `"word"` or `"token"`."""
        return {"word": self.num_words, "token": self.num_tokens}[unit]

    @property
    def lambdas(self) -> list[float]:
        """The values of λ among the ensembles."""
        return [ensemble for ensemble in self.ensembles if is_lambda(ensemble)]

    def nll(self, ensemble: Ensemble, unit: str = "token") -> float:
        """Return the mean NLL of an ensemble by `unit`. Raise a `ValueError` if it was not evaluated."""
        return _mean(self.nll_sums[self.ensembles.index(ensemble)], self.count(unit))

    def perplexity(self, ensemble: Ensemble, unit: str = "token") -> float:
        """Return the perplexity of an ensemble by `"token"` or, as in the paper, by `"word"`; infinity on overflow."""
        return _exp(self.nll(ensemble, unit))

    def perplexities(self, unit: str = "token") -> list[float]:
        """Return the perplexity of each λ by `unit`, in the order of `lambdas`."""
        return [self.perplexity(value, unit) for value in self.lambdas]

    def by_lambda(self, unit: str = "token") -> dict[float, float]:
        """Return the perplexities by `unit` as a dictionary, with λ as the key."""
        return dict(zip(self.lambdas, self.perplexities(unit), strict=True))

    @property
    def best_lambda(self) -> float:
        """The λ with the lowest perplexity; of equal ones, the first in `lambdas`."""
        return min(self.lambdas, key=self.nll)

    @property
    def best(self) -> Ensemble:
        """The ensemble with the lowest perplexity; of equal ones, the first in `ensembles`."""
        return min(self.ensembles, key=self.nll)


@dataclass
class MaskedScores:
    """
    The NLL of the masked tokens of a text under a masked language model.

    Args:
        nll_sum (`float`): The sum of the masked tokens' NLLs.
        num_correct (`int`): Number of masked tokens that are the model's most likely prediction.
        head_nlls (`list[float | None]`):
            The mean NLL of each depth over its own targets; `None` if it has none.
        head_counts (`list[int]`): Number of targets of each depth; those of depth 0 are the masked tokens.
    """

    nll_sum: float
    num_correct: int
    head_nlls: list[float | None]
    head_counts: list[int]

    @property
    def num_masked(self) -> int:
        return self.head_counts[0]

    @property
    def nll(self) -> float:
        """The mean NLL of the masked tokens."""
        return _mean(self.nll_sum, self.num_masked)

    @property
    def perplexity(self) -> float:
        return _exp(self.nll)

    @property
    def accuracy(self) -> float:
        return _mean(self.num_correct, self.num_masked)


def processes() -> tuple[int, int]:
    """Return the index of this process and the number of processes; 0 and 1 without `torch.distributed`."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def sum_over_processes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of a tensor, on the model's device, over all processes."""
    if processes()[1] > 1:
        distributed.all_reduce(tensor)
    return tensor


def sum_dtype(device: torch.device) -> torch.dtype:
    """Return the type for sums: float64, or float32 on Apple's GPUs, which lack it."""
    return torch.float32 if device.type == "mps" else torch.float64


class _Share(Dataset):
    """
    This process's share of a text, every n-th item with n processes. Items without targets fill it up, so that all
    shares have the same length.
    """

    def __init__(self, text: ScoredText):
        self.text = text
        self.process_index, self.num_processes = processes()

    def __len__(self) -> int:
        return -(-len(self.text) // self.num_processes)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        i = i * self.num_processes + self.process_index
        if i < len(self.text):
            return self.text[i]
        item, name = self.text[0], self.text.labels_name
        return {**item, name: torch.full_like(item[name], IGNORE_INDEX)}


def batches_of(text: ScoredText, batch_size: int, shuffles: bool = False) -> Iterable[dict[str, torch.Tensor]]:
    """
    Return the batches of this process's share of a text, in order, or with `shuffles` in a random order, always the
    same. The items of a text with `is_batched`, such as `PairBatches`, are batches already.
    """
    generator = torch.Generator().manual_seed(0) if shuffles else None
    size = None if getattr(text, "is_batched", False) else batch_size
    return DataLoader(_Share(text), size, shuffle=shuffles, generator=generator)


@torch.no_grad()
def sample_predictions(
    model: "NgramMixin", text: ScoredText, batch_size: int, max_tokens: int
) -> Iterator["NgramPredictions"]:
    """
    Iterate over the predictions for random batches of this process's share of a text, in evaluation mode, until they
    have its share of `max_tokens` targets.
    """
    num_tokens, num_processes = 0, processes()[1]
    with evaluating(model):
        for batch in batches_of(text, batch_size, shuffles=True):
            predictions = model.ngram_predictions(**{name: tensor.to(model.device) for name, tensor in batch.items()})
            yield predictions
            num_tokens += int((predictions.targets[0] != IGNORE_INDEX).sum())
            if num_tokens * num_processes >= max_tokens:
                break


def score(
    model: nn.Module,
    text: ScoredText,
    ensembles: Sequence[Ensemble],
    batch_size: int,
    on_batch: Callable[[], None] = lambda: None,
) -> Scores:
    r"""
    Compute the exact NLL of a text for several ensembles in one pass, in evaluation mode. In a distributed run, every
    process must call this: it scores its share of the items, and all return the scores of the whole text.

    Args:
        model (`nn.Module`): A model with N-gram heads, possibly wrapped for several processes.
        text (`EvaluationWindows` or `PairBatches`): The text.
        ensembles (`Sequence[Ensemble]`): The ensembles, values of λ or tuples of N weights.
        batch_size (`int`): Windows per batch; ignored for `PairBatches`, whose items are batches.
        on_batch (`Callable`, *optional*): Function called after each batch, such as for a progress bar.
    """
    lambdas = [ensemble for ensemble in ensembles if is_lambda(ensemble)]
    weights = [ensemble for ensemble in ensembles if not is_lambda(ensemble)]
    options = {"ensemble_lambda": lambdas or None, "ensemble_weights": weights or None}

    def sums_of(batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        # `num_items_in_batch=1` makes the loss a sum.
        output = model(**batch, **options, num_items_in_batch=1, use_cache=False)
        return [output.loss, *_head_sums(output)]

    sums, head_sums, head_counts = _sum_over_batches(model, text, batch_size, sums_of, on_batch)
    return Scores(
        ensembles=[*lambdas, *weights],
        nll_sums=sums.tolist(),
        head_nlls=(head_sums / head_counts.clamp(min=1)).tolist(),
        num_tokens=int(head_counts[0]),
        num_words=text.num_words,
    )


def score_masked(
    model: nn.Module, text: ScoredText, batch_size: int, on_batch: Callable[[], None] = lambda: None
) -> MaskedScores:
    """Compute NLL and accuracy at the masked tokens of a text, with the arguments of `score`."""

    def sums_of(batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        output = model(**batch, num_items_in_batch=1)
        is_target = batch["labels"] != IGNORE_INDEX
        # Some backbones return logits of the masked tokens only.
        logits = output.logits if output.logits.ndim == 2 else output.logits[is_target]
        num_correct = (logits.argmax(-1) == batch["labels"][is_target]).sum()
        return [output.loss, num_correct, *_head_sums(output)]

    sums = _sum_over_batches(model, text, batch_size, sums_of, on_batch)
    nll_sum, num_correct, head_sums, head_counts = (total.tolist() for total in sums)
    return MaskedScores(
        nll_sum=nll_sum,
        num_correct=int(num_correct),
        head_nlls=[total / count if count else None for total, count in zip(head_sums, head_counts, strict=True)],
        head_counts=[int(count) for count in head_counts],
    )


def _head_sums(output) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the NLL sum of each depth, and its number of targets."""
    counts = output.head_counts.to(sum_dtype(output.head_counts.device))
    return output.head_losses.to(counts.dtype) * counts, counts


@torch.no_grad()
def _sum_over_batches(
    model: nn.Module,
    text: ScoredText,
    batch_size: int,
    sums_of: Callable[[dict[str, torch.Tensor]], list[torch.Tensor]],
    on_batch: Callable[[], None],
) -> list[torch.Tensor]:
    """Sum each tensor that `sums_of` returns for a batch, over all batches and processes, in evaluation mode."""
    device = next(model.parameters()).device
    totals = None
    with evaluating(model):
        for batch in batches_of(text, batch_size):
            values = sums_of({name: tensor.to(device) for name, tensor in batch.items()})
            sums = [value.to(sum_dtype(device)) for value in values]
            totals = sums if totals is None else [total + value for total, value in zip(totals, sums, strict=True)]
            on_batch()
    if totals is None:
        raise ValueError(NO_TARGETS)
    return [sum_over_processes(total).cpu() for total in totals]


def _mean(total: float, count: int) -> float:
    if not count:
        raise ValueError(NO_TARGETS)
    return total / count


def _exp(value: float) -> float:
    """Return `exp(value)`; infinity from `value` 700 on, near the overflow."""
    return math.exp(value) if value < 700 else math.inf
