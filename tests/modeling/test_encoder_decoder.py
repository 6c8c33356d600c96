"""What only encoder-decoder models have: labels that are not shifted, a source, its encoder, two vocabularies."""

import copy

import pytest
import torch
import torch.nn.functional as F
from transformers import pipeline

from ngram_wdr_hf import NgramEnsembleLogitsProcessor
from ngram_wdr_hf.method import loss as loss_module
from tests.support import reference
from tests.support.batches import (
    TOLERANCE,
    VARIANTS,
    assert_loss_matches,
    expected_loss,
    expected_nll,
    fit,
    shift_right,
    text_of,
)
from tests.support.batches import TRANSLATIONS as BATCHES
from tests.support.checkpoints import assert_same_state
from tests.support.generation import STEPS, assert_same_generation, generate, prompt, sources
from tests.support.options import STRATEGIES
from tests.support.tiny import SEQ2SEQ, VOCAB_SIZE, make, make_stock, model_of, random_ids, stock_twin
from tests.support.tokenizers import word_tokenizer
from tests.support.training import LargestTensor

pytestmark = pytest.mark.filterwarnings("ignore:This backward pass trains the backbone")


@pytest.fixture(params=["marian", "t5"])
def name(request) -> str:
    return request.param


# With N = 1 there are no heads, so the kind of target has no effect.
SETTINGS = [(1, "wdr", 0.2), (2, "wdr", 0.0), (3, "wdr", 0.2), (4, "wdr", 0.0), (3, "simple", 0.0)]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("size", "target", "smoothing"), SETTINGS)
def test_loss_and_gradients(name, size, target, smoothing, batch):
    assert_loss_matches(name, BATCHES[batch], ngram_size=size, ngram_target=target, label_smoothing=smoothing)


def test_references_agree():
    """A target sentence is a row of a language model with one more token, of any id."""
    model, batch = model_of("marian"), BATCHES["left-padded decoder"]
    row = F.pad(batch["decoder_input_ids"], (0, 1), value=5)
    causal = reference.training_loss(
        model,
        row,
        F.pad(batch["labels"], (1, 0), value=-100),
        attention_mask=F.pad(batch["decoder_attention_mask"], (0, 1), value=1),
        encoder_ids=batch["input_ids"],
    )
    torch.testing.assert_close(expected_loss("marian", model, batch), causal)


def test_shift_labels_equal_labels(name):
    """Labels are at the positions where the decoder predicts them, so neither argument is shifted."""
    batch = dict(BATCHES["ragged"])
    model = model_of(name).train()
    by_labels = model(**batch)
    labels = batch.pop("labels")
    by_shift = model(**batch, labels=torch.full_like(labels, 3), shift_labels=labels)
    assert torch.equal(by_shift.loss, by_labels.loss) and torch.equal(by_shift.head_losses, by_labels.head_losses)


def test_padded_batch_equals_single_rows(name):
    """A batch of sentences of different lengths gives the loss of the single sentences."""
    model, batch = model_of(name).train(), BATCHES["ragged"]
    (long, short), (target, short_target) = batch["input_ids"], batch["labels"]
    rows = [(long[None], target[None]), (short[None, :4], short_target[None, :4])]
    apart = sum(model(input_ids=source, labels=labels, num_items_in_batch=1).loss for source, labels in rows)
    torch.testing.assert_close(model(**batch, num_items_in_batch=1).loss, apart, **TOLERANCE[name])


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_logits_are_computed_in_chunks(monkeypatch, name, label_smoothing):
    monkeypatch.setattr(loss_module, "LARGEST_CHUNK", 8)
    vocab_size, ids = 5000, random_ids(4, 24)
    model = make(name, vocab_size=vocab_size, label_smoothing=label_smoothing).train()
    with LargestTensor() as seen:
        model(ids, labels=ids).loss.backward()
    assert seen.largest <= vocab_size * model.config.d_model < ids.numel() * vocab_size / 5


@pytest.mark.parametrize(("name", "fields"), [variant for variant in VARIANTS if variant[0] in SEQ2SEQ])
def test_variants_match_the_reference(name, fields):
    """With the count of labels that Trainer gives, which divides the loss of every head."""
    fields = {"ngram_size": 3, "label_smoothing": 0.1, **fields}
    batch = fit(BATCHES["holes"], fields)
    assert_loss_matches(name, batch, num_items=torch.tensor(11), **fields)
    model = model_of(name, **fields)
    with torch.no_grad():
        output = model(**batch, ensemble_lambda=0.4)
        logits = reference.ensembled_logits(model, ensemble_lambda=0.4, **text_of(name, batch))
    torch.testing.assert_close(output.logits, logits, **TOLERANCE[name])
    torch.testing.assert_close(output.loss, expected_nll(name, logits, batch), **TOLERANCE[name])


def test_logit_bias_is_used():
    """The bias is in the training loss of every depth, in the logits, and in the loss for several λ."""
    model, batch = model_of("marian"), BATCHES["plain"]
    other = copy.deepcopy(model)
    other.final_logits_bias.zero_()
    with torch.no_grad():
        shift = model(**batch, ensemble_lambda=0.4).logits - other(**batch, ensemble_lambda=0.4).logits
        torch.testing.assert_close(shift, model.final_logits_bias.expand_as(shift))
        grids = [either(**batch, ensemble_lambda=[0.0, 0.4]).loss for either in (model, other)]
        losses = [either.train()(**batch) for either in (model, other)]
    assert ((grids[0] - grids[1]).abs() > 1e-3).all()
    assert abs(losses[0].loss - losses[1].loss) > 1e-3
    assert ((losses[0].head_losses - losses[1].head_losses).abs() > 1e-3).all()


@pytest.mark.parametrize("training", [True, False])
def test_encoder_outputs_in_place_of_the_source(name, training):
    model, batch = model_of(name).train(training), dict(BATCHES["ragged"])
    expected = model(**batch, ensemble_lambda=0.4)
    source = batch.pop("input_ids")
    encoded = model.get_encoder()(source, attention_mask=batch["attention_mask"])
    for outputs in (encoded, (encoded.last_hidden_state,)):
        again = model(**batch, encoder_outputs=outputs, ensemble_lambda=0.4)
        assert torch.equal(again.loss, expected.loss) and torch.equal(again.head_losses, expected.head_losses)


@torch.no_grad()
def test_bart_makes_decoder_ids_from_its_input():
    ours, source = make("bart", ngram_size=1), random_ids(2, 6)
    plain = stock_twin(ours, make_stock("bart"))
    assert torch.equal(ours(source).logits, plain(source).logits)
    model = model_of("bart")
    expected = reference.ensembled_logits(model, shift_right(source), 0.4, encoder_ids=source)
    torch.testing.assert_close(model(source, ensemble_lambda=0.4).logits, expected)


@pytest.mark.parametrize("option", ["greedy", "beam search"])
def test_lambda_is_not_passed_to_the_encoder(name, option):
    model, source = make(name), random_ids(2, 5)
    encoder_kwargs, options = [], {"max_new_tokens": 4, **STRATEGIES[option]}
    model.get_encoder().register_forward_pre_hook(
        lambda _, args, kwargs: encoder_kwargs.append(kwargs), with_kwargs=True
    )
    model.generate(source, ensemble_lambda=0.4, **options)
    model.generate(source, logits_processor=[NgramEnsembleLogitsProcessor(model, 0.4)], **options)
    assert len(encoder_kwargs) == 2
    model(source, decoder_input_ids=prompt(2, 4), ensemble_lambda=0.4)
    assert len(encoder_kwargs) == 3
    assert all("input_ids" in kwargs and "ensemble_lambda" not in kwargs for kwargs in encoder_kwargs)


def test_encoder_outputs_and_embeddings_instead_of_a_source(name):
    model = model_of(name)
    source = sources(model, 3)
    ids, options = source.pop("input_ids"), {"ensemble_lambda": 0.4, "num_beams": 3}
    expected = generate(model, source | {"input_ids": ids}, **options)
    with torch.no_grad():
        encoded = model.get_encoder()(ids, **source)
    assert_same_generation(generate(model, source | {"encoder_outputs": encoded}, **options), expected)
    embeddings = model.get_encoder().get_input_embeddings()(ids)
    assert_same_generation(generate(model, source | {"inputs_embeds": embeddings}, **options), expected)


def test_pipeline(name):
    """
    Of the pipelines, "text-generation" takes an encoder-decoder model, stock or ours, as an object. It leaves out as
    many tokens of the decoder's text as the source has; the whole is in `generated_token_ids`.
    """
    model, tokenizer, texts = model_of(name), word_tokenizer(), ["w19 w30 w9", "w9 w26", "w5 w35 w8 w9"]
    stock_model = stock_twin(model, make_stock(name, torch.float64))
    ours, stock = (pipeline("text-generation", model=each, tokenizer=tokenizer) for each in (model, stock_model))
    for options in ({"max_new_tokens": STEPS}, {"max_new_tokens": STEPS, "num_beams": 3, "batch_size": 3}):
        assert ours(texts, **options, do_sample=False) == stock(texts, **options, do_sample=False)
    options = {"max_new_tokens": STEPS, "do_sample": False, "ensemble_lambda": 0.4}
    refined = ours(texts, **options, return_tensors=True)
    for (output,), text in zip(refined, texts, strict=True):
        expected = model.generate(tokenizer(text, return_tensors="pt").input_ids, **options)
        assert output["generated_token_ids"] == expected[0].tolist()
    assert refined != ours(texts, **{**options, "ensemble_lambda": 0.0}, return_tensors=True)


def test_resized_decoder_embeddings(tmp_path):
    """Resize only the target vocabulary of a Marian model with separate vocabularies."""
    model = make("marian", share_encoder_decoder_embeddings=False, ensemble_lambda=0.4)
    source, target = random_ids(2, 6, seed=5), random_ids(2, 7, seed=6)
    before = model(source, decoder_input_ids=target).logits
    model.resize_decoder_token_embeddings(VOCAB_SIZE + 8)
    torch.testing.assert_close(model(source, decoder_input_ids=target).logits[..., :VOCAB_SIZE], before)
    assert model.train()(source, labels=torch.full_like(target, VOCAB_SIZE + 7)).loss.isfinite()
    model.save_pretrained(tmp_path)
    assert_same_state(type(model).from_pretrained(tmp_path), model)
