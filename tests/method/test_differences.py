from math import comb

import pytest
import torch

from ngram_wdr_hf import conjugate, wdr
from tests.support.errors import raises_naming

LEVELS = [1, 2, 3, 4, 5, 7]


def binomial_wdr(embeddings, n, t):
    """Return equation 9 of the paper at position t."""
    return sum(comb(n, i) * (-1) ** i * embeddings[..., t + n - i, :] for i in range(n + 1))


@pytest.fixture
def embeddings():
    return torch.randn(2, 3, 9, 4, dtype=torch.float64)


@pytest.mark.parametrize("n", LEVELS)
def test_recursive_definition_equals_binomial_form(embeddings, n):
    for t in range(embeddings.shape[-2] - n):
        torch.testing.assert_close(wdr(embeddings, n)[..., t, :], binomial_wdr(embeddings, n, t))


@pytest.mark.parametrize("n", LEVELS)
def test_difference_plus_conjugate_is_the_embedding(embeddings, n):
    restored = wdr(embeddings, n) + conjugate(embeddings, n)
    assert restored.shape == embeddings.shape
    torch.testing.assert_close(restored[..., :-n, :], embeddings[..., n:, :])


@pytest.mark.parametrize("n", LEVELS)
def test_last_position_is_unchanged(embeddings, n):
    torch.testing.assert_close(wdr(embeddings, n)[..., -1, :], embeddings[..., -1, :])


@pytest.mark.parametrize("n", LEVELS)
def test_both_continue_the_sequence_in_the_same_way(embeddings, n):
    last = embeddings[..., -1:, :]
    longer = torch.cat([embeddings, *(2**k * last for k in range(1, n + 1))], dim=-2)
    restored = wdr(embeddings, n) + conjugate(embeddings, n)
    torch.testing.assert_close(restored, longer[..., n:, :])


@pytest.mark.parametrize("n", LEVELS)
def test_conjugate_ignores_later_tokens(embeddings, n):
    changed = embeddings.clone()
    changed[..., n:, :] += 1
    torch.testing.assert_close(conjugate(changed, n)[..., 0, :], conjugate(embeddings, n)[..., 0, :])
    assert not torch.allclose(conjugate(changed, n)[..., 1, :], conjugate(embeddings, n)[..., 1, :])


@pytest.mark.parametrize("n", LEVELS)
def test_opposite_direction_is_the_same_up_to_sign(embeddings, n):
    opposite = embeddings
    for _ in range(n):
        opposite = opposite[..., :-1, :] - opposite[..., 1:, :]
    torch.testing.assert_close(opposite, (-1) ** n * wdr(embeddings, n)[..., :-n, :])


def test_short_sequences():
    one = torch.randn(1, 4, dtype=torch.float64)
    torch.testing.assert_close(wdr(one, 3), one)
    torch.testing.assert_close(wdr(one, 3) + conjugate(one, 3), 8 * one)


def test_level_zero_is_the_embedding_itself(embeddings):
    assert torch.equal(wdr(embeddings, 0), embeddings)


@pytest.mark.parametrize("n", [-1, 1.5, True, "2"])
@pytest.mark.parametrize("function", [wdr, conjugate])
def test_bad_level(embeddings, function, n):
    with raises_naming(ValueError, "`n`", repr(n)):
        function(embeddings, n)
