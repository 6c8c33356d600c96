"""A generated text with the source of each token: the model, a head, or prompt lookup."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.errors import InputError
from ..decoding.statistics import LOOKUP_SOURCE, MODEL_SOURCE, SpeculationStatistics, TokenTrace
from ..evaluation.models import generate_after, max_positions
from .token_text import MAX_TOKENS_OF_CHARACTER, TextOrIds, token_rows, token_texts
from .traced_html import as_fragment, as_page, marked, visible


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
        """Return the coloured text with its legend and counts as an HTML fragment; a page can hold several."""
        return as_fragment(self)

    _repr_html_ = fragment

    def page(self, path: str | Path) -> Path:
        """Write the coloured text to a self-contained HTML file, and return its path."""
        Path(path).write_text(as_page("Generated text by source", as_fragment(self)), encoding="utf-8")
        return Path(path)

    def __str__(self) -> str:
        """Return the text with marks: `the cat[1] sat{✗[1]“ lay” [2]“ on”}`."""
        between = " → " if self.is_encoder_decoder else "|"
        texts = (f"{visible(row.prompt)}{between}{''.join(map(marked, row.tokens))}" for row in self.rows)
        return "\n\n".join(texts)


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
