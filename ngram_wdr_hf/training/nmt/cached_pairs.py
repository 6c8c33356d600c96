"""Batches of sentence pairs with the decoder's hidden states of a frozen translation model."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from transformers import PreTrainedModel

from ...data.pair_batches import PairBatches, side_lengths, unwrap_batch
from ...method.documents import IGNORE_INDEX
from ..common.cached_states import CachedStates


class CachedPairs(CachedStates):
    """
    Batches with their hidden states, for a model that needs no sources then. An item is a whole batch, padded:
    `decoder_input_ids`, `last_hidden_state` of shape `(batch_size, T, d)`, and `labels`, the model's own most likely
    next tokens.
    """

    files: ClassVar[dict[str, type[np.number]]] = {**CachedStates.files, "inputs": np.int32}
    collate = staticmethod(unwrap_batch)

    def __init__(self, batches: PairBatches, folder: Path, width: int):
        self.lengths = side_lengths(batches.rows)[:, 1]
        super().__init__(batches, [self.lengths[batch].sum() for batch in batches.batches], folder, width)

    def compute(self, model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        is_real = batch["labels"] != IGNORE_INDEX
        sources = {name: batch[name] for name in ("input_ids", "attention_mask")}
        decoder_ids = model._ngram_decoder_inputs(batch["labels"])
        states = model.ngram_predictions(**sources, decoder_input_ids=decoder_ids).main
        return {"states": states[is_real], "inputs": decoder_ids[is_real]}

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        cached = self.read(i)
        lengths = torch.from_numpy(self.lengths[self.items.batches[i]])
        is_real = torch.arange(int(lengths.max())) < lengths[:, None]

        def pad(values: torch.Tensor, padding: int) -> torch.Tensor:
            padded = values.new_full((*is_real.shape, *values.shape[1:]), padding)
            padded[is_real] = values
            return padded

        return {
            "decoder_input_ids": pad(cached["inputs"], self.items.pad_token_id),
            "last_hidden_state": pad(cached["states"], 0),
            "labels": pad(cached["greedy"], IGNORE_INDEX),
        }
