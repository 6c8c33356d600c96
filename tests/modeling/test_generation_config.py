"""Options in `generation_config` and defaults: precedence, saving, and drafts that are left out if impossible."""

import copy

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GenerationConfig,
    GPT2LMHeadModel,
    QuantizedCache,
    StaticCache,
)
from transformers.generation import SynthIDTextWatermarkingConfig

from ngram_wdr_hf.decoding.speculative_decoding import SpeculativeDecoding
from tests.support.errors import raises_naming
from tests.support.options import EVERYTHING
from tests.support.side_by_side import generate
from tests.support.tiny import model_of, plain_model, prompts, random_ids, tiny_model

OPTIONS = {"max_new_tokens": 8, "do_sample": False, **EVERYTHING}


def logits_of(model, generation_config=None, **options) -> torch.Tensor:
    options |= OPTIONS if generation_config is None else {}
    return torch.stack(model.generate(random_ids(2, 5), generation_config=generation_config, **options).logits)


@pytest.mark.parametrize("name", ["gpt2", "marian"])
@pytest.mark.parametrize("drafting", [{}, {"use_mtp": True}])
def test_precedence(name, drafting):
    """The argument, then the `generation_config` given, then the model's, then the configuration."""
    model = model_of(name, ensemble_lambda=0.1)
    expected = {value: logits_of(model, ensemble_lambda=value) for value in (0.0, 0.1, 0.5, 0.9)}
    given = GenerationConfig(**OPTIONS, **drafting, ensemble_lambda=0.9)
    without = GenerationConfig(**OPTIONS, **drafting)

    def is_generated_with(value: float, **options) -> None:
        torch.testing.assert_close(logits_of(model, **options), expected[value])

    is_generated_with(0.1, **drafting)
    is_generated_with(0.1, generation_config=without)
    is_generated_with(0.9, generation_config=given)
    model.generation_config.ensemble_lambda = 0.5
    is_generated_with(0.5, **drafting)
    is_generated_with(0.5, generation_config=without)
    is_generated_with(0.5, ensemble_lambda=None)
    is_generated_with(0.9, generation_config=given)
    is_generated_with(0.0, generation_config=given, ensemble_lambda=0.0)
    # Weights take the place of a λ.
    is_generated_with(0.0, generation_config=given, ensemble_weights=[1.0, 0.0, 0.0, 0.0])
    assert (given.ensemble_lambda, model.generation_config.ensemble_lambda) == (0.9, 0.5)


@pytest.mark.parametrize("value", [-0.1, 2, "much"])
def test_invalid(value):
    for name in ("ensemble_lambda", "draft_threshold"):
        config = GenerationConfig(**OPTIONS, use_mtp=True, **{name: value})
        with raises_naming(ValueError, f"`{name}`", repr(value)):
            logits_of(tiny_model(), generation_config=config)


@pytest.mark.parametrize("option", ["assistant_model", "guidance_scale"])
def test_models_that_do_not_know_the_ensemble_of_the_call(option):
    """They run with the configuration's, so that another one is refused."""
    model, ids = tiny_model(ensemble_lambda=0.4), random_ids(1, 5)
    options = {option: plain_model() if option == "assistant_model" else 1.5, "max_new_tokens": 3}
    for refused in ({"ensemble_lambda": 0.9}, {"generation_config": GenerationConfig(ensemble_weights=[0, 1, 0, 0])}):
        with raises_naming(ValueError, f"`{option}`", "model.config.ensemble_lambda"):
            model.generate(ids, **options, **refused)
    assert torch.equal(model.generate(ids, ensemble_lambda=0.4, **options), model.generate(ids, **options))


def test_continuous_batching():
    """It takes the ensemble neither of the configuration nor of `generation_config`, and makes no drafts."""
    model, ids = tiny_model(draft_by_default=True), random_ids(2, 5)
    # By default, the cache takes most of the memory. Up to 5.17, a page is called a block.
    page_size = "page_size" if hasattr(ContinuousBatchingConfig, "page_size") else "block_size"
    sizes = {"num_blocks": 4, page_size: 32, "max_batch_tokens": 64}
    small = {"continuous_batching_config": ContinuousBatchingConfig(**sizes)}
    given = GenerationConfig(max_new_tokens=5, do_sample=False, eos_token_id=0, pad_token_id=1)
    outputs = model.generate_batch(ids.tolist(), given, **small).values()
    expected = model.generate(ids, generation_config=given, use_mtp=False)[:, 5:]
    assert [output.generated_tokens for output in outputs] == expected.tolist()
    for name, value in {"ensemble_lambda": 0.4, "use_mtp": True, "draft_threshold": 0.1}.items():
        with raises_naming(ValueError, f"`{name}`"):
            model.generate_batch(ids.tolist(), given, **{name: value}, **small)
    for options, words in (({"use_mtp": True}, "paged cache"), ({"ensemble_lambda": 0.4}, "continuous batching")):
        with raises_naming(ValueError, words):
            model.generate(ids, cache_implementation="paged", **options)
    for source in (model.config, model.generation_config, given):
        source.ensemble_lambda = 0.4
        with raises_naming(ValueError, "ensemble", "continuous batching"):
            model.generate_batch(ids.tolist(), given, **small)
        source.ensemble_lambda = 0.0


@pytest.fixture
def draftings(monkeypatch) -> list[SpeculativeDecoding]:
    """Every generation with drafts, from here on."""
    started, run = [], SpeculativeDecoding.run
    monkeypatch.setattr(SpeculativeDecoding, "run", lambda self: started.append(self) or run(self))
    return started


# Ways to make a model draft by default.
DEFAULTS = {
    "config": lambda model: setattr(model.config, "draft_by_default", True),
    "generation_config": lambda model: setattr(model.generation_config, "use_mtp", True),
    "old name": lambda model: setattr(model.generation_config, "ngram_use_mtp", True),
}


@pytest.mark.parametrize("default", DEFAULTS)
def test_saved_and_loaded(default, tmp_path, draftings):
    model, inputs = tiny_model(), prompts(3)
    model.generation_config.update(ensemble_lambda=0.9, draft_threshold=0.0, allow_custom_entries=True)
    plain = generate(model, inputs)
    DEFAULTS[default](model)
    before = model.generation_config.to_dict()
    model.save_pretrained(tmp_path)
    assert model.generation_config.to_dict() == before
    for _ in range(2):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
        assert (loaded.generation_config.ensemble_lambda, loaded.generation_config.draft_threshold) == (0.9, 0.0)
        draftings.clear()
        assert torch.equal(generate(loaded, inputs), plain) and len(draftings) == 1
        assert torch.equal(generate(loaded, inputs, use_mtp=False), plain) and len(draftings) == 1
        loaded.save_pretrained(tmp_path)
    # Outside of `generate`, they mean nothing. Of `use_mtp`, the stock class has its own idea.
    assert torch.equal(loaded(**inputs).logits, model(**inputs, ensemble_lambda=0.0).logits)
    if default != "generation_config":
        trunk = GPT2LMHeadModel.from_pretrained(tmp_path)
        assert torch.equal(generate(trunk, inputs), generate(model, inputs, use_mtp=False, ensemble_lambda=0.0))


WATERMARK = SynthIDTextWatermarkingConfig(ngram_len=3, keys=[11, 5, 7])
OBSTACLES = {
    "beam search": lambda config: {"num_beams": 2},
    "static": lambda config: {"past_key_values": StaticCache(config=config, max_cache_len=40)},
    "quantized": lambda config: {"past_key_values": QuantizedCache("fp8", config)},
    "no cache": lambda config: {"use_cache": False},
    "guidance": lambda config: {"guidance_scale": 1.5},
    "watermark": lambda config: {"watermarking_config": WATERMARK, "do_sample": True},
    "states": lambda config: {"output_hidden_states": True, "return_dict_in_generate": True},
}


@pytest.mark.parametrize("default", ["config", "generation_config"])
@pytest.mark.parametrize("name", OBSTACLES)
def test_left_out_where_it_is_not_possible(name, default, draftings, monkeypatch):
    """The default gives the text of plain decoding and one line; the argument raises an error."""
    model, inputs, texts, lines = tiny_model(ensemble_lambda=0.4), prompts(3), [], []
    monkeypatch.setattr("ngram_wdr_hf.modeling.generation._warn_once", lines.append)
    DEFAULTS[default](model)
    for use_mtp in (None, False):
        torch.manual_seed(0)
        # An option of our drafts; without them, Transformers would use it for drafts of its own.
        model.generation_config.prompt_lookup_num_tokens = 4 if use_mtp is None else None
        output = generate(model, inputs, **OBSTACLES[name](model.config), use_mtp=use_mtp)
        texts.append(output if isinstance(output, torch.Tensor) else output.sequences)
    assert torch.equal(*texts) and draftings == []
    assert len(lines) == 1 and "default" in lines[0] and "\n" not in lines[0]
    with raises_naming(ValueError, "use_mtp"):
        generate(model, inputs, **OBSTACLES[name](model.config), use_mtp=True)
    generate(model, inputs)
    assert len(draftings) == 1


def test_other_drafters(draftings):
    """They take the place of the default."""
    model, assistant, inputs, calls = (
        model_of("gpt2", draft_by_default=True),
        plain_model(torch.float64),
        prompts(1),
        [],
    )
    plain = generate(model, inputs, use_mtp=False)
    assistant.get_output_embeddings().register_forward_hook(lambda *_: calls.append(1))
    assert torch.equal(generate(model, inputs, assistant_model=assistant), plain)
    assert calls and draftings == []
    # The model as an assistant.
    assert torch.equal(generate(assistant, inputs, assistant_model=model), generate(assistant, inputs))


def test_generation_config_given(draftings):
    """A copy of the model's, as a server makes it, has the model's default; `False` in it wins."""
    model, inputs = tiny_model(), prompts(1)
    plain = generate(model, inputs)
    model.generation_config.use_mtp = True
    given = copy.deepcopy(model.generation_config)
    given.max_new_tokens = 20
    assert torch.equal(model.generate(**inputs, generation_config=given), plain) and len(draftings) == 1
    given.cache_implementation = "static"
    assert torch.equal(model.generate(**inputs, generation_config=given), plain) and len(draftings) == 1
    without = GenerationConfig(max_new_tokens=20, use_mtp=False, prompt_lookup_num_tokens=3)
    assert torch.equal(model.generate(**inputs, generation_config=without), plain) and len(draftings) == 1
    # Given by the caller alone, it is no default.
    model.generation_config.use_mtp = None
    with raises_naming(ValueError, "use_mtp", "num_beams"):
        model.generate(**inputs, generation_config=GenerationConfig(use_mtp=True, num_beams=2))
