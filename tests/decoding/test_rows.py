"""Rows that grow by different numbers of tokens, in the text and in the cache, against rows kept one by one."""

import random

import pytest
import torch
from transformers import DynamicCache, Gemma2Config, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.generation import EosTokenCriteria, MaxLengthCriteria

from ngram_wdr_hf.decoding.cache_history import history_of, layers_and_history
from ngram_wdr_hf.decoding.ragged_cache import RaggedCache
from ngram_wdr_hf.decoding.row_texts import RowTexts

WINDOW = 6
CPU = torch.device("cpu")
TYPES = [["full"] * 2, ["sliding"] * 2, ["full", "sliding"]]


class SlowCache:
    """Reference cache: the tokens of each row as a list, which every layer of a real cache holds, too."""

    def __init__(self, types, lengths, has_history, rng):
        types = [f"{name}_attention" for name in types]
        config = Gemma2Config(num_hidden_layers=2, sliding_window=WINDOW, layer_types=types)
        self.cache, self.rng = DynamicCache(config=config), rng
        width = max(lengths)
        self.padding = [width - length for length in lengths]
        self.history = history_of(self.cache, 3, CPU) if has_history else None
        self.texts = [[] for _ in lengths]
        mask = torch.tensor([[0] * p + [1] * (width - p) for p in self.padding]) if any(self.padding) else None
        self.ragged = RaggedCache(self.cache, len(lengths), None)
        self.read(width)
        self.ragged.attention_mask = mask
        self.texts = [text[padding:] for text, padding in zip(self.texts, self.padding, strict=True)]
        self.drop([0] * len(lengths))

    def read(self, width):
        """Append random tokens to all rows, as a forward pass does."""
        new = [[self.rng.randrange(1, 10**6) for _ in range(width)] for _ in self.texts]
        self.texts = [text + added for text, added in zip(self.texts, new, strict=True)]
        numbers = torch.tensor(new)
        # The second attention head has twice what the first one has.
        states = torch.stack([numbers, 2 * numbers], dim=1)[..., None].float().expand(-1, -1, -1, 4)
        for i in range(2):
            self.cache.update(states, -states, i)
        if self.history is not None:
            # As a forward pass does, so that the history knows the length of the cache.
            history_of(self.cache, 3, CPU).extend(states[:, 0], numbers[..., None].expand(-1, -1, 3))
        mask = self.ragged.attention_mask
        if mask is not None:
            self.ragged.attention_mask = torch.cat([mask, mask.new_ones(len(mask), width)], dim=1)

    def drop(self, counts):
        self.texts = [text[: len(text) - count] for text, count in zip(self.texts, counts, strict=True)]
        self.ragged.drop(counts, CPU)
        self.check()

    def select(self, rows):
        self.texts, self.padding = [self.texts[row] for row in rows], [self.padding[row] for row in rows]
        self.ragged.select(rows, CPU)
        self.check()

    def check(self):
        columns, lengths = self.cache.get_seq_length(), [len(text) for text in self.texts]
        mask = self.ragged.attention_mask
        # Tokens are at the right.
        expected = [[0] * (columns - length) + [1] * length for length in lengths]
        assert (torch.ones(len(lengths), columns) if mask is None else mask).tolist() == expected
        moved = [columns - length - pad for length, pad in zip(lengths, self.padding, strict=True)]
        assert self.ragged.shifts == moved and self.ragged.is_ragged == any(moved)
        # No column is masked in every row.
        assert min(moved) == 0 or any(layer.is_sliding for layer in self.cache.layers)
        for layer in layers_and_history(self.cache):
            width = layer.keys.shape[-2]
            assert layer.get_seq_length() == columns and len(layer.keys) == len(layer.values) == len(lengths)
            assert width == (min(columns, WINDOW - 1) if layer.is_sliding else columns)
            sign = 1 if layer is self.history else -1
            for row, text in enumerate(self.texts):
                known = torch.tensor(text[-width:])[:, None]
                for head in range(layer.keys.shape[1]):
                    keys, values = (states[row, head, width - len(known) :] for states in (layer.keys, layer.values))
                    assert (keys == (head + 1) * known).all() and (values == sign * keys[:, :1]).all()


@pytest.mark.parametrize("has_history", [False, True])
@pytest.mark.parametrize("lengths", [[5, 5, 5, 5], [2, 7, 4, 7], [12, 12, 9, 1]])
@pytest.mark.parametrize("types", TYPES)
def test_cache_of_rows_that_keep_different_numbers(types, lengths, has_history):
    for seed in range(5):
        rng = random.Random(seed)
        slow, was_ragged = SlowCache(types, lengths, has_history, rng), False
        for _ in range(12):
            width = rng.randint(1, 4)
            slow.read(width)
            # A row that waits for others keeps nothing.
            slow.drop([rng.randint(0, width) for _ in slow.texts])
            was_ragged |= slow.ragged.is_ragged
            if len(slow.texts) > 1 and rng.random() < 0.2:
                slow.select(sorted(rng.sample(range(len(slow.texts)), len(slow.texts) - 1)))
        assert was_ragged


def uneven_rows(criteria, max_length):
    """Return four rows of 6, 8, 7 and 6 tokens, the last of them not active."""
    prompts = torch.randint(0, 11, (4, 6))
    text = RowTexts(prompts, max_length, 1, LogitsProcessorList(), criteria)
    for row, count in ((1, 2), (2, 1)):
        text.tokens[row] += torch.randint(2, 11, (count,)).tolist()
    text.rows = [0, 1, 2]
    assert text.longest == 8
    return text


class EndsWith(StoppingCriteria):
    """Ends a row at a pair of tokens, row 1 also at its tenth token."""

    def __call__(self, input_ids, scores, **kwargs):
        is_done = (input_ids[:, -2] == 5) & (input_ids[:, -1] == 6)
        is_done[1] |= input_ids.shape[1] == 10
        return is_done


def slow_ends(text, criteria, new, counts):
    """Append one token at a time to each row separately."""
    kept, finished, rows = [], [], []
    for i, row in enumerate(text.rows):
        tokens, is_done = list(text.tokens[row]), False
        added = 0
        while added < counts[i] and not is_done:
            tokens.append(int(new[i, added]))
            added += 1
            is_done = bool(criteria(torch.tensor(tokens).expand(4, -1), None)[row])
        kept.append(added)
        finished.append(is_done)
        rows.append(tokens)
    return kept, finished, rows


CRITERIA = {
    "ends": [EosTokenCriteria([0, 9])],
    "own": [EndsWith()],
    "ends and own": [EndsWith(), EosTokenCriteria([0, 9])],
}


@pytest.mark.parametrize("name", CRITERIA)
def test_where_rows_end(name):
    seen = set()
    for seed in range(60):
        torch.manual_seed(seed)
        criteria = StoppingCriteriaList([*CRITERIA[name], MaxLengthCriteria(11)])
        text = uneven_rows(criteria, max_length=11)
        new, counts = torch.randint(0, 10, (3, 4)), torch.randint(1, 5, (3,)).tolist()
        if seed % 3 == 0:
            new[:, :2] = torch.tensor([5, 6])
        kept, finished, rows = slow_ends(text, criteria, new, counts)
        assert text.add(new, counts) == kept
        assert text.finished == [*finished, False]
        assert text.unfinished() == [i for i, end in enumerate(finished) if not end]
        assert [text.tokens[row] for row in text.rows] == rows
        all_rows = [*rows, text.tokens[3]]
        longest = max(map(len, all_rows))
        assert text.sequences().tolist() == [tokens + [1] * (longest - len(tokens)) for tokens in all_rows]
        left = [0 if end else 11 - len(tokens) for end, tokens in zip(finished, rows, strict=True)]
        assert text.tokens_left() == left
        seen |= {(keeps < count, end) for count, keeps, end in zip(counts, kept, finished, strict=True)}
    # Ends in the middle and at the last of the tokens, and none.
    assert seen == {(True, True), (False, True), (False, False)}
