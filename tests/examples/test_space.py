"""The page of `examples/space`: what it generates and shows, its errors, its files, and requests to its server."""

import copy
import html

import app
import generation
import gradio as gr
import pytest
import yaml
from gradio_client import Client

from ngram_wdr_hf.method.ensemble import ensemble_arguments
from tests.support.errors import assert_names
from tests.support.processes import ROOT
from tests.support.tiny import plain_model, tiny_model, tiny_seq2seq
from tests.support.tokenizers import letter_tokenizer
from tests.support.trained import Language, trained_model

pytestmark = pytest.mark.slow
SPACE = ROOT / "examples" / "space"
WEIGHTS = (0.6, 0.2, 0.1, 0.1)
NEW_TOKENS = 24
PROMPT = letter_tokenizer().decode(Language(seed=13).prompt(8))
HAND_MADE = generation.Way([5, 6], seconds=0.5, tokens_per_forward=1.0)


def settings(prompt: str = PROMPT, **changed) -> list:
    """Return the values of the components, in their order."""
    values = {
        "max_new_tokens": NEW_TOKENS,
        "decoding": app.GREEDY,
        "temperature": 0.8,
        "always_drafts": True,
        "choice": app.WEIGHTS,
        "ensemble_lambda": 0.3,
        **{f"w{depth}": weight for depth, weight in enumerate(WEIGHTS)},
    }
    return [prompt, *{**values, **changed}.values()]


@pytest.fixture(autouse=True)
def one_round(monkeypatch):
    """Speed is not tested."""
    monkeypatch.setattr("generation.MIN_SECONDS", 0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """A trained checkpoint with fitted weights."""
    folder = tmp_path_factory.mktemp("space") / "clm"
    # Other tests use this model, too.
    model = copy.deepcopy(trained_model(4, "wdr"))
    model.config.ensemble_weights = list(WEIGHTS)
    model.save_pretrained(folder)
    letter_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def checkpoint(folder):
    return generation.load(folder)


@pytest.mark.parametrize("always_drafts", [False, True])
@pytest.mark.parametrize("ensemble", [0.0, 0.4, WEIGHTS])
def test_text_and_sources_are_those_of_generate(checkpoint, ensemble, always_drafts):
    found = generation.generate(checkpoint, PROMPT, NEW_TOKENS, ensemble, always_drafts=always_drafts)
    ids = checkpoint.tokenizer(PROMPT, return_tensors="pt").input_ids
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, **ensemble_arguments(ensemble)}
    plain = checkpoint.model.generate(ids, **options, use_mtp=False)[0, ids.shape[1] :].tolist()
    assert found.plain.tokens == found.drafted.tokens == plain
    drafting = {"use_mtp": True, "return_dict_in_generate": True} | ({"draft_threshold": 0.0} if always_drafts else {})
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
    assert calls == [(NEW_TOKENS, WEIGHTS, None, True), (NEW_TOKENS, 0.3, 0.8, False), (3, 0.0, None, True)]
    assert 'class="token head"' in text and html.escape(PROMPT) in text
    assert "| tokens per second | " in speed and "Both texts are the same" in speed


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
    sliders = [one for one in components if one.get("name") == "slider"]
    assert next(one["value"] for one in components if one.get("label") == "Ensemble") == choice
    found = {one["label"]: one["value"] for one in sliders if one["visible"] and one["label"][0] in "wλ"}
    assert found == shown and all(one["minimum"] <= one["value"] <= one["maximum"] for one in sliders)


def test_speed_in_words():
    fast = generation.Generation(None, HAND_MADE, HAND_MADE._replace(seconds=0.2), False).speed_table()
    assert_names(fast.splitlines()[-1], "2.50 times as fast", "the same, token for token")
    assert "| tokens per second | 4.0 | 10.0 |" in fast
    slow = generation.Generation(None, HAND_MADE, HAND_MADE._replace(tokens=[5]), True).speed_table()
    assert_names(slow.splitlines()[-1], "slower here: 0.50 times", "differ by chance")


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"prompt": "a" * 40}, ["40 tokens", "at most 39", "shorter"]),
        ({"w1": None}, ["slider", "empty"]),
        ({"choice": app.LAMBDA, "ensemble_lambda": 2.0}, ["`ensemble_lambda`", "0 to 1"]),
    ],
)
def test_bad_input(checkpoint, changed, names):
    with pytest.raises(gr.Error) as caught:
        app.answer(checkpoint)(*settings(**changed))
    assert_names(caught.value.message, *names)


@pytest.mark.parametrize(
    ("make", "name"),
    [(lambda: tiny_seq2seq("marian"), "with heads"), (plain_model, "with heads"), (None, "config.json")],
    ids=["encoder-decoder", "plain", "no model"],
)
def test_checkpoints_that_cannot_be_shown(make, name, tmp_path):
    """The page has the reason instead of the components."""
    letter_tokenizer().save_pretrained(tmp_path)
    if make is not None:
        make().save_pretrained(tmp_path)
    components = app.build(str(tmp_path)).config["components"]
    assert {one["type"] for one in components} == {"markdown"} and name in components[-1]["props"]["value"]


def test_files_of_the_space():
    """The header and the requirements have the versions that the tests run with."""
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    header = yaml.safe_load((SPACE / "README.md").read_text(encoding="utf-8").split("---\n")[1])
    assert (header["sdk"], header["sdk_version"], header["license"]) == ("gradio", pins["gradio"], "apache-2.0")
    assert (SPACE / header["app_file"]).is_file() and header["python_version"] == "3.11"
    lines = (SPACE / "requirements.txt").read_text().splitlines()
    required = dict(line.split("==") for line in lines if not line.startswith(("#", "--")))
    assert required == {name: pins[name] for name in ("datasets", "matplotlib", "torch", "transformers")}


def test_requests(folder, checkpoint):
    """The page on a server, on this machine only."""
    page = app.build(folder)
    _, address, _ = page.launch(prevent_thread_lock=True, quiet=True, **app.LAUNCH)
    text, speed = Client(address, verbose=False).predict(*settings(), api_name="/continue")
    page.close()
    expected = generation.generate(checkpoint, PROMPT, NEW_TOKENS, WEIGHTS, always_drafts=True)
    assert text == expected.traced.fragment() and "tokens per second" in speed
