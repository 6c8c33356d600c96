"""A traced text with colours and marks by source: as HTML with rejected drafts on hovering, and as plain text."""

from collections.abc import Sequence
from html import escape

from ..decoding.statistics import LOOKUP_SOURCE, MODEL_SOURCE
from .token_text import LINE_MARKS
from .traced_text import Draft, TracedRow, TracedText, TracedToken

# What stands for a token that is a part of a character.
PART = "◌"
# Control characters as pictures, because terminals and pages do not show them.
CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
# A longer prompt is cut on the left.
PROMPT_CHARACTERS = 600
# How strong the colour of head 1, 2, ... is. Deeper heads have that of the last one; the mark tells them apart.
SHADES = ("20%", "36%", "52%", "68%")
HELP = (
    "A raised number is the depth of the head that drafted the token, a raised c marks a copy by prompt lookup. At a "
    "raised ×, a draft was rejected: hover over it, tap it, or move to it with the Tab key to see the draft."
)
# Every text has a contrast of at least 4.5 to its background, in light and dark mode.
STYLE = """
.traced { --head: light-dark(#56a5ee, #2f7fd0); --red: light-dark(#b3261e, #ff8a80); --back: light-dark(#fff, #16181c);
  color: light-dark(#1c1e21, #e6e7e9); background: var(--back); font: 16px/1.55 system-ui, sans-serif; }
.traced .help, .traced .prompt { color: light-dark(#5b616a, #a3a9b3); }
.traced th, .traced td { padding: .2rem .5rem .2rem 0; text-align: left; background: none; }
.traced .text { position: relative; margin: .75rem 0; padding: .6rem .8rem; border: 1px solid #8886;
  border-radius: .5rem; line-height: 2; white-space: pre-wrap; overflow-wrap: anywhere; }
.traced .token { border-radius: .25rem; }
.traced .token[data-mark]::after { content: attr(data-mark) / ""; font-size: .65em; vertical-align: .55em;
  line-height: 0; padding: 0 .1em; }
.traced .head { background: color-mix(in srgb, var(--head) var(--shade), var(--back)); }
.traced .lookup { background: light-dark(#ffc46b, #8a5200); }
.traced .replaced { text-decoration: underline wavy var(--red) 1px; cursor: help; }
.traced .popup { position: absolute; left: .5rem; right: .5rem; z-index: 1; width: fit-content; padding: .3rem .7rem;
  border: 1px solid var(--red); border-radius: .4rem; line-height: 1.5; background: var(--back); }
.traced .replaced:hover > .popup, .traced .replaced:focus > .popup { display: block !important; }
"""


def page(title: str, body: str, style: str = ":root { color-scheme: light dark; }") -> str:
    """Return an HTML page with a heading."""
    title = escape(title)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n<h1>{title}</h1>\n{body}</html>\n"
    )


def fragment(traced: TracedText) -> str:
    """Return a traced text as a `div` with its style. It follows the page's `color-scheme`."""
    statistics = traced.statistics
    counts = f"{statistics.num_tokens:,} tokens, {statistics.tokens_per_forward:.2f} per row and forward pass."
    names = "".join(f"<th>{name}</th>" for name in ("source", "tokens", "share", "drafts", "accepted"))
    legend = "".join(
        f"<tr><td>{_span(source, name)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>\n"
        for source, name, *cells in _table(traced)
    )
    texts = "".join(_row(row, traced.is_encoder_decoder) for row in traced.rows)
    return (
        f'<div class="traced">\n<style>{STYLE}</style>\n<p>{counts}</p>\n'
        f'<table><tr>{names}</tr>\n{legend}</table>\n<p class="help">{escape(HELP)}</p>\n{texts}</div>\n'
    )


def as_text(traced: TracedText) -> str:
    """
    Return the text with the mark of its source after each drafted token, and the rejected drafts in braces after the
    token that replaced them: `the cat[1] sat{✗[1]“ lay” [2]“ on”}`. Counts follow.
    """
    between = " → " if traced.is_encoder_decoder else "|"
    texts = [row.prompt.translate(CONTROLS) + between + "".join(map(_marked, row.tokens)) for row in traced.rows]
    counts = [
        f"{name}: {tokens} tokens ({share}), {drafts} drafts" for _, name, tokens, share, drafts, _ in _table(traced)
    ]
    return "\n\n".join([*texts, "\n".join(counts)])


def _table(traced: TracedText) -> list[tuple[int, str, str, str, str, str]]:
    """Return the sources of tokens and drafts: source, name, tokens, share of the text, drafts, acceptance rate."""
    counts, num_tokens = traced.counts, len(traced.tokens)
    rows = [
        (MODEL_SOURCE, "0", ""),
        *((n, f"{drafts:,}", f"{traced.acceptance[n]:.0%}") for n, drafts in traced.num_drafts.items()),
    ]
    return [
        (source, _name(source), f"{counts.get(source, 0):,}", f"{counts.get(source, 0) / num_tokens:.0%}", *cells)
        for source, *cells in rows
    ]


def _row(row: TracedRow, is_encoder_decoder: bool) -> str:
    """Return the HTML of a prompt and the text after it; a source text is in a paragraph of its own."""
    cut = "…" if len(row.prompt) > PROMPT_CHARACTERS else ""
    prompt = escape(cut + row.prompt[-PROMPT_CHARACTERS:].translate(CONTROLS))
    tokens = "".join(map(_token, row.tokens))
    if is_encoder_decoder:
        return f'<p class="prompt" dir="auto">{prompt}</p>\n<div class="text" dir="auto">{tokens}</div>\n'
    return f'<div class="text" dir="auto"><span class="prompt">{prompt}</span>{tokens}</div>\n'


def _token(token: TracedToken) -> str:
    text = token.text.translate(CONTROLS) or PART
    body = text.rstrip("\n")
    # Line breaks at the end come after the mark.
    line_breaks = text[len(body) :]
    shown = escape(body).replace("\n", "⏎\n") + "⏎" * len(line_breaks)
    if not token.rejected:
        return _span(token.source, shown) + line_breaks
    drafts = f"Rejected: {_listed(token.rejected)}."
    if token.dropped:
        drafts += f" Dropped after it: {_listed(token.dropped)}."
    # `hidden`, so that the drafts are not part of the text where styles are removed.
    popup = f'<span class="popup" aria-hidden="true" hidden>{escape(drafts)}</span>'
    attributes = f'data-mark="×" tabindex="0" role="note" aria-label="{escape(f"{_visible(token.text)}. {drafts}")}"'
    return f'<span class="token replaced" {attributes}>{shown}{popup}</span>{line_breaks}'


def _listed(drafts: Sequence[Draft]) -> str:
    return ", ".join(f"“{_visible(draft.text)}” by {_name(draft.source)}" for draft in drafts)


def _marked(token: TracedToken) -> str:
    text = token.text.translate(CONTROLS) or PART
    if token.source != MODEL_SOURCE:
        text += f"[{_mark(token.source)}]"
    drafts = [f"[{_mark(draft.source)}]“{_visible(draft.text)}”" for draft in (*token.rejected, *token.dropped)]
    return text + (f"{{✗{' '.join(drafts)}}}" if drafts else "")


def _span(source: int, shown: str) -> str:
    """Return HTML in the colours of a source, with its mark."""
    if source == MODEL_SOURCE:
        return f'<span class="token">{shown}</span>'
    kind = "lookup" if source == LOOKUP_SOURCE else "head"
    shade = SHADES[min(source, len(SHADES)) - 1]
    attributes = f'style="--shade: {shade}" data-mark="{_mark(source)}" title="{_name(source)}"'
    return f'<span class="token {kind}" {attributes}>{shown}</span>'


def _name(source: int) -> str:
    """Return the name of a source: "model", "head 2" or "prompt lookup"."""
    return {MODEL_SOURCE: "model", LOOKUP_SOURCE: "prompt lookup"}.get(source, f"head {source}")


def _mark(source: int) -> str:
    return "c" if source == LOOKUP_SOURCE else str(source)


def _visible(text: str) -> str:
    """Return a short text in which line breaks, tabs and parts of characters can be seen."""
    return text.translate(LINE_MARKS).translate(CONTROLS) or PART
