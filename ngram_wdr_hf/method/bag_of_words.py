"""The bag-of-words loss (Ma et al. 2018): the positions of a sentence together predict all of its tokens."""

import torch
import torch.nn.functional as F

from .documents import IGNORE_INDEX


def bag_of_words_nll(
    hidden_states: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """
    Return the bag-of-words loss of hidden states `(batch_size, T, d)` with `targets`, `(batch_size, T)` and -100 for
    none: `-sum_w log sigmoid(sum_t s_t[w])` over the distinct target tokens `w` of each sentence, summed over the
    sentences. `s_t` are the logits, through `weight` and `bias`, at the positions t that have a target.
    """
    # The logit layer is linear, so the sum of a sentence's logits is the logit of its summed hidden states. Only the
    # logits of the sentence's own tokens are computed.
    is_target = targets != IGNORE_INDEX
    sentence_states = (hidden_states * is_target[..., None]).sum(1)  # (batch_size, d)
    tokens = targets.sort(dim=1).values
    is_first = F.pad(tokens[:, 1:] != tokens[:, :-1], (1, 0), value=True) & (tokens != IGNORE_INDEX)
    tokens = tokens.clamp(min=0)
    scores = torch.einsum("bd,btd->bt", sentence_states, F.embedding(tokens, weight))
    if bias is not None:
        scores = scores + is_target.sum(1, keepdim=True) * bias[tokens]
    return -(F.logsigmoid(scores) * is_first).sum()
