"""A translation run: data, training, choice of λ, report."""

import copy
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...data.pair_batches import unwrap_batch
from ...data.pairs import has_references, read_lines
from ...data.text import check_files
from ...data.tokenizer import load_tokenizer
from ...evaluation.bleu import TranslationScores, score_translations
from ...evaluation.lengths import max_positions
from ..common.arguments import RunArguments
from ..common.model import check_train_mode, choose_weights, restrict_drafts
from ..common.run import Run, all_runs, begin, finish, in_their_folders
from ..common.settings import check_together, with_data_of_run
from ..trainer import to_device
from .arguments import DECODED_METRICS, check_nmt_arguments
from .data import NmtData, find_nmt_tokenizer, load_pairs, tokenize_nmt
from .model import build_nmt_model, set_search
from .report import NmtResult, Translated, print_examples, print_tables, save_translations
from .trainer import TranslationTrainer
from .translator import Translator

Translate = Callable[[Sequence[str], float], list[str]]


def run_nmt(arguments: RunArguments) -> list[NmtResult]:
    """
    Train, choose λ on the validation set, translate and score the test set, print, and save the model and its results;
    `--do_train false` skips the training and saves only the tables and metrics. Return a list of the result; with
    `--compare`, one result per kind of model (plain, bow, simple, wdr), the requested one first. With `--translate`,
    only translate that file and return an empty list.
    """
    check_nmt_arguments(arguments)
    if arguments.report.translate is not None:
        check_together(arguments)
        _translate_file(arguments)
        return []
    arguments, repository = begin(arguments)
    with in_their_folders(all_runs(arguments, repository)) as runs:
        results = [_complete(run) for run in runs]
        if arguments.training.process_index == 0:
            print_examples(results[0])
            print_tables(results)
            finish(arguments, results, repository)
    return results


def _complete(run: Run) -> NmtResult:
    """Do what is left of one run, from its data to its files, and return its result."""
    with run.preparing():
        data, model = _prepare(run)
        run.claim(data.tokenizer, model)
    run.introduce(model, {split: f"{len(pairs):,} pairs" for split, pairs in data.texts.items()})
    if run.needs_training:
        run.train(_make_trainer(run, choose_weights(model, run.arguments.model), data))
    model = run.load_trained(model)

    scores = run.score(model, {split: pairs for split, pairs in data.batches.items() if split != "train"})
    model = to_device(model, run.training)
    set_search(run.arguments, model)
    translator = _translator(run.arguments, model, data.tokenizer, data.longest)
    translate = partial(translator, model)
    translations, ensemble_lambda, translated = {}, model.ngram_lambda(), []
    if "validation" in data.texts:
        grid = sorted({0.0, ensemble_lambda, *run.arguments.lambda_grid}) if len(model.ngram_heads) else [0.0]
        translations["validation"] = _score_lambdas(translate, data.texts["validation"], grid)
        ensemble_lambda = _best_lambda(translations["validation"])
    if "test" in data.texts:
        translated = _translate_test_set(translate, data.texts["test"], ensemble_lambda)
        if has_references(data.texts["test"]):
            translations["test"] = _score_test_set(translated, ensemble_lambda)

    result = NmtResult(
        **run.result_fields(model),
        ensemble_lambda=ensemble_lambda,
        scores=scores,
        translations=translations,
        translated=translated,
        num_examples=run.arguments.report.num_examples,
        search={"num_beams": translator.num_beams, "length_penalty": translator.length_penalty},
    )
    if run.saves_results:
        model.generation_config.save_pretrained(run.folder.path)
        save_translations(result, run.folder.path / "test_translations.jsonl")
    run.save(result)
    return result


def _prepare(run: Run) -> tuple[NmtData, PreTrainedModel]:
    """
    Return the tokenized pairs and the model, loaded or created, with its search settings and draft tokens. Raise an
    `InputError` if they do not fit each other or the options.
    """
    arguments, training = run.arguments, run.training
    notify = print if training.process_index == 0 else lambda message: None
    splits = load_pairs(arguments.data, training.do_train, notify)
    tokenizer = find_nmt_tokenizer(splits, arguments.data, arguments.model, run.tokenizer_folder)
    model = build_nmt_model(arguments.model, tokenizer, training.do_train)
    check_train_mode(model, arguments)
    set_search(arguments, model)
    data = tokenize_nmt(splits, tokenizer, model, arguments.data, training.seed, notify)
    training_tokens = data.batches["train"].target_tokens() if training.do_train else ()
    restrict_drafts(model, arguments.model.draft_vocab_size, training_tokens)
    return data, model


def _translator(
    arguments: RunArguments, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, longest: int | None
) -> Translator:
    """
    Return a translator with the search settings of `model.generation_config`, for this process's share of the
    batches. `longest` is the model's longest input in tokens, `None` if there is no limit.
    """
    training, search = arguments.training, model.generation_config
    return Translator(
        tokenizer,
        search.num_beams,
        1.0 if search.length_penalty is None else search.length_penalty,
        arguments.data.batch_tokens,
        longest,
        arguments.data.source_prefix or "",
        training.process_index,
        training.world_size,
        use_mtp=arguments.report.use_mtp and bool(model.ngram_heads),
        shows_progress=not training.disable_tqdm and training.process_index == 0,
    )


def _make_trainer(run: Run, model: nn.Module, data: NmtData) -> TranslationTrainer:
    training = copy.copy(run.training)
    validation = data.texts["validation"]
    translator = _translator(run.arguments, model, data.tokenizer, data.longest)

    def decode(model: PreTrainedModel) -> TranslationScores:
        return score_translations(translator(model, validation["source"][:], 0.0), validation["target"][:])

    return TranslationTrainer(
        model,
        training,
        train_dataset=data.batches["train"],
        eval_dataset=data.batches["validation"],
        processing_class=data.tokenizer,
        data_collator=unwrap_batch,
        lambda_grid=run.arguments.lambda_grid if model.ngram_heads else (),
        decode=decode if training.metric_for_best_model in DECODED_METRICS else None,
    )


def _score_lambdas(translate: Translate, rows: Dataset, grid: Sequence[float]) -> dict[float, TranslationScores]:
    sources, references = rows["source"][:], rows["target"][:]
    return {value: score_translations(translate(sources, value), references) for value in grid}


def _best_lambda(by_lambda: dict[float, TranslationScores]) -> float:
    """Return the λ with the highest BLEU, the smallest of equal ones."""
    return max(by_lambda, key=lambda value: (by_lambda[value].bleu, -value))


def _translate_test_set(translate: Translate, rows: Dataset, ensemble_lambda: float) -> list[Translated]:
    sources = rows["source"][:]
    plain = translate(sources, 0.0)
    ensembled = translate(sources, ensemble_lambda) if ensemble_lambda > 0 else plain
    return [Translated(*row) for row in zip(sources, rows["target"][:], plain, ensembled, strict=True)]


def _score_test_set(translated: Sequence[Translated], ensemble_lambda: float) -> dict[float, TranslationScores]:
    references = [sentence.reference for sentence in translated]
    by_lambda = {0.0: "plain", ensemble_lambda: "hypothesis"}
    return {
        value: score_translations([getattr(sentence, name) for sentence in translated], references)
        for value, name in by_lambda.items()
    }


def _translate_file(arguments: RunArguments) -> None:
    """
    Translate the file of `--translate` line by line, with the model's λ, to `--translate_to` or standard output. An
    empty line stays empty.
    """
    report = arguments.report
    check_files([report.translate])
    arguments = with_data_of_run(arguments)
    tokenizer = load_tokenizer(arguments.data.tokenizer or arguments.model.model_name_or_path)
    lines = read_lines([report.translate])
    model = to_device(build_nmt_model(arguments.model, tokenizer, do_train=False), arguments.training)
    set_search(arguments, model)
    translate = _translator(arguments, model, tokenizer, max_positions(model))
    translations = translate(model, lines, model.ngram_lambda())
    if arguments.training.process_index != 0:
        return
    # A translation may contain line breaks.
    text = "".join(f"{' '.join(line.split())}\n" for line in translations)
    if report.translate_to is None:
        sys.stdout.write(text)
    else:
        Path(report.translate_to).write_text(text, encoding="utf-8")
