"""A generated text with the source of each token: the model, a head, or prompt lookup."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

from ..data.errors import InputError
from ..data.rows import pad_prompts
from ..decoding.statistics import LOOKUP_SOURCE, MODEL_SOURCE, SpeculationStatistics, TokenTrace
from ..evaluation.lengths import max_positions
from ..evaluation.modes import evaluating
from ..evaluation.unavailable import Unavailable
from ..method.configuration import check_integer
from ..training.common.model import can_drop_drafts
from .token_rows import TextOrIds, check_ids, token_rows
from .token_texts import texts_after, token_texts

DEFAULT_NEW_TOKENS = 64
# Options of `generate` that `traced_text` sets itself.
OWN_OPTIONS = ("input_ids", "inputs", "attention_mask", "max_length", "use_mtp", "return_dict_in_generate")


class Draft(NamedTuple):
    """The text of a draft, and its source: n for head n, -1 for prompt lookup."""

    text: str
    source: int


class TracedToken(NamedTuple):
    r"""
    A generated token and where it came from.

    Args:
        text (`str`): What the token adds to the text; `""` for a part of a character that a later token completes.
        source (`int`): 0 for the model itself, n for head n, -1 for prompt lookup.
        rejected (`tuple[Draft, ...]`): The draft for this position that was rejected, if there was one.
        dropped (`tuple[Draft, ...]`): The drafts after the rejected one.
    """

    text: str
    source: int
    rejected: tuple[Draft, ...] = ()
    dropped: tuple[Draft, ...] = ()


class TracedRow(NamedTuple):
    """A prompt, for an encoder-decoder model the source text, and the tokens that were generated for it."""

    prompt: str
    tokens: list[TracedToken]


@dataclass
class TracedText:
    r"""
    Texts of one generation with the source of each token. A notebook shows it in colours, `print` with marks.

    Args:
        rows (`list[TracedRow]`): The prompts and what was generated for each.
        statistics ([`SpeculationStatistics`]): Counts of tokens, forward passes and drafts.
        is_encoder_decoder (`bool`, *optional*, defaults to `False`):
            Whether the prompts are source texts; otherwise, the generated text continues them.
    """

    rows: list[TracedRow]
    statistics: SpeculationStatistics
    is_encoder_decoder: bool = False

    @property
    def counts(self) -> dict[int, int]:
        """The number of tokens by source: the model's, then those of each head, then those of prompt lookup."""
        return _in_order(Counter(token.source for token in self.tokens))

    @property
    def num_drafts(self) -> dict[int, int]:
        """
        The number of drafts by source: those of each head, then those of prompt lookup. An accepted draft is a token;
        drafts for positions after the end of a row do not count.
        """
        rejected = Counter(draft.source for token in self.tokens for draft in (*token.rejected, *token.dropped))
        accepted = Counter(token.source for token in self.tokens if token.source != MODEL_SOURCE)
        return _in_order(rejected + accepted)

    @property
    def acceptance(self) -> dict[int, float]:
        """
        The acceptance rate of drafts by source: accepted drafts over all drafts. A draft after a rejected one is
        rejected.
        """
        return {source: self.counts.get(source, 0) / drafts for source, drafts in self.num_drafts.items()}

    @property
    def tokens(self) -> list[TracedToken]:
        """The generated tokens of all rows."""
        return [token for row in self.rows for token in row.tokens]

    def fragment(self) -> str:
        """Return the coloured text with its legend and counts as an HTML fragment; a page can hold several."""
        from .traced_text_page import fragment

        return fragment(self)

    def to_html(self) -> str:
        """Return the coloured text as a self-contained page."""
        from .traced_text_page import whole_page

        return whole_page(self)

    def page(self, path: str | Path) -> Path:
        """Write the coloured text to a self-contained HTML file, and return its path."""
        path = Path(path)
        path.write_text(self.to_html(), encoding="utf-8")
        return path

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.rows)} rows, {len(self.tokens)} tokens)"

    def __str__(self) -> str:
        from .traced_text_terminal import written

        return written(self)

    def _repr_html_(self) -> str:
        return self.fragment()


def traced_text(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: TextOrIds,
    max_new_tokens: int = DEFAULT_NEW_TOKENS,
    **generate_options: Any,
) -> TracedText:
    r"""
    Generate with drafts, greedily by default, and return the text with the source of each token: the model, a head or
    prompt lookup. The result also has the drafts that were rejected.

    Args:
        model (`PreTrainedModel`): A model with N-gram heads.
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
        prompt (`str`, `Sequence` or `torch.Tensor`):
            A prompt, as text or as token ids, or a list of prompts; for an encoder-decoder model, source texts.
        max_new_tokens (`int`, *optional*, defaults to 64):
            Maximum number of new tokens per prompt, also limited by the model's positions.
        generate_options: Options of `generate`, such as `draft_threshold=0`, with which the heads draft at every step.

    Returns:
        `TracedText`.
    """
    _check_model(model)
    check_integer("max_new_tokens", max_new_tokens)
    for name in OWN_OPTIONS:
        if name in generate_options:
            raise ValueError(f"`{name}` is set by `traced_text`: leave it out, and use `prompt` and `max_new_tokens`.")
    prompts = read_prompts("prompt", prompt, model, tokenizer)
    options = {"do_sample": False, "num_beams": 1, **generate_options}
    statistics, rows = SpeculationStatistics(), []
    # Some models cannot draft for several rows at once.
    for batch in [prompts] if model.ngram_rows_can_move else [[one] for one in prompts]:
        output = generate_after(model, batch, max_new_tokens, use_mtp=True, **options)
        statistics += output.speculation
        num_read = output.sequences.shape[1] - max(map(len, output.speculation.trace))
        # With `num_return_sequences`, a prompt has several rows.
        num_copies = len(output.sequences) // len(batch)
        for i, trace in enumerate(output.speculation.trace):
            ids = batch[i // num_copies]
            begin = output.sequences[i, :num_read].tolist() if model.config.is_encoder_decoder else ids
            prompt_text = "".join(token_texts(ids, tokenizer))
            rows.append(TracedRow(prompt_text, traced_tokens(begin, trace, tokenizer)))
    return TracedText(rows, statistics, model.config.is_encoder_decoder)


def read_prompts(
    name: str, prompt: TextOrIds, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> list[list[int]]:
    """
    Return the token ids of each prompt in the argument `name`. Raise a `ValueError` if a prompt is empty, or if the
    model cannot read it.
    """
    prompts = list(token_rows(name, prompt, tokenizer, add_special_tokens=True))
    if not prompts or not all(prompts):
        raise InputError(f"`{name}` has no tokens: give a longer text.")
    for ids in prompts:
        check_ids(name, ids, model.ngram_vocab_size, tokenizer)
    longest = max(map(len, prompts))
    # A decoder-only model also needs a position for what it generates.
    limit = (max_positions(model) or math.inf) - (not model.config.is_encoder_decoder)
    if longest > limit:
        raise InputError(f"`{name}` has {longest} tokens, but the model reads at most {limit}: give a shorter text.")
    return prompts


def traced_tokens(
    begin: Sequence[int], trace: Sequence[TokenTrace], tokenizer: PreTrainedTokenizerBase
) -> list[TracedToken]:
    r"""
    Return the tokens of a trace with their texts.

    Args:
        begin (`Sequence[int]`): The token ids that the text begins with, those of the prompt.
        trace (`Sequence[TokenTrace]`): Where each further token came from.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer.
    """
    ids = [*begin, *(one.token for one in trace)]
    texts = token_texts(ids, tokenizer)[len(begin) :]
    tokens = []
    for position, (one, text) in enumerate(zip(trace, texts, strict=True), start=len(begin)):
        drafts = _drafts(ids[:position], (*one.rejected, *one.dropped), tokenizer)
        tokens.append(TracedToken(text, one.source, drafts[: len(one.rejected)], drafts[len(one.rejected) :]))
    return tokens


def _drafts(
    before: Sequence[int], drafts: Sequence[tuple[int, int]], tokenizer: PreTrainedTokenizerBase
) -> tuple[Draft, ...]:
    """Return drafts, given as token ids and sources, with their texts after the tokens `before`."""
    if not drafts:
        return ()
    ids, sources = zip(*drafts, strict=True)
    return tuple(map(Draft, texts_after(before, ids, tokenizer), sources))


def _in_order(by_source: dict[int, int]) -> dict[int, int]:
    """Return numbers by source in the order model, heads by depth, prompt lookup."""
    order = sorted(by_source, key=lambda source: math.inf if source == LOOKUP_SOURCE else source)
    return {source: by_source[source] for source in order}


def _check_model(model: PreTrainedModel) -> None:
    if not hasattr(model, "ngram_ensemble"):
        raise ValueError(
            f"`model` must be a next-token model of this package, got {type(model).__name__}: add heads with "
            "`with_ngram_heads`."
        )
    if not model.ngram_heads:
        raise Unavailable(f"`model` has no heads to draft with, got {type(model).__name__}: use `ngram_size` >= 2.")
    if not can_drop_drafts(model):
        raise Unavailable(f"`model` has a state that cannot undo rejected drafts, got {type(model).__name__}.")


def generate_after(
    model: PreTrainedModel, prompts: list[list[int]], max_new_tokens: int, use_mtp: bool, **options: Any
) -> ModelOutput:
    """
    Return the output of `generate` for a batch of prompts, in evaluation mode and within the model's positions. With
    drafts, it has their statistics in `speculation`.
    """
    is_encoder_decoder = model.config.is_encoder_decoder
    batch = pad_prompts(prompts, side="right" if is_encoder_decoder else "left")
    num_read = 1 if is_encoder_decoder else batch["input_ids"].shape[1]
    with evaluating(model):
        return model.generate(
            **{name: tensor.to(model.device) for name, tensor in batch.items()},
            # Avoids Transformers' warning about two limits.
            max_length=None,
            max_new_tokens=min(max_new_tokens, (max_positions(model) or math.inf) - num_read),
            use_mtp=use_mtp,
            return_dict_in_generate=True,
            **options,
        )
