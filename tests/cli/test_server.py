"""
`transformers serve` and `ngram-wdr serve` with our checkpoints and OpenAI's client: the answers are those of
`generate`.
"""

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import openai
import pytest
import torch
import uvicorn
from transformers import Olmo2Config, Olmo2ForCausalLM, PreTrainedModel

from ngram_wdr_hf import with_ngram_heads
from ngram_wdr_hf.cli import main, serve
from ngram_wdr_hf.data.errors import InputError
from tests.support.errors import raises_naming
from tests.support.processes import ROOT
from tests.support.tiny import LLAMA_SIZES, make, tiny_model, tiny_seq2seq
from tests.support.tokenizers import word_tokenizer

pytestmark = pytest.mark.slow

PROMPT, NUM_TOKENS = "w3 w4 w5 w3", 24
PATIENCE = 120
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
RUN = "runs/clm"
# The page's command, with any model instead of one.
LINE = next(line for line in PAGE.splitlines() if line.startswith("transformers serve "))
COMMAND = [word for word in LINE.split()[1:] if word != RUN]


def olmo2() -> PreTrainedModel:
    """Return a model of a class that is made on the spot, with large weights."""
    torch.manual_seed(0)
    model = with_ngram_heads(Olmo2ForCausalLM(Olmo2Config(**LLAMA_SIZES, eos_token_id=0)), ngram_size=3).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.4)
    return model


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, tuple[PreTrainedModel, Path]]:
    """Models and their folders, by name. Weights in a generation config take precedence over λ."""
    made = {name: tiny_model(ensemble_lambda=0.4) for name in ("lambda", "weights", "drafts")} | {
        "on the spot": olmo2()
    }
    made["weights"].generation_config.update(ensemble_weights=[0.6, 0.9, -0.4, 0.3], allow_custom_entries=True)
    saved = {}
    for name, model in made.items():
        model.config.draft_by_default = name in ("drafts", "on the spot")
        tokenizer = word_tokenizer()
        tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
        saved[name] = model, tmp_path_factory.mktemp("models") / name
        for part in (model, tokenizer):
            part.save_pretrained(saved[name][1])
    return saved


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def address(models, tmp_path_factory):
    """The address of a server that loads the model which a request names, with the code in its folder."""
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    shutil.copytree(models["drafts"][1], folder / RUN)
    command = [sys.executable, "-m", "transformers.cli.transformers", *COMMAND, "--port", str(port)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    address, deadline = f"http://localhost:{port}", time.monotonic() + PATIENCE
    while True:
        assert time.monotonic() < deadline and process.poll() is None, (folder / "log").read_text()
        try:
            with urlopen(f"{address}/health", timeout=PATIENCE):
                break
        except URLError:
            time.sleep(0.05)
    yield address
    process.kill()
    process.wait()


def client_of(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", timeout=PATIENCE, max_retries=3)


def answer_of(model: PreTrainedModel, prompt: str = PROMPT, **options) -> str:
    ids = word_tokenizer()(prompt, return_tensors="pt").input_ids
    output = model.generate(ids, **{"max_new_tokens": NUM_TOKENS, "do_sample": False, **options})
    return word_tokenizer().decode(output[0, ids.shape[1] :], skip_special_tokens=True)


@pytest.mark.parametrize("name", ["lambda", "weights", "drafts", "on the spot"])
def test_answers_are_those_of_generate(address, models, name):
    """With the ensemble of the folder, and with drafts if the folder says so; streamed and in one piece."""
    model, folder = models[name]
    answer = answer_of(model)
    assert answer == answer_of(model, use_mtp=False)
    assert name == "on the spot" or answer != answer_of(model, ensemble_lambda=0.0)
    assert name != "weights" or answer != answer_of(model, ensemble_lambda=0.4)
    client, options = client_of(address), {"model": str(folder), "temperature": 0}
    chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": NUM_TOKENS, **options}
    text = {"prompt": PROMPT, "max_tokens": NUM_TOKENS, **options}
    response = {"input": PROMPT, "max_output_tokens": NUM_TOKENS, **options}
    chunks = list(client.chat.completions.create(**chat, stream=True))
    # Word by word.
    assert len(chunks) > 10
    parts, events = client.completions.create(**text, stream=True), client.responses.create(**response, stream=True)
    assert {
        client.chat.completions.create(**chat).choices[0].message.content,
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
        client.completions.create(**text).choices[0].text,
        "".join(part.choices[0].text for part in parts),
        client.responses.create(**response, stream=False).output_text,
        "".join(event.delta for event in events if event.type == "response.output_text.delta"),
    } == {answer}


def test_sampling(address, models):
    """Sampling with drafts follows the seed. What the request's generation config does not say, the folder's does."""
    model, folder = models["drafts"]
    options = {"do_sample": True, "temperature": 0.7, "max_new_tokens": NUM_TOKENS}
    request = {"model": str(folder), "prompt": PROMPT, "extra_body": {"generation_config": json.dumps(options)}}
    for seed in (1, 2):
        answer = client_of(address).completions.create(**request, seed=seed)
        torch.manual_seed(seed)
        assert answer.choices[0].text == answer_of(model, **options)


def test_snippet_of_the_page(address, models, capsys):
    (snippet,) = (code for code in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL) if "openai" in code)
    scope: dict = {}
    exec(compile(snippet.replace("http://localhost:8000", address), "serving.md", "exec"), scope)
    request = scope["request"]
    answer = answer_of(models["drafts"][0], request["prompt"], max_new_tokens=request["max_tokens"])
    assert request["model"] == RUN and answer and capsys.readouterr().out == f"{answer}\n{answer}"


def test_ngram_wdr_serve(models, monkeypatch):
    (model, folder), port, started = models["lambda"], free_port(), []
    run = uvicorn.Server.run
    monkeypatch.setattr(uvicorn.Server, "run", lambda server: started.append(server))
    with pytest.raises(SystemExit) as ended:
        main(["serve", str(folder), "--port", str(port)])
    thread = threading.Thread(target=run, args=started)
    thread.start()
    request = {"model": str(folder), "prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0}
    answer = client_of(f"http://localhost:{port}").completions.create(**request)
    started[0].should_exit = True
    thread.join(PATIENCE)
    assert answer.choices[0].text == answer_of(model) and ended.value.code == 0


@pytest.mark.parametrize(
    ("make", "name"), [(lambda: tiny_seq2seq("marian"), "encoder-decoder"), (lambda: make("bert"), "masked")]
)
def test_models_that_the_server_would_answer_wrongly_for(make, name, tmp_path):
    make().save_pretrained(tmp_path)
    with raises_naming(InputError, str(tmp_path), name):
        serve([str(tmp_path)])
