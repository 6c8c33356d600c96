"""Options that `generate(use_mtp=True)` does not support raise a one-line error before any forward pass."""

import pytest
import torch
import transformers
from transformers import EncoderDecoderCache, GenerationConfig, QuantizedCache, StaticCache
from transformers.generation import SynthIDTextWatermarkingConfig

from ngram_wdr_hf import WDRNgramConfig, WDRNgramGPT2LMHeadModel, with_ngram_heads
from tests.support.backbones import tiny_backbone
from tests.support.errors import raises_naming
from tests.support.options import DRAFTS, NO_END
from tests.support.side_by_side import assert_same_generation, generate, generate_both, were_drafts_right
from tests.support.tiny import (
    LLAMA_SIZES,
    VOCAB_SIZE,
    model_of,
    plain_model,
    prompts,
    random_ids,
    tiny_model,
    tiny_seq2seq,
)

TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}


def assert_rejected(*names: str, inputs=None, model=None, **options) -> None:
    """Check that `generate` raises an error with all of `names` in it, before the first forward pass."""
    model = model or tiny_model()
    forwards = []
    handle = model.get_output_embeddings().register_forward_hook(lambda *_: forwards.append(1))
    with raises_naming(ValueError, *names):
        generate(model, inputs or prompts(1), **{"use_mtp": True, **options})
    handle.remove()
    assert not forwards


@pytest.mark.parametrize(
    "make", [tiny_model, lambda **fields: tiny_seq2seq("marian", **fields)], ids=["gpt2", "marian"]
)
def test_no_heads(make):
    assert_rejected("use_mtp", "ngram_size", model=make(ngram_size=1))


LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 4,
    "long_factor": [3.0, 2.0, 4.0, 2.0],
    "original_max_position_embeddings": 24,
}
CHANGING_POSITIONS = {
    "Phi3ForCausalLM": {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": 24},
    "LlamaForCausalLM": {
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
        "max_position_embeddings": 24,
    },
}


@pytest.mark.parametrize("name", CHANGING_POSITIONS)
def test_positions_that_change_with_the_length(name):
    """Up to that length, drafts are right; beyond it, the positions of all earlier tokens change."""
    backbone = getattr(transformers, name)
    sizes = {**LLAMA_SIZES, **TOKENS, **CHANGING_POSITIONS[name], "initializer_range": 0.3}
    model = with_ngram_heads(backbone(backbone.config_class(**sizes))).double().eval()
    assert_rejected("use_mtp", "24", "max_new_tokens", model=model, max_new_tokens=19, **NO_END)
    inputs = prompts(1)
    expected = generate(model, inputs, max_new_tokens=18, **NO_END)
    assert torch.equal(generate(model, inputs, max_new_tokens=18, **NO_END, **DRAFTS), expected)
    # A default is left out.
    model.generation_config.use_mtp = True
    options = {"max_new_tokens": 30, **NO_END}
    assert torch.equal(generate(model, inputs, **options), generate(model, inputs, use_mtp=False, **options))


def test_positions_that_have_changed_already():
    """ "longrope" changes once: a text that is longer from the start can have drafts, but not in a batch."""
    sizes = {**LLAMA_SIZES, **TOKENS, **CHANGING_POSITIONS["Phi3ForCausalLM"], "initializer_range": 0.3}
    config = transformers.Phi3Config(**{**sizes, "max_position_embeddings": 200})
    model = with_ngram_heads(transformers.Phi3ForCausalLM(config)).double().eval()
    for length, num_rows in ((24, 1), (25, 2)):
        assert_rejected("use_mtp", "24", inputs={"input_ids": random_ids(num_rows, length)}, model=model, **NO_END)
    plain, drafted = generate_both(model, {"input_ids": random_ids(1, 25)}, **NO_END)
    assert_same_generation(plain, drafted, ends=(), tolerance=1e-9)
    assert were_drafts_right(drafted)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_gradient_checkpointing_in_training_mode(name):
    """It has no cache."""
    model = (model_of(name) if name == "gpt2" else tiny_backbone(name)).train()
    model.gradient_checkpointing_enable()
    assert_rejected("use_mtp", "model.eval()", model=model)


BEAMS = {
    "beam search": {"num_beams": 2},
    "beam sample": {"num_beams": 2, "do_sample": True},
}


@pytest.mark.parametrize("name", BEAMS)
def test_beams(name):
    assert_rejected("use_mtp", "num_beams", name, **BEAMS[name])
    assert generate(tiny_model(), prompts(1), **BEAMS[name], use_mtp=False).shape[0] == 1


@pytest.mark.parametrize("size", [0, -1, True, False, 2.0, "many"])
def test_draft_vocab_size(size):
    assert_rejected("`draft_vocab_size`", repr(size), draft_vocab_size=size)
    with raises_naming(ValueError, "`draft_vocab_size`", repr(size)):
        WDRNgramConfig(draft_vocab_size=size)


def test_draft_vocab_size_larger_than_the_vocabulary():
    names = ("`draft_vocab_size`", str(VOCAB_SIZE + 1), str(VOCAB_SIZE))
    assert_rejected(*names, draft_vocab_size=VOCAB_SIZE + 1)
    assert_rejected(*names, model=tiny_model(draft_vocab_size=VOCAB_SIZE + 1))
    assert_rejected(*names, model=tiny_seq2seq("t5"), draft_vocab_size=VOCAB_SIZE + 1)
    generate(tiny_model(), prompts(1), use_mtp=True, draft_vocab_size=VOCAB_SIZE)


def test_draft_vocab_size_given_on_loading(tmp_path):
    plain_model().save_pretrained(tmp_path)
    for size in (0, "many", True):
        with raises_naming(ValueError, "`draft_vocab_size`", repr(size)):
            WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path, draft_vocab_size=size)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "much", True, torch.tensor(0.5), False, "", []])
def test_draft_threshold(value):
    assert_rejected("`draft_threshold`", repr(value), draft_threshold=value)
    settings = GenerationConfig(use_mtp=True, draft_threshold=value, max_new_tokens=3)
    with raises_naming(ValueError, "`draft_threshold`", repr(value)):
        tiny_model().generate(**prompts(1), generation_config=settings)


@pytest.mark.parametrize("name", ["num_assistant_tokens", "prompt_lookup_num_tokens", "max_matching_ngram_size"])
@pytest.mark.parametrize("value", [-1, 2.5, "many"])
def test_counts(name, value):
    assert_rejected(f"`{name}`", repr(value), **{name: value})


def unfit_caches(model) -> dict[str, dict]:
    config = model.config
    return {
        "StaticLayer": {"past_key_values": StaticCache(config=config, max_cache_len=40)},
        "Fp8QuantizedLayer": {"past_key_values": QuantizedCache("fp8", config)},
    }


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("kind", ["StaticLayer", "Fp8QuantizedLayer"])
def test_cache_objects(kind, batch_size):
    model = tiny_model()
    assert_rejected("use_mtp", kind, inputs=prompts(batch_size), model=model, **unfit_caches(model)[kind])
    generate(model, prompts(batch_size), **unfit_caches(model)[kind])


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_cache_objects_of_an_encoder_decoder_model(name):
    model = tiny_seq2seq(name)
    lengths = (40, 6)
    cache = EncoderDecoderCache(*(StaticCache(config=model.config, max_cache_len=length) for length in lengths))
    for options in ({"past_key_values": cache}, {"cache_implementation": "static"}):
        assert_rejected("use_mtp", "StaticLayer", inputs=prompts(1, name), model=model, **options)


CACHES = {
    "static": ("StaticLayer", {"cache_implementation": "static"}),
    "quantized": ("Fp8QuantizedLayer", {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}),
    "none": ("`use_cache`", {"use_cache": False}),
}


@pytest.mark.parametrize("kind", CACHES)
def test_caches(kind):
    name, options = CACHES[kind]
    for batch_size in (1, 3):
        assert_rejected("use_mtp", name, inputs=prompts(batch_size), **options)
    generate(tiny_model(), prompts(3), **options)


OTHER_DRAFTS = {
    "assistant_model": lambda: plain_model(),
    "assistant_early_exit": lambda: 1,
    "assistant_ensemble_weight": lambda: 0.5,
}


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("name", OTHER_DRAFTS)
def test_other_drafts(name, batch_size):
    assert_rejected("use_mtp", f"`{name}`", inputs=prompts(batch_size), **{name: OTHER_DRAFTS[name]()})


WATERMARK = SynthIDTextWatermarkingConfig(ngram_len=3, keys=[11, 5, 7])
STATEFUL = {
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": {"guidance_scale": 1.5},
    "SynthIDTextWatermarkLogitsProcessor": {"watermarking_config": WATERMARK, "do_sample": True},
}


@pytest.mark.parametrize("name", STATEFUL)
def test_stateful_processors(name):
    assert_rejected("use_mtp", name, **STATEFUL[name])
    generate(tiny_model(), prompts(1), **STATEFUL[name])


def test_sharded_weights():
    assert_rejected("use_mtp", "synced_gpus", synced_gpus=True)


@pytest.mark.parametrize("option", ["output_attentions", "output_hidden_states"])
@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_states_of_a_batch(name, option):
    model = tiny_model() if name == "gpt2" else tiny_seq2seq(name)
    model.set_attn_implementation("eager")
    options = {option: True, "return_dict_in_generate": True}
    assert_rejected("use_mtp", f"`{option}=True`", inputs=prompts(3, name), model=model, **options)
    generate(model, prompts(3, name), **options)


OF_TRANSFORMERS = {
    "a misspelled option": ("draft_treshold", {"draft_treshold": 0.1}),
    "greedy sequences": ("num_return_sequences", {"num_return_sequences": 2}),
}


@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_errors_of_transformers(name):
    """Errors that Transformers raises are the same with and without drafts."""
    option, options = OF_TRANSFORMERS[name]
    for use_mtp in (False, True):
        with pytest.raises(ValueError) as error:
            generate(tiny_model(), prompts(1), use_mtp=use_mtp, **options)
        assert option in str(error.value)


@pytest.mark.parametrize("options", [{"draft_vocab_size": 5}, {"draft_threshold": 0.3}])
def test_draft_options_without_drafts(options):
    """Without `use_mtp=True` they have no effect, so that one configuration serves both."""
    tokens = generate(tiny_model(), prompts(1), **options)
    assert torch.equal(tokens, generate(tiny_model(), prompts(1)))
