"""NumPy's numbers wherever a number can be given."""

import json

import numpy as np
import pytest
import torch

from ngram_wdr_hf import NgramEnsembleLogitsProcessor, WDRNgramBartConfig, WDRNgramConfig, with_ngram_heads
from ngram_wdr_hf.method.differences import conjugate, wdr
from tests.support.errors import raises_naming
from tests.support.options import NO_END
from tests.support.tiny import SIZES, plain_model, random_ids, tiny_model

FIELDS = {
    "ngram_size": np.int64(3),
    "ensemble_lambda": np.float32(0.25),
    "label_smoothing": np.float16(0.5),
    "draft_vocab_size": np.int32(8),
}
PYTHON = {"ngram_size": 3, "ensemble_lambda": 0.25, "label_smoothing": 0.5, "draft_vocab_size": 8}


def test_configuration(tmp_path):
    """Given or set later, they are saved as Python's."""
    created, changed = WDRNgramConfig(**SIZES, **FIELDS), WDRNgramConfig(**SIZES)
    for name, value in FIELDS.items():
        setattr(changed, name, value)
    for config in (created, changed):
        config.save_pretrained(tmp_path)
        saved = json.loads((tmp_path / "config.json").read_text())
        assert {name: saved[name] for name in FIELDS} == PYTHON
        assert json.loads(config.to_json_string())["ngram_size"] == 3
    assert WDRNgramBartConfig(bow_loss_weight=np.float32(0.5)).bow_loss_weight == 0.5
    assert with_ngram_heads(plain_model(), **FIELDS).config.ensemble_lambda == 0.25


def test_weights_of_the_ensemble():
    model, ids, weights = tiny_model(ngram_size=3), random_ids(2, 6), [0.6, 0.5, -0.25]
    expected = model(ids, labels=ids, ensemble_weights=weights)
    actual = model(ids, labels=ids, ensemble_weights=np.array(weights))
    assert torch.equal(actual.logits, expected.logits)
    grid = model(ids, labels=ids, ensemble_weights=np.array([weights, weights]))
    torch.testing.assert_close(grid.loss, expected.loss.expand(2))
    generated = model.generate(ids, ensemble_weights=weights, max_new_tokens=4, **NO_END)
    assert torch.equal(model.generate(ids, ensemble_weights=np.array(weights), max_new_tokens=4, **NO_END), generated)


@pytest.mark.parametrize(
    ("name", "value"),
    [("ngram_size", np.float64(3.0)), ("ngram_size", np.bool_(True)), ("ensemble_lambda", np.float32("nan"))],
)
def test_bad_numbers(name, value, tmp_path):
    with raises_naming(ValueError, f"`{name}`"):
        WDRNgramConfig(**SIZES, **{name: value})
    config = WDRNgramConfig(**SIZES)
    setattr(config, name, value)
    with raises_naming(ValueError, f"`{name}`"):
        config.save_pretrained(tmp_path)


def test_forward():
    model, ids = tiny_model(), random_ids(2, 9)
    assert torch.equal(model(ids, ensemble_lambda=np.float32(0.25)).logits, model(ids, ensemble_lambda=0.25).logits)
    losses = model(ids, labels=ids, ensemble_lambda=[np.float32(0.25), np.float64(0.5)]).loss
    assert torch.equal(losses, model(ids, labels=ids, ensemble_lambda=[0.25, 0.5]).loss)


def test_saved_options_of_generate(tmp_path):
    model = tiny_model()
    options = {"ensemble_lambda": 0.25, "draft_threshold": 0.5, "draft_vocab_size": 8}
    for name, value in options.items():
        setattr(model.generation_config, name, np.int64(value) if isinstance(value, int) else np.float32(value))
    model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "generation_config.json").read_text())
    assert {name: saved[name] for name in options} == options
    model.generation_config.ensemble_lambda = 1.5
    with raises_naming(ValueError, "`ensemble_lambda`"):
        model.save_pretrained(tmp_path)


@pytest.mark.parametrize("drafts", [False, True])
def test_generation(drafts):
    model, ids, options = tiny_model(), random_ids(2, 5), {**NO_END, "max_new_tokens": np.int64(6)}
    expected = model.generate(ids, ensemble_lambda=0.25, **options)
    if drafts:
        options |= {"use_mtp": True, "draft_threshold": np.float32(0.25), "draft_vocab_size": np.int64(9)}
        options |= dict.fromkeys(("num_assistant_tokens", "prompt_lookup_num_tokens"), np.int64(2))
    assert torch.equal(model.generate(ids, ensemble_lambda=np.float32(0.25), **options), expected)
    processor = NgramEnsembleLogitsProcessor(model, np.float32(0.25))
    assert torch.equal(model.generate(ids, logits_processor=[processor], **options), expected)


def test_levels():
    embeddings = torch.randn(7, 4)
    for function in (wdr, conjugate):
        assert torch.equal(function(embeddings, np.int8(3)), function(embeddings, 3))
