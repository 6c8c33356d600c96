"""Corner cases of backbones: static caches, offloaded weights, custom classes."""

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    StaticCache,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from ngram_wdr_hf import WDRNgramLlamaConfig, WDRNgramLlamaForCausalLM, with_ngram_heads
from tests.support.backbones import tiny_backbone
from tests.support.errors import raises_naming
from tests.support.tiny import TRANSLATION_SIZES, left_pad, plain_seq2seq, random_ids, tiny_model

LLAMA = {
    "vocab_size": 37,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
}


@pytest.mark.parametrize("length", [3, 8])
@torch.no_grad()
def test_static_cache_with_sliding_window(length):
    """The mask is as wide as the window, and a token's column is not its position."""
    model = tiny_backbone("mistral", ensemble_lambda=0.6, ngram_size=4)
    ids, mask = left_pad([random_ids(1, length)[0], random_ids(1, length + 3, seed=1)[0]])
    options = {"max_new_tokens": 8, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    expected = model.generate(ids, attention_mask=mask, use_cache=False, **options)
    found = model.generate(ids, attention_mask=mask, cache_implementation="static", **options)
    torch.testing.assert_close(torch.stack(found.logits), torch.stack(expected.logits))


def test_first_step_with_static_cache_compiles_in_one_graph():
    model, ids = tiny_model(ensemble_lambda=0.4), random_ids(1, 6)

    def logits(step, cache):
        return step(ids, past_key_values=cache, use_cache=True).logits

    with torch.no_grad():
        expected = logits(model, StaticCache(config=model.config, max_cache_len=16))
        found = logits(
            torch.compile(model, fullgraph=True, backend="eager"), StaticCache(config=model.config, max_cache_len=16)
        )
    torch.testing.assert_close(found, expected)


class Bounded(LlamaForCausalLM):
    """Soft-caps its logits at a bound that is in no configuration and too large to show in an untrained model."""

    def forward(self, input_ids, attention_mask=None, labels=None, use_cache=None, **kwargs):
        output = super().forward(input_ids, attention_mask=attention_mask, use_cache=use_cache, **kwargs)
        logits = 30 * torch.tanh(output.logits / 30)
        loss = None if labels is None else self.loss_function(logits, labels, self.config.vocab_size)
        return CausalLMOutputWithPast(loss=loss, logits=logits)


def test_soft_cap_that_does_not_show_yet():
    model, ids = Bounded(LlamaConfig(**LLAMA)), random_ids(1, 5)
    plain = LlamaForCausalLM(LlamaConfig(**LLAMA))
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(ids).logits, plain(ids).logits, atol=1e-5, rtol=0.0)
    with raises_naming(ValueError, "`Bounded`", "logits"):
        with_ngram_heads(model)


class OwnBart(BartForConditionalGeneration):
    """A custom encoder-decoder class."""


@torch.no_grad()
def test_custom_encoder_decoder_class(tmp_path):
    plain = OwnBart(BartConfig(**TRANSLATION_SIZES)).eval()
    model = with_ngram_heads(plain, ngram_size=3)
    assert isinstance(model, OwnBart) and type(model) is not type(with_ngram_heads(plain_seq2seq("bart")))
    model.save_pretrained(tmp_path)
    loaded, ids = AutoModelForSeq2SeqLM.from_pretrained(tmp_path), random_ids(2, 6)
    assert type(loaded) is type(model)
    for ensemble_lambda in (0.0, 0.4):
        options = {"decoder_input_ids": ids, "ensemble_lambda": ensemble_lambda}
        torch.testing.assert_close(loaded(ids, **options).logits, model(ids, **options).logits)


def test_dtypes_and_names_are_kept():
    model = LlamaForCausalLM(LlamaConfig(**LLAMA, name_or_path="somewhere")).half()
    model.lm_head.float()
    model.model.layers[0].requires_grad_(False)
    heads = with_ngram_heads(model, ngram_size=2)
    for name, parameter in model.named_parameters():
        copied = heads.get_parameter(name)
        assert copied.dtype == parameter.dtype and copied.requires_grad == parameter.requires_grad
        assert torch.equal(copied, parameter) and copied.data_ptr() != parameter.data_ptr()
    assert heads.name_or_path == heads.config.name_or_path == "somewhere"


def test_offloaded_weights():
    model, ids = WDRNgramLlamaForCausalLM(WDRNgramLlamaConfig(**LLAMA)).eval(), random_ids(1, 5)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.to("meta"), requires_grad=False)
    with raises_naming(ValueError, "`WDRNgramLlamaForCausalLM`", "output embedding", "`ensemble_lambda=0`"):
        model(ids, labels=ids)
    with torch.device("meta"):
        plain = LlamaForCausalLM(LlamaConfig(**LLAMA))
    with raises_naming(ValueError, "`LlamaForCausalLM`", "offloaded"):
        with_ngram_heads(plain)


def test_invalid_options_with_a_checkpoint(tmp_path):
    LlamaForCausalLM(LlamaConfig(**LLAMA)).save_pretrained(tmp_path)
    with raises_naming(ValueError, "`config`"):
        with_ngram_heads(tmp_path, config=LlamaConfig())
    with raises_naming(TypeError, "`ngram_sise`", "`ngram_size`"):
        with_ngram_heads(tmp_path, ngram_sise=3)


def test_incomplete_trunk(tmp_path):
    """The checkpoint has no output embedding, like that of a model for another task."""
    model = LlamaForCausalLM(LlamaConfig(**LLAMA))
    weights = {name: weight for name, weight in model.state_dict().items() if not name.startswith("lm_head")}
    model.save_pretrained(tmp_path, state_dict=weights)
    for load in (with_ngram_heads, WDRNgramLlamaForCausalLM.from_pretrained):
        with raises_naming(ValueError, "LlamaForCausalLM", "`lm_head.weight`"):
            load(tmp_path)
