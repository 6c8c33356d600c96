"""A training that is given time."""

import pytest
from transformers import TrainingArguments

from ngram_wdr_hf.training.mlm import budget as module
from ngram_wdr_hf.training.mlm.budget import Budget, triangle
from ngram_wdr_hf.training.mlm.trainer import MlmTrainer
from tests.support.masked import masked_batch, tiny_masked


def test_learning_rate_schedule():
    assert [triangle(used) for used in (0.0, 0.125, 0.25, 0.625, 1.0)] == [0.0, 0.5, 1.0, 0.5, 0.0]


class Clock:
    """A clock that advances by `step` seconds at every call."""

    def __init__(self, step: float):
        self.now, self.step = 0.0, step

    def monotonic(self) -> float:
        self.now += self.step
        return self.now


def trainer_of(folder, minutes: float, **options) -> MlmTrainer:
    ids, labels = masked_batch(8, 12)
    items = [{"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)]
    arguments = TrainingArguments(
        folder,
        num_train_epochs=1000,
        learning_rate=1.0,
        optim="sgd",
        logging_steps=1,
        per_device_train_batch_size=8,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        restore_callback_states_from_checkpoint=True,
        **options,
    )
    return MlmTrainer(tiny_masked("bert"), arguments, train_dataset=items, budget_minutes=minutes)


def rates(trainer: MlmTrainer) -> list[float]:
    return [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]


def test_training_ends_with_the_budget(tmp_path, monkeypatch):
    # Two clock calls per step: 3 of the budget's 60 seconds. The first call starts the clock.
    monkeypatch.setattr(module, "time", Clock(1.5))
    trainer = trainer_of(tmp_path, 1.0, save_strategy="no")
    trainer.train()
    assert trainer.state.global_step == 21
    # A step's learning rate depends on the time of the step before.
    assert rates(trainer) == pytest.approx([0.0, *(triangle(3 * step / 60) for step in range(20))])


def test_resuming_keeps_the_time_used(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "time", Clock(1.5))
    first = trainer_of(tmp_path / "parts", 1.0, save_strategy="steps", save_steps=5)
    first.args.max_steps = 5
    first.train()
    second = trainer_of(tmp_path / "parts", 1.0, save_strategy="no")
    second.train(resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-5"))
    # The time of the interruption does not count.
    assert second.state.global_step == 21
    expected = [0.0, *(triangle(3 * step / 60) for step in range(5))]
    assert rates(second) == pytest.approx([*expected, *(triangle((3 * step - 1.5) / 60) for step in range(5, 20))])


def test_evaluation_does_not_use_the_budget(monkeypatch):
    clock = Clock(0.0)
    monkeypatch.setattr(module, "time", clock)
    budget = Budget(1.0)
    budget.on_train_begin(None, None, None)
    # Nor does skipping batches when resuming.
    clock.now = 300.0
    budget.on_step_begin(None, None, None)
    clock.now = 320.0
    budget.on_step_end(TrainingArguments("unused", report_to=[]), None, None)
    clock.now = 500.0
    budget.on_evaluate(None, None, None)
    clock.now = 510.0
    budget.on_step_begin(None, None, None)
    assert budget.used == pytest.approx(0.5)
