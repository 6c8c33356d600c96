"""A map of what WDR heads learn to predict: embeddings and word differences of running text, as in figure 2."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..method.differences import wdr
from .token_labels import token_labels

# The paper's text, from the test set of Penn Treebank, has so many tokens.
PAPER_TOKENS = 1270
USUAL_PERPLEXITY = 30.0
# t-SNE wants about three neighbours for each unit of perplexity.
POINTS_PER_PERPLEXITY = 3
# Half of scikit-learn's: the map does not change much any more.
ITERATIONS = 500


@dataclass
class TargetDiversity:
    r"""
    How much the targets of one word differ from each other at one level. With `T` targets `y` of `W` different words,
    `ȳ_w` the mean of word w's targets and `ȳ` the mean of all,

        spread = (sum_w sum_{i in w} |y_i - ȳ_w|² / (T - W)) / (sum_i |y_i - ȳ|² / (T - 1)),

    the variance of one word's targets as a share of the variance of all targets. It is 0 if a word has one target, as
    at level 0, and about 1 if the word says nothing about its target. (It is one minus the adjusted coefficient of
    determination; words that have one target only count neither for nor against it.)

    Args:
        level (`int`): The level n; 0 for the embeddings themselves.
        num_targets (`int`): T.
        num_words (`int`): W.
        num_distinct (`int`): How many of the targets are made of different words: different `n + 1` words in a row.
        spread (`float`): The figure above.
    """

    level: int
    num_targets: int
    num_words: int
    num_distinct: int
    spread: float

    @property
    def targets_per_word(self) -> float:
        """How many different targets a word has on average."""
        return self.num_distinct / self.num_words


@dataclass
class WDRMap:
    r"""
    Output embeddings and word differences of running text on one plane. A point belongs to the word it is a target
    for: at level n, the target of word number i is `Δ_n e[i-n]`, made of that word and the n words before it.

    Args:
        tokens (`list[str]`): The text, token by token, in readable form; different tokens read differently.
        documents (`list[int]`): The number of the document that each token is part of.
        levels (`np.ndarray` of shape `(P,)`): The level of each point.
        positions (`np.ndarray` of shape `(P,)`): Which token each point is a target for.
        coordinates (`np.ndarray` of shape `(P, 2)`): Where each point is; all levels share one projection.
        diversity (`list[TargetDiversity]`): How different the targets of one word are, by level.
    """

    tokens: list[str]
    documents: list[int]
    levels: np.ndarray
    positions: np.ndarray
    coordinates: np.ndarray
    diversity: list[TargetDiversity]

    @property
    def counts(self) -> Counter[str]:
        """How often each word occurs in the text."""
        return Counter(self.tokens)

    @property
    def words(self) -> np.ndarray:
        """The word that each point is a target for, `(P,)`."""
        return np.array(self.tokens, dtype=object)[self.positions]

    def frequent_words(self, count: int) -> list[str]:
        """The words that occur most often, those made of letters alone first."""
        by_count = sorted(self.counts.items(), key=lambda item: (not item[0].isalpha(), -item[1], item[0]))
        return [word for word, _ in by_count[:count]]

    def formula(self, point: int) -> str:
        """What a point is made of, as in `to − 2 want + we`."""
        position = self.positions[point]
        before = enumerate(signs(int(self.levels[point])), start=1)
        return self.tokens[position] + "".join(f"{sign}{self.tokens[position - i]}" for i, sign in before)

    def figure(self, word: str | None = None) -> Figure:
        """
        The paper's figure 2: a panel for each level, and one that looks closer at the 1-level targets of one word.

        Args:
            word (`str`, *optional*): Which word; the most frequent one by default.
        """
        from .wdr_map_figure import draw_map

        return draw_map(self, word)

    def fragment(self) -> str:
        """The interactive map as a piece of HTML for a page of your own; a page can hold several."""
        from .wdr_map_page import map_fragment

        return map_fragment(self)

    def to_html(self) -> str:
        """The interactive map as a page that needs nothing else; `#word=to` at the end of its address picks a word."""
        from .wdr_map_page import map_page

        return map_page(self)

    def page(self, path: str | Path) -> Path:
        """Writes the interactive map to a file that a browser opens from disk."""
        path = Path(path)
        path.write_text(self.to_html(), encoding="utf-8")
        return path


def wdr_map(
    model: PreTrainedModel,
    text_or_ids: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | torch.Tensor,
    tokenizer: PreTrainedTokenizerBase,
    levels: int = 2,
    max_tokens: int = PAPER_TOKENS,
    perplexity: float | None = None,
    seed: int = 0,
) -> WDRMap:
    r"""
    Collects the output embeddings of a text and its 1- to n-level word differences, and projects all of them together
    to two dimensions with t-SNE. Only differences of words that follow each other in one document are taken, not the
    carried values at its end. The same arguments give the same map.

    Args:
        model (`PreTrainedModel`): Any model with an output embedding, with heads or without.
        text_or_ids (`str`, `Sequence` or `torch.Tensor`): A text, or its token ids; or several documents of either.
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
        levels (`int`, *optional*, defaults to 2): The highest level.
        max_tokens (`int`, *optional*, defaults to 1270): Of a longer text, so many tokens are taken.
        perplexity (`float`, *optional*): t-SNE's; 30 by default, or a third of the points if they are few.
        seed (`int`, *optional*, defaults to 0): For t-SNE.

    Returns:
        `WDRMap`.
    """
    for name, value in (("levels", levels), ("max_tokens", max_tokens)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"`{name}` must be an integer of at least 1, got {value!r}.")
    weight = getattr(model.get_output_embeddings(), "weight", None)
    if weight is None:
        raise ValueError(
            f"{type(model).__name__} has no output embeddings, and so no targets: give a language model, such as "
            "`AutoModelForCausalLM` loads."
        )
    rows = _documents(text_or_ids, tokenizer, max_tokens)
    ids = [token for row in rows for token in row]
    _check_ids(ids, len(weight), tokenizer)
    embeddings = [weight.detach()[torch.tensor(row, dtype=torch.long)].float().cpu() for row in rows]
    if not all(row.isfinite().all() for row in embeddings):
        raise ValueError("Some output embeddings are not finite: the training of the model has diverged.")
    vectors, positions = zip(*(_targets(embeddings, level) for level in range(levels + 1)), strict=True)
    return WDRMap(
        tokens=token_labels(ids, tokenizer),
        documents=[number for number, row in enumerate(rows) for _ in row],
        levels=np.repeat(np.arange(levels + 1), [len(of_level) for of_level in positions]),
        positions=np.concatenate(positions),
        diversity=[
            target_diversity(*of_level, ids, level)
            for level, of_level in enumerate(zip(vectors, positions, strict=True))
        ],
        coordinates=_project(np.concatenate(vectors), perplexity, seed),
    )


def signs(level: int) -> list[str]:
    """What stands before each of the words that are taken from and added to a target, the last word first."""
    return [
        f" {'−' if i % 2 else '+'} {'' if comb(level, i) == 1 else f'{comb(level, i)} '}" for i in range(1, level + 1)
    ]


def target_diversity(vectors: np.ndarray, positions: np.ndarray, ids: Sequence[int], level: int) -> TargetDiversity:
    """
    Args:
        vectors (`np.ndarray` of shape `(T, d)`): The targets of one level.
        positions (`np.ndarray` of shape `(T,)`): Which token each is a target for.
        ids (`Sequence[int]`): The token ids of the text.
        level (`int`): The level.
    """
    ids = np.asarray(ids)
    _, word, count = np.unique(ids[positions], return_inverse=True, return_counts=True)
    if len(word) == len(count):
        raise ValueError(
            f"No word is the target of two {level}-level differences, so that there is nothing to compare: give a "
            "longer text or fewer levels."
        )
    vectors = vectors.astype(np.float64)
    sums = np.zeros((len(count), vectors.shape[1]))
    np.add.at(sums, word, vectors)
    within = np.square(vectors - (sums / count[:, None])[word]).sum() / (len(word) - len(count))
    total = np.square(vectors - vectors.mean(0)).sum() / (len(word) - 1)
    sources = np.stack([ids[positions - i] for i in range(level + 1)], axis=1)
    return TargetDiversity(
        level=level,
        num_targets=len(word),
        num_words=len(count),
        num_distinct=len(np.unique(sources, axis=0)),
        spread=float(within / total) if total else 0.0,
    )


def _documents(text_or_ids: Any, tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> list[list[int]]:
    """The tokens of each document, up to so many in all."""
    rows = _as_list(text_or_ids)
    rows = [rows] if _are_ids(rows) else rows
    kept = []
    for row in rows:
        ids = (
            tokenizer(row, add_special_tokens=False, verbose=False).input_ids
            if isinstance(row, str)
            else _as_list(row)
        )
        if not _are_ids(ids):
            raise ValueError("Neither text nor token ids: give a string, a list of ids, or a list of either.")
        kept.append(ids[:max_tokens])
        max_tokens -= len(kept[-1])
        if not max_tokens:
            break
    return kept


def _as_list(rows: Any) -> list:
    if isinstance(rows, (torch.Tensor, np.ndarray)):
        rows = rows.tolist()
    if isinstance(rows, str) or not isinstance(rows, Iterable):
        return [rows]
    # Of what a tokenizer returns, the names of its fields would be taken for text.
    return [rows] if isinstance(rows, Mapping) else list(rows)


def _are_ids(row: list) -> bool:
    return all(isinstance(token, Integral) for token in row)


def _check_ids(ids: list[int], num_rows: int, tokenizer: PreTrainedTokenizerBase) -> None:
    if not ids:
        raise ValueError("The text has no tokens: give some sentences.")
    if min(ids) < 0:
        raise ValueError(f"The token ids hold {min(ids)}, which is no token: leave out padding and ignored labels.")
    if max(ids) >= min(num_rows, len(tokenizer)):
        raise ValueError(
            f"The text has the token id {max(ids)}, but the tokenizer has {len(tokenizer)} tokens and the model "
            f"{num_rows} output embeddings: give the model's own tokenizer."
        )


def _targets(embeddings: list[torch.Tensor], level: int) -> tuple[np.ndarray, np.ndarray]:
    """The targets of a level, `(T, d)`, and which token of the text each is for, `(T,)`."""
    vectors, positions, begin = [], [], 0
    for row in embeddings:
        # The values at the end are carried over: they are no differences.
        num_targets = max(0, len(row) - level)
        vectors.append(wdr(row, level)[:num_targets])
        positions.append(np.arange(num_targets) + begin + level)
        begin += len(row)
    return torch.cat(vectors).numpy(), np.concatenate(positions)


def _project(vectors: np.ndarray, perplexity: float | None, seed: int) -> np.ndarray:
    """Equal targets are one point for t-SNE, which would push copies apart as if they differed."""
    # Who trains also imports this package, and need not have scikit-learn.
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    distinct, copies = np.unique(vectors, axis=0, return_inverse=True)
    if perplexity is None:
        perplexity = min(USUAL_PERPLEXITY, (len(distinct) - 1) / POINTS_PER_PERPLEXITY)
    if not 0 < perplexity < len(distinct):
        raise ValueError(
            f"`perplexity` must be positive and less than {len(distinct)}, the number of different targets, got "
            f"{perplexity}: lower it, or give a longer text."
        )
    projection = TSNE(perplexity=perplexity, init="pca", max_iter=ITERATIONS, random_state=seed)
    # Several threads round differently from run to run.
    with threadpool_limits(1):
        return projection.fit_transform(distinct)[copies]
