"""TRL's SFTTrainer, on tiny models and words that mean nothing."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainingArguments
from trl import SFTConfig, SFTTrainer

from ngram_wdr_hf.training.sft import NgramSFTTrainer
from tests.support.errors import raises_naming
from tests.support.tiny import plain_model, random_ids, tiny_model
from tests.support.tokenizers import word_tokenizer
from tests.support.training import ONE_STEP, change, gradients

# Prompt and completion length of each row, without the end-of-text token.
LENGTHS = [(3, 4), (1, 7), (5, 1), (2, 2), (4, 6)]


def documents() -> list[tuple[list[int], list[int]]]:
    """Prompts and completions, as token ids."""
    rows = [random_ids(1, sum(lengths), seed=i)[0].tolist() for i, lengths in enumerate(LENGTHS)]
    return [(row[:prompt], row[prompt:]) for row, (prompt, _) in zip(rows, LENGTHS, strict=True)]


def loss_names(ngram_size: int) -> list[str]:
    return ["next_word_loss", *(f"head_{n}_loss" for n in range(1, ngram_size))]


def text(ids: list[int]) -> str:
    return "".join(f" w{i}" for i in ids)


def prompts_and_completions() -> Dataset:
    return Dataset.from_list([{"prompt": text(prompt), "completion": text(rest)} for prompt, rest in documents()])


def batches() -> list[dict[str, torch.Tensor]]:
    """Return the expected inputs of each document; the completion and its end token are the targets."""
    rows = []
    for prompt, rest in documents():
        ids = torch.tensor([[*prompt, *rest, 0]])
        rows.append({"input_ids": ids, "labels": torch.tensor([[-100] * len(prompt) + [*rest, 0]])})
    return rows


def padded_batch() -> dict[str, torch.Tensor]:
    """Return the expected inputs as one batch."""
    length = max(row["input_ids"].shape[1] for row in batches())
    rows = []
    for row in batches():
        padding = (0, length - row["input_ids"].shape[1])
        mask = torch.ones_like(row["input_ids"])
        values = {"input_ids": (row["input_ids"], 1), "labels": (row["labels"], -100), "attention_mask": (mask, 0)}
        rows.append({name: torch.nn.functional.pad(ids, padding, value=v) for name, (ids, v) in values.items()})
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


def trainer_of(model, tmp_path, trainer_class=NgramSFTTrainer, arguments=None, **options) -> SFTTrainer:
    arguments = {**ONE_STEP, "logging_steps": 1, "bf16": False, **(arguments or {})}
    return trainer_class(
        model,
        SFTConfig(tmp_path, **arguments),
        train_dataset=prompts_and_completions(),
        processing_class=word_tokenizer(),
        **options,
    )


def test_stock_sft_trainer_raises_an_error(tmp_path):
    start, model = tiny_model(), tiny_model()
    with raises_naming(RuntimeError, "`NgramSFTTrainer`"):
        trainer_of(model, tmp_path, SFTTrainer).train()
    assert not any(moved.any() for moved in change(start, model).values())


@pytest.mark.parametrize("fields", [{}, {"label_smoothing": 0.1, "ngram_target": "simple"}, {"ngram_size": 1}])
@pytest.mark.parametrize(
    "arguments",
    [{}, {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}],
    ids=["one batch", "accumulated"],
)
def test_step_uses_the_models_loss(tmp_path, fields, arguments):
    start, model = tiny_model(torch.float64, **fields), tiny_model(torch.float64, **fields)
    trainer = trainer_of(model, tmp_path, arguments=arguments)
    trainer.train()
    output = start.train()(**padded_batch())
    expected = gradients(start, output.loss)
    for name, moved in change(start, model).items():
        torch.testing.assert_close(moved, expected[name])
        assert moved.any()

    logs = trainer.state.log_history[0]
    assert logs["loss"] == pytest.approx(output.loss.item())
    assert logs["num_tokens"] == sum(prompt + completion + 1 for prompt, completion in LENGTHS)
    names = loss_names(start.config.ngram_size)
    assert [name for name in logs if name.endswith("_loss")] == names
    if not arguments:
        assert [logs[name] for name in names] == pytest.approx(output.head_losses.tolist())


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "arguments", [{"packing": True, "max_length": 24}, {"padding_free": True, "max_length": None}]
)
def test_packed_documents_do_not_see_each_other(tmp_path, attention, arguments):
    start, model = (tiny_model(torch.float64, ensemble_lambda=0.4) for _ in range(2))
    model.set_attn_implementation(attention)
    # With a cache, Transformers would ignore the boundaries.
    arguments = {"use_cache": True, **arguments}
    trainer = trainer_of(model, tmp_path, arguments=arguments, eval_dataset=prompts_and_completions())
    if trainer.args.packing:
        assert sorted(map(len, trainer.train_dataset["seq_lengths"])) == [2, 3]
    evaluated = trainer.evaluate()["eval_loss"]
    trainer.train()

    # The loss of each document alone, weighted by its number of targets.
    count = sum((batch["labels"] != -100).sum() for batch in batches())
    with torch.no_grad():
        expected = sum(start(**batch, num_items_in_batch=count).loss for batch in batches())
    assert evaluated == pytest.approx(expected.item())
    start.train()
    expected = sum(start(**batch, num_items_in_batch=count).loss for batch in batches())
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected.item())
    expected = gradients(start, expected)
    for name, moved in change(start, model).items():
        torch.testing.assert_close(moved, expected[name])


def test_adapters_train_with_the_heads(tmp_path):
    start = tiny_model()
    heads = [f"ngram_heads.{n}" for n in range(3)]
    adapter = LoraConfig(target_modules=["c_attn"], modules_to_save=heads, fan_in_fan_out=True)
    trainer = trainer_of(tiny_model(), tmp_path, arguments={"max_steps": 2, "learning_rate": 0.1}, peft_config=adapter)
    trainer.train()
    before = dict(start.named_parameters())
    for name, parameter in trainer.model.get_base_model().named_parameters():
        if "lora_" not in name:
            is_copy = ".modules_to_save.default" in name
            for part in (".modules_to_save.default", ".original_module", ".base_layer"):
                name = name.replace(part, "")
            assert torch.equal(parameter, before[name]) != is_copy
    moved = change(start, trainer.model.merge_and_unload())
    assert all(moved[name].any() == ("c_attn.weight" in name or "ngram_heads" in name) for name in moved)


def test_evaluation_is_the_ensembles(tmp_path):
    model = tiny_model(torch.float64, ensemble_lambda=0.4)
    seen = {}

    def metrics(prediction):
        seen["logits"] = torch.as_tensor(prediction.predictions)
        return {}

    arguments = {"max_steps": 4, "learning_rate": 0.1}
    options = {"eval_dataset": prompts_and_completions(), "compute_metrics": metrics}
    trainer = trainer_of(model, tmp_path, arguments=arguments, **options)
    # An untrained model would have an accuracy of 0.
    trainer.train()
    results = trainer.evaluate()
    batch = padded_batch()
    with torch.no_grad():
        output = model.eval()(**batch)
        main = model(**batch, ensemble_lambda=0.0)
    assert results["eval_loss"] == pytest.approx(output.loss.item())
    assert results["eval_loss"] != pytest.approx(main.loss.item(), rel=1e-3)
    torch.testing.assert_close(seen["logits"], output.logits)
    assert [results[f"eval_{name}"] for name in loss_names(4)] == pytest.approx(output.head_losses.tolist())

    is_target = batch["labels"][:, 1:] != -100
    log_probs = output.logits[:, :-1][is_target].log_softmax(-1)
    correct = log_probs.argmax(-1) == batch["labels"][:, 1:][is_target]
    assert 0 < results["eval_mean_token_accuracy"] == pytest.approx(correct.double().mean().item())
    assert results["eval_entropy"] == pytest.approx(-(log_probs.exp() * log_probs).sum(-1).mean().item())


def test_trls_metrics_are_the_same_without_heads(tmp_path):
    """Training and evaluation metrics equal TRL's, including a short last batch."""
    results = []
    for trainer_class in (SFTTrainer, NgramSFTTrainer):
        trainer = trainer_of(
            tiny_model(torch.float64, ngram_size=1),
            tmp_path,
            trainer_class,
            arguments={"per_device_eval_batch_size": 2, "max_steps": 4, "learning_rate": 0.1},
            eval_dataset=prompts_and_completions(),
        )
        trainer.train()
        results.append(trainer.evaluate())
    theirs, ours = results
    assert 0 < theirs["eval_mean_token_accuracy"] < 1
    for name in ("loss", "entropy", "mean_token_accuracy", "num_tokens"):
        assert ours[f"eval_{name}"] == pytest.approx(theirs[f"eval_{name}"]), name


def test_model_by_name_with_plain_arguments(tmp_path):
    """TRL accepts both."""
    tiny_model().save_pretrained(tmp_path / "model")
    arguments = TrainingArguments(tmp_path, max_steps=1, report_to="none", save_strategy="no", use_cpu=True)
    trainer = NgramSFTTrainer(
        str(tmp_path / "model"), arguments, train_dataset=prompts_and_completions(), processing_class=word_tokenizer()
    )
    trainer.train()
    moved = change(tiny_model(), trainer.model)
    assert all(moved[name].any() for name in moved if name.startswith("ngram_heads"))


@pytest.mark.parametrize(
    "arguments, options, name",
    [
        ({"label_smoothing_factor": 0.1}, {}, "`label_smoothing_factor`"),
        ({"loss_type": "dft"}, {}, "'dft'"),
        ({"loss_type": "something"}, {}, "'something'"),
        ({"use_liger_kernel": True}, {}, "`use_liger_kernel`"),
        ({}, {"compute_loss_func": lambda *_, **__: None}, "`compute_loss_func`"),
    ],
)
def test_other_losses_raise_an_error(tmp_path, arguments, options, name):
    with raises_naming(ValueError, name):
        trainer_of(tiny_model(), tmp_path, arguments=arguments, **options)


def test_model_without_heads_raises_an_error(tmp_path):
    with raises_naming(ValueError, "`model`", "`GPT2LMHeadModel`"):
        trainer_of(plain_model(), tmp_path)
    plain_model().save_pretrained(tmp_path / "plain")
    with raises_naming(ValueError, "`model`", "`GPT2LMHeadModel`"):
        trainer_of(str(tmp_path / "plain"), tmp_path)
