"""The map as a plot, after figure 2 of the paper."""

from collections.abc import Iterable, Sequence
from math import ceil
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import get_font_names
from matplotlib.patches import Rectangle
from matplotlib.transforms import Bbox

from .wdr_map import TargetDiversity, WDRMap

# Fonts for characters that matplotlib's own font lacks, if installed.
FALLBACK_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "Arial Unicode MS",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Malgun Gothic",
    "Noto Sans",
)
PANEL_INCHES = 5.0
# The colours of frequent words: matplotlib's, without grey.
COLORS = ("C0", "C1", "C2", "C3", "C4", "C5", "C6", "C8", "C9")
RARE, RARE_LABEL = "0.82", "0.4"
# In points squared.
RARE_AREA, FREQUENT_AREA = 10, 30
LARGE_LABEL, SMALL_LABEL = 11, 8
MOST_LABELS = 40
# Distance between a dot and its label, in points.
GAP = 3.5
# Minimum distance between two labels, in pixels.
WORD_SPACE = 6
# The share of a word's targets in the enlarged panel.
CLOSE_SHARE = 0.5
# Candidate positions of a label: alignment and direction from its dot.
SIDES = (("left", "center", 1, 0), ("right", "center", -1, 0), ("center", "bottom", 0, 1), ("center", "top", 0, -1))
KEY = (
    "spread: variance of a word's targets relative to the variance of all targets. "
    "Equal targets share one dot; its size shows their number."
)


class Label(NamedTuple):
    """
    A label of a dot.

    Args:
        point (`np.ndarray` of shape `(2,)`): The coordinates of the dot.
        text (`str`): The text.
        color (`str`): The colour.
        size (`float`): The font size in points.
    """

    point: np.ndarray
    text: str
    color: str
    size: float


def draw_map(wdr_map: WDRMap, word: str | None = None) -> Figure:
    """
    Return the map as a figure: a panel per level, and an enlarged panel of the 1-level targets of one word. Other
    installed fonts are used for characters that matplotlib's font lacks.

    Args:
        wdr_map (`WDRMap`): The map.
        word (`str`, *optional*): The word to enlarge, a label of the map. By default, the most frequent one with a
            1-level target.
    """
    installed = set(get_font_names())
    with rc_context({"font.family": ["DejaVu Sans", *(name for name in FALLBACK_FONTS if name in installed)]}):
        return _draw(wdr_map, word)


def _draw(wdr_map: WDRMap, word: str | None) -> Figure:
    """
    Return a figure with a panel per level on the same axes, with target diversity in the title and frequent words in
    colour. After the 1-level panel comes an enlarged panel for the targets of `word`, the most frequent one for
    `None`. Raise a `ValueError` if the word has no 1-level target.
    """
    frequent = wdr_map.frequent_words(len(COLORS))
    # A word that only begins documents has none.
    with_target = set(wdr_map.words[wdr_map.levels == 1])
    default = next(word for word in wdr_map.frequent_words(len(wdr_map.counts)) if word in with_target)
    word = default if word is None else word
    if word not in with_target:
        raise ValueError(f"`word` {word!r} has no 1-level target in this text: choose another, such as {default!r}.")
    colors = dict(zip(dict.fromkeys([word, *frequent]), COLORS, strict=False))
    num_rows = ceil((len(wdr_map.diversity) + 1) / 2)
    figure = Figure(figsize=(2 * PANEL_INCHES, (PANEL_INCHES + 0.4) * num_rows), layout="constrained")
    # The canvas measures text in pixels, to keep labels apart.
    FigureCanvasAgg(figure)
    panels = figure.subplots(num_rows, 2).flat
    by_level = [next(panels), next(panels)]
    enlarged = next(panels)
    by_level += [next(panels) for _ in wdr_map.diversity[2:]]
    for axes in panels:
        axes.remove()
    for axes, diversity in zip(by_level, wdr_map.diversity, strict=True):
        _draw_dots(axes, wdr_map, diversity.level, colors)
        axes.set_title(_title(diversity))
        _set_limits(axes, wdr_map.coordinates)
    _draw_dots(enlarged, wdr_map, 1, colors)
    enlarged.set_title(f"1-level WDR: enlarged, “{word}”\n(the frame in the 1-level panel)", parse_math=False)
    _set_limits(enlarged, _densest_square(wdr_map, word))
    (left, right), (bottom, top) = enlarged.get_xlim(), enlarged.get_ylim()
    by_level[1].add_patch(Rectangle((left, bottom), right - left, top - bottom, fill=False, edgecolor=colors[word]))
    # Matplotlib drops labels that begin with `_` and parses `$`, so the words are set after the legend is made.
    legend = figure.legend(
        by_level[0].collections[1:],
        [str(i) for i in range(len(colors))],
        loc="outside lower center",
        ncols=len(colors),
        title=KEY,
        frameon=False,
    )
    for handle, text, label in zip(legend.legend_handles, legend.get_texts(), colors, strict=True):
        handle.set_sizes([2 * FREQUENT_AREA])
        text.set(parse_math=False, text=label)
    # Fix the layout, so that labels can be fitted into the panels.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes, diversity in zip(by_level, wdr_map.diversity, strict=True):
        _add_labels(axes, _word_labels(wdr_map, diversity.level, colors))
    _add_labels(enlarged, _formula_labels(wdr_map, word, colors[word]))
    return figure


def _title(diversity: TargetDiversity) -> str:
    name = f"{diversity.level}-level WDR" if diversity.level else "embeddings"
    return f"{name}: spread {diversity.spread:.2f}\n{diversity.targets_per_word:.1f} targets per word"


def _dots(wdr_map: WDRMap, level: int, words: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """
    Return the dots of a level for some words: the index of one point for each group of equal targets, and the size of
    each group.
    """
    points = np.flatnonzero((wdr_map.levels == level) & np.isin(wdr_map.words, list(words)))
    _, first, counts = np.unique(wdr_map.coordinates[points], axis=0, return_index=True, return_counts=True)
    return points[first], counts


def _draw_dots(axes: Axes, wdr_map: WDRMap, level: int, colors: dict[str, str]) -> None:
    rare, counts = _dots(wdr_map, level, wdr_map.counts.keys() - colors)
    axes.scatter(*wdr_map.coordinates[rare].T, RARE_AREA * np.sqrt(counts), color=RARE, linewidths=0)
    for word, color in colors.items():
        points, counts = _dots(wdr_map, level, [word])
        axes.scatter(*wdr_map.coordinates[points].T, FREQUENT_AREA * np.sqrt(counts), color=color)
    axes.set(xticks=[], yticks=[])


def _set_limits(axes: Axes, coordinates: np.ndarray) -> None:
    low, high = coordinates.min(0), coordinates.max(0)
    margin = 0.08 * (high - low)
    axes.set(xlim=(low[0] - margin[0], high[0] + margin[0]), ylim=(low[1] - margin[1], high[1] + margin[1]))


def _densest_square(wdr_map: WDRMap, word: str) -> np.ndarray:
    """
    Return the lower left and upper right corner, `(2, 2)`, of the smallest square around a word's 1-level target that
    holds half of them. It is square in the panel, and not smaller than a tenth of it.
    """
    size = np.ptp(wdr_map.coordinates, axis=0)
    targets = wdr_map.coordinates[_dots(wdr_map, 1, [word])[0]] / size
    distances = np.abs(targets[:, None] - targets).max(-1)
    reach = np.sort(distances, axis=1)[:, round(CLOSE_SHARE * (len(targets) - 1))]
    center = reach.argmin()
    # Minimum size, for a single target or equal ones.
    reach = max(reach[center], 0.05)
    # Keep the frame inside the map.
    low, high = (wdr_map.coordinates.min(0) / size, wdr_map.coordinates.max(0) / size)
    middle = targets[center] if 2 * reach >= 1 else np.clip(targets[center], low + reach, high - reach)
    return np.stack([middle - reach, middle + reach]) * size


def _word_labels(wdr_map: WDRMap, level: int, colors: dict[str, str]) -> list[Label]:
    """
    Return a label for each word at its most central target of a level: words with a colour first, then by frequency.
    """
    labels = []
    for word in dict.fromkeys([*colors, *wdr_map.frequent_words(len(wdr_map.counts))]):
        targets = wdr_map.coordinates[(wdr_map.levels == level) & (wdr_map.words == word)]
        if len(targets):
            middle = np.abs(targets - np.median(targets, axis=0)).sum(1).argmin()
            style = (colors[word], LARGE_LABEL) if word in colors else (RARE_LABEL, SMALL_LABEL)
            labels.append(Label(targets[middle], word, *style))
    return labels


def _formula_labels(wdr_map: WDRMap, word: str, color: str) -> list[Label]:
    """Return a label with the formula of each 1-level target: those of `word` first, in `color`, then the others."""
    word_points, other_points = (_dots(wdr_map, 1, words)[0] for words in ([word], wdr_map.counts.keys() - [word]))
    styles = [(point, color, LARGE_LABEL) for point in word_points] + [
        (point, RARE_LABEL, SMALL_LABEL) for point in other_points
    ]
    return [Label(wdr_map.coordinates[point], wdr_map.formula(point), *style) for point, *style in styles]


def _add_labels(axes: Axes, labels: Sequence[Label]) -> None:
    """
    Add labels to a panel in their order, up to `MOST_LABELS`. A label without room beside its dot, or with a dot
    outside the panel, is left out.
    """
    panel = axes.get_window_extent()
    # The radii of coloured dots in points, by center.
    radii = {
        tuple(center): np.sqrt(area / np.pi)
        for dots in axes.collections[1:]
        for center, area in zip(dots.get_offsets().tolist(), dots.get_sizes(), strict=True)
    }
    dots = [_square(axes, center, radius) for center, radius in radii.items()]
    written = []
    for label in labels:
        if len(written) == MOST_LABELS:
            return
        if not panel.contains(*axes.transData.transform(label.point)):
            continue
        gap = GAP + radii.get(tuple(label.point.tolist()), 0)
        for horizontal, vertical, *side in SIDES:
            text = axes.annotate(
                label.text,
                label.point,
                gap * np.array(side),
                textcoords="offset points",
                ha=horizontal,
                va=vertical,
                color=label.color,
                fontsize=label.size,
                parse_math=False,
            )
            box = text.get_window_extent()
            apart = Bbox([[box.x0 - WORD_SPACE, box.y0], [box.x1 + WORD_SPACE, box.y1]])
            if _is_inside(box, panel) and not box.count_overlaps(dots) and not apart.count_overlaps(written):
                written.append(box)
                break
            text.remove()


def _square(axes: Axes, center: tuple[float, float], radius: float) -> Bbox:
    """Return the bounding box of a dot in pixels; its radius is in points."""
    middle, reach = axes.transData.transform(center), radius * axes.figure.dpi / 72
    return Bbox([middle - reach, middle + reach])


def _is_inside(box: Bbox, panel: Bbox) -> bool:
    return panel.x0 <= box.x0 and box.x1 <= panel.x1 and panel.y0 <= box.y0 and box.y1 <= panel.y1
