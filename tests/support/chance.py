"""Whether counts can come from probabilities."""

from operator import itemgetter

import torch

# A right distribution may look as unlikely as that; a wrong one has to look far worse.
LEAST_P, WRONG_P = 1e-4, 1e-6


def p_value(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    """How often counts as far off as these, or further, come from the rows of `probabilities`: Pearson's test."""
    if counts[probabilities == 0].any():
        return 0.0
    expected = probabilities.double() * counts.sum(dim=-1, keepdim=True)
    groups = [[0.0, 0.0]]
    pairs = zip(counts.flatten().tolist(), expected.flatten().tolist(), strict=True)
    for count, number in sorted(pairs, key=itemgetter(1)):
        # What is rare is counted together, so that five or more are expected.
        if groups[-1][1] >= 5:
            groups.append([0.0, 0.0])
        groups[-1] = [groups[-1][0] + count, groups[-1][1] + number]
    statistic = sum((count - number) ** 2 / number for count, number in groups)
    freedom = len(groups) - counts.shape[:-1].numel()
    return torch.special.gammaincc(torch.tensor(freedom / 2), torch.tensor(statistic / 2)).item()
