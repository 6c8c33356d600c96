"""The ensemble as a logits processor."""

from collections.abc import Mapping

import torch
from transformers.generation import LogitsProcessor, LogitsProcessorList

from ..method.configuration import check_fraction

# A processor is known by its name: a checkpoint that brings its own code does not bring the class.
PROCESSOR_NAME = "NgramEnsembleLogitsProcessor"


class NgramEnsembleLogitsProcessor(LogitsProcessor):
    r"""
    The ensemble as a logits processor, for a model whose own λ is 0:

    ```python
    model.generate(**inputs, logits_processor=[NgramEnsembleLogitsProcessor(model, ensemble_lambda=0.4)])
    ```

    gives the tokens and scores of `model.generate(**inputs, ensemble_lambda=0.4)`, whichever the decoding strategy.
    `generate` of our models reads λ from the processor and lets the forward do the work, where the hidden states and
    the past predictions are; nothing is kept in the processor or the model, and one model can serve several threads.

    Called by hand, `processor(input_ids, scores)` reads `input_ids` anew from the first token on (no padding), and
    returns log-probabilities if `scores` are log-probabilities, logits otherwise.

    Args:
        model (`PreTrainedModel`): A model with N-gram heads.
        ensemble_lambda (`float`): The paper's λ, from 0 to 1.
        encoder_inputs (`Mapping[str, torch.Tensor]`, *optional*):
            For an encoder-decoder model called by hand: what its encoder reads, such as `input_ids` and
            `attention_mask`, a row for each row of the text or for as many of its beams.
    """

    def __init__(self, model, ensemble_lambda: float, encoder_inputs: Mapping[str, torch.Tensor] | None = None):
        if not len(getattr(model, "ngram_heads", ())):
            raise ValueError(
                f"NgramEnsembleLogitsProcessor needs a model with N-gram heads, and this {type(model).__name__} has "
                "none: load or train one with `ngram_size` of at least 2."
            )
        self.model = model
        self.ensemble_lambda = check_fraction("ensemble_lambda", ensemble_lambda)
        self.encoder_inputs = encoder_inputs

    @torch.no_grad()
    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        inputs = {f"{self.model.ngram_text_prefix}input_ids": input_ids, "use_cache": False, "logits_to_keep": 1}
        if self.model.config.is_encoder_decoder:
            inputs |= self._encoder_inputs(len(input_ids))
        main = self.model(**inputs, ensemble_lambda=0.0).logits[:, -1]
        refined = self.model(**inputs, ensemble_lambda=self.ensemble_lambda).logits[:, -1]
        # Adding the difference keeps what other processors did to `scores`, a token they forbade included.
        refined = scores + (refined - main).to(scores.dtype)
        are_log_probabilities = bool((scores.logsumexp(-1).abs() < 1e-3).all())
        return refined.log_softmax(-1) if are_log_probabilities else refined

    def _encoder_inputs(self, num_rows: int) -> dict[str, torch.Tensor]:
        if not self.encoder_inputs:
            raise ValueError(
                "Called by hand, the processor of an encoder-decoder model needs `encoder_inputs`, what the encoder "
                "reads; `generate` needs no such help."
            )
        return {
            name: value.repeat_interleave(num_rows // len(value), dim=0) for name, value in self.encoder_inputs.items()
        }


def split_ensemble_processors(
    model, processors: LogitsProcessorList | None
) -> tuple[LogitsProcessorList, float | None]:
    """Separates the ensemble processor, of which there may be one, from the others: they, and its λ."""
    name = PROCESSOR_NAME
    others = LogitsProcessorList()
    ensemble_lambda = None
    for processor in processors or ():
        if all(cls.__name__ != name for cls in type(processor).__mro__):
            others.append(processor)
        elif ensemble_lambda is not None:
            raise ValueError(f"Two processors of class {name} were given: one is enough.")
        # A wrapper (PEFT's, say) hands out the heads of the model inside it.
        elif processor.model.ngram_heads is not model.ngram_heads:
            raise ValueError(f"The {name} was made for another model: make one for the model that generates.")
        else:
            ensemble_lambda = processor.ensemble_lambda
    return others, ensemble_lambda
