"""The paper's training loss as the paper writes it. The model computes the same, in chunks and with documents."""

import torch
import torch.nn.functional as F

from .differences import conjugate


def plain_ngram_loss(hidden_states, input_ids, heads, output_embedding, target="wdr") -> torch.Tensor:
    r"""
    Return `1/2 L_0 + 1/(2(N-1)) sum_n L_n` for full rows of one document each, without smoothing. Slow, and with all
    logits in memory: it is for readers, and for tests of [`ngram_loss`].

    Args:
        hidden_states (`torch.Tensor` of shape `(batch_size, T, d)`): `h`; `h[t]` has seen `x[0..t]`.
        input_ids (`torch.LongTensor` of shape `(batch_size, T)`): The tokens `x`.
        heads (`nn.ModuleList`): The N - 1 heads; head n predicts `x[t+1+n]` from `h[t]`.
        output_embedding (`torch.Tensor` of shape `(vocab_size, d)`): `W`, shared by all depths.
        target (`str`, *optional*, defaults to `"wdr"`): What the heads predict, `"wdr"` or `"simple"`.
    """
    x, length = input_ids, input_ids.shape[1]
    e = output_embedding.detach()[x]  # (batch_size, T, d)
    losses = []
    for n, head in enumerate([None, *heads]):
        prediction = hidden_states[:, : length - 1 - n]
        if head is not None:
            prediction = head(prediction)
            if target == "wdr":
                # Made of the tokens x[t+1..t+n].
                prediction = prediction + conjugate(e[:, 1:], n)[:, : length - 1 - n]
        logits = prediction @ output_embedding.T
        losses.append(F.cross_entropy(logits.flatten(0, 1), x[:, 1 + n :].flatten(), reduction="sum"))
    count = x[:, 1:].numel()
    return losses[0] / (2 * count) + sum(losses[1:]) / (2 * len(heads) * count)
