"""Rows of tokens with the hidden states of a frozen language model."""

from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import PreTrainedModel

from ...data.rows import pad_batch
from ..common.cached_states import CachedStates


class CachedRows(CachedStates):
    """
    Rows with their hidden states. An item has `input_ids`, `last_hidden_state` of shape `(T, d)`, and `shift_labels`:
    the model's own most likely next tokens. `labels` are the same tensor, since Trainer counts targets only with
    labels. The rows may have different lengths.
    """

    collate = staticmethod(pad_batch)

    def __init__(self, rows: Dataset, folder: Path, width: int):
        super().__init__(rows, [len(rows[i]["input_ids"]) for i in range(len(rows))], folder, width)

    def compute(self, model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        return {"states": model.ngram_predictions(**inputs).main[inputs["attention_mask"].bool()]}

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        cached = self.read(i)
        return {
            "input_ids": self.items[i]["input_ids"],
            "last_hidden_state": cached["states"],
            "labels": cached["greedy"],
            "shift_labels": cached["greedy"],
        }
