"""Speculative decoding of batches: draft tokens, check them in one forward pass, keep those accepted in each row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation import (
    BaseStreamer,
    GenerateDecoderOnlyOutput,
    GenerateEncoderDecoderOutput,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
)
from transformers.utils import ModelOutput

from .acceptance import accept_by_sampling, accept_greedily
from .draft_limits import CannotDraft, check_call, check_model, check_rope, refuse, table_size
from .drafter import Drafter, DraftOptions, Drafts
from .ragged_cache import RaggedCache, check_can_crop
from .row_texts import RowTexts
from .statistics import SpeculationStatistics

__all__ = ["CannotDraft", "DraftOptions", "SpeculativeDecoding", "check_model"]


@dataclass
class SpeculativeDecoderOnlyOutput(GenerateDecoderOnlyOutput):
    """Transformers' own output, and `speculation`: the [`SpeculationStatistics`]."""

    speculation: SpeculationStatistics | None = None


@dataclass
class SpeculativeEncoderDecoderOutput(GenerateEncoderDecoderOutput):
    """Transformers' own output, and `speculation`: the [`SpeculationStatistics`]."""

    speculation: SpeculationStatistics | None = None


class SpeculativeDecoding:
    """
    One call of `generate`, greedy or sampling, for any number of batch rows. A step is one forward pass over each
    row's last token and its drafts. A row gains the accepted drafts and one more token, chosen by the model itself.
    Finished rows leave the batch. The arguments up to `model_kwargs` are those that Transformers' `generate` hands to
    a `custom_generate` function.
    """

    def __init__(
        self,
        model,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        options: DraftOptions,
        streamer: BaseStreamer | None = None,
    ):
        self.model, self.config, self.kwargs, self.streamer = model, generation_config, model_kwargs, streamer
        self.device = input_ids.device
        check_call(model, generation_config, logits_processor, len(input_ids))
        check_can_crop(model_kwargs.get("past_key_values"), len(input_ids))
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
        returns_dict = generation_config.return_dict_in_generate
        names = [
            name for name in ("scores", "logits") if returns_dict and getattr(generation_config, f"output_{name}")
        ]
        self.text = RowTexts(
            input_ids, max_length, pad_token_id, logits_processor, stopping_criteria, {name: [] for name in names}
        )
        self.drafter = Drafter(model, generation_config, options)
        self.statistics = SpeculationStatistics(trace=[[] for _ in input_ids])
        self.num_streamed = input_ids.shape[1]
        prefix = model.ngram_text_prefix
        self.mask_name, self.positions_name = f"{prefix}attention_mask", f"{prefix}position_ids"

    @torch.no_grad()
    def run(self) -> ModelOutput | torch.Tensor:
        """Generate until every row is finished, and return the result of `generate`."""
        if self.streamer is not None:
            self.streamer.put(self.text.sequences().cpu())
        outputs, drafts = self._read_prompt(), Drafts.none(len(self.text.rows), self.device)
        try:
            self._accept(outputs, drafts)
            while self.text.unfinished():
                # Step 1: draft tokens after the last one of each row.
                drafts = self.drafter.draft(
                    self.text, self.hidden_states, self.next_tokens, min(self._positions_left())
                )
                # Step 2: read the last tokens and all drafts in one forward pass.
                outputs = self._forward(torch.cat([self.next_tokens[:, None], drafts.tokens], dim=1))
                # Steps 3 and 4: accept drafts, and remove the others from the cache.
                self._accept(outputs, drafts)
        finally:
            self.cache.release()
        self.statistics.explanation = self.drafter.explanation()
        self.statistics.log()
        if self.streamer is not None:
            self.streamer.end()
        return self._output()

    def _read_prompt(self) -> ModelOutput:
        """Read the prompts, and set up cache and positions."""
        inputs = {**self.kwargs, "return_last_hidden_state": True}
        outputs = self.model._prefill(self.text.sequences(), self.config, inputs)
        num_rows = len(self.text.rows)
        self.statistics.count_forward(num_rows)
        cache = self.kwargs["past_key_values"] = outputs.get("past_key_values")
        if cache is None:
            refuse(f"a {type(self.model).__name__}, which has no cache", "choose another model")
        mask, positions = self.kwargs.pop(self.mask_name, None), self.kwargs.pop(self.positions_name, None)
        # Without padding, no mask is needed.
        mask = None if mask is not None and mask.ndim == 2 and bool(mask.all()) else mask
        self.cache = RaggedCache(cache, num_rows, mask)
        self.drafter.costs.cache_bytes = self.cache.bytes_per_token()
        # By default, a token's position is its column in the cache.
        last_column = cache.get_seq_length() - 1
        if positions is None:
            positions = torch.full((num_rows, 1), last_column)
        # The position of the prompt's last token; `_accept` adds the new tokens.
        self.next_positions: list[int] = positions.expand(num_rows, -1)[:, -1].tolist()
        self.has_positions = any(position != last_column for position in self.next_positions)
        token_types = self.kwargs.pop("token_type_ids", None)
        self.token_types = None if token_types is None else token_types[:, -1:]
        return outputs

    def _positions_left(self) -> list[float]:
        """Return how many drafts the model has positions for, in each row."""
        return [max(0, self.num_positions - 1 - position) for position in self.next_positions]

    def _forward(self, tokens: torch.Tensor) -> ModelOutput:
        """Return the output of a forward pass over `tokens`, `(num_rows, K)`, with the logits and states of all."""
        width = tokens.shape[1]
        inputs = dict(self.kwargs)
        if self.has_positions or self.cache.is_ragged:
            steps = torch.arange(width, device=self.device)
            # Drafts beyond the maximum length will be dropped, but need valid positions.
            max_steps = torch.tensor(self.text.tokens_left(), device=self.device)[:, None] - 1
            steps = torch.minimum(steps, max_steps)
            inputs[self.positions_name] = torch.tensor(self.next_positions, device=self.device)[:, None] + steps
        mask = self.cache.attention_mask
        if mask is not None:
            mask = inputs[self.mask_name] = torch.cat([mask, mask.new_ones(len(mask), width)], dim=1)
        if self.token_types is not None:
            inputs["token_type_ids"] = self.token_types.expand(-1, width)
        inputs = self.model.prepare_inputs_for_generation(
            tokens, next_sequence_length=width, is_first_iteration=False, **inputs
        )
        inputs |= {"logits_to_keep": width, "return_last_hidden_state": True, "return_dict": True}
        with self.drafter.products(tokens.numel()):
            outputs = self.model(**inputs)
        if outputs.logits.shape[1] != width:
            raise ValueError(
                f"`use_mtp=True` needs logits of {width} tokens, and there are {outputs.logits.shape[1]}."
            )
        self.cache.attention_mask = mask
        self.statistics.count_forward(len(tokens))
        return outputs

    def _accept(self, outputs: ModelOutput, drafts: Drafts) -> None:
        """Add the accepted drafts and one more token to every row, and remove the rejected drafts from the cache."""
        # Step 3: accept drafts. Of the prompt, only the last position counts.
        width = drafts.tokens.shape[1] + 1
        logits = outputs.logits[:, -width:].to(self.device, torch.float32)
        # Cloned, as processors may change the scores in place.
        scores = self.text.process(logits.clone() if self.text.processors else logits, drafts.tokens)
        if self.config.do_sample:
            tokens, accepted = accept_by_sampling(scores, drafts.tokens, drafts.probabilities)
        else:
            tokens, accepted = accept_greedily(scores, drafts.tokens)
        num_accepted, drafted = accepted.tolist(), drafts.tokens.tolist()
        self.drafter.depth.learn(drafts.kinds, num_accepted)
        counts = self.text.add(tokens, [count + 1 for count in num_accepted], scores=scores, logits=logits)
        for i, row in enumerate(self.text.rows):
            new_tokens = self.text.tokens[row][len(self.text.tokens[row]) - counts[i] :]
            self.statistics.count_step(row, new_tokens, num_accepted[i], drafted[i], drafts.kinds[i])

        # Step 4: remove the rejected drafts from the cache, and finished rows from the batch.
        self.cache.drop([width - count for count in counts], self.device)
        last = torch.tensor(counts, device=self.device) - 1
        rows = torch.arange(len(counts), device=self.device)
        self.next_tokens = tokens[rows, last]
        self.hidden_states = outputs.last_hidden_state[:, -width:][rows, last]
        self.next_positions = [position + count for position, count in zip(self.next_positions, counts, strict=True)]
        self._stream()
        unfinished = self.text.unfinished()
        if 0 < len(unfinished) < len(counts):
            self._keep_rows(unfinished)

    def _keep_rows(self, rows: Sequence[int]) -> None:
        """Remove all rows but these from the batch; `rows` are indices into `self.text.rows`."""
        index = torch.tensor(rows, device=self.device)
        num_rows = len(self.text.rows)
        self.cache.select(rows, self.device)
        self.kwargs = {name: _select(value, index, num_rows) for name, value in self.kwargs.items()}
        self.text.rows = [self.text.rows[row] for row in rows]
        self.next_tokens, self.next_positions = self.next_tokens[index], [self.next_positions[row] for row in rows]
        self.hidden_states = self.hidden_states[index]
        self.token_types = None if self.token_types is None else self.token_types[index]

    def _stream(self) -> None:
        """
        Pass new tokens to the streamer, if there is one: one per row at a time, as plain decoding does, up to the end
        of the shortest unfinished row.
        """
        if self.streamer is None:
            return
        unfinished = [self.text.rows[i] for i in self.text.unfinished()]
        ready = min((len(self.text.tokens[row]) for row in unfinished), default=self.text.longest)
        for tokens in self.text.sequences()[:, self.num_streamed : ready].cpu().unbind(1):
            self.streamer.put(tokens)
        self.num_streamed = max(self.num_streamed, ready)

    def _output(self) -> ModelOutput | torch.Tensor:
        """Return the sequences, or the output object if `return_dict_in_generate`."""
        sequences = self.text.sequences()
        if not self.config.return_dict_in_generate:
            return sequences
        length = self.text.longest - self.text.prompt_length
        is_encoder_decoder = self.model.config.is_encoder_decoder
        output_class = SpeculativeEncoderDecoderOutput if is_encoder_decoder else SpeculativeDecoderOnlyOutput
        return output_class(
            sequences=sequences,
            # In a batch, rows end at different tokens, and finished ones are no longer in the cache.
            past_key_values=self.kwargs["past_key_values"] if len(sequences) == 1 else None,
            speculation=self.statistics,
            **{name: tuple(record[:length]) for name, record in self.text.records.items()},
        )


def _select(value: Any, index: torch.Tensor, num_rows: int) -> Any:
    """Return the rows `index` of a tensor with `num_rows` rows, or of such tensors in a tuple or model output."""
    if isinstance(value, torch.Tensor) and value.ndim > 0 and len(value) == num_rows:
        return value[index.to(value.device)]
    if isinstance(value, ModelOutput):
        return type(value)(**{name: _select(field, index, num_rows) for name, field in value.items()})
    if isinstance(value, tuple):
        return tuple(_select(field, index, num_rows) for field in value)
    return value
