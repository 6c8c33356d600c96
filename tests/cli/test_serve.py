"""`ngram-wdr serve`: the server of Transformers with the classes of the package, and models that it refuses."""

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


def test_answer(tmp_path, monkeypatch, caplog):
    """With the ensemble of the folder, and with drafts, as the folder says."""
    caplog.set_level("INFO", "ngram_wdr_hf")
    model, tokenizer, port = tiny_model(ensemble_lambda=0.4, draft_by_default=True), word_tokenizer(), free_port()
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    started, run = [], uvicorn.Server.run
    monkeypatch.setattr(uvicorn.Server, "run", lambda server: started.append(server))
    with pytest.raises(SystemExit) as ended:
        main(["serve", str(tmp_path), "--port", str(port)])
    thread = threading.Thread(target=run, args=started)
    thread.start()
    client = openai.OpenAI(base_url=f"http://localhost:{port}/v1", api_key="none", timeout=PATIENCE, max_retries=9)
    messages = [{"role": "user", "content": "w3 w4 w5"}]
    answer = client.chat.completions.create(model=str(tmp_path), messages=messages, max_tokens=12, temperature=0)
    started[0].should_exit = True
    thread.join(PATIENCE)
    assert "Speculative decoding: 12 tokens" in caplog.text
    expected = model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=12, do_sample=False, use_mtp=False)[0, 3:]
    assert answer.choices[0].message.content == tokenizer.decode(expected, skip_special_tokens=True)
    assert ended.value.code == 0


@pytest.mark.parametrize(
    ("make", "name"), [(lambda: tiny_seq2seq("marian"), "encoder-decoder"), (lambda: tiny_masked("bert"), "masked")]
)
def test_models_that_the_server_would_answer_wrongly_for(make, name, tmp_path):
    make().save_pretrained(tmp_path)
    with raises_naming(InputError, str(tmp_path), name):
        serve([str(tmp_path)])
