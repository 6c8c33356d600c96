"""What `generate` needs to know about the ensemble and about drafts."""

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from transformers.generation import (
    GenerationConfig,
    GenerationMode,
    LogitsProcessorList,
    StoppingCriteriaList,
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from ..decoding.loop import SpeculativeDecoding
from ..decoding.processor import split_ensemble_processors
from ..method.configuration import check_draft_vocab_size, check_fraction

# Processors that remember what they were called with, and cannot take a draft back.
STATEFUL_PROCESSORS = (SynthIDTextWatermarkLogitsProcessor, UnbatchedClassifierFreeGuidanceLogitsProcessor)
DRAFT_OPTIONS = ("draft_vocab_size", "draft_threshold")
# Options of Transformers that are numbers of tokens, and the least they can be.
DRAFT_COUNTS = {"num_assistant_tokens": 1, "prompt_lookup_num_tokens": 0, "max_matching_ngram_size": 1}


class NgramGenerationMixin:
    r"""
    Hands λ to every forward of a generation, wherever it comes from, and adds to `generate`:

    use_mtp (`bool`, *optional*, defaults to `False`):
        Whether the heads draft tokens ahead, which one forward pass then checks. Greedy output stays the same, token
        for token; sampled output has the same distribution. Batches are welcome.
    draft_vocab_size (`int`, *optional*):
        Draft from so many tokens only: those given to `ngram_set_draft_tokens`, then the first of the vocabulary. The
        configuration's `draft_vocab_size` by default. Every draft is still checked against the whole vocabulary.
    draft_threshold (`float`, *optional*):
        The price of a head's draft as a share of a forward pass, from 0 to 1, the larger part of it for asking the
        head: a draft is made if the chance that it stands is worth that. 0 drafts always. By default, prices are what
        was measured, and grow with the batch, as checking does.
    num_assistant_tokens (`int`, *optional*): Use so many heads at most.
    prompt_lookup_num_tokens (`int`, *optional*, defaults to 8):
        Where the last tokens stood in the row's text before, draft by copying up to so many of those that followed,
        if that is likelier to be right than the heads. 0 leaves all drafts to the heads.

    With `return_dict_in_generate=True`, the output of `use_mtp=True` has a field `speculation`, the statistics.
    """

    def ngram_lambda(self, ensemble_lambda: float | None = None) -> float:
        """The λ in force for a call that was given `ensemble_lambda`: 0 for a model without heads."""
        if ensemble_lambda is None:
            ensemble_lambda = self.config.ensemble_lambda
        check_fraction("ensemble_lambda", ensemble_lambda)
        return ensemble_lambda if self.ngram_heads else 0.0

    def _get_logits_processor(
        self,
        *args,
        logits_processor: LogitsProcessorList | None = None,
        model_kwargs: dict[str, Any] | None = None,
        **kwargs,
    ) -> LogitsProcessorList:
        logits_processor, processor_lambda = split_ensemble_processors(self, logits_processor)
        if processor_lambda is not None:
            if self.ngram_lambda(model_kwargs.get("ensemble_lambda")) > 0:
                raise ValueError(
                    "The ensemble is asked for twice: use `NgramEnsembleLogitsProcessor` with a model and a call "
                    "whose own `ensemble_lambda` is 0."
                )
            # `generate` passes this same dictionary to every forward.
            model_kwargs["ensemble_lambda"] = processor_lambda
        processors = super()._get_logits_processor(
            *args, logits_processor=logits_processor, model_kwargs=model_kwargs, **kwargs
        )
        for processor in processors:
            # Guidance calls the model by itself; it has to be the same model, λ included.
            if isinstance(processor, UnbatchedClassifierFreeGuidanceLogitsProcessor):
                processor.model = partial(self, ensemble_lambda=(model_kwargs or {}).get("ensemble_lambda"))
        return processors

    def _prepare_generation_config(self, generation_config: GenerationConfig | None, **kwargs):
        options = {name: kwargs.pop(name) for name in DRAFT_OPTIONS if name in kwargs}
        generation_config, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)
        for name, value in options.items():
            setattr(generation_config, name, value)
        return generation_config, model_kwargs

    def _validate_generation_mode(
        self, generation_mode: GenerationMode, generation_config: GenerationConfig, generation_mode_kwargs: dict
    ) -> None:
        if generation_config.use_mtp:
            self._ngram_check_drafting(generation_mode, generation_config, generation_mode_kwargs)
            # From here on it is greedy search or sampling, of as many rows as it may be.
            generation_mode = GenerationMode.SAMPLE if generation_config.do_sample else GenerationMode.GREEDY_SEARCH
        super()._validate_generation_mode(generation_mode, generation_config, generation_mode_kwargs)

    def _ngram_check_drafting(
        self, generation_mode: GenerationMode, generation_config: GenerationConfig, generation_mode_kwargs: dict
    ) -> None:
        """Raises a `ValueError` for what `use_mtp=True` cannot be combined with."""
        if not self.ngram_heads:
            raise ValueError(
                f"`use_mtp=True` drafts with the N-gram heads, and this {type(self).__name__} has none "
                "(`ngram_size=1`): load or train a model with `ngram_size` of at least 2, or use `use_mtp=False`."
            )
        if generation_mode != GenerationMode.ASSISTED_GENERATION:
            raise ValueError(
                f"`use_mtp=True` is for greedy search and sampling, and these options ask for "
                f"{generation_mode.value.replace('_', ' ')}: set `num_beams=1`, or use `use_mtp=False`."
            )
        rivals = ("assistant_early_exit", "assistant_ensemble_weight")
        given = [name for name in rivals if getattr(generation_config, name) is not None]
        given += ["assistant_model"] if generation_mode_kwargs.get("assistant_model") is not None else []
        if given:
            raise ValueError(f"`use_mtp=True` drafts with the model's own heads: leave out `{given[0]}`.")
        if generation_mode_kwargs.get("synced_gpus"):
            raise ValueError(
                "`use_mtp=True` drafts between the forward passes, where weights sharded over devices are not "
                "at hand: gather the model on each device first, or use `use_mtp=False`."
            )
        if self._is_stateful:
            raise ValueError(
                f"`use_mtp=True` takes rejected drafts back, and a {type(self).__name__} keeps a state that cannot go "
                "back: use `use_mtp=False`."
            )
        threshold = getattr(generation_config, "draft_threshold", None)
        if threshold is not None:
            check_fraction("draft_threshold", threshold)
        for name, least in DRAFT_COUNTS.items():
            count = getattr(generation_config, name)
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < least):
                raise ValueError(f"`{name}` must be a whole number of at least {least}, got {count!r}.")
        self.ngram_draft_vocabulary(getattr(generation_config, "draft_vocab_size", None))

    def ngram_set_draft_tokens(self, token_ids: Sequence[int] | torch.LongTensor) -> None:
        r"""
        Restricts what the heads draft for `generate(use_mtp=True)`, which then costs less, to the given tokens. They
        are saved with the model.

        Args:
            token_ids (`Sequence[int]` or `torch.LongTensor`):
                The tokens, the most useful first: those most frequent in training, as a rule.
        """
        if not self.ngram_heads:
            raise ValueError("Tokens are drafted by the heads, and this model has none: choose another `ngram_size`.")
        vocab_size = self.ngram_vocab_size
        tokens = torch.as_tensor(token_ids, device=self.device).flatten()
        check_draft_vocab_size(len(tokens), vocab_size)
        is_whole = not tokens.is_floating_point() and tokens.dtype != torch.bool
        if not is_whole or len(tokens.unique()) < len(tokens) or tokens.min() < 0 or tokens.max() >= vocab_size:
            raise ValueError(f"Draft tokens must be different ids from 0 to {vocab_size - 1}, each at most once.")
        self.config.draft_vocab_size = len(tokens)
        self.register_buffer("draft_token_ids", tokens.long())

    def set_draft_tokens(self, token_ids: Sequence[int] | torch.LongTensor) -> None:
        """Deprecated: use [`~NgramGenerationMixin.ngram_set_draft_tokens`]."""
        warnings.warn("`set_draft_tokens` is now `ngram_set_draft_tokens`.", FutureWarning, stacklevel=2)
        self.ngram_set_draft_tokens(token_ids)

    def ngram_draft_vocabulary(self, draft_vocab_size: int | None = None) -> torch.LongTensor | None:
        """The tokens that drafts are chosen from; `None` for all."""
        if draft_vocab_size is None:
            draft_vocab_size = self.config.draft_vocab_size
        vocab_size = self.ngram_vocab_size
        check_draft_vocab_size(draft_vocab_size, vocab_size)
        if draft_vocab_size is None or draft_vocab_size == vocab_size:
            return None
        tokens = getattr(self, "draft_token_ids", None)
        if tokens is None:
            tokens = torch.arange(draft_vocab_size, device=self.device)
        elif len(tokens) < draft_vocab_size:
            everything = torch.arange(vocab_size, device=tokens.device)
            tokens = torch.cat([tokens, everything[~torch.isin(everything, tokens)]])
        tokens = tokens[:draft_vocab_size]
        if int(tokens.max()) >= vocab_size:
            raise ValueError(
                f"Among the tokens to draft is {int(tokens.max())}, but there are only {vocab_size} tokens now: "
                "choose others with `ngram_set_draft_tokens`."
            )
        return tokens

    def _assisted_decoding(
        self,
        input_ids: torch.LongTensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer=None,
        inputs_tensor: torch.Tensor | None = None,
        assistant_model=None,
        assistant_tokenizer=None,
        tokenizer=None,
        **model_kwargs,
    ):
        # Transformers reads which arguments this takes.
        prepared = (input_ids, logits_processor, stopping_criteria, generation_config)
        if not generation_config.use_mtp:
            return super()._assisted_decoding(
                *prepared,
                synced_gpus=synced_gpus,
                streamer=streamer,
                inputs_tensor=inputs_tensor,
                assistant_model=assistant_model,
                assistant_tokenizer=assistant_tokenizer,
                tokenizer=tokenizer,
                **model_kwargs,
            )
        stateful = [processor for processor in logits_processor if isinstance(processor, STATEFUL_PROCESSORS)]
        if stateful:
            raise ValueError(
                f"`use_mtp=True` takes rejected drafts back, and a {type(stateful[0]).__name__} remembers them: leave "
                "it out, or use `use_mtp=False`."
            )
        return SpeculativeDecoding(self, *prepared, streamer, model_kwargs).run()

    def _get_candidate_generator(self, *args, model_kwargs: dict[str, Any], **kwargs):
        # What drafts has a λ of its own, or none.
        others = {name: value for name, value in model_kwargs.items() if name != "ensemble_lambda"}
        return super()._get_candidate_generator(*args, model_kwargs=others, **kwargs)

    def init_continuous_batching(self, *args, **kwargs):
        self._ngram_refuse_paged_ensemble(None)
        return super().init_continuous_batching(*args, **kwargs)

    def generate_batch(self, *args, ensemble_lambda: float | None = None, **kwargs):
        self._ngram_refuse_paged_ensemble(ensemble_lambda)
        if getattr(kwargs.get("generation_config"), "use_mtp", None):
            raise ValueError("Continuous batching does not draft: use `use_mtp=False`, or `generate` with a batch.")
        return super().generate_batch(*args, **kwargs)

    def _ngram_refuse_paged_ensemble(self, ensemble_lambda: float | None) -> None:
        if self.ngram_lambda(ensemble_lambda) > 0:
            raise ValueError(
                "Continuous batching keeps keys and values in pages that have no room for the ensemble's past "
                "predictions: set `model.config.ensemble_lambda = 0`, or use `generate` with a batch."
            )
