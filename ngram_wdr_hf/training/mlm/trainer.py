"""Trainer for masked language models."""

from typing import Any

from torch import nn
from transformers import TrainerCallback

from ...data.masking import MaskedBlocks, MaskedText
from ...evaluation.scores import score_masked
from ..trainer import NgramTrainer


class EpochCallback(TrainerCallback):
    """Callback that passes the epoch to the blocks, for new masks; accelerate does so with one process only."""

    def __init__(self, blocks: MaskedBlocks):
        self.blocks = blocks

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.blocks.set_epoch(int(state.epoch))


class MlmTrainer(NgramTrainer):
    r"""
    An [`NgramTrainer`] that evaluates `MaskedText`: `eval_loss`, `eval_perplexity` and `eval_accuracy` refer to the
    masked tokens. The loss of depth 0 is logged as `masked_word_loss`.

    Args:
        kwargs: Arguments of [`NgramTrainer`].
    """

    main_name = "masked_word"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if isinstance(self.train_dataset, MaskedBlocks):
            self.add_callback(EpochCallback(self.train_dataset))

    def _score(self, model: nn.Module, text: MaskedText, options: dict[str, Any]) -> dict[str, float]:
        scores = self.last_scores = score_masked(model, text, **options)
        return {
            "loss": scores.nll,
            "perplexity": scores.perplexity,
            "accuracy": scores.accuracy,
        }
