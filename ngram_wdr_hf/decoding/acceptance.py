"""Which drafts are accepted: the same tokens as in plain greedy search, the same distribution as in plain sampling."""

from collections.abc import Sequence

import torch


def accept_greedily(scores: torch.Tensor, drafts: torch.LongTensor) -> tuple[torch.LongTensor, torch.LongTensor]:
    r"""
    The best tokens, and how many of the drafts are among them before the first that is not.

    Args:
        scores (`torch.FloatTensor` of shape `(batch_size, D + 1, vocab_size)`):
            What the model says after the text, and after each of the D drafts.
        drafts (`torch.LongTensor` of shape `(batch_size, D)`): The drafted tokens.

    Returns:
        `torch.LongTensor` of shape `(batch_size, D + 1)`, of which row i is right up to and including place
        `num_accepted[i]`; `num_accepted`, a `torch.LongTensor` of shape `(batch_size,)`.
    """
    best = scores.argmax(dim=-1)
    if drafts.shape[1] == 0:
        return best, drafts.new_zeros(len(drafts))
    num_accepted = (best[:, :-1] == drafts).long().cumprod(dim=1).sum(dim=1)
    return best, num_accepted


def accept_by_sampling(
    scores: torch.Tensor, drafts: torch.LongTensor, draft_probabilities: Sequence[torch.Tensor]
) -> tuple[torch.LongTensor, torch.LongTensor]:
    r"""
    Speculative sampling (Leviathan et al. 2023): tokens that are distributed as if sampled from `scores` one by one,
    wherever the drafts came from. A draft stands with probability `min(1, p / q)`; the first that does not is replaced
    by a token from the part of p that q falls short of.

    Args:
        scores (`torch.FloatTensor` of shape `(batch_size, D + 1, vocab_size)`): As for `accept_greedily`.
        drafts (`torch.LongTensor` of shape `(batch_size, D)`): Sampled from `draft_probabilities`.
        draft_probabilities (`Sequence[torch.Tensor]`, D of shape `(batch_size, vocab_size)`): The q of each draft.

    Returns:
        As `accept_greedily`.
    """
    probabilities = scores.softmax(dim=-1)
    batch_size, depth = drafts.shape
    if depth == 0:
        return torch.multinomial(probabilities[:, 0], 1), drafts.new_zeros(batch_size)
    p = probabilities[:, :-1].gather(-1, drafts[..., None])[..., 0]
    q = torch.cat([q.gather(-1, drafts[:, i, None]) for i, q in enumerate(draft_probabilities)], dim=1)
    stands = torch.rand_like(p) * q < p
    num_accepted = stands.long().cumprod(dim=1).sum(dim=1)

    # After the last draft nothing was proposed, and all of p is left.
    rows = torch.arange(batch_size, device=drafts.device)
    target = left = probabilities[rows, num_accepted]
    for i, q in enumerate(draft_probabilities):
        left = torch.where((num_accepted == i)[:, None], (target - q).clamp(min=0), left)
    # Nothing is left where q is p but for rounding.
    left = torch.where(left.sum(dim=-1, keepdim=True) > 0, left, target)
    tokens = torch.cat([drafts, drafts[:, -1:]], dim=1)
    tokens[rows, num_accepted] = torch.multinomial(left, 1)[:, 0]
    return tokens, num_accepted
