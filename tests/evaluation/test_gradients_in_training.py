"""Gradient diversity logged during training, without an effect on it."""

import math
import random

import numpy as np
import pytest
import torch
from datasets import Dataset
from matplotlib.image import imread
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainingArguments
from transformers.training_args import OptimizerNames

from ngram_wdr_hf.evaluation.gradient_diversity import (
    GradientDiversityCallback,
    gradient_diversity,
    plot_gradient_diversity,
)
from ngram_wdr_hf.training.trainer import NgramTrainer
from tests.support.batches import DROPOUT, padded_batch
from tests.support.errors import raises_naming
from tests.support.tiny import random_ids, tiny_model

# Training uses dropout, so any additional random number would change the result.
STEPS = 7


def items() -> list[dict]:
    return [{"input_ids": row, "labels": row} for row in random_ids(24, 10)]


class ReadInOrder(IterableDataset):
    def __iter__(self):
        return iter(items())


def make_trainer(folder, trainer_class=Trainer, data=None, collator=None) -> Trainer:
    arguments = TrainingArguments(
        folder,
        max_steps=STEPS,
        per_device_train_batch_size=5,
        logging_steps=3,
        save_steps=4,
        learning_rate=1e-2,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    data = items() if data is None else data
    return trainer_class(tiny_model(**DROPOUT), arguments, data_collator=collator, train_dataset=data)


def train(trainer, *measuring, **resuming) -> GradientDiversityCallback:
    callback = GradientDiversityCallback(trainer, *measuring)
    trainer.add_callback(callback)
    trainer.train(**resuming)
    return callback


def measured(history) -> list[tuple[int, float]]:
    return [(entry["step"], entry["gradient_diversity"]) for entry in history if "gradient_diversity" in entry]


def assert_same_weights(one, other):
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


@pytest.mark.parametrize("trainer_class", [Trainer, NgramTrainer])
def test_training_is_the_same_and_can_be_resumed(tmp_path, trainer_class):
    plain = make_trainer(tmp_path / "plain", trainer_class)
    plain.train()
    trainer = make_trainer(tmp_path / "run", trainer_class)
    batch = train(trainer, 2).batch
    assert_same_weights(plain.model, trainer.model)
    # Trainer's own logs are all there.
    own = [[(row["step"], row["loss"]) for row in t.state.log_history if "loss" in row] for t in (plain, trainer)]
    assert own[0] == own[1] and [step for step, _ in own[0]] == [3, 6]

    values = measured(trainer.state.log_history)
    assert [step for step, _ in values] == [0, 2, 4, 6]
    saved = type(trainer.model).from_pretrained(tmp_path / "run" / "checkpoint-4")
    assert values[0][1] == pytest.approx(gradient_diversity(tiny_model(), batch), rel=1e-9)
    assert values[2][1] == pytest.approx(gradient_diversity(saved, batch), rel=1e-9)
    assert values[2][1] != pytest.approx(values[0][1], rel=1e-3)
    # As many items as in a step, drawn from the whole dataset.
    indices = [ids.tolist().index(row) for ids in [random_ids(24, 10)] for row in batch["input_ids"].tolist()]
    assert len(set(indices)) == 5 and max(indices) > 5

    resumed = make_trainer(tmp_path / "run", trainer_class)
    train(resumed, 2, resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-4"))
    assert measured(resumed.state.log_history) == values
    assert_same_weights(plain.model, resumed.model)


def test_given_batch_and_parameters(tmp_path):
    trainer, batch = make_trainer(tmp_path), padded_batch()
    train(trainer, 100, batch, "ngram_heads")
    expected = gradient_diversity(tiny_model(), batch, "ngram_heads")
    assert measured(trainer.state.log_history) == [(0, pytest.approx(expected))]


def test_data_that_can_only_be_read_in_order(tmp_path):
    plain = make_trainer(tmp_path, data=ReadInOrder())
    plain.train()
    trainer = make_trainer(tmp_path, data=ReadInOrder())
    batch = train(trainer, 3).batch
    assert torch.equal(batch["input_ids"], random_ids(24, 10)[:5])
    assert_same_weights(plain.model, trainer.model)


def test_collator_with_random_numbers(tmp_path):
    """The measured batch is always the same, and the training batches do not change."""

    def collator(rows) -> dict[str, torch.Tensor]:
        ids = torch.tensor([row["input_ids"] for row in rows])
        draws = torch.rand(ids.shape) + random.random() + torch.from_numpy(np.random.rand(*ids.shape))
        return {"input_ids": ids, "labels": ids.masked_fill(draws < 1.2, -100)}

    rows = Dataset.from_dict({"input_ids": random_ids(24, 10).tolist(), "title": ["is dropped"] * 24})
    plain = make_trainer(tmp_path, data=rows, collator=collator)
    plain.train()
    trainer = make_trainer(tmp_path, data=rows, collator=collator)
    labels = train(trainer, 3).batch["labels"]
    assert_same_weights(plain.model, trainer.model)
    again = train(trainer, 3, resume_from_checkpoint=str(tmp_path / "checkpoint-4")).batch["labels"]
    assert (labels == -100).any() and torch.equal(labels, again)


def test_trainings_that_cannot_be_measured(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.args.optim = OptimizerNames.GALORE_ADAMW_LAYERWISE
    with raises_naming(ValueError, "`optim`", "galore_adamw_layerwise"):
        GradientDiversityCallback(trainer, 1)


def test_plot(tmp_path):
    history = [
        {"step": 0, "gradient_diversity": 0.5},
        {"step": 0, "loss": 3.0},
        {"step": 2, "gradient_diversity": 0.7},
    ]
    pairs = [(0, 0.25), (3, math.inf), (6, 0.5)]
    figure = plot_gradient_diversity({"plain": history, "WDR": pairs}, tmp_path / "figure.png")
    (axes,) = figure.axes
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[0, 0.5], [2, 0.7]], [[0, 0.25], [6, 0.5]]]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["plain", "WDR"]
    assert imread(tmp_path / "figure.png").std() > 0
    with raises_naming(ValueError, "histories", "WDR"):
        plot_gradient_diversity({"WDR": history[1:2]})
