"""What a mixture of experts pays for an uneven load."""

import sys
from typing import Any

import torch

# What the stock classes keep for it.
SIZES = ("num_experts", "num_experts_per_tok", "router_aux_loss_coef")


def add_router_loss(model, fields: dict[str, Any], attention_mask: torch.Tensor | None) -> None:
    """
    Adds the load-balancing loss to `fields["loss"]` as the backbone's own class does, if the routers' logits were
    asked for and are among the `fields` of the output.
    """
    if not any(value for name, value in fields.items() if name.endswith("router_logits")):
        return
    module = sys.modules[model.ngram_backbone_class().__module__]
    balance = getattr(module, "load_balancing_loss_func", None)
    num_experts, num_chosen, weight = (getattr(model, name, None) for name in SIZES)
    if balance is None or None in (num_experts, num_chosen, weight) or fields.get("router_logits") is None:
        raise ValueError(
            f"The load-balancing loss of a {type(model).__name__} is not known here: train with "
            "`output_router_logits=False`."
        )
    fields["aux_loss"] = balance(fields["router_logits"], num_experts, num_chosen, attention_mask)
    fields["loss"] = fields["loss"] + weight * fields["aux_loss"].to(fields["loss"].device)
