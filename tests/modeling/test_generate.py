"""`generate` with the ensemble equals recomputation of the whole text at every step, for all strategies."""

import pytest
import torch
from transformers import (
    AutoTokenizer,
    ContinuousBatchingConfig,
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    MaxTimeCriteria,
    TextStreamer,
    pipeline,
)
from transformers.generation import WatermarkingConfig

from ngram_wdr_hf import NgramEnsembleLogitsProcessor
from tests.support import reference
from tests.support.errors import raises_naming
from tests.support.generation import assert_same_generation, assert_threads_change_nothing, generate
from tests.support.options import NO_END, STRATEGIES, cache_options
from tests.support.tiny import left_pad, plain_model, random_ids, tiny_model
from tests.support.tokenizers import letter_tokenizer


@pytest.mark.parametrize("target", ["wdr", "simple"])
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_greedy_equals_slow_greedy(size, target):
    model = tiny_model(torch.float64, ngram_size=size, ngram_target=target)
    ids = random_ids(3, 5)
    output = generate(model, ids, ensemble_lambda=0.4, **NO_END)
    assert output.sequences.shape == (3, 13)
    for step in range(8):
        logits = reference.ensembled_logits(model, output.sequences[:, : 5 + step], 0.4)[:, -1]
        torch.testing.assert_close(output.logits[step], logits.float())
        assert torch.equal(output.sequences[:, 5 + step], logits.argmax(-1))
    assert not torch.allclose(
        output.logits[0], generate(model, ids, ensemble_lambda=0.0, **NO_END).logits[0], atol=0.1
    )


@pytest.mark.parametrize("target", ["wdr", "simple"])
@pytest.mark.parametrize("size", [2, 4])
@torch.no_grad()
def test_beam_search_equals_slow_beam_search(size, target):
    model = tiny_model(torch.float64, ngram_size=size, ngram_target=target)
    ids = random_ids(2, 4)
    output = generate(
        model,
        ids,
        num_beams=3,
        num_return_sequences=3,
        max_new_tokens=6,
        length_penalty=0.0,
        ensemble_lambda=0.4,
        **NO_END,
    )
    slow = [beam for beams in reference.beam_search(model, ids, 0.4, num_beams=3, max_new_tokens=6) for beam in beams]
    assert torch.equal(output.sequences, torch.stack([tokens for _, tokens in slow]))
    torch.testing.assert_close(output.sequences_scores, torch.tensor([score for score, _ in slow]))


FEATURES = {
    "temperature, top-k, top-p": {"do_sample": True, "temperature": 0.7, "top_k": 10, "top_p": 0.8},
    "min-p": {"do_sample": True, "min_p": 0.02},
    "typical": {"do_sample": True, "typical_p": 0.7},
    "epsilon and eta": {"do_sample": True, "epsilon_cutoff": 0.01, "eta_cutoff": 0.01},
    "top-h": {"do_sample": True, "top_h": 0.4},
    "repetition penalty": {"repetition_penalty": 1.5},
    "no repeated bigrams": {"no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[3], [4, 5]]},
    "sequence bias": {"sequence_bias": [[[7], 4.0]]},
    "minimal length": {"min_new_tokens": 6},
    "forced tokens": {"forced_bos_token_id": 5, "forced_eos_token_id": 0},
    "suppressed tokens": {"suppress_tokens": [2, 3], "begin_suppress_tokens": [4]},
    "length decay": {"exponential_decay_length_penalty": (3, 1.5)},
    "allowed tokens": {"prefix_allowed_tokens_fn": lambda _, ids: list(range(2, 20))},
    "renormalized": {"num_beams": 2, "renormalize_logits": True, "repetition_penalty": 1.2},
    "guidance": {"guidance_scale": 1.7},
    "watermark": {"do_sample": True, "watermarking_config": WatermarkingConfig()},
    "several ends": {"eos_token_id": [0, 5, 9]},
    "maximal time": {"stopping_criteria": [MaxTimeCriteria(1e6)]},  # it counts from its making
    "hidden states and attentions": {"output_hidden_states": True, "output_attentions": True},
}


@pytest.mark.parametrize("prompts", ["even", "left-padded"])
@pytest.mark.parametrize("name", [*STRATEGIES, *FEATURES])
def test_cached_equals_recomputed(name, prompts):
    """Without a cache, `generate` reads the whole text at every step."""
    options = {**STRATEGIES, **FEATURES}[name]
    if name == "guidance" and prompts == "left-padded":
        options = {**options, "guidance_scale": 1.0}  # Transformers' guidance reads no attention mask
    model = tiny_model(torch.float64, ensemble_lambda=0.4)
    if "output_attentions" in options:
        model.set_attn_implementation("eager")
    inputs = {"attention_mask": None}
    ids = random_ids(2, 6)
    if prompts == "left-padded":
        ids, inputs["attention_mask"] = left_pad([random_ids(1, 6)[0], random_ids(1, 2, seed=1)[0]])
    cached = generate(model, ids, **inputs, **options)
    recomputed = generate(model, ids, **inputs, **options, use_cache=False)
    assert_same_generation(cached, recomputed)
    model.config.ensemble_lambda = 0.0
    by_argument = generate(model, ids, **inputs, **options, ensemble_lambda=0.4)
    assert_same_generation(by_argument, cached)
    plain = generate(model, ids, **inputs, **options)
    assert not torch.allclose(plain.logits[0], cached.logits[0])


@pytest.mark.parametrize("name", ["greedy", "beam search", "several beams", "early stopping beams"])
def test_batch_equals_single_rows(name):
    options = STRATEGIES[name]
    model = tiny_model(torch.float64, ensemble_lambda=0.4)
    rows = [random_ids(1, length, seed=length)[0] for length in (6, 3, 1)]
    ids, mask = left_pad(rows)
    batch = model.generate(ids, attention_mask=mask, max_new_tokens=8, **options)
    count = options.get("num_return_sequences", 1)
    for b, row in enumerate(rows):
        alone = model.generate(row[None], max_new_tokens=8, **options)[:, len(row) :]
        assert torch.equal(batch[b * count : (b + 1) * count, 6 : 6 + alone.shape[1]], alone)


@pytest.mark.parametrize("name", ["greedy", "sampling", "beam search"])
@pytest.mark.parametrize("cache", ["dynamic", "static", "chunked", "chunked static", "compiled static"])
def test_caches(cache, name):
    model = tiny_model(ensemble_lambda=0.4)
    ids, mask = left_pad([random_ids(1, 7)[0], random_ids(1, 3, seed=1)[0]])
    options = {"attention_mask": mask, **STRATEGIES[name]}
    expected = generate(model, ids, **options, use_cache=False)
    options |= {"cache_implementation": "dynamic", **cache_options(cache)}
    assert_same_generation(generate(model, ids, **options), expected)


def test_continued_from_a_returned_cache():
    model = tiny_model(torch.float64, ensemble_lambda=0.4)
    ids = random_ids(1, 5)
    first = generate(model, ids, max_new_tokens=4, **NO_END)
    options = {**NO_END, "max_new_tokens": 5}
    anew = generate(model, first.sequences, **options)
    continued = generate(model, first.sequences, past_key_values=first.past_key_values, **options)
    assert_same_generation(continued, anew)
    # The next turn: the generated text, then new tokens of the user.
    second_turn = torch.cat([continued.sequences, random_ids(1, 3, seed=9)], dim=1)
    anew = generate(model, second_turn, **options)
    continued = generate(model, second_turn, past_key_values=continued.past_key_values, **options)
    assert_same_generation(continued, anew)


@pytest.mark.parametrize("target", ["wdr", "simple"])
def test_prompt_of_embeddings(target):
    """Simple heads use the whole prompt. For WDR heads, the ensemble starts with the first generated token."""
    model = tiny_model(torch.float64, ngram_target=target, ensemble_lambda=0.4)
    ids = random_ids(2, 5)
    output = generate(model, None, inputs_embeds=model.transformer.wte(ids), **NO_END)
    tokens = torch.cat([ids, output.sequences], dim=1)
    # The prompt's last hidden state is known, and all tokens after it.
    first_known = 4 if target == "wdr" else 0
    for step in range(8):
        logits = reference.ensembled_logits(model, tokens[:, : 5 + step], 0.4, first_known=first_known)[:, -1]
        torch.testing.assert_close(output.logits[step], logits.float())


@pytest.mark.parametrize("by", ["configuration", "argument", "processor"])
@pytest.mark.parametrize("drafts", ["prompt", "plain model", "model with heads"])
@pytest.mark.parametrize("do_sample", [False, True])
def test_assisted_generation(drafts, by, do_sample):
    """Drafts are rejected and the cache is cropped. The text equals that of plain decoding with the ensemble."""
    model = tiny_model()
    ids = random_ids(1, 4).repeat(1, 4)
    options = {"max_new_tokens": 16, "do_sample": do_sample, **NO_END}
    expected = generate(model, ids, ensemble_lambda=0.4, **options)
    if drafts == "prompt":
        options["prompt_lookup_num_tokens"] = 3
    else:
        options["assistant_model"] = plain_model(seed=3) if drafts == "plain model" else tiny_model(seed=3)
    if by == "configuration":
        model.config.ensemble_lambda = 0.4
    elif by == "argument":
        options["ensemble_lambda"] = 0.4
    else:
        options["logits_processor"] = [NgramEnsembleLogitsProcessor(model, 0.4)]
    assisted = generate(model, ids, **options)
    if do_sample:
        assert assisted.sequences.shape == (1, 32)
    else:
        assert_same_generation(assisted, expected)


def test_assistant_with_heads_for_a_plain_model():
    plain, assistant = plain_model(), tiny_model(ensemble_lambda=0.4)
    ids = random_ids(1, 6)
    assisted = plain.generate(ids, assistant_model=assistant, max_new_tokens=12, do_sample=False)
    assert torch.equal(assisted, plain.generate(ids, max_new_tokens=12, do_sample=False))


def test_transition_scores_add_up():
    model = tiny_model(ensemble_lambda=0.4)
    output = generate(model, random_ids(2, 5), num_beams=3, length_penalty=0.0, **NO_END)
    scores = model.compute_transition_scores(output.sequences, output.scores, output.beam_indices)
    torch.testing.assert_close(scores.sum(1), output.sequences_scores)


def test_logit_layer_runs_once_for_each_new_token():
    model = tiny_model(ensemble_lambda=0.4)
    rows = []
    handle = model.lm_head.register_forward_hook(lambda module, inputs, output: rows.append(output.shape[:2]))
    model.generate(random_ids(3, 7), max_new_tokens=5, do_sample=False, **NO_END)
    handle.remove()
    assert rows == [(3, 1)] * 5


def test_stop_strings_and_streamer(capsys):
    tokenizer = letter_tokenizer()
    model = tiny_model(ensemble_lambda=0.4)
    ids = random_ids(1, 5)
    free = model.generate(ids, max_new_tokens=8, do_sample=False, **NO_END)
    word = tokenizer.decode(free[0, 8])
    stopped = model.generate(
        ids,
        max_new_tokens=8,
        do_sample=False,
        stop_strings=[word],
        tokenizer=tokenizer,
        streamer=TextStreamer(tokenizer),
        **NO_END,
    )
    assert stopped.shape[1] <= 9 and torch.equal(stopped, free[:, : stopped.shape[1]])
    assert word in capsys.readouterr().out


def test_pipeline(tmp_path):
    letter_tokenizer().save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = tiny_model(ensemble_lambda=0.4)
    generator = pipeline("text-generation", model=model, tokenizer=tokenizer)
    texts = generator(["hello", "dj"], max_new_tokens=5, do_sample=False, batch_size=2, return_full_text=False)
    for text, prompt in zip(texts, ["hello", "dj"], strict=True):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        alone = model.generate(ids, max_new_tokens=5, do_sample=False)[0, ids.shape[1] :]
        assert text[0]["generated_text"] == tokenizer.decode(alone, skip_special_tokens=True)


def test_continuous_batching():
    """Continuous batching works without the ensemble and is rejected with it."""
    model = tiny_model()
    prompts = [random_ids(1, 5)[0].tolist(), random_ids(1, 3, seed=1)[0].tolist()]
    settings = GenerationConfig(max_new_tokens=5, do_sample=False, eos_token_id=0, pad_token_id=1)
    # By default, the cache takes most of the memory.
    small = ContinuousBatchingConfig(num_blocks=4, page_size=32, max_batch_tokens=64)
    outputs = model.generate_batch(prompts, generation_config=settings, continuous_batching_config=small)
    for prompt, output in zip(prompts, outputs.values(), strict=True):
        alone = model.generate(torch.tensor([prompt]), generation_config=settings)[0, len(prompt) :]
        assert output.generated_tokens == alone.tolist()
    with raises_naming(ValueError, "ensemble_lambda"):
        tiny_model(ensemble_lambda=0.4).generate_batch(prompts, generation_config=settings)
    with raises_naming(ValueError, "ensemble_lambda"):
        tiny_model(ensemble_lambda=0.4).init_continuous_batching()
    with raises_naming(ValueError, "ensemble_lambda"):
        tiny_model().generate_batch(prompts, generation_config=settings, ensemble_lambda=0.4)


@pytest.mark.parametrize("name", [*STRATEGIES, *FEATURES])
@pytest.mark.parametrize("prompts", ["even", "left-padded"])
def test_processor_equals_argument(name, prompts):
    options = {**STRATEGIES, **FEATURES}[name]
    model = tiny_model()
    if "output_attentions" in options:
        model.set_attn_implementation("eager")
    ids, mask = left_pad([random_ids(1, 6)[0], random_ids(1, 6 if prompts == "even" else 2, seed=1)[0]])
    processor = NgramEnsembleLogitsProcessor(model, ensemble_lambda=0.4)
    by_processor = generate(
        model, ids, attention_mask=mask, logits_processor=LogitsProcessorList([processor]), **options
    )
    assert_same_generation(
        by_processor, generate(model, ids, attention_mask=mask, ensemble_lambda=0.4, **options), 0.0
    )


def test_processor_called_by_hand():
    model = tiny_model(torch.float64)
    ids = random_ids(2, 7)
    with torch.no_grad():
        logits, refined = model(ids).logits[:, -1], model(ids, ensemble_lambda=0.4).logits[:, -1]
    processor = NgramEnsembleLogitsProcessor(model, 0.4)
    torch.testing.assert_close(processor(ids, logits), refined)
    torch.testing.assert_close(processor(ids, logits.log_softmax(-1)), refined.log_softmax(-1))
    forbidden = logits.clone()
    forbidden[:, 3] = -torch.inf
    assert (processor(ids, forbidden)[:, 3] == -torch.inf).all()


def test_several_threads_equal_one():
    assert_threads_change_nothing(tiny_model(), 8, max_new_tokens=20)


def test_generation_with_the_users_cache():
    """`generate` continues from a cache that the caller filled."""
    model = tiny_model(torch.float64, ensemble_lambda=0.4)
    ids, cache = random_ids(1, 9), DynamicCache()
    with torch.no_grad():
        model(ids[:, :6], past_key_values=cache)
    assert_same_generation(generate(model, ids, past_key_values=cache), generate(model, ids))
