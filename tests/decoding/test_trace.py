"""The statistics of a generation: counts of drafts, and where each token came from."""

from collections import Counter

import pytest

from ngram_wdr_hf.decoding.draft_depth import DraftKind
from ngram_wdr_hf.decoding.statistics import SpeculationStatistics, TokenTrace
from tests.support.options import DRAFTS, END, NO_END, PAD
from tests.support.side_by_side import generate
from tests.support.tiny import model_of, prompts, random_ids

HEAD, COPY = DraftKind.of_head(0.5), DraftKind.of_lookup(2)


def check_trace(output, num_read: int, is_greedy: bool = True) -> Counter:
    """Check the trace against sequences and counts. Return how often each source occurs, "rejected" and "dropped"."""
    counts, found = output.speculation, Counter()
    for row, trace in zip(output.sequences.tolist(), counts.trace, strict=True):
        new = row[num_read:]
        assert [one.token for one in trace] == new[: len(trace)]
        # The rest of a row is padding.
        assert set(new[len(trace) :]) <= {PAD}
        for one in trace:
            assert len(one.rejected) <= 1
            assert one.source == 0 or not one.rejected
            assert one.rejected or not one.dropped
            assert all(source == -1 or source >= 1 for _, source in (*one.rejected, *one.dropped))
            assert not is_greedy or all(token != one.token for token, _ in one.rejected)
            # Heads draft in the order of depth.
            depths = [source for _, source in (*one.rejected, *one.dropped) if source > 0]
            assert depths == sorted(set(depths))
            found[one.source] += 1
            found["rejected"] += len(one.rejected)
            found["dropped"] += len(one.dropped)
    num_accepted = sum(number for source, number in found.items() if source not in (0, "rejected", "dropped"))
    assert num_accepted == sum(counts.num_accepted)
    assert num_accepted + found[0] == counts.num_tokens
    assert found[-1] == sum(counts.num_copies_accepted)
    # Drafts after the end of a row were neither rejected nor dropped.
    assert num_accepted + found["rejected"] + found["dropped"] <= sum(counts.num_drafted)
    # Every forward pass adds one token of the model, except where drafts end a row.
    assert found[0] <= counts.num_row_forwards
    return found


@pytest.mark.parametrize("options", [{}, {"do_sample": True}, {"ensemble_lambda": 0.4}], ids=str)
@pytest.mark.parametrize("copied", [0, 8])
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_trace_and_counts(name, batch_size, copied, options):
    model, widths = model_of(name), []
    model.register_forward_hook(lambda _, args, output: widths.append(output.logits.shape[1]))
    options = {"return_dict_in_generate": True, "prompt_lookup_num_tokens": copied, **NO_END, **options, **DRAFTS}
    output = generate(model, prompts(batch_size, name), **options)
    found = check_trace(output, 6 if name == "gpt2" else 1, is_greedy=not options.get("do_sample"))
    assert (found[-1] > 0) <= (copied > 0)
    assert found["rejected"] > 0 and found[0] > 0 and found[1] + found[-1] > 0
    counts = output.speculation
    assert counts.num_tokens == 20 * batch_size and counts.num_forwards == len(widths)
    assert counts.num_forwards <= counts.num_row_forwards <= batch_size * counts.num_forwards
    drafted, accepted = counts.num_drafted, counts.num_accepted
    assert len(drafted) == max(widths) - 1
    assert drafted == sorted(drafted, reverse=True) and accepted == sorted(accepted, reverse=True)
    if batch_size == 1:
        assert sum(drafted) == sum(widths) - len(widths)
        # Each forward pass adds one token.
        assert counts.num_row_forwards + sum(accepted) == counts.num_tokens
    assert (sum(counts.num_copied) > 0) == (copied > 0) or options.get("do_sample")
    assert counts.mean_acceptance_length == counts.num_tokens / counts.num_row_forwards > 1
    assert counts.draft_acceptance_rate == sum(accepted) / sum(drafted)
    assert counts.acceptance_rate_per_position == [a / d for a, d in zip(accepted, drafted, strict=True)]


def test_trace_up_to_the_end_token():
    for end in range(2, 12):
        options = {"eos_token_id": [END, end], "pad_token_id": PAD, "return_dict_in_generate": True, **DRAFTS}
        output = generate(model_of("gpt2"), prompts(4), **options)
        check_trace(output, 6)
        for trace in output.speculation.trace:
            ends = [one.token in (END, end) for one in trace]
            assert not any(ends[:-1]) and (ends[-1] or len(trace) == 20)


def test_steps_by_hand():
    statistics = SpeculationStatistics(trace=[[], []])
    # The first head is right, the second wrong, the third dropped.
    statistics.count_step(1, [7, 8], 1, [7, 9, 5], [HEAD, HEAD, HEAD])
    # All copies are right, and a token follows.
    statistics.count_step(1, [1, 2, 3], 2, [1, 2], [COPY, COPY])
    # The row ends with the first of two accepted drafts.
    statistics.count_step(0, [4], 2, [4, 5, 6], [COPY, HEAD, None])
    # A missing draft is no draft, accepted or not.
    statistics.count_step(0, [3, 0, 2], 2, [3, 0, 0], [HEAD, None, None])
    statistics.count_step(0, [6], 0, [], [])
    first = [TokenTrace(4, -1), TokenTrace(3, 1), TokenTrace(0, 0), TokenTrace(2, 0), TokenTrace(6, 0)]
    second = [TokenTrace(7, 1), TokenTrace(8, 0, ((9, 2),), ((5, 3),))]
    second += [TokenTrace(1, -1), TokenTrace(2, -1), TokenTrace(3, 0)]
    rows, copies = [first, second], [[2, 1, 0], [2, 1, 0]]
    assert statistics == SpeculationStatistics(10, 0, 0, [4, 3, 1], [4, 1, 0], *copies, trace=rows)
    assert statistics.acceptance_rate_by_source == {"heads": [1.0, 0.0, 0.0], "lookup": [1.0, 1.0]}
    other = SpeculationStatistics(1, 1, 1, [1, 1, 1, 1], [0] * 4, [1, 1, 1, 0], [0] * 4, "No drafts.", [[]])
    copies = [[3, 2, 1, 0], [2, 1, 0, 0]]
    both = SpeculationStatistics(11, 1, 1, [5, 4, 2, 1], [4, 1, 0, 0], *copies, "No drafts.", [*rows, []])
    assert statistics + other == both


def test_why_there_are_no_drafts(caplog):
    """Heads that do not pay make a few drafts and stop. The statistics say so, and count copies apart from them."""
    model, ids = model_of("gpt2"), random_ids(1, 8)
    options = {"max_new_tokens": 24, "eos_token_id": None, "use_mtp": True, "return_dict_in_generate": True}
    with caplog.at_level("INFO", logger="ngram_wdr_hf"):
        for threshold, words in ((1.0, "head 1's acceptance rate (0.30) has to exceed its cost (1.00 "), (0.0, "")):
            drafts = {"draft_threshold": threshold, "prompt_lookup_num_tokens": 0}
            found = model.generate(ids, **options, **drafts).speculation
            assert (found.explanation == "") == (words == "") and words in found.explanation
            assert found.acceptance_rate_by_source["lookup"] == [] and found.explanation in caplog.records[-1].message
            assert bool(found.acceptance_rate_by_source["heads"]) == (words == "")
    found = model.generate(ids, **options, num_assistant_tokens=0).speculation
    assert found.acceptance_rate_by_source["heads"] == [] and "nothing to copy" in found.explanation
