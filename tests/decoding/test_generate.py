"""`generate(use_mtp=True)` returns what `generate` returns, whatever it is asked for."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, MaxLengthCriteria
from transformers.generation import BaseStreamer

from ngram_wdr_hf import with_ngram_heads
from ngram_wdr_hf.decoding.cache_history import layers_and_history
from tests.support.options import DRAFTS, END, EVERYTHING, NO_END, PAD
from tests.support.side_by_side import assert_same_generation, generate, generate_both, were_drafts_right
from tests.support.tiny import LLAMA_SIZES, SEQ2SEQ, model_of, prompts, random_ids


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("name", ["gpt2", *SEQ2SEQ])
def test_scores_and_logits(name, ensemble_lambda, batch_size):
    model = model_of(name)
    plain, speculative = generate_both(model, prompts(batch_size, name), ensemble_lambda=ensemble_lambda, **NO_END)
    assert_same_generation(plain, speculative, ends=())
    assert were_drafts_right(speculative)
    # In a batch, rows end at different tokens, so that there is no cache to continue from.
    assert set(speculative) == set(plain) - ({"past_key_values"} if batch_size > 1 else set()) | {"speculation"}
    if ensemble_lambda:
        other = generate(model, prompts(batch_size, name), **EVERYTHING, **NO_END)
        assert not torch.allclose(other.logits[1], plain.logits[1], atol=0.01)


class Recorder(BaseStreamer):
    """Records the streamed values, and how many forward passes there were before each."""

    def __init__(self, model):
        self.streamed, self.times, self.count = [], [], 0
        model.register_forward_hook(lambda *_: setattr(self, "count", self.count + 1))

    def put(self, value):
        self.streamed.append(value.tolist())
        self.times.append(self.count)

    def end(self):
        self.streamed.append("end")


@pytest.mark.parametrize("batch_size", [1, 3])
def test_streamer(batch_size):
    """The streamer gets the prompt, then one token of every row at a time, padding included, then the end."""
    model, options = model_of("gpt2", seed=1), {"eos_token_id": [END, 5, 9]}
    plain, drafted = Recorder(model), Recorder(model)
    generate(model, prompts(batch_size), streamer=plain, **options)
    sequences = generate(model, prompts(batch_size), streamer=drafted, **options, **DRAFTS)
    assert drafted.streamed == plain.streamed
    assert drafted.streamed == [sequences[:, :6].tolist(), *sequences[:, 6:].T.tolist(), "end"]
    # Tokens arrive with the forward pass that accepts them: early, and some together.
    times = drafted.times[1:]
    assert times == sorted(times) and 1 < len(set(times)) < len(times)


PROMPTS = {
    "positions": {"position_ids": torch.tensor([[10, 11, 12, 13, 14, 15]] * 2 + [[0, 0, 1, 2, 30, 31]])},
    "the same positions for all": {"position_ids": torch.arange(10, 16)[None], "attention_mask": None},
    "a mask with holes": {"attention_mask": torch.tensor([[1, 1, 0, 0, 1, 1], [0, 1, 1, 0, 1, 1], [0] * 5 + [1]])},
    # Generated tokens have the type of the prompt's last.
    "token types": {"token_type_ids": torch.tensor([[3, 3, 3, 3, 7, 7], [3, 3, 3, 7, 7, 9], [7, 7, 7, 7, 7, 3]])},
    "chunks": {"prefill_chunk_size": 4},
    "one head": {"ngram_size": 2},
    "many heads": {"ngram_size": 12},
    "simple heads": {"ngram_target": "simple"},
}


@pytest.mark.parametrize("case", PROMPTS)
def test_prompts_and_heads_of_other_kinds(case):
    fields = {name: value for name, value in PROMPTS[case].items() if name.startswith("ngram_")}
    given = {name: value for name, value in PROMPTS[case].items() if name not in fields}
    inputs = {name: value for name, value in {**prompts(3), **given}.items() if value is not None}
    model = model_of("gpt2", ensemble_lambda=0.4, **fields)
    # Rows that end early leave the batch.
    for ends in ([], [22]):
        plain, speculative = generate_both(model, inputs, eos_token_id=ends or None, pad_token_id=PAD)
        assert_same_generation(plain, speculative, ends)
        assert were_drafts_right(speculative) or ends


@pytest.mark.parametrize("batch_size", [1, 3])
def test_prompt_of_embeddings(batch_size):
    model, inputs = model_of("gpt2", ensemble_lambda=0.4), prompts(batch_size)
    embeddings, ids = model.transformer.wte(inputs["input_ids"]), inputs.pop("input_ids")
    for prompt, length in (({}, 0), ({"input_ids": ids}, 6)):
        plain, speculative = generate_both(model, {"inputs_embeds": embeddings, **inputs, **prompt}, **NO_END)
        assert_same_generation(plain, speculative, ends=())
        assert speculative.sequences.shape[1] == 20 + length
        assert were_drafts_right(speculative)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_drafts_stay_within_the_positions(batch_size):
    """A text that ends in time may have a maximum length beyond the model's positions; its drafts may not."""
    options = {"max_new_tokens": 100, "stopping_criteria": [MaxLengthCriteria(16)], **NO_END}
    plain, speculative = generate_both(model_of("gpt2", n_positions=16), prompts(batch_size), **options)
    assert plain.sequences.shape[1] == 16 and were_drafts_right(speculative)
    assert_same_generation(plain, speculative, ends=())


def test_rotary_positions_have_no_end():
    """Beyond `max_position_embeddings`, there are drafts as before. Nor is memory allocated for the maximum length."""
    sizes = {**LLAMA_SIZES, "initializer_range": 0.3, "max_position_embeddings": 16}
    model = with_ngram_heads(LlamaForCausalLM(LlamaConfig(**sizes))).double().eval()
    options = {"max_new_tokens": 10**12, "stopping_criteria": [MaxLengthCriteria(36)], "pad_token_id": 2}
    plain, speculative = generate_both(model, {"input_ids": random_ids(3, 6)}, eos_token_id=[0, 5, 9, 12], **options)
    assert torch.equal(speculative.sequences, plain.sequences) and plain.sequences.shape[1] > 20
    # The prompts have 6 tokens.
    assert any(token.rejected for row in speculative.speculation.trace for token in row[12:])


@pytest.mark.parametrize("first", [{}, DRAFTS], ids=["plain", "drafts"])
@pytest.mark.parametrize("second", [{}, DRAFTS], ids=["plain", "drafts"])
@pytest.mark.parametrize("name", ["gpt2", "marian", "t5"])
def test_cache(name, first, second, ensemble_lambda):
    """The cache that drafts leave is the one that plain decoding leaves, and serves as well."""
    model, inputs = model_of(name, ensemble_lambda=ensemble_lambda), prompts(1, name)
    options = {"max_new_tokens": 10, **EVERYTHING, **NO_END}
    plain, output = generate(model, inputs, **options), generate(model, inputs, **options, **first)
    caches = (output.past_key_values, plain.past_key_values)
    for layer, other in zip(*map(layers_and_history, caches), strict=True):
        assert type(layer) is type(other) and layer.get_seq_length() == other.get_seq_length()
        torch.testing.assert_close((layer.keys, layer.values), (other.keys, other.values), rtol=0, atol=1e-8)
    # First without added tokens, then with random ones.
    for length in (0, 3):
        ids = torch.cat([output.sequences, random_ids(1, length, seed=9)], dim=1)
        prefix, sources = ("", {}) if name == "gpt2" else ("decoder_", inputs)
        longer = {**sources, f"{prefix}input_ids": ids, f"{prefix}attention_mask": torch.ones_like(ids)}
        anew = generate(model, longer, **options)
        output = generate(model, longer, past_key_values=output.past_key_values, **options, **second)
        assert torch.equal(output.sequences, anew.sequences)
        torch.testing.assert_close(output.logits, anew.logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("batch_size", [1, 4])
@torch.no_grad()
def test_cache_of_the_users_own(batch_size, ensemble_lambda):
    """A cache that holds the beginning of the prompts is used. In a batch, it still holds just that afterwards."""
    model, inputs = model_of("gpt2", ensemble_lambda=ensemble_lambda), prompts(batch_size)
    ids, mask, cache, read = inputs["input_ids"], inputs["attention_mask"], DynamicCache(), []
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    model(ids[:, :4], attention_mask=mask[:, :4], position_ids=positions[:, :4], past_key_values=cache)
    model.transformer.register_forward_hook(lambda _, args, output: read.append(output[0].shape[1]))
    generated = generate(model, inputs, past_key_values=cache, **NO_END, **DRAFTS)
    assert read[0] == 2
    assert torch.equal(generated, generate(model, inputs, **NO_END))
    assert cache.get_seq_length() == (4 if batch_size > 1 else generated.shape[1] - 1)


def test_several_sequences_of_each_prompt():
    model, inputs = model_of("gpt2"), prompts(3)
    options = {"do_sample": True, "num_return_sequences": 3, **EVERYTHING, **NO_END, **DRAFTS}
    output = generate(model, inputs, **options)
    assert output.sequences.shape == (9, 26)
    assert torch.equal(output.sequences[:, :6], inputs["input_ids"].repeat_interleave(3, dim=0))
    assert len(output.sequences.unique(dim=0)) == 9 and were_drafts_right(output)


ADAPTERS = {
    "heads": {"target_modules": ["c_attn"], "modules_to_save": ["ngram_heads.0.fc_in", "ngram_heads.1.fc_out"]},
    "output": {"target_modules": ["lm_head"]},
}


@pytest.mark.parametrize("options", [{}, {"draft_vocab_size": 9}], ids=str)
@pytest.mark.parametrize("name", ADAPTERS)
def test_adapter(name, options):
    model, inputs = model_of("gpt2", tie_word_embeddings=False), prompts(3)
    before = generate(model, inputs, **NO_END)
    model = get_peft_model(model, LoraConfig(**ADAPTERS[name], init_lora_weights=False)).eval()
    for parameter_name, parameter in model.named_parameters():
        if "modules_to_save" in parameter_name:
            torch.nn.init.normal_(parameter, std=0.3)
    settings = {"ensemble_lambda": 0.4, **EVERYTHING, **NO_END}
    plain, drafted = generate(model, inputs, **settings), generate(model, inputs, **settings, **options, **DRAFTS)
    assert_same_generation(plain, drafted, ends=())
    assert were_drafts_right(drafted) and not torch.equal(before, plain.sequences)


def test_threads_get_what_each_gets_alone():
    model = model_of("marian")
    jobs = [({"input_ids": random_ids(1 + i % 3, 5, seed=i)}, 0.1 * i) for i in range(6)]
    alone = [generate(model, inputs, ensemble_lambda=value) for inputs, value in jobs]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda job: generate(model, job[0], ensemble_lambda=job[1], **DRAFTS), jobs))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
