"""Translation of many sentences: each as it would be translated alone, and in its place."""

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from ngram_wdr_hf.training.translator import Translator
from tests.support.tiny import tiny_seq2seq
from tests.support.tokenizers import word_tokenizer

END, PAD = 0, 1
TEXTS = ["w2 w3 w4 w5 w6", "w9", "w7 w8 w2", "w30 w31 w32 w33 w34 w35 w36 w2", "w11 w12", "w7 w8 w3", "w36 w35", "w20"]
LAMBDA = 0.4


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
    model = tiny_seq2seq("marian", torch.float64, seed=2, ngram_size=3, init_std=0.5)
    model.generation_config.exponential_decay_length_penalty = (2, 1.1)
    model.generation_config.num_beams = 3
    return model


def alone(model, tokenizer, text: str, ensemble_lambda: float = LAMBDA, **options) -> str:
    """Translate one sentence, without padding."""
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    options = {"max_new_tokens": 2 * ids.shape[1] + 10, "max_length": None, "do_sample": False, **options}
    (generated,) = model.generate(ids, ensemble_lambda=ensemble_lambda, **options)
    return tokenizer.decode(generated, skip_special_tokens=True).strip()


@pytest.fixture
def expected(model, tokenizer) -> list[str]:
    translations = [alone(model, tokenizer, text) for text in TEXTS]
    # All translations are different and have several lengths.
    assert len({*translations}) == len(TEXTS) and all(translations)
    assert len({len(translated.split()) for translated in translations}) > 1
    return translations


@pytest.mark.parametrize("batch_tokens", [1, 60, 4096])
def test_batches_do_not_change_translations_or_their_order(model, tokenizer, expected, batch_tokens):
    """Without dropout; the model's mode is restored."""
    for layer in (layer for layer in model.train().modules() if hasattr(layer, "dropout")):
        layer.dropout = 0.9
    translate = Translator(tokenizer, batch_tokens=batch_tokens)
    texts = ["", *TEXTS, " \t", None, "\u2003"]
    assert translate(model, texts, LAMBDA) == ["", *expected, "", "", ""]
    assert translate(model, TEXTS[::-1], LAMBDA) == expected[::-1]
    assert translate(model, [], LAMBDA) == [] and translate(model, [""], LAMBDA) == [""]
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
    assert Translator(tokenizer, batch_tokens=36)(model, TEXTS, LAMBDA) == TEXTS
    # At most 36 tokens with three beams.
    assert shapes == [(4, 3), (2, 4), (1, 6), (1, 9)] and limits == [16, 18, 22, 28]
    # The model's maximum length limits the translation.
    model.config.max_position_embeddings = 20
    Translator(tokenizer, batch_tokens=36)(model, TEXTS, LAMBDA)
    assert limits[4:] == [16, 18, 19, 19]


def test_settings_reach_the_model(model, tokenizer, expected):
    """Prefix, ensemble and the model's maximum length."""
    translated = Translator(tokenizer, prefix="w5 w6 ")(model, ["", *TEXTS[:3]], LAMBDA)
    assert translated == ["", *(alone(model, tokenizer, f"w5 w6 {text}") for text in TEXTS[:3])]
    plain = Translator(tokenizer)(model, TEXTS, 0.0)
    assert plain == [alone(model, tokenizer, text, ensemble_lambda=0.0) for text in TEXTS] != expected
    model.config.max_position_embeddings, cut = 4, [" ".join(text.split()[:3]) for text in TEXTS]
    translated = Translator(tokenizer)(model, TEXTS, LAMBDA)
    assert translated == [alone(model, tokenizer, text, max_new_tokens=3) for text in cut]
