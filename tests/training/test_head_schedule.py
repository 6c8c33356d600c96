"""Heads beside the model in the real Trainer: free heads, schedules, samples that resume."""

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainerState, TrainingArguments

from ngram_wdr_hf.method.head_training import HeadTraining
from ngram_wdr_hf.training.head_schedule import HeadSchedule, head_factors
from ngram_wdr_hf.training.trainer import NgramTrainer
from tests.support.errors import raises_naming
from tests.support.processes import in_two_processes
from tests.support.tiny import random_ids, tiny_model

FREE = {"head_gradient": 0.0, "head_loss_weight": 0.5}
DROPOUT = {"resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.2}
SETTINGS = {
    "per_device_train_batch_size": 2,
    "learning_rate": 1e-2,
    # Low enough to clip in every step, and to couple heads and trunk if they were clipped together.
    "max_grad_norm": 0.05,
    "weight_decay": 0.1,
    "report_to": "none",
    "save_strategy": "no",
    "use_cpu": True,
    "disable_tqdm": True,
    "logging_steps": 1000,
}


def rows() -> list[dict]:
    return [{"input_ids": random_ids(1, 9, seed=i)[0], "labels": random_ids(1, 9, seed=i)[0]} for i in range(12)]


def train(model, tmp_path, trainer_class=NgramTrainer, resume=None, options=None, **arguments):
    training = TrainingArguments(tmp_path, **{**SETTINGS, **arguments})
    trainer = trainer_class(model, training, train_dataset=rows(), **(options or {}))
    trainer.train(resume_from_checkpoint=resume)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def with_weights_of(plain, model):
    model.load_state_dict(plain.state_dict(), strict=False)
    return model


def assert_same_trunk(actual: dict, wanted: dict) -> None:
    assert any("ngram_heads" in name for name in actual)
    for name, tensor in wanted.items():
        assert torch.equal(actual[name], tensor), name


@pytest.mark.parametrize(
    ("trainer_class", "arguments"),
    [
        (NgramTrainer, {"max_steps": 40}),
        # The stock Trainer clips all weights together, so without clipping.
        (Trainer, {"max_steps": 40, "max_grad_norm": 0.0}),
        (NgramTrainer, {"max_steps": 6, "gradient_accumulation_steps": 3}),
        (NgramTrainer, {"max_steps": 6, "gradient_checkpointing": True}),
        (
            NgramTrainer,
            {"max_steps": 6, "gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        ),
    ],
)
def test_free_heads_leave_the_training_alone(tmp_path, trainer_class, arguments):
    """With γ = 0, the trunk's weights are those of the plain model's training, bit for bit, while the heads learn."""
    plain = tiny_model(ngram_size=1, label_smoothing=0.1, **DROPOUT)
    model = with_weights_of(plain, tiny_model(label_smoothing=0.1, head_sample_rate=0.5, **FREE, **DROPOUT))
    wanted = train(plain, tmp_path, trainer_class, **arguments)
    start = model.ngram_heads[0].fc_in.weight.clone()
    actual = train(model, tmp_path, trainer_class, **arguments)
    assert_same_trunk(actual, wanted)
    assert not torch.equal(model.ngram_heads[0].fc_in.weight, start)


def test_free_heads_with_a_loss_scale(tmp_path, monkeypatch):
    """Float16 scales the loss. The gradients are divided by the scale once, though they are clipped in two parts."""

    class ScalingTrainer(NgramTrainer):
        def create_accelerator_and_postprocess(self):
            super().create_accelerator_and_postprocess()
            self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

    def unscale(accelerator):
        if accelerator.scaler is not None:
            for optimizer in accelerator._optimizers:
                accelerator.scaler.unscale_(optimizer.optimizer)

    # Accelerate does so for float16 only, which a CPU is too slow for.
    monkeypatch.setattr(Accelerator, "unscale_gradients", unscale)
    trained = {kind: train(tiny_model(**FREE), tmp_path, kind, max_steps=3) for kind in (NgramTrainer, ScalingTrainer)}
    for name, tensor in trained[NgramTrainer].items():
        torch.testing.assert_close(trained[ScalingTrainer][name], tensor, msg=name)


def test_attached_heads_do_not(tmp_path):
    """The comparison above would notice a gradient from the heads, and clipping that couples them."""
    for trainer_class, fields in ((NgramTrainer, {**FREE, "head_gradient": 0.01}), (Trainer, FREE)):
        plain = tiny_model(ngram_size=1)
        model = with_weights_of(plain, tiny_model(**fields))
        wanted = train(plain, tmp_path, trainer_class, max_steps=2)
        actual = train(model, tmp_path, trainer_class, max_steps=2)
        with pytest.raises(AssertionError):
            assert_same_trunk(actual, wanted)


def test_free_heads_beside_adapters(tmp_path):
    def adapted(**fields):
        torch.manual_seed(1)
        heads = [f"ngram_heads.{i}" for i in range(fields.get("ngram_size", 4) - 1)]
        config = LoraConfig(target_modules=["c_attn"], modules_to_save=heads or None, fan_in_fan_out=True)
        return get_peft_model(tiny_model(**fields), config)

    plain = adapted(ngram_size=1)
    free = with_weights_of(plain, adapted(**FREE))
    wanted = train(plain, tmp_path, max_steps=6)
    actual = train(free, tmp_path, max_steps=6)
    assert_same_trunk(actual, {name: tensor for name, tensor in wanted.items() if "lora" in name})


def train_in_parallel(rank: int, folder: Path) -> None:
    """Train the plain model and one with free heads, without and with a sample of positions."""
    plain = tiny_model(ngram_size=1, **DROPOUT)
    models = [with_weights_of(plain, tiny_model(**FREE, **DROPOUT, head_sample_rate=rate)) for rate in (1.0, 0.5)]
    states = [train(model, folder / str(i), max_steps=6) for i, model in enumerate([plain, *models])]
    if rank == 0:
        torch.save(states, folder / "states.pt")


def test_free_heads_in_two_processes(tmp_path):
    """The gradients are averaged by DDP, in other buckets with heads than without."""
    in_two_processes(train_in_parallel, tmp_path)
    wanted, *free = torch.load(tmp_path / "states.pt")
    start = tiny_model(ngram_size=1, **DROPOUT).state_dict()
    assert not any(torch.equal(start[name], tensor) for name, tensor in wanted.items() if name.endswith("weight"))
    for actual in free:
        assert_same_trunk(actual, wanted)
    # More rows in a step: the training of one process is another one.
    alone = train(tiny_model(ngram_size=1, **DROPOUT), tmp_path / "alone", max_steps=6)
    with pytest.raises(AssertionError):
        assert_same_trunk(free[0], alone)


def test_factors():
    assert head_factors("constant", 5, 10, 3) is None
    assert head_factors("linear", 0, 10, 2) == [1.0, 1.0]
    assert head_factors("linear", 5, 10, 2) == [0.5, 0.5]
    steps = [head_factors("curriculum", step, 10, 3) for step in range(10)]
    assert steps[0] == steps[2] == [0.0, 0.0, 0.0]
    assert steps[3] == steps[4] == [1.0, 0.0, 0.0]
    assert steps[5] == steps[7] == [1.0, 1.0, 0.0]
    assert steps[8] == steps[9] == [1.0, 1.0, 1.0]
    with raises_naming(ValueError, "`schedule`", "cosine"):
        HeadSchedule("cosine")


@pytest.mark.parametrize("schedule", ["linear", "curriculum"])
def test_schedule_and_sample_resume(tmp_path, schedule):
    """A training that was interrupted ends with the weights of one that was not."""
    fields, options = {"head_sample_rate": 0.5, **DROPOUT}, {"head_loss_schedule": schedule}
    arguments = {"max_steps": 8, "save_strategy": "steps", "save_steps": 4}
    wanted = train(tiny_model(**fields), tmp_path, options=options, **arguments)
    model = tiny_model(**fields)
    actual = train(model, tmp_path, options=options, resume=str(tmp_path / "checkpoint-4"), **arguments)
    assert model.ngram_step == 7
    for name, tensor in wanted.items():
        assert torch.equal(actual[name], tensor), name
    other = train(tiny_model(**fields), tmp_path, **arguments)
    assert not torch.equal(other["ngram_heads.0.fc_in.weight"], wanted["ngram_heads.0.fc_in.weight"])


def test_schedule_ends_with_the_training(tmp_path):
    model, ids = tiny_model(), random_ids(2, 9)
    train(model, tmp_path, options={"head_loss_schedule": "linear"}, max_steps=2)
    expected = with_weights_of(model, tiny_model()).train()
    assert torch.equal(model.train()(ids, labels=ids).loss, expected(ids, labels=ids).loss)


def test_logged_losses_of_a_sample(tmp_path):
    """The log has the mean over the sampled targets of all batches of a step, however they are split."""
    logs = []
    for batch_size, accumulation in ((6, 1), (2, 3)):
        model = tiny_model(head_sample_rate=0.3, **FREE)
        arguments = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": accumulation}
        training = TrainingArguments(tmp_path, **{**SETTINGS, **arguments, "max_steps": 2, "logging_steps": 1})
        trainer = NgramTrainer(model, training, train_dataset=rows())
        trainer.train()
        logs.append([entry for entry in trainer.state.log_history if "head_1_loss" in entry])
    assert len(logs[0]) == 2
    for one, other in zip(*logs, strict=True):
        for name in ("next_word_loss", "head_1_loss", "head_2_loss", "head_3_loss"):
            assert one[name] == pytest.approx(other[name], rel=1e-5)


@torch.compiler.disable
def weighted(counts: list[torch.Tensor], training: HeadTraining) -> torch.Tensor:
    """Like the loss, a function that `torch.compile` leaves out."""
    return sum(count * weight for count, weight in zip(counts, training.weights[1:], strict=True))


@pytest.mark.parametrize(("schedule", "rate"), [("constant", 1.0), ("constant", 0.5), ("linear", 1.0)])
def test_steps_are_not_compiled_anew(schedule, rate):
    model, targets = tiny_model(head_sample_rate=rate), random_ids(2, 9)
    callback = HeadSchedule(schedule)
    callback.on_train_begin(None, None, None, model=model)

    def loss() -> torch.Tensor:
        training = model._ngram_head_training()
        return weighted([training.choose(targets, n).sum() for n in (1, 2, 3)], training)

    compiled = torch.compile(loss, backend="aot_eager")
    for step in range(4):
        callback.on_step_begin(None, TrainerState(global_step=step, max_steps=4), None)
        # A number becomes a variable when it changes for the first time.
        with torch.compiler.set_stance("default" if step < 2 else "fail_on_recompile"):
            assert torch.equal(compiled(), loss())
