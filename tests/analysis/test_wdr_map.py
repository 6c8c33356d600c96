"""The map of word differences: targets and diversity against slow references, plot, page and invalid input."""

import re
from collections import defaultdict
from math import comb

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import BertConfig, BertForMaskedLM, BertModel, PreTrainedTokenizerFast

from ngram_wdr_hf.analysis import WDRMap, wdr_map
from ngram_wdr_hf.analysis.token_text import token_labels
from ngram_wdr_hf.data.tokenizers import train_bpe_tokenizer, train_sentence_tokenizer, train_word_tokenizer
from tests.support.errors import raises_naming
from tests.support.tiny import VOCAB_SIZE, plain_model, plain_seq2seq, random_ids, tiny_model, tiny_seq2seq

# Tokens that break a page or a plot without escaping.
TRICKY = ["<unk>", "</script>", "<!--", "$x_1$", '"', "'", "\\", "&amp;", "\u2028", "λ"]
WORDS = [*TRICKY, *(f"word{chr(97 + i)}" for i in range(VOCAB_SIZE - len(TRICKY)))]
DOCUMENTS = [random_ids(1, 40, seed=1)[0].tolist(), [3], random_ids(1, 25, seed=2)[0].tolist(), [4, 5]]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")


@pytest.fixture(scope="module")
def found(tokenizer) -> WDRMap:
    return wdr_map(tiny_model(), DOCUMENTS, tokenizer)


def slow_targets(weight: torch.Tensor, documents: list[list[int]], level: int) -> list[tuple[int, int, torch.Tensor]]:
    """Return position, word and target one by one, from the binomial form in the paper."""
    targets, begin = [], 0
    for row in documents:
        for i in range(level, len(row)):
            terms = [(-1) ** k * comb(level, k) * weight[row[i - k]].double() for k in range(level + 1)]
            targets.append((begin + i, row[i], sum(terms)))
        begin += len(row)
    return targets


def slow_spread(targets: list[tuple[int, int, torch.Tensor]]) -> float:
    by_word = defaultdict(list)
    for _, word, target in targets:
        by_word[word].append(target)

    def squares(vectors: list[torch.Tensor]) -> float:
        middle = sum(vectors) / len(vectors)
        return sum(float((vector - middle).square().sum()) for vector in vectors)

    within = sum(squares(vectors) for vectors in by_word.values()) / (len(targets) - len(by_word))
    return within / (squares([target for *_, target in targets]) / (len(targets) - 1))


class FirstColumns:
    """Replaces t-SNE by the first two columns."""

    def __init__(self, **options):
        pass

    def fit_transform(self, vectors: np.ndarray) -> np.ndarray:
        return vectors[:, :2]


BERT = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "initializer_range": 0.3,
}
MODELS = {
    "heads": lambda: tiny_model(tie_word_embeddings=False),
    "causal": lambda: plain_model(tie_word_embeddings=False, dtype=torch.bfloat16),
    "marian": lambda: tiny_seq2seq("marian"),
    "t5": lambda: plain_seq2seq("t5", tie_word_embeddings=False),
    "masked": lambda: BertForMaskedLM(BertConfig(**BERT, tie_word_embeddings=False)),
}
# The modules of the output embeddings.
OUTPUTS = {"t5": "lm_head", "masked": "cls.predictions.decoder"}


@pytest.mark.parametrize("levels", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_targets_of_running_text(name, levels, tokenizer, monkeypatch):
    monkeypatch.setattr("sklearn.manifold.TSNE", FirstColumns)
    model = MODELS[name]()
    weight = model.get_submodule(OUTPUTS.get(name, "lm_head")).weight.detach()
    found = wdr_map(model, DOCUMENTS, tokenizer, levels=levels)
    assert found.tokens == [WORDS[token] for row in DOCUMENTS for token in row]
    assert found.documents == [i for i, row in enumerate(DOCUMENTS) for _ in row]
    assert set(found.levels.tolist()) == set(range(levels + 1))
    for level in range(levels + 1):
        slow = slow_targets(weight, DOCUMENTS, level)
        # 68 tokens; each level has one fewer per document.
        assert len(slow) == [68, 64, 61, 59][level]
        of_level = found.levels == level
        assert found.positions[of_level].tolist() == [position for position, *_ in slow]
        assert found.words[of_level].tolist() == [WORDS[word] for _, word, _ in slow]
        expected = torch.stack([target[:2] for *_, target in slow])
        np.testing.assert_allclose(found.coordinates[of_level], expected, atol=1e-5)


def test_diversity_against_its_definition(found):
    weight = tiny_model().lm_head.weight.detach()
    assert [entry.level for entry in found.diversity] == [0, 1, 2]
    assert found.diversity[0].spread == pytest.approx(0, abs=1e-12)
    assert found.diversity[0].targets_per_word == 1
    text = [token for row in DOCUMENTS for token in row]
    for entry in found.diversity:
        slow = slow_targets(weight, DOCUMENTS, entry.level)
        assert entry.num_targets == len(slow)
        assert entry.num_words == len({word for _, word, _ in slow})
        distinct = {tuple(text[position - entry.level : position + 1]) for position, *_ in slow}
        assert entry.num_distinct == len(distinct)
        assert entry.targets_per_word == len(distinct) / entry.num_words
        assert entry.spread == pytest.approx(slow_spread(slow), abs=1e-5)
    # On random tokens, the token itself explains 1/2 of the variance at level 1, and 1 / (1 + 4 + 1) at level 2.
    spreads = [entry.spread for entry in found.diversity]
    assert spreads[1:] == pytest.approx([1 / 2, 5 / 6], abs=0.12)


def test_equal_targets_are_one_point(found):
    weight = tiny_model().lm_head.weight.detach()
    targets = [target for level in range(3) for *_, target in slow_targets(weight, DOCUMENTS, level)]
    points = defaultdict(set)
    for target, point in zip(targets, found.coordinates.tolist(), strict=True):
        # Without the sign of a zero.
        points[tuple((target.round(decimals=4) + 0.0).tolist())].add(tuple(point))
    assert all(len(of_target) == 1 for of_target in points.values())
    assert len(set().union(*points.values())) == len(points) < len(targets)


def test_neighbours_stay_together(tokenizer):
    """Words with similar embeddings are close on the map."""
    model = plain_model()
    weight = model.lm_head.weight.data
    group = torch.arange(VOCAB_SIZE) % 3
    weight.copy_(20 * torch.eye(weight.shape[1])[group] + 0.1 * torch.randn(weight.shape))
    found = wdr_map(model, random_ids(1, 80), tokenizer)
    of_level = found.levels == 0
    groups = np.array([WORDS.index(word) % 3 for word in found.words[of_level]])
    points = found.coordinates[of_level]
    centers = np.stack([points[groups == i].mean(0) for i in range(3)])
    nearest = np.linalg.norm(points[:, None] - centers, axis=-1).argmin(1)
    assert (nearest == groups).all()


def test_the_same_arguments_give_the_same_map(found, tokenizer):
    again = wdr_map(tiny_model(), DOCUMENTS, tokenizer)
    assert (again.coordinates == found.coordinates).all()
    assert not np.allclose(wdr_map(tiny_model(), DOCUMENTS, tokenizer, perplexity=5).coordinates, found.coordinates)


def test_text_and_ids_are_the_same(tokenizer, monkeypatch):
    monkeypatch.setattr("sklearn.manifold.TSNE", FirstColumns)
    ids = random_ids(2, 30)
    texts = [" ".join(WORDS[token] for token in row) for row in ids]
    for one in (texts[0], ids[0], ids[0].tolist(), ids[0].numpy(), ids[:1], [texts[0]]):
        found = wdr_map(plain_model(), one, tokenizer)
        assert found.tokens == texts[0].split(" ") and set(found.documents) == {0}
    maps = [
        wdr_map(plain_model(), both, tokenizer) for both in (texts, ids, ids.tolist(), list(ids), list(ids.numpy()))
    ]
    for found in maps:
        assert found.tokens == " ".join(texts).split(" ") and found.documents == [0] * 30 + [1] * 30
        assert (found.coordinates == maps[0].coordinates).all()
    found = wdr_map(plain_model(), texts, tokenizer, max_tokens=40)
    assert found.tokens == " ".join(texts).split(" ")[:40] and found.documents == [0] * 30 + [1] * 10


def test_formula_of_a_point(found):
    text = [WORDS[token] for row in DOCUMENTS for token in row]
    point = np.flatnonzero((found.levels == 2) & (found.positions == 7))[0]
    assert found.formula(point) == f"{text[7]} − 2 {text[6]} + {text[5]}"
    point = np.flatnonzero((found.levels == 1) & (found.positions == 7))[0]
    assert found.formula(point) == f"{text[7]} − {text[6]}"
    assert found.formula(7) == text[7]


TEXT = "the reader reads the readings\n\tand the €-sign: read(the, reading)  reread"


def wordpiece() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator([TEXT], trainers.WordPieceTrainer(vocab_size=40, special_tokens=["[UNK]"]))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def sentencepiece() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=40, special_tokens=["<unk>"]))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


TOKENIZERS = {
    "bytes": lambda: train_bpe_tokenizer([TEXT], 275),
    "sentences": lambda: train_sentence_tokenizer([TEXT], 275),
    "sentencepiece": sentencepiece,
    "wordpiece": wordpiece,
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_labels_read_well_and_differ(name):
    tokenizer = TOKENIZERS[name]()
    ids = tokenizer(TEXT, add_special_tokens=False).input_ids
    labels = token_labels(ids, tokenizer)
    by_token = defaultdict(set)
    for token, label in zip(ids, labels, strict=True):
        by_token[token].add(label)
    assert all(len(of_token) == 1 for of_token in by_token.values())
    assert len(set().union(*by_token.values())) == len(by_token)
    assert not re.search(r"[Ġ▁Ċĉ\s]|##", "".join(labels))
    assert all(labels) and {"the", "·s"} < set(labels)


@pytest.mark.parametrize("levels", [1, 2])
def test_figure(levels, tokenizer, tmp_path, recwarn):
    found = wdr_map(tiny_model(), DOCUMENTS, tokenizer, levels=levels)
    figure = found.figure()
    assert len(figure.axes) == levels + 2
    titles = [axes.get_title() for axes in figure.axes]
    enlarged = titles.pop(2)
    assert f"“{found.frequent_words(1)[0]}”" in enlarged
    for entry, title in zip(found.diversity, titles, strict=True):
        assert f"spread {entry.spread:.2f}" in title and f"{entry.targets_per_word:.1f} targets" in title
    figure.savefig(tmp_path / "map.png", dpi=60)
    # Each panel has labels, inside the panel and without overlaps.
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in axes.texts]
        assert len(boxes) > 3
        wider = [box.padded(5, 0) for box in boxes]
        assert all(not box.count_overlaps(boxes[:i]) for i, box in enumerate(wider))
        frame = axes.get_window_extent()
        assert all(frame.contains(*box.min) and frame.contains(*box.max) for box in boxes)
    # Every different target is a dot, coloured or grey.
    of_levels = [*figure.axes[:2], *figure.axes[3:]]
    for axes, entry in zip(of_levels, found.diversity, strict=True):
        assert sum(len(dots.get_offsets()) for dots in axes.collections) == entry.num_distinct
        assert len(axes.collections) == 1 + 9
    assert [text.get_text() for text in figure.legends[0].get_texts()] == found.frequent_words(9)
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]


def test_most_frequent_word_that_only_begins_documents():
    """It has no 1-level target, so another word is enlarged."""
    tokenizer = train_word_tokenizer(["die katze mag das kind"])
    documents = [f"die {words}" for words in ("katze mag das kind", "katze mag", "kind mag katze", "das kind mag")] * 2
    found = wdr_map(tiny_model(), documents, tokenizer)
    first, second = found.frequent_words(2)
    assert first == "die" and second in found.figure().axes[2].get_title()
    with raises_naming(ValueError, "`word`", "'die'", repr(second)):
        found.figure("die")


REPEATED = [2, 3, 4, 5] * 10


@pytest.mark.parametrize(
    "arguments",
    [
        {"text_or_ids": ""},
        {"text_or_ids": [2, 3, 4]},
        {"text_or_ids": [2, 3, 4, 2]},
        {"text_or_ids": [2, -100, 3] * 9},
        {"text_or_ids": [*REPEATED, VOCAB_SIZE]},
        {"text_or_ids": {"input_ids": REPEATED}},
        {"levels": 0},
        {"max_tokens": 0},
        {"perplexity": 12},
        {"model": BertModel(BertConfig(**BERT))},
    ],
)
def test_bad_input(arguments, tokenizer):
    with pytest.raises(ValueError):
        wdr_map(**{"model": plain_model(), "text_or_ids": REPEATED, "tokenizer": tokenizer, **arguments})
