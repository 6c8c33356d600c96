"""A finished run of a training script: its model, results and text."""

import json
import math
import random
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
from ..data.rows import RowStore
from ..data.token_stream import EvaluationWindows, TokenStream, TrainingBlocks, evaluation_windows
from ..data.tokenizers import load_tokenizer
from ..evaluation.drafting import row_prompts, text_prompts
from ..method.ensemble import Ensemble
from ..training.clm.arguments import ClmDataArguments
from ..training.clm.data import ClmData
from ..training.common.report import RunResult, describe
from ..training.common.run_folder import METRICS, SELF_GENERATED, SETTINGS, RunFolder
from ..training.common.text_data import TextData, find_block_size, load_splits, tokenize_splits
from ..training.mlm.arguments import MlmDataArguments
from ..training.nmt.arguments import NmtDataArguments
from ..training.nmt.data import load_pairs, tokenize_nmt
from .diagnostics import count_tokens

# Rows for gradient diversity; prompts for generation, and the new tokens after each.
NUM_ROWS, NUM_PROMPTS = 16, 16
NEW_TOKENS = 48
Arguments = TypeVar("Arguments")


@dataclass
class TrainedRun:
    r"""
    A finished run.

    Args:
        folder (`Path`): The run's folder.
        settings (`dict[str, Any]`): The settings in its `run.yaml`.
        splits (`dict[str, dict[str, Any]]`): The results by split in its `metrics.json`.
        model (`PreTrainedModel`): The trained model.
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
        result ([`RunResult`]): The results common to all tasks.
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
        return bool(self.result.head_parameters) and self.result.ensemble is not None

    def by_lambda(self, split: str, metric: str) -> dict[float, float]:
        """
        Return a metric of a split by λ; a metric that does not depend on λ has the key 0. Empty if there is no such
        split or metric.
        """
        metrics = self.splits.get(split, {})
        values = metrics.get(metric)
        if values is None:
            return {}
        if not isinstance(values, list):
            return {0.0: values}
        grid = metrics.get("perplexity_lambda", metrics.get("lambda")) if "perplexity" in metric else metrics["lambda"]
        # JSON has no infinity: it is stored as null.
        return {at: math.inf if value is None else value for at, value in zip(grid, values, strict=True)}

    def by_ensemble(self, split: str, metric: str) -> dict[str, float]:
        """Return a metric of a split by the heading of the ensemble; empty if the run did not compare ensembles."""
        figures = self.splits.get(split, {}).get("ensembles", {})
        return {name: values[metric] for name, values in figures.items() if values.get(metric) is not None}

    def tried_ensemble(self) -> Ensemble:
        """
        Return the ensemble that the run chose; if that is λ = 0, the evaluated λ above 0 with the lowest perplexity. 0
        if there is none.
        """
        if self.result.ensemble:
            return self.result.ensemble
        by_lambda = next(
            (values for split in self.splits if (values := self.by_lambda(split, "token_perplexity"))), {}
        )
        positive = {value: perplexity for value, perplexity in by_lambda.items() if value > 0}
        return min(positive, key=positive.get, default=0.0)


@dataclass
class RunText:
    r"""
    A split of a run's data, prepared for the analyses.

    Args:
        predicted (`EvaluationWindows` or `PairBatches`, *optional*): The text to predict; `None` for a masked
            language model.
        documents (`list[list[int]]`): The token ids of each document: the whole running text, or each target sentence.
        token_counts (`np.ndarray`, *optional*): Count of each token in the training text; `None` if it is streamed.
        batch (`dict[str, torch.Tensor]`): A batch of the training data; of the split, if the training text is
            streamed.
        prompts (`list[dict[str, torch.Tensor]]`): Prompts for generation, each of one row; empty for a masked language
            model.
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
    """
    Return the folders of a run and its finished `--compare` runs, the run first, and those of the unfinished ones.
    Raise an `InputError` if `path` holds no finished run.
    """
    folder = Path(path)
    if not (folder / SETTINGS).is_file():
        raise InputError(
            f"{folder} has no `run.yaml`: choose the output folder of `ngram-wdr clm`, `ngram-wdr nmt` or "
            "`ngram-wdr mlm`."
        )
    run = RunFolder(folder)
    if "task" in run.settings():
        raise InputError(
            f"The run in {folder} is one of `ngram-wdr glue`, which have no report: choose the output folder of "
            "`ngram-wdr clm`, `ngram-wdr nmt` or `ngram-wdr mlm`."
        )
    if (damage := run.damage()) is not None:
        raise InputError(f"The model in {folder} {damage}: correct that, or train it again.")
    if not _is_finished(folder):
        raise InputError(f"The run in {folder} is not finished: start its command again to resume it.")
    compared = sorted(child for child in folder.iterdir() if (child / SETTINGS).is_file())
    return [folder, *filter(_is_finished, compared)], [child for child in compared if not _is_finished(child)]


def _is_finished(folder: Path) -> bool:
    return RunFolder(str(folder)).is_trained() and (folder / METRICS).is_file()


def load_run(folder: Path) -> TrainedRun:
    """
    Load a finished run from its folder, with its model in evaluation mode. Raise an `InputError` if a file is damaged.
    """
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
        ensemble=tuple(weights) if (weights := metrics.get("ensemble_weights")) else metrics["ensemble_lambda"],
        history=run_folder.history(),
    )
    return TrainedRun(folder, settings, metrics["splits"], model, load_tokenizer(str(folder)), result)


def load_text(run: TrainedRun, split: str, max_tokens: int) -> RunText:
    r"""
    Load a split of the run's data, as its settings name it; relative paths start at the current directory. Raise an
    `InputError` if the run has no such split, or its data cannot be loaded.

    Args:
        run ([`TrainedRun`]): The run.
        split (`str`): `"validation"` or `"test"`.
        max_tokens (`int`): Maximum number of tokens, from the start of the split; of pairs, target tokens.
    """
    if split not in run.splits:
        raise InputError(
            f"`--split {split}` is not in the run in {run.folder}: choose one of {', '.join(run.splits)}."
        )
    try:
        return (_pairs if run.model.config.is_encoder_decoder else _running_text)(run, split, max_tokens)
    except InputError as error:
        raise InputError(
            f"The data of the run in {run.folder} cannot be loaded; start in the directory where it was trained: "
            f"{error}"
        ) from error


def _arguments(kind: type[Arguments], settings: dict[str, Any]) -> Arguments:
    """Return the data options of a run, of the class `kind`, from its settings; others keep their defaults."""
    return kind(**{field.name: settings[field.name] for field in fields(kind) if field.name in settings})


def _running_text(run: TrainedRun, split: str, max_tokens: int) -> RunText:
    masked = is_masked(run.model.config)
    arguments = _arguments(MlmDataArguments if masked else ClmDataArguments, run.settings)
    writes_text = not masked and arguments.self_generated is not None
    splits = load_splits(arguments, do_train=True, writes_text=writes_text)
    data = tokenize_splits(splits, run.tokenizer, arguments, run.settings["seed"])
    if writes_text:
        data.streams = {**_own_text(run, data, arguments), **data.streams}
    data.block_size = find_block_size(run.model, arguments.block_size)
    stream = TokenStream(data.streams[split].ids[:max_tokens], num_words=0)
    # A streamed training text is not available.
    train = data.streams.get("train", stream)
    return RunText(
        predicted=None if masked else evaluation_windows(stream, run.tokenizer, data.block_size, arguments.stride),
        documents=[stream[:].tolist()],
        token_counts=count_tokens(train, run.model.config.vocab_size) if "train" in data.streams else None,
        batch=_rows_of(_blocks(run, data, train, arguments)),
        prompts=[] if masked else text_prompts(run.model, stream, NUM_PROMPTS),
    )


def _own_text(run: TrainedRun, data: TextData, arguments: ClmDataArguments) -> dict[str, TokenStream]:
    """Return the text that the run's model wrote, the rows of each split one after the other."""
    own = ClmData(**vars(data))
    rows = _self_generated(run).limit(arguments.self_generated).rows
    own.add_own_text(rows, arguments.validation_percentage)
    rows = {"train": own.own_rows, "validation": own.held_out_rows}
    return {split: TokenStream(np.concatenate(pieces), num_words=0) for split, pieces in rows.items() if pieces}


def _self_generated(run: TrainedRun) -> RowStore:
    """Return the rows that the run's model wrote itself, perhaps more than the run asked for."""
    store = RowStore(run.folder / SELF_GENERATED)
    if not store.parts:
        raise InputError(f"{run.folder / SELF_GENERATED} has no text of the model: restore the folder of the run.")
    return store


def _blocks(
    run: TrainedRun, data: TextData, train: TokenStream, arguments: ClmDataArguments | MlmDataArguments
) -> TorchDataset:
    if isinstance(arguments, ClmDataArguments):
        return TrainingBlocks(train, data.block_size)
    return MaskedBlocks(train, data.block_size, arguments.masking_for(run.tokenizer), run.settings["seed"])


def _rows_of(blocks: TorchDataset) -> dict[str, torch.Tensor]:
    """Return a batch of up to `NUM_ROWS` random blocks, always the same for the same text."""
    indices = random.Random(0).sample(range(len(blocks)), min(NUM_ROWS, len(blocks)))
    return default_data_collator([blocks[i] for i in indices])


def _pairs(run: TrainedRun, split: str, max_tokens: int) -> RunText:
    arguments = _arguments(NmtDataArguments, run.settings)

    def ignore(message: str) -> None:
        pass

    pairs = load_pairs(arguments, do_train=True, notify=ignore)
    pairs = {name: pairs[name] for name in ("train", split)}
    data = tokenize_nmt(pairs, run.tokenizer, run.model, arguments, run.settings["seed"], ignore)
    predicted = _first_pairs(data.batches[split], arguments.batch_tokens, max_tokens)
    train = data.batches["train"]
    sources = predicted.rows[:NUM_PROMPTS]["input_ids"]
    return RunText(
        predicted=predicted,
        documents=predicted.rows["labels"][:],
        token_counts=count_tokens(train, run.model.ngram_vocab_size),
        batch={name: tensor[:NUM_ROWS] for name, tensor in train[len(train) // 2].items()},
        prompts=row_prompts(sources),
    )


def _first_pairs(batches: PairBatches, batch_tokens: int, max_tokens: int) -> PairBatches:
    """
    Return batches of the first pairs with at most `max_tokens` target tokens in all, at least one pair. `batch_tokens`
    is the size of a batch, as in `PairBatches`.
    """
    totals = side_lengths(batches.rows)[:, 1].cumsum()
    count = max(1, int(np.searchsorted(totals, max_tokens, side="right")))
    if count >= len(batches.rows):
        return batches
    return PairBatches(batches.rows.select(range(count)), batch_tokens, batches.pad_token_id)
