"""Translation of many sentences: each as it would be translated alone, and in its place."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ngram_wdr_hf.training import translator as module
from ngram_wdr_hf.training.translator import Translator
from tests.support.tiny import VOCAB_SIZE, tiny_seq2seq

END, PAD = 0, 1
TEXTS = ["w2 w3 w4 w5 w6", "w9", "w7 w8 w2", "w30 w31 w32 w33 w34 w35 w36 w2", "w11 w12", "w7 w8 w3", "w36 w35", "w20"]
LAMBDA = 0.4


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """A word tokenizer."""
    words = {"<eos>": END, "<pad>": PAD, **{f"w{i}": i for i in range(2, VOCAB_SIZE)}}
    backend = Tokenizer(models.WordLevel(words, unk_token="w2"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", END)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>")


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


def translator(tokenizer, **options) -> Translator:
    return Translator(tokenizer, **{"shows_progress": False, **options})


@pytest.fixture
def expected(model, tokenizer) -> list[str]:
    translations = [alone(model, tokenizer, text) for text in TEXTS]
    # All translations are different, and none is truncated.
    assert len({*translations}) == len(TEXTS) and all(translations)
    pairs = [(translated.split(), text.split()) for translated, text in zip(translations, TEXTS, strict=True)]
    assert all(len(translated) < 2 * len(text) + 12 for translated, text in pairs)
    assert len({len(translated) for translated, _ in pairs}) > 1
    return translations


@pytest.mark.parametrize("batch_tokens", [1, 30, 60, 4096])
def test_batches_do_not_change_translations_or_their_order(model, tokenizer, expected, batch_tokens):
    translate = translator(tokenizer, batch_tokens=batch_tokens)
    texts = ["", *TEXTS, " \t", None, "\u2003"]
    assert translate(model, texts, LAMBDA) == ["", *expected, "", "", ""]
    assert translate(model, TEXTS[::-1], LAMBDA) == expected[::-1]
    assert translate(model, [], LAMBDA) == [] and translate(model, [""], LAMBDA) == [""]


def test_batches_hold_all_beams_and_are_sorted_by_length(model, tokenizer, monkeypatch):
    shapes, options = [], []

    def generate(input_ids, attention_mask, **kwargs):
        assert torch.equal(attention_mask, (input_ids != PAD).long())
        shapes.append(tuple(input_ids.shape))
        options.append(kwargs)
        return input_ids

    monkeypatch.setattr(model, "generate", generate)
    # A model that copies its input shows that no sentence is lost.
    assert translator(tokenizer, batch_tokens=36)(model, TEXTS, LAMBDA) == TEXTS
    assert shapes == [(4, 3), (2, 4), (1, 6), (1, 9)]
    assert all(count * length * 3 <= 36 for count, length in shapes)
    assert [kwargs["max_new_tokens"] for kwargs in options] == [16, 18, 22, 28]
    for kwargs in options:
        assert kwargs["ensemble_lambda"] == LAMBDA and kwargs["do_sample"] is False and kwargs["max_length"] is None
    # The model's maximum length limits the translation.
    options.clear()
    model.config.max_position_embeddings = 20
    translator(tokenizer, batch_tokens=36)(model, TEXTS, LAMBDA)
    assert [kwargs["max_new_tokens"] for kwargs in options] == [16, 18, 19, 19]


def test_settings_reach_the_model(model, tokenizer, expected):
    """Prefix, ensemble and the model's maximum length."""
    translated = translator(tokenizer, prefix="w5 w6 ")(model, ["", *TEXTS[:3]], LAMBDA)
    assert translated == ["", *(alone(model, tokenizer, f"w5 w6 {text}") for text in TEXTS[:3])]
    plain = translator(tokenizer)(model, TEXTS, 0.0)
    assert plain == [alone(model, tokenizer, text, ensemble_lambda=0.0) for text in TEXTS] != expected
    model.config.max_position_embeddings, cut = 4, [" ".join(text.split()[:3]) for text in TEXTS]
    translated = translator(tokenizer)(model, TEXTS, LAMBDA)
    assert translated == [alone(model, tokenizer, text, max_new_tokens=3) for text in cut]


@pytest.mark.parametrize("num_processes", [2, 3, 9])
def test_shares_of_several_processes(model, tokenizer, expected, monkeypatch, num_processes):
    texts, shares, translate = ["", *TEXTS, " "], {}, translator(tokenizer, batch_tokens=36)

    def run(index: int, gather) -> list[str]:
        monkeypatch.setattr(module, "processes", lambda: (index, num_processes))
        monkeypatch.setattr(module, "gather_object", gather)
        return translate(model, texts, LAMBDA)

    for index in range(num_processes):
        run(index, lambda share, index=index: shares.setdefault(index, share))
    # Every sentence is translated by exactly one process.
    assert sorted(i for share in shares.values() for i, _ in share) == list(range(1, len(TEXTS) + 1))
    assert sum(bool(share) for share in shares.values()) == min(num_processes, 4)
    everything = [item for index in reversed(shares) for item in shares[index]]
    for index in range(num_processes):
        assert run(index, lambda _: everything) == ["", *expected, ""]


def test_training_mode_is_restored(model, tokenizer, expected):
    """Translation uses no dropout, and restores the model's mode."""
    model.train()
    for layer in (layer for layer in model.modules() if hasattr(layer, "dropout")):
        layer.dropout = 0.9
    assert translator(tokenizer)(model, TEXTS, LAMBDA) == expected
    assert all(layer.training for layer in model.modules())
