"""Batch rows of different lengths, for logits processors and stopping criteria that expect rows of one length."""

from collections import defaultdict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from transformers.generation import (
    EosTokenCriteria,
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    MaxTimeCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    StoppingCriteriaList,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

# Processors that read only the scores of one position.
POINTWISE = {
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
}
# Processors that read the text of a row, but not its index in the batch.
ROWWISE = {
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
}
# Criteria that read only the new tokens, the length and the clock.
SIMPLE_CRITERIA = {EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria}


class TextRows:
    r"""
    The rows of a generation, finished ones included. Logits processors and stopping criteria may depend on a row's
    index, so they get the full batch, with all rows truncated or padded to the length in question.

    Args:
        input_ids (`torch.LongTensor` of shape `(batch_size, prompt_length)`): The prompts.
        max_length (`int`): The maximum length of a row.
        pad_token_id (`int`): The padding after the end of a row.
        processors (`LogitsProcessorList`): The logits processors.
        criteria (`StoppingCriteriaList`): The stopping criteria.

    Attributes:
        rows (`list[int]`): The active rows: indices of those still in the batch of the forward passes.
        tokens (`list[list[int]]`): The tokens of each row.
        finished (`list[bool]`): Whether each row is finished.
    """

    def __init__(
        self,
        input_ids: torch.Tensor,
        max_length: int,
        pad_token_id: int,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
    ):
        batch_size, prompt_length = input_ids.shape
        self.max_length = max_length
        self.prompt_length = prompt_length
        self.pad_token_id = pad_token_id
        # Updated on demand, by `sequences`.
        self._ids = input_ids
        self._num_written = [prompt_length] * batch_size
        self.rows = list(range(batch_size))
        self.tokens = input_ids.tolist()
        self.finished = [False] * batch_size
        self.processors = processors
        self.criteria = criteria
        self.is_pointwise = all(type(processor) in POINTWISE for processor in processors)
        # What prefix constraints allow after a row and its drafts, in the current step.
        self._allowed: dict[tuple[int, ...], list[int]] = {}
        self.has_simple_criteria = all(type(criterion) in SIMPLE_CRITERIA for criterion in criteria)

    @property
    def lengths(self) -> list[int]:
        return [len(tokens) for tokens in self.tokens]

    @property
    def longest(self) -> int:
        return max(map(len, self.tokens))

    def tokens_left(self) -> list[int]:
        """Return how many tokens each active row can still get up to the maximum length; 0 for finished rows."""
        return [0 if self.finished[row] else self.max_length - len(self.tokens[row]) for row in self.rows]

    def sequences(self) -> torch.Tensor:
        """Return all rows, finished ones included, padded at the end: `(batch_size, longest)`."""
        longest = self.longest
        if longest > self._ids.shape[1]:
            num_added = min(2 * longest, self.max_length) - self._ids.shape[1]
            self._ids = F.pad(self._ids, (0, num_added), value=self.pad_token_id)
        for row, tokens in enumerate(self.tokens):
            begin = self._num_written[row]
            if begin < len(tokens):
                self._ids[row, begin : len(tokens)] = torch.tensor(tokens[begin:], device=self._ids.device)
                self._num_written[row] = len(tokens)
        return self._ids[:, :longest]

    def process(self, scores: torch.Tensor, drafts: torch.Tensor) -> torch.Tensor:
        r"""
        Apply the logits processors to logits of the active rows. A processor sees the text that the logits follow: the
        row and its drafts so far.

        Args:
            scores (`torch.FloatTensor` of shape `(len(rows), K, vocab_size)`):
                The logits after each active row and its first D - K + 1, D - K + 2, ..., D drafts.
            drafts (`torch.LongTensor` of shape `(len(rows), D)`, D >= K - 1): The drafts of the active rows.

        Returns:
            `torch.FloatTensor` of the shape of `scores`: The processed scores.
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
            values = scores[rows, steps]
            for processor in self.processors:
                values = self._apply(processor, batch[:, :length], batch_rows, values)
            processed[rows, steps] = values
        return processed

    def _apply(
        self, processor: LogitsProcessor, texts: torch.Tensor, rows: list[int], scores: torch.Tensor
    ) -> torch.Tensor:
        """
        Return the scores `(len(rows), vocab_size)` of some batch rows after one processor. `texts` are the tokens of
        the full batch, all rows truncated or padded to one length.
        """
        if type(processor) is PrefixConstrainedLogitsProcessor:
            return self._apply_constraint(processor, texts, rows, scores)
        if type(processor) in POINTWISE or type(processor) in ROWWISE:
            return processor(texts[rows], scores)
        # Other processors may depend on the row's index.
        batch_scores = scores.new_zeros(len(texts), scores.shape[-1])
        batch_scores[rows] = scores
        return processor(texts, batch_scores)[rows]

    def _apply_constraint(
        self,
        processor: PrefixConstrainedLogitsProcessor,
        texts: torch.Tensor,
        rows: list[int],
        scores: torch.Tensor,
    ) -> torch.Tensor:
        """
        Apply the processor as `_apply` does. Where it allows no token after a draft, all scores are -inf. Without
        drafts, that is the processor's own error.
        """
        constrained = torch.full_like(scores, -torch.inf)
        for i, row in enumerate(rows):
            allowed = self._allowed_after(processor, row, texts[row])
            if not allowed and texts.shape[1] == len(self.tokens[row]):
                # There is no draft to blame: let the processor raise its error.
                processor(texts[row : row + 1], scores[i : i + 1])
            constrained[i, allowed] = scores[i, allowed]
        return constrained

    def _allowed_after(self, processor: PrefixConstrainedLogitsProcessor, row: int, text: torch.Tensor) -> list[int]:
        """
        Return the tokens that the processor allows after a row and its drafts, `text`. After a draft that it forbids,
        these are none: it may not know such a text.
        """
        num_read = len(self.tokens[row])
        # There may be several constraints.
        key = (id(processor), row, *text[num_read:].tolist())
        if key not in self._allowed:
            has_drafts = len(text) > num_read
            if has_drafts and int(text[-1]) not in self._allowed_after(processor, row, text[:-1]):
                self._allowed[key] = []
            else:
                self._allowed[key] = list(processor._prefix_allowed_tokens_fn(row, text))
        return self._allowed[key]

    def unfinished(self) -> list[int]:
        """Return which active rows are unfinished, as indices into `rows`."""
        return [i for i, row in enumerate(self.rows) if not self.finished[row]]

    def add(self, tokens: torch.Tensor, counts: Sequence[int], scores: Sequence[torch.Tensor] | None) -> list[int]:
        r"""
        Append the first `counts[i]` tokens of `tokens[i]` to each active row i, up to its end: the maximum length, or
        the first token that meets a stopping criterion. Rows that reach their end become finished.

        Args:
            tokens (`torch.LongTensor` of shape `(len(rows), K)`): The new tokens.
            counts (`Sequence[int]`): How many of them are valid, per row.
            scores (`Sequence[torch.Tensor]`, *optional*):
                The scores of all steps so far, for the stopping criteria; `None` if they are not recorded.

        Returns:
            `list[int]`: How many tokens were appended to each row, 0 for rows that were finished before.
        """
        self._allowed.clear()
        counts = list(map(min, counts, self.tokens_left()))
        find_ends = self._find_simple_ends if self.has_simple_criteria else self._find_ends
        kept, finished = find_ends(tokens, counts, scores)
        for i, (row, new) in enumerate(zip(self.rows, tokens.tolist(), strict=True)):
            self.tokens[row] += new[: kept[i]]
            self.finished[row] |= finished[i]
        return kept

    def _find_simple_ends(self, tokens, counts, scores) -> tuple[list[int], list[bool]]:
        """Do the same as `_find_ends` for `SIMPLE_CRITERIA`, without putting the text of each step together."""
        kept, finished = list(counts), [False] * len(counts)
        for criterion in self.criteria:
            if type(criterion) is EosTokenCriteria:
                ends = set(criterion.eos_token_id.tolist())
                for i, row in enumerate(tokens.tolist()):
                    end = next((step for step, token in enumerate(row[: kept[i]]) if token in ends), None)
                    if end is not None:
                        kept[i], finished[i] = end + 1, True
            elif type(criterion) is MaxTimeCriteria and bool(criterion(tokens, scores).any()):
                finished = [True] * len(counts)
        lengths = [len(self.tokens[row]) + count for row, count in zip(self.rows, kept, strict=True)]
        return kept, [end or length >= self.max_length for end, length in zip(finished, lengths, strict=True)]

    def _find_ends(self, tokens, counts, scores) -> tuple[list[int], list[bool]]:
        """Return how many of its `counts[i]` new tokens each active row keeps, and whether it is finished then."""
        batch, by_length = self._group_by_length(1, counts, tokens)
        kept, finished = list(counts), [False] * len(counts)
        for length, (rows, steps) in sorted(by_length.items()):
            scores_so_far = None if scores is None else tuple(scores[: length - self.prompt_length])
            is_done = self.criteria(batch[:, :length], scores_so_far).tolist()
            for i, step in zip(rows, steps, strict=True):
                if is_done[self.rows[i]] and not finished[i]:
                    kept[i], finished[i] = step + 1, True
        return kept, finished

    def _group_by_length(
        self, first: int, counts: Sequence[int], tokens: torch.Tensor
    ) -> tuple[torch.Tensor, dict[int, tuple[list[int], list[int]]]]:
        """
        Return the full batch with `tokens` appended to the active rows, and the steps of the active rows grouped by
        length. At step s, from 0 to `counts[i] - 1`, the text of active row i continues with `first + s` of its new
        `tokens`. The grouping maps each length to two lists: the active rows whose text has it at some step, as
        indices into `rows`, and these steps.
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
