"""A check that training reaches the heads."""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from ..method.mixin_bases import Backbone

BYPASSED = (
    "the loss was not computed by the model. Pass `labels` to the model and use its `loss` (in Trainer, without "
    "`label_smoothing_factor` or `compute_loss_func`; with TRL, use `NgramSFTTrainer`)"
)
EVALUATION_MODE = (
    "in evaluation mode, the loss leaves the heads out. Call `model.train()` before training "
    "(`from_pretrained` returns a model in evaluation mode)"
)


class HeadWatchMixin(Backbone):
    """
    Mixin that raises an error after a backward pass that gave the backbone gradients but not the heads. That happens
    when the loss is computed from logits or hidden states instead of by the model, or by the model in evaluation mode.
    Frozen heads are not checked.
    """

    def _ngram_watch_backbone(self) -> None:
        """
        Install the check by hooks on the backbone itself and on the heads. That also catches training code that
        bypasses this model's forward.
        """
        # A bound method, because `deepcopy` rebinds it to the copied model.
        self._ngram_watched_backbone().register_forward_hook(self._ngram_watch_hidden_states)
        for head in self.ngram_heads:
            # Not a method of the model, because PEFT copies the heads alone.
            head.register_forward_hook(_watch_predictions)

    def _ngram_watched_backbone(self) -> nn.Module:
        """Return the module whose first output is the last hidden states."""
        return self.get_decoder()

    def _ngram_watch_hidden_states(self, backbone: nn.Module, args: tuple, outputs) -> None:
        """
        Forward hook of the backbone. In training mode with trainable heads, make a backward pass through the hidden
        states end with a `RuntimeError` if it gives the backbone gradients but not the heads.
        """
        if self.training and self._ngram_can_train_heads(outputs[0]):
            outputs[0].register_hook(partial(self._ngram_queue_gradient_check, BYPASSED, ()))

    def _ngram_watch_loss(self, fields: dict[str, Any], inputs: dict[str, Any]) -> None:
        """
        In evaluation mode with trainable heads, make a backward pass from the loss end with a `RuntimeError` if it
        gives the backbone gradients but not the heads: without the ensemble, that loss does not reach them. There is
        no check if gradients of an input or an output are asked for, in an analysis.
        """
        loss = fields["loss"]
        if self._ngram_can_train_heads(loss):
            # A loss that is kept must not keep the logits.
            tensors = [weakref.ref(tensor) for tensor in (*_tensors(inputs), *_tensors(fields))]
            loss.register_hook(partial(self._ngram_queue_gradient_check, EVALUATION_MODE, tensors))

    def _ngram_can_train_heads(self, tensor: torch.Tensor) -> bool:
        """Return whether a backward pass from `tensor` can be a training step of a model with trainable heads."""
        return (
            not torch.compiler.is_compiling()
            and tensor.requires_grad
            and any(parameter.requires_grad for parameter in self.ngram_heads.parameters())
        )

    def _ngram_queue_gradient_check(
        self, reason: str, tensors: Sequence[weakref.ref[torch.Tensor]], _: torch.Tensor
    ) -> None:
        """
        Hook of a tensor. Check the heads after the backward pass, unless the gradient of one of `tensors` is kept.
        """
        if any(_keeps_gradient(tensor) for reference in tensors if (tensor := reference()) is not None):
            return
        # Wait for the end of the backward pass: other parts of the loss may still reach the heads.
        check = partial(self._ngram_check_head_gradients, reason, torch._C._current_graph_task_id())
        torch.autograd.Variable._execution_engine.queue_callback(check)

    def _ngram_check_head_gradients(self, reason: str, backward_pass: int) -> None:
        """
        Raise a `RuntimeError` if the backbone has gradients, and the heads have none and got none in the backward pass
        with this number. `reason` is the part of its message that says why, and what to do.
        """
        # ZeRO and some optimizers release gradients during the backward pass, those of the heads first.
        is_reached = _has_gradient(self.ngram_heads) or any(
            getattr(module, "ngram_last_pass", None) == backward_pass for module in self.ngram_heads.modules()
        )
        if _has_gradient(self.base_model) and not is_reached:
            raise RuntimeError(
                f"`ngram_heads` got no gradients in this backward pass, but the backbone did: {reason}, or freeze the "
                "heads with `model.ngram_heads.requires_grad_(False)`."
            )


def _watch_predictions(head: nn.Module, args: tuple, predictions: torch.Tensor) -> None:
    """Forward hook of a head. Make a backward pass through its predictions leave its number in `ngram_last_pass`."""
    if predictions.requires_grad and not torch.compiler.is_compiling():
        predictions.register_hook(partial(_note_backward_pass, head))


def _note_backward_pass(head: Any, _: torch.Tensor) -> None:
    head.ngram_last_pass = torch._C._current_graph_task_id()


def _has_gradient(module: nn.Module) -> bool:
    return any(parameter.grad is not None for parameter in module.parameters())


def _keeps_gradient(tensor: torch.Tensor) -> bool:
    return tensor.retains_grad or (tensor.is_leaf and tensor.requires_grad)


def _tensors(values: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """
    Yield the tensors among `values` and those directly inside a tuple among them, such as the hidden states of all
    layers.
    """
    for value in values.values():
        yield from (item for item in (value if isinstance(value, tuple) else [value]) if torch.is_tensor(item))
