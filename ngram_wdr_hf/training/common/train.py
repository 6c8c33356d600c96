"""The training of a run: from the start, or from a checkpoint, for as long as the options say."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerState, TrainingArguments

from ...data.errors import InputError
from ..run_trainer import Diverged, NewSchedule, Processes, RunTrainer
from .checkpoints import check_fits, read_state
from .failures import is_disk_full
from .hub import ADAPTER
from .report import DIVERGED, divergence
from .run_folder import RunFolder

# A run's folder keeps its options.
LOWER_RATE = "Lower `--learning_rate`, in another `--output_dir`."


def train_and_save(
    trainer: RunTrainer,
    folder: RunFolder,
    settings: Mapping[str, Any],
    checkpoint: Path | None,
    patience: int | None = None,
    merges_adapters: bool = False,
) -> None:
    """
    Train for as long as the options say, and save the model in the run's folder. Raise an `InputError` if more is
    trained already, or if the run is to be continued and has no checkpoint, or one by another number of processes.

    Args:
        trainer (`RunTrainer`): The trainer.
        folder (`RunFolder`): The run's folder.
        settings (`Mapping[str, Any]`): The run's settings, which the folder gets.
        checkpoint (`Path`, *optional*): The checkpoint to resume from; `None` starts anew.
        patience (`int`, *optional*): The patience of early stopping; `None` without.
        merges_adapters (`bool`, *optional*, defaults to `False`): Whether the model is a PEFT model, to be saved with
            its adapters merged. The adapters are also saved, in the subfolder `adapter`.
    """
    training = trainer.args
    start = None if checkpoint is None else read_state(checkpoint)
    finished = folder.trained_state()
    _check_length(trainer, start, finished)
    if finished is not None and _has_ended(trainer, finished, patience):
        if training.should_save:
            folder.save_settings(settings)
        _tell_trained(trainer, folder.path, finished, patience)
        return
    if finished is not None and start is None:
        raise InputError(
            f"`--output_dir {folder.path}` has no checkpoint to go on from. Train its model in another folder, with "
            f"`--model_name_or_path {folder.path}`."
        )
    goes_on = start is not None and not _has_ended(trainer, start, patience)
    if checkpoint is not None:
        check_fits(trainer.model, checkpoint)
        # Another run's checkpoint may be trained with other batches.
        if goes_on and checkpoint.absolute().parent == folder.path.absolute():
            _check_processes(start, checkpoint, training.world_size)
    if training.should_save:
        folder.reopen(settings)
    trainer.add_callback(Processes)
    if start is not None and not goes_on:
        # Interrupted after its last step: Trainer would take another step.
        _tell_trained(trainer, checkpoint, start, patience)
        trainer._load_from_checkpoint(str(_result_of(start, checkpoint, training)))
        trainer.state = start
    else:
        if start is not None and not trainer.schedule_agrees(start):
            _tell_new_schedule(trainer, start)
            trainer.add_callback(NewSchedule)
        beginning = "" if checkpoint is None else f", going on from {checkpoint}"
        _tell(trainer, f"Training in {folder.path}: {trainer.length_text(trainer.planned())}{beginning}.")
        _train(trainer, folder, checkpoint)
        if stopped_early(trainer.state, patience) and trainer.trained(trainer.state) < trainer.planned():
            _tell(trainer, f"Stopped early in step {trainer.state.global_step}, as `--patience {patience}` asks for.")
    if not merges_adapters:
        trainer.save_model()
    elif training.should_save:
        trainer.model.save_pretrained(folder.path / ADAPTER)
        trainer.model.merge_and_unload().save_pretrained(folder.path)
    # Written last: this file marks the training as complete.
    trainer.save_state()
    trainer.accelerator.wait_for_everyone()


def _train(trainer: RunTrainer, folder: RunFolder, checkpoint: Path | None) -> None:
    """Train, and if the training diverges, load its last good checkpoint. Say how to resume if it is interrupted."""
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        trainer.check_finite()
    except Diverged as error:
        _load_last_good(trainer, folder.last_checkpoint() or checkpoint, error)
    except KeyboardInterrupt as stop:
        step = trainer.state.global_step
        raise KeyboardInterrupt(f"Stopped after step {step}. {_how_to_go_on(folder, checkpoint)}") from stop
    except Exception as error:
        if not is_disk_full(error):
            raise
        if trainer.args.should_save:
            folder.remove_incomplete()
        raise InputError(
            f"`--output_dir {folder.path}` has no space for a checkpoint: the disk is full, or a limit is reached. "
            f"Make room. {_how_to_go_on(folder, checkpoint)}"
        ) from error


def _how_to_go_on(folder: RunFolder, checkpoint: Path | None) -> str:
    last = folder.last_checkpoint() or checkpoint
    return f"Repeat the command to {'start again' if last is None else f'go on from {last}'}."


def _check_length(trainer: RunTrainer, *states: TrainerState | None) -> None:
    """
    Raise an `InputError` if one of these states of the training is already longer than the options ask for. `None`
    states are ignored.
    """
    trained = max((trainer.trained(state) for state in states if state is not None), default=0)
    if trained > trainer.planned():
        raise InputError(
            f"`--{trainer.length_option}` asks for {trainer.length_text(trainer.planned())}, but "
            f"{trainer.length_text(trained)} are trained already. Raise it, or choose another `--output_dir`."
        )


def _check_processes(state: TrainerState, checkpoint: Path, now: int) -> None:
    """
    Raise an `InputError` if another number of processes than `now` trained a checkpoint with this state, because each
    of them has batches of its own.
    """
    before = Processes.number_in(state)
    if before not in (None, now):
        raise InputError(
            f"Checkpoint {checkpoint} was trained by {_count_processes(before)} and would go on with "
            f"{_count_processes(now)}, which changes the batch size. Use {before} again, or train its weights in "
            f"another `--output_dir`, with `--model_name_or_path {checkpoint}`."
        )


def _count_processes(number: int) -> str:
    return f"{number} {'process' if number == 1 else 'processes'}"


def _has_ended(trainer: RunTrainer, state: TrainerState, patience: int | None) -> bool:
    """
    Return whether a training in this state has its full length, or was stopped early. `patience` is that of early
    stopping, `None` without.
    """
    is_cut_short = stopped_early(state, patience) or divergence(state.log_history) is not None
    return is_cut_short or trainer.trained(state) >= trainer.planned()


def stopped_early(state: TrainerState, patience: int | None) -> bool:
    """Return whether a training in this state has used up the patience of early stopping, which is `None` without."""
    stopping = state.stateful_callbacks.get("EarlyStoppingCallback", {}).get("attributes", {})
    return patience is not None and stopping.get("early_stopping_patience_counter", 0) >= patience


def _load_last_good(trainer: RunTrainer, checkpoint: Path | None, error: Diverged) -> None:
    """Load the result of a training that diverged after `checkpoint`, and log it."""
    if checkpoint is None:
        raise InputError(f"{error} There is no checkpoint before it. {LOWER_RATE}") from error
    result = _result_of(read_state(checkpoint), checkpoint, trainer.args)
    trainer._load_from_checkpoint(str(result))
    trainer.state.log_history.append({"step": error.step, DIVERGED: read_state(result).global_step})


def _result_of(state: TrainerState, checkpoint: Path, training: TrainingArguments) -> Path:
    """Return the checkpoint with the result of a training that ended with `checkpoint`: the best one, or this one."""
    if not training.load_best_model_at_end or state.best_model_checkpoint is None:
        return checkpoint
    best = Path(state.best_model_checkpoint)
    # The folder may have been moved, or the best checkpoint be that of another run, from which this one went on.
    beside = checkpoint.with_name(best.name)
    return beside if beside.is_dir() else best


def describe_trained(where: Path, length: str, is_cut_short: bool) -> str:
    """Return the line about a training that has ended, with its length, and whether early stopping cut it short."""
    return f"Already trained in {where}: {length}{', stopped early by `--patience`' * is_cut_short}."


def _tell_trained(trainer: RunTrainer, where: Path, state: TrainerState, patience: int | None) -> None:
    trained = trainer.trained(state)
    is_cut_short = stopped_early(state, patience) and trained < trainer.planned()
    _tell(trainer, describe_trained(where, trainer.length_text(trained), is_cut_short))


def _tell_new_schedule(trainer: RunTrainer, start: TrainerState) -> None:
    lengths = [trainer.trained(start), trainer.planned_in(start), trainer.planned()]
    trained, before, now = map(trainer.length_text, lengths)
    _tell(
        trainer,
        f"The schedule depends on `--{trainer.length_option}`: the first {trained} had that of a training of "
        f"{before}, the others get that of {now}. A training of {now} from the start would differ.",
    )


def _tell(trainer: RunTrainer, line: str) -> None:
    if trainer.is_world_process_zero():
        print(line)


def end_if_diverged(histories: Mapping[str, Sequence[dict[str, float]]]) -> None:
    """Raise an `InputError` if a training diverged, given the logs of all models by name."""
    remarks = {name: divergence(history) for name, history in histories.items()}
    remarks = [f"{name}: {remark}" for name, remark in remarks.items() if remark is not None]
    if remarks:
        raise InputError(f"{' '.join(remarks)} {LOWER_RATE}")
