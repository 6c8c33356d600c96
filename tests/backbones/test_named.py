"""Every backbone: losses, gradients and logits against the slow reference, N = 1, checkpoints, a Trainer's step."""

import inspect

import pytest
import torch
import transformers
from transformers import DynamicCache, EncoderDecoderCache, GenerationMixin, PreTrainedModel, StaticCache
from transformers.utils.generic import find_labels

import ngram_wdr_hf
from ngram_wdr_hf import with_ngram_heads
from ngram_wdr_hf.modeling.base import OWN_ARGUMENTS
from ngram_wdr_hf.modeling.causal import NgramMixin
from tests.support import reference
from tests.support.backbones import (
    BACKBONES,
    SOURCE,
    assert_close,
    forward_inputs,
    plain_backbone,
    plain_twin,
    reference_inputs,
    tiny_backbone,
)
from tests.support.processes import run_without_package
from tests.support.tiny import T5_SIZES, left_pad, make, random_ids
from tests.support.training import gradients_by_backward

# The second row is shorter, by a multiple of Reformer's chunks.
LEFT_IDS, LEFT_MASK = left_pad([random_ids(1, 12)[0], random_ids(1, 8, seed=1)[0]])
IDS, MASK = LEFT_IDS.flip(1), LEFT_MASK.flip(1)


def labels_of(model: PreTrainedModel) -> torch.LongTensor:
    """Return labels with some positions masked by -100; for an encoder-decoder model, they are not shifted."""
    labels = random_ids(*IDS.shape, seed=2) if model.config.is_encoder_decoder else IDS
    labels = labels.masked_fill(MASK == 0, -100)
    labels[0, 5] = labels[1, 3] = -100
    return labels


def expected_loss(model: PreTrainedModel, labels: torch.LongTensor) -> tuple[torch.Tensor, torch.Tensor]:
    if model.config.is_encoder_decoder:
        return reference.translation_loss(model, SOURCE, IDS, labels, decoder_mask=MASK)
    return reference.training_loss(model, IDS, labels, MASK)


def test_all_named_classes_are_here():
    public = (getattr(ngram_wdr_hf, name) for name in ngram_wdr_hf.__all__)
    named = {value for value in public if isinstance(value, type) and issubclass(value, NgramMixin)}
    assert named <= {backbone.ours for backbone in BACKBONES.values()}


def test_class(name):
    """The arguments are the backbone's, in its order, and then ours."""
    backbone = BACKBONES[name]
    assert backbone.ours.ngram_backbone_class() is backbone.stock
    # Transformers asks this of every class that generates.
    assert GenerationMixin in backbone.ours.__bases__
    ours, stock = (list(inspect.signature(cls.forward).parameters) for cls in (backbone.ours, backbone.stock))
    assert [argument for argument in ours if argument not in OWN_ARGUMENTS] == stock
    assert ours[-4:-1] == list(OWN_ARGUMENTS) and find_labels(backbone.ours) == ["labels"]


@torch.no_grad()
def test_the_reference_is_the_stock_class(name):
    model = tiny_backbone(name)
    stock = plain_twin(name, model)
    hidden = reference.hidden_states(model, **reference_inputs(model, IDS, MASK))
    logits = stock(**forward_inputs(model, IDS, MASK)).logits
    assert_close(reference.logits_of(model, hidden), logits)
    assert torch.equal(model(**forward_inputs(model, IDS, MASK)).logits, logits)
    # A bound on the logits matters.
    model.config.final_logit_softcapping = None
    is_bounded = getattr(stock.config, "final_logit_softcapping", None) is not None
    assert torch.allclose(reference.logits_of(model, hidden), logits, atol=0.5) is not is_bounded


@pytest.mark.parametrize(
    ("size", "target", "label_smoothing"), [(2, "wdr", 0.2), (2, "simple", 0.0), (4, "wdr", 0.0), (4, "simple", 0.2)]
)
def test_training_loss_and_gradients(name, size, target, label_smoothing):
    fields = {"ngram_size": size, "ngram_target": target, "label_smoothing": label_smoothing}
    model = tiny_backbone(name, **fields).train()
    # Padding has labels here; the model must ignore them because of the mask.
    labels = labels_of(model).masked_fill(MASK == 0, 3)
    output = model(**forward_inputs(model, IDS, MASK), labels=labels)
    expected, expected_nlls = expected_loss(model, labels)
    assert output.logits is None
    assert_close(output.loss, expected)
    assert output.head_losses.shape == (size,) and not output.head_losses.requires_grad
    assert_close(output.head_losses, expected_nlls)
    actual, wanted = gradients_by_backward(model, output.loss), gradients_by_backward(model, expected)
    assert all(wanted[f"ngram_heads.{n}.fc_in.weight"].abs().max() > 1e-3 for n in range(size - 1))
    for key, value in wanted.items():
        assert_close(actual[key], value, key)


@pytest.mark.parametrize(("size", "target"), [(2, "simple"), (4, "wdr")])
@torch.no_grad()
def test_evaluation(name, size, target):
    model = tiny_backbone(name, ngram_size=size, ngram_target=target, label_smoothing=0.2)
    labels, inputs = labels_of(model), forward_inputs(model, IDS, MASK)
    nll = reference.translation_nll if model.config.is_encoder_decoder else reference.next_word_nll
    logits = {}
    for value in (0.0, 0.4):
        logits[value] = reference.ensembled_logits(model, ensemble_lambda=value, **reference_inputs(model, IDS, MASK))
        output = model(**inputs, labels=labels, ensemble_lambda=value)
        assert_close(output.logits, logits[value])
        assert_close(model(**inputs, ensemble_lambda=value).logits, logits[value])
        assert_close(output.loss, nll(logits[value], labels, MASK))
        assert_close(output.head_losses, expected_loss(model, labels)[1])
    # The ensemble changes the logits exactly where a head has made an earlier prediction.
    has_past = (MASK.cumsum(1) > 1) & (MASK == 1)
    differences = (logits[0.4] - logits[0.0]).abs().amax(-1)
    assert differences[has_past].min() > 0.01
    assert differences[~has_past].max() < 1e-9


@torch.no_grad()
def test_one_gram_is_the_stock_class(name):
    model = tiny_backbone(name, ngram_size=1, ensemble_lambda=0.4)
    stock = plain_backbone(name) if BACKBONES[name].begins_alike else plain_twin(name, model)
    assert model.state_dict().keys() == stock.state_dict().keys()
    inputs, labels = forward_inputs(model, IDS, MASK), labels_of(model)
    assert torch.equal(model(**inputs).logits, stock(**inputs).logits)
    expected = stock.train()(**inputs, labels=labels).loss.double()
    assert_close(model.train()(**inputs, labels=labels).loss, expected)


@torch.no_grad()
def test_padded_rows_are_rows_alone(name):
    model = tiny_backbone(name, ensemble_lambda=0.4).to(BACKBONES[name].padded_dtype)
    positions = (LEFT_MASK.cumsum(1) - 1).clamp(min=0)
    logits = model(**forward_inputs(model, LEFT_IDS, LEFT_MASK, positions)).logits
    for i, mask in enumerate(LEFT_MASK.bool()):
        inputs = forward_inputs(model, LEFT_IDS[i : i + 1, mask])
        if model.config.is_encoder_decoder:
            inputs["input_ids"] = SOURCE[i : i + 1]
        assert_close(logits[i, mask], model(**inputs).logits[0])
    # Padding that is not known as such matters.
    assert not torch.allclose(model(**forward_inputs(model, LEFT_IDS)).logits[1, -1], logits[1, -1], atol=0.01)


def new_cache(model: PreTrainedModel, kind: str) -> DynamicCache | StaticCache | EncoderDecoderCache | None:
    """Return a cache with room for a few more tokens; `None` if the model creates its own."""
    if kind == "its own":
        return None
    lengths = [15, SOURCE.shape[1]] if model.config.is_encoder_decoder else [15]
    if kind == "static":
        caches = [StaticCache(config=model.config, max_cache_len=length) for length in lengths]
    else:
        caches = [DynamicCache(config=model.config) for _ in lengths]
    return EncoderDecoderCache(*caches) if model.config.is_encoder_decoder else caches[0]


def cached_logits(model: PreTrainedModel, ids: torch.LongTensor, pieces: list[int], kind: str) -> torch.Tensor:
    """Logits of every position, read through a cache in pieces of the given lengths."""
    cache, logits = new_cache(model, kind), []
    for piece in ids.split(pieces, dim=1):
        output = model(**forward_inputs(model, piece), **{model.ngram_cache_name: cache}, use_cache=True)
        cache = output[model.ngram_cache_name]
        logits.append(output.logits)
    return torch.cat(logits, dim=1)


@torch.no_grad()
def test_cached_equals_uncached(name):
    model, ids = tiny_backbone(name, ensemble_lambda=0.4), random_ids(2, 12)
    inputs = forward_inputs(model, ids)
    uncached = model(**inputs, use_cache=False).logits
    assert not torch.allclose(uncached, model(**inputs, use_cache=False, ensemble_lambda=0.0).logits, atol=0.01)
    pieces, kinds = [[12], [1] * 12, [5, 1, 6]], ["dynamic", "static"]
    refusal = BACKBONES[name].refuses.get("caches of Transformers")
    if refusal is not None:
        with pytest.raises(ValueError, match=refusal):
            cached_logits(model, ids, [12], "dynamic")
        pieces, kinds = [[12], [1] * 12, [5, *[1] * 7]], ["its own"]
    for kind in kinds:
        for lengths in pieces:
            assert_close(cached_logits(model, ids, lengths, kind), uncached, f"{kind}, {lengths}")


ELSEWHERE = """
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

folder = sys.argv[1]
logits = {}
for name, inputs in torch.load(f"{folder}/inputs.pt").items():
    config = AutoConfig.from_pretrained(f"{folder}/{name}", trust_remote_code=True)
    auto_class = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    auto_class = AutoModelForMaskedLM if hasattr(config, "wdr_compose") else auto_class
    model = auto_class.from_pretrained(f"{folder}/{name}", trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    with torch.no_grad():
        logits[name] = model(**inputs).logits
torch.save(logits, f"{folder}/logits.pt")
"""


@torch.no_grad()
def test_all_load_where_the_package_is_not_installed(tmp_path):
    inputs, expected = {}, {}
    models = {name: tiny_backbone(name, ensemble_lambda=0.4) for name in BACKBONES}
    models |= {name: make(name).eval() for name in ("bert", "modernbert")}
    on_the_spot = transformers.MT5ForConditionalGeneration(transformers.MT5Config(**T5_SIZES)).double().eval()
    models["mt5"] = with_ngram_heads(on_the_spot, ensemble_lambda=0.4)
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        inputs[name] = forward_inputs(model, IDS, MASK)
        expected[name] = model(**inputs[name]).logits
    torch.save(inputs, tmp_path / "inputs.pt")
    run_without_package(ELSEWHERE, tmp_path, str(tmp_path))
    logits = torch.load(tmp_path / "logits.pt")
    assert logits.keys() == expected.keys()
    for name, value in logits.items():
        assert_close(value, expected[name], name)


def test_gradient_checkpointing(name):
    model, labels = tiny_backbone(name).train(), labels_of(tiny_backbone(name))
    inputs = {**forward_inputs(model, IDS, MASK), "labels": labels}
    expected = gradients_by_backward(model, model(**inputs).loss)
    refusal = BACKBONES[name].refuses.get("gradient checkpointing")
    if refusal is not None:
        with pytest.raises(ValueError, match=refusal):
            model.gradient_checkpointing_enable()
        return
    model.gradient_checkpointing_enable()
    for key, value in gradients_by_backward(model, model(**inputs).loss).items():
        assert_close(value, expected[key], key)
