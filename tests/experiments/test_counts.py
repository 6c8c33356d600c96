"""The count models and mixtures that the experiments use as controls, against slow definitions."""

import numpy as np
import pytest
from runner.counts import FIVE_GRAM, SKIP_GRAMS, KneserNey, fit_mixture, perplexity

VOCAB_SIZE = 6


def text(length: int, seed: int = 0) -> list[int]:
    """A text with frequent and rare tokens, some of them after each other more often."""
    rng, tokens = np.random.default_rng(seed), [0]
    for _ in range(length - 1):
        tokens.append(int(rng.choice(VOCAB_SIZE, p=np.roll([0.5, 0.25, 0.15, 0.06, 0.03, 0.01], tokens[-1] // 2))))
    return tokens


def slow_probability(tokens: list[int], offsets: tuple[int, ...], context: tuple[int, ...], token: int) -> float:
    """The definition, by walking through the text for every count."""

    def grams(order: int) -> list[tuple[int, ...]]:
        """All grams of an order: with repetitions at the highest, else one for each different longer gram."""
        if order == len(offsets):
            places = range(max(offsets, default=0), len(tokens))
            return [(*(tokens[i - k] for k in offsets), tokens[i]) for i in places]
        return [gram[1:] for gram in sorted(set(grams(order + 1)))]

    def discount(order: int, count: int) -> float:
        found = grams(order)
        repeats = [found.count(gram) for gram in set(found)]
        n = [repeats.count(k) for k in range(5)]
        if not n[1] or not n[2] or not n[3]:
            return 0.5 if count else 0.0
        y, k = n[1] / (n[1] + 2 * n[2]), min(count, 3)
        return min(max(k - (k + 1) * y * n[k + 1] / n[k], 0.0), k) if k else 0.0

    def probability(order: int) -> float:
        if order < 0:
            return 1 / VOCAB_SIZE
        own = context[len(context) - order :]
        after = [gram[-1] for gram in grams(order) if gram[:-1] == own]
        if not after:
            return probability(order - 1)
        kept = max(after.count(token) - discount(order, after.count(token)), 0.0)
        left = sum(discount(order, after.count(other)) for other in set(after))
        return (kept + left * probability(order - 1)) / len(after)

    return probability(len(offsets))


@pytest.mark.parametrize("offsets", [(), (1,), (2, 1), FIVE_GRAM, *SKIP_GRAMS])
def test_kneser_ney_is_its_definition(offsets):
    train, test = text(150), text(20, seed=1)
    model = KneserNey(train, VOCAB_SIZE, offsets)
    begin = max(offsets, default=0)
    expected = [
        slow_probability(train, offsets, tuple(test[i - k] for k in offsets), test[i]) for i in range(begin, len(test))
    ]
    np.testing.assert_allclose(model.probabilities(test), expected, rtol=1e-12)
    context = tuple(test[: len(offsets)])
    assert sum(model.probability((*context, token)) for token in range(VOCAB_SIZE)) == pytest.approx(1)


def test_longer_contexts_help_where_the_text_depends_on_them():
    """The power of the control: a text of which every token is the sum of the two before it."""
    rng, tokens = np.random.default_rng(0), [1, 2]
    for _ in range(2000):
        tokens.append((tokens[-1] + tokens[-2] + int(rng.integers(2))) % VOCAB_SIZE)
    figures = {
        n: perplexity(KneserNey(tokens[:1500], VOCAB_SIZE, FIVE_GRAM[4 - n :]).probabilities(tokens[1500:]))
        for n in (1, 2)
    }
    assert figures[2] < 2.2 < 4 < figures[1]


def test_mixture_is_the_best_one():
    rng = np.random.default_rng(0)
    probabilities = rng.uniform(0.01, 1.0, (2, 300)) * np.array([[1.0], [0.9]])
    weights = fit_mixture(probabilities)
    assert weights.sum() == pytest.approx(1)
    found = perplexity(weights @ probabilities)
    grid = [perplexity(np.array([w, 1 - w]) @ probabilities) for w in np.linspace(0, 1, 1001)]
    assert found == pytest.approx(min(grid), rel=1e-6) and found < min(map(perplexity, probabilities))
