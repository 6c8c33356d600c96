"""A language modeling run from beginning to end: data, training, evaluation, report."""

import copy
import math
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import default_data_collator

from ...data.errors import InputError
from ...data.stream import StreamedBlocks, TrainingBlocks
from ...modeling.causal import NgramMixin
from ..common.arguments import RunArguments
from ..common.models import build_clm_model, positions, restrict_drafts
from ..common.report import describe, save_training_plot
from ..common.run import Task, evaluation_trainer, run_all, save_lambda
from ..common.run_folder import RunFolder
from ..common.text_arguments import check_streaming
from ..trainer import NgramTrainer
from .data import (
    ClmData,
    check_lengths,
    check_prompt,
    find_block_size,
    find_tokenizer,
    load_splits,
    tokenize_splits,
)
from .report import ClmResult, print_tables, save_lambda_plot, save_metrics, save_model_card

# The paper's best, as a rule: for a sample of the ensemble where a run found none better than 0.
USUAL_LAMBDA = 0.4


def run_clm(arguments: RunArguments) -> list[ClmResult]:
    """Trains if asked to, evaluates, reports; with `--compare`, all kinds of model."""
    check_streaming(arguments)
    return run_all(arguments, Task(_prepare, _make_trainer, _evaluate, _show))


def _show(results: list[ClmResult], comparison_folder: Path | None) -> None:
    print_tables(results)
    if comparison_folder is not None:
        save_lambda_plot(results, comparison_folder / "comparison.png")
        save_training_plot(results, comparison_folder / "comparison_training.png")


def _prepare(arguments: RunArguments, folder: Path | None) -> tuple[ClmData, NgramMixin]:
    do_train = arguments.training.do_train
    splits = load_splits(arguments.data, do_train)
    tokenizer = find_tokenizer(splits, arguments.data, arguments.model, folder)
    data = tokenize_splits(splits, tokenizer, arguments.data, arguments.training.seed)
    check_prompt(arguments.report.prompt, tokenizer)
    model = build_clm_model(arguments.model, tokenizer, arguments.data.block_size, do_train)
    if arguments.report.use_mtp and model._is_stateful:
        raise InputError(
            f"`--use_mtp` takes rejected drafts back, and a {type(model).__name__} cannot go back: leave it out."
        )
    check_lengths(data, model.config.ngram_size)
    data.block_size = find_block_size(model, arguments.data.block_size)
    training_tokens = data.streams["train"].pieces if do_train and "train" in data.streams else ()
    restrict_drafts(model, arguments.model.draft_vocab_size, training_tokens)
    return data, model


def _make_trainer(arguments: RunArguments, model: nn.Module, data: ClmData) -> NgramTrainer:
    if data.streamed is not None:
        blocks = StreamedBlocks(data.streamed, data.block_size)
    else:
        blocks = TrainingBlocks(data.streams["train"], data.block_size)
    return NgramTrainer(
        model,
        copy.copy(arguments.training),
        train_dataset=blocks,
        eval_dataset=data.windows(arguments.data.stride).get("validation"),
        processing_class=data.tokenizer,
        data_collator=default_data_collator,
        lambda_grid=arguments.lambda_grid if model.ngram_heads else (),
    )


def _evaluate(
    arguments: RunArguments,
    model: NgramMixin,
    data: ClmData,
    folder: RunFolder,
    settings: dict[str, Any],
) -> ClmResult:
    """The table and the λ, from the model as it was saved, and all that the run leaves."""
    training = arguments.training
    windows = data.windows(arguments.data.stride)
    scores = {}
    # Trainer wants a text when it is made; each is given by name below.
    with evaluation_trainer(arguments, model, next(iter(windows.values()))) as trainer:
        for split, text in windows.items():
            trainer.evaluate(text, metric_key_prefix=split)
            scores[split] = trainer.last_scores
    ensemble_lambda = scores["validation"].best_lambda if "validation" in scores else model.resolve_lambda()
    result = ClmResult(
        **describe(model),
        settings=settings,
        ensemble_lambda=ensemble_lambda,
        history=folder.history() if training.do_train else [],
        scores=scores,
        samples={},
    )
    if training.should_save:
        result.samples = _samples(arguments, model, data.tokenizer, windows, ensemble_lambda)
        if training.do_train:
            save_lambda(folder.path, ensemble_lambda)
            save_lambda_plot([result], folder.path / "lambda_sweep.png")
            save_training_plot([result], folder.path / "training.png")
            save_model_card(result, folder.path / "README.md")
            save_metrics(result, folder.path / "metrics.json")
        for label, text in result.samples.items():
            print(f"\n--- {result.name}, λ={label}\n{text}")
    return result


@torch.no_grad()
def _samples(arguments: RunArguments, model, tokenizer, windows, ensemble_lambda: float) -> dict[str, str]:
    """The same prompt continued without and with the ensemble, from the same random numbers."""
    length = arguments.report.sample_tokens
    if length == 0:
        return {}
    if arguments.report.prompt:
        prompt = tokenizer(arguments.report.prompt, return_tensors="pt", add_special_tokens=False).input_ids
    else:
        prompt = next(iter(windows.values())).stream[:16][None]
    longest = positions(model) or math.inf
    if prompt.shape[1] > longest / 2:
        prompt = prompt[:, -int(longest) // 2 :]
    prompt = prompt.to(model.device)
    model.eval()
    texts = {}
    for value in (0.0, ensemble_lambda or USUAL_LAMBDA) if model.ngram_heads else (0.0,):
        torch.manual_seed(arguments.training.seed)
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=min(length, longest - prompt.shape[1]),
            do_sample=True,
            temperature=0.8,
            top_k=40,
            ensemble_lambda=value,
            use_mtp=arguments.report.use_mtp and bool(model.ngram_heads),
            return_dict_in_generate=True,
        )
        label = f"{value:g}"
        if "speculation" in output:
            label += f", {output.speculation.tokens_per_forward:.2f} tokens a forward pass"
        texts[label] = tokenizer.decode(output.sequences[0])
    return texts
