"""The load-balancing loss of mixtures of experts."""

import sys
from typing import Any

import torch

# Attributes of the stock model classes that the loss needs.
ROUTER_ATTRIBUTES = ("num_experts", "num_experts_per_tok", "router_aux_loss_coef")


def add_router_loss(model, fields: dict[str, Any], attention_mask: torch.Tensor | None) -> None:
    """
    Add the load-balancing loss to `fields["loss"]`, as the stock class does, and store it in `fields["aux_loss"]`.
    Output `fields` without router logits are left as they are. Raise a `ValueError` if the loss of this backbone is
    unknown.
    """
    if not any(value for name, value in fields.items() if name.endswith("router_logits")):
        return
    module = sys.modules[model.ngram_backbone_class().__module__]
    load_balancing_loss = getattr(module, "load_balancing_loss_func", None)
    num_experts, num_chosen, weight = (getattr(model, name, None) for name in ROUTER_ATTRIBUTES)
    if load_balancing_loss is None or None in (num_experts, num_chosen, weight) or fields.get("router_logits") is None:
        raise ValueError(
            f"`output_router_logits=True` is not supported in training for {type(model).__name__}, whose "
            "load-balancing loss is unknown: set it to `False`."
        )
    fields["aux_loss"] = load_balancing_loss(fields["router_logits"], num_experts, num_chosen, attention_mask)
    fields["loss"] = fields["loss"] + weight * fields["aux_loss"].to(fields["loss"].device)
