"""Reformer with N-gram heads: any length in training, right gradients, its own cache."""

import pytest
import torch
import torch.nn.functional as F
from transformers import DynamicCache, PreTrainedModel
from transformers.models.reformer import modeling_reformer
from transformers.models.reformer.modeling_reformer import ReformerDynamicCache

from ngram_wdr_hf import WDRNgramReformerConfig, WDRNgramReformerModelWithLMHead
from tests.support import reference
from tests.support.errors import raises_naming
from tests.support.reformer import FULL, LAYERS, PAD, SIZES, plain_reformer, read_by_cache, slow, tiny_reformer
from tests.support.tiny import left_pad, random_ids
from tests.support.training import gradients_by_backward

# Axes give all positions at once in training; a table gives those that are asked for.
POSITIONS = {"axes": {}, "table": {"axial_pos_embds": False}}
LAMBDAS = [0.0, 0.4, 1.0]
NO_END = {"eos_token_id": None, "max_new_tokens": 9}


def full_length(layers: str, positions: str, length: int) -> int:
    """What training texts are filled up to: all positions, or the least common multiple of the chunks."""
    if positions == "axes":
        return FULL
    multiple = 4 if layers == "local" else 12
    return length if length <= 4 else -(-length // multiple) * multiple


def assert_training_matches(model: PreTrainedModel, length: int, batch: dict[str, torch.Tensor]) -> None:
    """Loss, head losses and all gradients, against the slow reference on texts filled up to `length`."""
    output = model.train()(**batch)
    expected, expected_nlls = reference.training_loss(slow(model, length), **batch)
    assert output.logits is None
    torch.testing.assert_close(output.loss, expected)
    torch.testing.assert_close(output.head_losses, expected_nlls)
    # In texts too short for a head, the reference does not use it.
    expected = expected + 0 * sum(parameter.sum() for parameter in model.parameters())
    actual, wanted = gradients_by_backward(model, output.loss), gradients_by_backward(model, expected)
    for name in wanted:
        torch.testing.assert_close(actual[name], wanted[name], msg=lambda text, name=name: f"{name}: {text}")


def holes(ids: torch.Tensor) -> torch.Tensor:
    labels = ids.clone()
    labels[0, 2:4] = labels[1, -1] = -100
    return labels


def padded_by(ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"input_ids": ids, "labels": ids.masked_fill(mask == 0, -100), "attention_mask": mask}


def structures() -> dict[str, dict[str, torch.Tensor]]:
    """Batches without and with masks and positions."""
    ids, mask = left_pad([random_ids(1, 11)[0], random_ids(1, 6, seed=1)[0]], PAD)
    packed = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1]])
    plain = {
        length: {"input_ids": random_ids(2, length), "labels": holes(random_ids(2, length))}
        for length in (4, 11, FULL)
    }
    return {
        **{f"{length} words": batch for length, batch in plain.items()},
        "left padding": padded_by(ids, mask),
        "left padding, counted": {**padded_by(ids, mask), "position_ids": (mask.cumsum(1) - 1).clamp(min=0)},
        "right padding": padded_by(torch.where(mask.flip(1) == 1, random_ids(2, 11), PAD), mask.flip(1)),
        "packed": {**plain[11], "position_ids": packed},
    }


STRUCTURES = structures()


@pytest.mark.parametrize(("size", "target"), [(1, "wdr"), (2, "simple"), (4, "wdr"), (4, "simple")])
@pytest.mark.parametrize("layers", LAYERS)
def test_loss_and_gradients(layers, size, target):
    model = tiny_reformer(layers, ngram_size=size, ngram_target=target, label_smoothing=0.1)
    assert_training_matches(model, FULL, STRUCTURES["24 words"])


@pytest.mark.parametrize("layers", LAYERS)
def test_gradients_are_those_of_the_loss(layers):
    """By differences: the reversible layers' backward pass is their own, and the reference goes through it too."""
    # Simple heads: of WDR heads' predictions, the loss takes a part as constant.
    model, ids = tiny_reformer(layers, ngram_target="simple").train(), random_ids(2, 11)
    directions = {name: torch.randn_like(parameter) for name, parameter in model.named_parameters()}
    grads = gradients_by_backward(model, model(ids, labels=ids).loss)
    for part in ("embeddings", "layers.0.attention", "layers.1", "encoder.layer_norm", "decoder", "ngram_heads"):
        names = [name for name in directions if part in name]

        @torch.no_grad()
        def loss_after(step, names=names):
            for name in names:
                model.get_parameter(name).add_(step * directions[name])
            return model(ids, labels=ids).loss

        slope = (loss_after(1e-6) - loss_after(-2e-6)) / 2e-6
        loss_after(1e-6)
        expected = sum((grads[name] * directions[name]).sum() for name in names)
        assert abs(expected) > 1e-3
        torch.testing.assert_close(slope, expected, rtol=1e-5, atol=1e-7)


class PlainLayers:
    """Reformer's layers without their own backward pass, for autograd."""

    @staticmethod
    def apply(states, layers, mask, num_hashes, *args):
        hidden_states, attention = states.chunk(2, dim=-1)
        for layer in layers:
            layer._init_attention_seed()
            added = layer.attention(hidden_states=hidden_states, attention_mask=mask, num_hashes=num_hashes)
            attention = attention + added.hidden_states
            layer._init_feed_forward_seed()
            hidden_states = hidden_states + layer.feed_forward(attention)
        return torch.cat([attention, hidden_states], dim=-1)


@pytest.mark.parametrize("hash_seed", [None, 0])
@pytest.mark.parametrize("layers", LAYERS)
def test_gradients_with_dropout(monkeypatch, layers, hash_seed):
    """The layers run again in the backward pass, and drop out the same values. (Stock LSH attention does not.)"""
    kinds = ("hidden_dropout", "local_attention_probs_dropout", "lsh_attention_probs_dropout")
    model = tiny_reformer(layers, hash_seed=hash_seed, **{f"{kind}_prob": 0.2 for kind in kinds}).train()
    ids = random_ids(2, FULL)
    torch.manual_seed(3)
    actual = gradients_by_backward(model, model(ids, labels=ids).loss)
    monkeypatch.setattr(modeling_reformer, "_ReversibleFunction", PlainLayers)
    torch.manual_seed(3)
    expected = gradients_by_backward(model, model(ids, labels=ids).loss)
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("length", [2, 4, 5, 12, FULL - 1])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("layers", ["local", "lsh"])
def test_training_takes_any_length(layers, positions, length):
    """The loss is that of a full text whose surplus is padding without labels, and so are the gradients."""
    model, ids = tiny_reformer(layers, **POSITIONS[positions]), random_ids(2, length)
    full = full_length(layers, positions, length)
    assert_training_matches(model, full, {"input_ids": ids, "labels": ids})
    surplus, mask = F.pad(ids, (0, full - length), value=PAD), F.pad(torch.ones_like(ids), (0, full - length))
    by_hand = model(**padded_by(surplus, mask))
    output = model(ids, labels=ids)
    torch.testing.assert_close(by_hand.loss, output.loss)
    if layers == "local":
        # Without hashing, nothing depends on how far a text is filled up: evaluation sees the same.
        evaluated = model.eval()(ids, labels=ids)
        torch.testing.assert_close(evaluated.head_losses, output.head_losses)
        torch.testing.assert_close(evaluated.loss, output.head_losses[0])


@pytest.mark.parametrize("name", ["left padding", "left padding, counted", "right padding", "packed"])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("layers", ["local", "lsh twice"])
def test_training_with_masks_and_positions(layers, positions, name):
    model = tiny_reformer(layers, **POSITIONS[positions])
    assert_training_matches(model, full_length(layers, positions, 11), STRUCTURES[name])


def assert_evaluation_matches(model, batch: dict[str, torch.Tensor], length: int = 0) -> None:
    batch = dict(batch)
    labels = batch.pop("labels")
    structure = {name: value for name, value in batch.items() if name != "input_ids"}
    # Padding that sees no token attends to everything, so its logits are not compared.
    is_real = batch.get("attention_mask", torch.ones_like(labels)).bool()
    nlls = reference.training_loss(slow(model, length), labels=labels, **batch)[1]
    losses = []
    for value in LAMBDAS:
        expected = reference.ensembled_logits(slow(model, length), ensemble_lambda=value, **batch)
        output = model(**batch, labels=labels, ensemble_lambda=value)
        torch.testing.assert_close(output.logits[is_real], expected[is_real])
        torch.testing.assert_close(output.loss, reference.next_word_nll(expected, labels, **structure))
        torch.testing.assert_close(output.head_losses, nlls)
        losses.append(output.loss)
    grid = model(**batch, labels=labels, ensemble_lambda=LAMBDAS)
    torch.testing.assert_close(grid.loss, torch.stack(losses))
    torch.testing.assert_close(grid.head_losses, nlls)
    assert grid.logits is None


@pytest.mark.parametrize("name", ["4 words", "11 words", "24 words", "left padding", "right padding"])
@pytest.mark.parametrize("layers", LAYERS)
@torch.no_grad()
def test_evaluation(layers, name):
    for target in ("wdr", "simple"):
        assert_evaluation_matches(tiny_reformer(layers, ngram_target=target), STRUCTURES[name])


@pytest.mark.parametrize("prompt_length", [1, 3, 4, 5, 10])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("target", ["wdr", "simple"])
@torch.no_grad()
def test_cached_equals_uncached(target, positions, prompt_length):
    model, ids = tiny_reformer(ngram_target=target, **POSITIONS[positions]), random_ids(2, 15)
    uncached = model(ids, use_cache=False, ensemble_lambda=0.4).logits
    torch.testing.assert_close(read_by_cache(model, "logits", ids, prompt_length, ensemble_lambda=0.4), uncached)
    torch.testing.assert_close(uncached, reference.ensembled_logits(slow(model), ids, 0.4))


@pytest.mark.parametrize("prompt_length", [3, 6, 7, 13])
@pytest.mark.parametrize("layers", ["lsh", "lsh twice"])
@torch.no_grad()
def test_history_in_a_cache_of_hashes(layers, prompt_length):
    """With a cache, stock LSH attention sees other tokens than without; given its states, the ensemble is correct."""
    model, ids = tiny_reformer(layers, ensemble_lambda=0.4), random_ids(1, 18)
    actual = read_by_cache(model, "logits", ids, prompt_length)
    torch.testing.assert_close(actual, reference.ensembled_logits(slow(model, prompt_length=prompt_length), ids, 0.4))
    assert (actual - model(ids, use_cache=False).logits).abs().max() > 0.1


@torch.no_grad()
def test_stock_cache():
    """A stock cache passed in is extended in place, as by the stock class; without `use_cache`, it stays as it is."""
    model, ids, cache = tiny_reformer(ensemble_lambda=0.4), random_ids(2, 9), ReformerDynamicCache()
    expected = model(ids, use_cache=False).logits
    for t, token in enumerate(ids.split(1, dim=1)):
        for use_cache in (False, True) if t else (True,):
            logits = model(token, past_buckets_states=cache, use_cache=use_cache).logits
            torch.testing.assert_close(logits, expected[:, t : t + 1])


def beams(model, ids: torch.Tensor, **options):
    options = {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.0, **NO_END, **options}
    return model.generate(ids, return_dict_in_generate=True, output_scores=True, **options)


@pytest.mark.parametrize(("prompt_length", "target"), [(3, "simple"), (6, "wdr")])
@torch.no_grad()
def test_beam_search(prompt_length, target):
    model, ids = tiny_reformer(ngram_target=target, ensemble_lambda=0.4), random_ids(2, prompt_length)
    expected = [beam for row in reference.beam_search(slow(model), ids, 0.4, 3, 9) for beam in row]
    scores = torch.tensor([score for score, _ in expected])
    for use_cache in (True, False):
        found = beams(model, ids, use_cache=use_cache)
        assert torch.equal(found.sequences, torch.stack([tokens for _, tokens in expected]))
        torch.testing.assert_close(found.sequences_scores, scores, check_dtype=False, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layers", LAYERS)
def test_generate(layers, capsys):
    """All decoding strategies work, and print nothing."""
    model, ids = tiny_reformer(layers), random_ids(1, 7)
    greedy = model.generate(ids, ensemble_lambda=0.4, **NO_END)
    assert not torch.equal(greedy, model.generate(ids, ensemble_lambda=0.0, **NO_END))
    assert model.generate(ids, ensemble_lambda=0.4, do_sample=True, **NO_END).shape == greedy.shape == (1, 16)
    uncached = model.generate(ids, ensemble_lambda=0.4, use_cache=False, **NO_END)
    assert torch.equal(greedy, uncached) or layers != "local"
    assert capsys.readouterr().out == ""


@torch.no_grad()
def test_unsupported_inputs():
    model = tiny_reformer(ensemble_lambda=0.4)
    ids, mask = left_pad([random_ids(1, 6)[0], random_ids(1, 3)[0]], PAD)
    with raises_naming(ValueError, "`attention_mask`", "Reformer"):
        model.generate(ids, attention_mask=mask, **NO_END)
    with raises_naming(ValueError, "use_mtp", "Reformer"):
        model.generate(random_ids(1, 6), use_mtp=True, **NO_END)
    with raises_naming(ValueError, "`past_buckets_states`", "DynamicCache"):
        model(random_ids(1, 1), past_buckets_states=DynamicCache())
    cache = model(random_ids(1, 6), use_cache=True).past_buckets_states
    with raises_naming(ValueError, "`input_ids`", "2"):
        model(random_ids(1, 2), past_buckets_states=cache)
    # Stock LSH attention reads the cached tokens of the first row for all rows.
    cache = plain_reformer("lsh")(random_ids(2, 6), use_cache=True).past_buckets_states
    with raises_naming(ValueError, "`past_buckets_states`", "2"):
        tiny_reformer("lsh")(random_ids(2, 1), past_buckets_states=cache)


@pytest.mark.parametrize("layers", ["lsh", "lsh twice"])
@torch.no_grad()
def test_one_gram_is_the_stock_model(layers):
    """Also in weights drawn anew, and with a cache of hashes."""
    stock, ids = plain_reformer(layers), random_ids(1, 22)
    torch.manual_seed(0)
    ours = WDRNgramReformerModelWithLMHead(WDRNgramReformerConfig(**SIZES, **LAYERS[layers], ngram_size=1))
    ours = ours.double().eval()
    assert all(torch.equal(stock.state_dict()[name], value) for name, value in ours.state_dict().items())
    assert torch.equal(ours(ids, ensemble_lambda=0.4).logits, stock(ids).logits)
    assert torch.equal(read_by_cache(ours, "logits", ids, 7), read_by_cache(stock, "logits", ids, 7))
