"""Trainings whose weights become infinite or no numbers."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Trainer, TrainingArguments

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.training.common.checkpoints import read_state
from ngram_wdr_hf.training.run_trainer import Diverged
from ngram_wdr_hf.training.trainer import NgramTrainer
from tests.support.clm_runs import run as run_clm
from tests.support.errors import raises_naming
from tests.support.processes import in_two_processes
from tests.support.scripts import contents, metrics_of
from tests.support.tiny import random_ids, tiny_model
from tests.support.training import ONE_STEP

train_step = Trainer.training_step


@pytest.fixture
def diverge(monkeypatch):
    """A function that spoils a weight after the given step."""

    def after(step: int) -> None:
        def spoil(self, model, *args, **kwargs):
            loss = train_step(self, model, *args, **kwargs)
            if self.state.global_step == step:
                with torch.no_grad():
                    next(parameter for parameter in model.parameters() if parameter.requires_grad).fill_(math.nan)
            return loss

        monkeypatch.setattr(Trainer, "training_step", spoil)

    return after


# The last good checkpoint. The next step is spoiled, and the loss of the one after it is bad.
STEPS = {"clm": 2, "nmt": 2, "mlm": 3, "glue": 7}


@pytest.mark.parametrize("name", STEPS)
def test_the_last_good_checkpoint_is_the_result(name, request, tmp_path, diverge):
    script = request.getfixturevalue(name)
    good = STEPS[name]
    diverge(good)
    folder = tmp_path / "run"
    names = (f"step {good + 2}", f"checkpoint-{good}", "`--learning_rate`")
    with raises_naming(InputError, *names):
        script(folder, script.lengths[1])
    run_folder = folder / script.subfolder
    weights = load_file(run_folder / "model.safetensors")
    expected = load_file(run_folder / f"checkpoint-{good}" / "model.safetensors")
    assert all(torch.equal(value, expected[key]) and value.isfinite().all() for key, value in weights.items())
    assert "NaN" not in json.dumps(read_state(run_folder).log_history)
    if name != "glue":
        assert metrics_of(folder)["splits"]["validation"]
        assert f"step {good + 2}" in (folder / "README.md").read_text()


def test_repeated_command_has_the_same_message(clm, tmp_path, diverge):
    diverge(2)
    folder, before = tmp_path / "run", None
    # Also one for more steps.
    for length in ("--max_steps 6", "--max_steps 6", "--max_steps 1000"):
        with raises_naming(InputError, "step 4", "checkpoint-2"):
            clm(folder, length)
        before = before or contents(folder).keys()
        assert contents(folder).keys() == before


def test_without_a_checkpoint(clm, tmp_path, diverge):
    diverge(0)
    with raises_naming(InputError, "step 2", "`--learning_rate`", "`--output_dir`"):
        clm(tmp_path / "run", "--max_steps 6")
    # Without evaluations, logs and checkpoints in between, the end of the training notices.
    options = "--max_steps 3 --eval_strategy no --logging_steps 99"
    with raises_naming(InputError, "step 2", "`--learning_rate`"):
        clm(tmp_path / "other", options)
    assert not list(tmp_path.rglob("model.safetensors"))


def test_learning_rate_that_diverges(clm, tmp_path, capsys):
    """Not spoiled by the test: after a first step with rate 0, the weights overflow."""
    options = "--max_steps 4 --eval_steps 1 --lr_scheduler_type constant_with_warmup --warmup_steps 2"
    with raises_naming(InputError, "step 2", "checkpoint-1", "`--learning_rate`"):
        clm(tmp_path / "run", options, "--learning_rate", "1e30")
    printed = capsys.readouterr().out
    assert "nan" not in printed and "inf" not in printed


def test_evaluation_of_weights_that_are_no_numbers(finished_clm, texts, tmp_path):
    shutil.copytree(finished_clm.folder, tmp_path / "run")
    path = tmp_path / "run" / "model.safetensors"
    save_file({key: value.fill_(math.nan) for key, value in load_file(path).items()}, path, {"format": "pt"})
    evaluation = ["--do_train", "false", "--model_name_or_path", str(tmp_path / "run"), "--test_file", texts["test"]]
    for command in (evaluation, [*finished_clm.command, "--output_dir", str(tmp_path / "run")]):
        with raises_naming(InputError, str(tmp_path / "run")):
            run_clm(*command)


def tiny_trainer(folder: Path, **arguments) -> NgramTrainer:
    rows = [{"input_ids": ids, "labels": ids} for ids in random_ids(2, 9)]
    return NgramTrainer(tiny_model(), TrainingArguments(folder, **{**ONE_STEP, **arguments}), train_dataset=rows)


def act_alone(rank: int, folder: Path) -> None:
    """Train in two processes, then log and save in the first of them, while the second ends."""
    trainer = tiny_trainer(folder, logging_strategy="no")
    trainer.train()
    if rank == 0:
        trainer.log({"loss": 1.0, "other_loss": 2.0})
        trainer.save_model(folder / "model")
        with raises_naming(Diverged, "loss"):
            trainer.log({"other_loss": math.nan})
        next(trainer.model.parameters()).data.fill_(math.nan)
        with raises_naming(Diverged, "weights"):
            trainer.save_model(folder / "diverged")


def test_one_process_logs_and_saves_alone(tmp_path):
    """As with the stock Trainer, no other process has to take part."""
    in_two_processes(act_alone, tmp_path)
    assert (tmp_path / "model" / "model.safetensors").exists() and not (tmp_path / "diverged").exists()


def diverge_in_one(rank: int, folder: Path) -> None:
    def training_step(self, *args, **kwargs):
        return train_step(self, *args, **kwargs) * (math.nan if rank == 1 else 1.0)

    Trainer.training_step = training_step
    # Noticed by the log of a step, and by the summary.
    for strategy in ("steps", "no"):
        with raises_naming(Diverged, "step 1"):
            tiny_trainer(folder, logging_strategy=strategy, logging_steps=1).train()


def test_divergence_in_one_process_ends_both(tmp_path):
    in_two_processes(diverge_in_one, tmp_path)
