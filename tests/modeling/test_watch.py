"""The watch over the heads' gradients: a loop forgot `model.train()`, or gradients are released early."""

import copy
import weakref

import pytest
import torch
from peft import LoraConfig, get_peft_model

from ngram_wdr_hf import WDRNgramGPT2LMHeadModel
from tests.support.errors import raises_naming
from tests.support.masked import masked_batch, tiny_masked
from tests.support.tiny import random_ids, tiny_model, tiny_seq2seq

NAMES = ("`ngram_heads`", "`model.train()`")


def causal_batch() -> dict:
    ids = random_ids(2, 9)
    return {"input_ids": ids, "labels": ids}


def one_masked_batch() -> dict:
    ids, labels = masked_batch(2, 9)
    return {"input_ids": ids, "labels": labels}


MODELS = {
    "causal": (tiny_model, causal_batch),
    "encoder-decoder": (lambda: tiny_seq2seq("marian"), causal_batch),
    "without a base model": (lambda: tiny_seq2seq("t5"), causal_batch),
    "masked": (lambda: tiny_masked("bert"), one_masked_batch),
}


@pytest.mark.parametrize(("model", "batch"), MODELS.values(), ids=MODELS)
def test_loop_without_model_train(model, batch):
    model, batch = model(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with raises_naming(RuntimeError, *NAMES):
        model(**batch).loss.backward()
    optimizer.zero_grad()
    with raises_naming(RuntimeError, *NAMES):
        (model(**batch, return_dict=False)[0] / 2).backward()
    optimizer.zero_grad()
    model.train()(**batch).loss.backward()
    optimizer.step()


def test_loop_after_loading(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    model = WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path)
    with raises_naming(RuntimeError, *NAMES):
        copy.deepcopy(model)(**causal_batch()).loss.backward()
    assert all(parameter.grad is None for parameter in model.parameters())


def adapted(model):
    heads = [f"ngram_heads.{n}" for n in range(3)]
    return get_peft_model(model, LoraConfig(target_modules=["c_attn"], modules_to_save=heads, fan_in_fan_out=True))


def test_adapters_trained_in_evaluation_mode():
    model = adapted(tiny_model()).eval()
    with raises_naming(RuntimeError, *NAMES):
        model(**causal_batch()).loss.backward()


def test_gradients_that_are_no_training():
    """No error for: gradients by `torch.autograd.grad`, of outputs, of inputs, and of the model without its loss."""
    batch = causal_batch()
    model = tiny_model()
    torch.autograd.grad(model(**batch).loss, model.transformer.wte.weight)
    model(input_ids=batch["input_ids"]).logits.sum().backward()
    for name in ("logits", "hidden_states"):
        model = tiny_model()
        output = model(**batch, output_hidden_states=True)
        asked = output.logits if name == "logits" else output.hidden_states[0]
        asked.retain_grad()
        output.loss.backward()
        assert asked.grad.any()
    model = tiny_model(ngram_target="simple")
    embeddings = model.transformer.wte(batch["input_ids"]).detach().requires_grad_()
    model(inputs_embeds=embeddings, labels=batch["labels"]).loss.backward()
    assert embeddings.grad.any()
    model = tiny_seq2seq("marian")
    embeddings = model.get_encoder().get_input_embeddings()(batch["input_ids"])
    loss = model(inputs_embeds=embeddings, labels=batch["labels"]).loss
    # Asked for after the forward pass, and of a tensor that is computed itself.
    embeddings.retain_grad()
    loss.backward()
    assert embeddings.grad.any()


def test_losses_that_reach_all_that_is_trained():
    """No error for: the ensemble, which the heads are part of, frozen heads, a frozen trunk, and a plain model."""
    batch = causal_batch()
    tiny_model(ensemble_lambda=0.4)(**batch).loss.backward()
    tiny_model(ngram_size=1)(**batch).loss.backward()
    model = tiny_model()
    model.ngram_heads.requires_grad_(False)
    model(**batch).loss.backward()
    model = tiny_model(ngram_target="simple").requires_grad_(False)
    model.ngram_heads.requires_grad_(True)
    embeddings = model.transformer.wte(batch["input_ids"]).requires_grad_() * 1.0
    model(inputs_embeds=embeddings, labels=batch["labels"]).loss.backward()
    assert all(parameter.grad is None for parameter in model.parameters())


def release_gradients(model) -> None:
    """Drop the heads' gradients as soon as they are computed, like ZeRO, which reduces a full bucket and frees it."""

    def release(parameter) -> None:
        parameter.grad = None

    for parameter in model.ngram_heads.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(release)


@pytest.mark.parametrize(("model", "batch"), MODELS.values(), ids=MODELS)
def test_gradients_released_in_the_backward_pass(model, batch):
    model, batch = model().train(), batch()
    release_gradients(model)
    model(**batch).loss.backward()
    (model(**batch).loss + model(**batch).loss).backward()
    assert all(parameter.grad is None for parameter in model.ngram_heads.parameters())
    # The gradients of earlier backward passes do not count.
    with raises_naming(RuntimeError, *NAMES):
        model.eval()(**batch).loss.backward()


def test_released_gradients_of_special_heads():
    """Free heads, heads without a loss weight, a copy, heads of the ensemble, and heads that PEFT has copied."""
    unweighted = tiny_model().train()
    unweighted.ngram_head_factors = [0.0, 0.0, 0.0]
    models = [tiny_model(head_gradient=0.0).train(), unweighted, copy.deepcopy(unweighted)]
    models += [tiny_model(ensemble_lambda=0.4), adapted(tiny_model()).train()]
    for model in models:
        release_gradients(model)
        model(**causal_batch()).loss.backward()
        assert all(parameter.grad is None for parameter in model.ngram_heads.parameters())


def test_kept_loss_does_not_keep_the_logits():
    output = tiny_model()(**causal_batch())
    loss, logits = output.loss, weakref.ref(output.logits)
    del output
    assert loss.requires_grad and logits() is None
