"""Trainer for translation models, with BLEU and chrF in evaluations."""

from collections.abc import Callable

from transformers import PreTrainedModel
from transformers.trainer_utils import EvalLoopOutput

from ...evaluation.translation_scores import TranslationScores
from ..trainer import NgramTrainer
from .arguments import DECODED_METRICS


class TranslationTrainer(NgramTrainer):
    r"""
    An [`NgramTrainer`] whose evaluations also translate the validation set and log `eval_bleu` and `eval_chrf`, if
    `decode` is given.

    Args:
        decode (`Callable`, *optional*): Function that translates the validation set with a model and returns its
            scores. `None` leaves them out.
        kwargs: Arguments of [`NgramTrainer`].
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
