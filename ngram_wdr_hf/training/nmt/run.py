"""A translation run: data, training, choice of the ensemble, report."""

import copy
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...data.pair_batches import unwrap_batch
from ...data.pairs import has_references, read_lines
from ...data.text import check_files
from ...data.tokenizers import load_tokenizer
from ...evaluation.lengths import max_positions
from ...evaluation.scores import by_kind
from ...evaluation.translation_scores import TranslationScores, score_translations
from ...method.ensemble import Ensemble, is_lambda
from ..common.arguments import RunArguments
from ..common.model import check_train_mode, restrict_drafts
from ..common.run import Run
from ..common.run_folder import TRANSLATIONS
from ..common.runs import run_all
from ..common.settings import check_together, with_data_of_run
from ..trainer import to_device
from .arguments import DECODED_METRICS, check_nmt_arguments
from .data import NmtData, find_nmt_tokenizer, load_pairs, tokenize_nmt
from .model import build_nmt_model, set_search
from .report import NmtResult, Translated, print_examples, print_tables, save_translations
from .trainer import TranslationTrainer
from .translator import Translator

Translate = Callable[[Sequence[str], Ensemble], list[str]]


def run_nmt(arguments: RunArguments) -> list[NmtResult]:
    """
    Train, choose the ensemble on the validation set, translate and score the test set, print, and save the model and
    its results; `--do_train false` skips the training and saves only the tables and metrics. Return a list of the
    result; with `--compare`, one result per kind of model (plain, bow, simple, wdr), the requested one first. With
    `--translate`, only translate that file and return an empty list.
    """
    check_nmt_arguments(arguments)
    if arguments.report.translate is not None:
        check_together(arguments)
        _translate_file(arguments)
        return []
    return run_all(arguments, _complete, _print_results)


def _print_results(results: Sequence[NmtResult]) -> None:
    print_examples(results[0])
    print_tables(results)


def _complete(run: Run) -> NmtResult:
    """Do what is left of one run, from its data to its files, and return its result."""
    data, model = run.complete_training(_prepare, _make_trainer)

    batches = {split: pairs for split, pairs in data.batches.items() if split != "train"}
    fit = run.fit(model, batches)
    scores = run.score(model, batches, fit)
    model = to_device(model, run.training)
    set_search(run.arguments, model)
    translator = _translator(run.arguments, model, data.tokenizer, data.longest)
    translate = partial(translator, model)
    translations, translated = {}, []
    ensemble, best_lambda = model.ngram_ensemble(), None
    fitted = () if fit is None else (fit.temperature, fit.ensemble)
    if "validation" in data.texts:
        grid = run.arguments.lambda_grid if len(model.ngram_heads) else ()
        ensembles = by_kind({0.0, ensemble, *grid, *fitted})
        translations["validation"] = _score_ensembles(translate, data.texts["validation"], ensembles)
        ensemble = _best(translations["validation"])
        best_lambda = _best({value: s for value, s in translations["validation"].items() if is_lambda(value)})
    if "test" in data.texts:
        ensembles = {0.0, best_lambda, *fitted, ensemble} - {None}
        by_ensemble = _translate_test_set(translate, data.texts["test"], ensembles)
        translated = _side_by_side(data.texts["test"], by_ensemble[0.0], by_ensemble[ensemble])
        if has_references(data.texts["test"]):
            references = data.texts["test"]["target"][:]
            translations["test"] = {
                value: score_translations(texts, references) for value, texts in by_ensemble.items()
            }

    result = NmtResult(
        **run.result_fields(model),
        ensemble=ensemble,
        best_lambda=best_lambda,
        fit=fit,
        scores=scores,
        translations=translations,
        translated=translated,
        num_examples=run.arguments.report.num_examples,
        search={"num_beams": translator.num_beams, "length_penalty": translator.length_penalty},
    )
    if run.saves_results:
        model.generation_config.save_pretrained(run.folder.path)
        save_translations(result, run.folder.path / TRANSLATIONS)
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
    if training.do_train:
        run.check_batches(data.batches["train"])
    training_tokens = data.batches["train"].target_tokens() if training.do_train else ()
    restrict_drafts(model, arguments.model, training_tokens)
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
        **run.trainer_options(model),
        decode=decode if training.metric_for_best_model in DECODED_METRICS else None,
    )


def _score_ensembles(
    translate: Translate, rows: Dataset, ensembles: Sequence[Ensemble]
) -> dict[Ensemble, TranslationScores]:
    sources, references = rows["source"][:], rows["target"][:]
    return {ensemble: score_translations(translate(sources, ensemble), references) for ensemble in ensembles}


def _best(by_ensemble: Mapping[Ensemble, TranslationScores]) -> Ensemble:
    """Return the ensemble with the highest BLEU, the first of equal ones."""
    return max(by_ensemble, key=lambda ensemble: by_ensemble[ensemble].bleu)


def _translate_test_set(
    translate: Translate, rows: Dataset, ensembles: Iterable[Ensemble]
) -> dict[Ensemble, list[str]]:
    sources = rows["source"][:]
    return {ensemble: translate(sources, ensemble) for ensemble in by_kind(ensembles)}


def _side_by_side(rows: Dataset, plain: Sequence[str], ensembled: Sequence[str]) -> list[Translated]:
    columns = (rows["source"][:], rows["target"][:], plain, ensembled)
    return [Translated(*row) for row in zip(*columns, strict=True)]


def _translate_file(arguments: RunArguments) -> None:
    """
    Translate the file of `--translate` line by line, with the model's ensemble, to `--translate_to` or standard
    output. An empty line stays empty.
    """
    report = arguments.report
    check_files([report.translate])
    arguments = with_data_of_run(arguments)
    tokenizer = load_tokenizer(arguments.data.tokenizer or arguments.model.model_name_or_path)
    lines = read_lines([report.translate])
    model = to_device(build_nmt_model(arguments.model, tokenizer, do_train=False), arguments.training)
    set_search(arguments, model)
    translate = _translator(arguments, model, tokenizer, max_positions(model))
    translations = translate(model, lines, model.ngram_ensemble())
    if arguments.training.process_index != 0:
        return
    # A translation may contain line breaks.
    text = "".join(f"{' '.join(line.split())}\n" for line in translations)
    if report.translate_to is None:
        sys.stdout.write(text)
    else:
        Path(report.translate_to).write_text(text, encoding="utf-8")
