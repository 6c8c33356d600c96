"""The folder of a run: its options, its state, and the checkpoint to resume from."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout
from huggingface_hub import create_repo, upload_folder
from transformers import PreTrainedTokenizerBase, TrainerState, TrainingArguments, set_seed

from ..data.errors import InputError
from ..data.tokenizers import load_tokenizer
from .parsing import SETTINGS
from .trainer import ResumableTrainer

METRICS = "metrics.json"
# Trainer writes it last: it marks a checkpoint, and the training in a run's folder, as complete.
STATE = "trainer_state.json"
TRANSLATIONS = "test_translations.jsonl"
RESULTS = (METRICS, TRANSLATIONS, "README.md", "evaluation.*", "*.png")
# Settings that may change when a run is continued.
LENGTHS = {"max_steps", "num_train_epochs"}
# What may be in the folder before a run begins.
LEFT_OVER = (".", "evaluation.", "tokenizer", "special_tokens_map", "vocab")
# Options that do not change the trained weights: hardware, reports, what is saved.
NOT_SETTINGS = re.compile(
    "(accelerator|dataloader_[np]|ddp|deepspeed|fsdp|hub|log).*|compare|disable_tqdm|do_train|gradient_diversity_steps|"
    "greater_is_better|length_penalty|num_(beams|examples|workers)|output_dir|per_device_eval_batch_size|prompt|"
    "push_to_hub|report_to|resume_from_checkpoint|run_name|sample_tokens|server|save_total_limit|translate|use_(cpu|mtp)"
)


def settings_of(data: Any, model: Any, training: TrainingArguments) -> dict[str, Any]:
    """Return the options that identify a run, for `run.yaml`; of Trainer's, those that are not as by default."""
    own = {field.name: getattr(group, field.name) for group in (data, model) for field in fields(group)}
    defaults = type(training)(output_dir=training.output_dir).to_dict()
    preset = model.presets.get(getattr(model, "preset", None))
    kept = {"seed", "learning_rate", *(preset.arguments if preset is not None else ())}
    others = {name: value for name, value in training.to_dict().items() if name in kept or value != defaults[name]}
    others["metric_for_best_model"] = training.requested_metric
    others["num_processes"] = training.world_size if training.world_size > 1 else None
    return {
        name: value
        for name, value in {**own, **others}.items()
        if not NOT_SETTINGS.fullmatch(name) and (value is not None or name in kept)
    }


class RunFolder:
    """The folder of one run: options (`run.yaml`), tokenizer, checkpoints, model and Trainer's log."""

    def __init__(self, path: Path, settings: dict[str, Any] | None = None, training: TrainingArguments | None = None):
        self.path, self.settings, self.training = path, settings, training
        self.is_longer = False
        self.repository: str | None = None

    @classmethod
    @contextmanager
    def claimed(cls, settings: dict[str, Any], training: TrainingArguments) -> Iterator["RunFolder"]:
        """
        Begin a run, with its seed: hold the lock on `--output_dir` in the `with` block, and create the repository of
        `--push_to_hub`. Raise an `InputError` unless the folder is free, and new or of a run with the same settings,
        up to the length of the training. An evaluation may use any folder.
        """
        set_seed(training.seed)
        folder = cls(Path(training.output_dir), settings, training)
        if not training.do_train:
            yield folder
            return
        folder.path.mkdir(parents=True, exist_ok=True)
        is_first = training.process_index == 0
        try:
            lock = FileLock(folder.path / ".lock").acquire(blocking=False) if is_first else nullcontext()
        except Timeout as error:
            raise InputError(f"`--output_dir {folder.path}` is in use by another run: choose another.") from error
        with lock:
            folder._check()
            if training.push_to_hub and is_first:
                name, token = training.hub_model_id or folder.path.absolute().name, training.hub_token
                url = create_repo(name, token=token, private=training.hub_private_repo, exist_ok=True)
                folder.repository = url.repo_id
            # Trainer would push its own model card.
            training.push_to_hub = False
            yield folder

    def _check(self) -> None:
        if not self.has_begun():
            if any(not child.name.startswith(LEFT_OVER) for child in self.path.iterdir()):
                raise InputError(f"`--output_dir {self.path}` has files, but no run: choose an empty folder.")
            return
        saved = yaml.safe_load((self.path / SETTINGS).read_text(encoding="utf-8")) or {}
        now = yaml.safe_load(_as_yaml(self.settings))
        names = [name for name in {**saved, **now} if saved.get(name) != now.get(name)]
        self.is_longer = any(name in LENGTHS for name in names)
        different = [f"{name}: saved {saved.get(name)}, now {now.get(name)}" for name in names if name not in LENGTHS]
        if different:
            raise InputError(
                f"`--output_dir {self.path}` holds a run with other options ({'; '.join(different[:3])}): choose "
                "another folder, or delete this one."
            )

    def has_begun(self) -> bool:
        """Return whether the folder holds a run: `run.yaml`, which is written after the tokenizer."""
        return (self.path / SETTINGS).exists()

    def is_finished(self) -> bool:
        """Return whether the training in the folder is complete, and as long as the settings say."""
        return read_state(self.path) is not None and not self.is_longer

    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """Return the tokenizer of the run in the folder; `None` if there is none yet, and in an evaluation."""
        return load_tokenizer(str(self.path)) if self.training.do_train and self.has_begun() else None

    def begin(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Write tokenizer and settings before the training, and remove the results of a shorter one."""
        if not self.has_begun():
            tokenizer.save_pretrained(self.path)
        for path in (path for pattern in (STATE, *RESULTS) for path in self.path.glob(pattern)):
            path.unlink()
        # Renamed when complete, so that an interrupted write leaves no damaged file.
        unfinished = self.path / f".{SETTINGS}"
        unfinished.write_text(_as_yaml(self.settings), encoding="utf-8")
        unfinished.replace(self.path / SETTINGS)

    def train(self, trainer: ResumableTrainer) -> None:
        """
        Train from the last complete checkpoint in the folder, else from that of `--resume_from_checkpoint`, else from
        the start. Save the model, and last Trainer's state, which marks the training as complete.
        """
        complete = [path for path in self.path.glob("checkpoint-*") if read_state(path) is not None]
        checkpoint = max(complete, key=lambda path: int(path.name.split("-")[1]), default=None)
        is_over = False
        if checkpoint is not None:
            state, num_steps = read_state(checkpoint), trainer.num_steps()
            if state.global_step > num_steps:
                raise InputError(f"{checkpoint} has more than {num_steps:,} steps: train for longer, or elsewhere.")
            # At the full length, or stopped early.
            has_ended = state.stateful_callbacks["TrainerControl"]["args"]["should_training_stop"]
            is_over = has_ended and state.max_steps == num_steps
        if trainer.args.should_save:
            self.begin(trainer.processing_class)
        trainer.accelerator.wait_for_everyone()
        if is_over:
            # Trainer would take another step.
            trainer.load_result(checkpoint)
        else:
            start = checkpoint or trainer.args.resume_from_checkpoint
            trainer.train(resume_from_checkpoint=None if start is None else str(start))
        trainer.save_model()
        trainer.save_state()
        trainer.accelerator.wait_for_everyone()

    def history(self) -> list[dict[str, float]]:
        """Return Trainer's log of the completed training; empty in an evaluation."""
        return read_state(self.path).log_history if self.training.do_train else []

    def push(self) -> None:
        """Upload the run to its repository on the Hub, if it has one, without its checkpoints and logs."""
        if self.repository is not None:
            ignored = [".*", "*/*", "training_args.bin", "comparison*"]
            token = self.training.hub_token
            upload_folder(repo_id=self.repository, folder_path=self.path, token=token, ignore_patterns=ignored)
            print(f"Pushed to {self.repository}.")


def read_state(folder: Path) -> TrainerState | None:
    """Return Trainer's state in a run's or a checkpoint's folder; `None` if it is missing or was cut off."""
    try:
        return TrainerState(**json.loads((folder / STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def _as_yaml(settings: dict[str, Any]) -> str:
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
