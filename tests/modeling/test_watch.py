"""One warning, in the backward pass and before the step is lost, about heads that are trained without their loss."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model

from tests.support.batches import batches_of, padded
from tests.support.tiny import make, tiny_model

NAMES = ["gpt2", "marian", "t5", "bert"]
UNTRAINED = "trains the backbone but not its N-gram heads"


def assert_silent(loss: torch.Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss.backward()


@pytest.mark.parametrize("name", NAMES)
def test_loop_without_model_train(name):
    model, batch = make(name), padded(name)
    for loss in (model(**batch).loss, model(**batch, return_dict=False)[0] / 2, copy.deepcopy(model)(**batch).loss):
        with pytest.warns(UserWarning, match=UNTRAINED) as caught:
            loss.backward()
        assert len(caught) == 1 and "`model.train()`" in str(caught[0].message)
    assert_silent(model.train()(**batch).loss)
    assert all(parameter.grad is not None for parameter in model.ngram_heads.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_loss_that_bypasses_the_heads(name):
    model = make(name).train()
    batch = dict(batches_of(name)["decoder ids of one's own" if name in ("marian", "t5") else "plain"])
    labels = batch.pop("labels")
    copied, one_gram = copy.deepcopy(model), make(name, ngram_size=1).train()
    loss = F.cross_entropy(model(**batch).logits.flatten(0, 1), labels.flatten())
    with pytest.warns(UserWarning, match=UNTRAINED) as caught:
        loss.backward()
    assert len(caught) == 1 and "`labels`" in str(caught[0].message) and "`model.ngram_heads" in str(caught[0].message)
    assert_silent(copied(**batch, labels=labels).loss)
    assert_silent(one_gram(**batch).logits.sum())
    frozen = make(name).train()
    frozen.ngram_heads.requires_grad_(False)
    assert_silent(frozen(**batch).logits.sum())


def test_adapters_trained_in_evaluation_mode():
    heads = [f"ngram_heads.{n}" for n in range(3)]
    settings = LoraConfig(target_modules=["c_attn"], modules_to_save=heads, fan_in_fan_out=True)
    model, batch = get_peft_model(tiny_model(), settings), padded("gpt2")
    with pytest.warns(UserWarning, match=UNTRAINED):
        model.eval()(**batch).loss.backward()
    model.zero_grad()
    assert_silent(model.train()(**batch).loss)


def test_losses_that_reach_all_that_is_trained():
    """No warning for: the ensemble, which the heads are part of, frozen or free heads, and outputs without labels."""
    batch = padded("gpt2")
    ids, model, unweighted = batch["input_ids"], tiny_model(), tiny_model().train()
    model.ngram_heads.requires_grad_(False)
    unweighted.ngram_head_factors = [0.0, 0.0, 0.0]
    for loss in (
        tiny_model(ensemble_lambda=0.4)(**batch).loss,
        tiny_model(ngram_size=1)(**batch).loss,
        model(**batch).loss,
        unweighted(**batch).loss,
        tiny_model(head_gradient=0.0).train()(**batch).loss,
        tiny_model()(ids).logits.sum(),
    ):
        assert_silent(loss)
