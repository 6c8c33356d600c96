"""A masked language modeling run from beginning to end: data, training, evaluation, report."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase, default_data_collator

from ...data.masking import MaskedText
from ...method.loss import IGNORE_INDEX
from ...modeling.masked import NgramMaskedMixin
from ..clm.data import check_lengths, find_block_size, load_splits, tokenize_splits
from ..common.arguments import RunArguments
from ..common.models import build_mlm_model
from ..common.report import as_text, describe, save_training_plot
from ..common.run import Task, evaluation_trainer, run_all
from ..common.run_folder import RunFolder
from ..common.text_arguments import check_streaming
from .data import MlmData, check_block_size, find_mlm_tokenizer
from .report import MlmResult, guesses_table, print_tables, save_metrics, save_model_card
from .trainer import MlmTrainer

# More than a budget in time has room for: it ends the training.
ENDLESS_STEPS = 1_000_000_000
# How many words stand around a masked word that is shown, and how many guesses.
CONTEXT, NUM_GUESSES = 6, 3


def run_mlm(arguments: RunArguments) -> list[MlmResult]:
    """Trains if asked to, evaluates, reports; with `--compare`, all kinds of model."""
    training = arguments.training
    if training.budget_minutes is not None:
        training.max_steps = ENDLESS_STEPS
    check_streaming(arguments)
    return run_all(arguments, Task(_prepare, _make_trainer, _evaluate, _show))


def _show(results: list[MlmResult], comparison_folder: Path | None) -> None:
    print_tables(results)
    if comparison_folder is not None:
        save_training_plot(results, comparison_folder / "comparison_training.png")


def _prepare(arguments: RunArguments, folder: Path | None) -> tuple[MlmData, NgramMaskedMixin]:
    do_train, data = arguments.training.do_train, arguments.data
    splits = load_splits(data, do_train)
    tokenizer = find_mlm_tokenizer(splits, data, arguments.model, folder)
    masking = data.masking_for(tokenizer)
    found = MlmData(**vars(tokenize_splits(splits, tokenizer, data, arguments.training.seed)), masking=masking)
    model = build_mlm_model(arguments.model, tokenizer, data.block_size, do_train)
    check_lengths(found, model.config.ngram_size)
    found.block_size = find_block_size(model, data.block_size)
    check_block_size(found.block_size)
    return found, model


def _make_trainer(arguments: RunArguments, model: nn.Module, data: MlmData) -> MlmTrainer:
    return MlmTrainer(
        model,
        copy.copy(arguments.training),
        # Time may be left when a text has been read.
        train_dataset=data.blocks(arguments.training.seed, repeats=arguments.training.budget_minutes is not None),
        eval_dataset=data.texts().get("validation"),
        processing_class=data.tokenizer,
        data_collator=default_data_collator,
        budget_minutes=arguments.training.budget_minutes,
    )


def _evaluate(
    arguments: RunArguments, model: NgramMaskedMixin, data: MlmData, folder: RunFolder, settings: dict[str, Any]
) -> MlmResult:
    """The table, from the model as it was saved, and all that the run leaves."""
    training, texts, scores = arguments.training, data.texts(), {}
    # Trainer wants a text when it is made; each is given by name below.
    with evaluation_trainer(arguments, model, next(iter(texts.values())), MlmTrainer) as trainer:
        for split, text in texts.items():
            trainer.evaluate(text, metric_key_prefix=split)
            scores[split] = trainer.last_scores
    result = MlmResult(
        **describe(model),
        settings=settings,
        ensemble_lambda=None,
        history=folder.history() if training.do_train else [],
        scores=scores,
        guesses=[],
    )
    if training.should_save:
        result.guesses = _guesses(model, data.tokenizer, next(iter(texts.values())), arguments.report.num_examples)
        if training.do_train:
            save_training_plot([result], folder.path / "training.png")
            save_model_card(result, folder.path / "README.md")
            save_metrics(result, folder.path / "metrics.json")
        if result.guesses:
            print(f"\n--- {result.name}\n{as_text(guesses_table(result))}")
    return result


@torch.no_grad()
def _guesses(
    model: NgramMaskedMixin, tokenizer: PreTrainedTokenizerBase, text: MaskedText, number: int
) -> list[tuple[str, str, str]]:
    """Some masked words, with what stands around them and what the model would say."""
    model.eval()
    guesses = []
    for i in range(len(text)):
        block = text[i]
        ids, labels = block["input_ids"], block.pop("labels")
        logits = model(**{name: tensor[None].to(model.device) for name, tensor in block.items()}).logits[0]
        for place in ((labels != IGNORE_INDEX) & (ids == tokenizer.mask_token_id)).nonzero()[:, 0].tolist():
            if len(guesses) == number:
                return guesses
            around = ids[max(place - CONTEXT, 0) : place + CONTEXT + 1]
            best = logits[place].topk(min(NUM_GUESSES, logits.shape[-1])).indices.tolist()
            said = ", ".join(tokenizer.decode([token]) for token in best)
            guesses.append((tokenizer.decode(around), tokenizer.decode([labels[place]]), said))
    return guesses
