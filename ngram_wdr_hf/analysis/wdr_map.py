"""A map of the targets of WDR heads: embeddings and word differences of a text, as in the paper's figure 2."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import comb
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.errors import Unavailable
from ..method.differences import wdr
from .token_text import TextOrIds, token_labels, token_rows

# The colours of frequent words: matplotlib's, without grey.
COLORS = ("C0", "C1", "C2", "C3", "C4", "C5", "C6", "C8", "C9")
KEY = "spread: variance of a word's targets relative to the variance of all targets. Equal targets share one dot."


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
        frequent, num_levels = self.frequent_words(), len(self.diversity)
        # A word that only begins documents has none.
        with_target = set(self.words[self.levels == 1])
        word = next(word for word in frequent if word in with_target)
        colors = dict(zip(dict.fromkeys([word, *frequent]), COLORS, strict=False))
        num_rows = num_levels // 2 + 1
        figure = Figure(figsize=(10, 5.4 * num_rows), layout="constrained")
        figure.supxlabel(KEY, fontsize="medium")
        # The canvas measures text in pixels, to keep labels apart.
        FigureCanvasAgg(figure)
        panels = [figure.add_subplot(num_rows, 2, i) for i in range(1, num_levels + 2)]
        by_level, enlarged = [*panels[:2], *panels[3:]], panels[2]
        for level, (axes, diversity) in enumerate(zip(by_level, self.diversity, strict=True)):
            _draw_dots(axes, self, level, colors)
            name = f"{level}-level WDR" if level else "embeddings"
            axes.set_title(f"{name}: spread {diversity.spread:.2f}\n{diversity.targets_per_word:.1f} targets per word")
        _draw_dots(enlarged, self, 1, colors)
        enlarged.set_title(f"1-level WDR: enlarged, “{word}”", parse_math=False)
        # Where half of the targets are in each direction, and a margin.
        middle = np.quantile(self.coordinates[_dots(self, 1, [word])], (0.25, 0.75), axis=0)
        (left, bottom), (right, top) = middle + np.outer((-0.05, 0.05), np.ptp(self.coordinates, axis=0))
        enlarged.set(xlim=(left, right), ylim=(bottom, top))
        by_level[1].indicate_inset((left, bottom, right - left, top - bottom), edgecolor=colors[word])
        # Fix the layout, so that labels can be fitted into the panels.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for level, axes in enumerate(by_level):
            points = (_dots(self, level, [one]) for one in dict.fromkeys([*colors, *frequent]))
            _add_labels(axes, self, [(dots[0], self.words[dots[0]]) for dots in points if len(dots)], colors)
        points = [*_dots(self, 1, [word]), *_dots(self, 1, set(frequent) - {word})]
        _add_labels(enlarged, self, [(point, self.formula(point)) for point in points], colors)
        return figure


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


def _dots(found: WDRMap, level: int, words: Iterable[str]) -> np.ndarray:
    """Return the indices of the different points of a level for some words, the most central one first."""
    points = np.flatnonzero((found.levels == level) & np.isin(found.words, list(words)))
    coordinates, first = np.unique(found.coordinates[points], axis=0, return_index=True)
    distances = np.abs(coordinates - coordinates.sum(0) / max(1, len(points))).sum(1)
    return points[first[np.argsort(distances)]]


def _draw_dots(axes: Axes, found: WDRMap, level: int, colors: dict[str, str]) -> None:
    rare = set(found.tokens) - set(colors)
    for words, color, area in [(rare, "0.8", 10), *(([word], color, 30) for word, color in colors.items())]:
        axes.scatter(*found.coordinates[_dots(found, level, words)].T, area, color=color)
    axes.set(xticks=[], yticks=[])
    # All panels have the same limits.
    axes.update_datalim(found.coordinates)
    axes.autoscale_view()


def _add_labels(axes: Axes, found: WDRMap, labels: list[tuple[int, str]], colors: dict[str, str]) -> None:
    """Label points in their order. A label without room beside its point is left out, and those after the first 40."""
    panel, written = axes.get_window_extent(), []
    # The halo makes labels legible on dots of the same colour.
    halo = [withStroke(linewidth=2, foreground="white")]
    style = {"textcoords": "offset points", "va": "center", "fontsize": 9, "parse_math": False, "path_effects": halo}
    for point, label in labels[:120]:
        color = colors.get(found.words[point], "0.4")
        text = axes.annotate(label, found.coordinates[point], (5, 0), color=color, **style)
        box = text.get_window_extent().padded(3, 0)
        has_room = panel.contains(*box.min) and panel.contains(*box.max) and not box.count_overlaps(written)
        if has_room and len(written) < 40:
            written.append(box)
        else:
            text.remove()
