"""A language modeling run from beginning to end: data, training, evaluation, report."""

import copy
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    TrainerState,
    default_data_collator,
    set_seed,
)

from .. import WDRNgramGPT2LMHeadModel
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
from .run_folder import RunFolder, check_checkpoint, result_of
from .settings import check_prompt, check_together, find_block_size, others, run_settings, with_text_of_run
from .trainer import NgramTrainer

# The paper's best, as a rule: for a sample of the ensemble where a run found none better than 0.
USUAL_LAMBDA = 0.4


def run_clm(arguments: ClmArguments) -> list[RunResult]:
    """Trains if asked to, evaluates, reports; with `--compare`, all three kinds of model."""
    check_together(arguments)
    is_main = arguments.training.process_index == 0
    repository = make_repository(arguments.training) if is_main else None
    # Trainer's own pushes would come with a card of its own.
    arguments.training.push_to_hub = False
    if not arguments.training.do_train:
        arguments = with_text_of_run(arguments)
    results = [_run(arguments)]
    if arguments.report.compare:
        results += [_run(other) for other in others(arguments)]
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


def _run(arguments: ClmArguments) -> RunResult:
    training, do_train = arguments.training, arguments.training.do_train
    folder = RunFolder(training.output_dir)
    settings = run_settings(arguments)
    # Models that are compared begin with the same weights.
    set_seed(training.seed)
    # The first process trains the tokenizer and tokenizes; the others, on all machines, find both done.
    with training.main_process_first(local=False, desc="preparing the data"):
        if do_train:
            folder.check(settings)
        splits = load_splits(arguments.data, do_train)
        tokenizer = find_tokenizer(splits, arguments.data, arguments.model, folder.path if do_train else None)
        data = tokenize_splits(splits, tokenizer, arguments.data, training.seed)
        check_prompt(arguments.report.prompt, tokenizer)
        model = build_model(arguments.model, tokenizer, arguments.data.block_size, do_train)
        check_lengths(data, model.config.ngram_size)
        block_size = find_block_size(model, arguments.data.block_size)
        if do_train:
            model = choose_weights(model, arguments.model)
            checkpoint = None if folder.is_trained() else _checkpoint_to_resume(arguments, folder)
            # By the first process alone: the others read these files at the same time.
            if training.should_save:
                folder.claim(settings, tokenizer)
    windows = {
        split: evaluation_windows(stream, tokenizer, block_size, arguments.data.stride)
        for split, stream in data.streams.items()
        if split != "train"
    }
    if do_train and not folder.is_trained():
        _train(arguments, model, data, windows, block_size, checkpoint)
    if do_train:
        # Of a run that was complete, too, λ is found again.
        model = WDRNgramGPT2LMHeadModel.from_pretrained(folder.path, ensemble_lambda=0.0)
    return _evaluate(arguments, model, tokenizer, windows, folder, settings)


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
    training = copy.copy(arguments.training)
    if arguments.model.train_mode == "heads" and training.metric_for_best_model == "loss":
        # The next word's loss is the frozen backbone's, and never changes.
        training.metric_for_best_model = "heads_loss"
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
    patience = arguments.report.patience
    keeps_best = training.load_best_model_at_end
    if patience is not None and keeps_best:
        trainer.add_callback(EarlyStoppingCallback(patience))
    result = None if checkpoint is None else result_of(Path(checkpoint), patience, keeps_best)
    if result is None:
        trainer.train(resume_from_checkpoint=checkpoint)
    else:
        # Interrupted between its last step and its end. Trainer would take another step.
        trainer._load_from_checkpoint(str(result))
        trainer.state = TrainerState.load_from_json(Path(checkpoint) / "trainer_state.json")
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
    scores = {}
    with TemporaryDirectory() as scratch:
        # What the training reported to is closed by now, and Trainer makes the folder that it is given.
        quiet = copy.copy(training)
        quiet.report_to, quiet.output_dir = [], scratch
        trainer = NgramTrainer(
            model,
            quiet,
            # Trainer wants one when it is made; each is given by name below.
            eval_dataset=next(iter(windows.values())),
            lambda_grid=arguments.report.lambda_grid if has_heads else (),
        )
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
