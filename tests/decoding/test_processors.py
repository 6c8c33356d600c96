"""Logits processors and stopping criteria see, draft by draft, what they see in plain decoding."""

import pytest
import torch
from transformers import LogitsProcessor, MaxLengthCriteria, StoppingCriteria
from transformers.generation import WatermarkingConfig

from ngram_wdr_hf import NgramEnsembleLogitsProcessor
from tests.support.options import DRAFTS, END, EVERYTHING, NO_END, PAD
from tests.support.side_by_side import assert_same_generation, generate, generate_both, were_drafts_right
from tests.support.tiny import model_of, prompts
from tests.support.tokenizers import letter_tokenizer


class NotTwiceInFour(LogitsProcessor):
    """No token comes again before four others have come."""

    def __call__(self, input_ids, scores):
        return scores.scatter(1, input_ids[:, -4:], -torch.inf)


class OtherTokensInEveryRow(LogitsProcessor):
    """Other tokens in every row and after every length, and an end that comes at its time."""

    def __call__(self, input_ids, scores):
        length, allowed = input_ids.shape[1], torch.full_like(scores, -torch.inf)
        for row in range(len(scores)):
            first = 2 + 5 * row + length % 3
            allowed[row, first : first + 12] = 0.0
            allowed[row, END] = 0.0 if length > 12 + row else -torch.inf
        return scores + allowed


class NothingAfter(LogitsProcessor):
    """Allows every token, but none after an end."""

    def __init__(self, ends: list[int]):
        self.ends = torch.tensor(ends)

    def __call__(self, input_ids, scores):
        return scores.masked_fill(torch.isin(input_ids[:, -1:], self.ends), -torch.inf)


ENDS = [22, 7, 26]
PROCESSORS = {
    "repetition penalty": {"repetition_penalty": 1.5},
    "no repeated bigrams": {"no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[22], [7, 7]]},
    "minimal length": {"min_length": 16, "eos_token_id": ENDS},
    "minimal new length": {"min_new_tokens": 9, "eos_token_id": ENDS},
    "forced end": {"forced_eos_token_id": END},
    "suppressed tokens": {"suppress_tokens": [7, 22], "begin_suppress_tokens": [26]},
    "sequence bias": {"sequence_bias": [[[9], 4.0], [[9, 9, 9], -40.0]]},
    "length decay": {"exponential_decay_length_penalty": (3, 1.5)},
    "renormalized": {"renormalize_logits": True, "repetition_penalty": 1.2},
    "watermark": {"watermarking_config": WatermarkingConfig(bias=3.0)},
    "own": {"logits_processor": [NotTwiceInFour()]},
    "rows": {"logits_processor": [OtherTokensInEveryRow()]},
}
ENCODER_PROCESSORS = {
    "encoder repetition penalty": {"encoder_repetition_penalty": 1.7},
    "nothing of the encoder's": {"encoder_no_repeat_ngram_size": 1},
    "forced beginning": {"forced_bos_token_id": 5},
    "rows": PROCESSORS["rows"],
}
CASES = [
    *(("gpt2", count, option) for count in (1, 4) for option in PROCESSORS),
    *((name, 4, option) for name in ("marian", "t5") for option in ENCODER_PROCESSORS),
]


@pytest.mark.parametrize(("name", "batch_size", "option"), CASES)
def test_processors(name, batch_size, option):
    model, inputs = model_of(name, ensemble_lambda=0.4 if batch_size == 1 else 0.0), prompts(batch_size, name)
    options = {"pad_token_id": PAD, **(PROCESSORS | ENCODER_PROCESSORS)[option]}
    ends = options.get("eos_token_id", [END])
    plain, speculative = generate_both(model, inputs, **options)
    assert_same_generation(plain, speculative, ends)
    assert sum(speculative.speculation.num_accepted) > 0
    # The option means something: without it, there are other scores.
    others = generate(model, inputs, eos_token_id=ends, pad_token_id=PAD, **EVERYTHING)
    pairs = zip(plain.scores, others.scores, strict=False)
    assert any(not torch.allclose(scores, other, atol=0.01) for scores, other in pairs)


def test_nothing_is_allowed_after_the_end():
    """An accepted draft may be the end of a row. What comes after it is not sampled in plain decoding either."""
    model, has_drafted_end = model_of("gpt2"), False
    options = {"eos_token_id": ENDS, "pad_token_id": PAD, "do_sample": True, "return_dict_in_generate": True}
    for seed in range(20):
        torch.manual_seed(seed)
        output = generate(model, prompts(1), logits_processor=[NothingAfter(ENDS)], **options, **DRAFTS)
        last = output.speculation.trace[0][-1]
        has_drafted_end |= last.token in ENDS and last.source != 0
    assert has_drafted_end


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_lambda_by_processor(name):
    model, inputs = model_of(name), prompts(4, name)
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


class EndsAtDoubt(StoppingCriteria):
    """A row ends with a token that was not much better than the next best."""

    def __call__(self, input_ids, scores, **kwargs):
        best = scores[-1].topk(2).values
        return best[:, 0] - best[:, 1] < 0.4


CRITERIA = {
    "length": [EndsAtLength(9, 17, 8, 26)],
    "doubt": [EndsAtDoubt()],
    "two": [EndsAtLength(9, 26, 26, 26), EndsAtDoubt()],
}


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("name", CRITERIA)
def test_criteria(name, batch_size):
    options = {"stopping_criteria": CRITERIA[name]}
    plain, speculative = generate_both(model_of("gpt2", seed=1), prompts(batch_size), **options)
    assert torch.equal(speculative.sequences, plain.sequences)
    assert speculative.speculation.num_tokens < 20 * batch_size
    for step, (actual, wanted) in enumerate(zip(speculative.scores, plain.scores, strict=True)):
        is_over = torch.tensor([step >= len(trace) for trace in speculative.speculation.trace])
        torch.testing.assert_close(actual, wanted.masked_fill(is_over[:, None], 0.0), rtol=0, atol=1e-4)


def test_finished_row_stays_finished():
    """Without an end token, too, where plain decoding continues a finished row until all are finished."""
    lengths = (9, 17, 8, 20)
    options = {"stopping_criteria": [EndsAtLength(*lengths)], **NO_END}
    plain, speculative = generate_both(model_of("gpt2", seed=1), prompts(4), **options)
    assert speculative.sequences.shape == plain.sequences.shape == (4, 20)
    for row, length in enumerate(lengths):
        assert torch.equal(speculative.sequences[row, :length], plain.sequences[row, :length])
        assert (speculative.sequences[row, length:] == PAD).all()
    assert speculative.speculation.num_tokens == sum(lengths) - 4 * 6


def test_time():
    """With no time, one token is generated; a long time limit changes nothing."""
    for seconds, length in ((0.0, 7), (600.0, 26)):
        plain, speculative = generate_both(model_of("gpt2"), prompts(3), max_time=seconds, **NO_END)
        assert speculative.sequences.shape == (3, length)
        assert_same_generation(plain, speculative)


@pytest.mark.parametrize("others", [[], [EndsAtLength(30, 30, 30)], [MaxLengthCriteria(12), MaxLengthCriteria(8)]])
@pytest.mark.parametrize("length", [3, 9, 40])
def test_custom_length_criterion(length, others):
    """The shortest `MaxLengthCriteria` overrides `max_new_tokens`; at least one token is generated."""
    criteria = [MaxLengthCriteria(length), *others]
    plain, speculative = generate_both(model_of("gpt2"), prompts(3), stopping_criteria=criteria, **NO_END)
    assert_same_generation(plain, speculative, ends=())


@pytest.mark.parametrize("batch_size", [1, 4])
def test_stop_strings(batch_size):
    tokenizer, model, inputs = letter_tokenizer(), model_of("gpt2"), prompts(batch_size)
    word = tokenizer.decode(generate(model, inputs, **NO_END)[0, 20:24])
    assert len(word) == 4
    options = {"stop_strings": [word, "HH"], "tokenizer": tokenizer}
    plain, speculative = generate_both(model, inputs, **options)
    assert torch.equal(speculative.sequences, plain.sequences)
    assert speculative.speculation.num_tokens < 20 * batch_size
    assert were_drafts_right(speculative)
    assert tokenizer.decode(speculative.sequences[0]).rstrip("<pad>").endswith(word)
