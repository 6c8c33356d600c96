"""`push_to_hub` with the real client and a local server."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from base64 import b64decode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from transformers import AutoModelForCausalLM, TrainingArguments

from ngram_wdr_hf import WDRNgramGPT2LMHeadModel
from ngram_wdr_hf.modeling.bundle import bundle
from ngram_wdr_hf.training.clm.arguments import ClmModelArguments
from ngram_wdr_hf.training.common.hub import push_run
from ngram_wdr_hf.training.mlm.arguments import MlmModelArguments
from ngram_wdr_hf.training.nmt.arguments import NmtModelArguments
from tests.support.checkpoints import assert_same_state
from tests.support.clm_runs import QUICK
from tests.support.errors import assert_names
from tests.support.processes import ROOT
from tests.support.scripts import one_sentence
from tests.support.tiny import tiny_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """The part of the Hub's API that an upload needs."""

    files: dict[str, bytes]
    blobs: dict[str, bytes]

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, content=None, status=200):
        payload = json.dumps({} if content is None else content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def do_GET(self):
        if self.path.startswith("/api/whoami"):
            self.answer({"type": "user", "name": "me", "auth": {"type": "access_token"}})
        elif "/revision/" in self.path or self.path.startswith("/api/models/"):
            self.answer({"id": "me/tiny", "sha": COMMIT, "siblings": [], "tags": [], "private": False})
        else:
            self.answer({"error": "not found"}, status=404)

    def do_HEAD(self):
        self.send_response(404)
        self.end_headers()

    def do_POST(self):
        host = f"http://{self.headers['Host']}"
        if self.path == "/api/repos/create":
            self.answer({"url": f"{host}/me/tiny", "name": "me/tiny", "id": "1"})
        elif self.path.endswith("/preupload/main"):
            files = json.loads(self.body())["files"]
            modes = {True: "lfs", False: "regular"}
            answers = [
                {"path": f["path"], "uploadMode": modes[f["path"].endswith(".safetensors")], "shouldIgnore": False}
                for f in files
            ]
            self.answer({"files": answers})
        elif self.path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(self.body())["objects"]
            actions = [
                {**o, "actions": {"upload": {"href": f"{host}/blobs/{o['oid']}", "header": {}}}} for o in objects
            ]
            self.answer({"transfer": "basic", "objects": actions})
        elif self.path.endswith("/commit/main"):
            for line in self.body().splitlines():
                entry = json.loads(line)
                value = entry["value"]
                if entry["key"] == "file":
                    self.files[value["path"]] = b64decode(value["content"])
                elif entry["key"] == "lfsFile":
                    self.files[value["path"]] = self.blobs[value["oid"]]
            self.answer({"success": True, "commitOid": COMMIT, "commitUrl": f"{host}/me/tiny/commit/{COMMIT}"})
        else:
            self.answer({})

    def do_PUT(self):
        content = self.body()
        self.blobs[hashlib.sha256(content).hexdigest()] = content
        self.answer()

    def log_message(self, *args):
        pass


@pytest.fixture
def hub():
    handler = type("EmptyHub", (Hub,), {"files": {}, "blobs": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", handler.files
    server.shutdown()


def with_hub(address: str, tmp_path: Path, *command: str) -> subprocess.CompletedProcess:
    """Run Python in a process that uses the server as the Hub."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": address,
        "HF_TOKEN": "hf_test",
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1",
    }
    return subprocess.run(
        [sys.executable, *command], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=180
    )


CODE = "modeling_wdr_ngram.py"
PUSH = """
import sys
from ngram_wdr_hf import WDRNgramGPT2LMHeadModel
WDRNgramGPT2LMHeadModel.from_pretrained(sys.argv[1]).push_to_hub("me/tiny")
"""


def test_push_to_hub_carries_heads_and_code(hub, tmp_path):
    address, files = hub
    model = tiny_model(ensemble_lambda=0.4)
    model.save_pretrained(tmp_path / "model")
    run = with_hub(address, tmp_path, "-c", PUSH, str(tmp_path / "model"))
    assert run.returncode == 0, run.stderr
    assert set(files) >= {"config.json", "generation_config.json", "model.safetensors", CODE}
    assert [name for name in files if name.endswith(".py")] == [CODE]
    assert files[CODE].decode("utf-8") == bundle(WDRNgramGPT2LMHeadModel)
    received = tmp_path / "received"
    received.mkdir()
    for name, content in files.items():
        (received / name).write_bytes(content)
    assert json.loads(files["config.json"])["auto_map"] == {
        "AutoConfig": "modeling_wdr_ngram.WDRNgramConfig",
        "AutoModelForCausalLM": "modeling_wdr_ngram.WDRNgramGPT2LMHeadModel",
    }
    assert_same_state(AutoModelForCausalLM.from_pretrained(received), model)


SAVE_AND_PUSH = """
import sys
from ngram_wdr_hf import WDRNgramGPT2LMHeadModel
model = WDRNgramGPT2LMHeadModel.from_pretrained(sys.argv[1])
part = model.config if sys.argv[2] == "configuration" else model
part.save_pretrained(sys.argv[1], push_to_hub=True, repo_id="me/tiny")
"""


@pytest.mark.parametrize("what", ["configuration", "model"])
def test_saving_can_push_the_code(hub, tmp_path, what):
    """Push from a folder that already has the code file. Transformers pushes changed files only."""
    address, files = hub
    tiny_model().save_pretrained(tmp_path / "model")
    run = with_hub(address, tmp_path, "-c", SAVE_AND_PUSH, str(tmp_path / "model"), what)
    assert run.returncode == 0, run.stderr
    assert set(files) >= {"config.json", CODE} and ("model.safetensors" in files) == (what == "model")


def test_finished_run_is_pushed(hub, texts, tmp_path):
    address, files = hub
    options = ["--output_dir", str(tmp_path / "run"), *QUICK, "--push_to_hub", "--hub_model_id", "me/tiny"]
    run = with_hub(address, tmp_path, "train_clm.py", "--train_file", texts["train"], *options)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1].endswith(" me/tiny.")
    model = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    results = {"README.md", "lambda_sweep.png", "metrics.json", "run.yaml", "trainer_state.json", "training.png"}
    assert set(files) == {*model, *results, CODE}
    assert files["README.md"] == (tmp_path / "run" / "README.md").read_bytes()


@pytest.mark.parametrize("arguments", [ClmModelArguments, MlmModelArguments, NmtModelArguments])
def test_compared_models_are_not_pushed(hub, tmp_path, monkeypatch, arguments):
    address, files = hub
    pushed = {"config.json", "adapter/adapter_config.json"}
    folders = ["checkpoint-2", "runs/now", *arguments.kinds, *(f"{kind}/checkpoint-2" for kind in arguments.kinds)]
    for name in (*pushed, ".lock", "comparison.png", *(f"{folder}/optimizer.pt" for folder in folders)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    api = HfApi(endpoint=address, token="hf_test")
    monkeypatch.setattr("ngram_wdr_hf.training.common.hub.upload_folder", api.upload_folder)
    push_run(tmp_path, "me/tiny", TrainingArguments())
    assert set(files) == pushed


def test_unreachable_hub_stops_the_run_before_training(texts, tmp_path):
    options = ["--output_dir", str(tmp_path / "run"), *QUICK, "--push_to_hub", "--hub_model_id", "me/tiny"]
    run = with_hub("http://127.0.0.1:9", tmp_path, "train_clm.py", "--train_file", texts["train"], *options)
    assert run.returncode == 2
    assert_names(one_sentence(run.stderr), "--push_to_hub", "me/tiny")
    assert not (tmp_path / "run").exists()
