"""Count models, as controls: interpolated Kneser-Ney n-grams and skip-grams, and linear mixtures of any models."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

# The offsets of the tokens that predict the next one, the farthest first: a 5-gram, and four skip-grams.
FIVE_GRAM = (4, 3, 2, 1)
SKIP_GRAMS = ((2,), (3,), (3, 1), (3, 2))


class KneserNey:
    """
    Interpolated Kneser-Ney smoothing with three discounts per order (Chen and Goodman, 1999). A lower order leaves out
    the farthest token, and counts how many different tokens were seen in its place. Below the last order, all tokens
    are equally likely.

    Args:
        tokens (`Sequence[int]`): The training text.
        vocab_size (`int`): The number of different tokens.
        offsets (`tuple[int, ...]`): The offsets of the tokens in the context, the farthest first.
    """

    def __init__(self, tokens: Sequence[int], vocab_size: int, offsets: tuple[int, ...] = FIVE_GRAM):
        self.vocab_size, self.offsets = vocab_size, offsets
        # By order, the highest first: counts, discounts by count, and by context the total and the discounted mass.
        self.orders = []
        counts = Counter(self._grams(tokens))
        for _ in range(len(offsets) + 1):
            discounts = _discounts(Counter(counts.values()))
            contexts: dict[Hashable, np.ndarray] = defaultdict(lambda: np.zeros(2))
            for gram, count in counts.items():
                contexts[gram[:-1]] += count, discounts[min(count, 3)]
            self.orders.append((counts, discounts, dict(contexts)))
            counts = Counter(gram[1:] for gram in counts)

    def _grams(self, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the context of each token and the token, from the first one whose whole context is in the text."""
        begin = max(self.offsets, default=0)
        return [(*(tokens[i - k] for k in self.offsets), tokens[i]) for i in range(begin, len(tokens))]

    def probability(self, gram: tuple[int, ...]) -> float:
        """Return the probability of the last token of a gram after the others."""
        result = 1.0 / self.vocab_size
        for counts, discounts, contexts in reversed(self.orders):
            own = gram[len(gram) - 1 - len(next(iter(contexts))) :]
            if own[:-1] in contexts:
                count, (total, discounted) = counts.get(own, 0), contexts[own[:-1]]
                result = (count - discounts[min(count, 3)] + discounted * result) / total
        return float(result)

    def probabilities(self, tokens: Sequence[int]) -> np.ndarray:
        """Return the probability of each token of a text from the first whole context on."""
        return np.array([self.probability(gram) for gram in self._grams(tokens)])


def _discounts(counts_of_counts: Counter) -> list[float]:
    """Return the discounts of counts of 0, 1, 2, and 3 or more."""
    once, twice, thrice, more = (counts_of_counts[i] for i in (1, 2, 3, 4))
    if not (once and twice and thrice):
        # Too little text for an estimate.
        return [0.0, 0.5, 0.5, 0.5]
    share = once / (once + 2 * twice)
    estimates = (1 - 2 * share * twice / once, 2 - 3 * share * thrice / twice, 3 - 4 * share * more / thrice)
    return [0.0, *(min(max(value, 0.0), i) for i, value in enumerate(estimates, start=1))]


def fit_mixture(probabilities: np.ndarray, steps: int = 200) -> np.ndarray:
    """Return the weights of a linear mixture that fit `probabilities`, `(num_models, num_tokens)`, best, by EM."""
    weights = np.full(len(probabilities), 1 / len(probabilities))
    for _ in range(steps):
        shares = weights[:, None] * probabilities
        weights = (shares / shares.sum(0)).mean(1)
    return weights


def perplexity(probabilities: np.ndarray) -> float:
    return float(np.exp(-np.log(probabilities).mean()))
