"""`generate(use_mtp=True)`, greedy: token for token the text of plain decoding, whatever was drafted on the way."""

from collections import Counter

import pytest
import torch

from ngram_wdr_hf.decoding.pace import DraftPace
from tests.support.drafting import assert_drafts_change_nothing, plain, speculate, summary
from tests.support.options import ALWAYS, DRAFTING, END, NO_END, PAD
from tests.support.tiny import left_pad, tiny_model
from tests.support.trained import POSITIONS, Language, trained_model

LONGEST_PROMPT = 12
# 104 prompts, for two λ with each N and target. At least 50 for each way of drafting, for each N with target and λ.
BATCH_SIZES = (2, 16, 5, 16, 1, 16, 13, 16, 3, 16)
SIZES_AND_TARGETS = [(size, target) for size in (2, 3, 4, 5) for target in ("wdr", "simple")]


def prompts(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of texts of different lengths, and its attention mask."""
    language = Language(seed)
    return left_pad([language.prompt(LONGEST_PROMPT) for _ in range(count)])


@pytest.mark.parametrize(("size", "target"), SIZES_AND_TARGETS)
def test_same_text_as_plain_decoding(size, target, ensemble_lambda):
    seed = 1000 * size + 100 * int(10 * ensemble_lambda)
    batches = (prompts(batch_size, seed + i) for i, batch_size in enumerate(BATCH_SIZES))
    inputs = ({"input_ids": ids, "attention_mask": mask} for ids, mask in batches)
    counts = assert_drafts_change_nothing(trained_model(size, target), inputs, ensemble_lambda)
    for name in ("always", "heads only, always"):
        assert counts[name]["tokens"] > 1.1 * counts[name]["row forwards"], name


@pytest.mark.parametrize("drafting", ["as it pays", "heads only, as it pays"])
@pytest.mark.parametrize(("size", "target"), [(5, "wdr"), (3, "simple")])
def test_single_rows(size, target, drafting, ensemble_lambda):
    """Single rows get drafts at the default costs."""
    model = trained_model(size, target)
    language, count = Language(5), Counter()
    for _ in range(6):
        ids = language.prompt(LONGEST_PROMPT)[None]
        options = {**NO_END, "ensemble_lambda": ensemble_lambda}
        expected = plain(model, ids, None, **options)
        sequences, statistics = speculate(model, ids, None, **options, **DRAFTING[drafting])
        assert torch.equal(sequences, expected)
        count += summary(statistics)
    assert count["accepted"] > 0
    assert count["rejected"] > 0
    assert count["tokens"] > count["row forwards"]


@pytest.mark.parametrize(("size", "target"), [(5, "wdr"), (3, "simple")])
@pytest.mark.parametrize("returns", [True, False])
def test_batch_equals_rows_alone(size, target, returns, ensemble_lambda):
    model = trained_model(size, target)
    ids, mask = prompts(10, seed=11 + returns)
    options = {"ensemble_lambda": ensemble_lambda, "returns": returns, **ALWAYS}
    sequences, _ = speculate(model, ids, mask, **options)
    new = sequences[:, ids.shape[1] :]
    lengths = set()
    for row, row_mask, text in zip(ids, mask, new, strict=True):
        prompt = row[row_mask.bool()][None]
        alone = speculate(model, prompt, torch.ones_like(prompt), **options)[0][0, prompt.shape[1] :]
        assert torch.equal(text[: len(alone)], alone)
        assert (text[len(alone) :] == PAD).all()
        lengths.add(len(alone))
    assert len(lengths) > 2


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("max_new_tokens", [1, 2, 3])
@pytest.mark.parametrize("target", ["wdr", "simple"])
def test_no_room_for_all_heads(target, max_new_tokens, returns, ensemble_lambda):
    model = trained_model(5, target)
    ids, mask = prompts(8, seed=21)
    options = {"ensemble_lambda": ensemble_lambda, "max_new_tokens": max_new_tokens}
    expected = plain(model, ids, mask, **options)
    assert expected.shape[1] == ids.shape[1] + max_new_tokens
    for drafting in DRAFTING.values():
        sequences, statistics = speculate(model, ids, mask, returns, **options, **drafting)
        assert torch.equal(sequences, expected)
        if returns:
            # Every forward pass brings a token of its own, the prompt's and that which checks the drafts.
            assert len(statistics.num_drafted) <= max(max_new_tokens - 2, 0)
    if returns and max_new_tokens == 3:
        assert sum(statistics.num_drafted) > 0


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("prompt_length", [5, POSITIONS - 3])
@pytest.mark.parametrize("target", ["wdr", "simple"])
def test_up_to_the_last_position(target, prompt_length, returns, ensemble_lambda):
    """The last token is not read, so that a text can have one token more than there are positions."""
    model = trained_model(5, target)
    language = Language(31)
    texts = torch.stack([language.text(prompt_length) for _ in range(6)])
    padded, mask = left_pad([*texts[1:], texts[0, -2:]])
    read = []
    cases = ((texts, None, POSITIONS), (padded, mask, POSITIONS + 1), (texts[:1], None, POSITIONS + 1))
    for ids, attention_mask, max_length in cases:
        options = {**NO_END, "ensemble_lambda": ensemble_lambda, "max_new_tokens": None, "max_length": max_length}
        expected = plain(model, ids, attention_mask, **options)
        assert expected.shape[1] == max_length
        read.clear()
        with model.transformer.wpe.register_forward_pre_hook(lambda _, args: read.append(args[0])):
            sequences, statistics = speculate(model, ids, attention_mask, returns, **options, **ALWAYS)
        assert torch.equal(sequences, expected)
        assert max(int(positions.max()) for positions in read) == max_length - 2
        if prompt_length == 5:
            assert not returns or statistics.tokens_per_forward > 1
            # Rows with prompts of one length reach different positions.
            assert len(ids) == 1 or any(len(positions[:2, 0].unique()) > 1 for positions in read)


@pytest.mark.parametrize(("size", "target"), [(2, "simple"), (5, "wdr")])
def test_prompts_of_one_token(size, target, ensemble_lambda):
    model = trained_model(size, target)
    words = torch.arange(2, 14)[:, None]
    mixed = left_pad([*words[:3], *Language(41).text(30).view(3, 10)])
    for ids, mask in ((words, torch.ones_like(words)), (words[:1], None), mixed):
        expected = plain(model, ids, mask, ensemble_lambda=ensemble_lambda)
        for returns in (True, False):
            sequences, _ = speculate(model, ids, mask, returns, ensemble_lambda=ensemble_lambda, **ALWAYS)
            assert torch.equal(sequences, expected)


@pytest.mark.parametrize("drafting", DRAFTING)
def test_rows_that_are_all_the_same(drafting, ensemble_lambda):
    """Equal rows advance together, with the tokens of a single row."""
    model = trained_model(4, "wdr")
    ids = Language(51).text(10)[None]
    options = {**NO_END, "ensemble_lambda": ensemble_lambda, **DRAFTING[drafting]}
    expected = plain(model, ids, None, **NO_END, ensemble_lambda=ensemble_lambda)
    sequences, statistics = speculate(model, ids.repeat(7, 1), None, **options)
    assert torch.equal(sequences, expected.repeat(7, 1))
    assert statistics.num_row_forwards == 7 * statistics.num_forwards
    assert all(count % 7 == 0 for count in [*statistics.num_drafted, *statistics.num_accepted])
    assert torch.equal(speculate(model, ids.repeat(7, 1), None, returns=False, **options)[0], sequences)


@pytest.mark.parametrize("num_assistant_tokens", [1, 2, 3, 9])
def test_fewer_heads(num_assistant_tokens, ensemble_lambda):
    model = trained_model(5, "wdr")
    ids, mask = prompts(8, seed=61)
    expected = plain(model, ids, mask, ensemble_lambda=ensemble_lambda)
    options = {"ensemble_lambda": ensemble_lambda, "num_assistant_tokens": num_assistant_tokens}
    sequences, statistics = speculate(model, ids, mask, **options, **DRAFTING["heads only, always"])
    assert torch.equal(sequences, expected)
    assert len(statistics.num_drafted) == min(num_assistant_tokens, 4)
    # With copies, drafts are longer than there are heads.
    sequences, statistics = speculate(model, ids, mask, **options, **ALWAYS)
    assert torch.equal(sequences, expected)
    assert len(statistics.num_drafted) == 8


@pytest.mark.parametrize("returns", [True, False])
def test_end_token_among_the_drafts(returns, ensemble_lambda):
    """What was drafted after it, right or wrong, is not part of the text."""
    model = trained_model(3, "wdr")
    ids, mask = prompts(12, seed=71)
    without_end = plain(model, ids, mask, **NO_END, ensemble_lambda=ensemble_lambda)[:, ids.shape[1] :]
    num_dropped = 0
    for token, _ in Counter(without_end.flatten().tolist()).most_common(6):
        options = {"eos_token_id": [END, token], "pad_token_id": PAD, "ensemble_lambda": ensemble_lambda}
        expected = plain(model, ids, mask, max_new_tokens=20, **options)
        sequences, statistics = speculate(model, ids, mask, returns, max_new_tokens=20, **options, **ALWAYS)
        assert torch.equal(sequences, expected)
        if returns:
            num_gained = sum(statistics.num_accepted) + statistics.num_row_forwards
            num_dropped += num_gained - statistics.num_tokens
    assert (num_dropped > 0) == returns


@pytest.mark.parametrize("drafting", [{"prompt_lookup_num_tokens": 0}, {"num_assistant_tokens": 0}])
def test_resting_heads_ask_for_no_hidden_states(drafting, ensemble_lambda, monkeypatch):
    """Useless heads are soon left alone. Until they are tried again, the forward passes return no hidden states."""
    learn = DraftPace.learn
    monkeypatch.setattr(DraftPace, "learn", lambda self, kinds, _: learn(self, kinds, [0] * len(kinds)))
    model = tiny_model(ngram_size=4, n_positions=128)
    ids, mask = prompts(2, seed=0)
    options = {"max_new_tokens": 90, "ensemble_lambda": ensemble_lambda, **NO_END}
    expected = plain(model, ids, mask, **options)
    options["draft_threshold"] = 0.1
    asked = []
    hook = lambda module, args, kwargs: asked.append(kwargs["return_last_hidden_state"])  # noqa: E731
    model.register_forward_pre_hook(hook, with_kwargs=True)
    sequences, statistics = speculate(model, ids, mask, **options, **drafting)
    assert torch.equal(sequences, expected)
    # The prompt's forward pass is the same for all.
    assert asked[0]
    if drafting.get("num_assistant_tokens") == 0:
        assert not any(asked[1:])
    else:
        assert sum(statistics.num_drafted) > statistics.num_copied
        assert 0 < sum(asked[1:]) < len(asked) / 3
