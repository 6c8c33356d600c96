r"""
Fine-tune a checkpoint, with or without N-gram heads, on SST-2, CoLA and RTE, three tasks of GLUE.

    ngram-wdr glue --model_name_or_path runs/clm --task sst2 cola rte --data_dir GLUE --seeds 1 2 3 4 5
    ngram-wdr glue --model_name_or_path runs/clm --task cola --dataset_name glue --output_dir runs/cola
    accelerate launch --multi_gpu -m ngram_wdr_hf glue ...   # several GPUs

The result is a stock model of Transformers, without N-gram heads. Repeat a command to resume interrupted runs, or to
print the results of finished ones. `python finetune_glue.py` is the same command.
"""

import copy
import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, mode, stdev
from typing import Any, ClassVar, NamedTuple

import evaluate
import torch
from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.hf_argparser import HfArg

from ..data.errors import InputError
from ..data.tokenizers import PADDING, load_tokenizer
from ..evaluation.models import max_positions
from ..metrics import GLUE
from .options import Options, RunTrainingArguments, optional
from .parsing import parse
from .report import as_text
from .run_folder import RunFolder, settings_of
from .trainer import ResumableTrainer

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
    # Batches of similar lengths take half the time.
    "train_sampling_strategy": "group_by_length",
}


class GlueTask(NamedTuple):
    """A task: its folder, text columns, labels by id, metric, and the columns of files without a line of them."""

    title: str
    sentences: tuple[str, ...]
    labels: tuple[str, ...]
    metric: str
    columns: tuple[str, ...] | None = None


Example = tuple[list[str], int]  # sentences and label id
COLA_COLUMNS = ("source", "label", "star", "sentence")
GLUE_TASKS = {
    "sst2": GlueTask("SST-2", ("sentence",), ("negative", "positive"), "accuracy"),
    "cola": GlueTask("CoLA", ("sentence",), ("unacceptable", "acceptable"), "matthews_correlation", COLA_COLUMNS),
    "rte": GlueTask("RTE", ("sentence1", "sentence2"), ("entailment", "not_entailment"), "accuracy"),
}


@dataclass
class GlueOptions(Options):
    """The tasks, their examples (GLUE's files or a dataset), and the seeds."""

    # With these options, none come from the checkpoint's run.
    sources: ClassVar[tuple[str, ...]] = ("data_dir", "dataset_name")
    model_options: ClassVar[set[str]] = set()

    task: list[str] = HfArg(help="Tasks to fine-tune on.", metadata={"choices": list(GLUE_TASKS)})
    data_dir: str | None = optional("Folder with those of GLUE's folders SST-2, CoLA and RTE that are needed.")
    dataset_name: str | None = optional("Or a dataset such as `glue`, whose configurations are the tasks.")
    max_length: int | None = optional("Truncate examples to this many tokens. Default: the model's limit, up to 128.")
    seeds: list[int] | None = optional("Fine-tune once per seed, and report the mean. Default: only `--seed`.")

    def __post_init__(self):
        if (self.data_dir is None) == (self.dataset_name is None):
            raise InputError("Set either `--data_dir` or `--dataset_name`.")
        # Some of them are special tokens.
        self.check_at_least(8, "max_length")


@dataclass
class GlueModelOptions:
    """The checkpoint to fine-tune."""

    presets: ClassVar[dict] = {}

    model_name_or_path: str = HfArg(help="Checkpoint to fine-tune: a folder or a name on the Hub.")


def main(arguments: Sequence[str]) -> list[dict[str, Any]]:
    """Fine-tune a checkpoint on every task with every seed. Return the results, as in `glue_metrics.json`."""
    classes = (GlueOptions, GlueModelOptions, RunTrainingArguments)
    options, model_options, all_training = parse(classes, arguments, "ngram-wdr glue", __doc__, DEFAULTS)
    if all_training.world_size > 1 and all_training.train_sampling_strategy == "group_by_length":
        # Each process would group in its own order, so that some examples are read twice and others never.
        all_training.train_sampling_strategy = "random"
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
            settings = settings_of(replace(options, task=[name], seeds=None), model_options, training)
            with RunFolder.claimed(settings, training) as folder:
                if not folder.is_finished():
                    # 2. Model; the seed also initializes its new weights
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
                    folder.train(trainer)
                evaluations = [entry for entry in folder.history() if "eval_loss" in entry]
                scores[str(seed)] = [entry[f"eval_{task.metric}"] for entry in evaluations]

        # 4. Evaluate
        train, validation = ([label for _, label in examples[split]] for split in ("train", "validation"))
        majority = metric.compute(predictions=[mode(train)] * len(validation), references=validation)
        last = [each[-1] for each in scores.values()]
        results[name] = {
            "metric": task.metric,
            "last_epoch": {"mean": mean(last), "std": stdev(last) if len(last) > 1 else None},
            "majority_class": majority[task.metric],
            "by_seed": scores,
            "num_train": len(train),
            "num_validation": len(validation),
        }

    # 5. Save and report
    if all_training.process_index == 0:
        rows = [["task", "metric", "seeds", "last epoch", "majority class"]]
        for name, result in results.items():
            last, metric = result["last_epoch"], result["metric"].replace("_", " ").capitalize()
            score = f"{100 * last['mean']:.1f}" + ("" if last["std"] is None else f" ± {100 * last['std']:.1f}")
            majority = f"{100 * result['majority_class']:.1f}"
            rows.append([GLUE_TASKS[name].title, metric, f"{len(result['by_seed'])}", score, majority])
        metrics, path = {"model": model_options.model_name_or_path, "tasks": results}, Path(all_training.output_dir)
        text = json.dumps(metrics, indent=2, ensure_ascii=False, allow_nan=False)
        (path / "glue_metrics.json").write_text(text + "\n", encoding="utf-8")
        print(f"\nValidation, × 100: mean ± standard deviation over seeds\n\n{as_text(rows)}")
        print(f"\nSaved in {path}: a model per task and seed, and glue_metrics.json.")
    return list(results.values())


def read_examples(options: GlueOptions, name: str) -> dict[str, list[Example]]:
    """Return the examples of a task by split, `train` and `validation`. Their labels are given as ids or names."""
    task, splits = GLUE_TASKS[name], {}
    needed = (*task.sentences, "label")
    ids = {key: i for i, label in enumerate(task.labels) for key in (str(i), label)}
    for split, file in (("train", "train.tsv"), ("validation", "dev.tsv")):
        if options.dataset_name is not None:
            source = options.dataset_name
            rows = load_dataset(source, name, split=split)
        else:
            source = Path(options.data_dir) / task.title / file
            # Not pandas, which silently fills up short lines.
            with open(source, encoding="utf-8-sig", newline="") as lines:
                rows = list(csv.DictReader(lines, task.columns, delimiter="\t", quoting=csv.QUOTE_NONE))
        if not len(rows):
            raise InputError(f"{source} has no examples: choose another.")
        splits[split] = []
        for number, row in enumerate(rows, start=1):
            *sentences, label = map(row.get, needed)
            # In a file, missing values are `None`, and superfluous ones have the name `None`.
            if None in row or None in sentences or str(label) not in ids:
                what = f"a value per column, also {', '.join(needed)}, and one of the labels {', '.join(ids)}"
                raise InputError(f"Example {number} of {source}, {split}, needs {what}: {row}.")
            # GLUE's files have trailing spaces, which a byte-level tokenizer would turn into a token.
            splits[split].append(([text.strip() for text in sentences], ids[str(label)]))
    return splits


def load_classifier(name_or_path: str, task: GlueTask) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the stock classifier with a checkpoint's trunk, in float32, and a tokenizer that can pad."""
    tokenizer = load_tokenizer(name_or_path)
    labels = dict(enumerate(task.labels))
    config = AutoConfig.from_pretrained(name_or_path, id2label=labels, label2id={labels[i]: i for i in labels})
    if len(tokenizer) > config.get_text_config().vocab_size:
        raise InputError(f"{name_or_path} has fewer embeddings than tokens: use the tokenizer of its training.")
    # Models with this field, such as a causal BERT or Reformer, classify at their first token.
    if getattr(config, "is_decoder", False):
        config.is_decoder = False
        if "reformer" in config.model_type:
            config.local_num_chunks_after = config.lsh_num_chunks_after = 1
    # Half precision is too coarse for small updates.
    model, info = AutoModelForSequenceClassification.from_pretrained(
        name_or_path, config=config, dtype=torch.float32, ignore_mismatched_sizes=True, output_loading_info=True
    )
    missing = [*info["missing_keys"], *(key[0] for key in info["mismatched_keys"])]
    # The pooler belongs to the classifier.
    missing = [name for name in missing if name.startswith(f"{model.base_model_prefix}.") and ".pooler." not in name]
    if missing:
        raise InputError(f"{name_or_path} is incomplete: `{min(missing)}` is missing or has another shape.")
    # Not the end token: a causal model classifies at the last token that is not padding, which may be that.
    if tokenizer.pad_token_id in (None, tokenizer.eos_token_id):
        tokenizer.add_special_tokens({"pad_token": PADDING})
    if len(tokenizer) > model.config.get_text_config().vocab_size:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    # Truncated at the left, a text would lose its separator.
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    return model, tokenizer


def joined(sentences: list[str], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the texts to encode together: SEP or EOS begins the second one, unless the tokenizer separates pairs."""
    num_added = [tokenizer.num_special_tokens_to_add(pair=is_pair) for is_pair in (False, True)]
    if len(sentences) == 1 or num_added[1] > num_added[0]:
        return sentences
    separator = tokenizer.sep_token or tokenizer.eos_token
    if separator is None or num_added[1] < num_added[0]:
        raise InputError("The tokenizer cannot join two sentences: use one that adds special tokens to pairs.")
    return [sentences[0], f"{separator}{sentences[1]}"]


def encode(
    examples: list[Example], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None
) -> list[dict[str, Any]]:
    """Return the model's inputs, a dictionary per example; of a pair, the longer text is truncated first."""
    longest = min(128, max_positions(model) or 128, tokenizer.model_max_length)
    options = {"truncation": True, "max_length": max_length or longest}
    if getattr(model.config, "type_vocab_size", 0) < 2:
        # GPT-2, which has no token types, would look them up in the token embedding.
        options["return_token_type_ids"] = False
    return [{**tokenizer(*joined(sentences, tokenizer), **options), "labels": label} for sentences, label in examples]


def padding_collator(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> DataCollatorWithPadding:
    """Return a collator that pads to the longest example; for a Reformer, which needs a fixed length, to that."""
    if model.config.model_type != "reformer":
        return DataCollatorWithPadding(tokenizer)
    return DataCollatorWithPadding(tokenizer, "max_length", max_positions(model))


def predicted_labels(logits: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor) -> torch.Tensor:
    """Return the predicted ids: Trainer need not keep the logits, or an encoder's hidden states after them."""
    return (logits[0] if isinstance(logits, tuple) else logits).argmax(-1)
