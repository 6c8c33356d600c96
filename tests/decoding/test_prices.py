"""The costs of drafting, against sums by hand and the measurements that the constants come from."""

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from ngram_wdr_hf import WDRNgramConfig, WDRNgramGPT2LMHeadModel, with_ngram_heads
from ngram_wdr_hf.decoding.drafter import Drafter
from ngram_wdr_hf.decoding.prices import ACCELERATOR_SPEED, CPU_SPEED, DraftPrices, ThresholdPrices
from tests.support.tiny import model_of, tiny_model, tiny_seq2seq

SMALL = {"vocab_size": 2048, "n_embd": 128, "n_layer": 4, "n_head": 4}
STORIES = {
    "vocab_size": 32000,
    "hidden_size": 288,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "tie_word_embeddings": True,
}
SMOL = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}


# Measured on two threads, float32: the time of a forward pass over 4, 5, 6, 7 and 9 tokens per row, relative to one.
MEASURED = {
    ("small", 1): (1.17, 1.16, 1.28, 1.26, 1.30),
    ("small", 8): (1.45, 1.66, 1.66, 1.76, 1.82),
    ("stories", 1): (1.05, 1.19, 1.25, 1.41, 2.16),
    ("stories", 8): (2.15, 2.35, 2.69, 2.76, 2.95),
    ("smol", 1): (1.08, 1.29, 1.51, 1.71, 2.12),
    ("smol", 8): (2.03, 2.33, 2.51, 2.81, 3.28),
}


def model_of_size(size):
    """A model without memory for its weights, as prices depend on their shapes only."""
    if size == "small":
        with torch.device("meta"):
            return WDRNgramGPT2LMHeadModel(WDRNgramConfig(**SMALL, ngram_size=4))
    tiny = LlamaConfig(vocab_size=8, hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=2)
    fields = {"ngram_size": 4, "ngram_target": "simple", "ngram_head_reads": "hidden+tokens"}
    with_heads = with_ngram_heads(LlamaForCausalLM(tiny), **fields)
    with torch.device("meta"):
        return type(with_heads)(type(with_heads.config)(**(STORIES if size == "stories" else SMOL), **fields))


def prices_of(model, num_heads=3, max_drafts=8, draft_vocab_size=None, **options):
    config = GenerationConfig(**{"do_sample": False, **options})
    prices = DraftPrices(model, config, num_heads, max_drafts, draft_vocab_size or model.ngram_vocab_size)
    prices.speed = CPU_SPEED
    return prices


@pytest.mark.parametrize(("size", "num_rows"), MEASURED)
def test_checks_cost_about_what_was_measured(size, num_rows):
    checks = prices_of(model_of_size(size)).of(num_rows, 0).checks
    for width, measured in zip((4, 5, 6, 7, 9), MEASURED[size, num_rows], strict=True):
        assert 1 + checks[width - 1] == pytest.approx(measured, rel=0.25)


def test_forward_pass_of_gpt2():
    """One vector of each embedding table is read; the output embedding is read completely, tied or not."""
    d, layers = 128, 4
    layer = 12 * d * d + 13 * d
    for is_tied in (True, False):
        model = tiny_model(**SMALL, ngram_size=4, tie_word_embeddings=is_tied)
        prices = prices_of(model, draft_vocab_size=512)
        assert prices.forward_bytes == 4 * (layers * layer + 2 * d + 2048 * d)
        assert prices.num_blocks == 8
        assert prices.head_bytes == [4 * (2 * d * d + 2 * d + 512 * d)] * 3


def test_decoder_of_an_encoder_decoder():
    """The encoder is not part of a step."""
    for name in ("marian", "bart", "t5"):
        model = tiny_seq2seq(name)
        decoder = sum(p.numel() for n, p in model.get_decoder().named_parameters() if "embed" not in n)
        output = model.get_output_embeddings().weight.numel()
        assert prices_of(model).forward_bytes == pytest.approx(4 * (decoder + output), rel=0.05)


def test_fewer_bytes_per_weight():
    full, half = (prices_of(tiny_model(dtype)) for dtype in (torch.float32, torch.bfloat16))
    assert full.forward_bytes == 2 * half.forward_bytes
    assert full.head_bytes == [2 * size for size in half.head_bytes]


def test_prices_follow_sizes():
    small, stories, smol = (prices_of(model_of_size(size)).of(1, 0) for size in ("small", "stories", "smol"))
    # A larger model pays less for its heads; one with a large vocabulary pays for that, unless there is a shortlist.
    assert smol.heads[0] < 0.25 < small.heads[0] < 0.3 and stories.heads[0] > 0.4
    short = prices_of(model_of_size("stories"), draft_vocab_size=3000).of(1, 0)
    assert short.heads[0] < 0.1 and short.checks == stories.checks
    # A head that reads more tokens is larger.
    assert short.heads == sorted(short.heads) and short.heads[0] < short.heads[2]
    # One token takes as long as two, but for the work around them.
    assert smol.checks[0] == 0 < smol.checks[1] < 0.02 < smol.checks[2] < smol.checks[3]
    assert short.all_heads == pytest.approx(sum(short.heads) + short.checks[3])


def test_batches_pay_more_for_checks():
    prices = prices_of(model_of_size("smol"))
    for depth in (3, 8):
        checks = [prices.of(num_rows, 0).checks[depth] for num_rows in (1, 4, 16, 64)]
        # The cheapest tokens are the first of a single row.
        assert checks[0] == min(checks) and max(checks) < depth
    # Rows are shifted in the cache, the more expensive the longer the text.
    alone, batch = prices.of(1, 0), prices.of(8, 0)
    prices.cache_bytes = 30 * 2 * 192 * 4
    prices.price_lists.clear()
    assert prices.of(8, 500).checks[1] > batch.checks[1]
    assert prices.of(1, 500).checks[3] < alone.checks[3]
    assert prices.of(8, 500) is prices.of(8, 501)
    assert prices.of(8, 500) != prices.of(8, 600)


def test_sampling_costs_more():
    for size in ("small", "stories"):
        model = model_of_size(size)
        greedy = prices_of(model).of(1, 0)
        sampling = prices_of(model, do_sample=True).of(1, 0)
        sorting = prices_of(model, do_sample=True, top_p=0.9).of(1, 0)
        for depth in range(3):
            assert greedy.heads[depth] < sampling.heads[depth] < sorting.heads[depth]
            assert greedy.checks[depth + 1] < sampling.checks[depth + 1] < sorting.checks[depth + 1]
        assert prices_of(model, top_p=0.9).of(1, 0) == greedy


def test_accelerators():
    """A pass over a few tokens costs hardly more than one; calls cost more than weights."""
    model = model_of_size("smol")
    assert DraftPrices(model, GenerationConfig(), 3, 8, 6000).speed is ACCELERATOR_SPEED
    prices = DraftPrices(model, GenerationConfig(), 3, 8, 6000).of(1, 0)
    assert prices.checks[8] < 0.05 and prices.heads[0] < 0.05


def test_given_prices():
    prices = ThresholdPrices(0.5, 2, 4).of(3, 100)
    assert prices.heads == [0.25, 0.25] and prices.checks == [0, 0.25, 0.5, 0.75, 1.0]
    assert prices.all_heads == 1.0


def test_prices_of_a_generation():
    model = model_of("gpt2")
    model.ngram_set_draft_tokens([3, 4, 5])
    prices = Drafter(model, GenerationConfig(num_assistant_tokens=2, prompt_lookup_num_tokens=5)).pace.prices
    assert len(prices.of(1, 0).heads) == 2 and len(prices.of(1, 0).checks) == 6
    fewer = Drafter(model, GenerationConfig(num_assistant_tokens=0)).pace.prices
    assert fewer.of(1, 0).heads == [] and fewer.of(1, 0).all_heads == 0
    config = GenerationConfig()
    config.draft_threshold = 0.5
    assert isinstance(Drafter(model, config).pace.prices, ThresholdPrices)
