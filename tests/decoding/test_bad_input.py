"""What `generate(use_mtp=True)` cannot do, it refuses in one clear sentence, before it generates anything."""

import pytest
import torch
from transformers import EncoderDecoderCache, GenerationConfig, QuantizedCache, StaticCache
from transformers.generation import SynthIDTextWatermarkingConfig

from ngram_wdr_hf import WDRNgramConfig, WDRNgramGPT2LMHeadModel
from tests.support.side_by_side import generate
from tests.support.tiny import VOCAB_SIZE, plain_model, prompts, tiny_model, tiny_seq2seq


def refusal(inputs=None, model=None, **options) -> str:
    """The sentence that a call is refused with."""
    model = model or tiny_model()
    tokens = []
    handle = model.get_output_embeddings().register_forward_hook(lambda *_: tokens.append(1))
    with pytest.raises(ValueError) as error:
        generate(model, inputs or prompts(1), **{"use_mtp": True, **options})
    handle.remove()
    message = str(error.value)
    assert message.endswith(".") and "\n" not in message and not tokens
    return message


@pytest.mark.parametrize(
    "make", [tiny_model, lambda **fields: tiny_seq2seq("marian", **fields)], ids=["gpt2", "marian"]
)
def test_no_heads(make):
    message = refusal(model=make(ngram_size=1))
    assert "has none (`ngram_size=1`): load or train a model with `ngram_size` of at least 2" in message


BEAMS = {
    "beam search": {"num_beams": 2},
    "beam sample": {"num_beams": 2, "do_sample": True},
}


@pytest.mark.parametrize("name", BEAMS)
def test_beams(name):
    message = refusal(**BEAMS[name])
    assert f"these options ask for {name}: set `num_beams=1`, or use `use_mtp=False`" in message
    # Without drafts there is nothing to refuse.
    assert generate(tiny_model(), prompts(1), **BEAMS[name], use_mtp=False).shape[0] == 1


@pytest.mark.parametrize("size", [0, -1, True, False, 2.0, "many"])
def test_draft_vocab_size(size):
    message = f"`draft_vocab_size` must be a number of tokens of at least 1, got {size!r}."
    assert refusal(draft_vocab_size=size) == message
    with pytest.raises(ValueError, match=message):
        WDRNgramConfig(draft_vocab_size=size)


def test_draft_vocab_size_larger_than_the_vocabulary():
    message = f"`draft_vocab_size` is 38, but there are {VOCAB_SIZE} tokens: choose no more than that."
    assert refusal(draft_vocab_size=VOCAB_SIZE + 1) == message
    assert refusal(model=tiny_model(draft_vocab_size=VOCAB_SIZE + 1)) == message
    assert refusal(model=tiny_seq2seq("t5"), draft_vocab_size=VOCAB_SIZE + 1) == message
    generate(tiny_model(), prompts(1), use_mtp=True, draft_vocab_size=VOCAB_SIZE)


def test_draft_vocab_size_given_on_loading(tmp_path):
    plain_model().save_pretrained(tmp_path)
    for size in (0, "many", True):
        with pytest.raises(ValueError, match="`draft_vocab_size` must be a number of tokens of at least 1, got"):
            WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path, draft_vocab_size=size)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "much", True, torch.tensor(0.5), False, "", []])
def test_draft_threshold(value):
    assert refusal(draft_threshold=value) == f"`draft_threshold` must be a number from 0 to 1, got {value!r}."
    settings = GenerationConfig(use_mtp=True, draft_threshold=value, max_new_tokens=3)
    with pytest.raises(ValueError, match="`draft_threshold` must be a number from 0 to 1, got"):
        tiny_model().generate(**prompts(1), generation_config=settings)


@pytest.mark.parametrize("name", ["num_assistant_tokens", "prompt_lookup_num_tokens", "max_matching_ngram_size"])
@pytest.mark.parametrize("value", [-1, 2.5, "many"])
def test_counts(name, value):
    assert f"`{name}` must be" in refusal(**{name: value})


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
    message = refusal(prompts(batch_size), model, **unfit_caches(model)[kind])
    assert f"a {kind} cannot be cropped: use the default dynamic cache, or `use_mtp=False`" in message
    generate(model, prompts(batch_size), **unfit_caches(model)[kind])


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_cache_objects_of_an_encoder_decoder_model(name):
    model = tiny_seq2seq(name)
    lengths = (40, 6)
    cache = EncoderDecoderCache(*(StaticCache(config=model.config, max_cache_len=length) for length in lengths))
    assert "a StaticLayer cannot be cropped" in refusal(prompts(1, name), model, past_key_values=cache)
    assert "a StaticLayer cannot be cropped" in refusal(prompts(1, name), model, cache_implementation="static")


CACHES = {
    "static": ("a StaticLayer cannot be cropped", {"cache_implementation": "static"}),
    "quantized": (
        "a Fp8QuantizedLayer cannot be cropped",
        {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}},
    ),
    "none": ("needs a cache to take drafts back from: leave `use_cache` at `True`", {"use_cache": False}),
}


@pytest.mark.parametrize("kind", CACHES)
def test_caches(kind):
    message, options = CACHES[kind]
    assert message in refusal(**options) and message in refusal(prompts(3), **options)
    generate(tiny_model(), prompts(3), **options)


OTHER_DRAFTS = {
    "assistant_model": lambda: plain_model(),
    "assistant_early_exit": lambda: 1,
    "assistant_ensemble_weight": lambda: 0.5,
}


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("name", OTHER_DRAFTS)
def test_other_drafts(name, batch_size):
    message = refusal(prompts(batch_size), **{name: OTHER_DRAFTS[name]()})
    assert message == f"`use_mtp=True` drafts with the model's own heads: leave out `{name}`."


WATERMARK = SynthIDTextWatermarkingConfig(ngram_len=3, keys=[11, 5, 7])
STATEFUL = {
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": {"guidance_scale": 1.5},
    "SynthIDTextWatermarkLogitsProcessor": {"watermarking_config": WATERMARK, "do_sample": True},
}


@pytest.mark.parametrize("name", STATEFUL)
def test_processors_that_remember(name):
    message = refusal(**STATEFUL[name])
    assert f"a {name} remembers them: leave it out, or use `use_mtp=False`" in message
    generate(tiny_model(), prompts(1), **STATEFUL[name])


def test_weights_in_shards():
    message = refusal(synced_gpus=True)
    assert "gather the model on each device first, or use `use_mtp=False`" in message


@pytest.mark.parametrize("option", ["output_attentions", "output_hidden_states"])
@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_states_of_a_batch(name, option):
    model = tiny_model() if name == "gpt2" else tiny_seq2seq(name)
    model.set_attn_implementation("eager")
    options = {option: True, "return_dict_in_generate": True}
    message = refusal(prompts(3, name), model, **options)
    assert f"`{option}=True` with `use_mtp=True` is for one row at a time" in message
    assert "generate them one by one, or use `use_mtp=False`" in message
    generate(model, prompts(3, name), **options)


OF_TRANSFORMERS = {
    "a misspelled option": ("not used by the model: ['draft_treshold']", {"draft_treshold": 0.1}),
    "greedy sequences": ("do not support `num_return_sequences` different than 1", {"num_return_sequences": 2}),
}


@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_refusals_of_transformers(name):
    """They are the same with drafts and without."""
    message, options = OF_TRANSFORMERS[name]
    for use_mtp in (False, True):
        with pytest.raises(ValueError) as error:
            generate(tiny_model(), prompts(1), use_mtp=use_mtp, **options)
        assert message in str(error.value)


@pytest.mark.parametrize("options", [{"draft_vocab_size": 5}, {"draft_threshold": 0.3}])
def test_options_of_drafts_without_drafts(options):
    """They wait for `use_mtp=True`, as in a configuration that is used for both."""
    tokens = generate(tiny_model(), prompts(1), **options)
    assert torch.equal(tokens, generate(tiny_model(), prompts(1)))
