"""The ensemble as a logits processor."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.generation import LogitsProcessor, LogitsProcessorList

from ..method.configuration import check_ensemble_weights, check_fraction


class NgramEnsembleLogitsProcessor(LogitsProcessor):
    r"""
    The ensemble as a logits processor, for a model whose own λ is 0:

    ```python
    model.generate(**inputs, logits_processor=[NgramEnsembleLogitsProcessor(model, ensemble_lambda=0.4)])
    ```

    gives the tokens and scores of `model.generate(**inputs, ensemble_lambda=0.4)`, for every decoding strategy:
    `generate` only reads λ from the processor. Pass `ensemble_lambda` itself where you can. The processor is for code
    that takes logits processors and nothing else, and for another model's `generate`, such as that of the stock class.

    There, it is called directly: `processor(input_ids, scores)` runs the model twice over `input_ids`, without a
    cache, and adds the ensemble's change of the log-probabilities to `scores`, which may be logits or
    log-probabilities. Left padding is refused, as a processor gets no attention mask.

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
        if getattr(model.config, "ngram_size", 1) == 1:
            raise ValueError(
                f"`NgramEnsembleLogitsProcessor` needs N-gram heads, and this {type(model).__name__} has none: use a "
                "model with `ngram_size` >= 2."
            )
        if (ensemble_lambda is None) == (ensemble_weights is None):
            raise ValueError("`ensemble_lambda` or `ensemble_weights` must be given, but not both. Pass one of them.")
        self.model = model
        self.ngram_ensemble: dict[str, Any]
        if ensemble_lambda is not None:
            check_fraction("ensemble_lambda", ensemble_lambda)
            self.ngram_ensemble = {"ensemble_lambda": ensemble_lambda}
        elif ensemble_weights is not None:
            weights = check_ensemble_weights(ensemble_weights, model.config.ngram_size)
            self.ngram_ensemble = {"ensemble_weights": weights}
        self.encoder_inputs = encoder_inputs

    @torch.no_grad()
    def __call__(self, input_ids: torch.Tensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        inputs = {f"{self.model.ngram_text_prefix}input_ids": input_ids, "use_cache": False, "logits_to_keep": 1}
        if self.model.config.is_encoder_decoder:
            if not self.encoder_inputs:
                raise ValueError(
                    "A direct call needs the encoder's inputs: pass `encoder_inputs` when creating the processor."
                )
            # Each row is repeated for its beams.
            inputs |= {
                name: value.repeat_interleave(len(input_ids) // len(value), dim=0)
                for name, value in self.encoder_inputs.items()
            }
        else:
            self._refuse_padding(input_ids)
        plain = self.model(**inputs, ensemble_lambda=0.0).logits[:, -1].log_softmax(-1)
        ensembled = self.model(**inputs, **self.ngram_ensemble).logits[:, -1].log_softmax(-1)
        # Adding the difference preserves the changes of other processors, forbidden tokens included.
        return scores + (ensembled - plain).to(scores.dtype)

    def _refuse_padding(self, input_ids: torch.Tensor) -> None:
        """Raise a `ValueError` for left-padded rows. One padding token in front of each may be the start token."""
        config = self.model.generation_config
        padding = config.eos_token_id if config.pad_token_id is None else config.pad_token_id
        if padding is None:
            return
        lengths = (input_ids == torch.as_tensor(padding).flatten()[0]).long().cumprod(dim=1).sum(dim=1)
        # Rows of nothing else were finished at once.
        lengths = lengths[lengths < input_ids.shape[1]].tolist()
        if lengths and max(lengths) > (min(lengths) == 1):
            raise ValueError(
                "`NgramEnsembleLogitsProcessor` was called with left-padded rows, and would read their padding as "
                "text: pass `ensemble_lambda` to `generate` of the model with heads, or generate the rows one by one."
            )


def split_ensemble_processor(
    model, processors: LogitsProcessorList | None
) -> tuple[LogitsProcessorList | None, dict[str, Any]]:
    """
    Return all processors but the [`NgramEnsembleLogitsProcessor`], and its ensemble, λ or weights by name (empty
    without such a processor).
    """
    # By attribute, as a checkpoint's own code has another class.
    ours = [processor for processor in processors or () if hasattr(processor, "ngram_ensemble")]
    if not ours:
        return processors, {}
    # Heads are compared, as a wrapper such as PEFT's is another model with the same heads.
    if len(ours) > 1 or ours[0].model.ngram_heads is not model.ngram_heads:
        raise ValueError(
            "`logits_processor` must have at most one `NgramEnsembleLogitsProcessor`, made for this model."
        )
    others = LogitsProcessorList(processor for processor in processors or () if processor is not ours[0])
    return others, ours[0].ngram_ensemble
