"""What `generate` needs to know about the ensemble."""

from functools import partial
from typing import Any

from transformers.generation import LogitsProcessorList, UnbatchedClassifierFreeGuidanceLogitsProcessor

from .configuration_wdr_ngram import check_fraction
from .ensemble_wdr_ngram import split_ensemble_processors


class NgramGenerationMixin:
    """Hands λ to every forward of a generation, wherever it comes from."""

    def resolve_lambda(self, ensemble_lambda: float | None = None) -> float:
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
            if self.resolve_lambda(model_kwargs.get("ensemble_lambda")) > 0:
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

    def _get_candidate_generator(self, *args, model_kwargs: dict[str, Any], **kwargs):
        # What drafts has a λ of its own, or none.
        others = {name: value for name, value in model_kwargs.items() if name != "ensemble_lambda"}
        return super()._get_candidate_generator(*args, model_kwargs=others, **kwargs)

    def init_continuous_batching(self, *args, **kwargs):
        self._refuse_paged_ensemble(None)
        return super().init_continuous_batching(*args, **kwargs)

    def generate_batch(self, *args, ensemble_lambda: float | None = None, **kwargs):
        self._refuse_paged_ensemble(ensemble_lambda)
        return super().generate_batch(*args, **kwargs)

    def _refuse_paged_ensemble(self, ensemble_lambda: float | None) -> None:
        if self.resolve_lambda(ensemble_lambda) > 0:
            raise ValueError(
                "Continuous batching keeps keys and values in pages that have no room for the ensemble's past "
                "predictions: set `model.config.ensemble_lambda = 0`, or use `generate` with a batch."
            )
