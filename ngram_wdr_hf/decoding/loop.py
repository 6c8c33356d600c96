"""Speculative decoding of batches: draft tokens, check them in one forward pass, keep those accepted in each row."""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation import (
    GenerateDecoderOnlyOutput,
    GenerateEncoderDecoderOutput,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
)
from transformers.utils import ModelOutput

from .acceptance import accept_by_sampling, accept_greedily
from .drafter import Drafter, Drafts
from .few_tokens import FewTokenProducts
from .obstacles import CannotDraft
from .ragged_cache import RaggedCache, check_can_crop
from .reach import check_rope, table_size
from .records import StepRecords
from .rows import TextRows
from .statistics import SpeculationStatistics


@dataclass
class SpeculativeDecoderOnlyOutput(GenerateDecoderOnlyOutput):
    r"""
    What `generate(use_mtp=True, return_dict_in_generate=True)` returns for a decoder-only model: Transformers' own
    output, and:

    speculation ([`SpeculationStatistics`]): Acceptance rates and counts of forward passes.
    """

    speculation: SpeculationStatistics | None = None


@dataclass
class SpeculativeEncoderDecoderOutput(GenerateEncoderDecoderOutput):
    r"""
    What `generate(use_mtp=True, return_dict_in_generate=True)` returns for an encoder-decoder model: Transformers' own
    output, and:

    speculation ([`SpeculationStatistics`]): Acceptance rates and counts of forward passes.
    """

    speculation: SpeculationStatistics | None = None


class SpeculativeDecoding:
    r"""
    One call of `generate(use_mtp=True)`, greedy or sampling, for any number of batch rows.

    A step is one forward pass over each row's last token and its drafts. A row gains the accepted drafts and one more
    token, chosen by the model itself; rejected drafts are removed from the cache. Finished rows leave the batch. If
    the cache is returned, they stay instead and read their padding in a last forward pass, so that the cache equals
    that of plain decoding.

    Args:
        model (`PreTrainedModel`): A model with N-gram heads.
        input_ids (`torch.LongTensor` of shape `(batch_size, prompt_length)`): The prompts.
        logits_processor, stopping_criteria, generation_config, streamer, model_kwargs:
            As `generate` prepares them. `streamer` may be `None`.
    """

    def __init__(
        self,
        model,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        streamer: Any,
        model_kwargs: dict[str, Any],
    ):
        self.model = model
        self.config = generation_config
        self.streamer = streamer
        self.kwargs = model_kwargs
        self.device = input_ids.device
        # As in `generate`, the EOS token is the default padding token.
        pad_token = generation_config.pad_token_id
        pad_token = generation_config.eos_token_id if pad_token is None else pad_token
        pad_token_id = 0 if pad_token is None else int(torch.as_tensor(pad_token).flatten()[0])
        # Stopping criteria of the caller override the configuration.
        lengths = [criterion.max_length for criterion in stopping_criteria if type(criterion) is MaxLengthCriteria]
        # At least one token is generated.
        max_length = max(min(lengths, default=generation_config.max_length), input_ids.shape[1] + 1)
        text_config = model.config.get_text_config(decoder=True)
        check_rope(text_config, *input_ids.shape, max_length)
        # Drafts must not exceed the model's positions, even if the text will end before.
        self.num_positions = table_size(text_config)
        self.text = TextRows(input_ids, max_length, pad_token_id, logits_processor, stopping_criteria)
        self.drafter = Drafter(model, generation_config)
        self.statistics = SpeculationStatistics(trace=[[] for _ in input_ids])
        self.records = StepRecords(self.text, generation_config, model.config.is_encoder_decoder)
        self.num_streamed = input_ids.shape[1]
        prefix = model.ngram_text_prefix
        self.mask_name, self.positions_name = f"{prefix}attention_mask", f"{prefix}position_ids"

        if model.training and model.is_gradient_checkpointing:
            raise CannotDraft(
                "`use_mtp=True` needs a cache, and in training mode gradient checkpointing has none. Call "
                "`model.eval()` first, or use `use_mtp=False`."
            )
        cache = model_kwargs.get("past_key_values")
        check_can_crop(cache, len(input_ids))
        if len(input_ids) > 1 and not model.ngram_rows_can_move:
            raise CannotDraft(
                f"`use_mtp=True` needs different positions per batch row, but a {type(model).__name__} does not "
                "accept them. Generate the rows one by one, or use `use_mtp=False`."
            )
        self.returns_cache = generation_config.return_dict_in_generate or getattr(cache, "_is_user_defined", False)

    @torch.no_grad()
    def run(self) -> ModelOutput | torch.Tensor:
        """Generate until every row is finished, and return the result of `generate`."""
        with FewTokenProducts(self.model):
            return self._run()

    def _run(self) -> ModelOutput | torch.Tensor:
        outputs, drafts = self._read_prompt(), Drafts.none(len(self.text.rows), self.device)
        try:
            while True:
                self._check_drafts(outputs, drafts)
                if not self.text.unfinished():
                    break
                positions_left = self._positions_left()
                max_drafts = min(positions_left[i] for i in self.text.unfinished())
                drafts = self.drafter.draft(self.text, self.hidden_states, self.next_tokens, max_drafts)
                tokens = self.next_tokens[:, None]
                outputs = self._forward(torch.cat([tokens, drafts.tokens], dim=1) if drafts.depth else tokens)
            self.statistics.draft_cost = self.drafter.pace.total_cost
            self.statistics.log()
            if self.streamer is not None:
                self.streamer.end()
            return self._output()
        finally:
            self.cache.release()

    def _read_prompt(self) -> ModelOutput:
        """Read the prompts, set up cache and positions, and return the output of the prompt's forward pass."""
        outputs = self.model._prefill(
            self.text.sequences(), self.config, {**self.kwargs, "return_last_hidden_state": True}
        )
        num_rows = len(self.text.rows)
        self.statistics.count_forward(num_rows)
        cache = self.kwargs["past_key_values"] = outputs.past_key_values
        # Checked again, as a cache may create its layers in the first forward pass.
        check_can_crop(cache, num_rows)
        mask, positions = self.kwargs.pop(self.mask_name, None), self.kwargs.pop(self.positions_name, None)
        # Without padding, no mask is needed.
        mask = None if mask is not None and mask.ndim == 2 and bool(mask.all()) else mask
        self.cache = RaggedCache(cache, num_rows, mask)
        self.drafter.pace.prices.cache_bytes = self.cache.bytes_per_token()
        # By default, a token's position is its column in the cache.
        last_column = cache.get_seq_length() - 1
        if positions is None:
            positions = torch.full((num_rows, 1), last_column)
        # The position of the prompt's last token; `_check_drafts` adds the new tokens.
        self.next_positions: list[int] = positions.expand(num_rows, -1)[:, -1].tolist()
        self.has_positions = any(position != last_column for position in self.next_positions)
        token_types = self.kwargs.pop("token_type_ids", None)
        self.token_types = None if token_types is None else token_types[:, -1:]
        return outputs

    def _positions_left(self) -> list[float]:
        """Return how many drafts the model has positions for, in each row; infinity if there is no limit."""
        return [max(0, self.num_positions - 1 - position) for position in self.next_positions]

    def _forward(self, tokens: torch.Tensor) -> ModelOutput:
        """
        Run a forward pass over `tokens`, `(num_rows, K)`, with the cache as their past. Return its output, with logits
        of the K tokens, and with hidden states if the heads may need them.
        """
        width = tokens.shape[1]
        inputs = dict(self.kwargs)
        if self.has_positions or self.cache.is_ragged:
            steps = torch.arange(width, device=self.device)
            max_steps = [self.text.max_length - 1 - len(self.text.tokens[row]) for row in self.text.rows]
            max_steps = list(map(min, max_steps, self._positions_left()))
            if width > min(max_steps):
                # Drafts beyond the maximum length and of finished rows will be dropped, but need valid positions.
                steps = torch.minimum(steps, torch.tensor(max_steps, device=self.device)[:, None])
            inputs[self.positions_name] = torch.tensor(self.next_positions, device=self.device)[:, None] + steps
        mask = self.cache.attention_mask
        if mask is not None:
            mask = inputs[self.mask_name] = torch.cat([mask, mask.new_ones(len(mask), width)], dim=1)
        if self.token_types is not None:
            inputs["token_type_ids"] = self.token_types.expand(-1, width)
        inputs = self.model.prepare_inputs_for_generation(
            tokens, next_sequence_length=width, is_first_iteration=False, **inputs
        )
        # Only the heads read the hidden states.
        needs_states = not self.drafter.pace.will_rest
        inputs |= {"logits_to_keep": width, "return_last_hidden_state": needs_states, "return_dict": True}
        outputs = self.model(**inputs)
        if outputs.logits.shape[1] != width:
            raise ValueError(
                f"`use_mtp=True` needs logits for {width} tokens at once, but the wrapper around this model returned "
                f"them for {outputs.logits.shape[1]}. Use `use_mtp=False`."
            )
        self.cache.attention_mask = mask
        self.statistics.count_forward(len(self.text.unfinished()))
        return outputs

    def _check_drafts(self, outputs: ModelOutput, drafts: Drafts) -> None:
        """
        Add the accepted drafts and one more token to every unfinished row, and count them. Remove the rejected drafts
        from the cache. Rows that are finished now leave the batch, unless the cache is returned.
        """
        width = drafts.depth + 1
        # Of the prompt, only the last position counts.
        logits = outputs.logits[:, -width:].to(self.device, torch.float32)
        hidden_states = outputs.get("last_hidden_state")
        # Cloned, as processors may change the scores in place.
        scores = self.text.process(logits.clone() if self.text.processors else logits, drafts.tokens)
        if self.config.do_sample:
            tokens, num_accepted = accept_by_sampling(scores, drafts.tokens, drafts.probabilities)
        else:
            tokens, num_accepted = accept_greedily(scores, drafts.tokens)
        num_accepted = num_accepted.tolist()
        unfinished = self.text.unfinished()
        self.drafter.pace.learn([drafts.kinds[i] for i in unfinished], [num_accepted[i] for i in unfinished])

        counts = [0] * len(num_accepted)
        for i in unfinished:
            counts[i] = num_accepted[i] + 1
        self.records.add(outputs, logits, scores, counts)
        counts = self.text.add(tokens, counts, self.records.scores)
        if self.config.do_sample and drafts.depth:
            self._check_allowed(scores, tokens, num_accepted, counts)
        self.records.clear_dropped(num_accepted, counts)
        self.statistics.num_tokens += sum(counts)
        drafted = drafts.tokens.tolist()
        for i in unfinished:
            row, kinds = self.text.rows[i], drafts.kinds[i]
            # Drafts after the end of a row do not count as accepted.
            self.statistics.count_drafts(kinds, min(num_accepted[i], counts[i]))
            new_tokens = self.text.tokens[row][-counts[i] :]
            self.statistics.trace_tokens(row, new_tokens, num_accepted[i], drafted[i], kinds)

        self.cache.drop([width - count for count in counts], self.device)
        if width == 1:
            self.next_tokens = tokens[:, 0]
            self.hidden_states = None if hidden_states is None else hidden_states[:, -1]
        else:
            last = torch.tensor([max(count - 1, 0) for count in counts], device=self.device)
            rows = torch.arange(len(counts), device=self.device)
            self.next_tokens = tokens[rows, last]
            self.hidden_states = None if hidden_states is None else hidden_states[rows, last]
        self.next_positions = list(map(operator.add, self.next_positions, counts))
        self._stream()
        unfinished = self.text.unfinished()
        if not self.returns_cache and 0 < len(unfinished) < len(counts):
            self._keep_rows(unfinished)

    def _check_allowed(
        self, scores: torch.Tensor, tokens: torch.Tensor, num_accepted: Sequence[int], counts: Sequence[int]
    ) -> None:
        """Raise a `ValueError` if a row got a token where all tokens are forbidden, other than after its end."""
        last = torch.tensor(num_accepted, device=scores.device)
        rows = torch.arange(len(last), device=scores.device)
        chosen = scores[rows, last, tokens[rows, last]].tolist()
        for i, count in enumerate(counts):
            if count == num_accepted[i] + 1 and chosen[i] == -math.inf:
                raise ValueError(
                    f"The logits processors forbid all tokens after {len(self.text.tokens[self.text.rows[i]]) - 1} "
                    f"tokens of row {self.text.rows[i]}. Let them allow at least one token."
                )

    def _keep_rows(self, rows: Sequence[int]) -> None:
        """Remove all rows but these from the batch; `rows` are indices into `self.text.rows`."""
        index = torch.tensor(rows, device=self.device)
        num_rows = len(self.text.rows)
        self.cache.select(rows, self.device)
        self.kwargs = {name: _select(value, index, num_rows) for name, value in self.kwargs.items()}
        self.text.rows = [self.text.rows[row] for row in rows]
        self.next_tokens, self.next_positions = self.next_tokens[index], [self.next_positions[row] for row in rows]
        self.hidden_states = None if self.hidden_states is None else self.hidden_states[index]
        self.token_types = None if self.token_types is None else self.token_types[index]

    def _stream(self) -> None:
        """
        Pass new tokens to the streamer, if there is one: one per row at a time, as plain decoding does, up to the end
        of the shortest unfinished row. If the streamer raises an error, the cache ends where it does in plain
        decoding: before the last token that the streamer got.
        """
        if self.streamer is None:
            return
        unfinished = [self.text.rows[i] for i in self.text.unfinished()]
        ready = min((len(self.text.tokens[row]) for row in unfinished), default=self.text.longest)
        try:
            while self.num_streamed < ready:
                self.num_streamed += 1
                self.streamer.put(self.text.sequences()[:, self.num_streamed - 1].cpu())
        except BaseException:
            ahead = [len(self.text.tokens[row]) - self.num_streamed for row in self.text.rows]
            self.cache.drop([max(0, count) for count in ahead], self.device)
            raise

    def _output(self) -> ModelOutput | torch.Tensor:
        """Return the sequences, or the output object if `return_dict_in_generate`."""
        if self.returns_cache:
            self._read_padding()
        sequences = self.text.sequences()
        if not self.config.return_dict_in_generate:
            return sequences
        fields = self.records.fields() | {
            "sequences": sequences,
            "past_key_values": self.kwargs["past_key_values"],
            "speculation": self.statistics,
        }
        if not self.model.config.is_encoder_decoder:
            return SpeculativeDecoderOnlyOutput(**fields)
        for name in ("attentions", "hidden_states"):
            if getattr(self.config, f"output_{name}"):
                fields[f"encoder_{name}"] = self.kwargs["encoder_outputs"].get(name)
        return SpeculativeEncoderDecoderOutput(**fields)

    def _read_padding(self) -> None:
        """
        Let the shorter rows read the padding after their end. The cache then holds as many tokens of every row as in
        plain decoding: the length of the longest row minus 1.
        """
        text = self.text
        missing = [text.longest - length for length in text.lengths]
        width = max(missing)
        if width > 0:
            padded = torch.nn.functional.pad(text.sequences(), (0, width), value=text.pad_token_id)
            starts = torch.tensor(text.lengths, device=self.device)[:, None] - 1
            self._forward(padded.gather(1, starts + torch.arange(width, device=self.device)))
            self.cache.drop([width - count for count in missing], self.device)


def _select(value: Any, index: torch.Tensor, num_rows: int) -> Any:
    """
    Return the rows `index` of a tensor with `num_rows` rows, or of all such tensors in a tuple or model output. Any
    other value is returned unchanged.
    """
    if isinstance(value, torch.Tensor) and value.ndim > 0 and len(value) == num_rows:
        return value[index.to(value.device)]
    if isinstance(value, ModelOutput):
        return type(value)(**{name: _select(field, index, num_rows) for name, field in value.items()})
    if isinstance(value, tuple):
        return tuple(_select(field, index, num_rows) for field in value)
    return value
