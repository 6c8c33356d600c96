"""A check that training reaches the heads."""

import torch
from torch import nn


class HeadWatchMixin:
    """
    Mixin that raises an error after a backward pass that gave the backbone gradients but not the heads. That happens
    when the loss is computed from logits or hidden states instead of by the model. Frozen heads are not checked.
    """

    def _ngram_watch_backbone(self) -> None:
        """
        Install the check by a hook on the backbone itself. That also catches training code that bypasses this model's
        forward.
        """
        # A bound method, because `deepcopy` rebinds it to the copied model.
        self._ngram_watched_backbone().register_forward_hook(self._ngram_watch_hidden_states)

    def _ngram_watched_backbone(self) -> nn.Module:
        """Return the module whose first output is the last hidden states."""
        return self.get_decoder()

    def _ngram_watch_hidden_states(self, backbone: nn.Module, args: tuple, outputs) -> None:
        """In training with trainable heads, check the heads' gradients once the hidden states get theirs."""
        if torch.compiler.is_compiling() or not self.training or not outputs[0].requires_grad:
            return
        if any(parameter.requires_grad for parameter in self.ngram_heads.parameters()):
            outputs[0].register_hook(self._ngram_queue_gradient_check)

    def _ngram_queue_gradient_check(self, _: torch.Tensor) -> None:
        # Wait for the end of the backward pass: other parts of the loss may still reach the heads.
        torch.autograd.Variable._execution_engine.queue_callback(self._ngram_check_head_gradients)

    def _ngram_check_head_gradients(self) -> None:
        """Raise a `RuntimeError` if the backbone has gradients and the heads have none."""
        if _has_gradient(self.base_model) and not _has_gradient(self.ngram_heads):
            raise RuntimeError(
                "`ngram_heads` got no gradients in this training step, but the backbone did: the loss was not "
                "computed by the model. Pass `labels` to the model and use its `loss` (in Trainer, without "
                "`label_smoothing_factor` or `compute_loss_func`; with TRL, use `NgramSFTTrainer`), or freeze the "
                "heads with `model.ngram_heads.requires_grad_(False)`."
            )


def _has_gradient(module: nn.Module) -> bool:
    return any(parameter.grad is not None for parameter in module.parameters())
