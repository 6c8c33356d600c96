"""`generate` with the ensemble equals recomputation of the whole text at every step, for all strategies."""

from contextlib import nullcontext

import pytest
import torch
from transformers import DynamicCache, StaticCache

from ngram_wdr_hf import NgramEnsembleLogitsProcessor
from ngram_wdr_hf.decoding.cache_history import NgramHistory, layers_and_history
from tests.support import reference
from tests.support.errors import raises_naming
from tests.support.generation import (
    STEPS,
    assert_greedy,
    assert_same_generation,
    assert_threads_change_nothing,
    cache_of,
    cached_logits,
    differ,
    generate,
    lengths_read,
    prompt,
    reference_inputs,
    text_inputs,
)
from tests.support.options import GPT2_OPTIONS, NO_END, PAD, STRATEGIES, TRANSLATION_OPTIONS, cache_options
from tests.support.tiny import left_pad, make, make_stock, model_of, prompts, random_ids, stock_twin, tiny_model


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 12])
@torch.no_grad()
def test_greedy_equals_slow_greedy(name, size, target, length):
    """The first token has no history; all steps after it have."""
    model, ids = model_of(name, ngram_size=size, ngram_target=target), prompt(3, length)
    output = generate(model, text_inputs(model, ids), ensemble_lambda=0.4, **NO_END)
    assert torch.equal(output.sequences[:, :length], ids) and len(output.logits) >= STEPS
    for other in ({"use_cache": False}, {"cache_implementation": "static"}):
        again = generate(model, text_inputs(model, ids), ensemble_lambda=0.4, **NO_END, **other)
        assert_same_generation(again, output)
    changes = assert_greedy(model, output, ids).abs().amax(-1)
    assert (changes[:, length == 1 :] > 0.01).all()
    assert length > 1 or (changes[:, 0] < 1e-6).all()


@pytest.mark.parametrize(("size", "num_beams"), [(2, 4), (4, 2), (4, 3)])
@torch.no_grad()
def test_beam_search_equals_slow_beam_search(name, size, num_beams, target):
    model, ids = model_of(name, ngram_size=size, ngram_target=target), prompt(2, 4 if name == "gpt2" else 1)
    inputs, slow_inputs = text_inputs(model, ids), reference_inputs(model, ids)
    options = {
        "num_beams": num_beams,
        "num_return_sequences": num_beams,
        "max_new_tokens": 6,
        "length_penalty": 0.0,
        **NO_END,
    }
    output = generate(model, inputs, ensemble_lambda=0.4, **options)
    slow = reference.beam_search(model, ensemble_lambda=0.4, num_beams=num_beams, max_new_tokens=6, **slow_inputs)
    slow = [beam for beams in slow for beam in beams]
    assert torch.equal(output.sequences, torch.stack([tokens for _, tokens in slow]))
    torch.testing.assert_close(output.sequences_scores, torch.tensor([score for score, _ in slow]))
    # The beams are reordered, and the search without the ensemble has another result.
    assert name == "gpt2" or (output.beam_indices[:, 2:-1] != output.beam_indices[:, 1:-2]).any()
    plain = generate(model, inputs, ensemble_lambda=0.0, **options)
    assert not torch.allclose(plain.sequences_scores, output.sequences_scores, atol=0.01)


CASES = [("gpt2", option) for option in GPT2_OPTIONS]
CASES += [(name, option) for name in ("marian", "t5") for option in TRANSLATION_OPTIONS]


@pytest.mark.parametrize(("name", "option"), CASES)
def test_cached_equals_recomputed_and_off_equals_stock(name, option):
    """Without a cache, `generate` reads the whole text at every step. λ may be given anywhere; 0 is stock."""
    model, inputs = model_of(name), {**prompts(2, name, seed=2), **(GPT2_OPTIONS | TRANSLATION_OPTIONS)[option]}
    stock = stock_twin(model, make_stock(name, torch.float64))
    if "output_attentions" in inputs:
        model.set_attn_implementation("eager"), stock.set_attn_implementation("eager")
    first = inputs["decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"].shape[1]
    first = first if name == "gpt2" or "decoder_input_ids" in inputs else 1
    with lengths_read(model) as lengths:
        cached = generate(model, inputs, ensemble_lambda=0.4)
    assert lengths == [first] + [1] * (len(cached.logits) - 1)
    assert isinstance(layers_and_history(cached.past_key_values)[-1], NgramHistory)
    with lengths_read(model) as lengths:
        recomputed = generate(model, inputs, ensemble_lambda=0.4, use_cache=False)
    assert lengths == [first + step for step in range(len(recomputed.logits))]
    assert recomputed.past_key_values is None
    assert_same_generation(cached, recomputed)
    plain = generate(model, inputs)
    assert differ(plain, cached)
    assert_same_generation(plain, generate(stock, inputs), 1e-12)
    processor = NgramEnsembleLogitsProcessor(model, ensemble_lambda=0.4)
    assert_same_generation(generate(model, inputs, logits_processor=[processor]), cached, 0.0)
    model.config.ensemble_lambda = 0.4
    assert_same_generation(generate(model, inputs), cached, 0.0)


@pytest.mark.parametrize("option", STRATEGIES)
def test_one_gram_equals_the_stock_model(name, option):
    model, inputs = make(name, ngram_size=1, ensemble_lambda=0.4), prompts(2, name, seed=2)
    stock = stock_twin(model, make_stock(name))
    assert_same_generation(*(generate(each, inputs, **STRATEGIES[option]) for each in (model, stock)), 0.0)


@pytest.mark.parametrize("option", ["greedy", "beam search", "several beams", "early stopping beams"])
def test_batch_equals_single_rows(name, option):
    """A finished row is padded until the others are finished; their tokens do not change."""
    model, inputs = model_of(name, ensemble_lambda=0.4), prompts(4, name, seed=2)
    start = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    ends_differ = False
    free = generate(model, inputs, **STRATEGIES[option], **NO_END).sequences[:, start:]
    for end in (None, *free.unique().tolist()):
        options = {**STRATEGIES[option], "eos_token_id": end, "pad_token_id": PAD}
        batch = generate(model, inputs, **options)
        lengths = []
        for b, mask in enumerate(inputs["attention_mask"]):
            row = inputs["input_ids"][b : b + 1, mask == 1]
            alone = generate(model, {"input_ids": row}, **options)
            count, beams = len(alone.sequences), len(alone.logits[0])
            tokens = alone.sequences[:, 1 if model.config.is_encoder_decoder else row.shape[1] :]
            together = batch.sequences[b * count : (b + 1) * count, start:]
            assert torch.equal(together[:, : tokens.shape[1]], tokens)
            assert (together[:, tokens.shape[1] :] == PAD).all()
            for logits, wanted in zip(batch.logits, alone.logits, strict=False):
                torch.testing.assert_close(logits[b * beams : (b + 1) * beams], wanted, rtol=0, atol=1e-5)
            lengths.append(tokens.shape[1])
        ends_differ |= min(lengths) < max(lengths)
    assert ends_differ or count > 1


CACHES = [(cache, option) for cache in ("static", "chunked", "chunked static") for option in list(STRATEGIES)[:3]]
ONE_LAYER = {"gpt2": {"n_layer": 1}, "marian": {"decoder_layers": 1}, "t5": {"num_decoder_layers": 1}}


@pytest.mark.parametrize(
    ("name", "cache", "option"),
    [(name, *case) for name in ONE_LAYER for case in CACHES] + [("gpt2", "compiled static", "greedy")],
)
def test_caches(name, cache, option):
    model = model_of(name, ensemble_lambda=0.4, **ONE_LAYER[name])
    inputs = {**prompts(2, name, seed=2), **NO_END, **STRATEGIES[option]}
    if name != "gpt2":
        inputs["decoder_input_ids"] = prompt(2, 6)
        if "chunked" in cache:
            # For chunks, Transformers uses the source's mask as that of the prompt.
            inputs |= {"input_ids": random_ids(2, 6), "attention_mask": None}
    expected = generate(model, inputs, use_cache=False)
    # A hook that records lengths would be compiled anew at each step.
    with nullcontext([]) if "compiled" in cache else lengths_read(model) as lengths:
        actual = generate(model, inputs, **cache_options(cache))
    assert "compiled" in cache or lengths[:3] == ([3, 3, 1] if "chunked" in cache else [6, 1, 1])
    used = getattr(actual.past_key_values, "self_attention_cache", actual.past_key_values)
    assert isinstance(used, StaticCache if "static" in cache else DynamicCache)
    assert_same_generation(actual, expected)


def continue_from(model, ids, cache, **options):
    """The length of the mask tells `generate` how many tokens the cache has."""
    inputs = text_inputs(model, ids, attention_mask=torch.ones_like(ids))
    return generate(model, inputs, past_key_values=cache, **NO_END, **options)


def test_continued_from_a_cache(name):
    """A cache filled by hand, then the one that `generate` returns: directly after the text, then after new tokens."""
    model, ids = model_of(name, ensemble_lambda=0.4), prompt(2, 7)
    cache = cache_of(model)
    with torch.no_grad():
        cached_logits(model, ids[:, :6], [4, 2], cache)
    for added in (0, 0, 3):
        ids = torch.cat([ids, random_ids(2, added, seed=9)], dim=1)
        anew = generate(model, text_inputs(model, ids), max_new_tokens=5, **NO_END)
        # The length of the mask tells `generate` how many tokens the cache has.
        inputs = text_inputs(model, ids, attention_mask=torch.ones_like(ids))
        with lengths_read(model) as lengths:
            output = generate(model, inputs, past_key_values=cache, max_new_tokens=5, **NO_END)
        assert lengths == [1 + added, 1, 1, 1, 1]
        assert_same_generation(output, anew)
        ids, cache = output.sequences, output.past_key_values


@torch.no_grad()
def test_generation_after_left_padded_prompts(name):
    model = model_of(name, ensemble_lambda=0.4)
    ids, mask = left_pad([prompt(1, length, seed=length)[0] for length in (5, 2)])
    inputs = text_inputs(model, ids, attention_mask=mask)
    for option in ("beam search", "greedy"):
        cached = generate(model, inputs, **STRATEGIES[option], **NO_END)
        assert_same_generation(cached, generate(model, inputs, use_cache=False, **STRATEGIES[option], **NO_END))
    whole = torch.cat([mask, mask.new_ones(2, len(cached.logits) - 1)], dim=1)
    positions = {"position_ids": (whole.cumsum(1) - 1).clamp(min=0)} if name == "gpt2" else {}
    assert_greedy(model, cached, ids, attention_mask=whole, **positions)


def test_prompt_of_embeddings(target):
    """Simple heads use the whole prompt. For WDR heads, the ensemble starts with the first generated token."""
    model, ids = tiny_model(torch.float64, ngram_target=target, ensemble_lambda=0.4), random_ids(2, 5)
    output = generate(model, {"inputs_embeds": model.transformer.wte(ids)}, **NO_END)
    tokens = torch.cat([ids, output.sequences[:, :-1]], dim=1)
    # The prompt's last hidden state is known, and all tokens after it.
    logits = reference.ensembled_logits(model, tokens, 0.4, first_known=4 if target == "wdr" else 0)[:, 4:]
    torch.testing.assert_close(torch.stack(output.logits, dim=1), logits.float())
    if target == "simple":
        beams = generate(model, {"inputs_embeds": model.transformer.wte(ids)}, num_beams=3, **NO_END)
        expected = generate(model, {"input_ids": ids}, num_beams=3, **NO_END)
        assert torch.equal(beams.sequences, expected.sequences[:, 5:])


@pytest.mark.parametrize("drafts", ["prompt", "plain model", "model with heads"])
@pytest.mark.parametrize("do_sample", [False, True])
def test_assisted_generation(name, drafts, do_sample, monkeypatch):
    """Drafts are rejected and the cache is cropped. The text equals that of plain decoding with the ensemble."""
    cropped, crop = [], NgramHistory.crop
    monkeypatch.setattr(NgramHistory, "crop", lambda history, count: cropped.append(count) or crop(history, count))
    model = model_of(name)
    inputs = text_inputs(model, prompt(1, 4).repeat(1, 3))
    options = {"max_new_tokens": 12, "do_sample": do_sample, **NO_END}
    expected = generate(model, inputs, ensemble_lambda=0.4, use_cache=False, **options)
    assert do_sample or differ(generate(model, inputs, **options), expected)
    if drafts == "prompt":
        options["prompt_lookup_num_tokens"] = 3
    else:
        build = make_stock if drafts == "plain model" else make
        options["assistant_model"] = build(name, torch.float64, seed=3)
    outputs = []
    if drafts == "prompt":
        processor = NgramEnsembleLogitsProcessor(model, 0.4)
        outputs.append(generate(model, inputs, ensemble_lambda=0.4, **options))
        outputs.append(generate(model, inputs, logits_processor=[processor], **options))
    model.config.ensemble_lambda = 0.4
    outputs.append(generate(model, inputs, **options))
    assert any(count < 0 for count in cropped)
    for output in outputs:
        assert output.sequences.shape == expected.sequences.shape
        if not do_sample:
            assert_same_generation(output, expected)


def test_models_that_transformers_runs_itself(name):
    """Guidance and assistants run with the λ of the configuration; that of one call would not reach them."""
    model, ids = model_of(name, ensemble_lambda=0.4), prompt(1, 6)
    inputs, guided = text_inputs(model, ids), {"guidance_scale": 1.7}
    for options in (guided, {"assistant_model": make(name)}):
        with raises_naming(ValueError, next(iter(options)), "`model.config.ensemble_lambda`"):
            generate(model, inputs, ensemble_lambda=0.3, **options)
    if name == "gpt2":
        cached = generate(model, inputs, **guided)
        assert_same_generation(cached, generate(model, inputs, **guided, use_cache=False))
        model.config.ensemble_lambda = 0.0
        assert differ(generate(model, inputs, **guided), cached)


def test_logit_layer_runs_once_for_each_new_token(name):
    model, rows = model_of(name, ensemble_lambda=0.4), []
    model.lm_head.register_forward_hook(lambda module, inputs, output: rows.append(output.shape[:2]))
    generate(model, prompts(3, name, seed=2), max_new_tokens=5, **NO_END)
    assert rows == [(3, 1)] * 5


@torch.no_grad()
def test_processor_called_by_hand(name):
    model, ids = model_of(name), prompt(2, 7)
    # One row per source, then three beams per source.
    for rows in (torch.arange(2), torch.arange(2).repeat_interleave(3)):
        inputs = text_inputs(model, ids[rows], rows)
        source = {key: value[:: len(rows) // 2] for key, value in inputs.items() if not key.startswith("decoder_")}
        processor = NgramEnsembleLogitsProcessor(model, 0.4, encoder_inputs=None if name == "gpt2" else source)
        logits, refined = (model(**inputs, ensemble_lambda=value).logits[:, -1] for value in (0.0, 0.4))
        assert not torch.allclose(logits, refined, atol=0.01)
        for scores in (logits, logits.log_softmax(-1)):
            torch.testing.assert_close(processor(ids[rows], scores).log_softmax(-1), refined.log_softmax(-1))
        torch.testing.assert_close(processor(ids[rows], logits.log_softmax(-1)), refined.log_softmax(-1))
        forbidden = logits.clone()
        forbidden[:, 3] = -torch.inf
        assert (processor(ids[rows], forbidden)[:, 3] == -torch.inf).all()


def test_several_threads_equal_one(name):
    assert_threads_change_nothing(make(name), 8, max_new_tokens=10)


def test_processor_in_the_generation_of_a_stock_model():
    """It is called directly there. Left padding is refused; rows that begin with a start token have none."""
    model, ids = model_of("gpt2"), random_ids(2, 6)
    stock = stock_twin(model, make_stock("gpt2", torch.float64))
    processors = [NgramEnsembleLogitsProcessor(model, 0.4)]
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    expected = model.generate(ids, ensemble_lambda=0.4, **options)
    assert torch.equal(stock.generate(ids, logits_processor=processors, **options), expected)
    assert not torch.equal(stock.generate(ids, **options), expected)
    starts = torch.cat([torch.full((2, 1), PAD), ids], dim=1)
    mask = torch.ones_like(starts)
    stock.generate(starts, attention_mask=mask, logits_processor=processors, **options)
    shorter, twice = starts.clone(), torch.cat([starts[:, :1], starts], dim=1)[:, :7]
    shorter[0, 0] = 2
    for padded in (shorter, twice, twice[:1]):
        with raises_naming(ValueError, "left-padded", "`ensemble_lambda`"):
            stock.generate(padded, attention_mask=mask[: len(padded)], logits_processor=processors, **options)
