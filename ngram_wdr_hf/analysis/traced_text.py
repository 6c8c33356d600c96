"""A generated text with the source of each token: the model, a head, or prompt lookup; as HTML and as plain text."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.errors import InputError
from ..decoding.statistics import LOOKUP_SOURCE, MODEL_SOURCE, SpeculationStatistics, TokenTrace
from ..evaluation.models import generate_after, max_positions
from .token_text import LINE_MARKS, MAX_TOKENS_OF_CHARACTER, TextOrIds, token_rows, token_texts

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


class Draft(NamedTuple):
    """The text of a draft, and its source: n for head n, -1 for prompt lookup."""

    text: str
    source: int


class TracedToken(NamedTuple):
    """
    A generated token: what it adds to the text (`""` for a part of a character that a later token completes), its
    source (0 for the model itself, n for head n, -1 for prompt lookup), and the rejected drafts for its position and
    the next ones.
    """

    text: str
    source: int
    rejected: tuple[Draft, ...] = ()


class TracedRow(NamedTuple):
    """A prompt, for an encoder-decoder model the source text, and the tokens that were generated for it."""

    prompt: str
    tokens: list[TracedToken]


@dataclass(repr=False)
class TracedText:
    """Texts of one generation with the source of each token. A notebook shows it in colours, `print` with marks."""

    rows: list[TracedRow]
    statistics: SpeculationStatistics
    is_encoder_decoder: bool = False

    @property
    def tokens(self) -> list[TracedToken]:
        """The generated tokens of all rows."""
        return [token for row in self.rows for token in row.tokens]

    @property
    def counts(self) -> dict[int, int]:
        """The number of tokens by source: the model's, then those of each head, then those of prompt lookup."""
        return _count(token.source for token in self.tokens)

    @property
    def num_drafts(self) -> dict[int, int]:
        """The number of drafts by source, accepted or not; without drafts for positions after the end of a row."""
        accepted = [token.source for token in self.tokens if token.source != MODEL_SOURCE]
        return _count(accepted + [draft.source for token in self.tokens for draft in token.rejected])

    @property
    def acceptance(self) -> dict[int, float]:
        """The share of accepted drafts by source. A draft after a rejected one is rejected."""
        return {source: self.counts.get(source, 0) / number for source, number in self.num_drafts.items()}

    def fragment(self) -> str:
        """Return the coloured text with its legend and counts as an HTML fragment in the page's `color-scheme`."""
        length = self.statistics.mean_acceptance_length
        counts = f"{self.statistics.num_tokens:,} tokens, {length:.2f} per row and forward pass."
        table = as_table([["source", "tokens", "share", "drafts", "accepted"], *self._sources()])
        texts = ""
        for prompt, tokens in self.rows:
            # A source text is not continued.
            between = "<br>→ " if self.is_encoder_decoder else ""
            before = f'<span class="prompt">{escape(visible(prompt))}</span>{between}'
            texts += f'<div class="text" dir="auto">{before}{"".join(map(_token, tokens))}</div>\n'
        return (
            f'<div class="traced">\n<style>{STYLE}</style>\n<p>{counts}</p>\n{table}'
            f'<p class="help">{escape(HELP)}</p>\n{texts}</div>\n'
        )

    _repr_html_ = fragment

    def page(self, path: str | Path) -> Path:
        """Write the coloured text to a self-contained HTML file, and return its path."""
        Path(path).write_text(as_page("Generated text by source", self.fragment()), encoding="utf-8")
        return Path(path)

    def __str__(self) -> str:
        """Return the text with marks: `the cat[1] sat{✗[1]“ lay” [2]“ on”}`."""
        between = " → " if self.is_encoder_decoder else "|"
        texts = (f"{visible(row.prompt)}{between}{''.join(map(_marked, row.tokens))}" for row in self.rows)
        return "\n\n".join(texts)

    def _sources(self) -> Iterator[list[str]]:
        """Yield a row of the legend for each source: its name, tokens, their share, drafts, acceptance rate."""
        counts, num_tokens = self.counts, len(self.tokens)
        for source, drafts in {MODEL_SOURCE: 0, **self.num_drafts}.items():
            count = counts.get(source, 0)
            accepted = f"{count / drafts:.0%}" if drafts else ""
            yield [_span(source, _name(source)), f"{count:,}", f"{count / num_tokens:.0%}", f"{drafts:,}", accepted]


def traced_text(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: TextOrIds,
    max_new_tokens: int = 64,
    **generate_options: Any,
) -> TracedText:
    r"""
    Generate with drafts, greedily by default, and return the text with the source of each token.

    Args:
        model (`PreTrainedModel`): A model with N-gram heads.
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
        prompt (`str`, `Sequence` or `torch.Tensor`): A prompt or a list of prompts, as text or as token ids.
        max_new_tokens (`int`, *optional*, defaults to 64): New tokens per prompt, at most as the model has positions.
        generate_options: Options of `generate`, such as `draft_threshold=0`, with which the heads draft at every step.
    """
    options = {"do_sample": False, "num_beams": 1, **generate_options}
    statistics, rows = SpeculationStatistics(), []
    for ids in read_prompts(prompt, model, tokenizer):
        output = generate_after(model, [ids], max_new_tokens, use_mtp=True, **options)
        statistics += output.speculation
        num_read = output.sequences.shape[1] - max(map(len, output.speculation.trace))
        text = "".join(token_texts(ids, tokenizer))
        # With `num_return_sequences`, a prompt has several rows.
        for begin, trace in zip(output.sequences[:, :num_read].tolist(), output.speculation.trace, strict=True):
            rows.append(TracedRow(text, traced_tokens(begin, trace, tokenizer)))
    return TracedText(rows, statistics, model.config.is_encoder_decoder)


def read_prompts(prompt: TextOrIds, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Return the token ids of each prompt. Raise an `InputError` if one is empty, or too long for the model."""
    prompts = token_rows(prompt, tokenizer)
    # A decoder-only model also needs a position for what it generates.
    limit = (max_positions(model) or math.inf) - (not model.config.is_encoder_decoder)
    for ids in prompts or [[]]:
        if not 0 < len(ids) <= limit:
            change = "shorter" if ids else "longer"
            raise InputError(f"The prompt has {len(ids)} tokens, not 1 to at most {limit}: give a {change} text.")
    return prompts


def traced_tokens(
    begin: Sequence[int], trace: Sequence[TokenTrace], tokenizer: PreTrainedTokenizerBase
) -> list[TracedToken]:
    """Return the tokens of a trace with their texts, in a text that begins with the tokens `begin`."""
    ids = [*begin, *(one.token for one in trace)]
    texts, tokens = token_texts(ids, tokenizer)[len(begin) :], []
    for position, (one, text) in enumerate(zip(trace, texts, strict=True), start=len(begin)):
        drafts, sources = zip(*one.rejected, *one.dropped, strict=True) if one.rejected else ((), ())
        # The last tokens before the drafts may begin a character.
        before = ids[max(0, position - 2 * MAX_TOKENS_OF_CHARACTER) : position]
        draft_texts = token_texts([*before, *drafts], tokenizer)[len(before) :]
        tokens.append(TracedToken(text, one.source, tuple(map(Draft, draft_texts, sources))))
    return tokens


def _count(sources: Iterable[int]) -> dict[int, int]:
    """Count sources, in the order model, heads by depth, prompt lookup."""
    counts = Counter(sources)
    return {source: counts[source] for source in sorted(counts, key=lambda source: (source == LOOKUP_SOURCE, source))}


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


def _token(token: TracedToken) -> str:
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


def _marked(token: TracedToken) -> str:
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
