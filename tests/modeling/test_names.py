"""Misspelt names of our arguments, options and fields. Other unknown names go where the stock class lets them go."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

import ngram_wdr_hf
from ngram_wdr_hf import WDRNgramConfig, WDRNgramGPT2LMHeadModel, WDRNgramMarianConfig, with_ngram_heads
from tests.support.errors import raises_naming
from tests.support.masked import plain_masked, tiny_masked
from tests.support.tiny import SIZES, plain_model, plain_seq2seq, random_ids, tiny_model, tiny_seq2seq

LAMBDA = ("`ensemble_lamda`", "`ensemble_lambda`")


@pytest.mark.parametrize("name", ["gpt2", "marian", "t5"])
def test_arguments_of_forward_and_generate(name):
    model, ids = tiny_model() if name == "gpt2" else tiny_seq2seq(name), random_ids(1, 5)
    text = {} if name == "gpt2" else {"decoder_input_ids": ids}
    calls = [
        (TypeError, lambda **options: model(ids, **text, **options)),
        (ValueError, lambda **options: model.generate(ids, max_new_tokens=2, **options)),
        (ValueError, lambda **options: model.generate(ids, GenerationConfig(max_new_tokens=2, **options))),
    ]
    for error, call in calls:
        with raises_naming(error, *LAMBDA):
            call(ensemble_lamda=0.4)
        call(ensemble_lambda=0.4)


def test_options_of_drafts():
    model, ids = tiny_model(), random_ids(1, 5)
    for wrong, right in {"draft_vocab_sise": "draft_vocab_size", "draft_treshold": "draft_threshold"}.items():
        with raises_naming(ValueError, f"`{wrong}`", f"`{right}`"):
            model.generate(ids, max_new_tokens=2, use_mtp=True, **{wrong: 1})
    with raises_naming(ValueError, "`use_mpt`", "`use_mtp`"):
        model.generate(ids, generation_config=GenerationConfig(max_new_tokens=2, use_mpt=True))
    with raises_naming(ValueError, *LAMBDA):
        model.generate_batch([[3, 4]], ensemble_lamda=0.0)
    with raises_naming(ValueError, *LAMBDA):
        model.init_continuous_batching(GenerationConfig(ensemble_lamda=0.0))


def test_unknown_arguments_are_left_to_the_stock_class():
    """Stock forwards ignore them, and stock `generate` refuses them."""
    ids = random_ids(1, 5)
    for model in (plain_model(), tiny_model()):
        assert torch.equal(model(ids, something=1).logits, model(ids).logits)
        assert model.generate(ids, generation_config=GenerationConfig(something=1, max_new_tokens=2)).shape == (1, 7)
        with raises_naming(ValueError, "something"):
            model.generate(ids, something=1)
    for model in (plain_masked("bert"), tiny_masked("bert")):
        assert torch.equal(model(ids, something=1).logits, model(ids).logits)
    for model in (plain_seq2seq("marian"), tiny_seq2seq("marian")):
        text = {"input_ids": ids, "decoder_input_ids": ids}
        assert torch.equal(model(**text, something=1).logits, model(**text).logits)


def test_masked_models_have_no_ensemble():
    with raises_naming(TypeError, "`ensemble_lambda`"):
        tiny_masked("bert")(random_ids(1, 5), ensemble_lambda=0.4)


def test_fields():
    for wrong, right in {
        "ngram_sise": "ngram_size",
        "ngram_targets": "ngram_target",
        LAMBDA[0][1:-1]: LAMBDA[1][1:-1],
    }.items():
        with raises_naming(TypeError, f"`{wrong}`", f"`{right}`"):
            WDRNgramConfig(**SIZES, **{wrong: 4})
    with raises_naming(TypeError, "`bow_loss_weigth`", "`bow_loss_weight`"):
        WDRNgramMarianConfig(bow_loss_weigth=1.0)
    assert WDRNgramConfig(**SIZES, something=4).something == 4


def test_fields_given_on_loading(tmp_path):
    tiny_model().save_pretrained(tmp_path / "ours")
    plain_model().save_pretrained(tmp_path / "plain")
    loads = [
        (WDRNgramGPT2LMHeadModel.from_pretrained, "ours"),
        (WDRNgramGPT2LMHeadModel.from_pretrained, "plain"),
        (AutoModelForCausalLM.from_pretrained, "ours"),
        (AutoConfig.from_pretrained, "ours"),
        (with_ngram_heads, "plain"),
    ]
    for load, name in loads:
        with raises_naming(TypeError, "`ngram_sise`", "`ngram_size`"):
            load(tmp_path / name, ngram_sise=4)
    with raises_naming(TypeError, "`ngram_sise`", "`ngram_size`"):
        with_ngram_heads(plain_model(), ngram_sise=4)
    for load in (type(plain_model()), WDRNgramGPT2LMHeadModel):
        with pytest.raises(TypeError, match="something"):
            load.from_pretrained(tmp_path / "plain", something=4)


def test_no_stock_field_is_taken_for_ours():
    """Configurations with all fields of their backbone can be created again from what they save."""
    for name in ngram_wdr_hf.__all__:
        if name.startswith("WDRNgram") and name.endswith("Config"):
            config = getattr(ngram_wdr_hf, name)()
            assert type(config).from_dict(config.to_dict()).to_dict() == config.to_dict()
