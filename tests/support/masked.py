"""A slow reference of the loss of masked language models, and token streams for them."""

from math import comb

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from ngram_wdr_hf.data.token_stream import TokenStream
from tests.support.reference import documents


def transformed(model: PreTrainedModel, hidden: torch.Tensor) -> torch.Tensor:
    """Return the input of the stock model's output embedding, computed by its own layers."""
    return model.head(hidden) if hasattr(model, "head") else model.cls.predictions.transform(hidden)


def reference_losses(model, input_ids, labels, attention_mask=None, position_ids=None, label_smoothing=0.0):
    """
    Return a list of target losses for the model itself and for each head. Head n, at the masked position i:
    `e(x_i) = (-1)^n Δ_n e_i + n e(x_(i+1)) - C(n,2) e(x_(i+2)) + ...`
    """
    hidden = model.base_model(input_ids, attention_mask=attention_mask, position_ids=position_ids).last_hidden_state
    main = transformed(model, hidden)
    weight = model.get_output_embeddings().weight.detach()
    batch_size, length = labels.shape
    numbers = documents(batch_size, length, attention_mask, position_ids)
    losses = [[] for _ in range(len(model.ngram_heads) + 1)]
    for b in range(batch_size):
        for i in range(length):
            if labels[b, i] == -100:
                continue
            for n in range(len(losses)):
                following = range(i + 1, i + n + 1)
                if n and (i + n >= length or any(numbers[b][j] != numbers[b][i] for j in following)):
                    continue
                if model.config.wdr_compose == "masked" and any(labels[b, j] == -100 for j in following):
                    continue
                prediction = main[b, i] if n == 0 else model.ngram_heads[n - 1](main[b, i])
                for k, j in enumerate(following, start=1):
                    token = labels[b, j] if labels[b, j] != -100 else input_ids[b, j]
                    prediction = prediction - (-1) ** k * comb(n, k) * weight[token]
                logits = model.get_output_embeddings()(prediction)
                losses[n].append(F.cross_entropy(logits, labels[b, i], label_smoothing=label_smoothing))
    return losses


def reference_loss(losses, count=None):
    """`1/2 L_0 + 1/(2(N-1)) sum_n L_n`, each divided by the number of masked tokens."""
    count = len(losses[0]) if count is None else count
    sums = [sum(terms) / count for terms in losses]
    return sums[0] if len(sums) == 1 else sums[0] / 2 + sum(sums[1:]) / (2 * (len(sums) - 1))


def some_ids(tokenizer, length: int, seed: int = 0) -> torch.Tensor:
    ordinary = sorted(set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids))
    generator = torch.Generator().manual_seed(seed)
    return torch.tensor(ordinary)[torch.randint(len(ordinary), (length,), generator=generator)]


def stream_of(tokenizer, length: int) -> TokenStream:
    return TokenStream(some_ids(tokenizer, length).numpy().astype(np.int32), num_words=length)
