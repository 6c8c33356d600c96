"""The paper's training loss as the paper writes it. The model computes the same, in chunks and with documents."""

import torch
import torch.nn.functional as F

from .differences import conjugate


def plain_ngram_loss(hidden_states, input_ids, heads, output_embedding, target="wdr") -> torch.Tensor:
    """
    Return `1/2 L_0 + 1/(2(N-1)) sum_n L_n` for full rows of one document each, without smoothing: slow, for readers
    and for tests of [`ngram_loss`]. `h[t]`, of `hidden_states` `(batch_size, T, d)`, has seen the tokens `x[0..t]`;
    from it, head n of the N - 1 `heads` predicts `x[t+1+n]`. All depths share the output embedding `W`.
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
