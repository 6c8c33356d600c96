"""The map as an interactive, self-contained HTML page."""

import json
from pathlib import Path

import numpy as np

from .wdr_map import WDRMap, signs

TEMPLATE = Path(__file__).with_name("wdr_map.html")
NUM_FREQUENT = 9
DIGITS = 4
# Margin around the points, as a share of the map.
MARGIN = 0.06

PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Word differences</title>
<style>
  :root {{ color-scheme: light dark; }}
  body {{ margin: 16px 20px; background: light-dark(#fff, #1c1d1f); }}
  h1 {{ font: 600 20px system-ui, sans-serif; margin: 0 0 10px; color: light-dark(#1f2328, #e6e6e6); }}
</style>
<h1>Word differences (WDR): the targets of the heads</h1>
{fragment}
</html>
"""


def map_fragment(wdr_map: WDRMap) -> str:
    """Return the interactive map as a `div` with data, style and script. It follows the page's `color-scheme`."""
    low, high = wdr_map.coordinates.min(0), wdr_map.coordinates.max(0)
    # Scale to the unit square, with the margin.
    scaled = (wdr_map.coordinates - low) / np.maximum(high - low, np.finfo(np.float32).tiny)
    scaled = MARGIN + (1 - 2 * MARGIN) * scaled
    columns = zip(wdr_map.levels.tolist(), wdr_map.positions.tolist(), scaled.tolist(), strict=True)
    data = {
        "tokens": wdr_map.tokens,
        "documents": wdr_map.documents,
        "points": [[level, position, round(x, DIGITS), round(y, DIGITS)] for level, position, (x, y) in columns],
        "diversity": [
            {"level": entry.level, "spread": entry.spread, "targets_per_word": entry.targets_per_word}
            for entry in wdr_map.diversity
        ],
        "signs": [signs(entry.level) for entry in wdr_map.diversity],
        "frequent": wdr_map.frequent_words(NUM_FREQUENT),
    }
    # A token may read `</script>` or `<!--`.
    text = json.dumps(data, separators=(",", ":")).replace("<", r"\u003c")
    return TEMPLATE.read_text(encoding="utf-8").replace("{{ data }}", text)


def map_page(wdr_map: WDRMap) -> str:
    """Return the interactive map as a self-contained HTML page."""
    return PAGE.format(fragment=map_fragment(wdr_map))
