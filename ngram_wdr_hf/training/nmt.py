r"""
Train and evaluate a translation model with N-gram heads on its decoder.

    ngram-wdr nmt                                              # English to German dates and amounts, in minutes
    ngram-wdr nmt --compare                                    # compare with plain, bag-of-words and simple N-gram
    ngram-wdr nmt --preset paper-small --train_source train.en --train_target train.de \
        --test_source test.en --test_target test.de --output_dir runs/en-de     # the paper's small Transformer
    ngram-wdr nmt --dataset_name wmt14 --dataset_config de-en --source_lang en --target_lang de \
        --preset paper-base --output_dir runs/wmt14            # a translation dataset
    ngram-wdr nmt --do_train false --model_name_or_path runs/en-de      # BLEU of a finished run
    ngram-wdr nmt --do_train false --model_name_or_path runs/en-de --translate FILE > OUT
    accelerate launch --multi_gpu -m ngram_wdr_hf nmt          # several GPUs

Repeat a command to resume an interrupted run. `python train_nmt.py` is the same command.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import evaluate
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.trainer_utils import EvalLoopOutput

from ..data.errors import InputError
from ..data.pair_batches import unwrap_batch
from ..data.pairs import has_references, read_lines
from ..data.tokenizers import load_tokenizer
from ..evaluation.models import max_positions
from ..evaluation.scores import Scores, by_kind
from ..method.ensemble import Ensemble, describe_ensemble, is_lambda
from ..metrics import TRANSLATION
from .new_models import make_model, restrict_drafts
from .options import KINDS, ModelOptions, RunTrainingArguments, optional, preset_choice
from .pair_data import PairOptions, load_pairs, nmt_tokenizer, tokenize_splits
from .parsing import parse
from .presets import NMT_PRESETS, Preset
from .report import Card, RunResult, compare, ensemble_cells, named_ensembles, run_result, save
from .results import EnsembleSearch, fit_and_score, introduce, load_trained, set_ensemble, train
from .run_folder import TRANSLATIONS, RunFolder, settings_of
from .trainer import NgramTrainer, loss_names, to_device, uses_fsdp
from .translator import Translator

# Choices for `--metric_for_best_model` that need translations of the validation set.
DECODED_METRICS = ("bleu", "chrf")
CARD = Card(
    "A translation model",
    "translation",
    "AutoModelForSeq2SeqLM",
    """ids = model.generate(**tokenizer([{source!r}], return_tensors="pt", truncation=True))
print(tokenizer.batch_decode(ids, skip_special_tokens=True))""",
)


@dataclass
class NmtModelOptions(ModelOptions):
    """A new Marian by preset, or an encoder-decoder checkpoint such as Marian, BART or T5."""

    presets: ClassVar[dict[str, Preset]] = NMT_PRESETS
    compared_kinds: ClassVar[dict[str, str]] = {
        "plain": f"{KINDS['plain']} --bow_loss_weight 0",
        "bow": f"{KINDS['plain']} --bow_loss_weight 1",
        "simple": f"{KINDS['simple']} --bow_loss_weight 0",
        "wdr": f"{KINDS['wdr']} --bow_loss_weight 0",
    }

    preset: str | None = preset_choice(NMT_PRESETS)
    bow_loss_weight: float | None = optional(
        "Weight of the bag-of-words loss (Ma et al. 2018), a baseline of the paper. Default: the checkpoint's, else 0."
    )

    def __post_init__(self):
        super().__post_init__()
        self.check_at_least(0, "bow_loss_weight")

    @property
    def kind(self) -> str:
        kind = super().kind
        return "bow" if kind == "plain" and self.bow_loss_weight else kind


class TranslationTrainer(NgramTrainer):
    """An [`NgramTrainer`] that logs `eval_bleu` and `eval_chrf` too, if one of them selects the best checkpoint."""

    def __init__(self, *args, translator: Translator, pairs: Dataset, **kwargs):
        super().__init__(*args, **kwargs)
        self.translator, self.pairs = translator, pairs

    def evaluation_loop(self, *args, metric_key_prefix: str = "eval", **kwargs) -> EvalLoopOutput:
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        if self.args.metric_for_best_model in DECODED_METRICS:
            model = self.accelerator.unwrap_model(self.model)
            scores = translate_and_score(self.translator, model, self.pairs, [0.0])[1][0.0]
            output.metrics.update({f"{metric_key_prefix}_{name}": scores[name] for name in DECODED_METRICS})
        return output


def main(arguments: Sequence[str]) -> RunResult | None:
    """Train a model, choose its ensemble by BLEU on the validation set, evaluate, and save; or `--translate`."""
    classes = (PairOptions, NmtModelOptions, RunTrainingArguments)
    defaults = {"output_dir": "runs/nmt", "per_device_train_batch_size": 1, "per_device_eval_batch_size": 1}
    options, model_options, training = parse(classes, arguments, "ngram-wdr nmt", __doc__, defaults)
    if training.per_device_train_batch_size != 1 or training.per_device_eval_batch_size != 1:
        raise InputError("`--per_device_train_batch_size` and `_eval_` must be 1: set `--batch_tokens` instead.")
    if training.requested_metric in DECODED_METRICS and uses_fsdp(training):
        raise InputError(f"`--metric_for_best_model {training.requested_metric}` needs whole weights: remove FSDP.")
    if options.translate is not None:
        return translate_file(options, model_options, training)
    search = EnsembleSearch.of(options, model_options, training)
    with RunFolder.claimed(settings_of(options, model_options, training), training) as folder:
        with training.main_process_first(local=False, desc="preparing data and model"):
            # 1. Data
            pairs = load_pairs(options, training)
            tokenizer = folder.tokenizer() or nmt_tokenizer(options, model_options, pairs)

            # 2. Model
            model = make_model(model_options, "seq2seq", tokenizer, do_train=training.do_train)
            translator = make_translator(model, tokenizer, options, training)
            batches = tokenize_splits(pairs, tokenizer, model, options, training.seed)
            targets = batches["train"].target_tokens() if training.do_train else ()
            restrict_drafts(model, model_options, options, targets)
        counts = {split: f"{len(rows):,} pairs ({batches.get(split, 'not scored')})" for split, rows in pairs.items()}
        introduce(model, counts, training)
        train_dataset = batches.pop("train", None)

        # 3. Train
        if training.do_train and not folder.is_finished():
            trainer = TranslationTrainer(
                model,
                training,
                train_dataset=train_dataset,
                eval_dataset=batches["validation"],
                processing_class=tokenizer,
                data_collator=unwrap_batch,
                translator=translator,
                pairs=pairs["validation"],
                **search.trainer_options(model_options, training),
            )
            train(trainer, model_options, folder)
        model = load_trained(model, folder)
        translator = make_translator(model, tokenizer, options, training)

        # 4. Evaluate, choose the ensemble by BLEU, and translate the test set
        fit, scores = fit_and_score(model, batches, search, training)
        ratings, best_lambda, rows = {}, None, []
        if "validation" in pairs:
            ensembles = scores["validation"].ensembles
            _, ratings["validation"] = translate_and_score(translator, model, pairs["validation"], ensembles)
            bleu = {ensemble: rating["bleu"] for ensemble, rating in ratings["validation"].items()}
            best_lambda = max(filter(is_lambda, bleu), key=bleu.get)
            set_ensemble(model, max(bleu, key=bleu.get))
        own = model.ngram_ensemble()
        named = named_ensembles(own, best_lambda, fit)
        if "test" in pairs:
            translated, rated = translate_and_score(translator, model, pairs["test"], {own, *named.values()})
            names = ("source", "reference", "plain", "hypothesis")
            columns = (pairs["test"]["source"], pairs["test"]["target"], translated[0.0], translated[own])
            rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
            ratings |= {"test": rated} if rated else {}

        # 5. Save and report
        # Examples from the whole test set, first those that the ensemble translates differently.
        spread = sorted(rows[:: max(1, len(rows) // 50)], key=lambda row: row["plain"] == row["hypothesis"])
        examples = spread[: options.num_examples]
        shown = [name for name in ("source", "reference", "plain", "hypothesis") if name != "hypothesis" or own != 0]
        texts = ["\n".join(f"{name:<10}  {row[name]}" for name in shown if row[name] is not None) for row in examples]
        samples = {describe_ensemble(own): "\n\n".join(texts)} if texts else {}
        splits, tables = metrics_and_tables(model, scores, ratings, named)
        result = run_result(model, folder, splits=splits, tables=tables, ensemble=own, fit=fit, samples=samples)
        if training.do_train and training.should_save:
            if rows:
                lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
                (folder.path / TRANSLATIONS).write_text(lines, encoding="utf-8")
            model.generation_config.save_pretrained(folder.path)
        source = examples[0]["source"] if examples else "A sentence."
        save(result, model, folder, CARD, source=(options.source_prefix or "") + source)
    if model_options.compare:
        compare(main, arguments, result, model_options, folder)
    return result


def make_translator(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, options: PairOptions, training: RunTrainingArguments
) -> Translator:
    """Set the beam search of the options in `generation_config`, which is saved with the model, and use it."""
    search, prefix = model.generation_config, options.source_prefix or ""
    search.num_beams = options.num_beams or search.num_beams or 5
    if options.use_mtp and search.num_beams > 1:
        raise InputError(f"`--use_mtp` does not work with {search.num_beams} beams: set `--num_beams 1`.")
    if options.length_penalty is not None:
        search.length_penalty = options.length_penalty
    if search.num_beams == 1:
        # Transformers refuses to save these without beam search.
        search.length_penalty = search.early_stopping = None
    search.max_length = max_positions(model) or 512
    return Translator(tokenizer, options.batch_tokens, prefix, options.use_mtp, not training.disable_tqdm)


def translate_and_score(
    translator: Translator, model: PreTrainedModel, rows: Dataset, ensembles: Iterable[Ensemble]
) -> tuple[dict[Ensemble, list[str]], dict[Ensemble, dict[str, Any]]]:
    """Return the translations of a set by ensemble, and their scores; no scores without references."""
    sources, references = rows["source"][:], rows["target"][:]
    translated = {ensemble: translator(model, sources, ensemble) for ensemble in by_kind(ensembles)}
    scored = translated if has_references(rows) else {}
    # In memory: processes would lock each other's files.
    compute = evaluate.load(TRANSLATION, keep_in_memory=True).compute
    return translated, {each: compute(predictions=texts, references=references) for each, texts in scored.items()}


def translate_file(options: PairOptions, model_options: ModelOptions, training: RunTrainingArguments) -> None:
    """Print the translations of `--translate` with the model's ensemble, in UTF-8. An empty line stays empty."""
    if training.do_train:
        raise InputError("`--translate` needs a trained model: set `--do_train false --model_name_or_path RUN`.")
    tokenizer = load_tokenizer(options.tokenizer or model_options.model_name_or_path)
    model = to_device(make_model(model_options, "seq2seq", tokenizer, do_train=False), training)
    translator = make_translator(model, tokenizer, options, training)
    translations = translator(model, read_lines([options.translate]), model.ngram_ensemble())
    if training.process_index == 0:
        # A translation may contain line breaks.
        sys.stdout.buffer.write("".join(f"{' '.join(line.split())}\n" for line in translations).encode())


def metrics_and_tables(
    model: PreTrainedModel, scores: dict[str, Scores], ratings: dict[str, dict], named: dict[str, Ensemble]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return BLEU and chrF of the translations with the perplexities of the references by split, and the tables."""
    own, search, splits, tables = model.ngram_ensemble(), model.generation_config, {}, {}
    for split, rated in ratings.items():
        each, lambdas = scores[split], list(filter(is_lambda, rated))
        splits[split] = {
            "lambda": lambdas,
            **rated[0.0],
            **{name: [rated[value][name] for value in lambdas] for name in DECODED_METRICS},
            "ensembles": {name: {each: rated[key][each] for each in DECODED_METRICS} for name, key in named.items()},
            "num_beams": search.num_beams,
            "length_penalty": 1.0 if search.length_penalty is None else search.length_penalty,
            "perplexity_lambda": [*each.by_lambda()],
            "token_perplexity": [*each.by_lambda().values()],
            "ensemble_perplexity": {heading: each.perplexity(ensemble) for heading, ensemble in named.items()},
            **dict(zip(loss_names(len(each.head_nlls)), each.head_nlls, strict=True)),
            "num_tokens": each.num_tokens,
        }
        for label, name in (("SacreBLEU", "bleu"), ("chrF", "chrf")):
            title = f"{label} ({splits[split][f'{name}_signature']})"
            figures = {ensemble: rating[name] for ensemble, rating in rated.items()}
            cells = ensemble_cells("sentences", rated[0.0]["num_sentences"], named, figures, own)
            tables.setdefault(title, {})[split] = cells
    return splits, tables
