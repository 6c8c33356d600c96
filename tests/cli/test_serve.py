"""`ngram-wdr serve`: the server of Transformers with the classes of the package, and models that it refuses."""

import logging
import threading

import openai
import pytest
import torch
import uvicorn

from ngram_wdr_hf.cli import main, serve
from ngram_wdr_hf.data.errors import InputError
from tests.support.errors import raises_naming
from tests.support.masked import tiny_masked
from tests.support.servers import PATIENCE, free_port
from tests.support.tiny import tiny_model, tiny_seq2seq
from tests.support.tokenizers import word_tokenizer


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


def test_answer(tmp_path, started):
    model, tokenizer, port = tiny_model(ensemble_lambda=0.4), word_tokenizer(), free_port()
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["serve", str(tmp_path), "--port", str(port)])
    assert ended.value.code == 0 and len(started) == 1
    client = openai.OpenAI(base_url=f"http://localhost:{port}/v1", api_key="none", timeout=PATIENCE, max_retries=9)
    messages = [{"role": "user", "content": "w3 w4 w5"}]
    answer = client.chat.completions.create(model=str(tmp_path), messages=messages, max_tokens=12, temperature=0)
    expected = model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=12, do_sample=False)[0, 3:]
    assert answer.choices[0].message.content == tokenizer.decode(expected, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: tiny_seq2seq("marian"), ["encoder-decoder", "`generate`"]),
        (lambda: tiny_masked("bert"), ["masked", "ngram-wdr clm"]),
    ],
    ids=["encoder-decoder", "masked"],
)
def test_models_that_the_server_would_answer_wrongly_for(make, names, tmp_path, started):
    make().save_pretrained(tmp_path)
    with raises_naming(InputError, str(tmp_path), *names):
        serve([str(tmp_path)])
    assert started == []
