"""How a traced text is written, on a page and in a terminal: names, marks and counts."""

from typing import NamedTuple

from ..decoding.statistics import LOOKUP_SOURCE, MODEL_SOURCE
from .token_labels import VISIBLE
from .traced_text import TracedText

# What stands for a token that is a part of a character.
PART = "◌"
# Control characters as pictures, because terminals and pages do not show them.
CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}


def without_controls(text: str) -> str:
    """Return a text with pictures of control characters; line breaks and tabs are kept."""
    return text.translate(CONTROLS)


def visible(text: str) -> str:
    """Return a short text in which line breaks, tabs, lone spaces and parts of characters can be seen."""
    if text.isspace():
        return text.translate(VISIBLE)
    return without_controls(text.replace("\n", "⏎").replace("\t", "⇥")) or PART


def source_name(source: int) -> str:
    """Return the name of a source: "model", "head 2" or "prompt lookup"."""
    return {MODEL_SOURCE: "model", LOOKUP_SOURCE: "prompt lookup"}.get(source, f"head {source}")


def source_mark(source: int) -> str:
    """Return the mark of a source: none for the model, the depth of a head, or c for a copy by prompt lookup."""
    return {MODEL_SOURCE: "", LOOKUP_SOURCE: "c"}.get(source, str(source))


def describe_counts(traced: TracedText) -> str:
    """Return a sentence on the numbers of tokens and forward passes."""
    counts = traced.statistics
    per = "row and forward pass" if len(traced.rows) > 1 else "forward pass"
    return f"{counts.num_tokens:,} tokens, {counts.tokens_per_forward:.2f} per {per}; without drafts, it would be 1."


class SourceCounts(NamedTuple):
    """A source with its tokens, their share of the text, its drafts and their acceptance rate, as text."""

    source: int
    tokens: str
    share: str
    drafts: str
    acceptance: str


def counts_by_source(traced: TracedText) -> list[SourceCounts]:
    """Return the counts of the model and of each source of drafts, accepted or not."""
    tokens, drafts, acceptance = traced.counts, traced.num_drafts, traced.acceptance
    return [
        SourceCounts(
            source,
            f"{tokens.get(source, 0):,}",
            f"{tokens.get(source, 0) / len(traced.tokens):.0%}",
            f"{drafts[source]:,}" if source in drafts else "",
            f"{acceptance[source]:.0%}" if source in drafts else "",
        )
        for source in (MODEL_SOURCE, *drafts)
    ]
