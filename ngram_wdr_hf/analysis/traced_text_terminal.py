"""A traced text for terminals: a mark after each drafted token, optionally in colours."""

from ..decoding.statistics import LOOKUP_SOURCE, MODEL_SOURCE
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
# ANSI codes: black on shades of blue for heads, by depth, and on orange for prompt lookup; red for rejected drafts.
HEAD_COLORS = ("\x1b[38;5;16;48;5;195m", "\x1b[38;5;16;48;5;153m", "\x1b[38;5;16;48;5;117m", "\x1b[38;5;16;48;5;75m")
LOOKUP_COLOR, REJECTED_COLOR, RESET = "\x1b[38;5;16;48;5;215m", "\x1b[31m", "\x1b[0m"


def written(traced: TracedText, in_colors: bool) -> str:
    """
    Return the text, with the mark of its source after each drafted token, and the rejected drafts in braces after the
    token that replaced them: `the cat¹ sat{✗¹“ lay” ²“ on”}`. Counts follow.
    """
    parts = []
    for row in traced.rows:
        tokens = "".join(_token(token, in_colors) for token in row.tokens)
        parts.append(f"{without_controls(row.prompt)}{' → ' if traced.is_encoder_decoder else '|'}{tokens}")
    counts = [describe_counts(traced)]
    for row in counts_by_source(traced):
        name = _colored(f"{source_name(row.source)}{_superscript(row.source)}", row.source, in_colors)
        drafts = f"; {row.drafts} drafts, {row.acceptance} accepted" if row.drafts else ""
        counts.append(f"{name}: {row.tokens} tokens ({row.share}){drafts}")
    return "\n\n".join([*parts, "\n".join(counts)])


def _token(token: TracedToken, in_colors: bool) -> str:
    body = without_controls(token.text.rstrip("\n"))
    # The mark belongs to the end of a line, not to the beginning of the next.
    line_breaks = token.text[len(body) :]
    text = _colored((body or visible(line_breaks) or PART) + _superscript(token.source), token.source, in_colors)
    if token.rejected:
        drafts = "".join(f" {_draft(draft)}" for draft in token.dropped)
        rejected = f"{{✗{_draft(token.rejected[0])}{drafts}}}"
        text += f"{REJECTED_COLOR}{rejected}{RESET}" if in_colors else rejected
    return text + line_breaks


def _draft(draft: Draft) -> str:
    return f"{_superscript(draft.source)}“{visible(draft.text)}”"


def _superscript(source: int) -> str:
    return source_mark(source).translate(SUPERSCRIPTS)


def _colored(text: str, source: int, in_colors: bool) -> str:
    if not in_colors or source == MODEL_SOURCE:
        return text
    color = LOOKUP_COLOR if source == LOOKUP_SOURCE else HEAD_COLORS[min(source, len(HEAD_COLORS)) - 1]
    return f"{color}{text}{RESET}"
