"""The map of word differences: targets and diversity against slow references, labels and plot."""

import sys
from collections import defaultdict
from math import comb

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ngram_wdr_hf.analysis import WDRMap, wdr_map
from tests.support.errors import raises_naming
from tests.support.tiny import VOCAB_SIZE, plain_model, plain_seq2seq, random_ids, tiny_model

# Tokens that break a plot without escaping.
TRICKY = ["<unk>", "_x", "$x_1$", '"', "\\", "λ"]
WORDS = [*TRICKY, *(f"word{chr(0x410 + i)}" for i in range(VOCAB_SIZE - len(TRICKY)))]
DOCUMENTS = [random_ids(1, 40, seed=1)[0].tolist(), [3], random_ids(1, 25, seed=2)[0].tolist(), [4, 5]]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")


@pytest.fixture(scope="module")
def found(tokenizer) -> WDRMap:
    return wdr_map(tiny_model(), DOCUMENTS, tokenizer)


def slow_targets(weight: torch.Tensor, level: int) -> list[tuple[int, int, torch.Tensor]]:
    """Return position, word and target one by one, from the binomial form in the paper."""
    targets, begin = [], 0
    for row in DOCUMENTS:
        for i in range(level, len(row)):
            terms = [(-1) ** k * comb(level, k) * weight[row[i - k]].double() for k in range(level + 1)]
            targets.append((begin + i, row[i], sum(terms)))
        begin += len(row)
    return targets


def slow_spread(targets: list[tuple[int, int, torch.Tensor]]) -> float:
    def variance(groups: list[list[torch.Tensor]]) -> float:
        squares = [(vector - sum(group) / len(group)).square().sum() for group in groups for vector in group]
        return float(sum(squares)) / (len(squares) - len(groups))

    everything = [target for *_, target in targets]
    by_word = [[target for _, other, target in targets if other == word] for word in {word for _, word, _ in targets}]
    return variance(by_word) / variance([everything])


@pytest.fixture
def first_columns(monkeypatch):
    """Replace t-SNE by the first two columns."""
    monkeypatch.setattr(sys.modules[WDRMap.__module__], "_project", lambda vectors: vectors[:, :2])


MODELS = {
    "heads": lambda: tiny_model(tie_word_embeddings=False),
    "causal": lambda: plain_model(tie_word_embeddings=False, dtype=torch.bfloat16),
    "t5": lambda: plain_seq2seq("t5", tie_word_embeddings=False),
}


@pytest.mark.parametrize("levels", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_targets(name, levels, tokenizer, first_columns):
    model = MODELS[name]()
    found = wdr_map(model, DOCUMENTS, tokenizer, levels=levels)
    text = [token for row in DOCUMENTS for token in row]
    assert found.tokens == [WORDS[token] for token in text]
    assert set(found.levels.tolist()) == set(range(levels + 1)) and len(found.diversity) == levels + 1
    for level, diversity in enumerate(found.diversity):
        slow = slow_targets(model.lm_head.weight.detach(), level)
        # 68 tokens; each level has one fewer per document.
        assert len(slow) == [68, 64, 61, 59][level]
        of_level = found.levels == level
        assert found.positions[of_level].tolist() == [position for position, *_ in slow]
        assert found.words[of_level].tolist() == [WORDS[word] for _, word, _ in slow]
        expected = torch.stack([target[:2] for *_, target in slow])
        np.testing.assert_allclose(found.coordinates[of_level], expected, atol=1e-5)
        distinct = {tuple(text[position - level : position + 1]) for position, *_ in slow}
        assert diversity.targets_per_word == len(distinct) / len({word for _, word, _ in slow})
        assert diversity.spread == pytest.approx(slow_spread(slow), abs=1e-5)


def test_equal_targets_are_one_point_and_the_map_is_reproducible(found, tokenizer):
    weight = tiny_model().lm_head.weight.detach()
    points = defaultdict(set)
    targets = [target for level in range(3) for *_, target in slow_targets(weight, level)]
    for target, point in zip(targets, found.coordinates.tolist(), strict=True):
        # Without the sign of a zero.
        points[tuple((target.round(decimals=4) + 0.0).tolist())].add(tuple(point))
    assert len(set().union(*points.values())) == len(points) < len(targets)
    assert (wdr_map(tiny_model(), DOCUMENTS, tokenizer).coordinates == found.coordinates).all()


def test_text_and_ids_are_the_same(tokenizer, first_columns):
    ids = random_ids(2, 30)
    texts = [" ".join(WORDS[token] for token in row) for row in ids]
    for both in (texts, ids, ids.tolist(), list(ids.numpy())):
        found = wdr_map(plain_model(), both, tokenizer, max_tokens=40)
        assert found.tokens == " ".join(texts).split(" ")[:40] and (found.levels == 1).sum() == 38
    assert wdr_map(plain_model(), texts[0], tokenizer).tokens == wdr_map(plain_model(), ids[0], tokenizer).tokens


def test_words_and_formulas(found, tokenizer):
    text = [WORDS[token] for row in DOCUMENTS for token in row]
    for level, formula in enumerate((text[7], f"{text[7]} − {text[6]}", f"{text[7]} − 2 {text[6]} + {text[5]}")):
        assert found.formula(np.flatnonzero((found.levels == level) & (found.positions == 7))[0]) == formula
    # A word that only begins documents has no 1-level target, so another word is enlarged.
    found = wdr_map(tiny_model(), [[10, 11, 12, 13], [10, 11, 12], [10, 12, 11], [10, 13, 11]] * 2, tokenizer)
    first, second = found.frequent_words()[:2]
    assert first == WORDS[10] and second in found.figure().axes[2].get_title()


def test_text_that_is_too_short(tokenizer):
    with raises_naming(ValueError, "longer text"):
        wdr_map(plain_model(), [2, 3, 4, 2], tokenizer)
