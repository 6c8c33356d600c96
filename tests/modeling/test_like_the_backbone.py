"""Outputs and inputs as code written for the backbone expects them."""

import pytest
import torch
import torch.nn.functional as F
from transformers import DynamicCache, PreTrainedModel, StaticCache

from tests.support import reference
from tests.support.encoder_decoder import empty_cache
from tests.support.generation import assert_same_generation, generate
from tests.support.masked import masked_batch, tiny_masked
from tests.support.options import NO_END
from tests.support.tiny import SEQ2SEQ, model_of, prompts, random_ids

CAUSAL = ["gpt2", *SEQ2SEQ]
MASKED = ["bert", "modernbert"]


def model_and_batch(name: str, **fields) -> tuple[PreTrainedModel, dict[str, torch.Tensor]]:
    """Return a model, and a batch with labels."""
    if name in MASKED:
        ids, labels = masked_batch(2, 9)
        return tiny_masked(name, torch.float64, attn_implementation="eager", **fields), {
            "input_ids": ids,
            "labels": labels,
        }
    model, ids = model_of(name, attn_implementation="eager", **fields), random_ids(2, 9)
    batch = {"input_ids": ids, "labels": ids.masked_fill(ids % 5 == 0, -100)}
    if name in SEQ2SEQ:
        batch |= {"input_ids": random_ids(2, 7, seed=1), "decoder_input_ids": random_ids(2, 9, seed=2)}
    return model, batch


def nll_of(name: str, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if name == "gpt2":
        logits, labels = logits[:, :-1], labels[:, 1:]
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


@pytest.mark.parametrize("name", [*CAUSAL, *MASKED])
def test_gradients_of_the_outputs(name, ensemble_lambda):
    """The loss is made from the logits, and these from the hidden states and attentions of the same output."""
    fields = {} if name in MASKED else {"ensemble_lambda": ensemble_lambda}
    model, batch = model_and_batch(name, **fields)
    output = model(**batch, output_hidden_states=True, output_attentions=True)
    prefix = "decoder_" if name in SEQ2SEQ else ""
    states = [*output[f"{prefix}hidden_states"], *output[f"{prefix}attentions"]]
    if prefix:
        states += [*output.encoder_hidden_states, *output.encoder_attentions, *output.cross_attentions]
    for tensor in (output.logits, *states):
        tensor.retain_grad()
    output.loss.backward()
    leaf = output.logits.detach().requires_grad_()
    nll_of(name, leaf, batch["labels"]).backward()
    torch.testing.assert_close(output.logits.grad, leaf.grad)
    assert all(tensor.grad is not None and bool(tensor.grad.any()) for tensor in states)


def test_gradient_of_sparse_logits():
    model, batch = model_and_batch("modernbert", sparse_prediction=True)
    output = model(**batch)
    output.logits.retain_grad()
    output.loss.backward()
    assert bool(output.logits.grad.any())


@pytest.mark.parametrize("kept", [2, 9, torch.tensor([0, 5])], ids=["last", "all", "positions"])
@pytest.mark.parametrize("name", CAUSAL)
def test_logits_in_training_if_asked_for(name, kept, ensemble_lambda):
    model, batch = model_and_batch(name, ensemble_lambda=ensemble_lambda)
    expected = model(**batch, logits_to_keep=kept).logits
    model.train()
    plain, output = model(**batch), model(**batch, logits_to_keep=kept)
    assert plain.logits is None
    torch.testing.assert_close(output.logits, expected)
    torch.testing.assert_close(output.loss, plain.loss)
    torch.testing.assert_close(output.head_losses, plain.head_losses)
    if ensemble_lambda > 0:
        # A loss of the caller's own can use them.
        gradients = torch.autograd.grad(output.logits.sum(), list(model.ngram_heads.parameters()))
        assert all(gradient.any() for gradient in gradients)


def embedded(model: PreTrainedModel, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the text as embeddings."""
    return {f"{model.ngram_text_prefix}inputs_embeds": model.get_decoder().get_input_embeddings()(ids)}


def source_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {"input_ids": random_ids(2, 7, seed=1)} if model.config.is_encoder_decoder else {}


@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_simple_heads_need_no_ids(name):
    model, ids = model_of(name, ngram_target="simple", ensemble_lambda=0.4), random_ids(2, 9)
    by_ids = source_of(model) | {f"{model.ngram_text_prefix}input_ids": ids}
    by_embeddings = source_of(model) | embedded(model, ids)
    torch.testing.assert_close(model(**by_embeddings).logits, model(**by_ids).logits)
    output, expected = model(**by_embeddings, labels=ids), model(**by_ids, labels=ids)
    for field in ("loss", "logits", "head_losses"):
        torch.testing.assert_close(output[field], expected[field])


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_ids_after_embeddings(name, kind, target):
    """Simple heads have their whole past. A WDR head has none where one of its last tokens is unknown."""
    model, ids = model_of(name, ngram_target=target, ensemble_lambda=0.4), random_ids(2, 9)
    source, ids_name = source_of(model), f"{model.ngram_text_prefix}input_ids"
    sources = {"encoder_ids": source["input_ids"]} if source else {}
    first_known = 4 if target == "wdr" else 0
    expected = reference.ensembled_logits(model, ids, 0.4, first_known=first_known, **sources)
    if source:
        cache = empty_cache(model, kind, source_length=7)
    else:
        cache = DynamicCache() if kind == "dynamic" else StaticCache(config=model.config, max_cache_len=20)
    parts = (
        embedded(model, ids[:, :3]),
        embedded(model, ids[:, 3:5]),
        {ids_name: ids[:, 5:6]},
        {ids_name: ids[:, 6:]},
    )
    logits = torch.cat([model(**source, **part, past_key_values=cache).logits for part in parts], dim=1)
    torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"use_mtp": True}], ids=["greedy", "beams", "drafts"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_generation_from_embeddings(batch_size, options):
    model, inputs = model_of("gpt2", ngram_target="simple", ensemble_lambda=0.4), prompts(batch_size)
    expected = generate(model, inputs["input_ids"], attention_mask=inputs["attention_mask"], **NO_END, **options)
    inputs["inputs_embeds"] = model.get_input_embeddings()(inputs.pop("input_ids"))
    actual = generate(model, None, **inputs, **NO_END, **options)
    expected["sequences"] = expected.sequences[:, -actual.sequences.shape[1] :]
    assert_same_generation(actual, expected)
