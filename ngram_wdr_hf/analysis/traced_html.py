"""A traced text with colours and marks by source: as HTML with rejected drafts on hovering, and as plain text."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from ..decoding.statistics import LOOKUP_SOURCE, MODEL_SOURCE
from .token_text import LINE_MARKS

if TYPE_CHECKING:
    from .traced_text import TracedText, TracedToken

# Control characters as pictures, because terminals and pages do not show them.
CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
HELP = "Raised: the head that drafted the token; c, a copy by prompt lookup; ×, rejected drafts, shown on hovering."
# Every text has a contrast of at least 4.5 to its background, in light and dark mode.
STYLE = """
.traced { --head: light-dark(#56a5ee, #2f7fd0); --red: light-dark(#b3261e, #ff8a80); --back: light-dark(#fff, #16181c);
  color: light-dark(#1c1e21, #e6e7e9); background: var(--back); font: 16px/1.55 system-ui, sans-serif; }
.traced .help, .traced .prompt { color: light-dark(#5b616a, #a3a9b3); }
.traced .text { margin: .75rem 0; padding: .6rem .8rem; border: 1px solid #8886; border-radius: .5rem; line-height: 2;
  white-space: pre-wrap; overflow-wrap: anywhere; }
.traced .token[data-mark]::after { content: attr(data-mark) / ""; font-size: .65em; vertical-align: .55em;
  line-height: 0; padding: 0 .1em; }
.traced .head { background: color-mix(in srgb, var(--head) var(--shade), var(--back)); }
.traced .lookup { background: light-dark(#ffc46b, #8a5200); }
.traced .replaced { text-decoration: underline wavy var(--red) 1px; cursor: help; }
"""
PAGE_STYLE = """
:root { color-scheme: light dark; }
body { max-width: 68rem; margin: 0 auto; padding: 1rem; font: 16px/1.55 system-ui, sans-serif;
  color: light-dark(#1c1e21, #e6e7e9); background: light-dark(#fff, #16181c); }
section { overflow-x: auto; border-top: 1px solid #8886; }
table { border-collapse: collapse; margin: .75rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem 1.25rem .3rem 0; border-bottom: 1px solid #8886; text-align: left; }
img { max-width: 100%; background: #fff; margin: .5rem 0; }
"""


def as_page(title: str, body: str) -> str:
    """Return an HTML page with a heading."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{PAGE_STYLE}</style>\n<h1>{escape(title)}</h1>\n{body}</html>\n"
    )


def as_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of HTML as a table; the first row is the header."""
    head, *body = ("".join(f"<td>{cell}</td>" for cell in row) for row in rows)
    lines = "".join(f"<tr>{line}</tr>\n" for line in [head.replace("td>", "th>"), *body])
    return f"<table>{lines}</table>\n"


def as_fragment(traced: "TracedText") -> str:
    """Return a traced text as a `div` with its style. It follows the page's `color-scheme`."""
    statistics = traced.statistics
    counts = f"{statistics.num_tokens:,} tokens, {statistics.mean_acceptance_length:.2f} per row and forward pass."
    table = as_table([["source", "tokens", "share", "drafts", "accepted"], *_sources(traced)])
    texts = ""
    for prompt, tokens in traced.rows:
        # A source text is not continued.
        between = "<br>→ " if traced.is_encoder_decoder else ""
        before = f'<span class="prompt">{escape(visible(prompt))}</span>{between}'
        texts += f'<div class="text" dir="auto">{before}{"".join(map(_token, tokens))}</div>\n'
    return (
        f'<div class="traced">\n<style>{STYLE}</style>\n<p>{counts}</p>\n{table}'
        f'<p class="help">{escape(HELP)}</p>\n{texts}</div>\n'
    )


def _sources(traced: "TracedText") -> Iterator[list[str]]:
    """Yield a row of the legend for each source: its name, tokens, their share, drafts, acceptance rate."""
    counts, num_tokens = traced.counts, len(traced.tokens)
    for source, drafts in {MODEL_SOURCE: 0, **traced.num_drafts}.items():
        count = counts.get(source, 0)
        accepted = f"{count / drafts:.0%}" if drafts else ""
        yield [_span(source, _name(source)), f"{count:,}", f"{count / num_tokens:.0%}", f"{drafts:,}", accepted]


def _token(token: "TracedToken") -> str:
    text = visible(token.text)
    # Line breaks at the end come after the mark.
    line_breaks = text[len(text.rstrip("\n")) :]
    shown = escape(text.rstrip("\n")).replace("\n", "⏎\n") + "⏎" * len(line_breaks)
    if not token.rejected:
        return _span(token.source, shown) + line_breaks
    drafts = [f"{_quoted(draft)} by {_name(source)}" for draft, source in token.rejected]
    title = escape(f"Rejected: {', '.join(drafts)}")
    return f'<span class="token replaced" data-mark="×" title="{title}">{shown}</span>{line_breaks}'


def _span(source: int, shown: str) -> str:
    """Return HTML in the colours of a source, with its mark."""
    if source == MODEL_SOURCE:
        return f'<span class="token">{shown}</span>'
    kind = "lookup" if source == LOOKUP_SOURCE else "head"
    # Deeper heads have the colour of head 4; the mark tells them apart.
    attributes = f'style="--shade: {4 + 16 * min(source, 4)}%" data-mark="{_mark(source)}" title="{_name(source)}"'
    return f'<span class="token {kind}" {attributes}>{shown}</span>'


def marked(token: "TracedToken") -> str:
    """Return a token with the mark of its source and the rejected drafts."""
    mark = "" if token.source == MODEL_SOURCE else f"[{_mark(token.source)}]"
    drafts = [f"[{_mark(source)}]{_quoted(draft)}" for draft, source in token.rejected]
    return f"{visible(token.text)}{mark}" + (f"{{✗{' '.join(drafts)}}}" if drafts else "")


def visible(text: str) -> str:
    """Return a text with pictures of control characters, and a sign for a part of a character."""
    return text.translate(CONTROLS) or "◌"


def _quoted(draft: str) -> str:
    return f"“{visible(draft.translate(LINE_MARKS))}”"


def _name(source: int) -> str:
    return {MODEL_SOURCE: "model", LOOKUP_SOURCE: "prompt lookup"}.get(source, f"head {source}")


def _mark(source: int) -> str:
    return "c" if source == LOOKUP_SOURCE else str(source)
