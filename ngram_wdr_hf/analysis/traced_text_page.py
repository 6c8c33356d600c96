"""A traced text as HTML: colours and marks by source, rejected drafts on hovering and by keyboard."""

from collections.abc import Sequence
from html import escape
from itertools import groupby

from ..decoding.statistics import LOOKUP_SOURCE, MODEL_SOURCE
from .traced_text import Draft, TracedRow, TracedText, TracedToken
from .traced_text_marks import (
    PART,
    counts_by_source,
    describe_counts,
    source_mark,
    source_name,
    visible,
    without_controls,
)

# A longer prompt is cut on the left.
PROMPT_CHARACTERS = 600
# How strong the colour of head 1, 2, ... is. Deeper heads have that of the last one; the mark tells them apart.
SHADES = ("20%", "36%", "52%", "68%")
HELP = (
    "A raised number is the depth of the head that drafted the token, a raised c marks a copy by prompt lookup. At a "
    "raised ×, a draft was rejected and the model chose the token itself: hover over it, tap it, or move to it with "
    "the Tab key to see the draft, and those after it that were dropped. Dropped drafts count as not accepted."
)

# Every text has a contrast of at least 4.5 to its background, in light and dark mode.
STYLE = """
.traced { --traced-text: light-dark(#1c1e21, #e6e7e9); --traced-back: light-dark(#ffffff, #16181c);
  --traced-muted: light-dark(#5b616a, #a3a9b3); --traced-line: light-dark(#dadde2, #3a3f47);
  --traced-head: light-dark(#56a5ee, #2f7fd0); --traced-lookup: light-dark(#ffc46b, #8a5200);
  --traced-rejected: light-dark(#b3261e, #ff8a80); --traced-popup: light-dark(#fff7f6, #2b2022);
  position: relative; color: var(--traced-text); background: var(--traced-back);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
.traced p { margin: .5rem 0; }
.traced .help, .traced .prompt { color: var(--traced-muted); }
.traced table { border-collapse: collapse; margin: .5rem 0; font-size: .9rem; font-variant-numeric: tabular-nums; }
.traced th, .traced td { padding: .2rem .4rem .2rem 0; border-bottom: 1px solid var(--traced-line);
  text-align: left; background: none; }
.traced .number { text-align: right; }
.traced .scroll { overflow-x: auto; }
.traced .text { position: relative; margin: .75rem 0; padding: .6rem .8rem; border: 1px solid var(--traced-line);
  border-radius: .5rem; line-height: 2; white-space: pre-wrap; overflow-wrap: anywhere; tab-size: 4; }
.traced .token { border-radius: .25rem; padding: .1rem 0; box-decoration-break: clone;
  -webkit-box-decoration-break: clone; }
.traced .token[data-mark]::after { content: attr(data-mark) / ""; font-size: .65em; vertical-align: .55em;
  line-height: 0; padding: 0 .1em; font-weight: 600; }
.traced .head { background: color-mix(in srgb, var(--traced-head) var(--shade), var(--traced-back));
  border-bottom: 2px solid var(--traced-head); }
.traced .lookup { background: var(--traced-lookup); border-bottom: 2px dashed var(--traced-text); }
.traced .replaced { text-decoration: underline wavy var(--traced-rejected) 1px; text-underline-offset: .25em;
  cursor: help; }
.traced .replaced[data-mark]::after { color: var(--traced-rejected); }
.traced .replaced:hover, .traced .replaced:focus { outline: 2px solid var(--traced-rejected); outline-offset: 1px; }
.traced .popup { position: absolute; left: .5rem; right: .5rem; z-index: 1; width: fit-content; margin-top: .15rem;
  padding: .3rem .7rem; border: 1px solid var(--traced-rejected); border-radius: .4rem; line-height: 1.5;
  background: var(--traced-popup); box-shadow: 0 3px 10px #0004; pointer-events: none; }
.traced .replaced:hover > .popup, .traced .replaced:focus > .popup { display: block !important; }
"""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Generated text by source</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 0 auto; max-width: 68rem; padding: 1rem; background: light-dark(#ffffff, #16181c);
  color: light-dark(#1c1e21, #e6e7e9); font-family: system-ui, sans-serif; }}
h1 {{ font-size: 1.4rem; margin: 0 0 .5rem; }}
</style>
</head>
<body>
<h1>Generated text by source</h1>
{fragment}</body>
</html>
"""


def whole_page(traced: TracedText) -> str:
    """Return a traced text as a self-contained HTML page."""
    return PAGE.format(fragment=fragment(traced))


def fragment(traced: TracedText) -> str:
    """Return a traced text as a `div` with its style. It follows the page's `color-scheme`."""
    texts = "".join(_row(row, traced.is_encoder_decoder) for row in traced.rows)
    return (
        f'<div class="traced">\n<style>{STYLE}</style>\n<p>{escape(describe_counts(traced))}</p>\n'
        f'{_legend(traced)}<p class="help">{escape(HELP)}</p>\n{texts}</div>\n'
    )


def _legend(traced: TracedText) -> str:
    """Return a table of the sources, each in its colours, with their tokens and drafts."""
    rows = [(source_span(row.source, source_name(row.source)), *row[1:]) for row in counts_by_source(traced)]
    num_replaced = sum(bool(token.rejected) for token in traced.tokens)
    if num_replaced:
        replaced = '<span class="token replaced" data-mark="×">of these, draft rejected</span>'
        rows.insert(1, (replaced, f"{num_replaced:,}", f"{num_replaced / len(traced.tokens):.0%}", "", ""))
    names = ("tokens", "share", "drafts", "accepted")
    body = "".join(f"<tr><td>{name}</td>{_numbers('td', cells)}</tr>\n" for name, *cells in rows)
    head = f"<thead><tr><th>source</th>{_numbers('th', names)}</tr></thead>"
    return f'<div class="scroll"><table>{head}\n<tbody>{body}</tbody></table></div>\n'


def _numbers(tag: str, cells: Sequence[str]) -> str:
    return "".join(f'<{tag} class="number">{cell}</{tag}>' for cell in cells)


def _row(row: TracedRow, is_encoder_decoder: bool) -> str:
    """Return the HTML of a prompt and the text after it; a source text is in a paragraph of its own."""
    cut = "…" if len(row.prompt) > PROMPT_CHARACTERS else ""
    prompt = escape(cut + without_controls(row.prompt[-PROMPT_CHARACTERS:]))
    tokens = "".join(map(_token, row.tokens))
    if is_encoder_decoder:
        return f'<p class="prompt" dir="auto">{prompt}</p>\n<div class="text" dir="auto">{tokens}</div>\n'
    return f'<div class="text" dir="auto"><span class="prompt">{prompt}</span>{tokens}</div>\n'


def _token(token: TracedToken) -> str:
    text = without_controls(token.text) or PART
    body = text.rstrip("\n")
    # Line breaks at the end come after the mark.
    line_breaks = text[len(body) :]
    shown = escape(body).replace("\n", "⏎\n") + "⏎" * len(line_breaks)
    if not token.rejected:
        return source_span(token.source, shown) + line_breaks
    drafts = f"Rejected: {_listed(token.rejected)}."
    if token.dropped:
        drafts += f" Dropped after it: {_listed(token.dropped)}."
    label = escape(f"“{visible(token.text)}” by the model. {drafts}")
    # `hidden`, so that the drafts are not part of the text where styles are removed.
    popup = f'<span class="popup" aria-hidden="true" hidden>{escape(drafts)}</span>'
    attributes = f'tabindex="0" role="note" aria-label="{label}"'
    return f'<span class="token replaced" data-mark="×" {attributes}>{shown}{popup}</span>{line_breaks}'


def _listed(drafts: Sequence[Draft]) -> str:
    """Return the texts of drafts with their sources, each named once for the drafts that follow one another."""
    groups = [(source, list(same)) for source, same in groupby(drafts, key=lambda draft: draft.source)]
    return ", ".join(
        f"{', '.join(f'“{visible(draft.text)}”' for draft in same)} by {source_name(source)}"
        for source, same in groups
    )


def source_span(source: int, shown: str) -> str:
    """Return HTML in the colours of a source, with its mark."""
    if source == MODEL_SOURCE:
        return f'<span class="token">{shown}</span>'
    mark = f'data-mark="{source_mark(source)}" title="{source_name(source)}"'
    if source == LOOKUP_SOURCE:
        return f'<span class="token lookup" {mark}>{shown}</span>'
    shade = SHADES[min(source, len(SHADES)) - 1]
    return f'<span class="token head" style="--shade: {shade}" {mark}>{shown}</span>'
