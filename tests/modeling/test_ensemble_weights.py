"""The ensemble by weights, wherever the paper's λ works."""

import pytest
import torch
from transformers import GenerationConfig

from ngram_wdr_hf import NgramEnsembleLogitsProcessor
from tests.support import reference
from tests.support.batches import BATCHES
from tests.support.errors import raises_naming
from tests.support.generation import cached_logits
from tests.support.options import NO_END
from tests.support.tiny import model_of, random_ids

WEIGHTS = [0.8, 0.3, -0.1, 0.05]
LAMBDA = 0.4
SAME_AS_LAMBDA = [1 - LAMBDA] + [LAMBDA / 3] * 3


@pytest.mark.parametrize("reads", ["hidden", "hidden+tokens", "previous+token"])
@torch.no_grad()
def test_logits(target, reads):
    model, ids = model_of("gpt2", ngram_target=target, ngram_head_reads=reads), random_ids(2, 7)
    expected = reference.ensembled_logits(model, ids, WEIGHTS)
    torch.testing.assert_close(model(ids, ensemble_weights=WEIGHTS).logits, expected)
    torch.testing.assert_close(cached_logits(model, ids, [3, 1, 2, 1], ensemble_weights=WEIGHTS), expected)
    model.config.ensemble_weights = WEIGHTS
    torch.testing.assert_close(model(ids).logits, expected)
    # An argument overrides the configuration.
    assert torch.equal(model(ids, ensemble_lambda=0.0).logits, model(ids, ensemble_weights=[1.0, 0, 0, 0]).logits)


@torch.no_grad()
def test_several_ensembles_in_one_pass():
    model, batch = model_of("gpt2"), BATCHES["holes"]
    sums = model(**batch, ensemble_lambda=[0.0, LAMBDA], ensemble_weights=[SAME_AS_LAMBDA, WEIGHTS])
    assert sums.loss.shape == (4,) and sums.logits is None
    torch.testing.assert_close(sums.loss[2], sums.loss[1])
    single = ({"ensemble_lambda": 0.0}, {"ensemble_lambda": LAMBDA}, {"ensemble_weights": WEIGHTS})
    for loss, ensemble in zip(sums.loss[[0, 1, 3]], single, strict=True):
        torch.testing.assert_close(loss, model(**batch, **ensemble).loss)
    only_weights = model(**batch, ensemble_weights=[WEIGHTS, SAME_AS_LAMBDA]).loss
    torch.testing.assert_close(only_weights, sums.loss[[3, 2]])


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"use_mtp": True}, {"do_sample": True, "use_mtp": True}])
@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_generate(name, options):
    """Weights give the tokens of the λ that they are; in the call, either configuration, and a processor."""
    model, ids = model_of(name), random_ids(2, 6)
    options = {**options, **NO_END, "max_new_tokens": 8, "attention_mask": torch.ones_like(ids)}

    def generate(**ensemble):
        torch.manual_seed(0)
        return model.generate(ids, **options, **ensemble)

    expected, plain = generate(ensemble_lambda=LAMBDA), generate()
    assert not torch.equal(expected, plain)
    processor = NgramEnsembleLogitsProcessor(model, ensemble_weights=SAME_AS_LAMBDA)
    for ensemble in (
        {"ensemble_weights": SAME_AS_LAMBDA},
        {"generation_config": GenerationConfig(ensemble_weights=SAME_AS_LAMBDA)},
        {"logits_processor": [processor]},
    ):
        assert torch.equal(generate(**ensemble), expected)
    model.config.ensemble_weights = SAME_AS_LAMBDA
    assert torch.equal(generate(), expected)
    assert torch.equal(generate(ensemble_lambda=0.0), plain)
    assert not torch.equal(generate(ensemble_weights=[0.5, 0.9, -0.4, 0.0]), expected)


@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_saved_with_the_model(tmp_path, name):
    model = model_of(name, ensemble_weights=WEIGHTS)
    model.save_pretrained(tmp_path)
    assert type(model).from_pretrained(tmp_path).config.ensemble_weights == WEIGHTS
    with raises_naming(ValueError, "`ensemble_weights`", "`ensemble_lambda=0.4`"):
        type(model).from_pretrained(tmp_path, ensemble_lambda=0.4)


BAD = {
    "both": {"ensemble_lambda": 0.3, "ensemble_weights": WEIGHTS},
    "too few": {"ensemble_weights": WEIGHTS[:2]},
    "not finite": {"ensemble_weights": [float("nan"), 0.0, 0.0, 0.0]},
    "texts": {"ensemble_weights": ["0.6", "0.4", "0.0", "0.0"]},
    "truth": {"ensemble_weights": [True, 0.0, 0.0, 0.0]},
    "tensor": {"ensemble_weights": torch.tensor(WEIGHTS)},
}


@pytest.mark.parametrize("ensemble", BAD.values(), ids=BAD)
def test_bad_weights(ensemble):
    model, ids = model_of("gpt2"), random_ids(1, 5)
    for call in (model, model.generate, lambda _, **ensemble: NgramEnsembleLogitsProcessor(model, **ensemble)):
        with raises_naming(ValueError, "`ensemble_weights`"):
            call(ids, **ensemble)


def test_weights_that_do_not_suit_the_model_or_the_call():
    model, ids = model_of("gpt2", ensemble_weights=WEIGHTS), random_ids(1, 5)
    with raises_naming(ValueError, "`ensemble_weights`", "`ngram_size`"):
        model_of("gpt2", ngram_size=1)(ids, ensemble_weights=[0.9])
    with raises_naming(ValueError, "`NgramEnsembleLogitsProcessor`", "`ensemble_weights`"):
        model.generate(ids, logits_processor=[NgramEnsembleLogitsProcessor(model, 0.3)])
    # What needs a λ says so, instead of ignoring the weights.
    assert model.ngram_lambda(0.3) == 0.3
    with raises_naming(ValueError, "`ensemble_weights`", "`ensemble_lambda`"):
        model.ngram_lambda()
