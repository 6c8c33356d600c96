"""The ensemble and drafting in `generate`."""

import copy
from collections.abc import Iterable, Sequence
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

from ..decoding.ensemble_processor import split_ensemble_processors
from ..decoding.loop import SpeculativeDecoding
from ..decoding.obstacles import CannotDraft
from ..method.configuration import check_ensemble_weights, check_fraction, check_integer, refuse_misspelt
from ..method.ensemble import is_plain
from .default_drafts import DefaultDraftsMixin
from .draft_vocabulary import DraftVocabularyMixin

ENSEMBLE_ARGUMENTS = ("ensemble_lambda", "ensemble_weights")

# Processors that keep a state between calls and cannot undo a rejected draft.
STATEFUL_PROCESSORS = (SynthIDTextWatermarkLogitsProcessor, UnbatchedClassifierFreeGuidanceLogitsProcessor)
DRAFT_OPTIONS = ("draft_vocab_size", "draft_threshold")
# Options that Transformers does not know in `generation_config`, with the check of their values.
SAVED_OPTIONS = {
    "ensemble_lambda": check_fraction,
    "ensemble_weights": lambda _, weights: check_ensemble_weights(weights, len(weights)),
    "draft_threshold": check_fraction,
    "draft_vocab_size": check_integer,
}
GENERATION_OPTIONS = (*SAVED_OPTIONS, "use_mtp")
# Transformers options that count tokens, with their minimum.
DRAFT_COUNTS = {"num_assistant_tokens": 0, "prompt_lookup_num_tokens": 0, "max_matching_ngram_size": 1}


class NgramGenerationMixin(DraftVocabularyMixin, DefaultDraftsMixin):
    r"""
    Mixin that passes the ensemble to every forward of a generation, and adds these options to `generate` and
    `generation_config`:

    ensemble_lambda (`float`, *optional*):
        The paper's λ: by default that of the `generation_config` given, else of the model's, else the configuration's.
    ensemble_weights (`Sequence[float]`, *optional*): The N weights of the ensemble, instead of a λ.
    use_mtp (`bool`, *optional*, defaults to `False`):
        Whether to use speculative decoding: the heads draft tokens, and one forward pass checks them. Greedy output
        is identical to plain decoding, sampled output has the same distribution. Works with batches. In the model's
        `generation_config` it is a default, which is left out where drafts are not possible, as in beam search; the
        argument raises an error there.
    draft_vocab_size (`int`, *optional*):
        How many tokens the heads choose drafts from: those given to `ngram_set_draft_tokens`, then the first of the
        vocabulary. By default, that of `model.config`. Drafts are checked against the full vocabulary.
    draft_threshold (`float`, *optional*):
        The cost of a head's draft as a share of a forward pass, from 0 to 1, half of it for running the head. A draft
        is made if its chance of acceptance is worth the cost; 0 always drafts. By default, costs are derived from the
        sizes of the model and the batch.
    num_assistant_tokens (`int`, *optional*, defaults to all heads):
        The maximum number of heads to draft with, beginning with the first. 0 leaves drafting to prompt lookup.
    prompt_lookup_num_tokens (`int`, *optional*, defaults to 8):
        The maximum number of tokens to copy by prompt lookup, which is used where a copy is more likely to be accepted
        than the heads' drafts. 0 disables prompt lookup.
    max_matching_ngram_size (`int`, *optional*, defaults to 3):
        How many of the last tokens prompt lookup compares with earlier ones, at most.

    With `return_dict_in_generate=True`, the output of `use_mtp=True` has its statistics in the field `speculation`,
    including the source of each token.
    """

    def ngram_lambda(self, ensemble_lambda: float | None = None) -> float:
        """
        Return the λ of a call: `ensemble_lambda`, or the configuration's for `None`. It must be from 0 to 1. For a
        model without heads, return 0. Raise a `ValueError` if there is no λ, because the configuration has weights.
        """
        if ensemble_lambda is None:
            if self.config.ensemble_weights is not None:
                raise ValueError(
                    "`ensemble_weights` of the configuration are not a λ: pass `ensemble_lambda`, or set "
                    "`model.config.ensemble_weights = None`."
                )
            ensemble_lambda = self.config.ensemble_lambda
        check_fraction("ensemble_lambda", ensemble_lambda)
        return ensemble_lambda if self.ngram_heads else 0.0

    def save_pretrained(self, *args, **kwargs):
        self._ngram_match_draft_tokens()
        own_options = vars(self.generation_config).keys() & SAVED_OPTIONS.keys()
        for name in own_options:
            value = vars(self.generation_config)[name]
            if value is not None:
                # Numbers of NumPy cannot be saved.
                SAVED_OPTIONS[name](name, value)
        if own_options:
            # Loading drops options that Transformers does not know from a file marked as made from the configuration.
            self.generation_config._from_model_config = False
        return super().save_pretrained(*args, **kwargs)

    def ngram_ensemble(
        self, ensemble_lambda: float | None = None, ensemble_weights: Sequence[float] | None = None
    ) -> float | tuple[float, ...]:
        """
        Return the ensemble of a call, λ or N weights: that of the argument, or the configuration's if both are `None`.
        Return 0 for the model's own prediction.
        """
        if ensemble_lambda is not None and ensemble_weights is not None:
            raise ValueError("`ensemble_weights` and `ensemble_lambda` exclude each other: pass one of them.")
        if ensemble_lambda is None and ensemble_weights is None:
            ensemble_weights = self.config.ensemble_weights
        if ensemble_weights is None:
            return self.ngram_lambda(ensemble_lambda)
        weights = check_ensemble_weights(ensemble_weights, self.config.ngram_size)
        return 0.0 if is_plain(weights) else tuple(weights)

    def _get_logits_processor(
        self,
        *args,
        logits_processor: LogitsProcessorList | None = None,
        model_kwargs: Any = None,
        **kwargs,
    ) -> LogitsProcessorList:
        logits_processor, processor_ensemble = split_ensemble_processors(self, logits_processor)
        if processor_ensemble is not None:
            if self.ngram_ensemble(**_take(model_kwargs, ENSEMBLE_ARGUMENTS)) != 0:
                raise ValueError(
                    "`NgramEnsembleLogitsProcessor` cannot be used with `ensemble_lambda` > 0 or `ensemble_weights`, "
                    "which would apply both: remove the processor, or pass `ensemble_lambda=0` to `generate`."
                )
            # `generate` passes this dictionary to every forward.
            model_kwargs.update(processor_ensemble)
        processors = super()._get_logits_processor(
            *args, logits_processor=logits_processor, model_kwargs=model_kwargs, **kwargs
        )
        ensemble = {name: model_kwargs[name] for name in ENSEMBLE_ARGUMENTS if name in (model_kwargs or {})}
        for processor in processors:
            # Classifier-free guidance calls the model itself and needs the same ensemble.
            if isinstance(processor, UnbatchedClassifierFreeGuidanceLogitsProcessor):
                processor.model = partial(self, **ensemble)
        return processors

    def _prepare_generation_config(self, generation_config: GenerationConfig | None, **kwargs):
        options, ensemble = _take(kwargs, DRAFT_OPTIONS), _take(kwargs, ENSEMBLE_ARGUMENTS)
        generation_config, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)
        self._ngram_mark_default(generation_config, kwargs.get("use_mtp"))
        # The kind of error that Transformers raises for unknown options.
        refuse_misspelt([*model_kwargs, *vars(generation_config)], GENERATION_OPTIONS)
        for name, value in options.items():
            setattr(generation_config, name, value)
        # Removed, because an assistant model is given this `generation_config`, too: it has its own ensemble, or none.
        configured = _take(vars(generation_config), ENSEMBLE_ARGUMENTS)
        ensemble = ensemble or configured
        self.ngram_ensemble(**ensemble)
        return generation_config, {**model_kwargs, **ensemble}

    def _validate_generation_mode(
        self, generation_mode: GenerationMode, generation_config: GenerationConfig, generation_mode_kwargs: dict
    ) -> None:
        if generation_config.use_mtp:
            try:
                self._ngram_check_drafting(generation_mode, generation_config, generation_mode_kwargs)
            except CannotDraft as obstacle:
                self._ngram_leave_out_drafts(generation_config, obstacle)
            if not _other_drafters(generation_config, generation_mode_kwargs):
                # Validate as what it extends: Transformers' assisted generation allows only one row.
                greedy, sample = GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE
                generation_mode = sample if generation_config.do_sample else greedy
        super()._validate_generation_mode(generation_mode, generation_config, generation_mode_kwargs)

    def _ngram_check_drafting(
        self, generation_mode: GenerationMode, generation_config: GenerationConfig, generation_mode_kwargs: dict
    ) -> None:
        """
        Raise a `ValueError` for an invalid option of `use_mtp=True`, `CannotDraft` for anything that it cannot be used
        with.
        """
        if not self.ngram_heads:
            raise CannotDraft(
                f"`use_mtp=True` needs N-gram heads, and this {type(self).__name__} has none (`ngram_size=1`): use a "
                "model with `ngram_size` >= 2, or set `use_mtp=False`."
            )
        if generation_mode != GenerationMode.ASSISTED_GENERATION:
            raise CannotDraft(
                f"`use_mtp=True` supports greedy search and sampling, got "
                f"{generation_mode.value.replace('_', ' ')}: set `num_beams=1` or `use_mtp=False`."
            )
        others = _other_drafters(generation_config, generation_mode_kwargs)
        if others:
            raise CannotDraft(
                f"`use_mtp=True` cannot be used with `{others[0]}`, another way to draft: remove one of them."
            )
        if generation_mode_kwargs.get("synced_gpus"):
            raise CannotDraft(
                "`use_mtp=True` cannot be used with `synced_gpus`: drafting needs the weights outside the forward, "
                "where they are sharded. Gather the model on each device first, or set `use_mtp=False`."
            )
        if self._is_stateful:
            raise CannotDraft(
                f"`use_mtp=True` cannot be used with {type(self).__name__}, whose state cannot undo "
                "rejected drafts: set `use_mtp=False`."
            )
        threshold = getattr(generation_config, "draft_threshold", None)
        if threshold is not None:
            check_fraction("draft_threshold", threshold)
        for name, minimum in DRAFT_COUNTS.items():
            count = getattr(generation_config, name)
            if count is not None:
                check_integer(name, count, minimum)
        self.ngram_draft_vocabulary(getattr(generation_config, "draft_vocab_size", None))

    def _assisted_decoding(
        self,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: Any,
        synced_gpus: bool = False,
        streamer=None,
        inputs_tensor: torch.Tensor | None = None,
        assistant_model=None,
        assistant_tokenizer=None,
        tokenizer=None,
        **model_kwargs,
    ):
        prepared = (input_ids, logits_processor, stopping_criteria, generation_config)
        if generation_config.use_mtp:
            try:
                _check_processors(logits_processor)
                decoding = SpeculativeDecoding(self, *prepared, streamer, model_kwargs)
            except CannotDraft as obstacle:
                self._ngram_leave_out_drafts(generation_config, obstacle)
            else:
                return decoding.run()
        if generation_config.ngram_is_default and not _other_drafters(
            generation_config, {"assistant_model": assistant_model}
        ):
            return self._sample(*prepared, synced_gpus=synced_gpus, streamer=streamer, **model_kwargs)
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

    def _get_candidate_generator(self, *args, model_kwargs: dict[str, Any], **kwargs):
        # The ensemble is this model's: an assistant model has its own, or none.
        candidate_kwargs = {name: value for name, value in model_kwargs.items() if name not in ENSEMBLE_ARGUMENTS}
        return super()._get_candidate_generator(*args, model_kwargs=candidate_kwargs, **kwargs)

    def init_continuous_batching(self, generation_config: GenerationConfig | None = None, *args, **kwargs):
        configs = [config for config in (generation_config, self.generation_config) if config is not None]
        refuse_misspelt(vars(configs[0]), GENERATION_OPTIONS)
        configured = (_take(dict(vars(config)), ENSEMBLE_ARGUMENTS) for config in configs)
        if self.ngram_ensemble(**next(filter(None, configured), {})) != 0:
            raise ValueError(
                "`ensemble_lambda` > 0 is not supported by continuous batching, whose paged cache cannot store the "
                "ensemble's history: pass `ensemble_lambda=0` to `generate_batch` or in `generation_config`, or use "
                "`generate`."
            )
        return super().init_continuous_batching(generation_config, *args, **kwargs)

    def generate_batch(
        self,
        inputs: list[list[int]],
        generation_config: GenerationConfig | None = None,
        *args,
        ensemble_lambda: float | None = None,
        **kwargs,
    ):
        refuse_misspelt(kwargs, GENERATION_OPTIONS)
        # The model's default is left out.
        if generation_config is not None and generation_config.use_mtp and not self.generation_config.use_mtp:
            raise ValueError(
                "`use_mtp=True` is not supported by continuous batching: set `use_mtp=False`, or use `generate`."
            )
        if ensemble_lambda is not None:
            options: Any = self.generation_config if generation_config is None else generation_config
            generation_config = options = copy.deepcopy(options)
            _take(vars(options), ENSEMBLE_ARGUMENTS)
            options.ensemble_lambda = ensemble_lambda
        return super().generate_batch(inputs, generation_config, *args, **kwargs)


def _other_drafters(generation_config: GenerationConfig, generation_mode_kwargs: dict[str, Any]) -> list[str]:
    """Return the given options for other ways to draft than our heads."""
    given = {name: getattr(generation_config, name) for name in ("assistant_early_exit", "assistant_ensemble_weight")}
    given["assistant_model"] = generation_mode_kwargs.get("assistant_model")
    return [name for name, value in given.items() if value is not None]


def _check_processors(logits_processor: LogitsProcessorList) -> None:
    stateful = [processor for processor in logits_processor if isinstance(processor, STATEFUL_PROCESSORS)]
    if stateful:
        raise CannotDraft(
            f"`use_mtp=True` cannot be used with {type(stateful[0]).__name__}, whose state cannot undo rejected "
            "drafts: remove it, or set `use_mtp=False`."
        )


def _take(options: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Remove the options with these names, and return those that are not `None`."""
    taken = {name: options.pop(name) for name in names if name in options}
    return {name: value for name, value in taken.items() if value is not None}
