"""The trainer of translation models, which can choose its best checkpoint by BLEU."""

from collections.abc import Callable

from transformers import PreTrainedModel
from transformers.trainer_utils import EvalLoopOutput

from ...evaluation.bleu import TranslationScores
from ..trainer import NgramTrainer
from .arguments import DECODED_METRICS


class TranslationTrainer(NgramTrainer):
    r"""
    A [`NgramTrainer`] that also translates in its evaluations, if `metric_for_best_model` asks for it.

    Args:
        decode (`Callable`, *optional*): Translates the validation set with the model and scores it.
        kwargs: `NgramTrainer`'s.
    """

    def __init__(self, *args, decode: Callable[[PreTrainedModel], TranslationScores] | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self.decode = decode

    def evaluation_loop(self, *args, metric_key_prefix: str = "eval", **kwargs) -> EvalLoopOutput:
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        if self.decode is not None:
            scores = self.decode(self.accelerator.unwrap_model(self.model))
            output.metrics.update({f"{metric_key_prefix}_{name}": getattr(scores, name) for name in DECODED_METRICS})
        return output
