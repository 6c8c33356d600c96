r"""
Fine-tune a checkpoint, with or without N-gram heads, on SST-2, CoLA and RTE, three tasks of GLUE.

    ngram-wdr glue --model_name_or_path runs/clm --task sst2 --train_file SST-2/train.tsv \
        --validation_file SST-2/dev.tsv
    ngram-wdr glue --model_name_or_path runs/clm --task sst2 cola rte --data_dir GLUE --seeds 1 2 3 4 5
    ngram-wdr glue --model_name_or_path runs/clm --task cola --dataset_name glue --output_dir runs/cola
    accelerate launch --multi_gpu -m ngram_wdr_hf glue ...   # several GPUs

The result is a stock model of Transformers, without N-gram heads. Repeat a command to resume interrupted runs, or to
print the results of finished ones. `python finetune_glue.py` is the same command.
"""

import copy
import csv
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, ClassVar, NamedTuple

import evaluate
import torch
from datasets import get_dataset_config_names, load_dataset
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    set_seed,
)
from transformers.hf_argparser import HfArg

from ..data.errors import InputError
from ..data.tokenizers import PADDING, load_tokenizer
from ..evaluation.models import max_positions
from ..metrics import GLUE
from .options import RunTrainingArguments, check_at_least, optional
from .parsing import parse
from .report import as_text
from .run_folder import RunFolder, settings_of
from .trainer import ResumableTrainer

DEFAULT_MAX_LENGTH = 128
# From the recipe of Cramming (hf.co/papers/2212.14034).
DEFAULTS = {
    "output_dir": "runs/glue",
    "num_train_epochs": 5.0,
    "learning_rate": 4e-5,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.1,
    "per_device_train_batch_size": 16,
    "per_device_eval_batch_size": 64,
    "logging_strategy": "epoch",
    "save_total_limit": 1,
    "load_best_model_at_end": False,
}


class GlueTask(NamedTuple):
    """
    A task: its folder, text columns, labels in the order of their ids, and metric. `columns` are those of its files,
    if they have no header line.
    """

    title: str
    sentences: tuple[str, ...]
    labels: tuple[str, ...]
    metric: str
    columns: tuple[str, ...] | None = None


COLA_COLUMNS = ("source", "label", "star", "sentence")
GLUE_TASKS = {
    "sst2": GlueTask("SST-2", ("sentence",), ("negative", "positive"), "accuracy"),
    "cola": GlueTask("CoLA", ("sentence",), ("unacceptable", "acceptable"), "matthews_correlation", COLA_COLUMNS),
    "rte": GlueTask("RTE", ("sentence1", "sentence2"), ("entailment", "not_entailment"), "accuracy"),
}


# Sentences and label id.
Example = tuple[list[str], int]


@dataclass
class GlueOptions:
    """The tasks, their examples (GLUE's files or a dataset), and the seeds."""

    # With these options, none come from the checkpoint's run.
    sources: ClassVar[tuple[str, ...]] = ("train_file", "validation_file", "data_dir", "dataset_name")
    model_options: ClassVar[set[str]] = set()

    task: list[str] = HfArg(help="Tasks to fine-tune on, one or more.", metadata={"choices": list(GLUE_TASKS)})
    train_file: str | None = optional("Training examples of one task, in the format of its train.tsv.")
    validation_file: str | None = optional("Its validation examples, in the format of its dev.tsv.")
    data_dir: str | None = optional(
        "Instead of these files, a folder with SST-2, CoLA or RTE, each with train.tsv and dev.tsv."
    )
    dataset_name: str | None = optional(
        "Dataset instead of files, with a configuration per task: a name on the Hub, such as `glue`, or a "
        "folder. For a single task, it need not have configurations.",
    )
    max_length: int | None = optional(
        "Truncate examples to this many tokens. Default: 128, or the model's maximum if that is less.",
    )
    seeds: list[int] | None = optional(
        "Fine-tune once per seed, and report mean and standard deviation. Default: only `--seed`."
    )

    def __post_init__(self):
        files = (self.train_file, self.validation_file)
        is_wrong = any(files) and (not all(files) or len(self.task) > 1)
        if is_wrong or [any(files), bool(self.data_dir), bool(self.dataset_name)].count(True) != 1:
            raise InputError(
                "Set one of `--data_dir`, `--dataset_name` or, for one `--task`, `--train_file` with "
                "`--validation_file`."
            )
        # Leaves room for text besides the special tokens.
        check_at_least(self, 8, "max_length")


@dataclass
class GlueModelOptions:
    """The checkpoint to fine-tune."""

    presets: ClassVar[dict] = {}

    model_name_or_path: str = HfArg(
        help="Checkpoint to fine-tune, with its tokenizer, with or without heads: a folder or a name on the Hub."
    )


def main(arguments: Sequence[str]) -> list[dict[str, Any]]:
    """
    Fine-tune a checkpoint on every task with every seed; print, plot and save the validation metrics. Return those of
    each task, as in `glue_metrics.json`.
    """
    classes = (GlueOptions, GlueModelOptions, RunTrainingArguments)
    # Batches of similar lengths take half the time. But each of several processes would group in its own order, so
    # that some examples are read twice and others never.
    order = "group_by_length" if os.environ.get("WORLD_SIZE", "1") == "1" else "random"
    defaults = {**DEFAULTS, "train_sampling_strategy": order}
    options, model_options, all_training = parse(classes, arguments, "ngram-wdr glue", __doc__, defaults)
    if all_training.world_size > 1 and all_training.train_sampling_strategy == "group_by_length":
        raise InputError("`--train_sampling_strategy group_by_length` needs a single process: remove the option.")
    if not all_training.do_train or all_training.eval_strategy != "epoch":
        raise InputError("Each run trains and evaluates every epoch: remove `--do_train` and `--eval_strategy`.")

    # 1. Data: all of it is read before hours of training
    with all_training.main_process_first(local=False, desc="reading the examples"):
        splits = {name: read_examples(options, name) for name in options.task}

    results = {}
    for name, examples in splits.items():
        task, scores = GLUE_TASKS[name], {}
        # In memory: processes would lock each other's files.
        metric = evaluate.load(GLUE, name, keep_in_memory=True)
        for seed in options.seeds or [all_training.seed]:
            # Not `replace`: `TrainingArguments.__post_init__` cannot run twice.
            training = copy.copy(all_training)
            training.seed, training.output_dir = seed, str(Path(all_training.output_dir) / name / f"seed-{seed}")
            if training.load_best_model_at_end:
                training.select_by(task.metric)
            folder = RunFolder(training.output_dir)
            settings = settings_of(replace(options, task=[name], seeds=None), model_options, training)
            with folder.claimed(settings, training):
                if not folder.is_finished():
                    # 2. Model; the seed also initializes its new weights
                    set_seed(seed)
                    with training.main_process_first(local=False, desc="preparing data and model"):
                        model, tokenizer = load_classifier(model_options.model_name_or_path, task)
                    rows = {key: encode(each, model, tokenizer, options.max_length) for key, each in examples.items()}

                    # 3. Train
                    trainer = ResumableTrainer(
                        model,
                        training,
                        train_dataset=rows["train"],
                        eval_dataset=rows["validation"],
                        processing_class=tokenizer,
                        data_collator=padding_collator(model, tokenizer),
                        compute_metrics=lambda output, metric=metric: metric.compute(
                            predictions=output.predictions, references=output.label_ids
                        ),
                        preprocess_logits_for_metrics=predicted_labels,
                    )
                    # Classifiers accept `num_items_in_batch` but ignore it: their loss is a mean.
                    trainer.model_accepts_loss_kwargs = False
                    folder.train(trainer, tokenizer)
                evaluations = [entry for entry in folder.history() if "eval_loss" in entry]
                scores[str(seed)] = [entry[f"eval_{task.metric}"] for entry in evaluations]

        # 4. Evaluate
        train, validation = ([label for _, label in examples[split]] for split in ("train", "validation"))
        ((majority, _),) = Counter(train).most_common(1)
        guess = metric.compute(predictions=[majority] * len(validation), references=validation)
        results[name] = {
            "metric": task.metric,
            "last_epoch": summary([each[-1] for each in scores.values()]),
            # Optimistic, as the epoch is chosen by the reported metric.
            "best_epoch": summary([max(each) for each in scores.values()]),
            "majority_class": guess[task.metric],
            "by_seed": scores,
            "num_train": len(train),
            "num_validation": len(validation),
        }

    # 5. Save and report
    if all_training.process_index == 0:
        save_results(results, model_options.model_name_or_path, Path(all_training.output_dir))
    return list(results.values())


def read_examples(options: GlueOptions, name: str) -> dict[str, list[Example]]:
    """
    Read the examples of a task by split, `train` and `validation`, from GLUE's files or a dataset. Sentences are
    stripped, and labels, ids or names, become ids.
    """
    task, splits = GLUE_TASKS[name], {}
    ids = {key: i for i, label in enumerate(task.labels) for key in (str(i), label)}
    for split, file in (("train", "train.tsv"), ("validation", "dev.tsv")):
        if options.dataset_name is not None:
            # Without a configuration of its name, a dataset has one task only.
            has_name = len(options.task) > 1 or name in get_dataset_config_names(options.dataset_name)
            source = f"{options.dataset_name}, {split}"
            rows = load_dataset(options.dataset_name, name if has_name else None, split=split)
            columns = rows.column_names
        else:
            source = getattr(options, f"{split}_file") or Path(options.data_dir) / task.title / file
            columns, rows = read_file(source, task.columns)
        missing = {*task.sentences, "label"} - {*columns}
        if missing or not len(rows):
            what = f"no column `{min(missing)}`" if missing else "no examples"
            raise InputError(f"{source} has {what}, which {task.title} needs: choose another.")
        splits[split] = []
        for number, row in enumerate(rows, start=1):
            if str(row["label"]) not in ids:
                raise InputError(f"Example {number} of {source} has the label {row['label']!r}: use {', '.join(ids)}.")
            # GLUE's files have trailing spaces, which a byte-level tokenizer would turn into a token.
            splits[split].append(([row[column].strip() for column in task.sentences], ids[str(row["label"])]))
    return splits


def read_file(path: str | Path, columns: Sequence[str] | None) -> tuple[Sequence[str], list[dict[str, str]]]:
    """Read a tab-separated file without quoting. Return its columns, by default those of its first line, and rows."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, columns, delimiter="\t", quoting=csv.QUOTE_NONE)
        columns, rows = reader.fieldnames or (), []
        for row in reader:
            # Superfluous values have the name `None`, and missing ones are `None`.
            if None in row or None in row.values():
                raise InputError(
                    f"Line {reader.line_num} of {path} needs {len(columns)} columns: {', '.join(columns)}."
                )
            rows.append(row)
    return columns, rows


def load_classifier(name_or_path: str, task: GlueTask) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """
    Load a checkpoint's trunk into the stock model for sequence classification, in float32, with a new classification
    layer and without the heads; and its tokenizer, with a padding token and a separator for pairs.
    """
    tokenizer = load_tokenizer(name_or_path)
    labels = dict(enumerate(task.labels))
    config = AutoConfig.from_pretrained(
        name_or_path, id2label=labels, label2id={name: i for i, name in labels.items()}
    )
    if len(tokenizer) > config.get_text_config().vocab_size:
        raise InputError(f"{name_or_path} has fewer embeddings than tokens: use the tokenizer of its training.")
    # Models with this field, such as a causal BERT or Reformer, classify at their first token.
    if getattr(config, "is_decoder", False):
        config.is_decoder = False
        if "reformer" in config.model_type:
            config.local_num_chunks_after = config.lsh_num_chunks_after = 1
    model, info = AutoModelForSequenceClassification.from_pretrained(
        name_or_path,
        config=config,
        # Half precision is too coarse for small updates.
        dtype=torch.float32,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    missing = {*info["missing_keys"], *(key[0] for key in info["mismatched_keys"])}
    # The pooler belongs to the classifier.
    trunk = f"{model.base_model_prefix}."
    missing = sorted(name for name in missing if name.startswith(trunk) and ".pooler." not in name)
    if missing:
        raise InputError(f"{name_or_path} is incomplete: `{missing[0]}` is missing or has another shape.")
    # Not the end token: a causal model classifies at the last token that is not padding, which may be that.
    if tokenizer.pad_token_id in (None, tokenizer.eos_token_id):
        tokenizer.add_special_tokens({"pad_token": PADDING})
    if len(tokenizer) > model.config.get_text_config().vocab_size:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    tokenizer.padding_side = "right"
    return model, join_pairs(tokenizer) if len(task.sentences) > 1 else tokenizer


def join_pairs(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return a tokenizer that puts a separator between the texts of a pair, its SEP or EOS token if it has none."""
    if tokenizer.num_special_tokens_to_add(pair=True) > tokenizer.num_special_tokens_to_add(pair=False):
        return tokenizer
    separator = tokenizer.sep_token or tokenizer.eos_token
    if separator is None:
        raise InputError("The tokenizer cannot join two sentences: use one with an `eos_token` or `sep_token`.")
    # The special tokens around a single text also go around a pair.
    encoded = tokenizer("a", return_special_tokens_mask=True)
    tokens, is_special = tokenizer.convert_ids_to_tokens(encoded.input_ids), encoded.special_tokens_mask
    before, after = tokens[: is_special.index(0)], tokens[len(tokens) - is_special[::-1].index(0) :]
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.post_processor = TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", separator, "$B:1", *(f"{token}:1" for token in after)],
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in {*before, separator, *after}],
    )
    # Not the original class: some classes replace the post-processor when loaded.
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=tokenizer.model_max_length,
        padding_side=tokenizer.padding_side,
        clean_up_tokenization_spaces=False,
        **tokenizer.special_tokens_map,
    )


def encode(
    examples: list[Example], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None
) -> list[dict[str, Any]]:
    """Return the model's inputs, a dictionary per example; of a pair, the longer text is truncated first."""
    longest = min(DEFAULT_MAX_LENGTH, max_positions(model) or DEFAULT_MAX_LENGTH, tokenizer.model_max_length)
    options = {"truncation": True, "max_length": max_length or longest}
    if getattr(model.config, "type_vocab_size", 0) < 2:
        # GPT-2, which has no token types, would look them up in the token embedding.
        options["return_token_type_ids"] = False
    return [{**tokenizer(*sentences, **options), "labels": label} for sentences, label in examples]


def padding_collator(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> DataCollatorWithPadding:
    """Return a collator that pads to the longest example; for a Reformer, which needs a fixed length, to that."""
    if model.config.model_type != "reformer":
        return DataCollatorWithPadding(tokenizer)
    return DataCollatorWithPadding(tokenizer, "max_length", max_positions(model))


def predicted_labels(logits: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor) -> torch.Tensor:
    """Return the predicted ids: Trainer need not keep the logits, or an encoder's hidden states after them."""
    return (logits[0] if isinstance(logits, tuple) else logits).argmax(-1)


def summary(values: Sequence[float]) -> dict[str, float | None]:
    """Return mean and sample standard deviation, the latter for several values."""
    return {"mean": mean(values), "std": stdev(values) if len(values) > 1 else None}


def save_results(results: dict[str, dict[str, Any]], model: str, folder: Path) -> None:
    """Print the table, and save it with a plot of the metric over the epochs."""
    from matplotlib.figure import Figure

    rows = [["task", "metric", "seeds", "last epoch", "best epoch", "majority class"]]
    figure = Figure(figsize=(4.5 * len(results), 3.6), layout="constrained")
    all_axes = figure.subplots(1, len(results), squeeze=False)[0]
    for axes, (name, result) in zip(all_axes, results.items(), strict=True):
        title, metric = GLUE_TASKS[name].title, result["metric"].replace("_", " ").capitalize()
        cells = [
            f"{100 * each['mean']:.1f}" + ("" if each["std"] is None else f" ± {100 * each['std']:.1f}")
            for each in (result["last_epoch"], result["best_epoch"])
        ]
        majority = 100 * result["majority_class"]
        rows.append([title, metric, f"{len(result['by_seed'])}", *cells, f"{majority:.1f}"])
        for seed, scores in result["by_seed"].items():
            epochs = range(1, len(scores) + 1)
            axes.plot(epochs, [100 * score for score in scores], marker="o", label=f"seed {seed}")
        axes.axhline(majority, color="gray", linestyle="--", label="majority class")
        axes.set(title=title, xlabel="epoch", ylabel=f"{metric} × 100")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(folder / "glue.png", dpi=120)
    text = json.dumps({"model": model, "tasks": results}, indent=2, ensure_ascii=False, allow_nan=False)
    (folder / "glue_metrics.json").write_text(text + "\n", encoding="utf-8")
    print(f"\nValidation, × 100: mean ± standard deviation over seeds\n\n{as_text(rows)}")
    print("\nReport the last epoch: the best one is chosen per seed by the validation score, which is optimistic.")
    print(f"\nSaved in {folder}: a model per task and seed, glue_metrics.json and glue.png.")
