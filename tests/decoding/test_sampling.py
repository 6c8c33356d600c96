"""Sampling with drafts: every text has its probability under plain sampling, tested by counting."""

import itertools

import pytest
import torch
from transformers import LogitsProcessorList
from transformers.generation import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ngram_wdr_hf.decoding import speculative_decoding
from ngram_wdr_hf.decoding.acceptance import accept_by_sampling
from ngram_wdr_hf.decoding.drafter import Drafter
from tests.support.chance import LEAST_P, WRONG_P, p_value
from tests.support.options import DRAFTS, HEADS_ONLY
from tests.support.tiny import left_pad, random_ids, tiny_model, tiny_seq2seq

# A vocabulary of three and five new tokens, enough for three heads to draft: 243 texts.
VOCAB_SIZE, NEW_TOKENS = 3, 5
# One of the prompts repeats itself, so that there is something to copy.
PROMPTS = [[1, 2, 0, 1, 2, 0, 1], [2, 2, 1]]
NUM_ROWS, NUM_BATCHES = 250, 6
SMALL = {"vocab_size": VOCAB_SIZE, "n_layer": 1, "n_embd": 8, "n_head": 1, "ngram_size": 4, "initializer_range": 0.6}


@torch.no_grad()
def exact_probabilities(model, prompt, processors=(), ensemble_lambda=0.0, end=None, **inputs) -> torch.Tensor:
    """The probability of every text after `prompt`, from a forward pass over each of them without a cache."""
    # Text i has the digits of i.
    texts = torch.tensor(list(itertools.product(range(VOCAB_SIZE), repeat=NEW_TOKENS)))
    processors = LogitsProcessorList(processors)
    ids = torch.cat([torch.tensor(prompt).expand(len(texts), -1), texts], dim=1)
    inputs = {name: value.expand(len(texts), -1) for name, value in inputs.items()}
    logits = model(**inputs, **{f"{model.ngram_text_prefix}input_ids": ids}, ensemble_lambda=ensemble_lambda).logits
    total, has_ended = torch.ones(len(texts)).double(), torch.zeros(len(texts), dtype=torch.bool)
    for position in range(len(prompt), ids.shape[1]):
        probabilities = processors(ids[:, :position], logits[:, position - 1].clone()).double().softmax(-1)
        token = ids[:, position]
        total *= torch.where(has_ended, token == 1, probabilities.gather(1, token[:, None])[:, 0])
        has_ended |= token == (-1 if end is None else end)
    torch.testing.assert_close(total.sum(), torch.ones(()).double())
    # If one text were certain, there would be nothing to see.
    assert (total > 0.002).sum() > 10
    return total


def prompts() -> dict[str, torch.Tensor]:
    ids, mask = left_pad([torch.tensor(prompt) for prompt in PROMPTS])
    return {"input_ids": ids, "attention_mask": mask}


def sample(model, inputs, **options):
    """How often each text came after either prompt, and the sum of the statistics."""
    counts = torch.zeros(2, VOCAB_SIZE**NEW_TOKENS, dtype=torch.long)
    digits = VOCAB_SIZE ** torch.arange(NEW_TOKENS - 1, -1, -1)
    begin = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    options = {"eos_token_id": None, "pad_token_id": 1, "do_sample": True, **DRAFTS, **options}
    options |= {"return_dict_in_generate": True, "num_return_sequences": NUM_ROWS, "max_new_tokens": NEW_TOKENS}
    statistics = speculative_decoding.SpeculationStatistics()
    for seed in range(NUM_BATCHES):
        torch.manual_seed(1000 + seed)
        output = model.generate(**inputs, **options)
        texts = torch.nn.functional.pad(output.sequences[:, begin:], (0, NEW_TOKENS), value=1)[:, :NEW_TOKENS]
        for count, rows in zip(counts, (texts * digits).sum(1).chunk(2), strict=True):
            count += rows.bincount(minlength=len(count))
        statistics += output.speculation
    return counts, statistics


# Of three tokens, this leaves two or three.
WARM, WARPERS = {"temperature": 2.0, "top_p": 0.9}, [TemperatureLogitsWarper(2.0), TopPLogitsWarper(0.9)]
# The model's fields; the options; the processors that Transformers makes of them, in its order.
CASES = {
    "heads": ({}, HEADS_ONLY, []),
    "heads, ensemble": ({}, {"ensemble_lambda": 0.4, **HEADS_ONLY}, []),
    "copies": ({}, {}, []),
    "copies, ensemble": ({}, {"ensemble_lambda": 0.4}, []),
    "simple heads, copies, ensemble": ({"ngram_target": "simple"}, {"ensemble_lambda": 0.4}, []),
    "temperature, top-p": ({}, {**WARM, **HEADS_ONLY}, WARPERS),
    "temperature, top-k, copies, ensemble": (
        {},
        {"temperature": 1.5, "top_k": 2, "ensemble_lambda": 0.4},
        [TemperatureLogitsWarper(1.5), TopKLogitsWarper(2)],
    ),
    "few draft tokens": ({}, {"draft_vocab_size": 2, **HEADS_ONLY}, []),
    "few draft tokens, top-p, copies": ({"ngram_target": "simple"}, {"draft_vocab_size": 2, **WARM}, WARPERS),
    "repetition penalty": ({}, {"repetition_penalty": 1.8, **HEADS_ONLY}, [RepetitionPenaltyLogitsProcessor(1.8)]),
    "repetition penalty, few draft tokens, temperature, copies, ensemble": (
        {},
        {"repetition_penalty": 1.8, "draft_vocab_size": 2, "temperature": 1.3, "ensemble_lambda": 0.4},
        [RepetitionPenaltyLogitsProcessor(1.8), TemperatureLogitsWarper(1.3)],
    ),
    "texts that end": ({}, {"eos_token_id": 0, "ensemble_lambda": 0.4}, []),
    "where drafts pay": ({"ngram_target": "simple"}, {"draft_threshold": 0.25, **HEADS_ONLY}, []),
}


def p_values(name: str):
    """Sample texts of a case. Return the p-value of the texts after each prompt, and the statistics."""
    fields, options, processors = CASES[name]
    model = tiny_model(seed=3, **SMALL, **fields)
    counts, statistics = sample(model, prompts(), **options)
    settings = {"ensemble_lambda": options.get("ensemble_lambda", 0.0), "end": options.get("eos_token_id")}
    expected = [exact_probabilities(model, prompt, processors, **settings) for prompt in PROMPTS]
    return [p_value(*pair) for pair in zip(counts, expected, strict=True)], statistics


@pytest.mark.parametrize("name", CASES)
def test_every_text_is_as_likely_as_without_drafts(name):
    values, statistics = p_values(name)
    assert min(values) > LEAST_P
    num_drafted = sum(statistics.num_drafted)
    assert 0 < sum(statistics.num_accepted) < num_drafted
    if "prompt_lookup_num_tokens" in CASES[name][1]:
        assert sum(statistics.num_copied) == 0 and len(statistics.num_drafted) == 3
    else:
        # Some rows copied, others had the heads' drafts.
        assert 0 < sum(statistics.num_copies_accepted) < sum(statistics.num_copied) < num_drafted


def accept_by_p(scores, drafts, draft_probabilities):
    """Wrong acceptance: ignores the probability q of a draft."""
    return accept_by_sampling(scores, drafts, [torch.ones_like(q) for q in draft_probabilities])


def replace_by_p(scores, drafts, draft_probabilities):
    """Wrong acceptance: replaces a rejected draft by a sample from p instead of the residual."""
    tokens, num_accepted = accept_by_sampling(scores, drafts, draft_probabilities)
    rows = torch.arange(len(tokens))
    tokens[rows, num_accepted] = torch.multinomial(scores[rows, num_accepted].softmax(-1), 1)[:, 0]
    return tokens, num_accepted


@pytest.mark.parametrize("accept", [accept_by_p, replace_by_p])
@pytest.mark.parametrize("name", ["heads", "copies, ensemble"])
def test_wrong_acceptance_fails_the_check(accept, name, monkeypatch):
    monkeypatch.setattr(speculative_decoding, "accept_by_sampling", accept)
    assert max(p_values(name)[0]) < WRONG_P


def test_wrong_probabilities_of_drafts_fail_the_check(monkeypatch):
    monkeypatch.setattr(Drafter, "_proposal", lambda self, q, tokens, copies: torch.full((len(tokens), 3), 1 / 3))
    assert max(p_values("heads")[0]) < WRONG_P


def test_translation():
    sizes = {"vocab_size": VOCAB_SIZE, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "ngram_size": 4}
    model = tiny_seq2seq("marian", seed=3, init_std=0.4, **sizes)
    inputs = prompts()
    counts, statistics = sample(model, inputs, ensemble_lambda=0.4, draft_vocab_size=2)
    for i, count in enumerate(counts):
        one = {name: value[i : i + 1] for name, value in inputs.items()}
        assert p_value(count, exact_probabilities(model, [1], ensemble_lambda=0.4, **one)) > LEAST_P
    assert 0 < sum(statistics.num_accepted) < sum(statistics.num_drafted)


@pytest.mark.parametrize("name", ["temperature, top-k, copies, ensemble", "where drafts pay"])
def test_the_same_random_numbers_give_the_same_text(name):
    fields, options, _ = CASES[name]
    model = tiny_model(**{**SMALL, "vocab_size": 37}, **fields)
    options = {"do_sample": True, "use_mtp": True, "max_new_tokens": 20, "eos_token_id": None, **options}
    texts = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        texts.append(model.generate(random_ids(5, 6), **options))
    assert torch.equal(texts[0], texts[1]) and not torch.equal(texts[0], texts[2])


@pytest.mark.parametrize("target", ["wdr", "simple"])
def test_long_texts_with_a_learned_depth(target):
    """The depth of drafts and prompt lookup depend on the text so far, which must not change the distribution."""
    fields = {"vocab_size": 5, "n_positions": 1024, "initializer_range": 0.3, "ngram_target": target}
    model = tiny_model(**{**SMALL, **fields})
    with torch.no_grad():
        # It sees no more than the last token, so that one long text has many independent draws.
        model.transformer.wpe.weight.zero_()
        for parameter in model.transformer.h[0].attn.c_proj.parameters():
            parameter.zero_()
        table = model(torch.arange(5)[:, None]).logits[:, 0].softmax(-1)
    options = {"do_sample": True, "use_mtp": True, "max_new_tokens": 250, "eos_token_id": None, "draft_threshold": 0.2}
    output = model.generate(torch.full((8, 1), 2), return_dict_in_generate=True, **options)
    texts, counts = output.sequences, output.speculation
    pairs = (texts[:, :-1] * 5 + texts[:, 1:]).flatten().bincount(minlength=25)
    assert p_value(pairs.view(5, 5), table) > LEAST_P
    assert 0 < sum(counts.num_accepted) < sum(counts.num_drafted)
    # WDR heads learn this text so well that copying is not worth while.
    assert target == "wdr" or 0 < sum(counts.num_copied) < sum(counts.num_drafted)
