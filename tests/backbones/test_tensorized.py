"""The Tensorized Transformer, against slow loops; with caches, padding and packing, against plain forward passes."""

import functools
import math
from itertools import pairwise, product

import pytest
import torch
from transformers import DynamicCache, StaticCache

from ngram_wdr_hf import (
    TensorizedTransformerConfig,
    TensorizedTransformerLMHeadModel,
    WDRNgramTensorizedTransformerConfig,
    WDRNgramTensorizedTransformerLMHeadModel,
)
from ngram_wdr_hf.backbones import tensorized as tensorized_model
from tests.support.errors import raises_naming
from tests.support.generation import cached_logits
from tests.support.tiny import VOCAB_SIZE, left_pad, random_ids
from tests.support.training import gradients

MAX_LENGTH = 12
SIZES = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": MAX_LENGTH, "hidden_size": 8, "num_hidden_layers": 2}
SIZES |= {"attention_rank": 5, "num_attention_blocks": 2, "intermediate_size": 12}
OTHERS = {"dropout": 0.0, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
NO_END = {"eos_token_id": None, "do_sample": False}
CHUNKS = [[10], [1] * 10, [5, 1, 4], [1, 2, 3, 4]]


def tiny(ngram_size=None, **fields):
    """A model in double precision without heads, or with `ngram_size`. Every parameter is large, biases too."""
    config_class, model_class = TensorizedTransformerConfig, TensorizedTransformerLMHeadModel
    if ngram_size is not None:
        config_class, model_class = WDRNgramTensorizedTransformerConfig, WDRNgramTensorizedTransformerLMHeadModel
        fields["ngram_size"] = ngram_size
    torch.manual_seed(0)
    model = model_class(config_class(**{**SIZES, **OTHERS, **fields})).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.fixture(params=["plain", "wdr"])
def model(request):
    return tiny() if request.param == "plain" else tiny(ngram_size=4, ensemble_lambda=0.4)


def static_cache(model, length=30):
    return StaticCache(config=model.config, max_cache_len=length)


def slow_attention(layer, states, waves, biases):
    """For one text, `(T, d)`: the output, `(T, d)`, and A, `(T, T, T)`."""
    length, num_positions = len(states), layer.num_positions
    queries, keys, values = (states @ weight.T for weight in layer.qkv.weight.chunk(3))
    distances = waves @ layer.distance.weight.T
    rank, num_blocks = len(biases[0]), len(layer.cores)
    attention = {}
    for i, j, k in product(range(length), repeat=3):
        attention[i, j, k] = states.new_zeros(())
        if j <= i and k <= i:
            for block, r in product(range(num_blocks), range(rank)):
                score = (queries[i, r] + biases[0][r]) * keys[j, r]
                score = score + (queries[i, r] + biases[1][r]) * distances[i - j, r]
                attention[i, j, k] = attention[i, j, k] + layer.cores[block, r] * score * values[k, r] / num_blocks
    outputs = []
    for i in range(length):
        pairs = product(range(i + 1), repeat=2)
        outputs.append(sum(attention[i, j, k] * layer.pairs.weight[:, j * num_positions + k] for j, k in pairs))
    return torch.stack(outputs), torch.stack(list(attention.values())).view(length, length, length)


def slow_norm(norm, states):
    centered = states - states.mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def slow_model(model, ids):
    """For one text, `(T,)`: the hidden states after the embedding and every layer, the attentions and the logits."""
    base = model.transformer
    table, biases = base.embeddings.weight, (base.word_bias, base.distance_bias)
    waves = base._distance_embeddings(table)
    states, attentions = [table[ids] * math.sqrt(table.shape[1])], []
    for layer in base.layers:
        output, attention = slow_attention(layer.attention, states[-1], waves, biases)
        hidden = slow_norm(layer.attention_norm, states[-1] + output)
        inner = (hidden @ layer.fc_in.weight.T + layer.fc_in.bias).clamp(min=0)
        output = inner @ layer.fc_out.weight.T + layer.fc_out.bias
        states.append(slow_norm(layer.feed_forward_norm, hidden + output))
        attentions.append(attention)
    return states, attentions, states[-1] @ table.T + model.lm_head.bias


def test_distances_are_sine_waves():
    waves = tiny().transformer._distance_embeddings(torch.zeros((), dtype=torch.float64))
    angles = [[distance / 10_000 ** (pair / 4) for pair in range(4)] for distance in range(MAX_LENGTH)]
    expected = [[*map(math.sin, row), *map(math.cos, row)] for row in angles]
    # They are made in single precision.
    torch.testing.assert_close(waves, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("num_blocks", [1, 2, 3])
@pytest.mark.parametrize(("length", "num_positions"), [(1, 5), (4, 6), (5, 5)])
def test_values_and_gradients(num_blocks, length, num_positions):
    model = tiny(num_attention_blocks=num_blocks, max_position_embeddings=num_positions, attention_rank=3)
    ids = random_ids(2, length)
    output = model(ids, output_hidden_states=True, output_attentions=True)
    states, attentions, logits = zip(*(slow_model(model, row) for row in ids), strict=True)
    for actual, slow in ((output.hidden_states, states), (output.attentions, attentions)):
        torch.testing.assert_close(actual, tuple(map(torch.stack, zip(*slow, strict=True))))
    logits = torch.stack(logits)
    torch.testing.assert_close(output.logits, logits)
    factors = torch.randn_like(logits)
    actual = gradients(model, (output.logits * factors).sum())
    expected = gradients(model, (logits * factors).sum())
    torch.testing.assert_close(actual, expected)
    # Even a single token reaches all parameters.
    assert all(gradient.abs().max() > 1e-6 for gradient in actual.values())


def moved_by_the_future(model, **batch):
    """Yield, for t from 1 on, how far the logits before position t move if the tokens from t on change."""
    ids, other = random_ids(2, 9), random_ids(2, 9, seed=1)
    logits = model(ids, **batch).logits
    for t in range(1, 9):
        changed = model(torch.cat([ids[:, :t], other[:, t:]], 1), **batch).logits
        yield (changed - logits)[:, :t].abs().amax((0, 2))


@pytest.mark.parametrize("padding", [0, 3])
@torch.no_grad()
def test_the_future_moves_nothing(model, padding):
    mask = torch.arange(9) >= torch.tensor([[0], [padding]])
    assert all((moved == 0).all() for moved in moved_by_the_future(model, attention_mask=mask))


@torch.no_grad()
def test_the_future_would_move_everything_without_the_mask(model, monkeypatch):
    monkeypatch.setattr(tensorized_model, "causal_visibility", lambda c, n: torch.ones(len(c), n) > 0)
    assert all((moved > 1e-3).all() for moved in moved_by_the_future(model))


@torch.no_grad()
def test_cropped_reordered_and_reset_caches(model):
    ids, more, order = random_ids(3, 8), random_ids(3, 3, seed=5), torch.tensor([2, 0, 0])
    # What a static cache held before a reset is still in its columns, and not seen.
    both = DynamicCache(), static_cache(model)
    cases = [("reorder_cache", (order,), ids[order], both), ("reset", (), ids[:, :0], both)]
    for verb, arguments, left, caches in [*cases, ("crop", (-3,), ids[:, :5], both[:1])]:
        expected = model(torch.cat([left, more], 1), use_cache=False).logits[:, left.shape[1] :]
        for cache in caches:
            cache.reset()
            model(ids, past_key_values=cache)
            getattr(cache, verb)(*arguments)
            torch.testing.assert_close(cached_logits(model, more, [1, 2], cache), expected)


def assert_ends_with(model, rows, logits):
    """Left-padded rows have the logits of the rows alone."""
    for row, values in zip(rows, logits, strict=True):
        torch.testing.assert_close(values[-len(row) :], model(row[None]).logits[0])


@pytest.mark.parametrize("chunks", [[21], [1] * 21, [4, 8, 9]], ids=str)
@torch.no_grad()
def test_left_padding(model, chunks):
    """There may be more columns than positions, as padding has no position."""
    rows = [random_ids(1, length, seed=length)[0] for length in (MAX_LENGTH, 7, 1)]
    ids, mask = (values[1:] for values in left_pad([random_ids(1, 21)[0], *rows]))
    counted = mask.cumsum(1) - 1
    # The position ids of padding do not matter.
    for positions in (None, counted.clamp(min=0), counted.masked_fill(mask == 0, 1)):
        inputs = {"attention_mask": mask, "position_ids": positions}
        assert_ends_with(model, rows, model(ids, use_cache=False, **inputs).logits)
        for cache in (DynamicCache(), static_cache(model)):
            assert_ends_with(model, rows, cached_logits(model, ids, chunks, cache, **inputs))


@pytest.mark.parametrize("lengths", [[[4, 3, 3]], [[4, 3, 3], [1, 9]], [[MAX_LENGTH, 1, 7]]], ids=str)
@torch.no_grad()
def test_packed_texts(model, lengths):
    """Packed documents together may exceed the maximum length."""
    positions = torch.stack([torch.cat([*map(torch.arange, row)]) for row in lengths])
    ids = random_ids(*positions.shape)
    texts = [text for row, sizes in zip(ids, lengths, strict=True) for text in row.split(sizes)]
    expected = torch.cat([model(text[None]).logits[0] for text in texts]).view(*ids.shape, -1)
    for mask in (None, torch.ones_like(ids)):
        logits = model(ids, position_ids=positions, attention_mask=mask, use_cache=False).logits
        torch.testing.assert_close(logits, expected)


def prepared_masks(allowed):
    """A four-dimensional mask, boolean and as numbers to be added to scores."""
    added = torch.zeros(allowed.shape, dtype=torch.float64).masked_fill(~allowed, torch.finfo(torch.float64).min)
    return allowed, added, added.masked_fill(~allowed, -torch.inf)


@torch.no_grad()
def test_prepared_masks(model):
    rows = [random_ids(1, length, seed=length)[0] for length in (9, 4)]
    ids, mask = left_pad(rows)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    for prepared in prepared_masks(torch.ones(9, 9, dtype=torch.bool).tril() & mask.bool()[:, None, None]):
        for ends in ((0, 9), (0, 6, 9)):
            parts, cache = [], DynamicCache()
            for begin, end in pairwise(ends):
                inputs = {"position_ids": positions[:, begin:end], "past_key_values": cache}
                inputs["attention_mask"] = prepared[:, :, begin:end, :end]
                parts.append(model(ids[:, begin:end], **inputs).logits)
            assert_ends_with(model, rows, torch.cat(parts, 1))
    texts, positions = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2]), torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1]])
    expected = model(ids[:1], position_ids=positions, use_cache=False).logits
    for prepared in prepared_masks((texts[:, None] == texts).tril()[None, None]):
        logits = model(ids[:1], attention_mask=prepared, position_ids=positions, use_cache=False).logits
        torch.testing.assert_close(logits, expected)


@torch.no_grad()
def test_rows_that_see_nothing(model):
    ids, mask = random_ids(3, 8), torch.tensor([[1], [0], [1]]).expand(3, 8)
    output = model(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100))
    assert output.logits.isfinite().all() and output.loss.isfinite()
    torch.testing.assert_close(output.logits[::2], model(ids[::2]).logits)
    assert tiny(ngram_size=4).train()(ids, attention_mask=torch.zeros_like(ids), labels=ids).loss == 0


def generate(model, ids, mask=None, **options):
    options = {"max_new_tokens": 5, "return_dict_in_generate": True, "output_logits": True, **NO_END, **options}
    return model.generate(ids, attention_mask=mask, **options)


@pytest.mark.parametrize("ends", [None, [0, 5, 9, 12]])
@pytest.mark.parametrize("ensemble_lambda", [0.0, 0.4])
def test_speculation_equals_plain_decoding(ensemble_lambda, ends):
    """Generates up to the last position, which drafts must not exceed."""
    model = tiny(ngram_size=4, max_position_embeddings=24, ensemble_lambda=ensemble_lambda)
    for seed in range(2):
        ids, mask = left_pad([random_ids(1, length, seed=seed + length)[0] for length in (6, 6, 3, 1)])
        options = {"max_new_tokens": 19, "eos_token_id": ends}
        plain, drafted = (generate(model, ids, mask, use_mtp=use_mtp, **options) for use_mtp in (False, True))
        assert torch.equal(plain.sequences, drafted.sequences)


def test_size_is_the_papers():
    with torch.device("meta"):
        plain = TensorizedTransformerLMHeadModel(TensorizedTransformerConfig())
        model = WDRNgramTensorizedTransformerLMHeadModel(WDRNgramTensorizedTransformerConfig(ngram_size=3))
    assert plain.num_parameters() == pytest.approx(6.7e6, rel=0.01)
    assert model.num_parameters() == plain.num_parameters() + 2 * (2 * 256**2 + 2 * 256)


def test_outputs(model):
    ids = random_ids(2, 7)
    output = model(ids, labels=ids, output_hidden_states=True, output_attentions=True)
    assert [states.shape for states in output.hidden_states] == [(2, 7, 8)] * 3
    assert [attention.shape for attention in output.attentions] == [(2, 7, 7, 7)] * 2
    assert output.past_key_values.get_seq_length() == 7
    step = model(ids[:, :1], past_key_values=output.past_key_values, output_attentions=True)
    assert step.hidden_states is None and step.attentions[0].shape == (2, 1, 8, 8)
    assert model(ids).attentions is None and model(ids, use_cache=False).past_key_values is None
    as_tuple = model(ids, labels=ids, return_dict=False)
    assert torch.equal(as_tuple[0], output.loss) and torch.equal(as_tuple[1], output.logits)
    for kept, positions in ((2, slice(5, 7)), (torch.tensor([0, 3]), [0, 3])):
        torch.testing.assert_close(model(ids, logits_to_keep=kept).logits, output.logits[:, positions])


def test_loss_without_heads():
    model, ids = tiny(), random_ids(2, 7)
    labels = ids.masked_fill(torch.arange(7) == 3, -100)
    output = model.train()(ids, labels=labels)
    nlls = [-output.logits[b, t].log_softmax(-1)[ids[b, t + 1]] for b in range(2) for t in (0, 1, 3, 4, 5)]
    # Transformers' loss is in single precision.
    torch.testing.assert_close(output.loss.double(), sum(nlls) / 10, rtol=0, atol=1e-5)
    counted = model(ids, labels=labels, num_items_in_batch=torch.tensor(4)).loss
    torch.testing.assert_close(counted, output.loss * 10 / 4)
    one_gram = tiny(ngram_size=1)
    torch.testing.assert_close(one_gram.train()(ids, labels=labels).loss, sum(nlls) / 10)
    assert torch.equal(one_gram.eval()(ids).logits, model.eval()(ids).logits)


@pytest.mark.parametrize("cache_class", [None, DynamicCache])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing(model, use_reentrant, cache_class):
    ids, cache = random_ids(2, 7), None if cache_class is None else cache_class()
    expected = gradients(model, model.train()(ids, labels=ids).loss)
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    model(ids, labels=ids, past_key_values=cache).loss.backward()
    torch.testing.assert_close({name: weight.grad for name, weight in model.named_parameters()}, expected)


@torch.no_grad()
def test_padding_may_be_anything(model):
    """Padding may overflow in half precision, and must not affect the logits."""
    ids, mask = random_ids(1, 8), torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    embeddings = model.transformer.embeddings(ids)
    embeddings[:, :3] = torch.inf
    logits = model(inputs_embeds=embeddings, attention_mask=mask, ensemble_lambda=0.0).logits[:, 3:]
    torch.testing.assert_close(logits, model(ids[:, 3:], ensemble_lambda=0.0).logits)


def test_bad_input(model):
    ids, length = random_ids(2, MAX_LENGTH + 2), functools.partial(raises_naming, ValueError, "12")
    for inputs in ({}, {"input_ids": ids, "inputs_embeds": model.transformer.embeddings(ids)}):
        with raises_naming(ValueError, "`input_ids`", "`inputs_embeds`"):
            model(**inputs)
    for inputs in ({}, {"use_cache": False}, {"past_key_values": static_cache(model)}):
        with length("`max_position_embeddings`", "14"):
            model(ids, **inputs)
    with length("`max_position_embeddings`", "13"):
        model.generate(ids[:, :8], max_new_tokens=9, **NO_END)
    # The last token is not read, so it needs no position.
    assert model.generate(ids[:, :8], max_new_tokens=5, **NO_END).shape == (2, 13)
    for sizes in ({"hidden_size": 7}, {"attention_rank": 0}, {"vocab_size": 8.0}):
        with raises_naming(ValueError, f"`{next(iter(sizes))}`"):
            TensorizedTransformerConfig(**sizes)
