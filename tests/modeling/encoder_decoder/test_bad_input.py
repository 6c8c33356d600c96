"""Invalid inputs of encoder-decoder models: the error names the argument."""

import copy

import pytest
import torch
import torch.nn.functional as F

from tests.support.errors import raises_naming
from tests.support.tiny import SEQ2SEQ, VOCAB_SIZE, random_ids, tiny_seq2seq
from tests.support.translation import BATCHES, NAMES


@pytest.mark.parametrize("name", NAMES)
def test_loss_that_bypasses_the_heads_is_an_error(name):
    batch = {**BATCHES["decoder ids of one's own"]}
    labels = batch.pop("labels")
    model = tiny_seq2seq(name).train()
    copied = copy.deepcopy(model)
    with raises_naming(RuntimeError, "`ngram_heads`"):
        F.cross_entropy(model(**batch).logits.flatten(0, 1), labels.flatten()).backward()
    copied(**batch, labels=labels).loss.backward()
    assert all(parameter.grad is not None for parameter in copied.ngram_heads.parameters())
    frozen = tiny_seq2seq(name).train()
    frozen.ngram_heads.requires_grad_(False)
    frozen(**batch).logits.sum().backward()
    tiny_seq2seq(name, ngram_size=1).train()(**batch).logits.sum().backward()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("token", [VOCAB_SIZE, VOCAB_SIZE + 100, -1])
@pytest.mark.parametrize("name", NAMES)
def test_tokens_outside_the_vocabulary(name, token, training):
    model = tiny_seq2seq(name).train(training)
    batch = BATCHES["decoder ids of one's own"]
    for key in ("input_ids", "decoder_input_ids", "labels"):
        wrong = batch[key].clone()
        wrong[1, 3] = token
        with raises_naming(ValueError, f"`{key}`", str(token)):
            model(**{**batch, key: wrong})
    wrong = batch["labels"].clone()
    wrong[1, 3] = token
    with raises_naming(ValueError, "`labels`", str(token)):
        model(input_ids=batch["input_ids"], labels=wrong)


def test_each_side_has_its_own_vocabulary():
    fields = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 23}
    model, source = tiny_seq2seq("marian", **fields), torch.tensor([[VOCAB_SIZE - 1, 4]])
    assert model(source, decoder_input_ids=torch.tensor([[22, 3]])).logits.shape == (1, 2, 23)
    for key in ("labels", "decoder_input_ids"):
        with raises_naming(ValueError, f"`{key}`", "23"):
            model(source, **{key: torch.tensor([[3, 23]])})


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_labels_of_another_shape(name, training):
    model, ids = tiny_seq2seq(name).train(training), random_ids(2, 5)
    names = ("`labels`", "(2, 5)")
    for labels in (ids[:, :4], ids[:1], ids[0]):
        with raises_naming(ValueError, *names):
            model(ids, decoder_input_ids=ids, labels=labels)
    with raises_naming(ValueError, *names):
        model(ids, decoder_input_ids=ids, shift_labels=ids[:, 1:])


@pytest.mark.parametrize("value", [-0.1, 2, "much"])
@pytest.mark.parametrize("name", NAMES)
def test_lambda_of_a_call(name, value):
    model, ids = tiny_seq2seq(name), random_ids(1, 5)
    names = ("`ensemble_lambda`", repr(value))
    for call in (
        lambda: model(ids, labels=ids, ensemble_lambda=value),
        lambda: model(ids, labels=ids, ensemble_lambda=[0.1, value]),
        lambda: model(ids, decoder_input_ids=ids, ensemble_lambda=value),
        lambda: model.generate(ids, ensemble_lambda=value, max_new_tokens=2),
        lambda: SEQ2SEQ[name][1](ensemble_lambda=value),
    ):
        with raises_naming(ValueError, *names):
            call()


@pytest.mark.parametrize("name", NAMES)
def test_several_lambdas_are_for_evaluation(name):
    model, ids = tiny_seq2seq(name), random_ids(1, 5)
    names = ("`ensemble_lambda`", "`labels`")
    for call in (
        lambda: model(ids, decoder_input_ids=ids, ensemble_lambda=[0.0, 0.1]),
        lambda: model(ids, labels=ids, ensemble_lambda=[]),
        lambda: model.train()(ids, labels=ids, ensemble_lambda=[0.0, 0.1]),
    ):
        with raises_naming(ValueError, *names):
            call()


@pytest.mark.parametrize("name", NAMES)
def test_embeddings_without_ids(name):
    """The losses of WDR heads need the token ids; simple heads can be trained without."""
    source, decoder_ids, labels = random_ids(2, 5), random_ids(2, 6, seed=1), random_ids(2, 6, seed=2)
    names = ("`decoder_input_ids`", "`decoder_inputs_embeds`", "`labels`")

    def embedded(model):
        # The decoder scales the embeddings itself.
        return model.get_decoder().embed_tokens(decoder_ids)

    model = tiny_seq2seq(name)
    for training in (True, False):
        model.train(training)
        with raises_naming(ValueError, *names):
            model(source, decoder_inputs_embeds=embedded(model), labels=labels)
    model = tiny_seq2seq(name, ngram_target="simple").train()
    by_embeddings = model(source, decoder_inputs_embeds=embedded(model), labels=labels)
    torch.testing.assert_close(by_embeddings.loss, model(source, decoder_input_ids=decoder_ids, labels=labels).loss)
    # The source can be embeddings for any kind of head.
    model = tiny_seq2seq(name).train()
    by_embeddings = model(inputs_embeds=model.get_encoder().embed_tokens(source), labels=labels)
    torch.testing.assert_close(by_embeddings.loss, model(source, labels=labels).loss)


@pytest.mark.parametrize("name", NAMES)
def test_no_decoder_text(name):
    model, ids = tiny_seq2seq(name), random_ids(2, 4)
    names = ("`decoder_input_ids`", "`decoder_inputs_embeds`")
    with raises_naming(ValueError, *names):
        model(inputs_embeds=model.get_input_embeddings()(ids))
    with raises_naming(ValueError, *names):
        model(ids, decoder_input_ids=ids, decoder_inputs_embeds=model.get_input_embeddings()(ids), labels=ids)
