"""Rows of text that grow by different numbers of tokens, for processors and criteria that know rows of one length."""

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

# These look at the scores of one position alone, not at the text, its row or its length.
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
# These look at a row's text and length, but not at its number in the batch.
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
# These need no more than the new tokens, the length and the clock.
SIMPLE_CRITERIA = {EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria}


class TextRows:
    r"""
    The rows of a generation, of which some may be finished. What asks about a row by its number, a logits processor or
    a stopping criterion, gets to see the whole batch, every row in its place and of the length in question: cut if it
    is longer, padded if it is not there yet.

    Args:
        input_ids (`torch.LongTensor` of shape `(batch_size, prompt_length)`): The prompts.
        max_length (`int`): No row grows longer.
        pad_token_id (`int`): What follows the end of a row.
        processors (`LogitsProcessorList`): What plain decoding applies to the logits of a step.
        criteria (`StoppingCriteriaList`): What ends a row.

    Attributes:
        rows (`list[int]`): Which rows are being worked on.
        tokens (`list[list[int]]`): Each row of the batch, as long as it is.
        finished (`list[bool]`): Whether it is finished.
    """

    def __init__(
        self,
        input_ids: torch.LongTensor,
        max_length: int,
        pad_token_id: int,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
    ):
        batch_size, prompt_length = input_ids.shape
        self.max_length = max_length
        self.prompt_length = prompt_length
        self.pad_token_id = pad_token_id
        # Written when somebody asks for it.
        self._ids = input_ids
        self._num_written = [prompt_length] * batch_size
        self.rows = list(range(batch_size))
        self.tokens = input_ids.tolist()
        self.finished = [False] * batch_size
        self.processors = processors
        self.criteria = criteria
        self.is_pointwise = all(type(processor) in POINTWISE for processor in processors)
        self.has_simple_criteria = all(type(criterion) in SIMPLE_CRITERIA for criterion in criteria)

    @property
    def lengths(self) -> list[int]:
        return [len(tokens) for tokens in self.tokens]

    @property
    def longest(self) -> int:
        return max(map(len, self.tokens))

    def tokens_left(self) -> list[int]:
        """How many tokens each row being worked on can still get."""
        return [0 if self.finished[row] else self.max_length - len(self.tokens[row]) for row in self.rows]

    def sequences(self) -> torch.LongTensor:
        """The rows, padded to the longest."""
        longest = self.longest
        if longest > self._ids.shape[1]:
            room = min(2 * longest, self.max_length) - self._ids.shape[1]
            self._ids = F.pad(self._ids, (0, room), value=self.pad_token_id)
        for row, tokens in enumerate(self.tokens):
            begin = self._num_written[row]
            if begin < len(tokens):
                self._ids[row, begin : len(tokens)] = torch.tensor(tokens[begin:], device=self._ids.device)
                self._num_written[row] = len(tokens)
        return self._ids[:, :longest]

    def process(self, scores: torch.Tensor, drafts: torch.LongTensor) -> torch.Tensor:
        r"""
        Applies the logits processors.

        Args:
            scores (`torch.FloatTensor` of shape `(len(rows), K, vocab_size)`):
                The logits after the rows' texts and the last drafts but K - 1, after one more of these, ...
            drafts (`torch.LongTensor` of shape `(len(rows), D)`, D >= K - 1): What was drafted after the texts.
        """
        if not self.processors:
            return scores
        if self.is_pointwise:
            # They get no text, and do not look.
            return self.processors(drafts.new_empty(scores.shape[:2].numel(), 0), scores.flatten(0, 1)).view_as(scores)
        first = drafts.shape[1] - scores.shape[1] + 1
        whole, places = self._by_length(first, [scores.shape[1]] * len(self.rows), drafts)
        processed = torch.empty_like(scores)
        for length, (rows, steps) in sorted(places.items()):
            mine = [self.rows[row] for row in rows]
            values = scores[rows, steps]
            for processor in self.processors:
                values = self._apply(processor, whole[:, :length], mine, values)
            processed[rows, steps] = values
        return processed

    def _apply(
        self, processor: LogitsProcessor, texts: torch.LongTensor, rows: list[int], scores: torch.Tensor
    ) -> torch.Tensor:
        """One processor for some rows of the batch, of which `texts`, all of one length, are all rows."""
        if type(processor) is PrefixConstrainedLogitsProcessor:
            return self._apply_constraint(processor, texts, rows, scores)
        if type(processor) in POINTWISE or type(processor) in ROWWISE:
            return processor(texts[rows], scores)
        # It may go by the number of the row.
        everyone = scores.new_zeros(len(texts), scores.shape[-1])
        everyone[rows] = scores
        return processor(texts, everyone)[rows]

    def _apply_constraint(
        self,
        processor: PrefixConstrainedLogitsProcessor,
        texts: torch.LongTensor,
        rows: list[int],
        scores: torch.Tensor,
    ) -> torch.Tensor:
        """As the processor does, but nothing is allowed after a draft that was not allowed itself."""
        constrained = torch.full_like(scores, -torch.inf)
        for i, row in enumerate(rows):
            allowed = list(processor._prefix_allowed_tokens_fn(row, texts[row]))
            if not allowed and texts.shape[1] == len(self.tokens[row]):
                # Without drafts, the error is the caller's to see.
                processor(texts[row : row + 1], scores[i : i + 1])
            constrained[i, allowed] = scores[i, allowed]
        return constrained

    def unfinished(self) -> list[int]:
        """The places, among the rows being worked on, of those that are not finished."""
        return [i for i, row in enumerate(self.rows) if not self.finished[row]]

    def add(self, tokens: torch.LongTensor, counts: Sequence[int], scores: Sequence[torch.Tensor] | None) -> list[int]:
        r"""
        Adds the first `counts[i]` of `tokens[i]` to each row being worked on, or as many as there are up to its end.

        Args:
            tokens (`torch.LongTensor` of shape `(len(rows), K)`): New tokens.
            counts (`Sequence[int]`): How many of them are valid.
            scores (`Sequence[torch.Tensor]`, *optional*): For the stopping criteria: the scores so far, a step each.

        Returns:
            `list[int]`: How many tokens each row got, 0 if it was finished before.
        """
        counts = list(map(min, counts, self.tokens_left()))
        stops = self._simple_stops if self.has_simple_criteria else self._any_stops
        kept, finished = stops(tokens, counts, scores)
        for i, (row, new) in enumerate(zip(self.rows, tokens.tolist(), strict=True)):
            self.tokens[row] += new[: kept[i]]
            self.finished[row] |= finished[i]
        return kept

    def _simple_stops(self, tokens, counts, scores) -> tuple[list[int], list[bool]]:
        kept, finished = list(counts), [False] * len(counts)
        for criterion in self.criteria:
            if type(criterion) is EosTokenCriteria:
                ends = set(criterion.eos_token_id.tolist())
                for i, row in enumerate(tokens.tolist()):
                    end = next((place for place, token in enumerate(row[: kept[i]]) if token in ends), None)
                    if end is not None:
                        kept[i], finished[i] = end + 1, True
            elif type(criterion) is MaxTimeCriteria and bool(criterion(tokens, scores).any()):
                finished = [True] * len(counts)
        lengths = [len(self.tokens[row]) + count for row, count in zip(self.rows, kept, strict=True)]
        return kept, [end or length >= self.max_length for end, length in zip(finished, lengths, strict=True)]

    def _any_stops(self, tokens, counts, scores) -> tuple[list[int], list[bool]]:
        whole, places = self._by_length(1, counts, tokens)
        kept, finished = list(counts), [False] * len(counts)
        for length, (rows, steps) in sorted(places.items()):
            scores_so_far = None if scores is None else tuple(scores[: length - self.prompt_length])
            is_done = self.criteria(whole[:, :length], scores_so_far).tolist()
            for i, step in zip(rows, steps, strict=True):
                if is_done[self.rows[i]] and not finished[i]:
                    kept[i], finished[i] = step + 1, True
        return kept, finished

    def _by_length(
        self, first: int, counts: Sequence[int], tokens: torch.LongTensor
    ) -> tuple[torch.LongTensor, dict[int, tuple[list[int], list[int]]]]:
        """
        The batch with `tokens` after the rows being worked on, and for each length the rows that have it after
        `first`, `first + 1`, ... of their tokens (`counts` of them), with the step, from 0 on, at which they do.
        """
        width = tokens.shape[1]
        whole = F.pad(self.sequences(), (0, width), value=self.pad_token_id)
        places = defaultdict(lambda: ([], []))
        for i, row in enumerate(self.rows):
            length = len(self.tokens[row])
            whole[row, length : length + width] = tokens[i]
            for step in range(counts[i]):
                rows, steps = places[length + first + step]
                rows.append(i)
                steps.append(step)
        return whole, places
