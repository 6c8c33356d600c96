"""A statistical test of counts against probabilities."""

from operator import itemgetter

import torch

# Correct distributions must have a larger p-value than the first, wrong ones a smaller p-value than the second.
LEAST_P, WRONG_P = 1e-4, 1e-6


def p_value(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    """Return the p-value of Pearson's chi-squared test of `counts` against the rows of `probabilities`."""
    if counts[probabilities == 0].any():
        return 0.0
    expected = probabilities.double() * counts.sum(dim=-1, keepdim=True)
    groups = [[0.0, 0.0]]
    pairs = zip(counts.flatten().tolist(), expected.flatten().tolist(), strict=True)
    for count, number in sorted(pairs, key=itemgetter(1)):
        # Merge rare outcomes, so that each group has an expected count of at least 5.
        if groups[-1][1] >= 5:
            groups.append([0.0, 0.0])
        groups[-1] = [groups[-1][0] + count, groups[-1][1] + number]
    statistic = sum((count - number) ** 2 / number for count, number in groups)
    freedom = len(groups) - counts.shape[:-1].numel()
    return torch.special.gammaincc(torch.tensor(freedom / 2), torch.tensor(statistic / 2)).item()
