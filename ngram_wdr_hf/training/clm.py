"""A language modeling run from beginning to end: data, training, evaluation, report."""

import copy
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import EarlyStoppingCallback, PreTrainedModel, default_data_collator, set_seed
from transformers.integrations import get_reporting_integration_callbacks

from .. import WDRNgramGPT2LMHeadModel
from ..data.errors import InputError
from ..data.stream import EvaluationWindows, StreamedBlocks, TrainingBlocks, evaluation_windows
from .arguments import ClmArguments
from .clm_data import ClmData, check_lengths, find_tokenizer, load_splits, tokenize_splits
from .hub import make_repository, push_run
from .models import build_model, choose_weights
from .report import (
    RunResult,
    print_tables,
    save_lambda_plot,
    save_metrics,
    save_model_card,
    save_training_plot,
)
from .run_folder import RunFolder, check_checkpoint
from .trainer import NgramTrainer

# Options of Trainer that decide what is learned; the others decide how it is computed and shown.
LEARNING_OPTIONS = (
    "seed",
    "data_seed",
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "learning_rate",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "weight_decay",
    "optim",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "bf16",
    "fp16",
)
OTHER_OPTIONS = ("stride", "num_workers", "compare", "prompt", "sample_tokens", "lambda_grid")
# The paper's best, as a rule: for a sample of the ensemble where a run found none better than 0.
USUAL_LAMBDA = 0.4
# What `--compare` calls the models, and the target that makes them.
MODELS = {"plain": "none", "simple": "simple", "wdr": "wdr"}


def run_clm(arguments: ClmArguments) -> list[RunResult]:
    """Trains if asked to, evaluates, reports; with `--compare`, all three kinds of model."""
    _check_together(arguments)
    is_main = arguments.training.process_index == 0
    repository = make_repository(arguments.training) if is_main else None
    # Trainer's own pushes would come with a card of its own.
    arguments.training.push_to_hub = False
    results = [_run(arguments)]
    if arguments.report.compare:
        results += [_run(other) for other in _others(arguments)]
    if is_main:
        print_tables(results)
        if arguments.report.compare:
            folder = Path(arguments.training.output_dir)
            save_lambda_plot(results, folder / "comparison.png")
            save_training_plot(results, folder / "comparison_training.png")
        if arguments.training.do_train:
            print(f"\nSaved in {arguments.training.output_dir}: the model, README.md, metrics.json and the plots.")
        if repository is not None:
            push_run(Path(arguments.training.output_dir), repository, arguments.training)
            print(f"Pushed to {repository}.")
    return results


def _check_together(arguments: ClmArguments) -> None:
    """What only shows when all options are there."""
    data, model, training = arguments.data, arguments.model, arguments.training
    if not training.do_train and model.model_name_or_path is None:
        raise InputError("`--do_train false` evaluates a trained model: say which with `--model_name_or_path`.")
    if data.streaming and training.do_train and training.max_steps <= 0:
        raise InputError("A streamed text has no known length: set `--max_steps`.")
    if arguments.report.compare and not training.do_train:
        raise InputError("`--compare` trains models: leave out `--do_train false`.")
    if training.push_to_hub and not training.do_train:
        raise InputError("`--push_to_hub` pushes what was trained: leave out `--do_train false`.")
    if training.label_smoothing_factor:
        raise InputError(
            "Trainer's `--label_smoothing_factor` takes the labels away from the heads: use `--label_smoothing`."
        )
    if model.train_mode == "lora" and (training.fsdp or os.environ.get("ACCELERATE_USE_FSDP") == "true"):
        raise InputError("Adapters cannot be merged from FSDP's shards: use `--train_mode lora` without FSDP.")
    try:
        for callback in get_reporting_integration_callbacks(training.report_to):
            callback()
    except (ValueError, RuntimeError, ImportError) as error:
        raise InputError(f"`--report_to` cannot be used: {error}") from error


def _others(arguments: ClmArguments) -> list[ClmArguments]:
    """The same run for the other kinds of model, each in a folder of its own inside the run's."""
    others = []
    for name, target in MODELS.items():
        if target != (arguments.model.ngram_target or "wdr"):
            # `TrainingArguments` is not made to be made twice.
            training = copy.copy(arguments.training)
            training.output_dir = str(Path(arguments.training.output_dir) / name)
            ngram_size = None if target == "none" else arguments.model.ngram_size
            model = replace(arguments.model, ngram_target=target, ngram_size=ngram_size)
            others.append(replace(arguments, model=model, training=training))
    return others


def _run(arguments: ClmArguments) -> RunResult:
    training, do_train = arguments.training, arguments.training.do_train
    folder = RunFolder(training.output_dir)
    settings = _settings(arguments)
    # Models that are compared begin with the same weights.
    set_seed(training.seed)
    # The first process trains the tokenizer and tokenizes; the others, on all machines, find both done.
    with training.main_process_first(local=False, desc="preparing the data"):
        if do_train:
            folder.check(settings)
        splits = load_splits(arguments.data, do_train)
        tokenizer = find_tokenizer(splits, arguments.data, arguments.model, folder.path if do_train else None)
        data = tokenize_splits(splits, tokenizer, arguments.data)
        model = build_model(arguments.model, tokenizer, arguments.data.block_size, do_train)
        check_lengths(data, model.config.ngram_size)
        block_size = _block_size(model, arguments.data.block_size)
        if do_train:
            model = choose_weights(model, arguments.model)
            checkpoint = _checkpoint_to_resume(arguments, folder)
            # By the first process alone: the others read these files at the same time.
            if training.should_save:
                folder.claim(settings)
                tokenizer.save_pretrained(folder.path)
    windows = {
        split: evaluation_windows(stream, tokenizer, block_size, arguments.data.stride)
        for split, stream in data.streams.items()
        if split != "train"
    }
    if do_train and not folder.is_trained():
        _train(arguments, model, data, windows, block_size, checkpoint)
    if do_train:
        model = WDRNgramGPT2LMHeadModel.from_pretrained(folder.path)
    return _evaluate(arguments, model, tokenizer, windows, folder, settings)


def _settings(arguments: ClmArguments) -> dict[str, Any]:
    """What makes a run this run and no other, as options that can be given again."""
    options = {**asdict(arguments.data), **asdict(arguments.model), **asdict(arguments.report)}
    options = {name: value for name, value in options.items() if value is not None and name not in OTHER_OPTIONS}
    for name in LEARNING_OPTIONS:
        value = getattr(arguments.training, name)
        options[name] = str(getattr(value, "value", value)) if isinstance(value, str) else value
    return options


def _block_size(model: PreTrainedModel, asked: int | None) -> int:
    longest = model.config.max_position_embeddings
    if asked is not None and asked > longest:
        raise InputError(f"`--block_size {asked}` is more than the model can see: at most {longest}.")
    block_size = asked or longest
    if block_size <= model.config.ngram_size:
        raise InputError(
            f"N = {model.config.ngram_size} needs blocks of more than {model.config.ngram_size} tokens: raise "
            f"`--block_size`, which is {block_size}."
        )
    return block_size


def _checkpoint_to_resume(arguments: ClmArguments, folder: RunFolder) -> str | None:
    asked = arguments.training.resume_from_checkpoint
    if asked is None or asked.lower() == "true":
        return folder.last_checkpoint()
    if asked.lower() == "false":
        return None
    check_checkpoint(Path(asked))
    return asked


def _train(
    arguments: ClmArguments,
    model: nn.Module,
    data: ClmData,
    windows: dict[str, EvaluationWindows],
    block_size: int,
    checkpoint: str | None,
) -> None:
    """Trains, and saves the whole model: adapters merged, heads included."""
    training = arguments.training
    if data.streamed is not None:
        blocks = StreamedBlocks(data.streamed, block_size)
    else:
        blocks = TrainingBlocks(data.streams["train"], block_size)
    trainer = NgramTrainer(
        model,
        training,
        train_dataset=blocks,
        eval_dataset=windows.get("validation"),
        processing_class=data.tokenizer,
        data_collator=default_data_collator,
        lambda_grid=arguments.report.lambda_grid if model.ngram_heads else (),
    )
    if arguments.report.patience is not None and training.load_best_model_at_end:
        trainer.add_callback(EarlyStoppingCallback(arguments.report.patience))
    trainer.train(resume_from_checkpoint=checkpoint)
    if arguments.model.train_mode == "lora":
        if training.should_save:
            trainer.model.save_pretrained(Path(training.output_dir) / "adapter")
            trainer.model.merge_and_unload().save_pretrained(training.output_dir)
    else:
        trainer.save_model()
    # Written last: it says that the training is complete.
    trainer.save_state()
    trainer.accelerator.wait_for_everyone()


def _evaluate(
    arguments: ClmArguments,
    model: PreTrainedModel,
    tokenizer,
    windows: dict[str, EvaluationWindows],
    folder: RunFolder,
    settings: dict[str, Any],
) -> RunResult:
    """The table and the λ, from the model as it was saved, and all that the run leaves."""
    training = arguments.training
    has_heads = len(model.ngram_heads) > 0
    # What the training reported to is closed by now.
    silent = copy.copy(training)
    silent.report_to = []
    trainer = NgramTrainer(
        model,
        silent,
        # Trainer wants one when it is made; each is given by name below.
        eval_dataset=next(iter(windows.values())),
        lambda_grid=arguments.report.lambda_grid if has_heads else (),
    )
    scores = {}
    for split, text in windows.items():
        trainer.evaluate(text, metric_key_prefix=split)
        scores[split] = trainer.last_scores
    ensemble_lambda = scores["validation"].best_lambda if "validation" in scores else model.resolve_lambda()
    result = RunResult(
        name=f"{model.config.ngram_target} N={model.config.ngram_size}" if has_heads else "plain",
        settings=settings,
        num_parameters=model.num_parameters(),
        head_parameters=sum(parameter.numel() for parameter in model.ngram_heads.parameters()),
        scores=scores,
        ensemble_lambda=ensemble_lambda,
        history=folder.history() if training.do_train else [],
        samples={},
    )
    if training.should_save:
        result.samples = _samples(arguments, model, tokenizer, windows, ensemble_lambda)
        if training.do_train:
            _save_lambda(folder.path / "config.json", ensemble_lambda)
            save_lambda_plot([result], folder.path / "lambda_sweep.png")
            save_training_plot([result], folder.path / "training.png")
            save_model_card(result, folder.path / "README.md")
            save_metrics(result, folder.path / "metrics.json")
        for label, text in result.samples.items():
            print(f"\n--- {result.name}, λ={label}\n{text}")
    trainer.accelerator.wait_for_everyone()
    return result


def _save_lambda(path: Path, ensemble_lambda: float) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    config["ensemble_lambda"] = ensemble_lambda
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


@torch.no_grad()
def _samples(arguments: ClmArguments, model, tokenizer, windows, ensemble_lambda: float) -> dict[str, str]:
    """The same prompt continued without and with the ensemble, from the same random numbers."""
    length = arguments.report.sample_tokens
    if length == 0:
        return {}
    if arguments.report.prompt:
        prompt = tokenizer(arguments.report.prompt, return_tensors="pt", add_special_tokens=False).input_ids
    else:
        prompt = next(iter(windows.values())).stream[:16][None]
    longest = model.config.max_position_embeddings
    prompt = prompt[:, -longest // 2 :].to(model.device)
    model.eval()
    texts = {}
    for value in (0.0, ensemble_lambda or USUAL_LAMBDA) if model.ngram_heads else (0.0,):
        torch.manual_seed(arguments.training.seed)
        ids = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=min(length, longest - prompt.shape[1]),
            do_sample=True,
            temperature=0.8,
            top_k=40,
            ensemble_lambda=value,
        )
        texts[f"{value:g}"] = tokenizer.decode(ids[0])
    return texts
