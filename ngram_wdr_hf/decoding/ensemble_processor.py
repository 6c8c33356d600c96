"""The ensemble as a logits processor."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.generation import LogitsProcessor, LogitsProcessorList

from ..method.configuration import check_ensemble_weights, check_fraction

# Processors are identified by class name, as a checkpoint with its own code does not include the class.
PROCESSOR_NAME = "NgramEnsembleLogitsProcessor"


class NgramEnsembleLogitsProcessor(LogitsProcessor):
    r"""
    The ensemble as a logits processor, for a model whose own λ is 0:

    ```python
    model.generate(**inputs, logits_processor=[NgramEnsembleLogitsProcessor(model, ensemble_lambda=0.4)])
    ```

    gives the tokens and scores of `model.generate(**inputs, ensemble_lambda=0.4)`, for every decoding strategy.
    `generate` only reads λ from the processor; the model's forward pass computes the ensemble from its hidden states
    and history. Processor and model hold no state, so several threads can share one model.

    A direct call `processor(input_ids, scores)` runs the model twice over `input_ids`, which must have no padding, and
    adds the ensemble's change of the logits to `scores`. It returns log-probabilities if `scores` are
    log-probabilities, logits otherwise.

    Args:
        model (`PreTrainedModel`): A model with N-gram heads.
        ensemble_lambda (`float`, *optional*): The paper's λ, the heads' share, from 0 to 1.
        encoder_inputs (`Mapping[str, torch.Tensor]`, *optional*):
            For direct calls with an encoder-decoder model: the inputs of its encoder, such as `input_ids` and
            `attention_mask`. Each row stands for one row of `input_ids`, or for equally many consecutive beams.
        ensemble_weights (`Sequence[float]`, *optional*): The N weights of the ensemble, instead of a λ.
    """

    def __init__(
        self,
        model,
        ensemble_lambda: float | None = None,
        encoder_inputs: Mapping[str, torch.Tensor] | None = None,
        ensemble_weights: Sequence[float] | None = None,
    ):
        if not len(getattr(model, "ngram_heads", ())):
            raise ValueError(
                f"`NgramEnsembleLogitsProcessor` needs a model with N-gram heads, got a {type(model).__name__} "
                "without heads. Load or train a model with `ngram_size` >= 2."
            )
        self.model = model
        self.ensemble: dict[str, Any]
        if ensemble_lambda is not None and ensemble_weights is None:
            check_fraction("ensemble_lambda", ensemble_lambda)
            self.ensemble = {"ensemble_lambda": ensemble_lambda}
        elif ensemble_weights is not None and ensemble_lambda is None:
            self.ensemble = {"ensemble_weights": check_ensemble_weights(ensemble_weights, model.config.ngram_size)}
        else:
            raise ValueError("`ensemble_lambda` or `ensemble_weights` must be given, but not both. Pass one of them.")
        self.encoder_inputs = encoder_inputs

    @torch.no_grad()
    def __call__(self, input_ids: torch.Tensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        inputs = {f"{self.model.ngram_text_prefix}input_ids": input_ids, "use_cache": False, "logits_to_keep": 1}
        if self.model.config.is_encoder_decoder:
            inputs |= self._encoder_inputs(len(input_ids))
        plain = self.model(**inputs, ensemble_lambda=0.0).logits[:, -1]
        ensembled = self.model(**inputs, **self.ensemble).logits[:, -1]
        # Adding the difference preserves the changes of other processors, forbidden tokens included.
        ensembled = scores + (ensembled - plain).to(scores.dtype)
        are_log_probabilities = bool((scores.logsumexp(-1).abs() < 1e-3).all())
        return ensembled.log_softmax(-1) if are_log_probabilities else ensembled

    def _encoder_inputs(self, num_rows: int) -> dict[str, torch.Tensor]:
        """Return the encoder's inputs, each row repeated for its beams, to `num_rows` rows in total."""
        if not self.encoder_inputs:
            raise ValueError(
                "`encoder_inputs` is missing, but a direct call with an encoder-decoder model needs it. Pass the "
                "encoder's inputs when creating the processor, or use `generate`."
            )
        return {
            name: value.repeat_interleave(num_rows // len(value), dim=0) for name, value in self.encoder_inputs.items()
        }


def split_ensemble_processors(
    model, processors: LogitsProcessorList | None
) -> tuple[LogitsProcessorList, dict[str, Any] | None]:
    """
    Return all processors but the [`NgramEnsembleLogitsProcessor`], and its ensemble as an argument of `forward`, λ or
    weights by name (`None` without such a processor). Raise a
    `ValueError` if there are two of it, or if it was created for another model.
    """
    name = PROCESSOR_NAME
    other_processors = LogitsProcessorList()
    ensemble = None
    for processor in processors or ():
        if all(cls.__name__ != name for cls in type(processor).__mro__):
            other_processors.append(processor)
        elif ensemble is not None:
            raise ValueError(f"`logits_processor` has two processors of class `{name}`. Pass only one.")
        # Heads are compared, as a wrapper such as PEFT's is another model with the same heads.
        elif processor.model.ngram_heads is not model.ngram_heads:
            raise ValueError(f"`{name}(model=...)` is not the model that generates. Create one for this model.")
        else:
            ensemble = processor.ensemble
    return other_processors, ensemble
