"""Logits processors and stopping criteria see, draft by draft, what they see in plain decoding."""

import pytest
import torch
from transformers import LogitsProcessor, MaxLengthCriteria, MaxTimeCriteria, StoppingCriteria
from transformers.generation import WatermarkingConfig

from ngram_wdr_hf import NgramEnsembleLogitsProcessor
from tests.support.options import DRAFTS, END, EVERYTHING, NO_END, PAD
from tests.support.side_by_side import assert_same_generation, generate, generate_both, row_lengths, were_drafts_right
from tests.support.tiny import VOCAB_SIZE, model_of, prompts
from tests.support.tokenizers import letter_tokenizer


def allowed(row: int, ids: torch.Tensor) -> list[int]:
    """Other tokens in every row and after every length, and an end that comes at its time."""
    first = 2 + 5 * row + len(ids) % 3
    return [*range(first, first + 12), *([END] if len(ids) > 12 + row else [])]


class NotTwiceInFour(LogitsProcessor):
    """A processor of the user's own: no token comes again before four others have come."""

    def __call__(self, input_ids, scores):
        return scores.scatter(1, input_ids[:, -4:], -torch.inf)


PROCESSORS = {
    "repetition penalty": {"repetition_penalty": 1.5},
    "no repeated bigrams": {"no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[22], [7, 7]]},
    "minimal length": {"min_length": 16, "eos_token_id": [22, 7, 26]},
    "minimal new length": {"min_new_tokens": 9, "eos_token_id": [22, 7, 26]},
    "forced end": {"forced_eos_token_id": END},
    "suppressed tokens": {"suppress_tokens": [7, 22], "begin_suppress_tokens": [26]},
    "sequence bias": {"sequence_bias": [[[9], 4.0], [[9, 9, 9], -40.0]]},
    "length decay": {"exponential_decay_length_penalty": (3, 1.5)},
    "renormalized": {"renormalize_logits": True, "repetition_penalty": 1.2},
    "allowed tokens": {"prefix_allowed_tokens_fn": allowed},
    "watermark": {"watermarking_config": WatermarkingConfig(bias=3.0)},
    "own": {"logits_processor": [NotTwiceInFour()]},
}


@pytest.mark.parametrize(("batch_size", "ensemble_lambda"), [(1, 0.4), (4, 0.0)])
@pytest.mark.parametrize("name", PROCESSORS)
def test_processors(name, batch_size, ensemble_lambda):
    model, inputs = model_of("gpt2", ensemble_lambda=ensemble_lambda), prompts(batch_size)
    options = {"pad_token_id": PAD, **PROCESSORS[name]}
    ends = options.get("eos_token_id", [END])
    plain, speculative = generate_both(model, inputs, **options)
    assert_same_generation(plain, speculative, ends)
    assert sum(speculative.speculation.num_accepted) > 0
    # Without the scores, rows that have ended leave the batch.
    assert torch.equal(generate(model, inputs, **options, **DRAFTS), plain.sequences)
    # The option means something: without it, there are other scores.
    others = generate(model, inputs, eos_token_id=ends, pad_token_id=PAD, **EVERYTHING)
    pairs = zip(plain.scores, others.scores, strict=False)
    assert any(not torch.allclose(scores, other, atol=0.01) for scores, other in pairs)


def test_every_row_has_its_own_allowed_tokens():
    output = generate(model_of("gpt2"), prompts(4), prefix_allowed_tokens_fn=allowed, **EVERYTHING, **NO_END, **DRAFTS)
    assert were_drafts_right(output)
    for i, row in enumerate(output.sequences):
        assert all(row[t] in allowed(i, row[:t]) for t in range(6, len(row)))


def nothing_after(ends: list[int]):
    """Return a function that allows every token, but none after an end."""
    return lambda row, text: [] if int(text[-1]) in ends else list(range(VOCAB_SIZE))


def test_nothing_is_allowed_after_the_end():
    """An accepted draft may be the end of a row. What comes after it is not sampled in plain decoding either."""
    model, ends = model_of("gpt2"), [22, 7, 26]
    options = {"eos_token_id": ends, "pad_token_id": PAD, "do_sample": True, "return_dict_in_generate": True}
    has_drafted_end = False
    for seed in range(20):
        torch.manual_seed(seed)
        output = generate(model, prompts(1), prefix_allowed_tokens_fn=nothing_after(ends), **options, **DRAFTS)
        last = output.speculation.trace[0][-1]
        has_drafted_end |= last.token in ends and last.source != 0
    assert has_drafted_end


def test_sampling_where_nothing_is_allowed():
    """A dead end is an error, with drafts as without."""
    model, forbidden = model_of("gpt2"), list(range(0, VOCAB_SIZE, 2))
    options = {"max_new_tokens": 12, "do_sample": True, "eos_token_id": None, "pad_token_id": PAD}
    for drafts in ({}, DRAFTS):
        for seed in range(5):
            torch.manual_seed(seed)
            with pytest.raises(ValueError):
                generate(model, prompts(1), prefix_allowed_tokens_fn=nothing_after(forbidden), **options, **drafts)


def test_minimal_length_before_an_end_that_drafts_hold():
    """The end token is likely from the start; as a draft, it is rejected before the minimal length."""
    model, ends = model_of("gpt2"), [22, 7, 26]
    plain, speculative = generate_both(model, prompts(4), eos_token_id=ends, min_new_tokens=9, pad_token_id=PAD)
    assert_same_generation(plain, speculative, ends)
    lengths = row_lengths(plain, ends)
    assert min(lengths) == 10
    assert max(row_lengths(generate(model, prompts(4), eos_token_id=ends, **EVERYTHING), ends)) == 1


ENCODER_PROCESSORS = {
    "encoder repetition penalty": {"encoder_repetition_penalty": 1.7},
    "nothing of the encoder's": {"encoder_no_repeat_ngram_size": 1},
    "forced beginning": {"forced_bos_token_id": 5},
    "allowed tokens": {"prefix_allowed_tokens_fn": allowed},
}


@pytest.mark.parametrize("name", ["marian", "t5"])
@pytest.mark.parametrize("option", ENCODER_PROCESSORS)
def test_processors_of_encoder_decoder_models(name, option):
    model, inputs, options = model_of(name), prompts(4, name), ENCODER_PROCESSORS[option]
    plain, speculative = generate_both(model, inputs, **options)
    assert_same_generation(plain, speculative)
    assert were_drafts_right(speculative)
    assert torch.equal(generate(model, inputs, **options, **DRAFTS), plain.sequences)
    others = generate(model, inputs, **EVERYTHING)
    assert any(not torch.allclose(a, b, atol=0.01) for a, b in zip(plain.scores, others.scores, strict=False))


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_lambda_by_processor(name, batch_size):
    model, inputs = model_of(name), prompts(batch_size, name)
    plain, by_argument = generate_both(model, inputs, ensemble_lambda=0.4)
    processors = [NgramEnsembleLogitsProcessor(model, 0.4)]
    by_processor = generate(model, inputs, logits_processor=processors, **EVERYTHING, **DRAFTS)
    assert_same_generation(plain, by_processor)
    assert by_processor.speculation == by_argument.speculation


class EndsAtLength(StoppingCriteria):
    """Each row has a length of its own."""

    def __init__(self, *lengths: int):
        self.lengths = torch.tensor(lengths)

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids.shape[1] >= self.lengths[: len(input_ids)]


class EndsAtDouble(StoppingCriteria):
    """A row ends with the second of two tokens that are the same, but not with the third."""

    def __call__(self, input_ids, scores, **kwargs):
        return (input_ids[:, -1] == input_ids[:, -2]) & (input_ids[:, -2] != input_ids[:, -3])


class EndsAtDoubt(StoppingCriteria):
    """A row ends with a token that was not much better than the next best."""

    def __call__(self, input_ids, scores, **kwargs):
        best = scores[-1].topk(2).values
        return best[:, 0] - best[:, 1] < 0.4


CRITERIA = {
    "length": lambda: [EndsAtLength(9, 17, 8, 26)],
    "twins": lambda: [EndsAtDouble()],
    "doubt": lambda: [EndsAtDoubt()],
    "two": lambda: [EndsAtLength(9, 26, 26, 26), EndsAtDoubt()],
}


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("name", CRITERIA)
def test_criteria(name, batch_size):
    model, inputs = model_of("gpt2", seed=1), prompts(batch_size)
    plain, speculative = generate_both(model, inputs, stopping_criteria=CRITERIA[name]())
    assert torch.equal(speculative.sequences, plain.sequences)
    assert 0 < len(speculative.scores) == len(plain.scores)
    assert speculative.speculation.num_tokens < 20 * batch_size
    if name in ("length", "twins"):
        # Rows leave the batch, and there are no scores to look at.
        bare = generate(model, inputs, stopping_criteria=CRITERIA[name](), **DRAFTS)
        assert torch.equal(bare, plain.sequences)


def test_finished_row_stays_finished():
    """Without an end token, too, where plain decoding continues a finished row until all are finished."""
    model = model_of("gpt2", seed=1)
    lengths = (9, 17, 8, 20)
    options = {"stopping_criteria": [EndsAtLength(*lengths)], **NO_END}
    plain, speculative = generate_both(model, prompts(4), **options)
    assert speculative.sequences.shape == plain.sequences.shape == (4, 20)
    for row, length in enumerate(lengths):
        assert torch.equal(speculative.sequences[row, :length], plain.sequences[row, :length])
        assert (speculative.sequences[row, length:] == PAD).all()
    assert speculative.speculation.num_tokens == sum(lengths) - 4 * 6


@pytest.mark.parametrize("batch_size", [1, 3])
def test_time(batch_size):
    """With no time, one token is generated; a long time limit changes nothing."""
    model, inputs = model_of("gpt2"), prompts(batch_size)
    for options in ({"max_time": 0.0}, {"stopping_criteria": [MaxTimeCriteria(0.0)]}):
        plain, speculative = generate_both(model, inputs, **options)
        assert speculative.sequences.shape == (batch_size, 7)
        assert_same_generation(plain, speculative)
    assert_same_generation(*generate_both(model, inputs, stopping_criteria=[MaxTimeCriteria(600.0)]))


@pytest.mark.parametrize("others", [[], [EndsAtLength(30, 30, 30)]], ids=["alone", "with another"])
@pytest.mark.parametrize("length", [3, 6, 9, 40])
def test_custom_length_criterion(length, others):
    """`MaxLengthCriteria` overrides `max_new_tokens`. If it is shorter than the prompt, one token is generated."""
    criteria = [MaxLengthCriteria(length), *others]
    plain, speculative = generate_both(model_of("gpt2"), prompts(3), stopping_criteria=criteria, **NO_END)
    assert speculative.sequences.shape == plain.sequences.shape
    assert_same_generation(plain, speculative, ends=())


def test_several_length_criteria():
    """The shortest counts."""
    criteria = [MaxLengthCriteria(12), MaxLengthCriteria(9), MaxLengthCriteria(15)]
    plain, speculative = generate_both(model_of("gpt2"), prompts(3), stopping_criteria=criteria, **NO_END)
    assert speculative.sequences.shape == plain.sequences.shape == (3, 9)
    assert_same_generation(plain, speculative, ends=())


@pytest.mark.parametrize("batch_size", [1, 4])
def test_stop_strings(batch_size):
    tokenizer, model, inputs = letter_tokenizer(), model_of("gpt2"), prompts(batch_size)
    free = generate(model, inputs, **NO_END)
    word = tokenizer.decode(free[0, 20:24])
    assert len(word) == 4
    options = {"stop_strings": [word, "HH"], "tokenizer": tokenizer}
    plain, speculative = generate_both(model, inputs, **options)
    assert torch.equal(speculative.sequences, plain.sequences)
    assert speculative.speculation.num_tokens < 20 * batch_size
    assert were_drafts_right(speculative)
    assert tokenizer.decode(speculative.sequences[0]).rstrip("<pad>").endswith(word)
    assert torch.equal(generate(model, inputs, **options, **DRAFTS), plain.sequences)
