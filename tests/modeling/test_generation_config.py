"""λ in `generation_config`: precedence, saving, and continuous batching."""

import pytest
import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from tests.support.errors import raises_naming
from tests.support.tiny import model_of, random_ids, tiny_model

OPTIONS = {
    "max_new_tokens": 8,
    "do_sample": False,
    "num_beams": 1,
    "output_logits": True,
    "return_dict_in_generate": True,
}


def logits_of(model, **options) -> torch.Tensor:
    generation_config = options.pop("generation_config", None)
    if generation_config is None:
        options |= OPTIONS
    return torch.stack(model.generate(random_ids(2, 5), generation_config=generation_config, **options).logits)


@pytest.mark.parametrize("name", ["gpt2", "marian"])
@pytest.mark.parametrize("drafts", [False, True])
def test_precedence(name, drafts):
    """The argument, then the `generation_config` given, then the model's, then the configuration."""
    model = model_of(name, ensemble_lambda=0.1)
    expected = {value: logits_of(model, ensemble_lambda=value) for value in (0.0, 0.1, 0.5, 0.9)}
    drafting = {"use_mtp": True} if drafts else {}
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
    assert (given.ensemble_lambda, model.generation_config.ensemble_lambda) == (0.9, 0.5)


def test_saved_and_loaded(tmp_path):
    model, ids = tiny_model(), random_ids(1, 5)
    model.generation_config.update(ensemble_lambda=0.9, draft_threshold=0.0, allow_custom_entries=True)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert (loaded.generation_config.ensemble_lambda, loaded.generation_config.draft_threshold) == (0.9, 0.0)
    assert torch.equal(logits_of(loaded), logits_of(model, ensemble_lambda=0.9))
    assert torch.equal(loaded(ids).logits, model(ids, ensemble_lambda=0.0).logits)


@pytest.mark.parametrize("value", [-0.1, 2, "much"])
def test_invalid(value):
    with raises_naming(ValueError, "`ensemble_lambda`", repr(value)):
        logits_of(tiny_model(), generation_config=GenerationConfig(**OPTIONS, ensemble_lambda=value))


def test_assistant_model(monkeypatch):
    """An assistant has its own λ: the one in `generation_config` is the model's alone."""
    model, assistant, given_lambdas = tiny_model(torch.float64), tiny_model(torch.float64, seed=1), set()
    given = GenerationConfig(**{**OPTIONS, "max_new_tokens": 3}, ensemble_lambda=0.9)

    def ngram_lambda(ensemble_lambda: float | None = None) -> float:
        given_lambdas.add(ensemble_lambda)
        return 0.0

    monkeypatch.setattr(assistant, "ngram_lambda", ngram_lambda)
    expected = logits_of(model, generation_config=given)[:, :1]
    output = model.generate(random_ids(2, 5)[:1], generation_config=given, assistant_model=assistant)
    torch.testing.assert_close(torch.stack(output.logits), expected)
    assert given_lambdas == {None}


def test_continuous_batching_without_the_ensemble():
    model, prompts = (
        tiny_model(ensemble_lambda=0.4),
        [random_ids(1, 5)[0].tolist(), random_ids(1, 3, seed=1)[0].tolist()],
    )
    settings = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": 0, "pad_token_id": 1}
    given, with_lambda = GenerationConfig(**settings), GenerationConfig(**settings, ensemble_lambda=0.0)
    small = ContinuousBatchingConfig(num_blocks=4, page_size=32, max_batch_tokens=64)
    outputs = model.generate_batch(prompts, given, ensemble_lambda=0.0, continuous_batching_config=small)
    for prompt, output in zip(prompts, outputs.values(), strict=True):
        alone = model.generate(torch.tensor([prompt]), generation_config=with_lambda)[0, len(prompt) :]
        assert output.generated_tokens == alone.tolist()
    for allowed in (with_lambda, given):
        model.init_continuous_batching(allowed, continuous_batching_config=small)
        model.generation_config.ensemble_lambda = 0.0
    model.generation_config.ensemble_lambda = 0.4
    for refused in (GenerationConfig(**settings, ensemble_lambda=0.4), given, None):
        with raises_naming(ValueError, "`ensemble_lambda`", "`generation_config`"):
            model.generate_batch(prompts, refused)
    assert model.config.ensemble_lambda == 0.4 and not hasattr(given, "ensemble_lambda")
