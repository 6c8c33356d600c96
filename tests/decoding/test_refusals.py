"""What `generate(use_mtp=True)` cannot do raises an error of one line before any forward pass."""

import pytest
import torch
import transformers
from peft import PromptTuningConfig, get_peft_model
from transformers.generation import SynthIDTextWatermarkingConfig

from ngram_wdr_hf import with_ngram_heads
from ngram_wdr_hf.decoding.draft_limits import CannotDraft
from tests.support.backbones import tiny_backbone
from tests.support.errors import raises_naming
from tests.support.options import DRAFTS, NO_END
from tests.support.reformer import tiny_reformer
from tests.support.side_by_side import assert_same_generation, generate, generate_both, were_drafts_right
from tests.support.tiny import LLAMA_SIZES, plain_model, prompts, random_ids, tiny_model

WATERMARK = SynthIDTextWatermarkingConfig(ngram_len=3, keys=[11, 5, 7])
DICT = {"return_dict_in_generate": True}
# The options, and a word of the error. Without drafts, all of them work.
REFUSED = {
    "beam search": ({"num_beams": 2}, "num_beams"),
    "beam sampling": ({"num_beams": 2, "do_sample": True}, "num_beams"),
    "static cache": ({"cache_implementation": "static"}, "StaticLayer"),
    "quantized cache": ({"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}, "Fp8Quantized"),
    "no cache": ({"use_cache": False}, "`use_cache`"),
    "guidance": ({"guidance_scale": 1.5}, "UnbatchedClassifierFreeGuidanceLogitsProcessor"),
    "watermark": ({"watermarking_config": WATERMARK, "do_sample": True}, "SynthIDTextWatermarkLogitsProcessor"),
    "prefix": ({"prefix_allowed_tokens_fn": lambda row, ids: [3, 4]}, "PrefixConstrainedLogitsProcessor"),
    "attentions": ({"output_attentions": True, **DICT}, "`output_attentions=True`"),
    "hidden states": ({"output_hidden_states": True, **DICT}, "`output_hidden_states=True`"),
}


def assert_refused(*words: str, model=None, inputs=None, **options) -> None:
    model, forwards = model or tiny_model(), []
    handle = model.get_output_embeddings().register_forward_hook(lambda *_: forwards.append(1))
    with raises_naming(ValueError, *words):
        generate(model, inputs or prompts(1), **{"use_mtp": True, **options})
    handle.remove()
    assert not forwards


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("name", REFUSED)
def test_options(name, batch_size):
    (options, word), model = REFUSED[name], tiny_model()
    model.set_attn_implementation("eager")
    assert_refused("use_mtp", word, model=model, inputs=prompts(batch_size), **options)
    generate(model, prompts(batch_size), **options)


def test_other_ways_to_decode_and_models():
    for name, value in {"assistant_model": plain_model(), "assistant_early_exit": 1, "synced_gpus": True}.items():
        assert_refused("use_mtp", "sharded" if name == "synced_gpus" else f"`{name}`", **{name: value})
    assert_refused("use_mtp", "ngram_size", model=tiny_model(ngram_size=1))
    assert_refused("use_mtp", model=tiny_reformer())
    training = tiny_backbone("llama").train()
    training.gradient_checkpointing_enable()
    assert_refused("use_mtp", "model.eval()", model=training)
    tuned = get_peft_model(tiny_model(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)).eval()
    with raises_naming(CannotDraft, "one token at a time"):
        generate(tuned, prompts(1), **DRAFTS)
    generate(tuned, prompts(1))


LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 4,
    "long_factor": [3.0, 2.0, 4.0, 2.0],
    "original_max_position_embeddings": 24,
}
ROPES = {
    "Phi3ForCausalLM": {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": 24},
    "LlamaForCausalLM": {
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
        "max_position_embeddings": 24,
    },
}


@pytest.mark.parametrize("name", ROPES)
def test_positions_that_change_with_the_length(name):
    """Up to that length, drafts are right; beyond it, the positions of all earlier tokens change."""
    backbone = getattr(transformers, name)
    sizes = {**LLAMA_SIZES, "eos_token_id": 0, "max_position_embeddings": 200, "initializer_range": 0.3}
    sizes |= ROPES[name]
    model = with_ngram_heads(backbone(backbone.config_class(**sizes))).double().eval()
    assert_refused("use_mtp", "24", "max_new_tokens", model=model, max_new_tokens=19, **NO_END)
    plain, drafted = generate_both(model, prompts(1), max_new_tokens=18, **NO_END)
    assert_same_generation(plain, drafted, ends=())
    if name == "Phi3ForCausalLM":
        # It changes once: a text that is longer from the start can have drafts, but not in a batch.
        for length, num_rows in ((24, 1), (25, 2)):
            assert_refused("24", inputs={"input_ids": random_ids(num_rows, length)}, model=model, **NO_END)
        plain, drafted = generate_both(model, {"input_ids": random_ids(1, 25)}, **NO_END)
        assert_same_generation(plain, drafted, ends=(), tolerance=1e-9)
        assert were_drafts_right(drafted)


@pytest.mark.parametrize("value", [-1, True, "many", 2.5])
@pytest.mark.parametrize("name", ["draft_vocab_size", "num_assistant_tokens", "draft_threshold"])
def test_values(name, value):
    assert_refused(f"`{name}`", repr(value), **{name: value})
    # Without `use_mtp=True` they have no effect, so that one configuration serves both.
    if name != "num_assistant_tokens":
        assert torch.equal(generate(tiny_model(), prompts(1), **{name: 0.5}), generate(tiny_model(), prompts(1)))
