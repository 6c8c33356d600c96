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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm, prod
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
from transformers.utils import logging

from ..data.errors import InputError
from ..data.tokenizers import PADDING, load_tokenizer
from ..evaluation.models import max_positions
from ..metrics import GLUE
from .options import RunTrainingArguments, check_at_least, choice
from .parsing import parse
from .report import as_text
from .run_folder import RunFolder, settings_of
from .trainer import ResumableTrainer

logger = logging.get_logger(__name__)

DEFAULT_MAX_LENGTH = 128


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


GLUE_TASKS = {
    "sst2": GlueTask("SST-2", ("sentence",), ("negative", "positive"), "accuracy"),
    "cola": GlueTask(
        "CoLA",
        ("sentence",),
        ("unacceptable", "acceptable"),
        "matthews_correlation",
        columns=("source", "label", "star", "sentence"),
    ),
    "rte": GlueTask("RTE", ("sentence1", "sentence2"), ("entailment", "not_entailment"), "accuracy"),
}


class Examples(NamedTuple):
    """The texts of a split, a list for each text column, and the label ids."""

    texts: list[list[str]]
    labels: list[int]


@dataclass
class GlueOptions:
    """The tasks, their examples (GLUE's files or a dataset), and the seeds."""

    # An evaluated run has no data options for this script.
    sources: ClassVar[tuple[str, ...]] = ()

    task: list[str] = choice(None, GLUE_TASKS, "Tasks to fine-tune on, one or more.")
    train_file: str | None = HfArg(default=None, help="Training examples of one task, in the format of its train.tsv.")
    validation_file: str | None = HfArg(default=None, help="Its validation examples, in the format of its dev.tsv.")
    data_dir: str | None = HfArg(
        default=None,
        help="Instead of these files, a folder with a subfolder for each task (SST-2, CoLA, RTE) with train.tsv and "
        "dev.tsv.",
    )
    dataset_name: str | None = HfArg(
        default=None,
        help="Dataset instead of files, with a configuration per task: a name on the Hub, such as `glue`, or a "
        "folder. For a single task, it need not have configurations.",
    )
    max_length: int | None = HfArg(
        default=None,
        help="Truncate examples to this many tokens. Default: 128, or the model's maximum if that is less.",
    )
    seeds: list[int] | None = HfArg(
        default=None, help="Fine-tune once per seed, and report mean and standard deviation. Default: only `--seed`."
    )

    def __post_init__(self):
        if not self.task:
            raise InputError(f"`--task` is required: choose one or more of {', '.join(GLUE_TASKS)}.")
        files = self.train_file is not None and self.validation_file is not None
        if [files, self.data_dir is not None, self.dataset_name is not None].count(True) != 1:
            raise InputError(
                "The examples are missing, or given twice: set `--data_dir`, `--dataset_name`, or `--train_file` and "
                "`--validation_file`."
            )
        if files and len(self.task) > 1:
            raise InputError("`--train_file` and `--validation_file` are for one `--task`: use `--data_dir`.")
        # Leaves room for text besides the special tokens.
        check_at_least(self, 8, "max_length")


@dataclass
class GlueModelOptions:
    """The checkpoint to fine-tune."""

    presets: ClassVar[dict] = {}

    model_name_or_path: str | None = HfArg(
        default=None,
        help="Checkpoint to fine-tune, with its tokenizer, with or without N-gram heads: a folder or a name on the "
        "Hub.",
    )

    def __post_init__(self):
        if self.model_name_or_path is None:
            raise InputError("`--model_name_or_path` is required: give a checkpoint with its tokenizer.")


@dataclass
class GlueTrainingArguments(RunTrainingArguments):
    """Trainer's options, with defaults from the recipe of Cramming (hf.co/papers/2212.14034)."""

    num_train_epochs: float = HfArg(default=5.0, help="Number of epochs.")
    learning_rate: float = HfArg(default=4e-5, help="Peak learning rate.")
    lr_scheduler_type: str = HfArg(default="cosine", help="Learning rate schedule.")
    warmup_steps: float = HfArg(default=0.1, help="Warmup steps; a value below 1 is a share of all steps.")
    per_device_train_batch_size: int = HfArg(default=16, help="Examples per batch and process.")
    per_device_eval_batch_size: int = HfArg(default=64, help="Examples per batch and process in evaluation.")
    train_sampling_strategy: str | None = choice(
        None,
        ("random", "sequential", "group_by_length"),
        "Order of the training examples. Default: `group_by_length`, which batches texts of similar length and takes "
        "half the time; with several processes, `random`.",
    )
    logging_strategy: str = HfArg(default="epoch", help="When to log the training loss: `epoch`, `steps` or `no`.")
    save_total_limit: int | None = HfArg(default=1, help="Number of checkpoints to keep per run.")
    load_best_model_at_end: bool = HfArg(
        default=False,
        help="Save the model of the epoch with the best validation metric instead of the last. The report shows the "
        "scores of both.",
    )

    def __post_init__(self):
        if not self.do_train or self.eval_strategy != "epoch":
            raise InputError("A classifier is trained, and evaluated every epoch: remove the options that differ.")
        requested = self.train_sampling_strategy
        self.train_sampling_strategy = requested or "random"
        super().__post_init__()
        # Each process would group in its own order, so that some examples are read twice and others never.
        if self.world_size > 1 and requested == "group_by_length":
            raise InputError("`--train_sampling_strategy group_by_length` needs a single process: remove the option.")
        if self.world_size == 1 and requested is None:
            self.train_sampling_strategy = "group_by_length"


def main(arguments: Sequence[str]) -> list[dict[str, Any]]:
    """
    Fine-tune a checkpoint on every task with every seed; print, plot and save the validation metrics. Return those of
    each task, as in `glue_metrics.json`.
    """
    classes = (GlueOptions, GlueModelOptions, GlueTrainingArguments)
    options, model_options, all_training = parse(
        classes, arguments, "ngram-wdr glue", __doc__, {"output_dir": "runs/glue"}
    )
    name_or_path, results = model_options.model_name_or_path, {}
    with all_training.main_process_first(local=False, desc="reading the examples"):
        # All files are read before hours of training.
        splits = {name: read_examples(options, name) for name in options.task}
    for name, examples in splits.items():
        task, labels = GLUE_TASKS[name], examples["validation"].labels
        # In memory: processes would lock each other's files.
        metric = evaluate.load(GLUE, name, keep_in_memory=True)
        ((majority, _),) = Counter(examples["train"].labels).most_common(1)
        guess = metric.compute(predictions=[majority] * len(labels), references=labels)
        scores = {}
        for seed in options.seeds or [all_training.seed]:
            # Not `replace`: `TrainingArguments.__post_init__` cannot run twice.
            training = copy.copy(all_training)
            training.seed = seed
            training.output_dir = str(Path(training.output_dir) / name / f"seed-{seed}")
            if training.load_best_model_at_end:
                training.select_by(task.metric)
            folder = RunFolder(training.output_dir)
            settings = settings_of(replace(options, task=[name], seeds=None), model_options, training)
            with folder.claimed(settings, training):
                if not folder.is_finished():
                    # The seed also initializes the new weights.
                    set_seed(seed)
                    with training.main_process_first(local=False, desc="preparing data and model"):
                        model, tokenizer = load_classifier(name_or_path, task)
                        rows = {
                            split: encode(each, model, tokenizer, options.max_length)
                            for split, each in examples.items()
                        }
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
                name_of_score = f"eval_{task.metric}"
                scores[str(seed)] = [
                    entry[name_of_score] for entry in folder.history(training) if name_of_score in entry
                ]
        results[name] = {
            "metric": task.metric,
            "last_epoch": summary([each[-1] for each in scores.values()]),
            # Optimistic, as the epoch is chosen by the reported metric.
            "best_epoch": summary([max(each) for each in scores.values()]),
            "majority_class": guess[task.metric],
            "by_seed": scores,
            "num_train": len(examples["train"].labels),
            "num_validation": len(labels),
        }
    if all_training.process_index == 0:
        save_results(results, name_or_path, Path(all_training.output_dir))
    return list(results.values())


def read_examples(options: GlueOptions, name: str) -> dict[str, Examples]:
    """Read the examples of a task by split, `train` and `validation`, from GLUE's files or a dataset."""
    task = GLUE_TASKS[name]
    if options.dataset_name is not None:
        # Without a configuration of its name, a dataset has one task only.
        has_name = len(options.task) > 1 or name in get_dataset_config_names(options.dataset_name)
        dataset = load_dataset(options.dataset_name, name if has_name else None)
        return {
            split: examples_of(dataset[split], dataset[split].column_names, task, f"{options.dataset_name}, {split}")
            for split in ("train", "validation")
        }
    folder = Path(options.data_dir or "") / task.title
    files = {
        "train": options.train_file or folder / "train.tsv",
        "validation": options.validation_file or folder / "dev.tsv",
    }
    return {split: read_file(path, task) for split, path in files.items()}


def read_file(path: str | Path, task: GlueTask) -> Examples:
    """Read one of GLUE's own files: tab-separated, without quoting, with a header line unless the task has columns."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, task.columns, delimiter="\t", quoting=csv.QUOTE_NONE)
        columns, rows = reader.fieldnames or (), []
        for row in reader:
            # Superfluous values are under `None`, and missing ones are `None`.
            if None in row or None in row.values():
                raise InputError(
                    f"Line {reader.line_num} of {path} must have {len(columns)} columns separated by tabs: "
                    f"{', '.join(columns)}."
                )
            rows.append(row)
    return examples_of(rows, columns, task, path)


def examples_of(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], task: GlueTask, source: Any) -> Examples:
    """Make examples of rows: sentences are stripped, and labels, ids or names, become ids."""
    missing = {*task.sentences, "label"} - {*columns}
    if missing:
        raise InputError(f"{source} has no column `{min(missing)}`, which {task.title} needs: add it.")
    ids = {name: i for i, label in enumerate(task.labels) for name in (str(i), label)}
    examples = Examples([[] for _ in task.sentences], [])
    for number, row in enumerate(rows, start=1):
        if str(row["label"]) not in ids:
            raise InputError(f"Example {number} of {source} has the label {row['label']!r}: use {', '.join(ids)}.")
        examples.labels.append(ids[str(row["label"])])
        for column, name in zip(examples.texts, task.sentences, strict=True):
            # GLUE's files have trailing spaces, which a byte-level tokenizer would turn into a token.
            column.append(row[name].strip())
    if not examples.labels:
        raise InputError(f"{source} has no examples: choose another.")
    return examples


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
    # These models classify at their first token, such as a causal BERT or Reformer.
    if getattr(config, "is_decoder", False):
        logger.warning(f"Attention of the {config.model_type} is now bidirectional, as it classifies its first token.")
        config.is_decoder = False
        if config.model_type == "reformer":
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
    examples: Examples, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None
) -> list[dict[str, Any]]:
    """Return the model's inputs, a dictionary per example; of a pair, the longer text is truncated first."""
    longest = min(max_positions(model) or tokenizer.model_max_length, tokenizer.model_max_length)
    if max_length is not None and max_length > longest:
        raise InputError(f"`--max_length` must be at most {longest}, the model's maximum, got {max_length}.")
    encoded = tokenizer(*examples.texts, truncation=True, max_length=max_length or min(DEFAULT_MAX_LENGTH, longest))
    # GPT-2, which has no token types, would look them up in the token embedding.
    if getattr(model.config, "type_vocab_size", 0) < 2:
        encoded.pop("token_type_ids", None)
    names = [*encoded, "labels"]
    return [dict(zip(names, row, strict=True)) for row in zip(*encoded.values(), examples.labels, strict=True)]


def padding_collator(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> DataCollatorWithPadding:
    """Return a collator that pads to the longest example; for a Reformer, to the lengths that it can read."""
    config = model.config
    if config.model_type != "reformer":
        return DataCollatorWithPadding(tokenizer)
    if config.axial_pos_embds:
        return DataCollatorWithPadding(tokenizer, "max_length", prod(config.axial_pos_shape))
    chunks = (getattr(config, f"{kind}_attn_chunk_length") for kind in set(config.attn_layers))
    return DataCollatorWithPadding(tokenizer, pad_to_multiple_of=lcm(*chunks))


def predicted_labels(logits: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor) -> torch.Tensor:
    """Return the predicted ids, so that Trainer need not keep the logits, nor an encoder's hidden states after them."""
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
