"""What encoder-decoder models cannot use gets one clear sentence."""

import copy

import pytest
import torch
import torch.nn.functional as F

from tests.support.tiny import SEQ2SEQ, VOCAB_SIZE, random_ids, tiny_seq2seq
from tests.support.translation import BATCHES, NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_that_bypasses_the_heads_is_an_error(name):
    batch = {**BATCHES["decoder ids of one's own"]}
    labels = batch.pop("labels")
    model = tiny_seq2seq(name).train()
    copied = copy.deepcopy(model)
    with pytest.raises(RuntimeError, match="none of the N-gram heads"):
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
    where = f"must lie in the vocabulary of {VOCAB_SIZE} tokens, got ids from"
    for key in ("input_ids", "decoder_input_ids", "labels"):
        wrong = batch[key].clone()
        wrong[1, 3] = token
        with pytest.raises(ValueError, match=f"^`{key}` {where}"):
            model(**{**batch, key: wrong})
    wrong = batch["labels"].clone()
    wrong[1, 3] = token
    with pytest.raises(ValueError, match=f"^`labels` {where}"):
        model(input_ids=batch["input_ids"], labels=wrong)


def test_each_side_has_its_vocabulary():
    fields = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 23}
    model, source = tiny_seq2seq("marian", **fields), torch.tensor([[VOCAB_SIZE - 1, 4]])
    assert model(source, decoder_input_ids=torch.tensor([[22, 3]])).logits.shape == (1, 2, 23)
    for key in ("labels", "decoder_input_ids"):
        with pytest.raises(ValueError, match=f"^`{key}` must lie in the vocabulary of 23 tokens"):
            model(source, **{key: torch.tensor([[3, 23]])})


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_labels_of_another_shape(name, training):
    model, ids = tiny_seq2seq(name).train(training), random_ids(2, 5)
    message = r"^`labels` must have the shape of the tokens they label, \(2, 5\), got"
    for labels in (ids[:, :4], ids[:1], ids[0]):
        with pytest.raises(ValueError, match=message):
            model(ids, decoder_input_ids=ids, labels=labels)
    with pytest.raises(ValueError, match=message):
        model(ids, decoder_input_ids=ids, shift_labels=ids[:, 1:])


@pytest.mark.parametrize("value", [-0.1, 2, "much"])
@pytest.mark.parametrize("name", NAMES)
def test_lambda_of_a_call(name, value):
    model, ids = tiny_seq2seq(name), random_ids(1, 5)
    message = "^`ensemble_lambda` must be a number from 0 to 1, got"
    for call in (
        lambda: model(ids, labels=ids, ensemble_lambda=value),
        lambda: model(ids, labels=ids, ensemble_lambda=[0.1, value]),
        lambda: model(ids, decoder_input_ids=ids, ensemble_lambda=value),
        lambda: model.generate(ids, ensemble_lambda=value, max_new_tokens=2),
        lambda: SEQ2SEQ[name][1](ensemble_lambda=value),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("name", NAMES)
def test_several_lambdas_are_for_evaluation(name):
    model, ids = tiny_seq2seq(name), random_ids(1, 5)
    message = "^Several values of `ensemble_lambda` at once are for evaluation mode, with `labels`"
    for call in (
        lambda: model(ids, decoder_input_ids=ids, ensemble_lambda=[0.0, 0.1]),
        lambda: model(ids, labels=ids, ensemble_lambda=[]),
        lambda: model.train()(ids, labels=ids, ensemble_lambda=[0.0, 0.1]),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("name", NAMES)
def test_embeddings_without_ids(name):
    """WDR needs to know the words in between, and so does the ensemble; simple heads learn without."""
    source, decoder_ids, labels = random_ids(2, 5), random_ids(2, 6, seed=1), random_ids(2, 6, seed=2)
    message = "pass `decoder_input_ids` instead of `decoder_inputs_embeds`"

    def embedded(model):
        # The decoder's own scaling comes after it.
        return model.get_decoder().embed_tokens(decoder_ids)

    for training, options in ((True, {}), (False, {}), (False, {"ngram_target": "simple", "ensemble_lambda": 0.4})):
        model = tiny_seq2seq(name, **options).train(training)
        with pytest.raises(ValueError, match=message):
            model(source, decoder_inputs_embeds=embedded(model), labels=labels)
    model = tiny_seq2seq(name, ngram_target="simple").train()
    by_embeddings = model(source, decoder_inputs_embeds=embedded(model), labels=labels)
    torch.testing.assert_close(by_embeddings.loss, model(source, decoder_input_ids=decoder_ids, labels=labels).loss)
    # The source can come as embeddings for any head.
    model = tiny_seq2seq(name).train()
    by_embeddings = model(inputs_embeds=model.get_encoder().embed_tokens(source), labels=labels)
    torch.testing.assert_close(by_embeddings.loss, model(source, labels=labels).loss)


@pytest.mark.parametrize("name", NAMES)
def test_no_text(name):
    model, ids = tiny_seq2seq(name), random_ids(2, 4)
    message = "^Pass either `decoder_input_ids` or `decoder_inputs_embeds`"
    with pytest.raises(ValueError, match=message):
        model(inputs_embeds=model.get_input_embeddings()(ids))
    with pytest.raises(ValueError, match=message):
        model(ids, decoder_input_ids=ids, decoder_inputs_embeds=model.get_input_embeddings()(ids), labels=ids)
