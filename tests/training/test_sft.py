"""TRL's SFTTrainer, on tiny models and words that mean nothing."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

from ngram_wdr_hf.data.rows import pad_batch
from ngram_wdr_hf.training.sft import NgramSFTTrainer
from ngram_wdr_hf.training.trainer import loss_names
from tests.support.errors import raises_naming
from tests.support.tiny import random_ids, tiny_model
from tests.support.tokenizers import word_tokenizer
from tests.support.training import ONE_STEP, change, gradients

# Prompt and completion length of each row, without the end-of-text token.
LENGTHS = [(3, 4), (1, 7), (5, 1), (2, 2), (4, 6)]


def documents() -> list[dict[str, torch.Tensor]]:
    """Token ids that end with the end token; the completion and the end token are the targets."""
    rows = []
    for i, (prompt, completion) in enumerate(LENGTHS):
        ids = torch.cat([random_ids(1, prompt + completion, seed=i)[0], torch.tensor([0])])
        rows.append({"input_ids": ids, "labels": ids.masked_fill(torch.arange(len(ids)) < prompt, -100)})
    return rows


def dataset() -> Dataset:
    words = [[f" w{i}" for i in row["input_ids"][:-1]] for row in documents()]
    pairs = [(row[:prompt], row[prompt:]) for row, (prompt, _) in zip(words, LENGTHS, strict=True)]
    return Dataset.from_list([{"prompt": "".join(prompt), "completion": "".join(rest)} for prompt, rest in pairs])


def trainer_of(model, tmp_path, trainer_class=NgramSFTTrainer, options=None, **arguments) -> SFTTrainer:
    arguments = SFTConfig(tmp_path, **{**ONE_STEP, "logging_steps": 1, "bf16": False, **arguments})
    options = {"train_dataset": dataset(), "eval_dataset": dataset(), **(options or {})}
    return trainer_class(model, arguments, processing_class=word_tokenizer(), **options)


@pytest.mark.parametrize("fields", [{}, {"label_smoothing": 0.1, "ngram_target": "simple"}, {"ngram_size": 1}])
@pytest.mark.parametrize("arguments", [{}, {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}])
def test_step_uses_the_models_loss(tmp_path, fields, arguments):
    start, model = tiny_model(torch.float64, **fields), tiny_model(torch.float64, **fields)
    trainer = trainer_of(model, tmp_path, **arguments)
    trainer.train()
    output = start.train()(**pad_batch(documents()))
    expected = gradients(start, output.loss)
    for name, moved in change(start, model).items():
        torch.testing.assert_close(moved, expected[name])
        assert moved.any()
    logs = trainer.state.log_history[0]
    assert logs["loss"] == pytest.approx(output.loss.item())
    assert logs["num_tokens"] == sum(len(row["input_ids"]) for row in documents())
    if not arguments:
        names = loss_names(start.config.ngram_size)
        assert [logs[name] for name in names] == pytest.approx(output.head_losses.tolist())


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "arguments", [{"packing": True, "max_length": 24}, {"padding_free": True, "max_length": None}]
)
def test_packed_documents_do_not_see_each_other(tmp_path, attention, arguments):
    """The loss is that of each document alone, weighted by its number of targets."""
    start, model = (tiny_model(torch.float64, ensemble_lambda=0.4) for _ in range(2))
    model.set_attn_implementation(attention)
    # With a cache, Transformers would ignore the boundaries.
    trainer = trainer_of(model, tmp_path, use_cache=True, **arguments)
    evaluated = trainer.evaluate()["eval_loss"]
    trainer.train()
    rows = documents()
    count = sum((row["labels"] != -100).sum() for row in rows)

    def loss_alone():
        alone = ({name: ids[None] for name, ids in row.items()} for row in rows)
        return sum(start(**batch, num_items_in_batch=count).loss for batch in alone)

    assert evaluated == pytest.approx(loss_alone().item())
    start.train()
    (loss,) = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert loss == pytest.approx(loss_alone().item())
    expected = gradients(start, loss_alone())
    for name, moved in change(start, model).items():
        torch.testing.assert_close(moved, expected[name])


def test_adapters_train_with_the_heads(tmp_path):
    start = tiny_model()
    adapter = LoraConfig(target_modules=["c_attn"], modules_to_save=["ngram_heads"], fan_in_fan_out=True)
    trainer = trainer_of(tiny_model(), tmp_path, options={"peft_config": adapter}, max_steps=2, learning_rate=0.1)
    trainer.train()
    moved = change(start, trainer.model.merge_and_unload())
    assert all(moved[name].any() == ("c_attn.weight" in name or "ngram_heads" in name) for name in moved)


def test_evaluation_is_the_ensembles(tmp_path):
    """Without heads, TRL's own metrics are the same, with a short last batch as well."""
    trainer = trainer_of(tiny_model(torch.float64, ensemble_lambda=0.4), tmp_path, max_steps=4, learning_rate=0.1)
    trainer.train()
    results, batch = trainer.evaluate(), pad_batch(documents())
    with torch.no_grad():
        output = trainer.model.eval()(**batch)
        main = trainer.model(**batch, ensemble_lambda=0.0)
    assert results["eval_loss"] == pytest.approx(output.loss.item()) != pytest.approx(main.loss.item(), rel=1e-3)
    assert [results[f"eval_{name}"] for name in loss_names(4)] == pytest.approx(output.head_losses.tolist())
    kinds, plain = (SFTTrainer, NgramSFTTrainer), tiny_model(ngram_size=1)
    theirs, ours = (trainer_of(plain, tmp_path, kind, per_device_eval_batch_size=2).evaluate() for kind in kinds)
    for name in ("loss", "num_tokens"):
        assert ours[f"eval_{name}"] == pytest.approx(theirs[f"eval_{name}"]), name


def test_other_losses_and_models(tmp_path):
    start, model = tiny_model(), tiny_model()
    with pytest.warns(UserWarning, match="`NgramSFTTrainer`"):
        trainer_of(model, tmp_path, SFTTrainer).train()
    assert not any(moved.any() for name, moved in change(start, model).items() if name.startswith("ngram_heads"))
    with raises_naming(ValueError, "`loss_type`"):
        trainer_of(model, tmp_path, loss_type="dft")
