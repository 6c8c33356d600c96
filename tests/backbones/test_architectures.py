"""
The tables in docs/backbones.md, row by row: supported features work, unsupported ones raise an error. All of them work
with the backbones that other tests are about.
"""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from ngram_wdr_hf import with_ngram_heads
from tests.support.architectures import ARCHITECTURES, REFUSED
from tests.support.backbones import BACKBONES, plain_backbone
from tests.support.errors import raises_naming
from tests.support.processes import ROOT
from tests.support.tiny import left_pad, random_ids

LENGTH = 5
DOCUMENT = (ROOT / "docs" / "backbones.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """Return the rows of the table under a heading, without the header."""
    section = DOCUMENT.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[2:]]


SUPPORTED = {name: cells for name, *cells in table("What works")}
REASONS = dict(table("What is refused"))


def test_the_tables_are_complete():
    assert SUPPORTED.keys() == ARCHITECTURES.keys() and len(SUPPORTED) >= 25
    assert REASONS.keys() == REFUSED.keys()


@pytest.fixture(scope="module", params=[*ARCHITECTURES, *(name for name in BACKBONES if name != "reformer")])
def models(request):
    """The stock model, the same model with large random heads, and its row of the table."""
    if request.param in BACKBONES:
        stock = plain_backbone(request.param).to(BACKBONES[request.param].padded_dtype)
        stock.generation_config.eos_token_id = None
    else:
        stock = ARCHITECTURES[request.param].build()
    model = with_ngram_heads(stock)
    for parameter in model.ngram_heads.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    names = ("trains", "ensemble", "padding", "drafts", "checkpointing")
    return stock, model, dict(zip(names, SUPPORTED.get(request.param, ["yes"] * 5), strict=True))


def generate(model, ids, mask=None, ensemble_lambda=0.4, **options):
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids) if mask is None else mask,
        ensemble_lambda=ensemble_lambda,
        max_new_tokens=LENGTH,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
        **options,
    )
    return output.sequences, torch.stack(output.logits)


def assert_close(actual, expected):
    tolerance = 1e-6 if expected.dtype == torch.float64 else 2e-4
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=tolerance * max(1.0, float(expected.abs().max())))


def gradients(model, ids):
    model.zero_grad()
    output = model(input_ids=ids, labels=ids, use_cache=False)
    output.loss.backward()
    return output, {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_training(models):
    stock, model, support = models
    ids = random_ids(2, 8)
    stock.train(), model.train()
    expected, trunk = gradients(stock, ids)
    output, actual = gradients(model, ids)
    torch.testing.assert_close(output.head_losses[0], expected.loss.detach(), check_dtype=False)
    first = ids.shape[1] - (not model.config.is_encoder_decoder)
    weights = torch.tensor([1 / 2, *(1 / 6 * (first - n) / first for n in (1, 2, 3))], dtype=output.loss.dtype)
    torch.testing.assert_close(output.loss.detach(), (weights * output.head_losses).sum())
    assert actual.keys() == trunk.keys() | {name for name, _ in model.named_parameters() if "ngram_heads" in name}
    assert all(grad.abs().sum() > 0 for name, grad in actual.items() if "ngram_heads" in name)

    if support["checkpointing"] == "yes":
        actual = {name: grad.clone() for name, grad in actual.items()}
        model.gradient_checkpointing_enable()
        _, again = gradients(model, ids)
        model.gradient_checkpointing_disable()
        for name, grad in actual.items():
            torch.testing.assert_close(again[name], grad, rtol=1e-4, atol=1e-5)
    else:
        with pytest.raises(ValueError, match=r"(gradient|activation) checkpointing"):
            model.gradient_checkpointing_enable()
    model.zero_grad()
    stock.eval(), model.eval()


def test_ensemble(models):
    """The ensemble gives the same logits with and without a cache, in beam search and with padding."""
    stock, model, support = models
    ids = random_ids(2, 6)
    if support["ensemble"] == "no":
        with raises_naming(ValueError, type(model).__name__, "use_cache"):
            generate(model, ids)
        assert generate(model, ids, use_cache=False)[0].shape == generate(model, ids, ensemble_lambda=0.0)[0].shape
        return
    sequences, logits = generate(model, ids)
    again, uncached = generate(model, ids, use_cache=False)
    assert torch.equal(sequences, again)
    assert_close(logits, uncached)
    assert not torch.allclose(logits[3], generate(model, ids, ensemble_lambda=0.0)[1][3])
    beams, _ = generate(model, ids, num_beams=3)
    assert torch.equal(beams, generate(model, ids, num_beams=3, use_cache=False)[0])

    rows = [random_ids(1, length, seed=length)[0] for length in (5, 3, 7)]
    if model.config.is_encoder_decoder:
        # Padded on the right: some encoders count positions from the first column.
        ids, mask = (tensor.flip(1) for tensor in left_pad([row.flip(0) for row in rows]))
    else:
        ids, mask = left_pad(rows)
    if support["padding"] == "yes":
        _, logits = generate(model, ids, mask)
        for i, row in enumerate(rows):
            assert_close(logits[:, i : i + 1], generate(model, row[None])[1])
    else:
        logits = stock(ids, attention_mask=mask).logits[:, -1]
        assert not torch.allclose(logits[0], stock(rows[0][None]).logits[0, -1])


def test_drafts(models):
    _, model, support = models
    ids, mask = left_pad([random_ids(1, length, seed=length)[0] for length in (4, 3, 6)])
    if model.config.is_encoder_decoder:
        ids, mask = random_ids(3, 6), None
    drafts = {"use_mtp": True, "draft_threshold": 0.0}
    for ensemble_lambda in (0.0, 0.4) if support["ensemble"] == "yes" else (0.0,):
        plain = {"ensemble_lambda": ensemble_lambda}
        if support["drafts"] == "no":
            with raises_naming(ValueError, "use_mtp"):
                generate(model, ids[-1:], **plain, **drafts)
            continue
        sequences, logits = generate(model, ids[-1:], **plain)
        drafted, drafted_logits = generate(model, ids[-1:], **plain, **drafts)
        assert torch.equal(drafted, sequences)
        assert_close(drafted_logits, logits)
        if support["drafts"] == "one row":
            with raises_naming(ValueError, "use_mtp", type(model).__name__):
                generate(model, ids, mask, **plain, **drafts)
        else:
            assert torch.equal(
                generate(model, ids, mask, **plain, **drafts)[0], generate(model, ids, mask, **plain)[0]
            )


@torch.no_grad()
def test_checkpoint(models, tmp_path):
    stock, model, _ = models
    auto_class = AutoModelForSeq2SeqLM if model.config.is_encoder_decoder else AutoModelForCausalLM
    inputs = {"input_ids": random_ids(2, 8), "use_cache": False}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = random_ids(2, 7, seed=1)
    model.save_pretrained(tmp_path)
    again = auto_class.from_pretrained(tmp_path, dtype=model.dtype)
    assert type(again) is type(model)
    assert_close(again(**inputs, ensemble_lambda=0.4).logits, model(**inputs, ensemble_lambda=0.4).logits)
    trunk = type(stock).from_pretrained(tmp_path, dtype=model.dtype)
    assert_close(trunk(**inputs).logits, stock(**inputs).logits)


@pytest.mark.parametrize("name", REFUSED)
def test_refusal(name):
    with raises_naming(ValueError, name, REASONS[name]):
        with_ngram_heads(REFUSED[name].build())
