"""Predictions of each token of a text as an HTML table."""

from collections.abc import Sequence
from html import escape

from .token_predictions import Prediction, TokenPredictions
from .traced_text import TracedToken
from .traced_text_marks import source_name, visible
from .traced_text_page import STYLE, source_span

HELP = (
    "Each row is a token, in the colour of its source. A cell has what was predicted there and its probability, with "
    "a ✓ if it is the token of the text. Head n made its prediction n tokens earlier. The stronger the colour of a "
    "cell, the more probable was the token of the text: hover over it to see how probable."
)
# Every text has a contrast of at least 4.5 to its background, in light and dark mode.
TABLE_STYLE = """
.predictions .scroll { max-height: 28rem; overflow: auto; }
.predictions table { width: 100%; margin: 0; }
.predictions thead th { position: sticky; top: 0; background: var(--traced-back); }
.predictions th, .predictions td { padding: .2rem .5rem; white-space: pre; }
.predictions .known { background: color-mix(in srgb, light-dark(#7fd18b, #1f6b33) var(--known), var(--traced-back)); }
"""
MISSING = '<td title="There was no text to predict from.">–</td>'


def predictions_fragment(tokens: Sequence[TracedToken], predictions: Sequence[TokenPredictions]) -> str:
    """Return the predictions of traced tokens as a `div` with its style. It follows the page's `color-scheme`."""
    has_ensemble = predictions[0].ensemble is not None
    names = [*map(source_name, range(len(predictions[0].by_depth))), *(["ensemble"] if has_ensemble else [])]
    head = "".join(f"<th>{name}</th>" for name in ("token", *names))
    rows = []
    for token, predicted in zip(tokens, predictions, strict=True):
        cells = [*predicted.by_depth, *([predicted.ensemble] if has_ensemble else [])]
        name = source_span(token.source, escape(visible(token.text)))
        rows.append(f"<tr><td>{name}</td>{''.join(map(_cell, cells))}</tr>\n")
    return (
        f'<div class="traced predictions">\n<style>{STYLE}{TABLE_STYLE}</style>\n<p class="help">{escape(HELP)}</p>\n'
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{''.join(rows)}</tbody></table></div>\n</div>\n"
    )


def _cell(prediction: Prediction | None) -> str:
    if prediction is None:
        return MISSING
    share = f"{prediction.token_probability:.0%}"
    shown = f"{escape(visible(prediction.text))} {prediction.probability:.0%}{' ✓' if prediction.is_right else ''}"
    return f'<td class="known" style="--known: {share}" title="the token of the text: {share}">{shown}</td>'
