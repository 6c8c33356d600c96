"""What only masked language models have: their loss against the slow reference, heads that compose masked tokens."""

import pytest
import torch
from transformers import Trainer, TrainingArguments

from ngram_wdr_hf import WDRNgramBertConfig, with_ngram_heads
from tests.support.batches import MASKED_BATCHES, masked_batch
from tests.support.errors import raises_naming
from tests.support.masked import reference_loss, reference_losses
from tests.support.tiny import KINDS, MASKED, MASKED_SIZES, make, make_stock, model_of
from tests.support.training import ONE_STEP, assert_same_gradients, gradients

CLOSE = {"rtol": 1e-9, "atol": 1e-10}


@pytest.fixture(params=MASKED)
def name(request) -> str:
    return request.param


@pytest.fixture(params=["all", "masked"])
def compose(request) -> str:
    return request.param


@pytest.mark.parametrize(("smoothing", "count"), [(0.0, None), (0.2, 50)])
@pytest.mark.parametrize("batch", MASKED_BATCHES)
def test_loss_and_gradients(name, compose, batch, smoothing, count):
    model = model_of(name, ngram_size=4, wdr_compose=compose, label_smoothing=smoothing)
    batch = MASKED_BATCHES[batch]
    losses, smoothed = (reference_losses(model, **batch, label_smoothing=value) for value in (0.0, smoothing))
    expected, counts = reference_loss(smoothed, count), [len(terms) for terms in losses]
    # Every head has targets, and each fewer than the one before.
    assert counts == sorted(counts, reverse=True) and counts[-1] > 0 and len(set(counts)) == len(counts)
    means = torch.stack([torch.stack(terms).mean() for terms in losses]).detach()
    evaluated, output = model(**batch), model.train()(**batch, num_items_in_batch=count)
    for each in (evaluated, output):
        torch.testing.assert_close(each.head_losses, means, **CLOSE)
        assert each.head_counts.tolist() == counts
    torch.testing.assert_close(evaluated.loss, means[0], **CLOSE)
    assert output.logits is None
    torch.testing.assert_close(output.loss, expected, **CLOSE)
    assert_same_gradients(gradients(model, output.loss), gradients(model, expected), **CLOSE)


def test_sparse_prediction_has_logits_of_masked_tokens():
    model, batch = make("modernbert", sparse_prediction=True), MASKED_BATCHES["plain"]
    dense, sparse = make("modernbert")(**batch), model(**batch)
    torch.testing.assert_close(sparse.logits, dense.logits[batch["labels"] != -100])
    torch.testing.assert_close(sparse.loss, dense.loss)
    (gradient,) = torch.autograd.grad(sparse.loss, sparse.logits)
    assert gradient.any()


def test_batches_without_masked_tokens(name, compose):
    model, batch = make(name, wdr_compose=compose).train(), dict(MASKED_BATCHES["plain"])
    batch["labels"] = torch.full_like(batch["labels"], -100)
    output = model(**batch)
    assert output.loss == 0 and output.head_counts.tolist() == [0, 0, 0, 0]
    output.loss.backward()
    assert all((parameter.grad == 0).all() for parameter in model.ngram_heads.parameters())
    # The last token has no next token to be composed with.
    batch["labels"][:, -1] = 5
    output = model(**batch)
    assert output.head_counts.tolist() == [3, 0, 0, 0] and output.loss > 0


def test_embeddings_instead_of_ids():
    model, batch = make("bert", wdr_compose="masked"), MASKED_BATCHES["plain"]
    embedded = {"inputs_embeds": model.get_input_embeddings()(batch["input_ids"]), "labels": batch["labels"]}
    torch.testing.assert_close(model(**embedded).head_losses, model(**batch).head_losses)
    with raises_naming(ValueError, "`input_ids`", "`inputs_embeds`", "`labels`"):
        make("bert")(**embedded)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("wdr_compose", "some"),
        ("ngram_target", "simple"),
        ("ensemble_lambda", 0.4),
        ("draft_vocab_size", 9),
        ("head_loss_tokens", "draft"),
        ("ngram_head_reads", "previous+token"),
        ("is_decoder", True),
    ],
)
def test_invalid_fields(field, value):
    with raises_naming(ValueError, field):
        WDRNgramBertConfig(**MASKED_SIZES, **{field: value})


def test_heads_on_a_plain_model(name, tmp_path):
    plain, batch = make_stock(name), MASKED_BATCHES["plain"]
    plain.save_pretrained(tmp_path)
    for source in (plain, tmp_path):
        model = with_ngram_heads(source, ngram_size=3, wdr_compose="masked").eval()
        assert type(model) is KINDS[name].ours and len(model.ngram_heads) == 2
        assert model.config.wdr_compose == "masked" and model.ngram_heads[0].fc_in.weight.std() > 0.1
        assert torch.equal(model(**batch).logits, plain(**batch).logits)
    model.save_pretrained(tmp_path / "ours")
    with raises_naming(ValueError, "`AutoModelForMaskedLM.from_pretrained`"):
        with_ngram_heads(tmp_path / "ours")


def test_stock_trainer_and_gradient_accumulation(tmp_path):
    """Two small batches give the step of one large batch, also with different numbers of masked tokens."""
    ids, labels = masked_batch(4, 12)
    labels[0, 2:] = -100
    items = [{"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)]
    before, trained = make("bert").state_dict(), []
    for size in (4, 2):
        options = {**ONE_STEP, "learning_rate": 0.1, "per_device_train_batch_size": size}
        arguments = TrainingArguments(tmp_path, gradient_accumulation_steps=4 // size, **options)
        model = make("bert")
        Trainer(model, arguments, train_dataset=items).train()
        trained.append(model.state_dict())
    torch.testing.assert_close(trained[0], trained[1], rtol=1e-4, atol=1e-5)
    assert not torch.equal(trained[0]["ngram_heads.2.fc_out.weight"], before["ngram_heads.2.fc_out.weight"])
