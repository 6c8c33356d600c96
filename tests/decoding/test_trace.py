"""Where each token of a generation came from."""

from collections import Counter

import pytest
import torch

from ngram_wdr_hf.decoding.pace import DraftKind
from ngram_wdr_hf.decoding.statistics import SpeculationStatistics, TokenTrace
from tests.support.options import DRAFTS, END, NO_END, PAD
from tests.support.side_by_side import generate
from tests.support.tiny import model_of, prompts

HEAD, COPY = DraftKind.of_head(0.5), DraftKind.of_lookup(2)


def check_trace(output, num_read: int, is_greedy: bool = True) -> Counter:
    """Check the trace against sequences and counts. Return how often each source occurs, "rejected" and "dropped"."""
    counts, found = output.speculation, Counter()
    assert len(counts.trace) == len(output.sequences)
    for row, trace in zip(output.sequences.tolist(), counts.trace, strict=True):
        new = row[num_read:]
        assert [one.token for one in trace] == new[: len(trace)]
        # The rest of a row is padding.
        assert set(new[len(trace) :]) <= {PAD}
        for one in trace:
            assert len(one.rejected) <= 1
            assert one.source == 0 or not one.rejected
            assert one.rejected or not one.dropped
            for _, source in (*one.rejected, *one.dropped):
                assert source == -1 or source >= 1
            if is_greedy:
                assert all(token != one.token for token, _ in one.rejected)
            # Heads draft in the order of depth.
            depths = [source for _, source in (*one.rejected, *one.dropped) if source > 0]
            assert depths == sorted(depths) and len(set(depths)) == len(depths)
            found[one.source] += 1
            found["rejected"] += len(one.rejected)
            found["dropped"] += len(one.dropped)
    num_accepted = sum(number for source, number in found.items() if source not in (0, "rejected", "dropped"))
    assert num_accepted == sum(counts.num_accepted)
    assert num_accepted + found[0] == counts.num_tokens
    assert found[-1] == counts.num_copies_accepted
    # Drafts after the end of a row were neither rejected nor dropped.
    num_drafts = num_accepted + found["rejected"] + found["dropped"]
    assert num_drafts <= sum(counts.num_drafted)
    # Every forward pass adds one token of the model, except where drafts end a row.
    assert found[0] <= counts.num_row_forwards
    return found


@pytest.mark.parametrize("options", [{}, {"do_sample": True}, {"ensemble_lambda": 0.4}], ids=str)
@pytest.mark.parametrize("copied", [0, 8])
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_trace(name, batch_size, copied, options):
    model, inputs = model_of(name), prompts(batch_size, name)
    torch.manual_seed(0)
    options = {"return_dict_in_generate": True, "prompt_lookup_num_tokens": copied, **NO_END, **options, **DRAFTS}
    output = generate(model, inputs, **options)
    found = check_trace(output, 6 if name == "gpt2" else 1, is_greedy=not options.get("do_sample"))
    assert all(len(trace) == 20 for trace in output.speculation.trace)
    assert (found[-1] > 0) <= (copied > 0)
    assert found["rejected"] > 0 and found[0] > 0 and found[1] + found[-1] > 0


@pytest.mark.parametrize("batch_size", [1, 5])
def test_trace_up_to_the_end_token(batch_size):
    model, found = model_of("gpt2"), Counter()
    for end in range(2, 12):
        options = {"eos_token_id": [END, end], "pad_token_id": PAD, "return_dict_in_generate": True, **DRAFTS}
        output = generate(model, prompts(batch_size), **options)
        found += check_trace(output, 6)
        for trace in output.speculation.trace:
            ends = [i for i, one in enumerate(trace) if one.token in (END, end)]
            assert ends == ([len(trace) - 1] if len(trace) < 20 or ends else [])
            assert len(trace) == 20 or ends
    assert found["rejected"] > 0


def test_without_drafts_all_tokens_are_the_models():
    options = {"return_dict_in_generate": True, "prompt_lookup_num_tokens": 0, "num_assistant_tokens": 0, **NO_END}
    output = generate(model_of("gpt2"), prompts(2), use_mtp=True, **options)
    assert check_trace(output, 6) == Counter({0: 40})
    assert output.speculation.num_drafted == []


def test_prompt_lookup_alone():
    ids = torch.tensor([[5, 6, 7, 8, 9, 5, 6, 7]])
    options = {"return_dict_in_generate": True, "num_assistant_tokens": 0, **NO_END}
    model = model_of("gpt2")
    output = generate(model, {"input_ids": ids}, max_new_tokens=40, **options, **DRAFTS)
    assert torch.equal(output.sequences, generate(model, {"input_ids": ids}, max_new_tokens=40, **NO_END))
    found = check_trace(output, 8)
    assert set(found) <= {0, -1, "rejected", "dropped"} and found[-1] > 0
    assert output.speculation.num_copied == sum(output.speculation.num_drafted)


def test_steps_of_one_row():
    statistics = SpeculationStatistics(trace=[[], []])
    # The first head is right, the second wrong, the third dropped.
    statistics.trace_tokens(1, [7, 8], 1, [7, 9, 5], [HEAD, HEAD, HEAD])
    # All copies are right, and a token follows.
    statistics.trace_tokens(1, [1, 2, 3], 2, [1, 2], [COPY, COPY])
    # The row ends with the first of two accepted drafts.
    statistics.trace_tokens(0, [4], 2, [4, 5, 6], [COPY, HEAD, None])
    # A missing draft is no draft, accepted or not.
    statistics.trace_tokens(0, [3, 0, 2], 2, [3, 0, 0], [HEAD, None, None])
    statistics.trace_tokens(0, [6], 0, [], [])
    assert statistics.trace == [
        [TokenTrace(4, -1), TokenTrace(3, 1), TokenTrace(0, 0), TokenTrace(2, 0), TokenTrace(6, 0)],
        [
            TokenTrace(7, 1),
            TokenTrace(8, 0, ((9, 2),), ((5, 3),)),
            TokenTrace(1, -1),
            TokenTrace(2, -1),
            TokenTrace(3, 0),
        ],
    ]


def test_statistics_of_two_calls_together():
    first = SpeculationStatistics(5, 2, 3, [4, 2], [3, 1], 2, 1, 0.5, [[TokenTrace(7, 1)]])
    second = SpeculationStatistics(1, 1, 1, [1, 1, 1], [0, 0, 0], 3, 0, 0.25, [[], [TokenTrace(8, 0)]])
    trace = [[TokenTrace(7, 1)], [], [TokenTrace(8, 0)]]
    assert first + second == SpeculationStatistics(6, 3, 4, [5, 3, 1], [3, 1, 0], 5, 1, 0.75, trace)
    assert first + SpeculationStatistics() == first
