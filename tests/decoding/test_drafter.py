"""The heads' drafts and those of prompt lookup, against slow versions."""

import itertools
import math

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import RepetitionPenaltyLogitsProcessor, SuppressTokensLogitsProcessor

from ngram_wdr_hf.decoding import prompt_lookup
from ngram_wdr_hf.decoding.draft_depth import DraftKind
from ngram_wdr_hf.decoding.drafter import Drafter, DraftOptions
from ngram_wdr_hf.decoding.prompt_lookup import PromptLookup
from ngram_wdr_hf.decoding.row_texts import RowTexts
from ngram_wdr_hf.method.heads import NgramPredictions
from ngram_wdr_hf.method.logits import logits_of, target_embeddings
from tests.support.tiny import VOCAB_SIZE, model_of, random_ids, tiny_model


def predicted_from_past(heads, hidden_states, embeddings):
    """What each head predicted n positions before, at all positions."""
    runs = torch.arange(1, hidden_states.shape[1] + 1).expand(len(hidden_states), -1)
    return NgramPredictions.from_past(heads, hidden_states, embeddings, runs).embeddings[1:]


@torch.no_grad()
def draft(model, ids, states, do_sample=False, max_length=60, processors=(), max_drafts=math.inf, **options):
    """Draft after prompts, whose last tokens were predicted from the given states."""
    options = DraftOptions(**{"draft_threshold": 0.0, "prompt_lookup_num_tokens": 0, **options})
    drafter = Drafter(model, GenerationConfig(do_sample=do_sample), options)
    text = RowTexts(ids, max_length, 1, LogitsProcessorList(processors), StoppingCriteriaList())
    return drafter.draft(text, states, ids[:, -1], max_drafts)


@pytest.mark.parametrize("draft_vocab_size", [VOCAB_SIZE, 9])
@pytest.mark.parametrize("name", ["gpt2", "bart"])
@torch.no_grad()
def test_drafts_are_predictions_given_earlier_drafts(target, name, draft_vocab_size):
    model, ids = model_of(name, ngram_size=5, ngram_target=target), random_ids(3, 6)
    model.ngram_set_draft_tokens(torch.randperm(VOCAB_SIZE)[:20])
    # Random hidden states; drafts use the one at position 4, before the last token.
    hidden_states = torch.randn(3, 6 + 4, model.config.hidden_size, dtype=torch.float64)
    drafts = draft(model, ids, hidden_states[:, 4], draft_vocab_size=draft_vocab_size)
    assert drafts.tokens.shape == (3, 4) and not drafts.probabilities
    embeddings = target_embeddings(model, torch.cat([ids, drafts.tokens], dim=1))
    predictions = predicted_from_past(model.ngram_heads, hidden_states, embeddings)
    allowed = torch.arange(VOCAB_SIZE) if draft_vocab_size == VOCAB_SIZE else model.draft_token_ids[:draft_vocab_size]
    for n in range(1, 5):
        # Head n's prediction at position 4, of the token at position 5 + n; its predictions begin at position n.
        logits = logits_of(model, predictions[n - 1][:, 4])[:, allowed]
        assert torch.equal(drafts.tokens[:, n - 1], allowed[logits.argmax(-1)])
        confidences = logits.float().softmax(-1).amax(-1).tolist()
        assert [row[n - 1] for row in drafts.kinds] == [DraftKind.of_head(c) for c in confidences]
    assert len(drafts.tokens.unique()) > 3


@pytest.mark.parametrize("forbidden", [[3, 5, 20], list(range(9))])
@torch.no_grad()
def test_processors_of_drafts(forbidden):
    """Heads' scores are processed like the model's; if all tokens are forbidden, they stay unprocessed."""
    model, ids, states = tiny_model(), random_ids(3, 6), torch.randn(3, 16)
    logits = model.lm_head(model.ngram_heads[0](states) + model.lm_head.weight[ids[:, -1]])
    penalty = RepetitionPenaltyLogitsProcessor(1.5)
    for size in (9, VOCAB_SIZE):
        processors = [penalty, SuppressTokensLogitsProcessor(forbidden)]
        drafts = draft(model, ids, states, do_sample=True, processors=processors, draft_vocab_size=size)
        kept = [token for token in range(size) if token not in forbidden]
        scores, kept = (penalty(ids, logits.clone()), kept) if kept else (logits, list(range(size)))
        expected = torch.zeros(3, VOCAB_SIZE)
        expected[:, kept] = scores[:, kept].softmax(-1)
        torch.testing.assert_close(drafts.probabilities[0], expected)
        assert torch.isin(drafts.tokens[:, 0], torch.tensor(kept)).all()


def test_how_far_the_heads_draft():
    model, ids, states = tiny_model(ngram_size=4), random_ids(2, 6), torch.randn(2, 16)
    # The forward pass that checks the drafts brings one token more.
    for left, depth in ((5, 3), (4, 3), (3, 2), (2, 1), (1, 0)):
        drafts = draft(model, ids, states, max_length=6 + left)
        assert drafts.tokens.shape == (2, depth) and [len(row) for row in drafts.kinds] == [depth] * 2
    assert draft(model, ids, states, max_drafts=1).tokens.shape == (2, 1)
    all_heads, two_heads = draft(model, ids, states).tokens, draft(model, ids, states, num_assistant_tokens=2).tokens
    assert torch.equal(all_heads[:, :2], two_heads)


def test_prompt_lookup_beside_the_heads():
    """One row has a match and copies, the other uses the heads; copied tokens have a one-hot distribution."""
    model, states = tiny_model(ngram_size=4), torch.randn(2, 16)
    ids = torch.tensor([[5, 6, 7, 8, 9, 5, 6, 7], [2, 3, 4, 5, 6, 7, 8, 9]])
    options = {"do_sample": True, "draft_vocab_size": 30}
    drafts = draft(model, ids, states, prompt_lookup_num_tokens=6, **options)
    assert drafts.tokens[0].tolist() == [8, 9, 5, 6, 7, 8]
    assert drafts.kinds[0] == [DraftKind.of_lookup(3 + i) for i in range(6)]
    assert [kind and kind.is_lookup for kind in drafts.kinds[1]] == [False] * 3 + [None] * 3
    for depth, q in enumerate(drafts.probabilities):
        assert q.shape == (2, VOCAB_SIZE)
        assert torch.equal(q[0], torch.eye(VOCAB_SIZE)[drafts.tokens[0, depth]])
        torch.testing.assert_close(q[1].sum(), torch.ones(()))
        assert q[1, drafts.tokens[1, depth]] > 0 and (depth >= 3 or not q[1, 30:].any())
    alone = draft(model, ids, states, **options)
    torch.testing.assert_close(alone.probabilities[0][1], drafts.probabilities[0][1])


def longest_latest_match(text, max_match):
    """Find the match by exhaustive search."""
    for length in range(min(max_match, len(text)), 0, -1):
        for start in range(len(text) - 1, length - 1, -1):
            if text[start - length : start] == text[len(text) - length :]:
                return start, length
    return None


@pytest.mark.parametrize("max_match", [1, 2, 3])
def test_what_is_copied(max_match):
    generator, found = torch.Generator().manual_seed(0), []
    for length, size in itertools.product((0, 1, 2, 3, 5, 8, 13, 30), (2, 4, 12)):
        text = torch.randint(0, size, (length,), generator=generator).tolist()
        lookup = PromptLookup(max_match)
        # As it grows: a prompt first, then a few tokens at a time.
        lookup.add(text[: length // 2])
        lookup.add(text[length // 2 : length - 1])
        lookup.add(text[max(length // 2, length - 1) :])
        assert lookup.tokens == text and lookup.num_read == length
        copy, expected = lookup.find(), longest_latest_match(text, max_match)
        assert (copy and (copy.start, copy.match_length)) == expected
        found.append(expected and expected[1])
        if copy is not None:
            # Written down, the copies come out of the text itself, in a loop.
            written = list(text)
            for i in range(40):
                written.append(copy.token(i))
                assert written[-1] == written[copy.start + i]
    assert set(found) == {None, *range(1, max_match + 1)}


def test_only_the_end_of_a_long_prompt_is_indexed(monkeypatch):
    monkeypatch.setattr(prompt_lookup, "MAX_INDEXED_TOKENS", 5)
    lookup = PromptLookup(3)
    lookup.add([7, 8, 1, 2, 3, 4, 5])
    assert lookup.tokens == [1, 2, 3, 4, 5] and lookup.num_read == 7
    lookup.add([7])
    assert lookup.find() is None and lookup.num_read == 8
    lookup.add([1])
    assert lookup.find().token(0) == 2
