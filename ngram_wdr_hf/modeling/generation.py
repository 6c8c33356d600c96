"""The ensemble and drafting in `generate`."""

import copy
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import torch
from transformers import StopStringCriteria
from transformers.generation import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from ..decoding.ensemble_processor import split_ensemble_processor
from ..method.configuration import check_ensemble_weights, check_fraction, refuse_misspelt
from ..method.ensemble import is_plain
from .draft_vocabulary import DraftVocabularyMixin

logger = logging.getLogger(__name__)

ENSEMBLE_ARGUMENTS = ("ensemble_lambda", "ensemble_weights")
DRAFT_ARGUMENTS = ("draft_vocab_size", "draft_threshold", "cpu_products")
# Options of `generate` and of a `generation_config` that Transformers does not know.
OWN_OPTIONS = (*ENSEMBLE_ARGUMENTS, *DRAFT_ARGUMENTS)
# Options of Transformers' ways to draft that ours takes, too.
SHARED_OPTIONS = ("num_assistant_tokens", "prompt_lookup_num_tokens", "max_matching_ngram_size")
# What runs the model without the ensemble of the call.
WITHOUT_ENSEMBLE = {"assistant_model", "guidance_scale"}
# `use_mtp=True` in the `generation_config` of checkpoints that version 0.2 saved.
OLD_DEFAULT = "ngram_use_mtp"


class NgramGenerationMixin(DraftVocabularyMixin):
    r"""
    Mixin that passes the ensemble to every forward of a generation, and adds these options to `generate`. Their
    default is that of the `generation_config` given, else of the model's, else the configuration's.

    ensemble_lambda (`float`, *optional*): The paper's λ.
    ensemble_weights (`Sequence[float]`, *optional*): The N weights of the ensemble, instead of a λ.
    use_mtp (`bool`, *optional*, defaults to `config.draft_by_default`):
        Whether to use speculative decoding: the heads draft tokens, and one forward pass checks them. Greedy output
        is identical to plain decoding, sampled output has the same distribution. Works with batches. As a default, it
        is left out where drafts are not possible, as in beam search; the argument raises an error there.
    draft_vocab_size (`int`, *optional*, defaults to that of `config`):
        How many tokens the heads choose drafts from: those given to `ngram_set_draft_tokens`, then the first of the
        vocabulary. Drafts are checked against the full vocabulary.
    draft_threshold (`float`, *optional*):
        The cost of a head's draft as a share of a forward pass, from 0 to 1, half of it for running the head. A draft
        is made if its chance of acceptance is worth the cost; 0 always drafts. By default, costs are derived from the
        sizes of the model and the batch.
    cpu_products (`bool`, *optional*, defaults to `True`):
        Whether drafting on a CPU uses the faster order of products of a few tokens, which changes rounding errors.
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
        return ensemble_lambda if self.config.ngram_size > 1 else 0.0

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

    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        *,
        ensemble_lambda: float | None = None,
        ensemble_weights: Sequence[float] | None = None,
        use_mtp: bool | None = None,
        draft_vocab_size: int | None = None,
        draft_threshold: float | None = None,
        cpu_products: bool | None = None,
        **kwargs,
    ) -> Any:
        own = (ensemble_lambda, ensemble_weights, draft_vocab_size, draft_threshold, cpu_products)
        given_options = {**kwargs, **dict(zip(OWN_OPTIONS, own, strict=True)), "use_mtp": use_mtp}
        configs = [config for config in (generation_config, self.generation_config) if config is not None]
        sources = [given_options, *map(vars, configs)]
        refuse_misspelt([name for source in sources for name in source], (*OWN_OPTIONS, "use_mtp"))
        # Each option as given first.
        options = {name: value for source in sources[::-1] for name, value in source.items() if value is not None}
        logits_processor, ensemble = split_ensemble_processor(self, logits_processor)
        given = next(filter(None, (_select(source, ENSEMBLE_ARGUMENTS) for source in sources)), {})
        if ensemble and self.ngram_ensemble(**given) != 0:
            raise ValueError(
                "`NgramEnsembleLogitsProcessor` cannot be used with `ensemble_lambda` > 0 or `ensemble_weights`, "
                "which would apply both: remove the processor, or pass `ensemble_lambda=0` to `generate`."
            )
        ensemble = ensemble or given
        arguments = {
            "inputs": inputs,
            "generation_config": generation_config,
            "logits_processor": logits_processor,
            "stopping_criteria": stopping_criteria,
            **kwargs,
        }
        if self.ngram_ensemble(**ensemble) != self.ngram_ensemble():
            for name in WITHOUT_ENSEMBLE & options.keys():
                raise ValueError(
                    f"`{name}` runs the model without the ensemble of this call: set `model.config.ensemble_lambda` "
                    "(or `ensemble_weights`) instead."
                )
            # Under a name of its own, as Transformers takes what is also in a `generation_config` for itself.
            arguments["ngram_ensemble"] = ensemble
        default = self.generation_config.use_mtp or options.get(OLD_DEFAULT) or self.config.draft_by_default
        if options.get("use_mtp", default) and (speculation := _speculation()):
            try:
                return self._ngram_generate_with_drafts(arguments, options, speculation)
            except speculation.CannotDraft as obstacle:
                if use_mtp or not default:
                    raise
                _warn_once(f"Decoding without the drafts that this model makes by default. {obstacle}")
                # Transformers would take it for drafts of its own.
                arguments = self._ngram_with_options(arguments, prompt_lookup_num_tokens=None)
        if any(source.get("use_mtp") for source in sources[1:]):
            arguments = self._ngram_with_options(arguments, use_mtp=False)
        return super().generate(**arguments)

    def _ngram_generate_with_drafts(
        self, arguments: dict[str, Any], options: Mapping[str, Any], speculation: ModuleType
    ) -> Any:
        """Generate with drafts. Raise `CannotDraft`, before anything is generated, if that is not possible."""
        speculation.check_model(self, options)
        draft_options = speculation.DraftOptions(**_select(options, (*DRAFT_ARGUMENTS, *SHARED_OPTIONS)))
        streamer, tokenizer = arguments.get("streamer"), arguments.get("tokenizer")
        arguments = self._ngram_with_options(arguments, use_mtp=False, prompt_lookup_num_tokens=None)
        if "stop_strings" in options and tokenizer is not None:
            # Transformers keeps the tokenizer from a decoding loop that is not its own.
            criterion = StopStringCriteria(tokenizer, options["stop_strings"])
            criteria = [*(arguments["stopping_criteria"] or ()), criterion]
            arguments = self._ngram_with_options(arguments, stop_strings=None)
            arguments["stopping_criteria"] = StoppingCriteriaList(criteria)

        def decode(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs):
            if "past_key_values" in options and len(input_ids) > 1:
                # Rows end at different tokens: the caller's cache is left at its prefix.
                model_kwargs["past_key_values"] = copy.deepcopy(model_kwargs["past_key_values"])
            prepared = (input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs)
            return speculation.SpeculativeDecoding(model, *prepared, draft_options, streamer).run()

        return super().generate(**arguments | {"streamer": None, "custom_generate": decode})

    def _ngram_with_options(self, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Return arguments of `generate` with other options of the generation config."""
        config = copy.deepcopy(arguments["generation_config"])
        if config is not None:
            for name, value in options.items():
                setattr(config, name, value)
            # Transformers warns about arguments besides a config, but fills in `None` from the model's.
            unset = {
                name for name, value in options.items() if value is None and getattr(self.generation_config, name)
            }
            options = {name: value for name, value in options.items() if name in unset | arguments.keys()}
        return {**arguments, "generation_config": config, **options}

    def prepare_inputs_for_generation(
        self,
        *args,
        # Named, as Transformers asks this signature whether the model takes it.
        inputs_embeds: torch.Tensor | None = None,
        ngram_ensemble: Mapping[str, Any] | None = None,
        **kwargs,
    ):
        if inputs_embeds is not None:
            kwargs["inputs_embeds"] = inputs_embeds
        return {**super().prepare_inputs_for_generation(*args, **kwargs), **(ngram_ensemble or {})}

    def init_continuous_batching(self, generation_config: GenerationConfig | None = None, *args, **kwargs):
        configs = [vars(config) for config in (generation_config, self.generation_config) if config is not None]
        given = next(filter(None, (_select(config, ENSEMBLE_ARGUMENTS) for config in configs)), {})
        # Its forward passes take the configuration's.
        if self.ngram_ensemble() != 0 or self.ngram_ensemble(**given) != 0:
            raise ValueError(
                "The ensemble is not supported by continuous batching, whose paged cache cannot store its history: "
                "set `model.config.ensemble_lambda = 0`, or use `generate`."
            )
        return super().init_continuous_batching(generation_config, *args, **kwargs)

    def generate_batch(self, *args, **kwargs):
        # Transformers would ignore them.
        for name in kwargs.keys() & {*OWN_OPTIONS, "use_mtp", "ngram_ensemble"}:
            raise ValueError(f"`{name}` of a call is not supported by continuous batching: use `generate`.")
        return super().generate_batch(*args, **kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike, *args, **kwargs):
        self._ngram_match_draft_tokens()
        super().save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", True) and vars(self.generation_config).keys() & OWN_OPTIONS:
            # Loading drops options that Transformers does not know from a file marked as made from the configuration.
            options = self.generation_config.to_dict()
            options.pop("_from_model_config", None)
            GenerationConfig(**options).save_pretrained(save_directory)


@cache
def _warn_once(message: str) -> None:
    logger.warning(message)


def _speculation() -> ModuleType | None:
    """Return the module of speculative decoding, which a checkpoint's own code does not include, or `None`."""
    try:
        from ngram_wdr_hf.decoding import speculative_decoding
    except ModuleNotFoundError:
        _warn_once("Decoding without drafts: `use_mtp=True` needs the package `ngram_wdr_hf`.")
        return None
    return speculative_decoding


def _select(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the options with these names that are not `None`."""
    return {name: options[name] for name in names if options.get(name) is not None}
