"""What a checkpoint says before its weights are loaded: fields that they depend on, and whether it is there."""

import pytest
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    GPT2LMHeadModel,
    Olmo2Config,
    Olmo2ForCausalLM,
)

from ngram_wdr_hf import WDRNgramGPT2LMHeadModel, with_ngram_heads
from ngram_wdr_hf.evaluation.models import load_checkpoint
from tests.support.backbones import DECODER_SIZES
from tests.support.checkpoints import save_checkpoint, tokenizer_of_words
from tests.support.errors import raises_naming
from tests.support.masked import plain_masked, tiny_masked
from tests.support.tiny import plain_model, plain_seq2seq, tiny_model, tiny_seq2seq


def tiny_olmo2() -> Olmo2ForCausalLM:
    return Olmo2ForCausalLM(Olmo2Config(**DECODER_SIZES))


# A field that changes what weights mean: as saved, and another value.
OTHER_MEANINGS = [
    ("ngram_size", 4, 3),
    ("ngram_size", 1, 2),
    ("ngram_target", "wdr", "simple"),
    ("ngram_target", "simple", "wdr"),
    ("ngram_head_activation", "relu", "gelu"),
    ("draft_vocab_size", 5, 6),
]


@pytest.mark.parametrize(("field", "saved", "other"), OTHER_MEANINGS)
def test_fields_that_change_what_weights_mean(tmp_path, field, saved, other):
    model = tiny_model(**{field: saved})
    model.save_pretrained(tmp_path)
    names = (f"`{field}={other}`", f"`{field}={saved}`", tmp_path.name)
    changed = type(model.config).from_pretrained(tmp_path, **{field: other})
    changed.save_pretrained(tmp_path / "config")
    for model_class in (WDRNgramGPT2LMHeadModel, AutoModelForCausalLM):
        for arguments in ({field: other}, {"config": changed}):
            with raises_naming(ValueError, *names):
                model_class.from_pretrained(tmp_path, **arguments)
        model_class.from_pretrained(tmp_path, **{field: saved})
    with raises_naming(ValueError, *names):
        WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path, config=tmp_path / "config")


@pytest.mark.parametrize(
    ("model", "auto_class", "other"),
    [
        (lambda: tiny_seq2seq("marian"), AutoModelForSeq2SeqLM, {"ngram_target": "simple"}),
        (lambda: tiny_seq2seq("t5"), AutoModelForSeq2SeqLM, {"ngram_head_activation": "gelu"}),
        (lambda: tiny_masked("bert"), AutoModelForMaskedLM, {"ngram_head_activation": "gelu"}),
        (lambda: with_ngram_heads(tiny_olmo2()), AutoModelForCausalLM, {"ngram_target": "simple"}),
    ],
    ids=["marian", "t5", "bert", "olmo2"],
)
def test_fields_of_other_kinds_of_model(tmp_path, model, auto_class, other):
    model = model()
    model.save_pretrained(tmp_path)
    for load in (type(model), auto_class):
        with raises_naming(ValueError, f"`{next(iter(other))}="):
            load.from_pretrained(tmp_path, **other)


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (tiny_model, {"ensemble_lambda": 0.3, "label_smoothing": 0.1}),
        (lambda: tiny_seq2seq("marian"), {"bow_loss_weight": 1.0}),
        (lambda: tiny_masked("bert"), {"wdr_compose": "masked"}),
        # Without heads there is nothing that could mean something else.
        (lambda: tiny_model(ngram_size=1), {"ngram_target": "simple", "ngram_head_activation": "gelu"}),
    ],
    ids=["causal", "encoder-decoder", "masked", "without heads"],
)
def test_fields_that_may_change(tmp_path, model, fields):
    model = model()
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, **fields)
    assert {name: getattr(loaded.config, name) for name in fields} == fields


def test_fields_of_new_heads(tmp_path):
    """Plain checkpoints have no heads yet: neither the backbone's own, nor the trunk that a stock class saved."""
    plain_model().save_pretrained(tmp_path / "plain")
    tiny_model().save_pretrained(tmp_path / "ours")
    GPT2LMHeadModel.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "trunk")
    fields = {"ngram_size": 3, "ngram_target": "simple", "ngram_head_activation": "gelu", "draft_vocab_size": 5}
    for name in ("plain", "trunk"):
        for load in (WDRNgramGPT2LMHeadModel.from_pretrained, with_ngram_heads):
            loaded = load(tmp_path / name, **fields)
            assert {field: getattr(loaded.config, field) for field in fields} == fields


def test_evaluation_of_another_target(tmp_path):
    tokenizer = tokenizer_of_words()
    save_checkpoint(tmp_path, tokenizer)
    with raises_naming(ValueError, "`ngram_target=simple`", "`ngram_target=wdr`"):
        load_checkpoint(str(tmp_path), "causal", tokenizer, ngram_target="simple")


def test_lambda_for_training_on(tmp_path):
    """The λ that a checkpoint's `generation_config` has does not outlive the weights it was chosen for."""
    tokenizer = tokenizer_of_words()
    model = save_checkpoint(tmp_path, tokenizer)
    model.generation_config.ensemble_lambda = 0.9
    model.save_pretrained(tmp_path)
    for fields, expected in (({}, 0.9), ({"ensemble_lambda": 0.0}, None)):
        loaded = load_checkpoint(str(tmp_path), "causal", tokenizer, **fields)
        assert loaded.generation_config.to_dict().get("ensemble_lambda") == expected


PLAIN = {
    "gpt2": plain_model,
    "t5": lambda: plain_seq2seq("t5"),
    "bert": lambda: plain_masked("bert"),
    # A class created on demand.
    "olmo2": tiny_olmo2,
}


@pytest.mark.parametrize("name", PLAIN)
def test_new_heads_are_announced_in_one_line(tmp_path, name, transformers_log):
    """No table of missing weights, and no warning that heads on a plain checkpoint are not supported."""
    plain = PLAIN[name]()
    plain.save_pretrained(tmp_path)
    transformers_log.clear()
    model = with_ngram_heads(tmp_path)
    type(model).from_pretrained(tmp_path)
    with_ngram_heads(plain)
    assert len(transformers_log.messages) == 3
    assert all("ngram_size=4" in message and "\n" not in message for message in transformers_log.messages)


def test_another_model_type_is_still_warned_about(tmp_path, transformers_log):
    plain_seq2seq("bart").save_pretrained(tmp_path)
    type(tiny_model().config).from_pretrained(tmp_path)
    assert any("`bart`" in message for message in transformers_log.messages)


LOADS = {"class": WDRNgramGPT2LMHeadModel.from_pretrained, "heads": with_ngram_heads}


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
@pytest.mark.parametrize("path", ["no/such/folder", "./missing", "../missing", "/nowhere/at/all", "~/missing"])
def test_path_that_is_not_there(tmp_path, monkeypatch, load, path):
    monkeypatch.chdir(tmp_path)
    with raises_naming(OSError, f"`{path}`", "folder") as caught:
        load(path)
    assert "epo id" not in str(caught.value)


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
@pytest.mark.parametrize("name", ["missing", "nobody/missing"])
def test_name_that_is_neither_a_folder_nor_on_the_hub(tmp_path, monkeypatch, load, name):
    monkeypatch.chdir(tmp_path)
    with raises_naming(OSError, f"`{name}`", "folder", "Hub"):
        load(name)
