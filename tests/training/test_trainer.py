"""The stock Trainer, on tiny models."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments

from ngram_wdr_hf import NgramEnsembleLogitsProcessor, WDRNgramGPT2LMHeadModel
from ngram_wdr_hf.training.trainer import NgramTrainer
from tests.support import reference
from tests.support.errors import raises_naming
from tests.support.tiny import random_ids, tiny_model
from tests.support.training import ONE_STEP, change, gradients

# Rows of different lengths; some tokens are no targets.
LENGTHS = [9, 3, 6, 2, 8, 9, 1, 4]


def rows() -> list[dict]:
    rows = []
    for i, length in enumerate(LENGTHS):
        ids = random_ids(1, 9, seed=i)[0]
        labels = ids.clone()
        labels[length:] = -100
        labels[i % 3 + 1] = -100
        rows.append({"input_ids": ids, "labels": labels, "attention_mask": (torch.arange(9) < length).long()})
    return rows


def train(model, tmp_path, data=None, **arguments) -> Trainer:
    arguments = {**ONE_STEP, **arguments}
    trainer = Trainer(model, TrainingArguments(tmp_path, **arguments), train_dataset=rows() if data is None else data)
    trainer.train()
    return trainer


@pytest.mark.parametrize("fields", [{}, {"label_smoothing": 0.1, "ngram_target": "simple"}, {"ngram_size": 1}])
def test_gradient_accumulation_is_exact(tmp_path, fields):
    start = tiny_model(torch.float64, **fields)
    batch = {name: torch.stack([row[name] for row in rows()]) for name in rows()[0]}
    if start.config.ngram_size == 1:
        expected = gradients(start, start.train()(**batch).loss)
    else:
        # The count that Trainer passes: every label except the first of a row.
        num_items = (batch["labels"][:, 1:] != -100).sum()
        expected = gradients(start, reference.training_loss(start, **batch, num_items=num_items)[0])
    for arguments in (
        {"per_device_train_batch_size": 8},
        {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8},
        {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 3},
        {"per_device_train_batch_size": 8, "gradient_checkpointing": True},
    ):
        model = tiny_model(torch.float64, **fields)
        train(model, tmp_path, **arguments)
        for name, moved in change(start, model).items():
            torch.testing.assert_close(moved, expected[name])


def test_batch_without_targets(tmp_path):
    start, model = tiny_model(), tiny_model()
    ids = random_ids(4, 9)
    train(model, tmp_path, [{"input_ids": row, "labels": torch.full_like(row, -100)} for row in ids])
    assert all(not moved.any() for moved in change(start, model).values())


def test_loss_outside_of_a_training(tmp_path):
    """A user may call the trainer's own steps."""
    model, batch = tiny_model().train(), {"input_ids": random_ids(2, 9), "labels": random_ids(2, 9)}
    trainer = NgramTrainer(model, TrainingArguments(tmp_path, report_to="none", use_cpu=True))
    torch.testing.assert_close(trainer.compute_loss(model, batch), model(**batch).loss)


def test_logged_losses_are_means_over_targets(tmp_path):
    """Three steps of batches with different numbers of targets, and heads without any in one of them."""
    model, data = tiny_model(torch.float64).train(), [row for row in rows() if row["attention_mask"].sum() in (2, 9)]
    options = {"max_steps": 3, "logging_steps": 3, "learning_rate": 0.0, "per_device_train_batch_size": 1}
    trainer = NgramTrainer(model, TrainingArguments(tmp_path, **{**ONE_STEP, **options}), train_dataset=data)
    outputs = [model(**{name: tensor[None] for name, tensor in row.items()}) for row in data]
    trainer.train()
    counts = torch.stack([output.head_counts for output in outputs])
    assert len(data) == 3 and not (counts == counts[0]).all()
    means = (torch.stack([output.head_losses for output in outputs]) * counts).sum(0) / counts.sum(0)
    (log,) = [entry for entry in trainer.state.log_history if "next_word_loss" in entry]
    names = ["next_word_loss", *(f"head_{n}_loss" for n in (1, 2, 3))]
    assert [log[name] for name in names] == pytest.approx(means.tolist())


def test_evaluation_is_the_ensembles(tmp_path):
    model = tiny_model(torch.float64, ensemble_lambda=0.4)
    seen = {}

    def metrics(prediction):
        seen["logits"], seen["labels"] = torch.as_tensor(prediction.predictions), torch.as_tensor(prediction.label_ids)
        return {}

    arguments = TrainingArguments(
        tmp_path, per_device_eval_batch_size=8, report_to="none", use_cpu=True, disable_tqdm=True
    )
    trainer = Trainer(model, arguments, eval_dataset=rows(), compute_metrics=metrics)
    loss = trainer.evaluate()["eval_loss"]
    batch = {name: torch.stack([row[name] for row in rows()]) for name in rows()[0]}
    labels = batch.pop("labels")
    with torch.no_grad():
        logits = reference.ensembled_logits(model, ensemble_lambda=0.4, **batch)
    torch.testing.assert_close(seen["logits"], logits)
    assert torch.equal(seen["labels"], labels)
    assert loss == pytest.approx(reference.next_word_nll(logits, labels, batch["attention_mask"]).item())


def test_training_lowers_every_heads_loss_and_is_saved(tmp_path):
    """Repeated rows can be memorized: the next token and those after it."""
    model = tiny_model(n_embd=32, initializer_range=0.05)
    ids = random_ids(4, 12)
    data = [{"input_ids": row, "labels": row} for row in ids] * 2
    before = model(ids, labels=ids).head_losses
    trainer = train(model, tmp_path, data, max_steps=60, learning_rate=1e-2, optim="adamw_torch", num_train_epochs=60)
    after = model.eval()(ids, labels=ids).head_losses
    assert (after < before / 2).all()
    trainer.save_model(tmp_path / "model")
    loaded = WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(loaded(ids, labels=ids).head_losses, after)


def test_adapters_train_with_the_heads(tmp_path):
    """PEFT wraps the model: LoRA on the trunk, the heads trained in full, and the ensemble through the wrapper."""
    start = tiny_model()
    heads = [f"ngram_heads.{n}" for n in range(3)]
    model = get_peft_model(
        tiny_model(), LoraConfig(target_modules=["c_attn"], modules_to_save=heads, fan_in_fan_out=True)
    )
    train(model, tmp_path, max_steps=2, learning_rate=0.1)
    merged = model.eval().merge_and_unload()
    moved = change(start, merged)
    assert all(moved[name].any() == ("c_attn.weight" in name or "ngram_heads" in name) for name in moved)
    ids = random_ids(2, 5)
    by_argument = merged.generate(ids, ensemble_lambda=0.4, max_new_tokens=6, do_sample=False)
    processor = NgramEnsembleLogitsProcessor(model, 0.4)
    assert torch.equal(
        model.generate(ids, logits_processor=[processor], max_new_tokens=6, do_sample=False), by_argument
    )


def test_loss_that_bypasses_the_heads_is_an_error(tmp_path):
    """Trainer's label smoothing hides the labels from the model, which then cannot train its heads."""
    start, model = tiny_model(), tiny_model()
    with raises_naming(RuntimeError, "`ngram_heads`"):
        train(model, tmp_path, label_smoothing_factor=0.1)
    assert all(not moved.any() for moved in change(start, model).values())


def test_cases_without_an_error():
    """No error for: a custom loss with heads, frozen heads, a plain model, a frozen backbone, an analysis."""
    ids = random_ids(2, 9)
    model = tiny_model().train()
    hidden_states = model.transformer(ids).last_hidden_state
    (model(ids).logits.sum() + model.ngram_heads[0](hidden_states).sum()).backward()
    frozen = copy.deepcopy(tiny_model()).train()
    frozen.ngram_heads.requires_grad_(False)
    frozen(ids).logits.sum().backward()
    tiny_model(ngram_size=1).train()(ids).logits.sum().backward()
    backbone_frozen = tiny_model().train()
    backbone_frozen.transformer.requires_grad_(False)
    backbone_frozen(ids, labels=ids).loss.backward()
    watched = tiny_model().train()
    torch.autograd.grad(watched(ids).logits.sum(), watched.transformer.wpe.weight)
    tiny_model()(ids).logits.sum().backward()


def test_copy_is_checked_independently():
    ids = random_ids(2, 9)
    model = tiny_model().train()
    copied = copy.deepcopy(model)
    model(ids, labels=ids).loss.backward()
    with raises_naming(RuntimeError, "`ngram_heads`"):
        copied(ids).logits.sum().backward()
