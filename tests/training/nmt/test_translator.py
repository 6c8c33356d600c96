"""Translation of many sentences: each as it would be translated alone, and in its place."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ngram_wdr_hf.training.nmt import translator as translate
from ngram_wdr_hf.training.nmt.translator import Translator
from tests.support.tiny import VOCAB_SIZE, tiny_seq2seq

END, PAD = 0, 1
TEXTS = ["w2 w3 w4 w5 w6", "w9", "w7 w8 w2", "w30 w31 w32 w33 w34 w35 w36 w2", "w11 w12", "w7 w8 w3", "w36 w35", "w20"]
LAMBDA = 0.4
GROWTH = 1.1


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """A word tokenizer."""
    words = {"<eos>": END, "<pad>": PAD, **{f"w{i}": i for i in range(2, VOCAB_SIZE)}}
    backend = Tokenizer(models.WordLevel(words, unk_token="w2"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", END)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>")


@pytest.fixture(scope="module")
def model():
    """A model that ends translations at different lengths: longer ones end with a higher probability."""
    model = tiny_seq2seq("marian", torch.float64, seed=2, ngram_size=3, init_std=0.5)
    model.generation_config.exponential_decay_length_penalty = (2, GROWTH)
    return model


def alone(model, tokenizer, text: str, num_beams: int = 3, ensemble_lambda: float = LAMBDA, **options) -> str:
    """Translate one sentence, without padding."""
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    options = {"max_new_tokens": 2 * ids.shape[1] + 10, **options}
    (generated,) = model.generate(
        ids, num_beams=num_beams, ensemble_lambda=ensemble_lambda, do_sample=False, max_length=None, **options
    )
    return tokenizer.decode(generated, skip_special_tokens=True).strip()


def translator(tokenizer, **options) -> Translator:
    return Translator(tokenizer, **{"num_beams": 3, "shows_progress": False, **options})


@pytest.fixture(scope="module")
def expected(model, tokenizer) -> list[str]:
    translations = [alone(model, tokenizer, text) for text in TEXTS]
    # All translations are different, and none is truncated.
    assert len({*translations}) == len(TEXTS) and all(translations)
    assert all(
        len(translated.split()) < 2 * len(text.split()) + 12
        for translated, text in zip(translations, TEXTS, strict=True)
    )
    assert len({len(translated.split()) for translated in translations}) > 1
    return translations


@pytest.mark.parametrize("batch_tokens", [1, 30, 60, 4096])
def test_batches_do_not_change_translations_or_their_order(model, tokenizer, expected, batch_tokens):
    assert translator(tokenizer, batch_tokens=batch_tokens)(model, TEXTS, LAMBDA) == expected
    backwards = translator(tokenizer, batch_tokens=batch_tokens)(model, TEXTS[::-1], LAMBDA)
    assert backwards == expected[::-1]


@pytest.mark.parametrize("num_beams", [1, 2])
def test_beams(model, tokenizer, num_beams):
    texts = TEXTS[:4]
    # One sentence per batch, so that the length limits are equal.
    translated = translator(tokenizer, num_beams=num_beams, batch_tokens=1)(model, texts, LAMBDA)
    assert translated == [alone(model, tokenizer, text, num_beams) for text in texts]


def test_batches_hold_all_beams_and_are_sorted_by_length(model, tokenizer, monkeypatch):
    shapes, options = [], []

    def generate(input_ids, attention_mask, **kwargs):
        assert torch.equal(attention_mask, (input_ids != PAD).long())
        shapes.append(tuple(input_ids.shape))
        options.append(kwargs)
        return input_ids

    monkeypatch.setattr(model, "generate", generate)
    # A model that copies its input shows that no sentence is lost.
    assert translator(tokenizer, batch_tokens=36, length_penalty=0.7)(model, TEXTS, LAMBDA) == TEXTS
    assert shapes == [(4, 3), (2, 4), (1, 6), (1, 9)]
    assert all(count * length * 3 <= 36 for count, length in shapes)
    assert [kwargs["max_new_tokens"] for kwargs in options] == [16, 18, 22, 28]
    for kwargs in options:
        assert (kwargs["num_beams"], kwargs["length_penalty"], kwargs["ensemble_lambda"]) == (3, 0.7, LAMBDA)
        assert kwargs["do_sample"] is False and kwargs["max_length"] is None
    # The model's maximum length limits the translation.
    options.clear()
    translator(tokenizer, batch_tokens=36, longest=20)(model, TEXTS, LAMBDA)
    assert [kwargs["max_new_tokens"] for kwargs in options] == [16, 18, 19, 19]


def test_empty_lines_stay_empty(model, tokenizer, expected):
    texts = ["", TEXTS[0], " \t", TEXTS[1], "", None, TEXTS[2], "\u2003"]
    translated = translator(tokenizer)(model, texts, LAMBDA)
    assert translated == ["", expected[0], "", expected[1], "", "", expected[2], ""]


@pytest.mark.parametrize("texts", [[], [""], [" ", ""]])
def test_nothing_to_translate(model, tokenizer, texts, monkeypatch):
    monkeypatch.setattr(model, "generate", None)
    assert translator(tokenizer)(model, texts, LAMBDA) == [""] * len(texts)


def test_prefix(model, tokenizer, expected):
    translated = translator(tokenizer, prefix="w5 w6 ")(model, ["", *TEXTS[:3]], LAMBDA)
    assert translated == ["", *(alone(model, tokenizer, f"w5 w6 {text}") for text in TEXTS[:3])]
    assert translated[1:] != expected[:3]


def test_long_sources_are_truncated(model, tokenizer):
    translated = translator(tokenizer, longest=4)(model, TEXTS[:4], LAMBDA)
    cut = [" ".join(text.split()[:3]) for text in TEXTS[:4]]
    assert translated == [alone(model, tokenizer, text, max_new_tokens=3) for text in cut]
    assert max(len(text.split()) for text in translated) <= 3


def test_lambda_reaches_the_model(model, tokenizer, expected):
    plain = translator(tokenizer)(model, TEXTS, 0.0)
    assert plain == [alone(model, tokenizer, text, ensemble_lambda=0.0) for text in TEXTS]
    assert plain != expected


@pytest.mark.parametrize("num_processes", [2, 3, 9])
def test_shares_of_several_processes(model, tokenizer, expected, monkeypatch, num_processes):
    texts = ["", *TEXTS, " "]
    shares = {}

    def run(index):
        share = translator(tokenizer, batch_tokens=36, process_index=index, num_processes=num_processes)
        return share(model, texts, LAMBDA)

    class Gathered(Exception):
        """Raised where a process would wait for the others."""

    def send(translated):
        shares[len(shares)] = translated
        raise Gathered

    monkeypatch.setattr(translate, "gather_object", send)
    for index in range(num_processes):
        with pytest.raises(Gathered):
            run(index)
    indices = [index for translated in shares.values() for index, _ in translated]
    # Every sentence is translated by exactly one process.
    assert sorted(indices) == list(range(len(TEXTS)))
    assert sum(bool(translated) for translated in shares.values()) == min(num_processes, 4)
    monkeypatch.setattr(
        translate, "gather_object", lambda _: [item for index in reversed(shares) for item in shares[index]]
    )
    for index in range(num_processes):
        assert run(index) == ["", *expected, ""]


@pytest.mark.parametrize("is_training", [True, False])
def test_training_mode_is_restored(model, tokenizer, expected, is_training):
    """Translation uses no dropout, and restores the model's mode."""
    model.train(is_training)
    modules = [module for module in model.modules() if hasattr(module, "dropout")]
    kept = [module.dropout for module in modules]
    assert kept
    try:
        for module in modules:
            module.dropout = 0.9
        assert translator(tokenizer)(model, TEXTS, LAMBDA) == expected
        assert model.training is is_training
        assert all(module.training is is_training for module in model.modules())
    finally:
        for module, value in zip(modules, kept, strict=True):
            module.dropout = value
        model.eval()


@pytest.mark.parametrize("shows_progress", [True, False])
def test_progress(model, tokenizer, capsys, shows_progress):
    translator(tokenizer, shows_progress=shows_progress)(model, TEXTS[:2], LAMBDA)
    assert ("Translating, λ=0.4" in capsys.readouterr().err) is shows_progress
