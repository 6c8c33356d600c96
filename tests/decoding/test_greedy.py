"""`generate(use_mtp=True)`, greedy: token for token the text of plain decoding, whatever was drafted on the way."""

from collections import Counter

import pytest
import torch

from ngram_wdr_hf.decoding.statistics import SpeculationStatistics
from tests.support.options import DRAFTING, DRAFTS, END, NO_END, PAD
from tests.support.side_by_side import generate
from tests.support.tiny import VOCAB_SIZE, left_pad
from tests.support.trained import POSITIONS, Language, pad, trained_model, trained_seq2seq

START, LONGEST_PROMPT = 1, 12
# Trained models: the kind, N for GPT-2, and the target of the heads.
KINDS = [("gpt2", 5, "wdr"), ("marian", None, "wdr"), ("bart", None, "wdr"), ("t5", None, "wdr")]
SHARED = ("gpt2", 4, "simple", "previous+token")
CASES = [SHARED, ("gpt2", 2, "simple"), ("gpt2", 3, "simple"), ("marian", None, "simple"), ("t5", None, "simple")]
BATCH_SIZES = (2, 16, 1, 13, 1, 16)


def trained(kind: tuple[str, int | None, str]):
    name, size, target, *reads = kind
    return trained_model(size, target, *reads) if name == "gpt2" else trained_seq2seq(name, target)


def batch(kind: tuple[str, int | None, str], count: int, seed: int) -> dict[str, torch.Tensor]:
    """Return texts of different lengths: prompts, or sources of a translation."""
    language = Language(seed)
    if kind[0] == "gpt2":
        ids, mask = left_pad([language.prompt(LONGEST_PROMPT) for _ in range(count)])
    else:
        ids = pad([language.pair()[0] for _ in range(count)], PAD)
        mask = (ids != PAD).long()
    return {"input_ids": ids, "attention_mask": mask}


def assert_same_text(model, inputs: dict[str, torch.Tensor], *ways: str, **options) -> list:
    """Draft in the given ways of `DRAFTING`, check the texts against plain decoding, and return all outputs."""
    options = {"max_new_tokens": 16, **options}
    expected = generate(model, inputs, **options)
    options |= {"use_mtp": True, "return_dict_in_generate": True}
    outputs = [generate(model, inputs, **options, **DRAFTING[way]) for way in ways or ["always"]]
    for output, way in zip(outputs, ways or ["always"], strict=True):
        assert torch.equal(output.sequences, expected), way
    return outputs


@pytest.mark.parametrize("kind", [*KINDS, *CASES])
def test_same_text_as_plain_decoding(kind, ensemble_lambda):
    model, counts = trained(kind), {way: SpeculationStatistics() for way in DRAFTING}
    num_unevenly_ended = num_cut = 0
    for i, batch_size in enumerate(BATCH_SIZES):
        inputs = batch(kind, batch_size, seed=1000 * (kind[1] or 6) + 100 * int(10 * ensemble_lambda) + i)
        ways = list(DRAFTING)[2:] if i // 2 % 2 == 0 else list(DRAFTING)[:2]
        outputs = assert_same_text(model, inputs, *ways, ensemble_lambda=ensemble_lambda)
        new = outputs[0].sequences[:, inputs["input_ids"].shape[1] if kind[0] == "gpt2" else 1 :]
        lengths, has_ended = (new != PAD).sum(1), (new == END).any(1)
        for way, output in zip(ways, outputs, strict=True):
            assert output.speculation.num_tokens == lengths.sum()
            counts[way] += output.speculation
        num_unevenly_ended += len(lengths[has_ended].unique()) > 1
        num_cut += int((~has_ended).sum())
    # All cases have come.
    assert num_unevenly_ended > 1 and num_cut > 2
    assert sum(counts["heads only, as it pays"].num_drafted) > 0
    for way in ("always", "heads only, always"):
        assert 0 < counts[way].draft_acceptance_rate < 1, way
        assert (sum(counts[way].num_copied) > 0) == (way == "always")
        assert kind[0] != "gpt2" or counts[way].mean_acceptance_length > 1.1, way


@pytest.mark.parametrize("kind", KINDS)
def test_batch_equals_rows_alone(kind, ensemble_lambda):
    model, inputs = trained(kind), batch(kind, 10, seed=11)
    options = {"max_new_tokens": 16, "ensemble_lambda": ensemble_lambda, **DRAFTS}
    sequences = generate(model, inputs, **options)
    lengths = set()
    for text, ids, mask in zip(sequences, inputs["input_ids"], inputs["attention_mask"], strict=True):
        alone = generate(model, {"input_ids": ids[mask.bool()][None]}, **options)[0]
        if kind[0] == "gpt2":
            text, alone = text[len(ids) :], alone[mask.sum() :]
        assert torch.equal(text[: len(alone)], alone)
        assert (text[len(alone) :] == PAD).all()
        lengths.add(len(alone))
    assert len(lengths) > 1


@pytest.mark.parametrize("max_new_tokens", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_no_room_for_all_heads(kind, max_new_tokens, ensemble_lambda):
    model, inputs = trained(kind), batch(kind, 8, seed=21)
    options = {"ensemble_lambda": ensemble_lambda, "max_new_tokens": max_new_tokens}
    outputs = assert_same_text(model, inputs, *DRAFTING, **options)
    prompt_length = inputs["input_ids"].shape[1] if kind[0] == "gpt2" else 1
    # Two tokens come from the forward passes themselves, the prompt's and that which checks the drafts.
    depth = max(max_new_tokens - 2, 0)
    for way, output in zip(DRAFTING, outputs, strict=True):
        assert output.sequences.shape[1] == prompt_length + max_new_tokens
        assert len(output.speculation.num_drafted) <= depth
        assert "always" not in way or len(output.speculation.num_drafted) == depth


@pytest.mark.parametrize("kind", KINDS[:3])
def test_up_to_the_last_position(kind, ensemble_lambda):
    """The last token is not read, so that a text can have one token more than there are positions."""
    model, options = trained(kind), {"max_new_tokens": None, "ensemble_lambda": ensemble_lambda}
    inputs, row = batch(kind, 8, seed=9), batch(kind, 1, seed=10)
    texts = generate(model, inputs, **options, max_length=POSITIONS, **NO_END)
    # A token that about half of the rows have is an end that the others never come to.
    end = min(range(2, VOCAB_SIZE), key=lambda token: abs(int((texts == token).any(1).sum()) - 4))
    some_end = {**NO_END, "eos_token_id": end}
    for one, more, ends in ((inputs, 0, some_end), (inputs, 1, NO_END), (row, 1, NO_END)):
        (output,) = assert_same_text(model, one, max_length=POSITIONS + more, **options, **ends)
        assert output.sequences.shape[1] == POSITIONS + more
        assert bool((output.sequences[:, -1] == PAD).any()) == (ends is some_end)
        assert output.speculation.mean_acceptance_length > 1


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_of_one_token_and_of_a_decoder(kind, ensemble_lambda):
    model, language, num_accepted = trained(kind), Language(2), 0
    texts = torch.stack([language.text(12) for _ in range(8)])
    texts[texts == END] = 5
    # The same beginning for different sources, then a different one for each.
    for i, ids in enumerate((texts[:1, :3].repeat(8, 1), texts[:, :1], texts[:, :9], texts[:1, :1])):
        inputs = {"input_ids": ids}
        if kind[0] != "gpt2":
            prompt = torch.nn.functional.pad(ids, (1, 0), value=START)
            inputs = {**batch(kind, len(ids), seed=20 + i), "decoder_input_ids": prompt}
        (output,) = assert_same_text(model, inputs, ensemble_lambda=ensemble_lambda)
        num_accepted += sum(output.speculation.num_accepted)
    assert num_accepted > 0


@pytest.mark.parametrize("kind", KINDS[1:])
def test_padded_prompts_of_a_decoder(kind, ensemble_lambda):
    model, language = trained(kind), Language(3)
    ids, mask = left_pad([torch.cat([torch.tensor([START]), language.prompt(8)]) for _ in range(8)])
    assert len(mask.sum(1).unique()) > 3
    inputs = {**batch(kind, 8, seed=5), "decoder_input_ids": ids, "decoder_attention_mask": mask}
    (output,) = assert_same_text(model, inputs, ensemble_lambda=ensemble_lambda)
    # The mask matters.
    del inputs["decoder_attention_mask"]
    unmasked = generate(model, inputs, max_new_tokens=16, ensemble_lambda=ensemble_lambda)
    assert not torch.equal(unmasked, output.sequences)


@pytest.mark.parametrize("num_assistant_tokens", [0, 1, 3, 9])
def test_fewer_heads(num_assistant_tokens, ensemble_lambda):
    model, inputs = trained(KINDS[0]), batch(KINDS[0], 8, seed=61)
    options = {"max_new_tokens": 16, "ensemble_lambda": ensemble_lambda}
    expected = generate(model, inputs, **options)
    options |= {"num_assistant_tokens": num_assistant_tokens, "return_dict_in_generate": True, **DRAFTS}
    # With copies, drafts are longer than there are heads.
    for num_copied, depth in ((0, min(num_assistant_tokens, 4)), (8, 8)):
        output = generate(model, inputs, prompt_lookup_num_tokens=num_copied, **options)
        assert torch.equal(output.sequences, expected)
        counts = output.speculation
        assert len(counts.num_drafted) == depth
        assert num_assistant_tokens or sum(counts.num_copied) == sum(counts.num_drafted)


def test_a_shared_head_drafts_deeper_than_it_was_trained(ensemble_lambda):
    model, inputs = trained(SHARED), batch(SHARED, 8, seed=62)
    for number, depth in ((None, 8), (0, 0), (2, 2), (11, 11)):
        way = {"num_assistant_tokens": number, "max_new_tokens": 16, "ensemble_lambda": ensemble_lambda}
        (output,) = assert_same_text(model, inputs, "heads only, always", **way)
        counts = output.speculation
        assert len(counts.num_drafted) == depth and (depth < 8 or sum(counts.num_accepted[4:]) > 0)


def test_end_token_among_the_drafts(ensemble_lambda):
    """What was drafted after it, right or wrong, is not part of the text."""
    model, inputs = trained(KINDS[0]), batch(KINDS[0], 12, seed=71)
    free = generate(model, inputs, **NO_END, ensemble_lambda=ensemble_lambda)[:, inputs["input_ids"].shape[1] :]
    num_dropped = 0
    for token, _ in Counter(free.flatten().tolist()).most_common(6):
        options = {"eos_token_id": [END, token], "pad_token_id": PAD, "ensemble_lambda": ensemble_lambda}
        statistics = assert_same_text(model, inputs, max_new_tokens=20, **options)[0].speculation
        # Each row and forward pass adds a token of the model, but where a draft ends the row.
        num_dropped += sum(statistics.num_accepted) + statistics.num_row_forwards - statistics.num_tokens
    assert num_dropped > 0
