"""A map of the targets of WDR heads: embeddings and word differences of a text, as in the paper's figure 2."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
import torch
from matplotlib.figure import Figure
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.errors import Unavailable
from ..method.configuration import check_integer
from ..method.differences import wdr
from .token_text import TextOrIds, token_labels, token_rows

# The length of the paper's text, from the test set of Penn Treebank.
PAPER_TOKENS = 1270
USUAL_PERPLEXITY = 30.0
# t-SNE considers about three neighbours per unit of perplexity.
POINTS_PER_PERPLEXITY = 3
# Half of scikit-learn's default: more iterations change little.
ITERATIONS = 500


@dataclass
class TargetDiversity:
    r"""
    How much the targets of a word differ from each other at one level. With `T` targets `y` of `W` different words,
    `ȳ_w` the mean of word w's targets and `ȳ` the mean of all,

        spread = (sum_w sum_{i in w} |y_i - ȳ_w|² / (T - W)) / (sum_i |y_i - ȳ|² / (T - 1)),

    the variance of a word's targets relative to the variance of all targets. It is 0 if each word has one target, as
    at level 0, and about 1 if targets do not depend on the word. (It is one minus the adjusted coefficient of
    determination; words with a single occurrence have no effect on it.)

    Args:
        level (`int`): The level n; 0 for the embeddings themselves.
        num_targets (`int`): T.
        num_words (`int`): W.
        num_distinct (`int`): Number of different targets: different sequences of `n + 1` words.
        spread (`float`): The value above.
    """

    level: int
    num_targets: int
    num_words: int
    num_distinct: int
    spread: float

    @property
    def targets_per_word(self) -> float:
        """The average number of different targets of a word, `num_distinct / num_words`."""
        return self.num_distinct / self.num_words


@dataclass
class WDRMap:
    r"""
    Output embeddings and word differences of a text, projected to two dimensions by t-SNE. Each point is a target of
    one word: at level n, the target of word i is `Δ_n e[i-n]`, computed from that word and the n words before it.

    Args:
        tokens (`list[str]`): Readable labels of the tokens, different for different tokens.
        documents (`list[int]`): The index of each token's document.
        levels (`np.ndarray` of shape `(P,)`): The level of each point.
        positions (`np.ndarray` of shape `(P,)`): The index of the token that each point is a target of.
        coordinates (`np.ndarray` of shape `(P, 2)`): The points; all levels share one projection.
        diversity (`list[TargetDiversity]`): How much the targets of a word differ from each other, by level.
    """

    tokens: list[str]
    documents: list[int]
    levels: np.ndarray
    positions: np.ndarray
    coordinates: np.ndarray
    diversity: list[TargetDiversity]

    @property
    def counts(self) -> Counter[str]:
        """The number of occurrences of each word (label) in the text."""
        return Counter(self.tokens)

    @property
    def words(self) -> np.ndarray:
        """The word (label) that each point is a target of, an array of shape `(P,)`."""
        return np.array(self.tokens, dtype=object)[self.positions]

    def frequent_words(self, count: int) -> list[str]:
        """
        Return up to `count` words, the most frequent first; but all purely alphabetic ones come before the others.
        """
        by_count = sorted(self.counts.items(), key=lambda item: (not item[0].isalpha(), -item[1], item[0]))
        return [word for word, _ in by_count[:count]]

    def formula(self, point: int) -> str:
        """Return the word difference of a point (given by its index) as text: `to − 2 want + we` at level 2."""
        position = self.positions[point]
        terms = enumerate(signs(int(self.levels[point])), start=1)
        return self.tokens[position] + "".join(f"{sign}{self.tokens[position - i]}" for i, sign in terms)

    def figure(self, word: str | None = None) -> Figure:
        """
        Return the paper's figure 2: a panel per level, and an enlarged panel of the 1-level targets of one word.

        Args:
            word (`str`, *optional*): The word to enlarge, a label in `tokens`. By default, the most frequent one with
                a 1-level target.
        """
        from .wdr_map_figure import draw_map

        return draw_map(self, word)


def wdr_map(
    model: PreTrainedModel,
    text_or_ids: TextOrIds,
    tokenizer: PreTrainedTokenizerBase,
    levels: int = 2,
    max_tokens: int = PAPER_TOKENS,
    perplexity: float | None = None,
    seed: int = 0,
) -> WDRMap:
    r"""
    Project the output embeddings of a text and its 1- to n-level word differences together to two dimensions with
    t-SNE. Only differences inside a document are used, not the values carried over at its end. The same arguments give
    the same map.

    Args:
        model (`PreTrainedModel`): Any model with an output embedding.
        text_or_ids (`str`, `Sequence` or `torch.Tensor`): A text or its token ids, or a list of such documents.
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
        levels (`int`, *optional*, defaults to 2): The highest level n, at least 1.
        max_tokens (`int`, *optional*, defaults to 1270): Maximum number of tokens, the first ones of the text.
        perplexity (`float`, *optional*): The perplexity of t-SNE; by default 30, or a third of the number of points if
            that is less.
        seed (`int`, *optional*, defaults to 0): The seed of t-SNE.

    Returns:
        `WDRMap`.
    """
    for name, value in (("levels", levels), ("max_tokens", max_tokens)):
        check_integer(name, value)
    weight = getattr(model.get_output_embeddings(), "weight", None)
    if weight is None:
        raise ValueError(
            f"`model` has no output embeddings, got {type(model).__name__}: load it with a head, as in "
            "`AutoModelForCausalLM`."
        )
    rows = _first_tokens(token_rows(text_or_ids, tokenizer, len(weight)), max_tokens)
    ids = [token for row in rows for token in row]
    if not ids:
        raise Unavailable("`text_or_ids` has no tokens: give a longer text.")
    embeddings = [weight.detach()[torch.tensor(row, dtype=torch.long)].float().cpu() for row in rows]
    if not all(row.isfinite().all() for row in embeddings):
        raise Unavailable("`model` has output embeddings that are not finite: use another checkpoint.")
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
    """
    Return what a formula prints before each earlier word of a word difference: its sign and its factor, unless 1. The
    latest word comes first: `[" − 2 ", " + "]` for level 2, an empty list for level 0.
    """
    return [
        f" {'−' if i % 2 else '+'} {'' if comb(level, i) == 1 else f'{comb(level, i)} '}" for i in range(1, level + 1)
    ]


def target_diversity(vectors: np.ndarray, positions: np.ndarray, ids: Sequence[int], level: int) -> TargetDiversity:
    """
    Compute the diversity of the targets of one level. Raise `Unavailable` if no token has two targets.

    Args:
        vectors (`np.ndarray` of shape `(T, d)`): The targets.
        positions (`np.ndarray` of shape `(T,)`): The index of the token that each is a target of.
        ids (`Sequence[int]`): The token ids of the text.
        level (`int`): The level.
    """
    ids = np.asarray(ids)
    _, word, count = np.unique(ids[positions], return_inverse=True, return_counts=True)
    if len(word) == len(count):
        raise Unavailable(
            f"`text_or_ids` has no token with two {level}-level targets: give a longer text, or set a lower `levels`."
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


def _first_tokens(rows: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Return the first `max_tokens` tokens in all, by document."""
    begins = np.cumsum([0, *map(len, rows)]).tolist()
    return [row[: max_tokens - begin] for row, begin in zip(rows, begins, strict=False) if begin < max_tokens]


def _targets(embeddings: list[torch.Tensor], level: int) -> tuple[np.ndarray, np.ndarray]:
    """
    Return the targets of a level, `(T, d)`, and for each the index in the text of its token, `(T,)`. `embeddings` are
    those of each document; the first `level` tokens of a document have no target.
    """
    vectors, positions, begin = [], [], 0
    for row in embeddings:
        # The values at the end are carried over, not differences.
        num_targets = max(0, len(row) - level)
        vectors.append(wdr(row, level)[:num_targets])
        positions.append(np.arange(num_targets) + begin + level)
        begin += len(row)
    return torch.cat(vectors).numpy(), np.concatenate(positions)


def _project(vectors: np.ndarray, perplexity: float | None, seed: int) -> np.ndarray:
    """
    Project the targets `(P, d)` to two dimensions with t-SNE, `(P, 2)`. Equal targets get the same point, because
    t-SNE would separate copies. `perplexity=None` means 30, or a third of the number of different targets if less.
    """
    # Imported here, because training does not need scikit-learn.
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    distinct, copies = np.unique(vectors, axis=0, return_inverse=True)
    if perplexity is None:
        perplexity = min(USUAL_PERPLEXITY, (len(distinct) - 1) / POINTS_PER_PERPLEXITY)
    if not 0 < perplexity < len(distinct):
        raise Unavailable(
            f"`perplexity` of t-SNE must be positive and below {len(distinct)}, the number of different target "
            f"vectors, got {perplexity}: choose such a value, or give a longer text."
        )
    projection = TSNE(perplexity=perplexity, init="pca", max_iter=ITERATIONS, random_state=seed)
    # With several threads, results are not reproducible.
    with threadpool_limits(1):
        return projection.fit_transform(distinct)[copies]
