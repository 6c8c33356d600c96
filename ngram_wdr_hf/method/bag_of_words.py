"""The bag-of-words loss (Ma et al. 2018): all positions together should name every word of the sentence."""

import torch
import torch.nn.functional as F

from .documents import IGNORE_INDEX


def bag_of_words_nll(
    hidden_states: torch.Tensor, targets: torch.LongTensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    r"""
    `-sum_w log sigmoid(sum_t s_t[w])` over the distinct words `w` of each target sentence, summed over the sentences;
    `s_t` are the logits at the position of target t. As the logit layer is linear, the sum of a sentence's logits is
    the logit of its summed hidden states, and only the sentence's own words are looked up.

    Args:
        hidden_states (`torch.Tensor` of shape `(batch_size, T, d)`): What the logit layer sees.
        targets (`torch.LongTensor` of shape `(batch_size, T)`): The words to predict; -100 where there is none.
        weight (`torch.Tensor` of shape `(vocab_size, d)`): The output embedding.
        bias (`torch.Tensor` of shape `(vocab_size,)`, *optional*): The logit bias.
    """
    is_target = targets != IGNORE_INDEX
    sentences = (hidden_states * is_target[..., None]).sum(1)  # (batch_size, d)
    words = targets.sort(dim=1).values
    is_first = F.pad(words[:, 1:] != words[:, :-1], (1, 0), value=True) & (words != IGNORE_INDEX)
    words = words.clamp(min=0)
    scores = torch.einsum("bd,btd->bt", sentences, F.embedding(words, weight))
    if bias is not None:
        scores = scores + is_target.sum(1, keepdim=True) * bias[words]
    return -(F.logsigmoid(scores) * is_first).sum()
