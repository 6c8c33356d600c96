"""The exact NLL of a text under a model, for several ensembles in one pass."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

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
    A text to score, such as `EvaluationWindows`, `PairBatches` or `MaskedText`. An item has the model's inputs, with
    the labels under `labels_name`; it is a whole batch if the text has a true `is_batched`. `score` reads `num_words`.
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
    The NLL of a text: for each ensemble (values of λ, then weights) the sum over the next-token targets, and for each
    depth without ensemble the mean over its own targets. `num_words` counts words and line breaks.
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
        """Return the mean NLL of an ensemble by `unit`."""
        return self.nll_sums[self.ensembles.index(ensemble)] / self.count(unit)

    def perplexity(self, ensemble: Ensemble, unit: str = "token") -> float:
        """Return the perplexity of an ensemble by `"token"` or, as in the paper, by `"word"`; infinity on overflow."""
        return _exp(self.nll(ensemble, unit))

    def by_lambda(self, unit: str = "token") -> dict[float, float]:
        """Return the perplexity of each λ by `unit`."""
        return {value: self.perplexity(value, unit) for value in self.lambdas}

    def perplexities(self, unit: str = "token") -> list[float]:
        """Return the perplexity of each λ by `unit`, in the order of `lambdas`."""
        return list(self.by_lambda(unit).values())

    @property
    def best_lambda(self) -> float:
        """The λ with the lowest perplexity."""
        return min(self.lambdas, key=self.nll)

    @property
    def best(self) -> Ensemble:
        """The ensemble with the lowest perplexity."""
        return min(self.ensembles, key=self.nll)


@dataclass
class MaskedScores:
    """
    The NLL of the masked tokens of a text, how many of them are the model's most likely prediction, and for each depth
    the mean NLL (`None` without targets) and the number of its targets; those of depth 0 are the masked tokens.
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
        return self.nll_sum / self.num_masked

    @property
    def perplexity(self) -> float:
        return _exp(self.nll)

    @property
    def accuracy(self) -> float:
        return self.num_correct / self.num_masked


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
    """This process's share of a text. Items without targets fill it up, so that all shares have the same length."""

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
    """Return the batches of this process's share of a text, in order, or in a random order that is always the same."""
    if not len(text):
        raise ValueError(NO_TARGETS)
    generator = torch.Generator().manual_seed(0) if shuffles else None
    size = None if getattr(text, "is_batched", False) else batch_size
    return DataLoader(_Share(text), size, shuffle=shuffles, generator=generator)


@torch.no_grad()
def sample_predictions(
    model: "NgramMixin", text: ScoredText, batch_size: int, max_tokens: int
) -> Iterator["NgramPredictions"]:
    """Yield the predictions for random batches, until those of all processes have `max_tokens` targets."""
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
    """
    Compute the exact NLL of a text for several ensembles, values of λ or tuples of N weights, in one pass and in
    evaluation mode. In a distributed run, every process must call this: it scores its share of the items, and all
    return the scores of the whole text. `batch_size` does not matter to a text of batches; `on_batch` is called after
    each batch, such as for a progress bar.
    """
    lambdas = [ensemble for ensemble in ensembles if is_lambda(ensemble)]
    weights = [ensemble for ensemble in ensembles if not is_lambda(ensemble)]
    options = {"ensemble_lambda": lambdas or None, "ensemble_weights": weights or None, "use_cache": False}
    nll_sums, head_nlls, counts = _sums(model, text, batch_size, on_batch, **options)
    means = [total / max(count, 1) for total, count in zip(head_nlls, counts, strict=True)]
    return Scores([*lambdas, *weights], nll_sums, means, int(counts[0]), text.num_words)


def score_masked(
    model: nn.Module, text: ScoredText, batch_size: int, on_batch: Callable[[], None] = lambda: None
) -> MaskedScores:
    """Compute NLL and accuracy at the masked tokens of a text, with the arguments of `score`."""

    def num_correct(batch: dict[str, torch.Tensor], output) -> list[torch.Tensor]:
        is_target = batch["labels"] != IGNORE_INDEX
        # Some backbones return logits of the masked tokens only.
        logits = output.logits if output.logits.ndim == 2 else output.logits[is_target]
        return [(logits.argmax(-1) == batch["labels"][is_target]).sum()]

    nll_sum, head_nlls, counts, correct = _sums(model, text, batch_size, on_batch, num_correct)
    means = [total / count if count else None for total, count in zip(head_nlls, counts, strict=True)]
    return MaskedScores(nll_sum, int(correct), means, [int(count) for count in counts])


@torch.no_grad()
def _sums(
    model: nn.Module,
    text: ScoredText,
    batch_size: int,
    on_batch: Callable[[], None],
    also: Callable[[dict[str, torch.Tensor], Any], list[torch.Tensor]] = lambda batch, output: [],
    **options: Any,
) -> list[Any]:
    """Return the sums over a text of losses, each depth's NLL, its targets, and `also(batch, output)`."""
    totals, device = None, next(model.parameters()).device
    with evaluating(model):
        for batch in batches_of(text, batch_size):
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            # `num_items_in_batch=1` makes the loss a sum.
            output = model(**batch, **options, num_items_in_batch=1)
            counts = output.head_counts.to(sum_dtype(device))
            values = [output.loss, output.head_losses.to(counts.dtype) * counts, counts, *also(batch, output)]
            values = [value.to(counts.dtype) for value in values]
            totals = values if totals is None else [total + value for total, value in zip(totals, values, strict=True)]
            on_batch()
    sums = [sum_over_processes(total).tolist() for total in totals]
    if not sums[2][0]:
        raise ValueError(NO_TARGETS)
    return sums


def _exp(value: float) -> float:
    """Return `exp(value)`; infinity from `value` 700 on, near the overflow."""
    return math.exp(value) if value < 700 else math.inf
