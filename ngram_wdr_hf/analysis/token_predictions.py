"""What the model and each head predicted about each token of a text, before they had read it."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..evaluation.modes import evaluating
from ..evaluation.unavailable import Unavailable
from ..method.ensemble import Ensemble
from ..method.logits import LogitLayer
from ..method.loss import chunk_rows
from .token_texts import texts_after


class Prediction(NamedTuple):
    r"""
    A prediction of one token of a text.

    Args:
        text (`str`): The text of the most likely token.
        probability (`float`): The probability of that token.
        token_probability (`float`): The probability of the token that the text has; 0 if a head may not draft it.
        is_right (`bool`): Whether both are the same token.
    """

    text: str
    probability: float
    token_probability: float
    is_right: bool


class TokenPredictions(NamedTuple):
    r"""
    All predictions of one token of a text.

    Args:
        by_depth (`tuple[Prediction | None, ...]`):
            Depth 0 is the model's own prediction, depth n that of head n, made n tokens earlier. `None` if the text
            before the token was too short for the head.
        ensemble ([`Prediction`], *optional*): The prediction of the ensemble; `None` without an ensemble.
    """

    by_depth: tuple[Prediction | None, ...]
    ensemble: Prediction | None


@torch.no_grad()
def token_predictions(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    begin: Sequence[int],
    ids: Sequence[int],
    ensemble: Ensemble = 0.0,
) -> list[TokenPredictions]:
    r"""
    Return what the model and its heads predicted about each token of a text, from one forward pass over the text.

    Head n predicts from the hidden state n tokens earlier, with the tokens in between as the text has them. If its
    drafts before were accepted, this is the draft of speculative decoding. It chooses from the tokens that heads may
    draft.

    Args:
        model (`PreTrainedModel`): A causal language model with N-gram heads.
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
        begin (`Sequence[int]`): The token ids that the text begins with, at least one; they are not predicted.
        ids (`Sequence[int]`): The token ids after them, at least one.
        ensemble (`Ensemble`, *optional*, defaults to 0.0): λ or the weights of the ensemble; 0 for none.

    Returns:
        `list[TokenPredictions]`: One entry for each of `ids`.
    """
    if model.config.is_encoder_decoder:
        raise Unavailable(f"`model` must be a causal language model, got {type(model).__name__}.")
    if not begin or not ids:
        raise ValueError(f"`begin` and `ids` need at least one token each, got {len(begin)} and {len(ids)}.")
    text = [*begin, *ids]
    layer, vocabulary = LogitLayer.of(model), model.ngram_draft_vocabulary()
    with evaluating(model):
        predictions = model.ngram_predictions(input_ids=torch.tensor([text[:-1]], device=model.device))

    def read(embeddings: torch.Tensor, tokens: torch.Tensor | None = None) -> list[Prediction | None]:
        """Read predictions `(1, K, d)` of the last K tokens, of all tokens or only the given ones."""
        rows = embeddings[0, -len(ids) :]
        targets = torch.tensor(ids[len(ids) - len(rows) :], device=rows.device)
        found = _read(layer if tokens is None else layer.select(tokens), rows, targets, tokens)
        missing = len(ids) - len(found)
        return [None] * missing + [
            Prediction(*texts_after(text[:at], [best], tokenizer), probability, token_probability, best == text[at])
            for at, (best, probability, token_probability) in enumerate(found, start=len(begin) + missing)
        ]

    main, *heads = predictions.embeddings
    by_depth = [read(main), *(read(embeddings, vocabulary) for embeddings in heads)]
    mixed = [None] * len(ids) if ensemble == 0 else read(predictions.ensemble(ensemble))
    return list(map(TokenPredictions, zip(*by_depth, strict=True), mixed))


def _read(
    layer: LogitLayer, rows: torch.Tensor, targets: torch.Tensor, tokens: torch.Tensor | None
) -> list[tuple[int, float, float]]:
    """
    Return for each predicted embedding, `(K, d)`, the most likely token, its probability, and that of the target.
    `tokens` are the ids that belong to the logits of `layer`, `None` for all.
    """
    found, size = [], chunk_rows(layer.weight)
    for chunk, target in zip(rows.split(size), targets.split(size), strict=True):
        probabilities = layer(chunk).float().softmax(-1)
        highest, best = probabilities.max(-1)
        if tokens is None:
            of_target = probabilities.gather(-1, target[:, None])[:, 0]
        else:
            of_target = (probabilities * (tokens == target[:, None])).sum(-1)
            best = tokens[best]
        found += zip(best.tolist(), highest.tolist(), of_target.tolist(), strict=True)
    return found
