"""A finished run: its model and results, and its text, loaded by the functions of its script."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..backbones.registry import auto_class_of, is_masked
from ..data.errors import InputError
from ..data.pair_batches import PairBatches
from ..data.token_stream import TokenStream
from ..data.tokenizers import load_tokenizer
from ..evaluation.models import max_positions
from ..evaluation.scores import ScoredText
from ..method.ensemble import ensemble_arguments
from ..training import clm, mlm, nmt
from ..training.frozen_model_data import own_rows
from ..training.options import RunTrainingArguments
from ..training.pair_data import PairOptions, load_pairs
from ..training.pair_data import tokenize_splits as tokenize_pairs
from ..training.parsing import SETTINGS, parse
from ..training.report import SAVED_FIELDS, RunResult
from ..training.run_folder import METRICS, RunFolder
from ..training.text_data import find_block_size, load_splits, tokenize_splits
from .head_diagnostics import HeadDiagnostics, find_sentence_ends, head_diagnostics


@dataclass
class TrainedRun:
    """
    A finished run, and a split of its data: the text to predict (`None` for a masked language model), the token ids of
    the text or of each of its rows, prompts for generation, and the token ids of the training text (empty if it is
    streamed).
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    result: RunResult
    text: ScoredText | None
    documents: Sequence[Sequence[int]]
    prompts: list[list[int]]
    training_ids: list[np.ndarray]

    @property
    def drafts(self) -> bool:
        """Whether the model has heads that draft."""
        return bool(self.result.head_parameters) and self.text is not None

    @cached_property
    def diagnostics(self) -> HeadDiagnostics:
        """The diagnostics of the model on the text, with a usual λ if the run chose none."""
        ensemble = self.result.ensemble or (clm.SAMPLE_LAMBDA if self.drafts else 0.0)
        ids = np.concatenate(self.training_ids or self.documents)
        counts = np.bincount(ids, minlength=self.model.ngram_vocab_size)
        options = {"sentence_ends": find_sentence_ends(self.tokenizer), "token_counts": counts}
        return head_diagnostics(self.model, self.text, **options, **ensemble_arguments(ensemble))


def load_run(path: str | Path, split: str = "validation", max_tokens: int = 30_000) -> TrainedRun:
    """Load a finished run, and the first `max_tokens` tokens of a split of its data."""
    path = Path(path)
    if not (path / METRICS).is_file():
        raise InputError(f"{path} has no {METRICS}: choose the folder of a finished run of clm, heads, nmt or mlm.")
    metrics = json.loads((path / METRICS).read_text(encoding="utf-8"))
    weights = metrics["ensemble_weights"]
    if split not in metrics["splits"]:
        raise InputError(f"The run in {path} has no {split} set: choose `--split {next(iter(metrics['splits']))}`.")
    config = AutoConfig.from_pretrained(path)
    model = auto_class_of(config.is_encoder_decoder, is_masked(config)).from_pretrained(path).eval()
    result = RunResult(
        name=metrics["model"],
        ngram_size=config.ngram_size,
        tables={},
        ensemble=tuple(weights) if weights else metrics["ensemble_lambda"],
        **{name: metrics[name] for name in SAVED_FIELDS},
    )
    load = _pairs if config.is_encoder_decoder else _running_text
    tokenizer = load_tokenizer(str(path))
    return TrainedRun(model, tokenizer, result, *load(model, tokenizer, path, split, max_tokens))


def _options(path: Path, *classes: type) -> tuple[Any, ...]:
    """Return the options of a run: its settings, read as its script reads a settings file."""
    return parse(classes, [str(path / SETTINGS), "--output_dir", str(path)], "ngram-wdr report", "", {})


def _running_text(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path, split: str, max_tokens: int
) -> tuple[Any, ...]:
    masked = is_masked(model.config)
    classes = (mlm.MlmOptions, mlm.MlmModelOptions) if masked else (clm.ClmOptions, clm.ClmModelOptions)
    options, _, training = _options(path, *classes, RunTrainingArguments)
    splits = load_splits(options, training, needs_text=masked or options.self_generated is None)
    data = tokenize_splits(splits, tokenizer, options, training.seed)
    # Without training, nothing is written.
    training.do_train = False
    if not masked:
        data.own = own_rows(model, tokenizer, options, RunFolder(path), training)
    if split in data.streams:
        data.streams[split] = TokenStream(data.streams[split].ids[:max_tokens], num_words=0)
    documents = [data.streams[split].ids] if split in data.streams else data.own["validation"]
    if masked:
        return None, documents, [], data.training_ids()
    block_size = find_block_size(model, options.block_size)
    text = clm.evaluation_texts(data, tokenizer, block_size, options.stride)[split]
    length = min(32, (max_positions(model) or math.inf) // 2)
    return text, documents, [row[:length].tolist() for row in documents[:3]], data.training_ids()


def _pairs(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path, split: str, max_tokens: int
) -> tuple[Any, ...]:
    options, _, training = _options(path, PairOptions, nmt.NmtModelOptions, RunTrainingArguments)
    batches = tokenize_pairs(load_pairs(options, training), tokenizer, model, options, training.seed)
    lengths = [len(row) for row in batches[split].rows["labels"]]
    rows = batches[split].rows.select(range(max(1, np.searchsorted(np.cumsum(lengths), max_tokens, side="right"))))
    text = PairBatches(rows, options.batch_tokens, batches[split].pad_token_id)
    return text, rows["labels"][:], rows[:3]["input_ids"], batches["train"].target_tokens()
