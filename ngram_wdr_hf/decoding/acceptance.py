"""Acceptance of drafts: the tokens of plain greedy search, or the distribution of plain sampling."""

from collections.abc import Sequence

import torch


def accept_greedily(scores: torch.Tensor, drafts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    r"""
    Accept the drafts before the first one that differs from the model's best token, in each row.

    Args:
        scores (`torch.FloatTensor` of shape `(batch_size, D + 1, vocab_size)`):
            The model's scores after the text, and after each of the D drafts.
        drafts (`torch.LongTensor` of shape `(batch_size, D)`): The drafted tokens.

    Returns:
        `(tokens, num_accepted)`, of shape `(batch_size, D + 1)` and `(batch_size,)`. The first `num_accepted[i]`
        tokens of row i are its accepted drafts. One more token follows, the model's; the rest is invalid.
    """
    best = scores.argmax(dim=-1)
    num_accepted = (best[:, :-1] == drafts).long().cumprod(dim=1).sum(dim=1)
    return best, num_accepted


def accept_by_sampling(
    scores: torch.Tensor, drafts: torch.Tensor, draft_probabilities: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""
    Apply speculative sampling (Leviathan et al. 2023): the result is distributed as if sampled from `scores` token by
    token, for any draft distribution. With p the softmax of `scores`, a draft is accepted with probability
    `min(1, p / q)`; the first rejected one is replaced by a sample from the normalized `max(p - q, 0)`. If none is
    rejected, one more token is sampled from p. Arguments and result are as in `accept_greedily`;
    `draft_probabilities` are the D distributions q, `(batch_size, vocab_size)`, that the drafts were sampled from.
    """
    probabilities = scores.softmax(dim=-1)
    batch_size, depth = drafts.shape
    if depth == 0:
        return torch.multinomial(probabilities[:, 0], 1), drafts.new_zeros(batch_size)
    p = probabilities[:, :-1].gather(-1, drafts[..., None])[..., 0]
    q = torch.cat([q.gather(-1, drafts[:, i, None]) for i, q in enumerate(draft_probabilities)], dim=1)
    is_accepted = torch.rand_like(p) * q < p
    num_accepted = is_accepted.long().cumprod(dim=1).sum(dim=1)

    # After the last draft there is no q, and the residual is p itself.
    rows = torch.arange(batch_size, device=drafts.device)
    target = residual = probabilities[rows, num_accepted]
    for i, q in enumerate(draft_probabilities):
        residual = torch.where((num_accepted == i)[:, None], (target - q).clamp(min=0), residual)
    # If p and q differ only by rounding, the residual may be all zeros.
    residual = torch.where(residual.sum(dim=-1, keepdim=True) > 0, residual, target)
    # Where all tokens are forbidden, as may be the case after the end of a row, any token will do.
    residual = torch.where(target.isnan(), 1.0, residual)
    tokens = torch.cat([drafts, drafts[:, -1:]], dim=1)
    tokens[rows, num_accepted] = torch.multinomial(residual, 1)[:, 0]
    return tokens, num_accepted
