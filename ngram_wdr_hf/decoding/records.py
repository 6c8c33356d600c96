"""Scores, logits and states that `generate` returns with the tokens."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.generation import GenerationConfig
from transformers.utils import ModelOutput

from .obstacles import CannotDraft
from .rows import TextRows

# Output fields of decoder-only and of encoder-decoder models, by the option that requests them.
STATE_FIELDS = {
    "output_attentions": (("attentions",), ("decoder_attentions", "cross_attentions")),
    "output_hidden_states": (("hidden_states",), ("decoder_hidden_states",)),
}


class StepRecords:
    """
    Scores, logits, attentions and hidden states that `generate` returns with the tokens: lists with one entry per
    generated token, for those that the generation config requests.
    """

    def __init__(self, text: TextRows, config: GenerationConfig, is_encoder_decoder: bool):
        self.text = text
        self.scores = [] if config.return_dict_in_generate and config.output_scores else None
        self.logits = [] if config.return_dict_in_generate and config.output_logits else None
        self.states = {}
        for option, names in STATE_FIELDS.items():
            if config.return_dict_in_generate and getattr(config, option):
                if len(text.rows) > 1:
                    raise CannotDraft(
                        f"`{option}=True` with `use_mtp=True` supports one row, got {len(text.rows)}. Generate the "
                        "rows one by one, or use `use_mtp=False`."
                    )
                self.states |= {name: [] for name in names[is_encoder_decoder]}

    def add(self, outputs: ModelOutput, logits: torch.Tensor, scores: torch.Tensor, counts: Sequence[int]) -> None:
        """
        Record the first `counts[i]` steps of each active row i: its accepted drafts and the token after them; none for
        a finished row. Call this before these tokens are added to the text.
        """
        for record, values in ((self.scores, scores), (self.logits, logits)):
            if record is not None:
                self._add_values(record, values, counts)
        for name, record in self.states.items():
            if outputs.get(name) is not None:
                # The first entry is the whole prompt's. Only self-attention has a column per token of the text.
                grows = name in ("attentions", "decoder_attentions")
                record += _single_steps(outputs[name], counts[0], grows) if record else [outputs[name]]

    def _add_values(self, record: list[torch.Tensor], values: torch.Tensor, counts: Sequence[int]) -> None:
        """Write `values[i, :counts[i]]` of each active row i to the steps that follow its text."""
        for i, (row, count) in enumerate(zip(self.text.rows, counts, strict=True)):
            first = len(self.text.tokens[row]) - self.text.prompt_length
            for step in range(count):
                if first + step == len(record):
                    # The scores of finished rows stay 0.
                    record.append(values.new_zeros(len(self.text.tokens), values.shape[-1]))
                record[first + step][row] = values[i, step]

    def clear_dropped(self, num_accepted: Sequence[int], counts: Sequence[int]) -> None:
        """
        Set the recorded scores and logits of dropped tokens to 0. Of the `num_accepted[i] + 1` tokens recorded last,
        row i has kept the first `counts[i]`, because it ended there.
        """
        for row, accepted, count in zip(self.text.rows, num_accepted, counts, strict=True):
            end = len(self.text.tokens[row]) - self.text.prompt_length
            for record in filter(None, (self.scores, self.logits)):
                for values in record[end : end + accepted + 1 - count]:
                    values[row] = 0.0

    def fields(self) -> dict[str, Any]:
        """Return the requested output fields, each a tuple with one entry per generated token of the longest row."""
        records = {"scores": self.scores, "logits": self.logits, **self.states}
        length = self.text.longest - self.text.prompt_length
        return {name: tuple(record[:length]) for name, record in records.items() if record}


def _single_steps(layers: Sequence[torch.Tensor], count: int, grows: bool) -> list[tuple[torch.Tensor, ...]]:
    """
    Split the attentions or hidden states `(..., width, n)` of a forward pass over `width` tokens into those of single
    steps. Return one tuple of layers for each of the first `count` tokens. With `grows`, their last dimension has a
    column per token of the text, and later tokens are cut off.
    """
    width = layers[0].shape[-2]
    return [
        tuple(layer[..., step : step + 1, : layer.shape[-1] - (width - 1 - step if grows else 0)] for layer in layers)
        for step in range(count)
    ]
