"""A model on two devices, as `device_map` places it. The second one is PyTorch's device without values."""

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from ngram_wdr_hf.method import logits
from tests.support.tiny import plain_model, random_ids, tiny_model

SECOND = "meta"


def place(module: nn.Module) -> None:
    """Move a module to the second device, and what it reads as well, as accelerate's hooks do."""
    module.to(SECOND).register_forward_pre_hook(
        lambda _, arguments: tree_map_only(torch.Tensor, lambda tensor: tensor.to(SECOND), arguments)
    )


@pytest.fixture
def on_two_devices(monkeypatch):
    # Weights on this device usually mean that they are offloaded.
    monkeypatch.setattr(logits, "output_weight", lambda model: model.get_output_embeddings().weight)
    # It has no autocast.
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device_type: False)

    def spread(model):
        for module in (model.transformer.ln_f, model.lm_head, *getattr(model, "ngram_heads", ())):
            place(module)
        return model

    return spread


@pytest.mark.parametrize("ensemble_lambda", [0.0, 0.4])
@pytest.mark.parametrize("labels", [None, random_ids(2, 9)], ids=["no labels", "labels"])
@pytest.mark.parametrize("target, reads", [("wdr", "hidden"), ("simple", "hidden+tokens"), ("wdr", "previous+token")])
def test_evaluation(on_two_devices, target, reads, labels, ensemble_lambda):
    fields = {"tie_word_embeddings": False, "ngram_target": target, "ngram_head_reads": reads}
    model, ids = on_two_devices(tiny_model(**fields)), random_ids(2, 9)
    options = {"use_cache": True, "ensemble_lambda": ensemble_lambda}
    output = model(ids, attention_mask=torch.ones_like(ids), labels=labels, **options)
    assert output.logits.shape == (2, 9, model.config.vocab_size) and output.logits.device.type == SECOND
    if labels is not None:
        assert output.loss.device == output.head_losses.device == output.logits.device
    # A cache continues where it is.
    assert model(ids[:, :1], past_key_values=output.past_key_values, **options).logits.shape[1] == 1


@pytest.mark.parametrize(
    ("make", "fields"),
    [(tiny_model, {}), (tiny_model, {"head_gradient": 0.0}), (tiny_model, {"ngram_size": 1}), (plain_model, {})],
)
def test_training(on_two_devices, make, fields):
    """The loss only: gradients cannot come back from a device without values. The stock model can do so, too."""
    model, ids = on_two_devices(make(tie_word_embeddings=False, **fields)).train(), random_ids(2, 9)
    output = model(ids, attention_mask=torch.ones_like(ids), labels=ids)
    assert {output.loss.device.type, output.get("head_losses", output.loss).device.type} == {SECOND}
