"""The page of `examples/space` without a server: what it generates and shows, its errors, and its files."""

import html
import re

import app
import generation
import gradio as gr
import pytest
import torch
import yaml

from ngram_wdr_hf.evaluation.models import max_positions
from ngram_wdr_hf.method.ensemble import ensemble_arguments
from tests.examples.values import NEW_TOKENS, PROMPT, WEIGHTS, settings
from tests.support.errors import assert_names, raises_naming
from tests.support.masked import tiny_masked
from tests.support.processes import ROOT
from tests.support.tiny import plain_model, tiny_model, tiny_seq2seq
from tests.support.tokenizers import letter_tokenizer

SPACE = ROOT / "examples" / "space"
HAND_MADE = generation.Way([5, 6], seconds=0.5, tokens_per_forward=1.0)


@pytest.mark.parametrize("always_drafts", [False, True])
@pytest.mark.parametrize("ensemble", [0.0, 0.4, WEIGHTS])
def test_text_and_sources_are_those_of_generate(checkpoint, ensemble, always_drafts):
    found = generation.generate(checkpoint, PROMPT, NEW_TOKENS, ensemble, always_drafts=always_drafts)
    ids = checkpoint.tokenizer(PROMPT, return_tensors="pt").input_ids
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, **ensemble_arguments(ensemble)}
    plain = checkpoint.model.generate(ids, **options, use_mtp=False)[0, ids.shape[1] :].tolist()
    assert found.plain.tokens == found.drafted.tokens == plain
    drafting = {
        "use_mtp": True,
        "return_dict_in_generate": True,
        **({"draft_threshold": 0.0} if always_drafts else {}),
    }
    (trace,) = checkpoint.model.generate(ids, **options, **drafting).speculation.trace
    assert [token.source for token in found.traced.tokens] == [one.source for one in trace]
    assert "".join(token.text for token in found.traced.tokens) == checkpoint.tokenizer.decode(plain)
    assert found.traced.rows[0].prompt == PROMPT
    assert found.plain.tokens_per_forward == 1.0 <= found.drafted.tokens_per_forward
    if always_drafts:
        assert any(one.source > 0 for one in trace) and found.drafted.tokens_per_forward > 1.2


def test_sampling(checkpoint):
    """A seed gives the same text again. A temperature near 0 is greedy, one of 2 is not."""
    greedy = generation.generate(checkpoint, PROMPT, NEW_TOKENS, 0.0)
    first, again = (generation.generate(checkpoint, PROMPT, NEW_TOKENS, 0.0, 2.0, seed=3) for _ in range(2))
    cold = generation.generate(checkpoint, PROMPT, NEW_TOKENS, 0.0, 1e-3)
    assert first.plain.tokens == again.plain.tokens != greedy.plain.tokens
    assert first.drafted.tokens == again.drafted.tokens != greedy.plain.tokens
    assert cold.plain.tokens == cold.drafted.tokens == greedy.plain.tokens
    assert first.is_sampled and "same distribution" in first.speed_table()


@torch.no_grad()
def test_weights_change_the_logits(checkpoint):
    ids = checkpoint.tokenizer(PROMPT, return_tensors="pt").input_ids
    for weights in (WEIGHTS, (0.1, 0.9, 0.0, 0.0)):
        found = generation.generate(checkpoint, PROMPT, 1, weights)
        logits = checkpoint.model(ids, ensemble_weights=weights).logits[0, -1]
        assert found.plain.tokens == [int(logits.argmax())]


def test_the_button_passes_what_the_components_say(checkpoint, monkeypatch):
    calls, generate = [], generation.generate

    def record(*arguments):
        calls.append(arguments[2:5] + arguments[6:])
        return generate(*arguments)

    monkeypatch.setattr(app, "generate", record)
    respond = app.answer(checkpoint)
    text, speed = respond(*settings())
    respond(*settings(choice=app.LAMBDA, decoding=app.SAMPLING, always_drafts=False))
    respond(*settings(choice=app.NONE, max_new_tokens=3))
    assert calls == [
        (NEW_TOKENS, WEIGHTS, None, True),
        (NEW_TOKENS, 0.3, 0.8, False),
        (3, 0.0, None, True),
    ]
    assert 'class="token head"' in text and html.escape(PROMPT) in text
    assert re.search(r"\| tokens per second \| [\d.]+ \| [\d.]+ \|", speed) and "Both texts are the same" in speed


@pytest.mark.parametrize(
    ("fields", "choice", "shown"),
    [
        ({"ensemble_weights": [2.25, -0.75]}, app.WEIGHTS, {"w0, the model": 2.25, "w1, head 1": -0.75}),
        ({"ensemble_lambda": 0.45}, app.LAMBDA, {"λ, the share of the heads": 0.45}),
        ({}, app.NONE, {}),
    ],
)
def test_sliders_begin_with_the_ensemble_of_the_checkpoint(tmp_path, fields, choice, shown):
    tiny_model(ngram_size=2, **fields).save_pretrained(tmp_path)
    letter_tokenizer().save_pretrained(tmp_path)
    components = [one["props"] for one in app.build(str(tmp_path)).config["components"]]
    sliders = {one["label"]: one for one in components if one.get("name") == "slider"}
    assert next(one["value"] for one in components if one.get("label") == "Ensemble") == choice
    of_ensemble = {label: one for label, one in sliders.items() if label.startswith(("w", "λ"))}
    assert {label: one["value"] for label, one in of_ensemble.items() if one["visible"]} == shown
    assert len(of_ensemble) == 3
    assert all(one["minimum"] <= one["value"] <= one["maximum"] for one in sliders.values())
    assert sliders["New tokens, at most"]["maximum"] == max_positions(tiny_model()) - 1


def test_the_generation_config_comes_before_the_configuration():
    model = tiny_model(ensemble_lambda=0.2)
    checkpoint = generation.Checkpoint("model", model, letter_tokenizer())
    assert checkpoint.ensemble == 0.2
    model.generation_config.ensemble_weights = WEIGHTS
    assert checkpoint.ensemble == tuple(WEIGHTS) and "weights" in checkpoint.describe()


def test_the_text_ends_with_the_context(checkpoint):
    found = generation.generate(checkpoint, PROMPT, 60, 0.0)
    assert_names(found.note, "reads 40 tokens", f"prompt has {len(PROMPT)}", f"after {40 - len(PROMPT)} new")
    assert generation.generate(checkpoint, PROMPT, 40 - len(PROMPT), 0.0).note is None


@pytest.mark.parametrize(
    ("plain", "drafted", "is_sampled", "words"),
    [
        (HAND_MADE, HAND_MADE._replace(seconds=0.2), False, ["2.50 times as fast", "the same, token for token"]),
        (HAND_MADE, HAND_MADE._replace(seconds=1.0), False, ["slower here: 0.50 times", "small models"]),
        (HAND_MADE, HAND_MADE._replace(tokens=[5, 7]), False, ["1.00 times as fast", "texts differ"]),
        (HAND_MADE, HAND_MADE._replace(tokens=[5]), True, ["slower here: 0.50", "differ by chance"]),
    ],
)
def test_speed_in_words(plain, drafted, is_sampled, words):
    found = generation.Generation(None, plain, drafted, is_sampled, None)
    assert_names(found.speed_table().splitlines()[-1], *words)
    assert f"| tokens per second | 4.0 | {len(drafted.tokens) / drafted.seconds:.1f} |" in found.speed_table()


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"prompt": "a" * 40}, ["40 tokens", "at most 39", "shorter"]),
        ({"prompt": "é"}, ["no tokens"]),
        ({"w1": None}, ["slider", "empty"]),
        ({"ensemble_lambda": None}, ["slider", "empty"]),
        ({"choice": app.LAMBDA, "ensemble_lambda": 2.0}, ["`ensemble_lambda`", "0 to 1"]),
    ],
)
def test_bad_input(checkpoint, changed, names):
    with pytest.raises(gr.Error) as caught:
        app.answer(checkpoint)(*settings(**changed))
    assert_names(caught.value.message, *names)
    assert not caught.value.print_exception


def test_empty_prompt(checkpoint):
    """The text begins with the end token of the text before, if there is one."""
    found = generation.generate(checkpoint, "", 4, 0.0)
    assert found.traced.rows[0].prompt == "<eos>" and found.plain.tokens
    tokenizer = letter_tokenizer()
    tokenizer.eos_token = None
    without = generation.Checkpoint(checkpoint.name, checkpoint.model, tokenizer)
    with raises_naming(ValueError, "prompt is empty", "type a prompt"):
        generation.generate(without, "", 4, 0.0)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: tiny_seq2seq("marian"), ["wdr_ngram_marian", "causal language models"]),
        (lambda: tiny_masked("bert"), ["wdr_ngram_bert", "causal language models"]),
        (plain_model, ["has no heads"]),
        (lambda: tiny_model(ngram_size=1), ["has no heads"]),
        (None, ["config.json"]),
    ],
    ids=["encoder-decoder", "masked", "plain", "N=1", "no model"],
)
def test_checkpoints_that_cannot_be_shown(make, names, tmp_path, capsys):
    """The page has the reason instead of the components."""
    letter_tokenizer().save_pretrained(tmp_path)
    if make is not None:
        make().save_pretrained(tmp_path)
    with raises_naming(ValueError, str(tmp_path), *names) as caught:
        generation.load(str(tmp_path))
    components = app.build(str(tmp_path)).config["components"]
    assert {one["type"] for one in components} == {"markdown"}
    assert str(caught.value) in components[-1]["props"]["value"] and str(caught.value) in capsys.readouterr().err


def test_missing_folder_and_tokenizer(tmp_path):
    with raises_naming(ValueError, "gone", "existing folder"):
        generation.load(str(tmp_path / "gone"))
    tiny_model().save_pretrained(tmp_path)
    with raises_naming(ValueError, str(tmp_path), "tokenizer"):
        generation.load(str(tmp_path))


def test_model_of_the_command_line_and_of_the_space(monkeypatch):
    opened = []

    class Page:
        def __init__(self, name):
            opened.append(name)

        def launch(self, **options):
            assert options["ssr_mode"] is False

    monkeypatch.setattr(app, "build", Page)
    monkeypatch.delenv(app.MODEL_VARIABLE, raising=False)
    app.main([])
    app.main(["runs/clm"])
    monkeypatch.setenv(app.MODEL_VARIABLE, "me/my-model")
    app.main([])
    assert opened == [str(SPACE / "model"), "runs/clm", "me/my-model"]


def test_files_of_the_space():
    """The header and the requirements have the versions that the tests run with."""
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    header = yaml.safe_load((SPACE / "README.md").read_text(encoding="utf-8").split("---\n")[1])
    assert (header["sdk"], header["sdk_version"], header["license"]) == ("gradio", pins["gradio"], "apache-2.0")
    assert (SPACE / header["app_file"]).is_file() and header["python_version"] == "3.11"
    lines = (SPACE / "requirements.txt").read_text().splitlines()
    required = dict(line.split("==") for line in lines if not line.startswith(("#", "--")))
    assert required == {name: pins[name] for name in ("datasets", "matplotlib", "torch", "transformers")}
