"""A traced text for terminals: a mark after each drafted token."""

from .traced_text import Draft, TracedText, TracedToken
from .traced_text_marks import (
    PART,
    counts_by_source,
    describe_counts,
    source_mark,
    source_name,
    visible,
    without_controls,
)

SUPERSCRIPTS = str.maketrans("0123456789c", "⁰¹²³⁴⁵⁶⁷⁸⁹ᶜ")


def written(traced: TracedText) -> str:
    """
    Return the text, with the mark of its source after each drafted token, and the rejected drafts in braces after the
    token that replaced them: `the cat¹ sat{✗¹“ lay” ²“ on”}`. Counts follow.
    """
    parts = []
    for row in traced.rows:
        tokens = "".join(_token(token) for token in row.tokens)
        parts.append(f"{without_controls(row.prompt)}{' → ' if traced.is_encoder_decoder else '|'}{tokens}")
    counts = [describe_counts(traced)]
    for row in counts_by_source(traced):
        name = f"{source_name(row.source)}{_superscript(row.source)}"
        drafts = f"; {row.drafts} drafts, {row.acceptance} accepted" if row.drafts else ""
        counts.append(f"{name}: {row.tokens} tokens ({row.share}){drafts}")
    return "\n\n".join([*parts, "\n".join(counts)])


def _token(token: TracedToken) -> str:
    body = without_controls(token.text.rstrip("\n"))
    # The mark belongs to the end of a line, not to the beginning of the next.
    line_breaks = token.text[len(body) :]
    text = (body or visible(line_breaks) or PART) + _superscript(token.source)
    if token.rejected:
        drafts = "".join(f" {_draft(draft)}" for draft in token.dropped)
        text += f"{{✗{_draft(token.rejected[0])}{drafts}}}"
    return text + line_breaks


def _draft(draft: Draft) -> str:
    return f"{_superscript(draft.source)}“{visible(draft.text)}”"


def _superscript(source: int) -> str:
    return source_mark(source).translate(SUPERSCRIPTS)
