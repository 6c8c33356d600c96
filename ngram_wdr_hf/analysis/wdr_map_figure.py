"""The map as a plot, after figure 2 of the paper."""

from collections.abc import Iterable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from .wdr_map import WDRMap

# The colours of frequent words: matplotlib's, without grey.
COLORS = ("C0", "C1", "C2", "C3", "C4", "C5", "C6", "C8", "C9")
KEY = "spread: variance of a word's targets relative to the variance of all targets. Equal targets share one dot."


def draw_map(found: WDRMap) -> Figure:
    """
    Return a figure with a panel per level, with target diversity in the title and frequent words in colour. The third
    panel enlarges the 1-level targets of the most frequent word that has some.
    """
    frequent, num_levels = found.frequent_words(), len(found.diversity)
    # A word that only begins documents has none.
    with_target = set(found.words[found.levels == 1])
    word = next(word for word in frequent if word in with_target)
    colors = dict(zip(dict.fromkeys([word, *frequent]), COLORS, strict=False))
    num_rows = num_levels // 2 + 1
    figure = Figure(figsize=(10, 5.4 * num_rows), layout="constrained")
    figure.supxlabel(KEY, fontsize="medium")
    # The canvas measures text in pixels, to keep labels apart.
    FigureCanvasAgg(figure)
    panels = [figure.add_subplot(num_rows, 2, i) for i in range(1, num_levels + 2)]
    by_level, enlarged = [*panels[:2], *panels[3:]], panels[2]
    for level, (axes, diversity) in enumerate(zip(by_level, found.diversity, strict=True)):
        _draw_dots(axes, found, level, colors)
        name = f"{level}-level WDR" if level else "embeddings"
        axes.set_title(f"{name}: spread {diversity.spread:.2f}\n{diversity.targets_per_word:.1f} targets per word")
    _draw_dots(enlarged, found, 1, colors)
    enlarged.set_title(f"1-level WDR: enlarged, “{word}”", parse_math=False)
    # Where half of the targets are in each direction, and a margin.
    middle = np.quantile(found.coordinates[_dots(found, 1, [word])], (0.25, 0.75), axis=0)
    (left, bottom), (right, top) = middle + np.outer((-0.05, 0.05), np.ptp(found.coordinates, axis=0))
    enlarged.set(xlim=(left, right), ylim=(bottom, top))
    by_level[1].indicate_inset((left, bottom, right - left, top - bottom), edgecolor=colors[word])
    # Fix the layout, so that labels can be fitted into the panels.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for level, axes in enumerate(by_level):
        points = (_dots(found, level, [one]) for one in dict.fromkeys([*colors, *frequent]))
        _add_labels(axes, found, [(dots[0], found.words[dots[0]]) for dots in points if len(dots)], colors)
    points = [*_dots(found, 1, [word]), *_dots(found, 1, set(frequent) - {word})]
    _add_labels(enlarged, found, [(point, found.formula(point)) for point in points], colors)
    return figure


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
