"""Translation of many sentences: each as it would be translated alone, and in its place."""

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from ngram_wdr_hf.training.translator import Translator
from tests.support.tiny import make
from tests.support.tokenizers import word_tokenizer

END, PAD = 0, 1
TEXTS = ["w2 w3 w4 w5 w6", "w9", "w7 w8 w2", "w30 w31 w32 w33 w34 w35 w36 w2", "w11 w12", "w7 w8 w3", "w36 w35", "w20"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """A word tokenizer that ends sentences."""
    tokenizer = word_tokenizer()
    end = [("<eos>", END)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A <eos>", special_tokens=end)
    return tokenizer


@pytest.fixture
def model():
    """A model that ends translations at different lengths: longer ones end with a higher probability."""
    model = make("marian", torch.float64, seed=2, ngram_size=3, init_std=0.5)
    model.generation_config.exponential_decay_length_penalty = (2, 1.1)
    model.generation_config.num_beams = 3
    return model


@pytest.mark.parametrize("batch_tokens", [1, 60, 4096])
def test_batches_do_not_change_translations_or_their_order(model, tokenizer, batch_tokens):
    """Without dropout; the model's mode is restored."""
    expected = []
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        limits = {"max_new_tokens": 2 * ids.shape[1] + 10, "max_length": None}
        (generated,) = model.generate(ids, ensemble_lambda=0.4, do_sample=False, **limits)
        expected.append(tokenizer.decode(generated, skip_special_tokens=True).strip())
    # All translations are different and have several lengths.
    assert len({*expected}) == len(TEXTS) and len({len(translated.split()) for translated in expected}) > 1
    for layer in (layer for layer in model.train().modules() if hasattr(layer, "dropout")):
        layer.dropout = 0.9
    translate = Translator(tokenizer, batch_tokens=batch_tokens)
    assert translate(model, ["", *TEXTS, " \t", None, "\u2003"], 0.4) == ["", *expected, "", "", ""]
    assert translate(model, TEXTS[::-1], 0.4) == expected[::-1] != translate(model, TEXTS[::-1], 0.0)
    assert translate(model, [""], 0.4) == [""]
    assert all(layer.training for layer in model.modules())


def test_batches_hold_all_beams_and_are_sorted_by_length(model, tokenizer, monkeypatch):
    shapes, limits = [], []

    def generate(input_ids, attention_mask, max_new_tokens, **options):
        assert torch.equal(attention_mask, (input_ids != PAD).long())
        shapes.append(tuple(input_ids.shape))
        limits.append(max_new_tokens)
        return input_ids

    monkeypatch.setattr(model, "generate", generate)
    # A model that copies its input shows that no sentence is lost.
    assert Translator(tokenizer, batch_tokens=36)(model, TEXTS, 0.4) == TEXTS
    # At most 36 tokens with three beams.
    assert shapes == [(4, 3), (2, 4), (1, 6), (1, 9)] and limits == [16, 18, 22, 28]
    # The model's maximum length limits sources and translations. The prefix is a part of the source.
    model.config.max_position_embeddings = 4
    texts = Translator(tokenizer, prefix="w5 w6 ")(model, TEXTS, 0.4)
    assert texts == [f"w5 w6 {text.split()[0]}" for text in TEXTS] and limits[4:] == [3]
