"""A run of one of the training scripts, found again: its model, its figures, its own text."""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase, default_data_collator

from ..backbones.registry import auto_class_of, is_masked
from ..data.errors import InputError
from ..data.masking import MaskedBlocks
from ..data.pair_batches import PairBatches, side_lengths
from ..data.stream import EvaluationWindows, TokenStream, TrainingBlocks, evaluation_windows
from ..data.tokenizer import load_tokenizer
from ..training.clm.arguments import ClmDataArguments
from ..training.common.model import positions
from ..training.common.report import RunResult, describe
from ..training.common.run_folder import SETTINGS, RunFolder
from ..training.common.text_data import TextData, find_block_size, load_splits, tokenize_splits
from ..training.mlm.arguments import MlmDataArguments
from ..training.nmt.arguments import NmtDataArguments
from ..training.nmt.data import load_pairs, tokenize_nmt
from .diagnostics import count_tokens

METRICS = "metrics.json"
# How many rows gradient diversity is measured on, and how many prompts are continued, by how many tokens each.
NUM_ROWS, NUM_PROMPTS = 16, 16
PROMPT_TOKENS, NEW_TOKENS = 32, 48
Arguments = TypeVar("Arguments")


@dataclass
class TrainedRun:
    r"""
    Args:
        folder (`Path`): Where it is.
        settings (`dict[str, Any]`): How it was made: its `run.yaml`.
        splits (`dict[str, dict[str, Any]]`): Its results by split, as in its `metrics.json`.
        model (`PreTrainedModel`): What it trained.
        tokenizer (`PreTrainedTokenizerBase`): The model's.
        result ([`RunResult`]): What is the same for all kinds of runs.
    """

    folder: Path
    settings: dict[str, Any]
    splits: dict[str, dict[str, Any]]
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    result: RunResult

    @property
    def name(self) -> str:
        return self.result.name

    @property
    def has_ensemble(self) -> bool:
        return bool(self.result.head_parameters) and self.result.ensemble_lambda is not None

    def by_lambda(self, split: str, metric: str) -> dict[float, float]:
        """A metric by λ; one without λ as if λ were 0. Empty if the split does not have it."""
        found = self.splits.get(split, {})
        values = found.get(metric)
        if values is None:
            return {}
        if not isinstance(values, list):
            return {0.0: values}
        grid = found.get("perplexity_lambda", found.get("lambda")) if "perplexity" in metric else found["lambda"]
        # JSON has no infinite numbers.
        return {at: math.inf if value is None else value for at, value in zip(grid, values, strict=True)}

    def tried_lambda(self) -> float:
        """The λ that the run chose; if that is none, the best of the others that it tried."""
        if self.result.ensemble_lambda:
            return self.result.ensemble_lambda
        by_lambda = next((found for split in self.splits if (found := self.by_lambda(split, "token_perplexity"))), {})
        others = {value: perplexity for value, perplexity in by_lambda.items() if value > 0}
        return min(others, key=others.get, default=0.0)


@dataclass
class RunText:
    r"""
    A text of a run's own.

    Args:
        predicted (`EvaluationWindows` or `PairBatches`, *optional*): To predict; `None` for a masked language model.
        documents (`list[list[int]]`): Its tokens.
        token_counts (`np.ndarray`, *optional*): How often each token was seen in training, if that can be counted.
        batch (`dict[str, torch.Tensor]`): Some rows of the training data.
        prompts (`list[dict[str, torch.Tensor]]`): What generation can begin with.
    """

    predicted: EvaluationWindows | PairBatches | None
    documents: list[list[int]]
    token_counts: np.ndarray | None
    batch: dict[str, torch.Tensor]
    prompts: list[dict[str, torch.Tensor]]

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.documents))


def find_runs(path: str | Path) -> tuple[list[Path], list[Path]]:
    """The run in a folder and those that `--compare` put inside it, and which of these are not finished."""
    folder = Path(path)
    if not (folder / SETTINGS).is_file():
        raise InputError(
            f"There is no run in {folder}: give the folder that `train_clm.py`, `train_nmt.py` or `train_mlm.py` "
            "left, which has a `run.yaml`."
        )
    if not _is_finished(folder):
        raise InputError(f"The run in {folder} is not finished: start its command again, and it goes on.")
    inside = sorted(child for child in folder.iterdir() if (child / SETTINGS).is_file())
    return [folder, *filter(_is_finished, inside)], [child for child in inside if not _is_finished(child)]


def _is_finished(folder: Path) -> bool:
    return RunFolder(str(folder)).is_trained() and (folder / METRICS).is_file()


def load_run(folder: Path) -> TrainedRun:
    """What a finished run left."""
    try:
        metrics = json.loads((folder / METRICS).read_text(encoding="utf-8"))
        config = AutoConfig.from_pretrained(folder)
        auto_class = auto_class_of(config.is_encoder_decoder, is_masked(config))
        model = auto_class.from_pretrained(folder).eval()
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"The run in {folder} is damaged ({reason}): train it again.") from error
    run_folder = RunFolder(str(folder))
    settings = run_folder.settings()
    result = RunResult(
        **describe(model),
        settings=settings,
        ensemble_lambda=metrics["ensemble_lambda"],
        history=run_folder.history(),
    )
    return TrainedRun(folder, settings, metrics["splits"], model, load_tokenizer(str(folder)), result)


def load_text(run: TrainedRun, split: str, max_tokens: int) -> RunText:
    r"""
    Args:
        run ([`TrainedRun`]): Whose text.
        split (`str`): `"validation"` or `"test"`.
        max_tokens (`int`): Of a longer text, so many tokens.
    """
    if split not in run.splits:
        raise InputError(f"The run in {run.folder} has no {split} set: choose one of {', '.join(run.splits)}.")
    try:
        return (_pairs if run.model.config.is_encoder_decoder else _running_text)(run, split, max_tokens)
    except InputError as error:
        raise InputError(f"The data of the run in {run.folder} cannot be read from here: {error}") from error


def _arguments(kind: type[Arguments], settings: dict[str, Any]) -> Arguments:
    """The options about the data, as the run was given them."""
    return kind(**{field.name: settings[field.name] for field in fields(kind) if field.name in settings})


def _running_text(run: TrainedRun, split: str, max_tokens: int) -> RunText:
    masked = is_masked(run.model.config)
    arguments = _arguments(MlmDataArguments if masked else ClmDataArguments, run.settings)
    data = tokenize_splits(load_splits(arguments, do_train=True), run.tokenizer, arguments, run.settings["seed"])
    data.block_size = find_block_size(run.model, arguments.block_size)
    stream = TokenStream([data.streams[split][:max_tokens].numpy()], num_words=0)
    # A training text that is streamed is not at hand.
    train = data.streams.get("train", stream)
    return RunText(
        predicted=None if masked else evaluation_windows(stream, run.tokenizer, data.block_size, arguments.stride),
        documents=[stream[:].tolist()],
        token_counts=count_tokens(train, run.model.config.vocab_size) if "train" in data.streams else None,
        batch=_rows_of(_blocks(run, data, train, arguments)),
        prompts=[] if masked else _prompts(run.model, stream),
    )


def _blocks(
    run: TrainedRun, data: TextData, train: TokenStream, arguments: ClmDataArguments | MlmDataArguments
) -> TorchDataset:
    if isinstance(arguments, ClmDataArguments):
        return TrainingBlocks(train, data.block_size)
    return MaskedBlocks(train, data.block_size, arguments.masking_for(run.tokenizer), run.settings["seed"])


def _rows_of(blocks: TorchDataset) -> dict[str, torch.Tensor]:
    """The same rows for the same text."""
    places = random.Random(0).sample(range(len(blocks)), min(NUM_ROWS, len(blocks)))
    return default_data_collator([blocks[i] for i in places])


def _prompts(model: PreTrainedModel, stream: TokenStream) -> list[dict[str, torch.Tensor]]:
    """Pieces from all over the text, which leave room for what follows."""
    length = max(1, min(PROMPT_TOKENS, (positions(model) or math.inf) // 2, len(stream)))
    begins = np.linspace(0, len(stream) - length, NUM_PROMPTS).astype(int)
    pieces = [stream[begin : begin + length][None] for begin in sorted(set(begins.tolist()))]
    return [{"input_ids": piece, "attention_mask": torch.ones_like(piece)} for piece in pieces]


def _pairs(run: TrainedRun, split: str, max_tokens: int) -> RunText:
    arguments = _arguments(NmtDataArguments, run.settings)

    def be_quiet(sentence: str) -> None:
        pass

    pairs = load_pairs(arguments, do_train=True, tell=be_quiet)
    pairs = {name: pairs[name] for name in ("train", split)}
    data = tokenize_nmt(pairs, run.tokenizer, run.model, arguments, run.settings["seed"], be_quiet)
    predicted = _first_pairs(data.batches[split], arguments.batch_tokens, max_tokens)
    train = data.batches["train"]
    sources = predicted.rows[:NUM_PROMPTS]["input_ids"]
    return RunText(
        predicted=predicted,
        documents=predicted.rows["labels"][:],
        token_counts=count_tokens(train, run.model.ngram_vocab_size),
        batch={name: tensor[:NUM_ROWS] for name, tensor in train[len(train) // 2].items()},
        prompts=[{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in map(_row, sources)],
    )


def _row(tokens: Sequence[int]) -> torch.LongTensor:
    return torch.tensor([tokens])


def _first_pairs(batches: PairBatches, batch_tokens: int, max_tokens: int) -> PairBatches:
    """The first pairs, as many as have so many target tokens, and one at least."""
    totals = side_lengths(batches.rows)[:, 1].cumsum()
    count = max(1, int(np.searchsorted(totals, max_tokens, side="right")))
    if count >= len(batches.rows):
        return batches
    return PairBatches(batches.rows.select(range(count)), batch_tokens, batches.pad_token_id)
