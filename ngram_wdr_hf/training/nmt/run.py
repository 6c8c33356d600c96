"""A translation run from beginning to end: data, training, search for λ, report."""

import copy
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel

from ...data.errors import InputError
from ...data.pair_batches import only
from ...data.pairs import has_references, read_lines
from ...data.text import check_files
from ...data.tokenizer import load_tokenizer
from ...evaluation.bleu import TranslationScores, score_translations
from ..common.arguments import RunArguments
from ..common.models import build_nmt_model, positions, restrict_drafts
from ..common.report import describe, save_training_plot
from ..common.run import Task, evaluation_trainer, run_all, save_lambda
from ..common.run_folder import RunFolder
from ..common.settings import check_together, with_data_of_run
from ..trainer import whole
from .arguments import DECODED_METRICS, check_nmt_arguments
from .data import NmtData, find_nmt_tokenizer, load_pairs, tokenize_nmt
from .report import (
    NmtResult,
    Translated,
    print_examples,
    print_tables,
    save_lambda_plot,
    save_metrics,
    save_model_card,
    save_translations,
)
from .trainer import TranslationTrainer
from .translator import Translator

DEFAULT_BEAMS = 5
# How long a translation may be where the model has no end of its own.
DEFAULT_LENGTH = 512


def run_nmt(arguments: RunArguments) -> list[NmtResult]:
    """Trains if asked to, translates, reports; with `--compare`, all kinds of model; with `--translate`, only that."""
    check_nmt_arguments(arguments)
    if arguments.report.translate is not None:
        check_together(arguments)
        _translate_file(arguments)
        return []
    return run_all(arguments, Task(_prepare, _make_trainer, _evaluate, _show))


def _show(results: list[NmtResult], comparison_folder: Path | None) -> None:
    print_examples(results[0])
    print_tables(results)
    if comparison_folder is not None:
        save_lambda_plot(results, comparison_folder / "comparison.png")
        save_training_plot(results, comparison_folder / "comparison_training.png")


def _prepare(arguments: RunArguments, folder: Path | None) -> tuple[NmtData, PreTrainedModel]:
    training = arguments.training
    # Every process prepares the same data; one of them says what there was to say.
    tell = print if training.process_index == 0 else lambda sentence: None
    splits = load_pairs(arguments.data, training.do_train, tell)
    tokenizer = find_nmt_tokenizer(splits, arguments.data, arguments.model, folder)
    model = build_nmt_model(arguments.model, tokenizer, training.do_train)
    _set_search(arguments, model)
    data = tokenize_nmt(splits, tokenizer, model, arguments.data, training.seed, tell)
    training_tokens = data.batches["train"].target_tokens() if training.do_train else ()
    restrict_drafts(model, arguments.model.draft_vocab_size, training_tokens)
    return data, model


def _set_search(arguments: RunArguments, model: PreTrainedModel) -> None:
    """The saved model is to translate as it is evaluated here: with the beams asked for, or its own."""
    report, search = arguments.report, model.generation_config
    search.num_beams = report.num_beams or search.num_beams or DEFAULT_BEAMS
    if report.use_mtp and search.num_beams > 1:
        raise InputError(
            f"`--use_mtp` is for translation without beams, and there are {search.num_beams}: add `--num_beams 1`."
        )
    if report.length_penalty is not None:
        search.length_penalty = report.length_penalty
    if search.num_beams == 1:
        # They belong to beams, and Transformers does not save them without.
        search.length_penalty = search.early_stopping = None
    search.max_length = positions(model) or DEFAULT_LENGTH


def _translator(arguments: RunArguments, model: PreTrainedModel, data: NmtData) -> Translator:
    training = arguments.training
    return Translator(
        data.tokenizer,
        model.generation_config.num_beams,
        1.0 if model.generation_config.length_penalty is None else model.generation_config.length_penalty,
        arguments.data.batch_tokens,
        data.longest,
        arguments.data.source_prefix or "",
        training.process_index,
        training.world_size,
        use_mtp=arguments.report.use_mtp and bool(model.ngram_heads),
        shows_progress=not training.disable_tqdm and training.process_index == 0,
    )


def _make_trainer(arguments: RunArguments, model: nn.Module, data: NmtData) -> TranslationTrainer:
    training = copy.copy(arguments.training)
    validation = data.texts["validation"]
    translator = _translator(arguments, model, data)

    def decode(model: PreTrainedModel) -> TranslationScores:
        return score_translations(translator(model, validation["source"][:], 0.0), validation["target"][:])

    return TranslationTrainer(
        model,
        training,
        train_dataset=data.batches["train"],
        eval_dataset=data.batches["validation"],
        processing_class=data.tokenizer,
        data_collator=only,
        lambda_grid=arguments.lambda_grid if model.ngram_heads else (),
        decode=decode if training.metric_for_best_model in DECODED_METRICS else None,
    )


def _evaluate(
    arguments: RunArguments, model: PreTrainedModel, data: NmtData, folder: RunFolder, settings: dict[str, Any]
) -> NmtResult:
    """BLEU for every λ on validation, for the best and for none on the test set, and all that the run leaves."""
    training = arguments.training
    scores = {}
    batches = {split: pairs for split, pairs in data.batches.items() if split != "train"}
    if batches:
        with evaluation_trainer(arguments, model, next(iter(batches.values()))) as trainer:
            for split, pairs in batches.items():
                trainer.evaluate(pairs, metric_key_prefix=split)
                scores[split] = trainer.last_scores
    model = whole(model, training)
    _set_search(arguments, model)
    translator = _translator(arguments, model, data)
    translate = partial(translator, model)
    translations, ensemble_lambda, translated = {}, model.resolve_lambda(), []
    if "validation" in data.texts:
        grid = sorted({0.0, ensemble_lambda, *arguments.lambda_grid}) if len(model.ngram_heads) else [0.0]
        translations["validation"] = _try_lambdas(translate, data.texts["validation"], grid)
        # The smallest of the best.
        ensemble_lambda = max(grid, key=lambda value: (translations["validation"][value].bleu, -value))
    if "test" in data.texts:
        translated = _translate_test(translate, data.texts["test"], ensemble_lambda)
        if has_references(data.texts["test"]):
            references = [sentence.reference for sentence in translated]
            by_lambda = {0.0: "plain", ensemble_lambda: "hypothesis"}
            translations["test"] = {
                value: score_translations([getattr(sentence, name) for sentence in translated], references)
                for value, name in by_lambda.items()
            }
    result = NmtResult(
        **describe(model),
        settings=settings,
        ensemble_lambda=ensemble_lambda,
        history=folder.history() if training.do_train else [],
        scores=scores,
        translations=translations,
        translated=translated,
        num_examples=arguments.report.num_examples,
        search={"num_beams": translator.num_beams, "length_penalty": translator.length_penalty},
    )
    if training.should_save and training.do_train:
        save_lambda(folder.path, ensemble_lambda)
        model.generation_config.save_pretrained(folder.path)
        save_lambda_plot([result], folder.path / "lambda_sweep.png")
        save_training_plot([result], folder.path / "training.png")
        save_translations(result, folder.path / "test_translations.jsonl")
        save_model_card(result, folder.path / "README.md")
        save_metrics(result, folder.path / "metrics.json")
    return result


def _try_lambdas(
    translate: Callable[[Sequence[str], float], list[str]], rows: Dataset, grid: Sequence[float]
) -> dict[float, TranslationScores]:
    sources, references = rows["source"][:], rows["target"][:]
    return {value: score_translations(translate(sources, value), references) for value in grid}


def _translate_test(
    translate: Callable[[Sequence[str], float], list[str]], rows: Dataset, ensemble_lambda: float
) -> list[Translated]:
    sources = rows["source"][:]
    plain = translate(sources, 0.0)
    ensembled = translate(sources, ensemble_lambda) if ensemble_lambda > 0 else plain
    return [Translated(*row) for row in zip(sources, rows["target"][:], plain, ensembled, strict=True)]


def _translate_file(arguments: RunArguments) -> None:
    """A sentence a line in, a translation a line out."""
    path = arguments.report.translate
    check_files([path])
    arguments = with_data_of_run(arguments)
    tokenizer = load_tokenizer(arguments.data.tokenizer or arguments.model.model_name_or_path)
    lines = read_lines([path])
    model = whole(build_nmt_model(arguments.model, tokenizer, do_train=False), arguments.training)
    _set_search(arguments, model)
    translate = _translator(arguments, model, NmtData(tokenizer, {}, {}, positions(model)))
    translations = translate(model, lines, model.resolve_lambda())
    if arguments.training.process_index != 0:
        return
    # A line stays a line, whatever the model says.
    text = "".join(f"{' '.join(line.split())}\n" for line in translations)
    if arguments.report.translate_to is None:
        sys.stdout.write(text)
    else:
        Path(arguments.report.translate_to).write_text(text, encoding="utf-8")
