"""Corner cases of drafts: sliding windows, constraints, adapters, no allowed draft token."""

import itertools

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StoppingCriteria
from transformers.generation.streamers import BaseStreamer

from ngram_wdr_hf import with_ngram_heads
from tests.support.backbones import tiny_backbone
from tests.support.errors import raises_naming
from tests.support.options import DRAFTS, NO_END, PAD
from tests.support.side_by_side import assert_same_generation, generate, generate_both
from tests.support.side_by_side import were_drafts_right as were_right
from tests.support.tiny import LLAMA_SIZES, model_of, prompts, random_ids, tiny_model


@pytest.mark.parametrize("batch_size", [1, 3])
def test_drafts_stay_within_the_positions(batch_size):
    """A text that ends in time may have a maximum length beyond the model's positions; its drafts may not."""
    model, inputs = model_of("gpt2", n_positions=16), prompts(batch_size)
    options = {"max_new_tokens": 100, "stopping_criteria": [EndsAt(16)], **NO_END}
    plain, speculative = generate_both(model, inputs, **options)
    assert plain.sequences.shape[1] == 16 and were_right(speculative)
    assert_same_generation(plain, speculative, ends=())


def test_rotary_positions_have_no_end():
    """Beyond `max_position_embeddings`, there are drafts as before, and the cache is that of plain decoding."""
    sizes = {**LLAMA_SIZES, "initializer_range": 0.3, "max_position_embeddings": 16}
    model = with_ngram_heads(LlamaForCausalLM(LlamaConfig(**sizes))).double().eval()
    # Some rows end early, and read padding with an embedding that is not 0.
    options = {"max_new_tokens": 30, "eos_token_id": [0, 5, 9, 12], "pad_token_id": 2}
    plain, speculative = generate_both(model, {"input_ids": random_ids(3, 6)}, **options)
    assert torch.equal(speculative.sequences, plain.sequences) and plain.sequences.shape[1] > 20
    for layer, expected in zip(speculative.past_key_values.layers, plain.past_key_values.layers, strict=True):
        torch.testing.assert_close(layer.keys, expected.keys, rtol=0, atol=1e-9)
    # The prompts have 6 tokens.
    assert any(token.rejected for row in speculative.speculation.trace for token in row[12:])


class EndsAt(StoppingCriteria):
    """Every row ends at a length."""

    def __init__(self, length: int):
        self.length = length

    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((len(input_ids),), input_ids.shape[1] >= self.length)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_constraint_that_knows_no_forbidden_text(batch_size):
    """The function of a constraint is not asked about texts that it forbids."""
    allowed = {token: {(3 * token) % 30 + 2, (5 * token) % 30 + 2, token} for token in range(37)}

    def next_tokens(row: int, text: torch.Tensor) -> list[int]:
        new = text[6:].tolist()
        assert all(after in allowed[before] for before, after in itertools.pairwise(new))
        return sorted(allowed[int(text[-1])])

    options, model = {"prefix_allowed_tokens_fn": next_tokens, **NO_END}, model_of("gpt2")
    plain, speculative = generate_both(model, prompts(batch_size), **options)
    assert_same_generation(plain, speculative, ends=())
    assert were_right(speculative)


class Interrupting(BaseStreamer):
    """A streamer that raises an error with the fifth token."""

    def __init__(self):
        self.values = []

    def put(self, value):
        self.values.append(value.view(-1, 1) if self.values else value)
        if len(self.values) == 6:
            raise KeyboardInterrupt

    def end(self):
        raise AssertionError("It was interrupted.")


@pytest.mark.parametrize("ensemble_lambda", [0.0, 0.4])
def test_cache_after_an_interrupted_stream(ensemble_lambda):
    """It holds what the streamer got but the last token, as in plain decoding, whatever was drafted beyond."""
    model = model_of("gpt2", ensemble_lambda=ensemble_lambda)
    surplus = set()
    for seed in range(4):
        cache, streamer, ids = DynamicCache(), Interrupting(), random_ids(1, 6, seed=seed)
        # A repetition, for prompt lookup.
        ids = torch.cat([ids, ids], dim=1)
        with pytest.raises(KeyboardInterrupt):
            generate(model, {"input_ids": ids}, past_key_values=cache, streamer=streamer, **NO_END, **DRAFTS)
        surplus.add(cache.get_seq_length() - (12 + 5 - 1))
        text = torch.cat([ids, *streamer.values[1:]], dim=1)
        anew = generate(model, {"input_ids": text}, **NO_END)
        assert torch.equal(generate(model, {"input_ids": text}, past_key_values=cache, **NO_END), anew)
    assert surplus == {0}


@pytest.mark.parametrize("ensemble_lambda", [0.0, 0.4])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_sliding_windows(batch_size, ensemble_lambda):
    """Rows are shifted in sliding windows, too, and plain decoding continues from the resulting cache."""
    model = tiny_backbone("mistral", ensemble_lambda=ensemble_lambda)
    inputs = prompts(batch_size)
    plain, speculative = generate_both(model, inputs, **NO_END)
    assert_same_generation(plain, speculative, ends=())
    assert were_right(speculative)
    assert speculative.past_key_values.get_seq_length() == plain.past_key_values.get_seq_length()
    longer = torch.cat([plain.sequences, plain.sequences[:, -3:]], dim=1)
    mask = torch.cat([inputs["attention_mask"], torch.ones(batch_size, 23, dtype=torch.long)], dim=1)
    expected, actual = (
        generate(
            model, {"input_ids": longer, "attention_mask": mask}, past_key_values=output.past_key_values, **NO_END
        )
        for output in (plain, speculative)
    )
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("copies", [0, 8])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_constraint_without_tokens_after_a_forbidden_one(batch_size, copies):
    """After a forbidden token, the constraint allows none, a case that plain decoding never reaches."""
    allowed = {token: [(3 * token) % 30 + 2, (5 * token) % 30 + 2, token] for token in range(37)}

    def next_tokens(row: int, text: torch.Tensor) -> list[int]:
        new = text[6:].tolist()
        is_possible = all(after in allowed[before] for before, after in itertools.pairwise(new))
        return allowed[int(text[-1])] if is_possible else []

    options = {"prefix_allowed_tokens_fn": next_tokens, "prompt_lookup_num_tokens": copies, **NO_END}
    model, inputs = model_of("gpt2"), prompts(batch_size)
    speculative = generate(model, inputs, return_dict_in_generate=True, **options, **DRAFTS)
    del options["prompt_lookup_num_tokens"]
    assert torch.equal(speculative.sequences, generate(model, inputs, **options))
    assert were_right(speculative)
    with pytest.raises(ValueError, match="empty list"):
        generate(model, inputs, prefix_allowed_tokens_fn=lambda row, text: [], **DRAFTS)


@pytest.mark.parametrize(
    "options", [{"renormalize_logits": True}, {"eta_cutoff": 1e-3}, {"min_new_tokens": 5, "eos_token_id": [0, 1]}]
)
def test_nothing_left_to_draft(options):
    """All tokens of the draft vocabulary are forbidden, with other processors after that."""
    model, inputs = tiny_model(), prompts(3)
    if "min_new_tokens" not in options:
        options = {**options, "suppress_tokens": [0, 1]}
    torch.manual_seed(0)
    ids = generate(model, inputs, do_sample=True, draft_vocab_size=2, pad_token_id=PAD, **options, **DRAFTS)
    assert not (ids[:, 6:11] < 2).any()


class AfterTenTokens(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((len(input_ids),), input_ids.shape[1] >= 16)


def test_huge_maximum_length():
    """Memory is allocated as the text grows."""
    options = {"max_new_tokens": 10**12, "stopping_criteria": [AfterTenTokens()], **NO_END}
    model, inputs = tiny_model(), prompts(3)
    assert torch.equal(generate(model, inputs, **options, **DRAFTS), generate(model, inputs, **options))


def test_adapter_on_the_output_embedding():
    model = tiny_model(tie_word_embeddings=False)
    adapted = get_peft_model(model, LoraConfig(target_modules=["lm_head"], init_lora_weights=False)).eval()
    for options in ({}, {"draft_vocab_size": 9}):
        speculative = generate(adapted, prompts(3), return_dict_in_generate=True, **options, **DRAFTS)
        assert torch.equal(speculative.sequences, generate(adapted, prompts(3)))


def test_wrapper_that_reads_one_token_at_a_time():
    tuning = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = get_peft_model(tiny_model(), tuning).eval()
    with raises_naming(ValueError, "use_mtp"):
        generate(model, prompts(1), **DRAFTS)
    generate(model, prompts(1))
