"""`generate` of encoder-decoder models with the ensemble, against recomputation from the first token on."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    CompileConfig,
    DynamicCache,
    EncoderDecoderCache,
    PreTrainedTokenizerFast,
    StaticCache,
    pipeline,
)
from transformers.modeling_outputs import BaseModelOutput

from ngram_wdr_hf import NgramEnsembleLogitsProcessor
from ngram_wdr_hf.decoding.history import NgramHistoryLayer

from tests.support import reference
from tests.support.tiny import SEQ2SEQ, VOCAB_SIZE, left_pad, plain_seq2seq, random_ids, tiny_seq2seq

START = 1
PAD = 1
NO_END = {"eos_token_id": None, "pad_token_id": PAD}
STEPS = 6


@pytest.fixture(params=SEQ2SEQ)
def name(request):
    return request.param


@pytest.fixture(params=["wdr", "simple"])
def target(request):
    return request.param


def generate(model, sources, seed=0, **kwargs):
    torch.manual_seed(seed)
    kwargs = {"max_new_tokens": STEPS, "do_sample": False, **kwargs}
    return model.generate(sources, return_dict_in_generate=True, output_scores=True, output_logits=True, **kwargs)


def assert_same_generation(actual, expected, tolerance=1e-5):
    assert torch.equal(actual.sequences, expected.sequences)
    for kind in ("scores", "logits"):
        for score, wanted in zip(actual[kind], expected[kind], strict=True):
            torch.testing.assert_close(score, wanted, rtol=0, atol=tolerance)


def differ(output, other) -> bool:
    """A different text, or other logits for the same one."""
    return not torch.equal(output.sequences, other.sequences) or not torch.allclose(
        torch.stack(output.logits), torch.stack(other.logits), atol=0.01
    )


def right_pad(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources of different lengths as one batch, and its attention mask."""
    ids, mask = left_pad([row.flip(0) for row in rows], PAD)
    return ids.flip(1), mask.flip(1)


def padded_sources() -> tuple[torch.Tensor, torch.Tensor]:
    return right_pad([random_ids(1, 6)[0], random_ids(1, 2, seed=1)[0]])


def prompt(batch_size: int, length: int, seed: int = 7) -> torch.Tensor:
    """A beginning of the decoder's text, without which `generate` would put the start token itself."""
    ids = random_ids(batch_size, length, seed=seed)
    ids[:, 0] = START
    return ids


def stock_twin(name, model):
    """The stock model with the same weights, all but the heads'."""
    plain = plain_seq2seq(name, model.dtype)
    missing, unexpected = plain.load_state_dict(model.state_dict(), strict=False)
    assert not missing and all(key.startswith("ngram_heads.") for key in unexpected)
    return plain


@contextmanager
def lengths_read(model):
    """How many tokens the decoder reads at each of its calls."""
    lengths = []
    handle = model.get_decoder().register_forward_hook(lambda _, args, output: lengths.append(output[0].shape[1]))
    try:
        yield lengths
    finally:
        handle.remove()


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@torch.no_grad()
def test_greedy_equals_slow_greedy(name, size, target):
    model = tiny_seq2seq(name, torch.float64, ngram_size=size, ngram_target=target)
    sources = random_ids(3, 5)
    output = generate(model, sources, ensemble_lambda=0.4, **NO_END)
    assert output.sequences.shape == (3, 1 + STEPS)
    logits = reference.ensembled_logits(model, output.sequences[:, :-1], 0.4, encoder_ids=sources)
    torch.testing.assert_close(torch.stack(output.logits, dim=1), logits.float())
    assert torch.equal(output.sequences[:, 1:], logits.argmax(-1))
    # The start token has no past; after it, every step has.
    without = reference.ensembled_logits(model, output.sequences[:, :-1], 0.0, encoder_ids=sources)
    torch.testing.assert_close(logits[:, 0], without[:, 0])
    assert ((logits - without)[:, 1:].abs().amax(-1) > 0.01).all()


@pytest.mark.parametrize("num_beams", [2, 3, 4])
@torch.no_grad()
def test_beam_search_equals_slow_beam_search(name, num_beams, target):
    model = tiny_seq2seq(name, torch.float64, ngram_target=target)
    sources = random_ids(2, 4, seed=5)
    options = {
        "num_beams": num_beams,
        "num_return_sequences": num_beams,
        "max_new_tokens": 6,
        "length_penalty": 0.0,
        **NO_END,
    }
    output = generate(model, sources, ensemble_lambda=0.4, **options)
    starts = torch.full((2, 1), START)
    slow = reference.beam_search(model, starts, 0.4, num_beams, max_new_tokens=6, encoder_ids=sources)
    slow = [beam for beams in slow for beam in beams]
    assert torch.equal(output.sequences, torch.stack([tokens for _, tokens in slow]))
    torch.testing.assert_close(output.sequences_scores, torch.tensor([score for score, _ in slow]))
    # The beams change places on the way, and the search without the ensemble finds something else.
    assert (output.beam_indices[:, 2:-1] != output.beam_indices[:, 1:-2]).any()
    plain = generate(model, sources, ensemble_lambda=0.0, **options)
    assert not torch.allclose(plain.sequences_scores, output.sequences_scores, atol=0.01)


STRATEGIES = {
    "greedy": {},
    "sampling": {"do_sample": True},
    "beam search": {"num_beams": 3},
    "beam sampling": {"num_beams": 3, "do_sample": True},
    "several sequences": {"do_sample": True, "num_return_sequences": 3},
    "several beams": {"num_beams": 4, "num_return_sequences": 2},
    "early stopping beams": {"num_beams": 3, "early_stopping": True, "length_penalty": 0.5},
}

FEATURES = {
    "temperature, top-k, top-p": {"do_sample": True, "temperature": 0.7, "top_k": 10, "top_p": 0.8},
    "repetition penalty": {"repetition_penalty": 1.5},
    "encoder repetition penalty": {"encoder_repetition_penalty": 1.5},
    "no repeated bigrams": {"no_repeat_ngram_size": 2, "encoder_no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[3], [4, 5]]},
    "minimal length": {"min_new_tokens": 5},
    "forced tokens": {"forced_bos_token_id": 5, "forced_eos_token_id": 0},
    "allowed tokens": {"prefix_allowed_tokens_fn": lambda _, ids: list(range(2, 20))},
    "renormalized": {"num_beams": 2, "renormalize_logits": True, "repetition_penalty": 1.2},
    "hidden states and attentions": {"output_hidden_states": True, "output_attentions": True},
    "a prompt": {"decoder_input_ids": prompt(2, 5)},
    "a prompt and beams": {"decoder_input_ids": prompt(2, 5), "num_beams": 3},
}


@pytest.mark.parametrize("option", [*STRATEGIES, *FEATURES])
def test_cached_equals_recomputed(name, option):
    """Without a cache, `generate` reads everything anew at every step."""
    options = {**STRATEGIES, **FEATURES}[option]
    model = tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    if "output_attentions" in options:
        model.set_attn_implementation("eager")
    ids, mask = padded_sources()
    options = {"attention_mask": mask, **options}
    first = options["decoder_input_ids"].shape[1] if "decoder_input_ids" in options else 1
    with lengths_read(model) as lengths:
        cached = generate(model, ids, **options)
    assert lengths == [first] + [1] * (len(cached.logits) - 1)
    assert isinstance(cached.past_key_values.self_attention_cache.layers[-1], NgramHistoryLayer)
    with lengths_read(model) as lengths:
        recomputed = generate(model, ids, use_cache=False, **options)
    assert lengths == [first + step for step in range(len(recomputed.logits))]
    assert recomputed.past_key_values is None
    assert_same_generation(cached, recomputed)
    assert differ(generate(model, ids, ensemble_lambda=0.0, **options), cached)


@pytest.mark.parametrize("option", [*STRATEGIES, "no repeated bigrams", "renormalized", "a prompt and beams"])
def test_configuration_argument_and_processor_are_one(name, option):
    options = {**STRATEGIES, **FEATURES}[option]
    model = tiny_seq2seq(name, torch.float64)
    ids, mask = padded_sources()
    options = {"attention_mask": mask, **options}
    plain = generate(model, ids, **options)
    by_argument = generate(model, ids, ensemble_lambda=0.4, **options)
    processor = NgramEnsembleLogitsProcessor(model, ensemble_lambda=0.4)
    by_processor = generate(model, ids, logits_processor=[processor], **options)
    model.config.ensemble_lambda = 0.4
    by_configuration = generate(model, ids, **options)
    assert_same_generation(by_processor, by_argument, 0.0)
    assert_same_generation(by_configuration, by_argument, 0.0)
    assert differ(plain, by_argument)


@pytest.mark.parametrize("option", [*STRATEGIES, *FEATURES])
def test_switched_off_equals_the_stock_model(name, option):
    options = {**STRATEGIES, **FEATURES}[option]
    model = tiny_seq2seq(name, torch.float64)
    plain = stock_twin(name, model)
    if "output_attentions" in options:
        model.set_attn_implementation("eager")
        plain.set_attn_implementation("eager")
    ids, mask = padded_sources()
    ours, stock = (generate(each, ids, attention_mask=mask, **options) for each in (model, plain))
    assert_same_generation(ours, stock, 1e-12)


@pytest.mark.parametrize("option", STRATEGIES)
def test_without_heads_it_is_the_stock_model(name, option):
    model = tiny_seq2seq(name, torch.float64, ngram_size=1, ensemble_lambda=0.4)
    ids, mask = padded_sources()
    options = {"attention_mask": mask, **STRATEGIES[option]}
    assert_same_generation(generate(model, ids, **options), generate(stock_twin(name, model), ids, **options), 1e-12)


@pytest.mark.parametrize("option", ["greedy", "beam search", "several beams", "early stopping beams"])
def test_batch_equals_rows_alone(name, option):
    options = {**STRATEGIES[option], **NO_END}
    model = tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    rows = [random_ids(1, length, seed=length)[0] for length in (6, 3, 1)]
    ids, mask = right_pad(rows)
    batch = generate(model, ids, attention_mask=mask, **options)
    for b, row in enumerate(rows):
        alone = generate(model, row[None], **options)
        count, num_beams = len(alone.sequences), len(alone.logits[0])
        assert torch.equal(batch.sequences[b * count : (b + 1) * count], alone.sequences)
        for logits, wanted in zip(batch.logits, alone.logits, strict=True):
            torch.testing.assert_close(logits[b * num_beams : (b + 1) * num_beams], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("option", ["greedy", "beam search"])
def test_rows_that_end_early(name, option):
    """A row that is done waits for the others as padding; the words of the others do not change."""
    model = tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    sources = random_ids(6, 5, seed=8)
    options = {"max_new_tokens": STEPS, "do_sample": False, **STRATEGIES[option], "pad_token_id": PAD}
    ends_differ = False
    for end in model.generate(sources, eos_token_id=None, **options)[:, 1:].unique().tolist():
        batch = model.generate(sources, eos_token_id=end, **options)
        lengths = []
        for row, source in zip(batch, sources, strict=True):
            alone = model.generate(source[None], eos_token_id=end, **options)[0]
            assert torch.equal(row[: len(alone)], alone)
            assert (row[len(alone) :] == PAD).all()
            lengths.append(len(alone))
        ends_differ |= min(lengths) < max(lengths)
    assert ends_differ


@pytest.mark.parametrize("option", ["greedy", "sampling", "beam search"])
@pytest.mark.parametrize("cache", ["static", "chunked", "chunked static", "compiled static"])
def test_caches(name, cache, option):
    model = tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    ids, mask = padded_sources()
    if "chunked" in cache:
        # Transformers' chunks take the source's mask for the prompt's.
        ids, mask = random_ids(2, 6), None
    options = {"attention_mask": mask, "decoder_input_ids": prompt(2, 7), **STRATEGIES[option], **NO_END}
    expected = generate(model, ids, use_cache=False, **options)
    if "chunked" in cache:
        options["prefill_chunk_size"] = 3
    if "static" in cache:
        options["cache_implementation"] = "static"
    if "compiled" in cache:
        options["compile_config"] = CompileConfig(backend="eager", mode=None, fullgraph=True)
        options["compile_config"]._compile_all_devices = True
    if "compiled" in cache:
        actual = generate(model, ids, **options)
    else:
        with lengths_read(model) as lengths:
            actual = generate(model, ids, **options)
        assert lengths[:3] == ([3, 3, 1] if "chunked" in cache else [7, 1, 1])
    kind = StaticCache if "static" in cache else DynamicCache
    assert isinstance(actual.past_key_values.self_attention_cache, kind)
    assert_same_generation(actual, expected)


def empty_cache(model, kind: str = "dynamic", source_length: int = 5) -> EncoderDecoderCache:
    if kind == "dynamic":
        return EncoderDecoderCache(DynamicCache(), DynamicCache())
    if kind == "dynamic with config":
        return EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))
    lengths = (20, source_length)
    return EncoderDecoderCache(*(StaticCache(config=model.config, max_cache_len=length) for length in lengths))


def cached_logits(model, ids, encoded, chunks, cache, mask=None, source_mask=None, **kwargs):
    """Logits of every position of the decoder's text, read through a cache in chunks of the given lengths."""
    logits, start = [], 0
    for length in chunks:
        end = start + length
        output = model(
            encoder_outputs=encoded,
            attention_mask=source_mask,
            decoder_input_ids=ids[:, start:end],
            decoder_attention_mask=None if mask is None else mask[:, :end],
            past_key_values=cache,
            use_cache=True,
            **kwargs,
        )
        cache = output.past_key_values
        logits.append(output.logits)
        start = end
    assert start == ids.shape[1]
    return torch.cat(logits, dim=1)


def encode(model, sources, mask=None) -> BaseModelOutput:
    return model.get_encoder()(sources, attention_mask=mask)


CHUNKS = [[1] * 12, [5, 1, 1, 5], [11, 1]]


@pytest.mark.parametrize("kind", ["none", "dynamic", "dynamic with config", "static"])
@torch.no_grad()
def test_prompt_in_chunks_by_hand(name, kind, target):
    model = tiny_seq2seq(name, torch.float64, ngram_target=target, ensemble_lambda=0.4)
    ids = prompt(2, 12)
    sources, source_mask = right_pad([random_ids(1, 5)[0], random_ids(1, 2, seed=1)[0]])
    expected = reference.ensembled_logits(model, ids, 0.4, encoder_ids=sources, encoder_mask=source_mask)
    whole = model(sources, attention_mask=source_mask, decoder_input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(whole, expected)
    encoded = encode(model, sources, source_mask)
    for chunks in CHUNKS:
        # Without a cache to begin with, the backbone makes one and returns it.
        cache = None if kind == "none" else empty_cache(model, kind)
        actual = cached_logits(model, ids, encoded, chunks, cache, source_mask=source_mask)
        torch.testing.assert_close(actual, expected)


@torch.no_grad()
def test_generation_after_a_prompt_equals_slow_generation(name, target):
    model = tiny_seq2seq(name, torch.float64, ngram_target=target, ensemble_lambda=0.4)
    sources, ids = random_ids(2, 6), prompt(2, 5)
    output = generate(model, sources, decoder_input_ids=ids, **NO_END)
    assert torch.equal(output.sequences[:, :5], ids)
    logits = reference.ensembled_logits(model, output.sequences[:, :-1], 0.4, encoder_ids=sources)[:, 4:]
    torch.testing.assert_close(torch.stack(output.logits, dim=1), logits.float())
    assert torch.equal(output.sequences[:, 5:], logits.argmax(-1))


@torch.no_grad()
def test_left_padded_prompts(name, target):
    """Padding before a prompt is no past. Marian and BART count positions through it, as the stock models do."""
    model = tiny_seq2seq(name, torch.float64, ngram_target=target, ensemble_lambda=0.4)
    rows = [prompt(1, length, seed=length)[0] for length in (12, 7, 4, 1)]
    ids, mask = left_pad(rows, PAD)
    sources = random_ids(4, 6)
    batch = model(sources, decoder_input_ids=ids, decoder_attention_mask=mask, use_cache=False).logits
    encoded = encode(model, sources)
    by_chunk = [cached_logits(model, ids, encoded, chunks, empty_cache(model), mask) for chunks in CHUNKS]
    expected = reference.ensembled_logits(model, ids, 0.4, attention_mask=mask, encoder_ids=sources)
    for b, row in enumerate(rows):
        for actual in [batch, *by_chunk]:
            torch.testing.assert_close(actual[b, -len(row) :], expected[b, -len(row) :])
        if name == "t5":
            alone = model(sources[b : b + 1], decoder_input_ids=row[None]).logits[0]
            torch.testing.assert_close(batch[b, -len(row) :], alone)


@pytest.mark.parametrize("option", ["greedy", "beam search"])
@torch.no_grad()
def test_generation_after_left_padded_prompts(name, option):
    model = tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    rows = [prompt(1, length, seed=length)[0] for length in (5, 2)]
    ids, mask = left_pad(rows, PAD)
    sources = random_ids(2, 6)
    options = {**STRATEGIES[option], **NO_END, "decoder_input_ids": ids, "decoder_attention_mask": mask}
    cached = generate(model, sources, **options)
    assert_same_generation(cached, generate(model, sources, use_cache=False, **options))
    if option == "greedy":
        whole = torch.cat([mask, mask.new_ones(2, STEPS - 1)], dim=1)
        logits = reference.ensembled_logits(
            model, cached.sequences[:, :-1], 0.4, attention_mask=whole, encoder_ids=sources
        )
        torch.testing.assert_close(torch.stack(cached.logits, dim=1), logits[:, 4:].float())
    if name == "t5":
        for b, row in enumerate(rows):
            alone = generate(
                model, sources[b : b + 1], decoder_input_ids=row[None], **STRATEGIES[option], **NO_END
            ).sequences
            assert torch.equal(cached.sequences[b, 5:], alone[0, len(row) :])


def continue_from(model, sources, ids, cache, **options):
    """As with a decoder-only model, it is a mask as long as the text that tells `generate` what is in the cache."""
    return generate(
        model,
        sources,
        decoder_input_ids=ids,
        decoder_attention_mask=torch.ones_like(ids),
        past_key_values=cache,
        **options,
    )


def test_continued_from_a_returned_cache(name):
    model = tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    sources = random_ids(2, 6)
    output = generate(model, sources, max_new_tokens=4, **NO_END)
    options = {**NO_END, "max_new_tokens": 5}
    # Right after the text, then after words from elsewhere.
    for added in (0, 3):
        ids = torch.cat([output.sequences, random_ids(2, added, seed=9)], dim=1)
        anew = generate(model, sources, decoder_input_ids=ids, **options)
        with lengths_read(model) as lengths:
            output = continue_from(model, sources, ids, output.past_key_values, **options)
        assert lengths == [1 + added, 1, 1, 1, 1]
        assert_same_generation(output, anew)


def test_generation_from_a_cache_filled_by_hand(name):
    model = tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    sources, ids, cache = random_ids(1, 6), prompt(1, 9), empty_cache(model)
    with torch.no_grad():
        cached_logits(model, ids[:, :6], encode(model, sources), [4, 2], cache)
    output = continue_from(model, sources, ids, cache)
    assert_same_generation(output, generate(model, sources, decoder_input_ids=ids))


@torch.no_grad()
def test_cache_verbs(name, target):
    """Whatever happens to the cache happens to the past predictions."""
    model = tiny_seq2seq(name, torch.float64, ngram_target=target, ensemble_lambda=0.4)
    sources, ids, more = random_ids(3, 5, seed=2), prompt(3, 8), random_ids(3, 3, seed=5)

    def fresh(kind="dynamic"):
        cache = empty_cache(model, kind)
        cached_logits(model, ids, encode(model, sources), [8], cache)
        return cache

    def check(cache, before, after, rows):
        """`before` is in the cache, `after` is read now; both follow the sources of `rows`."""
        read = sources[rows]
        actual = cached_logits(model, after, encode(model, read), [1] * after.shape[1], cache)
        whole = torch.cat([before, after], 1)
        expected = model(read, decoder_input_ids=whole, use_cache=False).logits[:, before.shape[1] :]
        torch.testing.assert_close(actual, expected)

    everything = torch.arange(3)
    for removed in (3, 7):
        cache = fresh()
        cache.crop(-removed)
        check(cache, ids[:, : 8 - removed], more, everything)
    order = torch.tensor([2, 0, 0])
    for kind in ("dynamic", "static"):
        cache = fresh(kind)
        cache.reorder_cache(order)
        check(cache, ids[order], more, order)
    cache = fresh()
    selected = torch.tensor([2, 1])
    cache.batch_select_indices(selected)
    check(cache, ids[selected], more[:2], selected)
    cache = fresh()
    cache.batch_repeat_interleave(2)
    twice = everything.repeat_interleave(2)
    check(cache, ids[twice], more.repeat(2, 1), twice)
    for kind in ("dynamic", "static"):
        cache = fresh(kind)
        cache.reset()
        check(cache, ids[:, :0], more, everything)


@torch.no_grad()
def test_lambda_can_change_on_the_way(name):
    """A step without the ensemble is a gap in what the heads remember, and they do not look across it."""
    model = tiny_seq2seq(name, torch.float64)
    sources, ids, cache = random_ids(2, 5), prompt(2, 9), empty_cache(model)
    encoded = encode(model, sources)
    cached_logits(model, ids[:, :4], encoded, [4], cache, ensemble_lambda=0.2)
    actual = cached_logits(model, ids[:, 4:6], encoded, [2], cache, ensemble_lambda=0.7)
    torch.testing.assert_close(actual, reference.ensembled_logits(model, ids[:, :6], 0.7, encoder_ids=sources)[:, 4:])
    cached_logits(model, ids[:, 6:7], encoded, [1], cache, ensemble_lambda=0.0)
    actual = cached_logits(model, ids[:, 7:], encoded, [1, 1], cache, ensemble_lambda=0.7)
    expected = reference.ensembled_logits(model, ids, 0.7, first_known=7, encoder_ids=sources)
    torch.testing.assert_close(actual, expected[:, 7:])


@torch.no_grad()
def test_processor_called_by_hand(name):
    model = tiny_seq2seq(name, torch.float64)
    sources, mask = padded_sources()
    encoder_inputs = {"input_ids": sources, "attention_mask": mask}
    processor = NgramEnsembleLogitsProcessor(model, 0.4, encoder_inputs=encoder_inputs)
    # A row for each source, then three beams for each.
    for rows in (torch.arange(2), torch.arange(2).repeat_interleave(3)):
        ids = prompt(len(rows), 7)
        read = {key: value[rows] for key, value in encoder_inputs.items()}
        logits = model(**read, decoder_input_ids=ids).logits[:, -1]
        refined = model(**read, decoder_input_ids=ids, ensemble_lambda=0.4).logits[:, -1]
        assert not torch.allclose(logits, refined, atol=0.01)
        torch.testing.assert_close(processor(ids, logits), refined)
        torch.testing.assert_close(processor(ids, logits.log_softmax(-1)), refined.log_softmax(-1))
        forbidden = logits.clone()
        forbidden[:, 3] = -torch.inf
        assert (processor(ids, forbidden)[:, 3] == -torch.inf).all()


def test_processor_called_by_hand_needs_to_know_the_source(name):
    model = tiny_seq2seq(name)
    processor = NgramEnsembleLogitsProcessor(model, 0.4)
    with pytest.raises(ValueError, match="of an encoder-decoder model needs `encoder_inputs`"):
        processor(prompt(1, 4), torch.zeros(1, VOCAB_SIZE))
    # `generate` needs no such help.
    output = generate(model, random_ids(1, 4), logits_processor=[processor], max_new_tokens=3)
    assert_same_generation(output, generate(model, random_ids(1, 4), ensemble_lambda=0.4, max_new_tokens=3), 0.0)


@pytest.mark.parametrize("drafts", ["stock model", "model with heads", "prompt"])
def test_assisted_generation(name, drafts, monkeypatch):
    """Drafts are rejected and the cache cropped on the way; the text is the ensemble's all the same."""
    cropped, crop = [], EncoderDecoderCache.crop

    def spy(cache, tokens_to_remove):
        cropped.append(tokens_to_remove)
        crop(cache, tokens_to_remove)

    monkeypatch.setattr(EncoderDecoderCache, "crop", spy)
    model = tiny_seq2seq(name, torch.float64)
    sources, ids = random_ids(1, 6), prompt(1, 4).repeat(1, 3)
    options = {"max_new_tokens": 10, "decoder_input_ids": ids, **NO_END}
    expected = generate(model, sources, ensemble_lambda=0.4, use_cache=False, **options)
    assert differ(generate(model, sources, **options), expected)
    if drafts == "prompt":
        options["prompt_lookup_num_tokens"] = 3
    else:
        make = plain_seq2seq if drafts == "stock model" else tiny_seq2seq
        options["assistant_model"] = make(name, torch.float64, seed=3)
    by_argument = generate(model, sources, ensemble_lambda=0.4, **options)
    assert any(count < 0 for count in cropped)
    assert_same_generation(by_argument, expected)
    processor = NgramEnsembleLogitsProcessor(model, 0.4)
    assert_same_generation(generate(model, sources, logits_processor=[processor], **options), expected)
    model.config.ensemble_lambda = 0.4
    assert_same_generation(generate(model, sources, **options), expected)


def test_assistant_with_heads_for_a_stock_model(name):
    plain, assistant = plain_seq2seq(name, torch.float64), tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    sources = random_ids(1, 6)
    options = {"max_new_tokens": 12, **NO_END}
    assert_same_generation(
        generate(plain, sources, assistant_model=assistant, **options), generate(plain, sources, **options)
    )


@pytest.mark.parametrize("option", ["greedy", "beam search"])
def test_the_encoder_never_hears_of_lambda(name, option):
    model = tiny_seq2seq(name)
    sources, ids = random_ids(2, 5), prompt(2, 4)
    heard = []
    model.get_encoder().register_forward_pre_hook(lambda _, args, kwargs: heard.append(kwargs), with_kwargs=True)
    model.generate(sources, ensemble_lambda=0.4, max_new_tokens=4, **STRATEGIES[option])
    processor = NgramEnsembleLogitsProcessor(model, 0.4)
    model.generate(sources, logits_processor=[processor], max_new_tokens=4, **STRATEGIES[option])
    # Once for each generation.
    assert len(heard) == 2
    model(sources, decoder_input_ids=ids, ensemble_lambda=0.4)
    assert len(heard) == 3
    assert all("input_ids" in kwargs and "ensemble_lambda" not in kwargs for kwargs in heard)


def test_encoder_outputs_and_embeddings_instead_of_a_source(name):
    model = tiny_seq2seq(name, torch.float64)
    sources, mask = padded_sources()
    options = {"attention_mask": mask, "ensemble_lambda": 0.4, "num_beams": 3}
    expected = generate(model, sources, **options)
    with torch.no_grad():
        encoded = encode(model, sources, mask)
    assert_same_generation(generate(model, None, encoder_outputs=encoded, **options), expected)
    embeddings = model.get_encoder().get_input_embeddings()(sources)
    assert_same_generation(generate(model, None, inputs_embeds=embeddings, **options), expected)


def test_settings_of_a_saved_model(name, tmp_path):
    model = tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    sources = random_ids(2, 6, seed=2)
    expected = generate(model, sources, num_beams=3, max_new_tokens=6)
    model.generation_config.num_beams = 3
    model.generation_config.max_new_tokens = 6
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert type(loaded) is type(model)
    output = loaded.generate(sources, return_dict_in_generate=True, output_scores=True, output_logits=True)
    assert_same_generation(output, expected)
    assert torch.equal(output.beam_indices, expected.beam_indices)
    assert differ(generate(model, sources, num_beams=1, max_new_tokens=6), expected)


@pytest.mark.parametrize("option", ["greedy", "beam search", "sampling"])
def test_more_heads_than_words(name, option, target):
    model = tiny_seq2seq(name, torch.float64, ngram_size=12, ngram_target=target)
    sources = random_ids(2, 5)
    options = {**STRATEGIES[option], **NO_END, "max_new_tokens": 4}
    cached = generate(model, sources, ensemble_lambda=0.4, **options)
    static = generate(model, sources, ensemble_lambda=0.4, cache_implementation="static", **options)
    for other in (generate(model, sources, ensemble_lambda=0.4, use_cache=False, **options), static):
        assert_same_generation(cached, other)
    assert differ(generate(model, sources, **options), cached)
    if option == "greedy":
        with torch.no_grad():
            logits = reference.ensembled_logits(model, cached.sequences[:, :-1], 0.4, encoder_ids=sources)
        torch.testing.assert_close(torch.stack(cached.logits, dim=1), logits.float())


def test_transition_scores_add_up(name):
    model = tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    output = generate(model, random_ids(2, 5), num_beams=3, length_penalty=0.0, **NO_END)
    scores = model.compute_transition_scores(output.sequences, output.scores, output.beam_indices)
    torch.testing.assert_close(scores.sum(1), output.sequences_scores)


def test_logit_layer_runs_once_for_each_new_token(name):
    model = tiny_seq2seq(name, ensemble_lambda=0.4)
    rows = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: rows.append(output.shape[:2]))
    model.generate(random_ids(3, 7), max_new_tokens=5, do_sample=False, **NO_END)
    assert rows == [(3, 1)] * 5


def test_threads_get_what_each_gets_alone(name):
    model = tiny_seq2seq(name)
    jobs = [(random_ids(2, 5, seed=i), 0.1 * i, 1 + 2 * (i % 2)) for i in range(6)]

    def run(job):
        sources, ensemble_lambda, num_beams = job
        processor = NgramEnsembleLogitsProcessor(model, ensemble_lambda)
        return model.generate(
            sources, logits_processor=[processor], max_new_tokens=10, num_beams=num_beams, do_sample=False
        )

    alone = [run(job) for job in jobs]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(run, jobs))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.fixture
def tokenizer():
    """A word a token."""
    words = ["<eos>", "<pad>", *(f"w{i}" for i in range(2, VOCAB_SIZE))]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="w2"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>")


TEXTS = ["w19 w30 w9", "w9 w26", "w5 w35 w8 w9"]


def test_pipeline(name, tokenizer, tmp_path):
    """
    Of the pipelines, "text-generation" takes an encoder-decoder model, stock or ours, as an object. It leaves out as
    many tokens of the decoder's text as the source has; the whole is in `generated_token_ids`.
    """
    model = tiny_seq2seq(name, torch.float64)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float64)
    generator = pipeline("text-generation", model=loaded, tokenizer=AutoTokenizer.from_pretrained(tmp_path))
    stock = pipeline("text-generation", model=stock_twin(name, model), tokenizer=tokenizer)
    options = {"max_new_tokens": STEPS, "do_sample": False}
    assert generator(TEXTS, **options) == stock(TEXTS, **options)
    assert generator(TEXTS, **options, num_beams=3, batch_size=3) == stock(TEXTS, **options, num_beams=3, batch_size=3)
    for beams in ({}, {"num_beams": 3}):
        plain = generator(TEXTS, **options, **beams, return_tensors=True)
        refined = generator(TEXTS, **options, **beams, return_tensors=True, ensemble_lambda=0.4)
        cut = generator(TEXTS, **options, **beams, return_full_text=False, ensemble_lambda=0.4)
        for i, text in enumerate(TEXTS):
            sources = tokenizer(text, return_tensors="pt").input_ids
            expected = [model.generate(sources, ensemble_lambda=value, **options, **beams)[0] for value in (0.0, 0.4)]
            assert plain[i][0]["generated_token_ids"] == expected[0].tolist()
            assert refined[i][0]["generated_token_ids"] == expected[1].tolist()
            words = tokenizer.decode(expected[1][sources.shape[1] :], skip_special_tokens=True)
            assert cut[i][0]["generated_text"] == words
        # Beam search finds T5 the same words either way.
        assert beams or plain != refined
