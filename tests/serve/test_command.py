"""`python -m ngram_wdr_hf.serve`: the same server with the classes of the package, and bad input."""

import json
import logging
import threading
from pathlib import Path

import openai
import pytest
import torch
import uvicorn

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.serve.__main__ import main
from tests.support.checkpoints import rewrite_weights
from tests.support.errors import raises_naming
from tests.support.masked import tiny_masked
from tests.support.servers import PATIENCE, free_port
from tests.support.tiny import tiny_model, tiny_seq2seq
from tests.support.tokenizers import word_tokenizer


def save(folder: Path, model, has_tokenizer: bool = True, chat_template: str | None = None) -> str:
    model.save_pretrained(folder)
    if has_tokenizer:
        tokenizer = word_tokenizer()
        tokenizer.chat_template = chat_template
        tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def started(monkeypatch) -> list[uvicorn.Server]:
    """The servers that were started; they run in threads of this process until the end of the test."""
    servers, threads, run = [], [], uvicorn.Server.run

    def run_in_thread(self):
        # The log would go to the captured output, which ends before the server does.
        for name in ("uvicorn", "uvicorn.access"):
            logging.getLogger(name).handlers.clear()
        servers.append(self)
        threads.append(threading.Thread(target=run, args=(self,)))
        threads[-1].start()

    monkeypatch.setattr(uvicorn.Server, "run", run_in_thread)
    yield servers
    for server in servers:
        server.should_exit = True
    for thread in threads:
        thread.join(PATIENCE)


def serve(*arguments: str) -> int:
    """Call the command and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def test_answer(tmp_path, started):
    model, port = tiny_model(ensemble_lambda=0.4), free_port()
    folder = save(tmp_path / "model", model, chat_template="{{ messages[0]['content'] }}")
    assert serve(folder, "--port", str(port)) == 0
    client = openai.OpenAI(base_url=f"http://localhost:{port}/v1", api_key="none", timeout=PATIENCE, max_retries=9)
    messages = [{"role": "user", "content": "w3 w4 w5"}]
    answer = client.chat.completions.create(model=folder, messages=messages, max_tokens=12, temperature=0)
    expected = model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=12, do_sample=False)[0, 3:]
    assert answer.choices[0].message.content == word_tokenizer().decode(expected, skip_special_tokens=True)
    assert len(started) == 1


def test_notes(tmp_path, started, capsys):
    folder = save(tmp_path / "model", tiny_model(n_positions=64))
    serve(folder, "--port", str(free_port()))
    chat, length = capsys.readouterr().out.splitlines()[:2]
    assert folder in chat and "chat template" in chat and "/v1/completions" in chat
    assert "64 tokens" in length and "`max_tokens`" in length


def test_help(capsys):
    assert serve("--help") == 0
    assert "ngram-wdr serve" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "arguments", "names"),
    [
        (lambda folder: str(folder), [], ["is not there"]),
        (lambda folder: save(folder, tiny_seq2seq("marian")), [], ["encoder-decoder", "`generate`"]),
        (lambda folder: save(folder, tiny_masked("bert")), [], ["masked", "ngram-wdr clm"]),
        (lambda folder: save(folder, tiny_model(), has_tokenizer=False), [], ["tokenizer.save_pretrained"]),
        (lambda folder: save(folder, tiny_model(ensemble_lambda=0.4)), ["--continuous-batching"], ["ensemble_lambda"]),
        (lambda folder: save(folder, tiny_model()), ["--dtype", "float17"], ["float17"]),
    ],
    ids=["missing", "encoder-decoder", "masked", "no tokenizer", "continuous batching", "dtype"],
)
def test_bad_input(tmp_path, make, arguments, names, started):
    with raises_naming(InputError, *names):
        main([make(tmp_path / "model"), *arguments])
    assert started == []


def test_damaged_checkpoint(tmp_path, started):
    folder = tmp_path / "model"
    save(folder, tiny_model())
    rewrite_weights(folder, lambda name: not name.startswith("ngram_heads.1"))
    with raises_naming(InputError, str(folder), "head 2"):
        main([str(folder)])
    (folder / "config.json").write_text("{")
    with raises_naming(InputError, str(folder)):
        main([str(folder)])
    assert started == []


def test_continuous_batching_without_the_ensemble(tmp_path, started):
    """λ = 0 in the generation config takes precedence over the λ of the configuration."""
    folder = save(tmp_path / "model", tiny_model(ensemble_lambda=0.4))
    file = tmp_path / "model" / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "ensemble_lambda": 0, "_from_model_config": False}))
    assert serve(folder, "--continuous-batching", "--port", str(free_port())) == 0
    assert len(started) == 1


def test_continuous_batching_with_plain_weights(tmp_path, started):
    """The weight 1 of the model's own prediction is no ensemble. A folder may have no generation config."""
    folder = save(tmp_path / "model", tiny_model(ensemble_weights=[1.0, 0.0, 0.0, 0.0]))
    (tmp_path / "model" / "generation_config.json").unlink()
    assert serve(folder, "--continuous-batching", "--port", str(free_port())) == 0
    assert len(started) == 1


def test_missing_packages(monkeypatch):
    monkeypatch.setattr("ngram_wdr_hf.serve.__main__.is_serve_available", lambda: False)
    with raises_naming(InputError, "ngram-wdr-hf[serve]"):
        main(["anything"])
