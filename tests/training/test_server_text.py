"""`--server`: an OpenAI-style server writes the training text of heads. Here it is a small one, around the model."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ngram_wdr_hf import with_ngram_heads
from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.rows import RowStore, total_length
from ngram_wdr_hf.training import heads
from ngram_wdr_hf.training.clm import ClmOptions
from ngram_wdr_hf.training.frozen_model_data import encode_prompts, own_rows
from ngram_wdr_hf.training.run_folder import RunFolder
from tests.support.scripts import QUICK, as_arguments
from tests.training.test_heads import PROMPTS, training_of


class Server:
    """A server of a model, with vLLM's `token_ids` or without, that fails after some answers."""

    def __init__(self, path: str, returns_ids: bool = True, num_answers: int = 10**6):
        self.model, self.tokenizer = (
            AutoModelForCausalLM.from_pretrained(path).eval(),
            AutoTokenizer.from_pretrained(path),
        )
        self.returns_ids, self.num_answers = returns_ids, num_answers
        self.lock, self.requests, self.busy, self.most = threading.Lock(), [], 0, 0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler):
                self.reply(handler, {"data": [{"id": "a name"}]})

            def do_POST(handler):
                body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
                self.busy += 1
                self.most = max(self.most, self.busy)
                with self.lock:
                    choice = self.choice(body)
                    self.busy -= 1
                self.reply(handler, {"choices": [choice]}, 200 if choice else 503)

            def log_message(handler, *args): ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def reply(self, handler: BaseHTTPRequestHandler, content: dict, status: int = 200) -> None:
        text = json.dumps(content).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    def choice(self, body: dict) -> dict | None:
        if len(self.requests) >= self.num_answers:
            return None
        self.requests.append(body)
        sampling = {"do_sample": True, "temperature": body["temperature"], "top_k": 0} if body["temperature"] else {}
        prompt, end = body["prompt"], self.model.generation_config.eos_token_id
        ids = self.model.generate(
            torch.tensor([prompt]), max_new_tokens=body["max_tokens"], **sampling, pad_token_id=0
        )
        tokens = ids[0, len(prompt) :].tolist()
        reason = "stop" if tokens[-1:] == [end] else "length"
        choice = {"text": self.tokenizer.decode(tokens, skip_special_tokens=True), "finish_reason": reason}
        return {**choice, "token_ids": tokens} if self.returns_ids else choice


@pytest.fixture
def serve(checkpoint):
    """A function that starts a server of a model, by default the one that gets heads."""
    servers = []

    def start(path: str = checkpoint, **options) -> Server:
        servers.append(Server(path, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.http.shutdown()
        server.http.server_close()


@pytest.fixture
def write(checkpoint, tmp_path):
    """A function that lets a server write text in a folder, and returns its rows."""
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    model, tokenizer = with_ngram_heads(checkpoint, ngram_size=3), AutoTokenizer.from_pretrained(checkpoint)

    def call(url: str, amount: int, **fields) -> list[list[int]]:
        fields = {"self_generated_length": 6, "self_generated_batch_size": 4, "test_file": ["given"], **fields}
        options = ClmOptions(self_generated=amount, prompt_file=[str(tmp_path / "prompts.txt")], server=url, **fields)
        rows = own_rows(model, tokenizer, options, RunFolder(tmp_path), training_of(tmp_path))["train"]
        return [row.tolist() for row in rows]

    return call


@pytest.mark.parametrize("returns_ids", [True, False])
def test_rows_are_prompts_and_answers(serve, write, checkpoint, returns_ids):
    server = serve(returns_ids=returns_ids)
    rows, tokenizer = write(f"{server.url}/", 300), AutoTokenizer.from_pretrained(checkpoint)
    assert total_length(rows) >= 300 and server.most == 4
    prompts = [prompt[-10:] for prompt in encode_prompts(PROMPTS, tokenizer)]
    asked = [each["prompt"] for each in server.requests if each["temperature"]]
    assert len(asked) >= len(rows) and {*map(tuple, asked)} == {*map(tuple, prompts)}
    for row in rows:
        prompt = next(prompt for prompt in prompts if row[: len(prompt)] == prompt)
        assert len(prompt) < len(row) <= len(prompt) + 6
    probes = [each for each in server.requests if not each["temperature"]]
    assert len(probes) == 3 and {each["max_tokens"] for each in probes} == {6, 13, 14}
    assert {each["model"] for each in server.requests} == {"a name"}


def test_a_server_that_stops_loses_nothing(serve, write, tmp_path):
    server = serve(num_answers=3 + 10)
    with pytest.raises(InputError, match=r"did not answer .* repeat the command"):
        write(server.url, 500)
    kept = [row.tolist() for row in RowStore(tmp_path / "self_generated").rows]
    assert len(kept) == 10
    server.num_answers = 10**6
    rows = write(server.url, 500)
    assert rows[:10] == kept and total_length(rows) >= 500
    # What is there is not asked for again.
    server.http.shutdown()
    assert write("http://127.0.0.1:9", 500) == rows


def test_another_model_is_refused(serve, write, checkpoint, tmp_path):
    other = AutoModelForCausalLM.from_pretrained(checkpoint)
    torch.nn.init.normal_(other.transformer.h[0].mlp.c_fc.weight)
    other.save_pretrained(tmp_path / "other")
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(tmp_path / "other")
    with pytest.raises(InputError, match="another model, `a name`"):
        write(serve(str(tmp_path / "other")).url, 100)


def test_bad_input(write, capsys):
    with pytest.raises(InputError, match="did not answer"):
        write("http://127.0.0.1:9", 100)
    with pytest.raises(InputError, match="`--self_generated TOKENS`"):
        ClmOptions(server="http://127.0.0.1:9", train_file=["text"])


def test_heads_by_a_server(serve, checkpoint, tmp_path):
    """The whole command."""
    options = as_arguments(self_generated=400, self_generated_batch_size=8, self_generated_length=12)
    server = serve()
    options += ["--server", server.url, "--output_dir", str(tmp_path / "run")]
    result = heads.main([checkpoint, *QUICK["clm"], *options])
    assert result is not None and total_length(RowStore(tmp_path / "run" / "self_generated").rows) >= 400
    assert "server" not in (tmp_path / "run" / "run.yaml").read_text()
