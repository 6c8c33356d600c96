"""The stock trainers and `NgramTrainer` on tiny models: exact steps, logs, evaluations, free heads, schedules."""

import math

import pytest
import torch
from accelerate import Accelerator
from transformers import (
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    default_data_collator,
)

from ngram_wdr_hf.training.head_schedule import head_factors
from ngram_wdr_hf.training.trainer import NgramTrainer
from tests.support import reference
from tests.support.errors import raises_naming
from tests.support.tiny import SEQ2SEQ, make, random_ids, tiny_model
from tests.support.tokenizers import word_tokenizer
from tests.support.training import ONE_STEP, change, gradients

NAMES = ["gpt2", "marian", "t5"]
FREE = {"head_gradient": 0.0, "head_loss_weight": 0.5}
ADAM = {
    "optim": "adamw_torch",
    "per_device_train_batch_size": 2,
    "learning_rate": 1e-2,
    # Low enough to clip in every step, and to couple heads and trunk if they were clipped together.
    "max_grad_norm": 0.05,
    "weight_decay": 0.1,
}


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def dropout(name: str) -> dict[str, float]:
    return {"dropout": 0.2} if name in SEQ2SEQ else {"resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.2}


def rows(name: str) -> list[dict]:
    """Texts with padding, or pairs without, of different lengths. Some tokens are no targets."""
    rows = []
    for i, (source, length) in enumerate([(5, 9), (2, 3), (7, 6), (3, 2), (4, 8), (1, 9), (6, 1), (3, 4)]):
        if name in SEQ2SEQ:
            ids, labels = random_ids(1, source, seed=i)[0], random_ids(1, length, seed=100 + i)[0]
            labels[length // 2] = -100 if i % 3 == 0 else labels[length // 2]
            row = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
            rows.append({key: value.tolist() for key, value in row.items()})
        else:
            ids, mask = random_ids(1, 9, seed=i)[0], torch.arange(9) < length
            labels = ids.masked_fill(~mask, -100)
            labels[i % 3 + 1] = -100
            rows.append({"input_ids": ids, "labels": labels, "attention_mask": mask.long()})
    return rows


def collator_of(model):
    is_pair = model.config.is_encoder_decoder
    return DataCollatorForSeq2Seq(word_tokenizer(), model=model) if is_pair else default_data_collator


def trainer_of(model, folder, kind=NgramTrainer, data=None, options=None, **arguments) -> Trainer:
    data = rows("marian" if model.config.is_encoder_decoder else "gpt2") if data is None else data
    training = Seq2SeqTrainingArguments(folder, **{**ONE_STEP, "per_device_eval_batch_size": 8, **arguments})
    options = {"data_collator": collator_of(model), "train_dataset": data, "eval_dataset": data, **(options or {})}
    return kind(model, training, **options)


def trained(model, folder, **arguments) -> dict[str, torch.Tensor]:
    resume = arguments.pop("resume", None)
    trainer_of(model, folder, **{**ADAM, **arguments}).train(resume_from_checkpoint=resume)
    return {key: tensor.clone() for key, tensor in model.state_dict().items()}


def reference_batch(model, data) -> dict[str, torch.Tensor]:
    """
    Return the batch as the references take it. For pairs, the labels are one place later, where a decoder-only model
    has them, and there is a token more for the last of them to stand at.
    """
    batch = collator_of(model)(data)
    if not model.config.is_encoder_decoder:
        return dict(batch)
    start = batch["labels"].new_full((len(data), 1), -100)
    return {
        "input_ids": torch.cat([batch["decoder_input_ids"], start.clamp(min=0)], dim=1),
        "labels": torch.cat([start, batch["labels"]], dim=1),
        "encoder_ids": batch["input_ids"],
        "encoder_mask": batch["attention_mask"],
    }


@pytest.mark.parametrize("fields", [{}, {"ngram_target": "simple", "label_smoothing": 0.1}, {"ngram_size": 1}])
def test_gradient_accumulation_is_exact(name, fields, tmp_path):
    """Trainer counts all targets of a step, and each has the same weight, however the batches are cut."""
    start = make(name, torch.float64, **fields)
    batch = reference_batch(start, rows(name))
    loss, _ = reference.training_loss(start, **batch, num_items=(batch["labels"][:, 1:] != -100).sum())
    expected = gradients(start, loss)
    for kind, arguments in (
        (Seq2SeqTrainer, {"per_device_train_batch_size": 8}),
        (Trainer, {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 3}),
        (NgramTrainer, {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}),
        (NgramTrainer, {"per_device_train_batch_size": 8, "gradient_checkpointing": True}),
    ):
        model = make(name, torch.float64, **fields)
        trainer = trainer_of(model, tmp_path, kind, logging_steps=1, **arguments)
        trainer.train()
        assert trainer.state.log_history[0]["loss"] == pytest.approx(loss.item(), abs=1e-5)
        for parameter, moved in change(start, model).items():
            torch.testing.assert_close(moved, expected[parameter])


def test_logged_losses_are_means_over_targets(name, tmp_path):
    """Three steps of batches with different numbers of targets, and heads without any in one of them."""
    model, data = make(name, torch.float64).train(), [rows(name)[i] for i in (0, 1, 5)]
    outputs = [model(**collator_of(model)([row])) for row in data]
    options = {"max_steps": 3, "logging_steps": 3, "learning_rate": 0.0, "per_device_train_batch_size": 1}
    trainer = trainer_of(model, tmp_path, data=data, **options)
    trainer.train()
    counts = torch.stack([output.head_counts for output in outputs])
    assert counts.min() == 0 and counts[:, 0].min() > 0
    means = (torch.stack([output.head_losses for output in outputs]) * counts).sum(0) / counts.sum(0)
    (log,) = [entry for entry in trainer.state.log_history if "next_word_loss" in entry]
    names = ["next_word_loss", *(f"head_{n}_loss" for n in range(1, model.config.ngram_size))]
    assert [log[key] for key in names] == pytest.approx(means.tolist())


@pytest.mark.parametrize("kind", [Trainer, NgramTrainer])
def test_evaluation_is_the_ensembles(name, kind, tmp_path):
    """The loss, and the logits that metrics get."""
    model, seen = make(name, torch.float64, ensemble_lambda=0.4), {}
    trainer = trainer_of(model, tmp_path, kind)
    trainer.compute_metrics = lambda prediction: seen.update(logits=prediction.predictions) or {}
    loss = trainer.evaluate()["eval_loss"]
    batch = reference_batch(model, rows(name))
    labels = batch.pop("labels")
    with torch.no_grad():
        logits = reference.ensembled_logits(model, ensemble_lambda=0.4, **batch)
        plain = reference.ensembled_logits(model, ensemble_lambda=0.0, **batch)
    mask = batch.get("attention_mask")
    assert loss == pytest.approx(reference.next_word_nll(logits, labels, mask).item())
    assert abs(loss - reference.next_word_nll(plain, labels, mask).item()) > 0.01
    # Of an encoder-decoder model, only the ensemble's logits and the encoder's output are gathered.
    is_pair = name in SEQ2SEQ
    predicted = torch.as_tensor(seen["logits"][0] if is_pair else seen["logits"])
    torch.testing.assert_close(predicted, logits[:, :-1] if is_pair else logits)


def test_batches_without_targets(name, tmp_path):
    start, model = make(name), make(name)
    data = [{**row, "labels": [-100] * len(row["labels"])} for row in rows(name)]
    trainer_of(model, tmp_path, Trainer, data).train()
    assert all(not moved.any() for moved in change(start, model).values())


def test_loss_that_is_not_finite(tmp_path):
    model = tiny_model()
    model.transformer.wpe.weight.data[3] = math.nan
    with raises_naming(FloatingPointError, "step 1"):
        trainer_of(model, tmp_path, logging_steps=1, logging_nan_inf_filter=False).train()


def assert_same_trunk(actual: dict, wanted: dict) -> None:
    assert any("ngram_heads" in key for key in actual)
    for key, tensor in wanted.items():
        assert torch.equal(actual[key], tensor), key


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("gpt2", {"max_steps": 40}),
        # The stock Trainer clips all weights together, so without clipping.
        ("gpt2", {"max_steps": 10, "max_grad_norm": 0.0, "kind": Trainer}),
        ("gpt2", {"max_steps": 6, "gradient_accumulation_steps": 3}),
        ("gpt2", {"max_steps": 6, "gradient_checkpointing": True}),
        ("marian", {"max_steps": 6}),
    ],
)
def test_free_heads_leave_the_training_alone(name, arguments, tmp_path):
    """With γ = 0, the trunk's weights are those of the plain model's training, bit for bit, while the heads learn."""
    fields = {"label_smoothing": 0.1, **dropout(name)}
    plain = make(name, ngram_size=1, **fields)
    model = make(name, head_sample_rate=0.5, **FREE, **fields)
    model.load_state_dict(plain.state_dict(), strict=False)
    start = model.ngram_heads[0].fc_in.weight.clone()
    wanted = trained(plain, tmp_path, **arguments)
    assert_same_trunk(trained(model, tmp_path, **arguments), wanted)
    assert not torch.equal(model.ngram_heads[0].fc_in.weight, start)


def test_attached_heads_do_not(tmp_path):
    """The comparison above would notice a gradient from the heads, and clipping that couples them."""
    for kind, fields in ((NgramTrainer, {**FREE, "head_gradient": 0.01}), (Trainer, FREE)):
        plain, model = tiny_model(ngram_size=1), tiny_model(**fields)
        model.load_state_dict(plain.state_dict(), strict=False)
        wanted = trained(plain, tmp_path, kind=kind, max_steps=2)
        with pytest.raises(AssertionError):
            assert_same_trunk(trained(model, tmp_path, kind=kind, max_steps=2), wanted)


def test_free_heads_with_a_loss_scale(tmp_path, monkeypatch):
    """Float16 scales the loss. The gradients are divided by the scale once, though they are clipped in two parts."""

    class ScalingTrainer(NgramTrainer):
        def create_accelerator_and_postprocess(self):
            super().create_accelerator_and_postprocess()
            self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

    def unscale(accelerator):
        for optimizer in accelerator._optimizers if accelerator.scaler is not None else ():
            accelerator.scaler.unscale_(optimizer.optimizer)

    # Accelerate does so for float16 only, which a CPU is too slow for.
    monkeypatch.setattr(Accelerator, "unscale_gradients", unscale)
    kinds = (NgramTrainer, ScalingTrainer)
    one, other = (trained(tiny_model(**FREE), tmp_path, kind=kind, max_steps=3) for kind in kinds)
    torch.testing.assert_close(one, other)


def test_factors():
    assert head_factors("constant", 5, 10, 3) is None and head_factors("linear", 5, 10, 2) == [0.5, 0.5]
    steps = [head_factors("curriculum", step, 10, 3) for step in range(10)]
    assert steps == [[float(step >= n) for n in (3, 5, 8)] for step in range(10)]


def test_schedule(tmp_path):
    """An interrupted training ends with the weights of one that was not. Then the schedule is over."""
    fields = {"head_sample_rate": 0.5, **dropout("marian")}
    arguments = {"options": {"head_loss_schedule": "curriculum"}, "max_steps": 8}
    arguments |= {"save_strategy": "steps", "save_steps": 4}
    wanted = trained(make("marian", **fields), tmp_path, **arguments)
    model = make("marian", **fields)
    assert_same_trunk(trained(model, tmp_path, resume=str(tmp_path / "checkpoint-4"), **arguments), wanted)
    assert model.ngram_step == 7 and model.ngram_head_factors is None
    other = trained(make("marian", **fields), tmp_path, max_steps=8)
    assert not torch.equal(other["ngram_heads.0.fc_in.weight"], wanted["ngram_heads.0.fc_in.weight"])
