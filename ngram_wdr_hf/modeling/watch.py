"""A training run that leaves the heads at their first values must not pass in silence."""

import torch
from torch import nn


class HeadWatchMixin:
    """
    Raises an error at the end of a backward pass that left gradients in the backbone and none in the heads: a loss
    made of the logits or the hidden states alone trains the backbone alone. Frozen heads are not watched.
    """

    def _ngram_watch_backbone(self) -> None:
        """Sees the backbone's hidden states whoever asks for them, this model's own forward or not."""
        # A bound method is copied along with the model it belongs to.
        self._ngram_watched_backbone().register_forward_hook(self._ngram_watch_hidden_states)

    def _ngram_watched_backbone(self) -> nn.Module:
        """What the hidden states come out of that the heads see."""
        return self.get_decoder()

    def _ngram_watch_hidden_states(self, backbone: nn.Module, args: tuple, outputs) -> None:
        if torch.compiler.is_compiling() or not self.training or not outputs[0].requires_grad:
            return
        if any(parameter.requires_grad for parameter in self.ngram_heads.parameters()):
            outputs[0].register_hook(self._ngram_look_after_backward)

    def _ngram_look_after_backward(self, _: torch.Tensor) -> None:
        # Other parts of the same loss may still reach the heads, so the question waits for the end.
        torch.autograd.Variable._execution_engine.queue_callback(self._ngram_require_head_gradients)

    def _ngram_require_head_gradients(self) -> None:
        if _has_gradient(self.base_model) and not _has_gradient(self.ngram_heads):
            raise RuntimeError(
                "This training step reached the backbone but none of the N-gram heads, because its loss was not the "
                "model's own: pass `labels` to the model and use its `loss` (in Trainer, without "
                "`label_smoothing_factor` or `compute_loss_func`; with TRL, use `NgramSFTTrainer`), or freeze the "
                "heads with `model.ngram_heads.requires_grad_(False)`."
            )


def _has_gradient(module: nn.Module) -> bool:
    return any(parameter.grad is not None for parameter in module.parameters())
