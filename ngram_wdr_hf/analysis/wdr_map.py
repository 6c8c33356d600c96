"""A map of the targets of WDR heads: embeddings and word differences of a text, as in the paper's figure 2."""

from collections import Counter
from dataclasses import dataclass
from math import comb
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.errors import Unavailable
from ..method.differences import wdr
from .token_text import TextOrIds, token_labels, token_rows


class TargetDiversity(NamedTuple):
    """
    How much the targets of a word differ from each other at one level. `spread` is the variance of a word's targets,
    an unbiased estimate over all words, relative to the variance of all targets: 0 if each word has one target, as at
    level 0, and about 1 if targets do not depend on the word. `targets_per_word` is the mean number of different ones.
    """

    spread: float
    targets_per_word: float


@dataclass
class WDRMap:
    """
    Output embeddings and word differences of a text, projected to two dimensions by t-SNE. Each of the P points is a
    target of one word: at level n, the target of word i is `Δ_n e[i-n]`, computed from that word and the n words
    before it. `tokens` are readable labels of the text's tokens; `levels`, `positions` (in the text) and `coordinates`
    have an entry for each point, `diversity` for each level.
    """

    tokens: list[str]
    levels: np.ndarray
    positions: np.ndarray
    coordinates: np.ndarray
    diversity: list[TargetDiversity]

    @property
    def words(self) -> np.ndarray:
        """The word (label) that each point is a target of, an array of shape `(P,)`."""
        return np.array(self.tokens, dtype=object)[self.positions]

    def frequent_words(self) -> list[str]:
        """Return all words, the most frequent first; but purely alphabetic ones come before the others."""
        counts = Counter(self.tokens)
        return sorted(counts, key=lambda word: (not word.isalpha(), -counts[word], word))

    def formula(self, point: int) -> str:
        """Return the word difference of a point (given by its index) as text: `to − 2 want + we` at level 2."""
        position, level = self.positions[point], int(self.levels[point])
        text = self.tokens[position]
        for i in range(1, level + 1):
            sign, factor = "+−"[i % 2], f"{comb(level, i)} " if i < level else ""
            text += f" {sign} {factor}{self.tokens[position - i]}"
        return text

    def figure(self) -> Figure:
        """Return the paper's figure 2: a panel per level, and an enlarged panel of the 1-level targets of one word."""
        from .wdr_map_figure import draw_map

        return draw_map(self)


def wdr_map(
    model: PreTrainedModel,
    text_or_ids: TextOrIds,
    tokenizer: PreTrainedTokenizerBase,
    levels: int = 2,
    max_tokens: int = 1270,
) -> WDRMap:
    """
    Project the output embeddings of a text (or its token ids, or a list of such documents) and its 1- to n-level word
    differences, n = `levels`, together to two dimensions with t-SNE. Only differences inside a document are used. Of
    the text, the first `max_tokens` tokens are used, by default as many as in the paper.
    """
    weight = model.get_output_embeddings().weight.detach().float().cpu()
    rows = token_rows(text_or_ids, tokenizer, add_special_tokens=False)
    document = np.repeat(np.arange(len(rows)), [len(row) for row in rows])[:max_tokens]
    ids = np.array([token for row in rows for token in row], dtype=np.int64)[:max_tokens]
    targets = [_targets(weight[torch.from_numpy(ids)], document, level) for level in range(levels + 1)]
    vectors, positions = zip(*targets, strict=True)
    return WDRMap(
        tokens=token_labels(ids.tolist(), tokenizer),
        levels=np.repeat(np.arange(levels + 1), [len(of_level) for of_level in positions]),
        positions=np.concatenate(positions),
        diversity=[_diversity(*target, ids, level) for level, target in enumerate(targets)],
        coordinates=_project(np.concatenate(vectors)),
    )


def _targets(embeddings: torch.Tensor, document: np.ndarray, level: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the targets of a level, `(T, d)`, and the index in the text of the token of each, `(T,)`."""
    positions = np.arange(level, len(document))
    # The first tokens of a document have no target.
    positions = positions[document[level:] == document[: len(positions)]]
    return wdr(embeddings, level)[positions - level].numpy(), positions


def _diversity(vectors: np.ndarray, positions: np.ndarray, ids: np.ndarray, level: int) -> TargetDiversity:
    """Return the diversity of the targets of one level, `(T, d)`, whose tokens have these positions in the text."""
    _, word, count = np.unique(ids[positions], return_inverse=True, return_counts=True)
    if len(word) == len(count):
        raise Unavailable(f"The text has no token with two {level}-level targets: give a longer text.")
    vectors = vectors.astype(np.float64)
    sums = np.zeros((len(count), vectors.shape[1]))
    np.add.at(sums, word, vectors)
    within = np.square(vectors - (sums / count[:, None])[word]).sum() / (len(word) - len(count))
    total = np.square(vectors - vectors.mean(0)).sum() / (len(word) - 1)
    distinct = np.unique(np.stack([ids[positions - i] for i in range(level + 1)]), axis=1)
    return TargetDiversity(float(within / total) if total else 0.0, distinct.shape[1] / len(count))


def _project(vectors: np.ndarray) -> np.ndarray:
    """Project targets `(P, d)` with t-SNE, `(P, 2)`. Equal ones get the same point: t-SNE would separate copies."""
    # Imported here, because training does not need scikit-learn.
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    distinct, copies = np.unique(vectors, axis=0, return_inverse=True)
    # t-SNE considers about three neighbours per unit of perplexity. More iterations than 500 change little.
    perplexity = min(30.0, (len(distinct) - 1) / 3)
    # With several threads, results are not reproducible.
    with threadpool_limits(1):
        return TSNE(perplexity=perplexity, init="pca", max_iter=500, random_state=0).fit_transform(distinct)[copies]
