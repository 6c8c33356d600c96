"""Masked language models with WDR heads: losses, gradients, logits, checkpoints."""

import inspect

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM, BertConfig, Trainer, TrainingArguments

from ngram_wdr_hf import WDRNgramBertConfig, with_ngram_heads
from tests.support.errors import raises_naming
from tests.support.masked import (
    OURS,
    PAD,
    SIZES,
    STOCK,
    masked_batch,
    plain_masked,
    reference_loss,
    reference_losses,
    tiny_masked,
)

NAMES = ("bert", "modernbert")
COMPOSITIONS = ("all", "masked")
CLOSE = {"rtol": 1e-9, "atol": 1e-10}


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def texts(kind: str):
    """Return ids, labels, and the inputs that mark document boundaries."""
    ids, labels = masked_batch(3, 13)
    if kind == "padded":
        mask = torch.ones_like(ids)
        mask[0, 9:] = mask[2, :4] = 0
        return ids.masked_fill(mask == 0, PAD), labels.masked_fill(mask == 0, -100), {"attention_mask": mask}
    if kind == "packed":
        positions = torch.tensor([*range(4), *range(7), *range(2)]).repeat(3, 1)
        return ids, labels, {"position_ids": positions}
    return ids, labels, {}


@pytest.mark.parametrize("kind", ["plain", "padded", "packed"])
@pytest.mark.parametrize("compose", COMPOSITIONS)
@pytest.mark.parametrize("name", NAMES)
def test_training_loss_and_gradients(name, compose, kind):
    model = tiny_masked(name, torch.float64, ngram_size=4, wdr_compose=compose)
    ids, labels, boundaries = texts(kind)
    losses = reference_losses(model, ids, labels, **boundaries)
    expected = gradients(model, reference_loss(losses))

    output = model.train()(input_ids=ids, labels=labels, **boundaries)
    assert output.logits is None
    torch.testing.assert_close(output.loss, reference_loss(losses), **CLOSE)
    means = [torch.stack(terms).mean() if terms else torch.tensor(0.0).double() for terms in losses]
    torch.testing.assert_close(output.head_losses, torch.stack(means).detach(), **CLOSE)
    assert output.head_counts.tolist() == [len(terms) for terms in losses]
    actual = gradients(model, output.loss)
    assert actual.keys() == expected.keys() and any(name.startswith("ngram_heads.2") for name in actual)
    for key, grad in expected.items():
        torch.testing.assert_close(actual[key], grad, **CLOSE)


def test_batches_have_targets_for_every_head():
    for compose in COMPOSITIONS:
        model = tiny_masked("bert", ngram_size=4, wdr_compose=compose)
        ids, labels, boundaries = texts("packed")
        counts = [len(terms) for terms in reference_losses(model, ids, labels, **boundaries)]
        assert counts == sorted(counts, reverse=True) and counts[-1] > 0 and len(set(counts)) == len(counts)


@pytest.mark.parametrize("compose", COMPOSITIONS)
def test_label_smoothing_and_num_items(compose):
    model = tiny_masked("modernbert", torch.float64, ngram_size=3, wdr_compose=compose, label_smoothing=0.2)
    ids, labels, _ = texts("plain")
    expected = reference_loss(reference_losses(model, ids, labels, label_smoothing=0.2), count=50)
    actual = model.train()(input_ids=ids, labels=labels, num_items_in_batch=torch.tensor(50)).loss
    torch.testing.assert_close(actual, expected, **CLOSE)
    expected = gradients(model, expected)
    for key, grad in gradients(model, actual).items():
        torch.testing.assert_close(grad, expected[key], **CLOSE)


def test_exact_difference_gives_the_masked_token():
    """A head that predicts `(-1)^n Δ_n e` exactly gives the embedding of the masked token."""
    from ngram_wdr_hf import wdr
    from ngram_wdr_hf.method.differences import conjugate_of

    torch.manual_seed(0)
    embeddings = torch.randn(9, 5, dtype=torch.float64)
    for n in range(1, 5):
        differences = (-1) ** n * wdr(embeddings, n)
        following = [embeddings[k : len(embeddings) - n + k] for k in range(1, n + 1)]
        actual = differences[: len(embeddings) - n] + conjugate_of(following)
        torch.testing.assert_close(actual, embeddings[: len(embeddings) - n])


@pytest.mark.parametrize("name", NAMES)
def test_without_heads_equals_the_stock_model(name):
    ours, stock = tiny_masked(name, ngram_size=1), plain_masked(name)
    stock.load_state_dict(ours.state_dict())
    ids, labels, boundaries = texts("padded")
    ours_output = ours(input_ids=ids, labels=labels, **boundaries)
    output = stock(input_ids=ids, labels=labels, **boundaries)
    assert torch.equal(ours_output.logits, output.logits)
    torch.testing.assert_close(ours_output.loss, output.loss)
    ours.train()
    stock.train()
    expected = gradients(stock, stock(input_ids=ids, labels=labels, **boundaries).loss)
    actual = gradients(ours, ours(input_ids=ids, labels=labels, **boundaries).loss)
    assert actual.keys() == expected.keys()
    for key, grad in expected.items():
        torch.testing.assert_close(actual[key], grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_heads_do_not_change_the_logits(name, tmp_path):
    model = tiny_masked(name)
    ids, labels, boundaries = texts("padded")
    output = model(input_ids=ids, labels=labels, **boundaries)
    model.save_pretrained(tmp_path)
    stock = STOCK[name].from_pretrained(tmp_path)
    expected = stock(input_ids=ids, labels=labels, **boundaries)
    assert torch.equal(model(input_ids=ids, **boundaries).logits, expected.logits)
    assert torch.equal(output.logits, expected.logits)
    torch.testing.assert_close(output.loss, expected.loss)
    torch.testing.assert_close(output.head_losses[0], expected.loss.detach())


@pytest.mark.parametrize("name", NAMES)
def test_head_losses_are_the_same_in_evaluation_and_training(name):
    model = tiny_masked(name)
    ids, labels, boundaries = texts("packed")
    evaluated = model(input_ids=ids, labels=labels, **boundaries)
    trained = model.train()(input_ids=ids, labels=labels, **boundaries)
    torch.testing.assert_close(evaluated.head_losses, trained.head_losses)
    assert torch.equal(evaluated.head_counts, trained.head_counts)


def test_sparse_prediction_has_logits_of_masked_tokens():
    model = tiny_masked("modernbert", sparse_prediction=True)
    ids, labels, _ = texts("plain")
    dense = tiny_masked("modernbert")(input_ids=ids, labels=labels)
    sparse = model(input_ids=ids, labels=labels)
    torch.testing.assert_close(sparse.logits, dense.logits[labels != -100])
    torch.testing.assert_close(sparse.loss, dense.loss)


@pytest.mark.parametrize("compose", COMPOSITIONS)
@pytest.mark.parametrize("name", NAMES)
def test_batches_without_masked_tokens(name, compose):
    model = tiny_masked(name, wdr_compose=compose).train()
    ids, labels, _ = texts("plain")
    output = model(input_ids=ids, labels=torch.full_like(labels, -100))
    assert output.loss == 0 and output.head_counts.tolist() == [0, 0, 0, 0]
    output.loss.backward()
    assert all((parameter.grad == 0).all() for parameter in model.ngram_heads.parameters())
    # The last token has no next token to be composed with.
    labels = torch.full_like(labels, -100)
    labels[:, -1] = 5
    output = model(input_ids=ids, labels=labels)
    assert output.head_counts.tolist() == [3, 0, 0, 0] and output.loss > 0


def test_embeddings_instead_of_ids():
    ids, labels, _ = texts("plain")
    model = tiny_masked("bert", wdr_compose="masked")
    embeddings = model.get_input_embeddings()(ids)
    expected, actual = model(input_ids=ids, labels=labels), model(inputs_embeds=embeddings, labels=labels)
    torch.testing.assert_close(actual.head_losses, expected.head_losses)
    with raises_naming(ValueError, "`input_ids`", "`inputs_embeds`", "`labels`"):
        tiny_masked("bert")(inputs_embeds=embeddings, labels=labels)


@pytest.mark.parametrize("name", NAMES)
def test_forward_takes_the_backbones_arguments(name):
    own, stock = (inspect.signature(model_class.forward).parameters for model_class in (OURS[name], STOCK[name]))
    assert list(own) == list(stock)
    model = tiny_masked(name)
    ids, labels, _ = texts("plain")
    as_tuple = model(ids, labels=labels, return_dict=False)
    torch.testing.assert_close(as_tuple[0], model(input_ids=ids, labels=labels).loss)
    output = model(ids, output_hidden_states=True)
    assert len(output.hidden_states) == 3


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"wdr_compose": "some"}, ["`wdr_compose`", "all", "masked", "'some'"]),
        ({"ngram_target": "simple"}, ["`ngram_target`", "'simple'"]),
        ({"ensemble_lambda": 0.4}, ["`ensemble_lambda`"]),
        ({"draft_vocab_size": 9}, ["`draft_vocab_size`"]),
        ({"ngram_size": 0}, ["`ngram_size`", "0"]),
        ({"is_decoder": True}, ["`is_decoder=True`"]),
    ],
)
def test_invalid_fields(fields, names):
    with raises_naming(ValueError, *names):
        WDRNgramBertConfig(**SIZES, **fields)


def test_bad_batches():
    model = tiny_masked("bert")
    ids, labels, _ = texts("plain")
    with raises_naming(ValueError, "`input_ids`", "`inputs_embeds`"):
        model(labels=labels)
    with raises_naming(ValueError, "`labels`", "(3, 13)", "(3, 12)"):
        model(input_ids=ids, labels=labels[:, 1:])
    with raises_naming(ValueError, "`labels`", str((labels + 40).max().item())):
        model(input_ids=ids, labels=labels + 40)


@pytest.mark.parametrize("name", NAMES)
def test_checkpoints(name, tmp_path):
    model = tiny_masked(name, ngram_size=3, wdr_compose="masked")
    model.save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert type(loaded) is OURS[name] and loaded.config.wdr_compose == "masked" and len(loaded.ngram_heads) == 2
    assert all(torch.equal(tensor, model.state_dict()[key]) for key, tensor in loaded.state_dict().items())
    with raises_naming(ValueError, "`ngram_size=3`", "`ngram_size=4`"):
        OURS[name].from_pretrained(tmp_path, ngram_size=4)
    with raises_naming(ValueError, "`AutoModelForMaskedLM.from_pretrained`"):
        with_ngram_heads(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_heads_on_a_plain_model(name, tmp_path):
    plain = plain_masked(name)
    plain.save_pretrained(tmp_path)
    ids = texts("plain")[0]
    for source in (plain, tmp_path):
        model = with_ngram_heads(source, ngram_size=3, wdr_compose="masked").eval()
        assert type(model) is OURS[name] and len(model.ngram_heads) == 2 and model.config.wdr_compose == "masked"
        assert torch.equal(model(input_ids=ids).logits, plain(input_ids=ids).logits)
        assert model.ngram_heads[0].fc_in.weight.std() > 0.1


def test_heads_on_a_bert_decoder_are_rejected(tmp_path):
    BertConfig(**SIZES, is_decoder=True).save_pretrained(tmp_path)
    with raises_naming(ValueError, "BertLMHeadModel"):
        with_ngram_heads(tmp_path)
    assert isinstance(AutoConfig.for_model("wdr_ngram_bert", **SIZES), WDRNgramBertConfig)


def train(model, folder, items, **options):
    arguments = TrainingArguments(
        folder,
        max_steps=2,
        optim="sgd",
        learning_rate=0.1,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        **options,
    )
    Trainer(model, arguments, train_dataset=items).train()
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def test_the_stock_trainer_and_gradient_accumulation(tmp_path):
    """Two small batches give the step of one large batch, also with different numbers of masked tokens."""
    ids, labels = masked_batch(8, 12)
    labels[0, 2:] = -100
    items = [{"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)]
    before = tiny_masked("bert").state_dict()
    full_batch = train(tiny_masked("bert"), tmp_path, items, per_device_train_batch_size=4)
    accumulated = train(
        tiny_masked("bert"), tmp_path, items, per_device_train_batch_size=2, gradient_accumulation_steps=2
    )
    for name, parameter in full_batch.items():
        torch.testing.assert_close(accumulated[name], parameter, rtol=1e-4, atol=1e-5)
    assert not torch.equal(full_batch["ngram_heads.2.fc_out.weight"], before["ngram_heads.2.fc_out.weight"])


def test_training_without_the_heads_is_an_error():
    for name in NAMES:
        model = tiny_masked(name).train()
        ids, labels, _ = texts("plain")
        hidden = model.base_model(ids).last_hidden_state
        with raises_naming(RuntimeError, "`ngram_heads`"):
            hidden.sum().backward()
        model(input_ids=ids, labels=labels).loss.backward()
