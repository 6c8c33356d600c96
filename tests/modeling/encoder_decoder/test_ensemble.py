"""Logits and evaluation loss of encoder-decoder models with the ensemble equal the slow reference."""

import copy

import pytest
import torch

from tests.support import reference
from tests.support.tiny import tiny_seq2seq
from tests.support.translation import BATCHES, NAMES, TOLERANCE, text_of


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("size", "target"), [(1, "wdr"), (2, "simple"), (4, "wdr")])
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_evaluation_uses_the_ensemble(name, size, target, batch):
    model = tiny_seq2seq(name, torch.float64, ngram_size=size, ngram_target=target, label_smoothing=0.3)
    batch = BATCHES[batch]
    output = model(**batch, ensemble_lambda=0.4)
    logits = reference.ensembled_logits(model, ensemble_lambda=0.4, **text_of(batch))
    torch.testing.assert_close(output.logits, logits, **TOLERANCE[name])
    mask = None if size == 1 else batch.get("decoder_attention_mask")
    expected = reference.translation_nll(logits, batch["labels"], mask)
    torch.testing.assert_close(output.loss, expected, **TOLERANCE[name])
    # The same logits without labels, and the same head losses as in training.
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    inputs["decoder_input_ids"] = text_of(batch)["input_ids"]
    torch.testing.assert_close(model(**inputs, ensemble_lambda=0.4).logits, logits, **TOLERANCE[name])
    torch.testing.assert_close(output.head_losses, model.train()(**batch).head_losses, **TOLERANCE[name])


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_several_lambdas_at_once(name):
    model, batch = tiny_seq2seq(name, torch.float64), BATCHES["left-padded decoder"]
    lambdas = [0.0, 0.25, 0.4, 1.0]
    together = model(**batch, ensemble_lambda=lambdas)
    one_by_one = [model(**batch, ensemble_lambda=value) for value in lambdas]
    assert together.logits is None
    torch.testing.assert_close(together.loss, torch.stack([output.loss for output in one_by_one]))
    for output in one_by_one:
        torch.testing.assert_close(output.head_losses, together.head_losses)
    assert len({round(loss, 6) for loss in together.loss.tolist()}) == 4


@pytest.mark.parametrize("name", ["marian", "bart"])
def test_logit_bias_is_used(name):
    """The bias is in the training loss of every depth, in the logits, and in the loss for several λ."""
    model, batch = tiny_seq2seq(name, torch.float64), BATCHES["plain"]
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
@pytest.mark.parametrize("name", NAMES)
def test_encoder_outputs_in_place_of_the_source(name, training):
    model, batch = tiny_seq2seq(name, torch.float64).train(training), dict(BATCHES["ragged"])
    expected = model(**batch, ensemble_lambda=0.4)
    source = batch.pop("input_ids")
    encoded = model.get_encoder()(source, attention_mask=batch["attention_mask"])
    for outputs in (encoded, (encoded.last_hidden_state,)):
        again = model(**batch, encoder_outputs=outputs, ensemble_lambda=0.4)
        assert torch.equal(again.loss, expected.loss) and torch.equal(again.head_losses, expected.head_losses)
