"""Gradient diversity against its definition, and in the log of a training that it does not change."""

import math

import pytest
import torch
from datasets import Dataset
from torch import nn
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from ngram_wdr_hf.data.errors import Unavailable
from ngram_wdr_hf.evaluation.gradient_diversity import GradientDiversityCallback, gradient_diversity
from ngram_wdr_hf.training.trainer import NgramTrainer
from tests.support import reference
from tests.support.batches import DROPOUT, padded_batch
from tests.support.checkpoints import assert_same_state
from tests.support.errors import raises_naming
from tests.support.reformer import tiny_reformer
from tests.support.tiny import plain_model, random_ids, tiny_model, tiny_seq2seq


def causal(**fields):
    # λ is for evaluation and must have no effect.
    model = tiny_model(torch.float64, **{"ngram_size": 3, **DROPOUT, "ensemble_lambda": 0.5, **fields})
    return model, padded_batch(), lambda row: reference.training_loss(model, **row)[0]


def seq2seq():
    model = tiny_seq2seq("marian", torch.float64, ngram_size=3, dropout=0.5)
    batch = {name: random_ids(4, 7, seed=i) for i, name in enumerate(("input_ids", "decoder_input_ids", "labels"))}
    batch["attention_mask"] = torch.ones(4, 7).long()
    batch["attention_mask"][1, 5:] = 0
    batch["labels"][2, 3:] = -100
    return model, batch, lambda row: reference.translation_loss(model, *row.values())[0]


def stock():
    model = plain_model(torch.float64, **DROPOUT)
    return model, padded_batch(), lambda row: model.eval()(**row).loss


KINDS = {
    "wdr": causal,
    "simple": lambda: causal(ngram_target="simple", label_smoothing=0.1),
    "untied": lambda: causal(tie_word_embeddings=False),
    "seq2seq": seq2seq,
    "stock": stock,
}


def row_gradients(model, batch, loss_of) -> list[dict[str, torch.Tensor]]:
    """Return the gradients of separate backward passes, by name."""
    gradients = []
    for i in range(len(batch["labels"])):
        model.zero_grad()
        loss = loss_of({name: tensor[i : i + 1] for name, tensor in batch.items()})
        # The reference loss of a row without targets is a constant.
        if loss.requires_grad:
            loss.backward()
        weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        gradients.append({name: torch.zeros_like(w) if w.grad is None else w.grad for name, w in weights.items()})
    model.zero_grad()
    return gradients


def definition(gradients: list[dict[str, torch.Tensor]], *prefixes: str) -> float:
    """Compute the second form of the paper's equation, from all inner products of row gradients."""
    names = [name for name in gradients[0] if name.startswith(prefixes or "")]
    flat = torch.stack([torch.cat([row[name].flatten() for name in names]) for row in gradients])
    products = flat @ flat.T
    return (products.diagonal().sum() / products.sum()).item()


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_definition(kind):
    model, batch, loss_of = KINDS[kind]()
    expected = row_gradients(model, batch, loss_of)
    for mode in (True, False):
        assert gradient_diversity(model.train(mode), batch) == pytest.approx(definition(expected))


@pytest.mark.parametrize("layers", ["local", "lsh"])
def test_reformer(layers):
    """Reformer layers set their gradients themselves and run backward in training mode only."""
    model, ids = tiny_reformer(layers, ngram_size=3).train(), random_ids(3, 24)
    batch = {"input_ids": ids, "labels": ids}
    expected = row_gradients(model, batch, lambda row: model(**row).loss)
    model = tiny_reformer(layers, ngram_size=3, hidden_dropout_prob=0.5)
    assert gradient_diversity(model, batch) == pytest.approx(definition(expected))


@pytest.mark.parametrize(("kind", "output"), [("wdr", "transformer.wte"), ("untied", "lm_head")])
def test_parts_of_a_model(kind, output):
    model, batch, loss_of = KINDS[kind]()
    expected = row_gradients(model, batch, loss_of)
    for name in ("transformer.h.1", "transformer.ln_f.bias", "ngram_heads"):
        assert gradient_diversity(model, batch, name) == pytest.approx(definition(expected, name))
    # The output embedding may be tied to the input embedding, and counts once.
    found = gradient_diversity(model, batch, ["lm_head.weight", "transformer.h.0", output])
    assert found == pytest.approx(definition(expected, output, "transformer.h.0"))
    model.transformer.h.requires_grad_(False)
    trainable = [{name: value for name, value in row.items() if "transformer.h." not in name} for row in expected]
    assert gradient_diversity(model, batch) == pytest.approx(definition(trainable))
    # A prefix of a name does not match.
    with raises_naming(ValueError, "`parameters`", "'transformer.w'"):
        gradient_diversity(model, batch, ["ngram_heads", "transformer.w"])


class Pull(nn.Module):
    """A model whose gradient is its input."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.unused = nn.Parameter(torch.zeros(2))

    def forward(self, labels):
        return {"loss": (labels * self.weight).sum()}


@pytest.mark.parametrize(
    ("pulls", "expected"),
    [
        ([[1, 2, 3]] * 7, 1 / 7),
        ([[1, 2, 3]], 1),
        # Orthogonal, with different lengths.
        ([[1, 0, 0], [0, 20, 0], [0, 0, 3]], 1),
        ([[3, 0, 0], [-1, 0, 0]], 10 / 4),
        ([[1, 1, 0], [1, 0, 0], [0, 0, 0]], 3 / 5),
        ([[1, 2, 3], [-1, -2, -3]], math.inf),
        ([[1, math.nan, 0], [1, 0, 0]], math.nan),
        # A sum in bfloat16 would stop growing at 256 terms.
        ([[1, 1, 1]] * 300, 1 / 300),
    ],
)
def test_by_hand(pulls, expected):
    for dtype in (torch.float32, torch.bfloat16):
        value = gradient_diversity(Pull().to(dtype), {"labels": torch.tensor(pulls, dtype=dtype)})
        assert value == pytest.approx(expected, nan_ok=True)


def test_no_gradient():
    with raises_naming(Unavailable, "`batch`", "`parameters`", "-100"):
        gradient_diversity(Pull(), {"labels": torch.zeros(2, 3)})


def test_nothing_else_changes():
    model, batch = tiny_model(**DROPOUT).train(), padded_batch()
    # Unusual modes and gradients, to see that they are restored.
    model.transformer.h[0].eval()
    modes = [module.training for module in model.modules()]
    for parameter in model.transformer.parameters():
        parameter.grad = torch.randn_like(parameter)
    kept = [(p.grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()]
    state = torch.get_rng_state()
    with torch.no_grad():
        assert gradient_diversity(model, batch) == gradient_diversity(model, batch)
    assert modes == [module.training for module in model.modules()] and torch.equal(torch.get_rng_state(), state)
    for parameter, (gradient, value) in zip(model.parameters(), kept, strict=True):
        assert parameter.grad is gradient and (gradient is None or torch.equal(gradient, value))


ROWS = random_ids(24, 10)


class ReadInOrder(IterableDataset):
    def __iter__(self):
        return ({"input_ids": row, "labels": row} for row in ROWS)


def random_targets(rows) -> dict[str, torch.Tensor]:
    ids = torch.tensor([row["input_ids"] for row in rows])
    return {"input_ids": ids, "labels": ids.masked_fill(torch.rand(ids.shape) < 0.4, -100)}


# The training has dropout, so any additional random number would change it.
ARGUMENTS = {"max_steps": 7, "per_device_train_batch_size": 5, "logging_steps": 3, "save_steps": 4}
ARGUMENTS |= {"learning_rate": 1e-2, "report_to": "none", "disable_tqdm": True}


def train(folder, options, *measuring, checkpoint=None):
    """Return the trainer, and the batch of the measurements."""
    options = {"trainer_class": Trainer, **options}
    trainer = options.pop("trainer_class")(tiny_model(**DROPOUT), TrainingArguments(folder, **ARGUMENTS), **options)
    callback = GradientDiversityCallback(trainer, *measuring) if measuring else TrainerCallback()
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer, vars(callback).get("batch")


def logged(trainer, name) -> list[tuple[int, float]]:
    return [(entry["step"], entry[name]) for entry in trainer.state.log_history if name in entry]


TRAININGS = {
    "list": {"train_dataset": [*ReadInOrder()], "trainer_class": NgramTrainer},
    "iterable": {"train_dataset": ReadInOrder()},
    "random targets": {
        "train_dataset": Dataset.from_dict({"input_ids": ROWS.tolist(), "title": ["is dropped"] * 24}),
        "data_collator": random_targets,
    },
}


@pytest.mark.parametrize("name", TRAININGS)
def test_training_is_the_same_and_can_be_resumed(tmp_path, name):
    plain, _ = train(tmp_path / "plain", TRAININGS[name])
    trainer, batch = train(tmp_path / "run", TRAININGS[name], 2)
    assert_same_state(plain.model, trainer.model)
    assert logged(plain, "loss") == logged(trainer, "loss")
    values = logged(trainer, "gradient_diversity")
    assert [step for step, _ in values] == [0, 2, 4, 6]
    checkpoint = tmp_path / "run" / "checkpoint-4"
    for value, model in (
        (values[0][1], tiny_model()),
        (values[2][1], type(trainer.model).from_pretrained(checkpoint)),
    ):
        assert value == pytest.approx(gradient_diversity(model, batch), rel=1e-9)
    assert values[2][1] != pytest.approx(values[0][1], rel=1e-3)
    # As many items as in a step, drawn from the whole dataset or the first ones.
    indices = [ROWS.tolist().index(row) for row in batch["input_ids"].tolist()]
    assert len(set(indices)) == 5 and (indices == [0, 1, 2, 3, 4]) == (name == "iterable")
    resumed, again = train(tmp_path / "run", TRAININGS[name], 2, checkpoint=str(checkpoint))
    assert torch.equal(again["labels"], batch["labels"])
    # Trainer itself does not resume a collator's random numbers.
    if name != "random targets":
        assert logged(resumed, "gradient_diversity") == values
        assert_same_state(plain.model, resumed.model)


def test_given_batch_and_parameters(tmp_path):
    trainer, batch = train(tmp_path, TRAININGS["list"], 100, padded_batch(), "ngram_heads")
    expected = gradient_diversity(tiny_model(), batch, "ngram_heads")
    assert logged(trainer, "gradient_diversity") == [(0, pytest.approx(expected))]
