"""The exact NLL of a text under a model, for several ensembles in one pass."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, Dataset

from ..method.documents import IGNORE_INDEX
from ..method.ensemble import Ensemble, is_lambda
from ..method.heads import NgramPredictions

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


@dataclass
class Scores:
    """
    The NLL of a text: for each ensemble (values of λ, then weights) the sum over the next-token targets, and for each
    depth without ensemble the mean over its targets (`None` without any). `num_words` counts words and line breaks.
    """

    ensembles: list[Ensemble]
    nll_sums: list[float]
    head_nlls: list[float | None]
    num_tokens: int
    num_words: int

    def nll(self, ensemble: Ensemble, unit: str = "token") -> float:
        """Return the mean NLL of an ensemble by `"token"` or, as in the paper, by `"word"`."""
        count = {"word": self.num_words, "token": self.num_tokens}[unit]
        return self.nll_sums[self.ensembles.index(ensemble)] / count

    def perplexity(self, ensemble: Ensemble, unit: str = "token") -> float:
        """Return the perplexity of an ensemble by `unit`; infinity on overflow."""
        return _exp(self.nll(ensemble, unit))

    def by_lambda(self, unit: str = "token") -> dict[float, float]:
        """Return the perplexity of each λ by `unit`."""
        return {value: self.perplexity(value, unit) for value in filter(is_lambda, self.ensembles)}

    @property
    def best_lambda(self) -> float:
        """The λ with the lowest perplexity."""
        return min(filter(is_lambda, self.ensembles), key=self.nll)


@dataclass
class MaskedScores:
    """The accuracy at masked tokens; by depth, the mean NLL (`None` without targets) and the number of targets."""

    accuracy: float
    head_nlls: list[float | None]
    head_counts: list[int]

    @property
    def nll(self) -> float:
        return self.head_nlls[0]

    @property
    def perplexity(self) -> float:
        return _exp(self.nll)


def _exp(value: float) -> float:
    """Return `exp(value)`; infinity from `value` 700 on, near the overflow."""
    return math.exp(value) if value < 700 else math.inf


def by_kind(ensembles: Iterable[Ensemble]) -> list[Ensemble]:
    """Return the ensembles in the order of their scores: values of λ, then weights, both sorted."""
    return sorted(ensembles, key=lambda ensemble: (not is_lambda(ensemble), ensemble))


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
    nll_sums, head_nlls, counts, _ = _score(model, text, batch_size, on_batch, **options)
    return Scores([*lambdas, *weights], nll_sums, head_nlls, counts[0], text.num_words)


def score_masked(
    model: nn.Module, text: ScoredText, batch_size: int, on_batch: Callable[[], None] = lambda: None
) -> MaskedScores:
    """Compute NLL and accuracy at the masked tokens of a text, with the arguments of `score`."""
    _, head_nlls, counts, num_correct = _score(model, text, batch_size, on_batch, is_masked=True)
    return MaskedScores(num_correct / counts[0], head_nlls, counts)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set all modules to evaluation mode in the `with` block, and restore every module's mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@torch.no_grad()
def _score(
    model: nn.Module, text: ScoredText, batch_size: int, on_batch: Callable, is_masked: bool = False, **options: Any
) -> tuple[list[float], list[float | None], list[int], int]:
    """Return the sums of losses, each depth's mean NLL and number of targets, and how many masked tokens are right."""
    totals, device, num_correct = 0, next(model.parameters()).device, torch.tensor(0)
    with evaluating(model):
        for batch in batches_of(text, batch_size):
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            # `num_items_in_batch=1` makes the loss a sum.
            output = model(**batch, **options, num_items_in_batch=1)
            counts = output.head_counts.to(sum_dtype(device))
            if is_masked:
                is_target = batch["labels"] != IGNORE_INDEX
                # Some backbones return logits of the masked tokens only.
                logits = output.logits if output.logits.ndim == 2 else output.logits[is_target]
                num_correct = (logits.argmax(-1) == batch["labels"][is_target]).sum()
            parts = [output.loss.view(-1), output.head_losses * counts, counts, num_correct.view(1)]
            totals = totals + torch.cat([part.to(counts) for part in parts])
            on_batch()
    losses, head_sums, counts, num_correct = sum_over_processes(totals).split([len(part) for part in parts])
    if not counts[0]:
        raise ValueError(NO_TARGETS)
    means = [float(total / count) if count else None for total, count in zip(head_sums, counts, strict=True)]
    return losses.tolist(), means, counts.long().tolist(), int(num_correct)


@torch.no_grad()
def sample_predictions(
    model: nn.Module, text: ScoredText, batch_size: int, max_tokens: int
) -> Iterator[NgramPredictions]:
    """Yield the predictions for random batches, until those of all processes have `max_tokens` targets."""
    num_tokens, num_processes = 0, processes()[1]
    with evaluating(model):
        for batch in batches_of(text, batch_size, shuffles=True):
            predictions = model.ngram_predictions(**{name: tensor.to(model.device) for name, tensor in batch.items()})
            yield predictions
            num_tokens += int((predictions.targets[0] != IGNORE_INDEX).sum())
            if num_tokens * num_processes >= max_tokens:
                break


def batches_of(text: ScoredText, batch_size: int, shuffles: bool = False) -> Iterable[dict[str, torch.Tensor]]:
    """Return the batches of this process's share of a text, in order, or in a random order that is always the same."""
    if not len(text):
        raise ValueError(NO_TARGETS)
    generator = torch.Generator().manual_seed(0) if shuffles else None
    size = None if getattr(text, "is_batched", False) else batch_size
    return DataLoader(_Share(text, *processes()), size, shuffle=shuffles, generator=generator)


@dataclass
class _Share(Dataset):
    """This process's share of a text. Items without targets fill it up, so that all shares have the same length."""

    text: ScoredText
    process_index: int
    num_processes: int

    def __len__(self) -> int:
        return -(-len(self.text) // self.num_processes)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        i = i * self.num_processes + self.process_index
        if i < len(self.text):
            return self.text[i]
        item, name = self.text[0], self.text.labels_name
        return {**item, name: torch.full_like(item[name], IGNORE_INDEX)}


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
