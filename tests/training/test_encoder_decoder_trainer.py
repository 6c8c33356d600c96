"""The stock Trainer and Seq2SeqTrainer, on tiny encoder-decoder models."""

import json
from pathlib import Path

import pytest
import torch
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments

from ngram_wdr_hf.training.trainer import NgramTrainer
from tests.support import reference
from tests.support.errors import raises_naming
from tests.support.processes import in_two_processes
from tests.support.tiny import SEQ2SEQ, random_ids, tiny_seq2seq
from tests.support.tokenizers import word_tokenizer
from tests.support.training import ONE_STEP, change, gradients

LENGTHS = [(5, 9), (2, 3), (7, 6), (3, 2), (4, 8), (1, 9), (6, 1), (3, 4)]
SETTINGS = {**ONE_STEP, "per_device_eval_batch_size": 8, "logging_steps": 1}


@pytest.fixture(params=SEQ2SEQ)
def name(request):
    return request.param


def rows(count: int = 8) -> list[dict[str, list[int]]]:
    """Return pairs without padding; some translations have a token that is no target."""
    rows = []
    for i in range(count):
        source_length, length = LENGTHS[i % 8]
        labels = random_ids(1, length, seed=100 + i)[0].tolist()
        if i % 3 == 0:
            labels[length // 2] = -100
        source = random_ids(1, source_length, seed=i)[0].tolist()
        rows.append({"input_ids": source, "attention_mask": [1] * source_length, "labels": labels})
    return rows


def collator(model) -> DataCollatorForSeq2Seq:
    return DataCollatorForSeq2Seq(word_tokenizer(), model=model)


def trainer_of(model, folder, data=None, kind=Seq2SeqTrainer, **arguments) -> Trainer:
    arguments = {**SETTINGS, **arguments}
    make = TrainingArguments if kind is Trainer else Seq2SeqTrainingArguments
    data = rows() if data is None else data
    return kind(model, make(folder, **arguments), data_collator=collator(model), train_dataset=data, eval_dataset=data)


def reference_batch(model, data) -> dict[str, torch.Tensor]:
    """
    The collator's batch as the references take it: the labels one place later, where a decoder-only model has them,
    and a token more for the last of them to stand at.
    """
    batch = collator(model)(data)
    start = batch["labels"].new_full((len(data), 1), -100)
    assert torch.equal(batch["decoder_input_ids"], model.prepare_decoder_input_ids_from_labels(batch["labels"]))
    return {
        "input_ids": torch.cat([batch["decoder_input_ids"], start.clamp(min=0)], dim=1),
        "labels": torch.cat([start, batch["labels"]], dim=1),
        "encoder_ids": batch["input_ids"],
        "encoder_mask": batch["attention_mask"],
    }


@pytest.mark.parametrize(
    "fields",
    [{}, {"ngram_target": "simple", "label_smoothing": 0.1, "tie_word_embeddings": False}],
    ids=["word differences", "simple, smoothed and untied"],
)
def test_gradient_accumulation_is_exact(name, fields, tmp_path):
    """Every label is a target, including the first, and Trainer counts them all."""
    start = tiny_seq2seq(name, torch.float64, **fields)
    batch = reference_batch(start, rows())
    num_items = sum(label != -100 for row in rows() for label in row["labels"])
    loss, nlls = reference.training_loss(start, **batch, num_items=num_items)
    expected = gradients(start, loss)
    # The loss includes the heads.
    assert abs(loss.item() - nlls[0].item()) > 0.01
    # Trainer would count fewer targets for shifted labels.
    assert num_items > (batch["labels"][:, 2:] != -100).sum()
    for kind, arguments in (
        (Seq2SeqTrainer, {"per_device_train_batch_size": 8, "predict_with_generate": True}),
        (Seq2SeqTrainer, {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}),
        (Trainer, {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 3}),
        (Trainer, {"per_device_train_batch_size": 8, "gradient_checkpointing": True}),
    ):
        model = tiny_seq2seq(name, torch.float64, **fields)
        trainer = trainer_of(model, tmp_path, kind=kind, **arguments)
        trainer.train()
        assert trainer.state.log_history[0]["loss"] == pytest.approx(loss.item(), abs=1e-5)
        moved = change(start, model)
        for parameter, wanted in expected.items():
            torch.testing.assert_close(moved[parameter], wanted)
        heads = [parameter for parameter in moved if parameter.startswith("ngram_heads.")]
        assert len(heads) == 4 * (model.config.ngram_size - 1)
        assert all(moved[parameter].any() for parameter in heads)
        assert sum(moved[parameter].any().item() for parameter in moved) > len(heads) + 20


def test_logged_bag_of_words_of_a_short_step(tmp_path):
    """An epoch of five micro-batches ends with a step of one."""
    model = tiny_seq2seq("bart", torch.float64, bow_loss_weight=1.0)
    options = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "max_steps": 4, "learning_rate": 0}
    trainer = trainer_of(model, tmp_path, data=rows(1) * 5, kind=NgramTrainer, **options)
    trainer.train()
    expected = model.train()(**collator(model)(rows(1))).bow_loss.item()
    logged = [entry["bow_loss"] for entry in trainer.state.log_history if "bow_loss" in entry]
    assert logged == pytest.approx([expected] * 4)


def ensembled_nll(model, data, ensemble_lambda: float) -> float:
    batch = reference_batch(model, data)
    labels = batch.pop("labels")
    with torch.no_grad():
        logits = reference.ensembled_logits(model, ensemble_lambda=ensemble_lambda, **batch)
    return reference.next_word_nll(logits, labels).item()


@pytest.mark.parametrize("num_beams", [1, 3])
def test_evaluation_with_generation_is_the_ensembles(name, num_beams, tmp_path):
    model = tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    seen = {}

    def metrics(prediction):
        seen["tokens"], seen["labels"] = (torch.as_tensor(prediction[i]) for i in range(2))
        return {"mark": 7.0}

    trainer = trainer_of(
        model, tmp_path, predict_with_generate=True, generation_max_length=10, generation_num_beams=num_beams
    )
    trainer.compute_metrics = metrics
    figures = trainer.evaluate()
    assert figures["eval_mark"] == 7.0
    assert figures["eval_loss"] == pytest.approx(ensembled_nll(model, rows(), 0.4))
    assert abs(figures["eval_loss"] - ensembled_nll(model, rows(), 0.0)) > 0.01

    batch = collator(model)(rows())
    sources = {key: batch[key] for key in ("input_ids", "attention_mask")}
    tokens = model.generate(**sources, max_length=10, num_beams=num_beams)
    assert tokens.shape == (8, 10)
    assert torch.equal(seen["tokens"][:, :10], tokens) and (seen["tokens"][:, 10:] == 1).all()
    assert torch.equal(seen["labels"][:, :9], batch["labels"])
    # λ as an argument of the call.
    tokens = {
        value: model.generate(**sources, max_length=10, num_beams=num_beams, ensemble_lambda=value)
        for value in (0.0, 1.0)
    }
    assert not torch.equal(tokens[0.0], tokens[1.0])
    for value, wanted in tokens.items():
        prediction = trainer.predict(rows(), ensemble_lambda=value)
        assert torch.equal(torch.as_tensor(prediction.predictions)[:, :10], wanted)


@pytest.mark.parametrize("kind", [Trainer, Seq2SeqTrainer])
def test_evaluation_without_generation(name, kind, tmp_path):
    """Only the ensemble's logits and the encoder's output are gathered."""
    model = tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    seen = {}

    def metrics(prediction):
        seen["predictions"] = prediction.predictions
        return {}

    trainer = trainer_of(model, tmp_path, kind=kind)
    trainer.compute_metrics = metrics
    assert trainer.evaluate()["eval_loss"] == pytest.approx(ensembled_nll(model, rows(), 0.4))
    batch = reference_batch(model, rows())
    del batch["labels"]
    with torch.no_grad():
        logits = reference.ensembled_logits(model, ensemble_lambda=0.4, **batch)
    predicted, encoded = (torch.as_tensor(prediction) for prediction in seen["predictions"])
    torch.testing.assert_close(predicted, logits[:, :-1])
    assert encoded.shape == (8, 7, 16)


def test_training_lowers_every_heads_loss_and_is_saved(name, tmp_path):
    """Repeated pairs can be memorized: the next token and those after it."""
    fields = {"d_model": 32, **({} if name == "t5" else {"init_std": 0.05})}
    model = tiny_seq2seq(name, **fields)
    data = [{**row, "labels": random_ids(1, 9, seed=i)[0].tolist()} for i, row in enumerate(rows(4))]
    batch = collator(model)(data)
    with torch.no_grad():
        before = model(**batch).head_losses
    trainer = trainer_of(model, tmp_path, data, max_steps=60, learning_rate=1e-2, optim="adamw_torch")
    trainer.train()
    with torch.no_grad():
        after = model.eval()(**batch).head_losses
    assert (after < before / 2).all()
    trainer.save_model(tmp_path / "model")
    loaded = type(model).from_pretrained(tmp_path / "model")
    with torch.no_grad():
        torch.testing.assert_close(loaded(**batch).head_losses, after)


def test_resumed_training(name, tmp_path):
    """With dropout, whose random state is restored, and evaluations by generation."""
    dropout = {"dropout_rate": 0.1} if name == "t5" else {"dropout": 0.1}
    arguments = {
        "max_steps": 4,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "optim": "adamw_torch",
        "save_strategy": "steps",
        "save_steps": 2,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "predict_with_generate": True,
        "generation_max_length": 6,
    }
    complete = tiny_seq2seq(name, **dropout)
    trainer = trainer_of(complete, tmp_path, **arguments)
    trainer.train()
    resumed = tiny_seq2seq(name, seed=5, **dropout)
    continued = trainer_of(resumed, tmp_path, **arguments)
    continued.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    half = type(complete).from_pretrained(tmp_path / "checkpoint-2").state_dict()
    for key, value in complete.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[key], value, rtol=0, atol=1e-6)
    for key in ("ngram_heads.0.fc_in.weight", "ngram_heads.2.fc_out.weight", "lm_head.weight"):
        assert not torch.allclose(half[key], complete.state_dict()[key], atol=1e-3)
    logs = [
        [(entry["step"], entry.get("loss"), entry.get("eval_loss")) for entry in each.state.log_history[:-1]]
        for each in (trainer, continued)
    ]
    assert len(logs[0]) == 6 and logs[0] == logs[1]


@pytest.mark.parametrize("kind", [Trainer, Seq2SeqTrainer])
def test_loss_that_bypasses_the_heads_is_an_error(name, kind, tmp_path):
    """Trainer's label smoothing hides the labels from the model, which then cannot train its heads."""
    start, model = tiny_seq2seq(name), tiny_seq2seq(name)
    with raises_naming(RuntimeError, "`ngram_heads`"):
        trainer_of(model, tmp_path, kind=kind, label_smoothing_factor=0.1).train()
    assert all(not moved.any() for moved in change(start, model).values())


def test_batch_without_targets(name, tmp_path):
    start, model = tiny_seq2seq(name), tiny_seq2seq(name)
    data = [{**row, "labels": [-100] * len(row["labels"])} for row in rows()]
    trainer_of(model, tmp_path, data).train()
    assert all(not moved.any() for moved in change(start, model).values())


def run_marian(folder: Path, batch_size: int) -> None:
    """Run in each process; the first writes weights, losses and predictions to `folder`."""
    model = tiny_seq2seq("marian", init_std=0.1, ensemble_lambda=0.4)
    data = rows(24)
    trainer = trainer_of(
        model,
        folder,
        data,
        max_steps=8,
        learning_rate=5e-3,
        optim="adamw_torch",
        # Some gradients are zero up to rounding, which Adam would scale to full steps.
        adam_epsilon=1e-4,
        per_device_train_batch_size=batch_size,
        per_device_eval_batch_size=1,
        predict_with_generate=True,
        generation_max_length=10,
        generation_num_beams=2,
    )
    trainer.train()
    prediction = trainer.predict(data[:6])
    trainer.save_model(folder / "model")
    if trainer.is_world_process_zero():
        results = {
            "num_processes": trainer.args.world_size,
            "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
            "predictions": prediction.predictions.tolist(),
            "test_loss": prediction.metrics["test_loss"],
        }
        (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")


def run_in_one_of_two(rank: int, folder: Path) -> None:
    run_marian(folder, 4)


def test_two_processes_equal_one_with_twice_the_batch(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    in_two_processes(run_in_one_of_two, two)
    run_marian(one, 8)
    alone, together = (json.loads((path / "results.json").read_text(encoding="utf-8")) for path in (one, two))
    assert (alone["num_processes"], together["num_processes"]) == (1, 2)
    assert len(together["losses"]) == 8 and together["losses"][-1] < together["losses"][0] - 0.1
    assert together["losses"] == pytest.approx(alone["losses"], abs=1e-4)
    assert together["test_loss"] == pytest.approx(alone["test_loss"], abs=1e-4)
    assert len(alone["predictions"]) == 6 and together["predictions"] == alone["predictions"]

    start = tiny_seq2seq("marian", init_std=0.1)
    models = [type(start).from_pretrained(path / "model") for path in (one, two)]
    torch.testing.assert_close(models[1].state_dict(), models[0].state_dict(), atol=1e-5, rtol=1e-5)
    for before, after in zip(start.ngram_heads.parameters(), models[1].ngram_heads.parameters(), strict=True):
        assert not torch.allclose(before, after, atol=1e-3)
