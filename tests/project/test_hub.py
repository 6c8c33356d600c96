"""`push_to_hub` with the real client and a local server, which a process finds in its environment."""

import json
import threading
from base64 import b64decode
from collections import defaultdict
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from ngram_wdr_hf import WDRNgramGPT2LMHeadModel
from ngram_wdr_hf.modeling.bundle import bundle
from tests.support.checkpoints import assert_same_state
from tests.support.processes import ROOT, run_python
from tests.support.scripts import QUICK_BLOCKS, as_arguments
from tests.support.tiny import tiny_model

CODE = "modeling_wdr_ngram.py"
PUSH = """
import sys
from ngram_wdr_hf import WDRNgramGPT2LMHeadModel

model = WDRNgramGPT2LMHeadModel.from_pretrained(sys.argv[1])
model.push_to_hub("me/pushed")
# The folder has the code file already, and Transformers pushes changed files only.
model.save_pretrained(sys.argv[1], push_to_hub=True, repo_id="me/saved")
"""


class Hub(BaseHTTPRequestHandler):
    """The part of the Hub's API that an upload needs. `files` are those of each repository."""

    files: dict[str, dict[str, bytes]]

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        # Of a path such as /api/models/me/tiny/commit/main.
        repository = "/".join(self.path.split("/")[3:5])
        if self.path.startswith("/api/whoami"):
            answer = {"type": "user", "name": "me", "auth": {"type": "access_token"}}
        elif self.path == "/api/repos/create":
            name = f"me/{json.loads(body)['name']}"
            answer = {"url": f"http://{self.headers['Host']}/{name}", "name": name, "id": "1"}
        elif "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            answer = {"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]}
        elif "/commit/" in self.path:
            entries = [json.loads(line) for line in body.splitlines()]
            files = [entry["value"] for entry in entries if entry["key"] == "file"]
            self.files[repository].update({file["path"]: b64decode(file["content"]) for file in files})
            answer = {
                "success": True,
                "commitOid": "0" * 40,
                "commitUrl": f"http://{self.headers['Host']}/{repository}/commit/0",
            }
        else:
            answer = {"id": repository, "sha": "0" * 40, "siblings": [], "tags": [], "private": False}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    do_GET = do_POST

    def do_HEAD(self):
        self.send_response(404)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def push(tmp_path_factory) -> Iterator[Callable[..., dict[str, dict[str, bytes]]]]:
    """A function that runs Python with the server as the Hub, and returns the files of its repositories."""
    handler = type("EmptyHub", (Hub,), {"files": defaultdict(dict)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "NO_PROXY": "127.0.0.1"}
    environment |= {"HF_TOKEN": "hf_test", "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    environment["HF_HOME"] = str(tmp_path_factory.mktemp("home"))

    def push(*arguments: str | Path) -> dict[str, dict[str, bytes]]:
        run_python(*map(str, arguments), **environment)
        return handler.files

    yield push
    server.shutdown()


def test_models_are_pushed_with_heads_and_code(push, tmp_path):
    model = tiny_model(ensemble_lambda=0.4)
    model.save_pretrained(tmp_path / "model")
    repositories = push("-c", PUSH, tmp_path / "model")
    for name in ("me/pushed", "me/saved"):
        assert repositories[name].keys() >= {"config.json", "generation_config.json", "model.safetensors", CODE}
    files = repositories["me/pushed"]
    assert files[CODE].decode("utf-8") == bundle(WDRNgramGPT2LMHeadModel)
    assert json.loads(files["config.json"])["auto_map"] == {
        "AutoConfig": "modeling_wdr_ngram.WDRNgramConfig",
        "AutoModelForCausalLM": "modeling_wdr_ngram.WDRNgramGPT2LMHeadModel",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert_same_state(AutoModelForCausalLM.from_pretrained(tmp_path), model)


def test_finished_run_is_pushed(push, texts, tmp_path):
    options = as_arguments(**QUICK_BLOCKS, sample_tokens=8, train_file=texts["train"], output_dir=tmp_path / "run")
    files = push(ROOT / "train_clm.py", *options, "--push_to_hub", "--hub_model_id", "me/run")["me/run"]
    model = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert files.keys() >= {*model, "README.md", "lambda_sweep.png", "metrics.json", "run.yaml", "training.png", CODE}
    assert files["README.md"] == (tmp_path / "run" / "README.md").read_bytes()
    assert not [name for name in files if "/" in name or "optimizer" in name]
