"""Batch rows of different lengths, for logits processors and stopping criteria that expect rows of one length."""

from collections import defaultdict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import generation
from transformers.generation import EosTokenCriteria, LogitsProcessorList, MaxLengthCriteria, StoppingCriteriaList

# Processors that read only the scores of one position.
POINTWISE = {
    generation.EpsilonLogitsWarper,
    generation.EtaLogitsWarper,
    generation.InfNanRemoveLogitsProcessor,
    generation.LogitNormalization,
    generation.MinPLogitsWarper,
    generation.TemperatureLogitsWarper,
    generation.TopKLogitsWarper,
    generation.TopPLogitsWarper,
    generation.TypicalLogitsWarper,
}


class RowTexts:
    """
    The rows of a generation: `tokens` and `finished` of each, without padding. `rows` are the active ones, which are
    still in the batch. Logits processors and stopping criteria may depend on a row's index, so they get the full
    batch, with all rows truncated or padded to the length in question. `records` are lists of `"scores"` and
    `"logits"` that get an entry per generated token.
    """

    def __init__(
        self,
        input_ids: torch.Tensor,
        max_length: int,
        pad_token_id: int,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        records: dict[str, list[torch.Tensor]] | None = None,
    ):
        batch_size, self.prompt_length = input_ids.shape
        self.device, self.max_length, self.pad_token_id = input_ids.device, max_length, pad_token_id
        self.rows = list(range(batch_size))
        self.tokens = input_ids.tolist()
        self.finished = [False] * batch_size
        self.processors = processors
        self.is_pointwise = all(type(processor) in POINTWISE for processor in processors)
        # Ends by token and by length are found without putting texts together.
        ends = [criterion.eos_token_id for criterion in criteria if type(criterion) is EosTokenCriteria]
        self.end_tokens = {token for tokens in ends for token in tokens.tolist()}
        native = (EosTokenCriteria, MaxLengthCriteria)
        self.criteria = StoppingCriteriaList(criterion for criterion in criteria if type(criterion) not in native)
        self.records = records or {}

    @property
    def longest(self) -> int:
        return max(map(len, self.tokens))

    def tokens_left(self) -> list[int]:
        """Return how many tokens each active row can still get up to the maximum length; 0 for finished rows."""
        return [0 if self.finished[row] else self.max_length - len(self.tokens[row]) for row in self.rows]

    def unfinished(self) -> list[int]:
        """Return which active rows are unfinished, as indices into `rows`."""
        return [i for i, row in enumerate(self.rows) if not self.finished[row]]

    def sequences(self) -> torch.Tensor:
        """Return all rows, finished ones included, padded at the end: `(batch_size, longest)`."""
        rows = [torch.tensor(tokens, dtype=torch.long) for tokens in self.tokens]
        return pad_sequence(rows, batch_first=True, padding_value=self.pad_token_id).to(self.device)

    def process(self, scores: torch.Tensor, drafts: torch.Tensor) -> torch.Tensor:
        """
        Apply the logits processors to logits of the active rows, `(len(rows), K, vocab_size)`: those after each row
        and its first D - K + 1, D - K + 2, ..., D of the `drafts`, `(len(rows), D)`. A processor sees this text.
        """
        if not self.processors:
            return scores
        if self.is_pointwise:
            # Pointwise processors do not read the text, so an empty one will do.
            return self.processors(drafts.new_empty(scores.shape[:2].numel(), 0), scores.flatten(0, 1)).view_as(scores)
        first = drafts.shape[1] - scores.shape[1] + 1
        batch, by_length = self._group_by_length(first, [scores.shape[1]] * len(self.rows), drafts)
        processed = torch.empty_like(scores)
        for length, (rows, steps) in sorted(by_length.items()):
            batch_rows = [self.rows[row] for row in rows]
            batch_scores = scores.new_zeros(len(batch), scores.shape[-1])
            batch_scores[batch_rows] = scores[rows, steps]
            processed[rows, steps] = self.processors(batch[:, :length], batch_scores)[batch_rows]
        return processed

    def add(self, tokens: torch.Tensor, counts: Sequence[int], **values: torch.Tensor) -> list[int]:
        """
        Append the first `counts[i]` of `tokens[i]`, `(len(rows), K)`, to each active row i, up to its end: the maximum
        length, or the first token that meets a stopping criterion. Rows that reach it become finished. `values` are
        the scores and logits to record, `(len(rows), K, vocab_size)`. Return how many tokens were appended.
        """
        counts = list(map(min, counts, self.tokens_left()))
        finished, new_tokens = [False] * len(counts), tokens.tolist()
        for i, row in enumerate(new_tokens):
            end = next((step for step, token in enumerate(row[: counts[i]]) if token in self.end_tokens), None)
            if end is not None:
                counts[i], finished[i] = end + 1, True
        for name, record in self.records.items():
            self._record(record, values[name], counts)
        if self.criteria:
            self._apply_criteria(tokens, counts, finished)
        for i, (row, new) in enumerate(zip(self.rows, new_tokens, strict=True)):
            self.tokens[row] += new[: counts[i]]
            self.finished[row] |= finished[i] or len(self.tokens[row]) >= self.max_length
            if finished[i]:
                for record in self.records.values():
                    for entry in record[len(self.tokens[row]) - self.prompt_length :]:
                        entry[row] = 0.0
        return counts

    def _apply_criteria(self, tokens: torch.Tensor, counts: list[int], finished: list[bool]) -> None:
        """Shorten `counts`, and set `finished`, for rows that meet a stopping criterion before."""
        batch, by_length = self._group_by_length(1, counts, tokens)
        met = set()
        for length, (rows, steps) in sorted(by_length.items()):
            scores = self.records.get("scores")
            is_done = self.criteria(
                batch[:, :length], None if scores is None else tuple(scores[: length - self.prompt_length])
            ).tolist()
            for i, step in zip(rows, steps, strict=True):
                if is_done[self.rows[i]] and i not in met:
                    met.add(i)
                    counts[i], finished[i] = step + 1, True

    def _record(self, record: list[torch.Tensor], values: torch.Tensor, counts: Sequence[int]) -> None:
        """Write `values[i, :counts[i]]` of each active row i to the steps that follow its text."""
        for i, (row, count) in enumerate(zip(self.rows, counts, strict=True)):
            first = len(self.tokens[row]) - self.prompt_length
            for step in range(count):
                if first + step == len(record):
                    # The scores of finished rows stay 0.
                    record.append(values.new_zeros(len(self.tokens), values.shape[-1]))
                record[first + step][row] = values[i, step]

    def _group_by_length(
        self, first: int, counts: Sequence[int], tokens: torch.Tensor
    ) -> tuple[torch.Tensor, dict[int, tuple[list[int], list[int]]]]:
        """
        Return the full batch with `tokens` appended to the active rows, and a map from each length to two lists: the
        active rows whose text has it at some step, as indices into `rows`, and these steps. At step s, from 0 to
        `counts[i] - 1`, the text of row i continues with `first + s` of its `tokens`.
        """
        width = tokens.shape[1]
        batch = F.pad(self.sequences(), (0, width), value=self.pad_token_id)
        by_length = defaultdict(lambda: ([], []))
        for i, row in enumerate(self.rows):
            length = len(self.tokens[row])
            batch[row, length : length + width] = tokens[i]
            for step in range(counts[i]):
                rows, steps = by_length[length + first + step]
                rows.append(i)
                steps.append(step)
        return batch, by_length
