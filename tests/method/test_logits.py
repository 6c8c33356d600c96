"""Scaled and soft-capped logits: the layer, its chunked losses, and models with such logits."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from transformers.models.cohere import CohereConfig, CohereForCausalLM
from transformers.models.falcon_h1 import FalconH1Config
from transformers.models.gemma2 import Gemma2Config, Gemma2ForCausalLM
from transformers.models.granite import GraniteConfig, GraniteForCausalLM
from transformers.models.recurrent_gemma import RecurrentGemmaConfig
from transformers.models.t5gemma import T5GemmaConfig, T5GemmaForConditionalGeneration, T5GemmaModuleConfig

from ngram_wdr_hf import WDRNgramConfig, with_ngram_heads
from ngram_wdr_hf.backbones import ngram_class
from ngram_wdr_hf.method import loss as loss_module
from ngram_wdr_hf.method.heads import NgramPredictions
from ngram_wdr_hf.method.logits import LogitLayer, LogitShape
from ngram_wdr_hf.method.loss import grid_nll, mean_nll, ngram_loss
from tests.support import reference
from tests.support.errors import raises_naming
from tests.support.tiny import VOCAB_SIZE, random_ids
from tests.support.training import gradients

WIDTH, NUM_TOKENS = 6, 11
SHAPES = {
    "plain": LogitShape(),
    "multiplier": LogitShape(multiplier=0.4),
    "divisor": LogitShape(divisor=2.5),
    "cap": LogitShape(soft_cap=3.0),
    "all": LogitShape(1.7, 1.3, 2.0),
}
LAMBDAS = [0.0, 0.3, 1.0]


@pytest.fixture(params=SHAPES)
def shape(request):
    return SHAPES[request.param]


@pytest.fixture(params=[True, False], ids=["bias", "no bias"])
def tensors(request) -> list[torch.Tensor | None]:
    """Rows of three depths, output embedding and bias."""
    sizes = [(2, 5, WIDTH), (2, 4, WIDTH), (2, 3, WIDTH), (NUM_TOKENS, WIDTH), (NUM_TOKENS,)]
    leaves = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]
    return leaves if request.param else [*leaves[:-1], None]


def random_targets(*lengths: int) -> list[torch.Tensor]:
    """Return targets with one -100 per depth, and a batch row without targets at the last depth."""
    targets = [torch.randint(0, NUM_TOKENS, (2, length)) for length in lengths]
    for n, target in enumerate(targets):
        target[0, n] = -100
    targets[-1][1] = -100
    return targets


def logits_by_definition(rows, weight, bias, shape) -> torch.Tensor:
    """Return the logits by their definition."""
    logits = torch.einsum("...d,vd->...v", rows, weight)
    logits = (logits if bias is None else logits + bias) * shape.multiplier / shape.divisor
    return logits if shape.soft_cap is None else shape.soft_cap * torch.tanh(logits / shape.soft_cap)


def loss_by_definition(rows, targets, weight, bias, shape, smoothing=0.0, count=None):
    """Return the loss and the mean NLL per depth, computed row by row."""
    sums, nlls, counts = [], [], []
    for prediction, target in zip(rows, targets, strict=True):
        log_probabilities = logits_by_definition(prediction, weight, bias, shape).log_softmax(-1)
        kept = [(b, t) for b in range(target.shape[0]) for t in range(target.shape[1]) if target[b, t] != -100]
        nll = -sum((log_probabilities[b, t, target[b, t]] for b, t in kept), start=torch.zeros(()))
        even = -sum((log_probabilities[b, t].mean() for b, t in kept), start=torch.zeros(()))
        sums.append((1 - smoothing) * nll + smoothing * even)
        nlls.append(nll.detach() / max(len(kept), 1))
        counts.append(len(kept))
    loss = sums[0] if len(sums) == 1 else sums[0] / 2 + sum(sums[1:]) / (2 * len(sums[1:]))
    return loss / max(counts[0] if count is None else count, 1), torch.stack(nlls).double()


def assert_same_gradients(loss, expected, inputs) -> None:
    inputs = [tensor for tensor in inputs if tensor is not None]
    for actual, wanted in zip(torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, inputs), strict=True):
        assert wanted.any()
        torch.testing.assert_close(actual, wanted)


def test_shape_of_a_configuration():
    side = T5GemmaModuleConfig(final_logit_softcapping=7.0)
    cases = [
        (WDRNgramConfig(), LogitShape()),
        (CohereConfig(logit_scale=0.25), LogitShape(multiplier=0.25)),
        (FalconH1Config(lm_head_multiplier=0.5), LogitShape(multiplier=0.5)),
        (GraniteConfig(logits_scaling=8.0), LogitShape(divisor=8.0)),
        (Gemma2Config(final_logit_softcapping=5.0), LogitShape(soft_cap=5.0)),
        (Gemma2Config(final_logit_softcapping=None), LogitShape()),
        (RecurrentGemmaConfig(logits_soft_cap=6.0), LogitShape(soft_cap=6.0)),
        (T5GemmaConfig(encoder=T5GemmaModuleConfig(), decoder=side), LogitShape(soft_cap=7.0)),
    ]
    for config, shape in cases:
        assert LogitShape.of(config) == shape


def test_shape_and_layer(shape, tensors):
    rows, weight, bias = tensors[0], *tensors[-2:]
    layer = LogitLayer(weight, bias, shape)
    expected = logits_by_definition(rows, weight, bias, shape)
    torch.testing.assert_close(layer(rows), expected)
    torch.testing.assert_close(shape.cap(F.linear(layer.scaled(rows), weight, layer.scaled_bias)), expected)
    torch.testing.assert_close(shape.scale, shape.multiplier / shape.divisor)
    tokens = torch.tensor([7, 0, 3])
    torch.testing.assert_close(layer.select(tokens)(rows), expected[..., tokens])
    if shape.soft_cap is not None:
        assert layer(1000 * rows).abs().max() <= shape.soft_cap
    if shape == LogitShape():
        assert shape(rows) is rows and layer.scaled(rows) is rows and layer.scaled_bias is bias


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("num_heads", [1, 3])
def test_loss_and_gradients(shape, tensors, num_heads, smoothing):
    rows, (weight, bias) = tensors[:num_heads], tensors[-2:]
    targets = random_targets(5, 4, 3)[:num_heads]
    for count in (None, 23, torch.tensor(4)):
        loss, nlls = ngram_loss(NgramPredictions(rows, targets), LogitLayer(weight, bias, shape), smoothing, count)
        expected, expected_nlls = loss_by_definition(rows, targets, weight, bias, shape, smoothing, count)
        torch.testing.assert_close(loss, expected, check_dtype=False)
        torch.testing.assert_close(nlls, expected_nlls)
        assert not nlls.requires_grad
        assert_same_gradients(3 * loss, 3 * expected, [*rows, weight, bias])


@pytest.mark.parametrize(
    "limit", [{"LARGEST_CHUNK": 1}, {"LARGEST_CHUNK": 3, "CACHED_TOKENS": 3}, {"CHUNK_ELEMENTS": 2 * NUM_TOKENS + 1}]
)
def test_chunks_do_not_matter(monkeypatch, shape, tensors, limit):
    rows, (weight, bias), targets = tensors[:3], tensors[-2:], random_targets(5, 4, 3)
    unchunked, unchunked_nlls = ngram_loss(NgramPredictions(rows, targets), LogitLayer(weight, bias, shape), 0.2)
    for name, value in limit.items():
        monkeypatch.setattr(loss_module, name, value)
    assert loss_module.chunk_rows(torch.empty(NUM_TOKENS, 1)) < 4
    loss, nlls = ngram_loss(NgramPredictions(rows, targets), LogitLayer(weight, bias, shape), 0.2)
    torch.testing.assert_close(loss, unchunked)
    torch.testing.assert_close(nlls, unchunked_nlls)
    assert_same_gradients(loss, unchunked, [*rows, weight, bias])


def test_improbable_targets():
    """The probability of a target may be too small for float32."""
    rows = [(300 * torch.randn(1, 8, WIDTH)).requires_grad_()]
    weight = torch.randn(NUM_TOKENS, WIDTH, requires_grad=True)
    targets = [(rows[0] @ weight.T).argmin(-1)]
    loss, nlls = ngram_loss(NgramPredictions(rows, targets), LogitLayer(weight))
    precise = [tensor.detach().double().requires_grad_() for tensor in (rows[0], weight)]
    expected = F.cross_entropy((precise[0] @ precise[1].T)[0], targets[0][0])
    assert expected > 200 and nlls.item() == loss.item()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0)
    gradients, wanted = torch.autograd.grad(loss, [rows[0], weight]), torch.autograd.grad(expected, precise)
    for gradient, precise_gradient in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient.double(), precise_gradient, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rows_per_head", [5, 0])
def test_no_targets(shape, tensors, rows_per_head):
    """Without targets, or without rows, the loss and all gradients are 0."""
    rows, (weight, bias) = [row[:, :rows_per_head] for row in tensors[:3]], tensors[-2:]
    targets = [torch.full(row.shape[:2], -100) for row in rows]
    loss, nlls = ngram_loss(NgramPredictions(rows, targets), LogitLayer(weight, bias, shape), 0.2)
    assert loss.item() == 0.0 and not nlls.any()
    for grad in torch.autograd.grad(loss, [tensor for tensor in tensors if tensor is not None]):
        assert not grad.any() and grad.isfinite().all()


def test_mean_nll(shape, tensors):
    rows, (weight, bias), targets = tensors[:3], tensors[-2:], random_targets(5, 4, 3)
    layer = LogitLayer(weight, bias, shape)
    nlls = mean_nll(NgramPredictions(rows, targets), layer)
    torch.testing.assert_close(nlls, loss_by_definition(rows, targets, weight, bias, shape)[1])
    assert not nlls.requires_grad and mean_nll(NgramPredictions([], []), layer).shape == (0,)


def test_grid_nll(monkeypatch, shape, tensors):
    monkeypatch.setattr(loss_module, "CACHED_ELEMENTS", 1)
    main, past = (torch.randn(3, 50, WIDTH, dtype=torch.float64) for _ in range(2))
    targets = torch.randint(0, NUM_TOKENS, (3, 50))
    targets[1, 3:9] = -100
    weight, bias = tensors[-2:]
    # One head, so that its prediction is the mean of past predictions.
    runs = torch.full_like(targets, 2)
    predictions = NgramPredictions([main, past], [targets, targets], runs)
    sums = grid_nll(predictions, LAMBDAS, LogitLayer(weight, bias, shape))
    mixes = [(1 - value) * main + value * past for value in LAMBDAS]
    logits = [logits_by_definition(mix, weight, bias, shape).flatten(0, 1) for mix in mixes]
    expected = torch.stack([F.cross_entropy(values, targets.flatten(), reduction="sum") for values in logits])
    torch.testing.assert_close(sums, expected)
    assert not sums.requires_grad and (expected.diff().abs() > 1).all()
    predictions = NgramPredictions([main, past], [torch.full_like(targets, -100)] * 2, runs)
    empty_sums = grid_nll(predictions, LAMBDAS, LogitLayer(weight, bias, shape))
    assert empty_sums.tolist() == [0.0] * 3


@pytest.mark.parametrize("frozen", [{0, 1, 2}, {3}, {4}, {1, 4}, {0, 1, 2, 3}, {0, 1, 2, 3, 4}], ids=str)
@pytest.mark.parametrize("name", ["divisor", "all"])
def test_no_gradients_of_frozen_tensors(monkeypatch, name, frozen):
    """No gradients are computed for frozen tensors."""
    tensors = [torch.randn(8, WIDTH) for _ in range(3)] + [torch.randn(NUM_TOKENS, WIDTH), torch.randn(NUM_TOKENS)]
    targets = [torch.randint(0, NUM_TOKENS, (8,)) for _ in range(3)]

    def loss_of(leaves):
        return ngram_loss(NgramPredictions(leaves[:3], targets), LogitLayer(*leaves[3:], SHAPES[name]), 0.1)[0]

    all_leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    expected = torch.autograd.grad(loss_of(all_leaves), all_leaves)
    allocated = set()

    def spy(allocate):
        def record(tensor, **kwargs):
            allocated.add(tensor.shape)
            return allocate(tensor, **kwargs)

        return record

    leaves = [tensor.clone().requires_grad_(i not in frozen) for i, tensor in enumerate(tensors)]
    with monkeypatch.context() as patch:
        for function in ("empty_like", "zeros_like"):
            patch.setattr(torch, function, spy(getattr(torch, function)))
        loss = loss_of(leaves)
    assert loss.requires_grad == (len(frozen) < 5)
    # The gradients of the bias and the output embedding are identified by their shapes.
    assert (torch.Size([NUM_TOKENS]) in allocated) == (4 not in frozen)
    assert (torch.Size([NUM_TOKENS, WIDTH]) in allocated) == (3 not in frozen)
    if loss.requires_grad:
        loss.backward()
    for i, leaf in enumerate(leaves):
        assert (leaf.grad is None) == (i in frozen)
        if leaf.grad is not None:
            torch.testing.assert_close(leaf.grad, expected[i])


def check_half_precision(shape: LogitShape, dtype: torch.dtype) -> None:
    """The sum of the rows is more than float16 can hold, and their gradients are less."""
    rows = [torch.randn(4000, 16, requires_grad=True) for _ in range(2)]
    targets = [torch.randint(0, VOCAB_SIZE, (4000,)) for _ in range(2)]
    weight, bias = (5 * torch.randn(VOCAB_SIZE, 16)).requires_grad_(), torch.randn(VOCAB_SIZE, requires_grad=True)
    inputs = [*rows, weight, bias]
    full, full_nlls = ngram_loss(NgramPredictions(rows, targets), LogitLayer(weight, bias, shape), 0.1)
    halves = [tensor.to(dtype) for tensor in inputs]
    half, half_nlls = ngram_loss(NgramPredictions(halves[:2], targets), LogitLayer(*halves[2:], shape), 0.1)
    assert half.dtype == half_nlls.dtype == torch.float32 and full * 4000 > 2**15
    torch.testing.assert_close(half, full, rtol=3e-3, atol=0)
    torch.testing.assert_close(half_nlls, full_nlls, rtol=3e-3, atol=0)
    # Like gradient scaling.
    scale = 2**10 if dtype == torch.float16 else 1
    actual, expected = torch.autograd.grad(scale * half, inputs), torch.autograd.grad(scale * full, inputs)
    tolerance = 10 * torch.finfo(dtype).eps
    for grad, wanted in zip(actual, expected, strict=True):
        assert grad.isfinite().all()
        assert (grad - wanted).norm() < tolerance * wanted.norm()


def check_autocast(shape: LogitShape) -> None:
    sizes = [(40, WIDTH), (40, WIDTH), (NUM_TOKENS, WIDTH), (NUM_TOKENS,)]
    inputs = [torch.randn(size, requires_grad=True) for size in sizes]
    targets = [torch.randint(0, NUM_TOKENS, (40,)) for _ in range(2)]
    full, _ = ngram_loss(NgramPredictions(inputs[:2], targets), LogitLayer(*inputs[2:], shape), 0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half, nlls = ngram_loss(NgramPredictions(inputs[:2], targets), LogitLayer(*inputs[2:], shape), 0.1)
    assert half.dtype == nlls.dtype == torch.float32
    torch.testing.assert_close(half, full, rtol=1e-2, atol=0)
    for grad, wanted in zip(torch.autograd.grad(half, inputs), torch.autograd.grad(full, inputs), strict=True):
        assert grad.dtype == torch.float32 and (grad - wanted).norm() < 3e-2 * wanted.norm()


@pytest.mark.parametrize("emulates", [True, False])
def test_half_precision_and_autocast(monkeypatch, emulates):
    """Matrix products are in float32 on a CPU, and in half precision on an accelerator."""
    if not emulates:
        monkeypatch.setattr(loss_module, "product_dtype", lambda weight: weight.dtype)
    for shape in SHAPES.values():
        check_autocast(shape)
    for shape in (LogitShape(), LogitShape(1.7, 1.3, 30.0)):
        check_half_precision(shape, torch.bfloat16)
        check_half_precision(shape, torch.float16)


DECODER_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 1,
}
# The stock class, its configuration class, the field that shapes its logits, and the resulting shape.
MODELS = {
    "gemma2": (Gemma2ForCausalLM, Gemma2Config, {"final_logit_softcapping": 2.0}, LogitShape(soft_cap=2.0)),
    "cohere": (CohereForCausalLM, CohereConfig, {"logit_scale": 0.3}, LogitShape(multiplier=0.3)),
    "granite": (GraniteForCausalLM, GraniteConfig, {"logits_scaling": 2.5}, LogitShape(divisor=2.5)),
}


def shaped_model(name: str, dtype: torch.dtype = torch.float64, **fields):
    """Return a stock model with new heads, large enough to change its predictions."""
    model_class, config_class, shape_fields, _ = MODELS[name]
    sizes = {**DECODER_SIZES, **{key: fields.pop(key) for key in DECODER_SIZES if key in fields}}
    torch.manual_seed(0)
    model = with_ngram_heads(model_class(config_class(**sizes, **shape_fields)).to(dtype), **fields)
    for head in model.ngram_heads:
        for parameter in head.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def reference_model(model, shape: LogitShape) -> SimpleNamespace:
    """Return what the reference_model reference needs: the stock base model, and logits by their definition."""
    weight = model.get_output_embeddings().weight

    def layer(hidden):
        return logits_by_definition(hidden, weight, None, shape)

    layer.weight = weight
    fields = ("ngram_size", "ngram_target", "label_smoothing", "ngram_head_reads")
    fields += ("head_gradient", "head_loss_weight", "head_loss_decay", "head_loss_tokens")
    return SimpleNamespace(
        base_model=model.base_model,
        get_output_embeddings=lambda: layer,
        ngram_heads=model.ngram_heads,
        config=SimpleNamespace(**{field: getattr(model.config, field) for field in fields}),
    )


def padded_batch() -> dict[str, torch.Tensor]:
    # Right padding: Gemma 2 in float64 gives NaN for tokens without anything to attend to.
    mask = torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    ids = torch.where(mask == 1, random_ids(2, 9), 1)
    labels = ids.masked_fill(mask == 0, -100)
    labels[0, 4] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@pytest.mark.parametrize("target", ["wdr", "simple"])
@pytest.mark.parametrize("name", MODELS)
def test_training_of_a_model(monkeypatch, name, target):
    monkeypatch.setattr(loss_module, "LARGEST_CHUNK", 5)
    model, batch = shaped_model(name, ngram_target=target, label_smoothing=0.1).train(), padded_batch()
    output = model(**batch)
    expected, nlls = reference.training_loss(reference_model(model, MODELS[name][-1]), **batch)
    torch.testing.assert_close(output.loss, expected)
    torch.testing.assert_close(output.head_losses, nlls)
    actual, wanted = gradients(model, output.loss), gradients(model, expected)
    for parameter in wanted:
        torch.testing.assert_close(actual[parameter], wanted[parameter])
    # The shape makes a difference.
    assert abs(output.loss - reference.training_loss(reference_model(model, LogitShape()), **batch)[0]) > 0.1


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_evaluation_of_a_model(name):
    model, batch, shape = shaped_model(name), padded_batch(), MODELS[name][-1]
    labels = batch.pop("labels")
    losses = []
    for value in LAMBDAS:
        logits = reference.ensembled_logits(reference_model(model, shape), ensemble_lambda=value, **batch)
        output = model(**batch, labels=labels, ensemble_lambda=value)
        torch.testing.assert_close(output.logits, logits)
        losses.append(reference.next_word_nll(logits, labels, batch["attention_mask"]))
        torch.testing.assert_close(output.loss, losses[-1])
    grid = model(**batch, labels=labels, ensemble_lambda=LAMBDAS)
    torch.testing.assert_close(grid.loss, torch.stack(losses))
    nlls = reference.training_loss(reference_model(model, shape), labels=labels, **batch)[1]
    torch.testing.assert_close(grid.head_losses, nlls)
    # With λ = 0, the logits are bit-identical to the stock class.
    stock = MODELS[name][0].forward(model, **batch).logits
    assert torch.equal(model(**batch, ensemble_lambda=0.0).logits, stock)


def tiny_t5gemma_config(config_class: type = T5GemmaConfig, **fields):
    side = T5GemmaModuleConfig(**DECODER_SIZES, final_logit_softcapping=2.0)
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
    return config_class(encoder=side, decoder=side, vocab_size=VOCAB_SIZE, dropout_rate=0.0, **ends, **fields)


def test_no_bag_of_words_loss_of_capped_logits():
    model_class = ngram_class(T5GemmaForConditionalGeneration)
    ids, config = random_ids(2, 6), tiny_t5gemma_config(model_class.config_class, bow_loss_weight=0.5)
    model = model_class(config).train()
    with raises_naming(ValueError, "`bow_loss_weight`", model_class.__name__):
        model(input_ids=ids, labels=ids)
    model.config.bow_loss_weight = 0.0
    assert model(input_ids=ids, labels=ids).loss.isfinite()


def test_heads_on_a_capped_encoder_decoder_model():
    plain, ids = T5GemmaForConditionalGeneration(tiny_t5gemma_config()).double().eval(), random_ids(2, 6)
    model = with_ngram_heads(plain).eval()
    inputs = {"input_ids": ids, "decoder_input_ids": ids, "labels": ids.flip(1)}
    expected, output = plain(**inputs), model(**inputs)
    assert torch.equal(output.logits, expected.logits)
    torch.testing.assert_close(output.loss, expected.loss, check_dtype=False)
    torch.testing.assert_close(model.train()(**inputs).head_losses[0], output.loss.detach())
