"""`push_to_hub` with the real client and a local server."""

import hashlib
import json
import threading
from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

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
from tests.support.clm_runs import QUICK, SCRIPT, run
from tests.support.errors import assert_names
from tests.support.processes import run_python
from tests.support.scripts import failing
from tests.support.tiny import tiny_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """The part of the Hub's API that an upload needs. `files` are those of each repository."""

    files: dict[str, dict[str, bytes]]
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

    def repository(self) -> str:
        """Return the repository of a path such as /api/models/me/tiny/commit/main."""
        return "/".join(self.path.split("/")[3:5])

    def do_GET(self):
        if self.path.startswith("/api/whoami"):
            self.answer({"type": "user", "name": "me", "auth": {"type": "access_token"}})
        elif "/revision/" in self.path or self.path.startswith("/api/models/"):
            self.answer({"id": self.repository(), "sha": COMMIT, "siblings": [], "tags": [], "private": False})
        else:
            self.answer({"error": "not found"}, status=404)

    def do_HEAD(self):
        self.send_response(404)
        self.end_headers()

    def do_POST(self):
        host = f"http://{self.headers['Host']}"
        if self.path == "/api/repos/create":
            new = json.loads(self.body())
            name = f"{new['organization']}/{new['name']}"
            self.answer({"url": f"{host}/{name}", "name": name, "id": "1"})
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
            repository = self.repository()
            for line in self.body().splitlines():
                entry = json.loads(line)
                value = entry["value"]
                if entry["key"] == "file":
                    self.files[repository][value["path"]] = b64decode(value["content"])
                elif entry["key"] == "lfsFile":
                    self.files[repository][value["path"]] = self.blobs[value["oid"]]
            self.answer({"success": True, "commitOid": COMMIT, "commitUrl": f"{host}/{repository}/commit/{COMMIT}"})
        else:
            self.answer({})

    def do_PUT(self):
        content = self.body()
        self.blobs[hashlib.sha256(content).hexdigest()] = content
        self.answer()

    def log_message(self, *args):
        pass


@contextmanager
def running_hub() -> Iterator[tuple[str, dict[str, dict[str, bytes]]]]:
    """The address of a server, and the files of its repositories."""
    handler = type("EmptyHub", (Hub,), {"files": defaultdict(dict), "blobs": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", handler.files
    server.shutdown()


def use_hub(address: str, monkeypatch) -> None:
    """Make runs in this process use the server as the Hub."""
    api = HfApi(endpoint=address, token="hf_test")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    for name in ("create_repo", "upload_folder"):
        monkeypatch.setattr(f"ngram_wdr_hf.training.common.hub.{name}", getattr(api, name))


@pytest.fixture
def uploaded(monkeypatch) -> Iterator[dict[str, bytes]]:
    """The files that a run pushes."""
    with running_hub() as (address, repositories):
        use_hub(address, monkeypatch)
        yield repositories["me/tiny"]


CODE = "modeling_wdr_ngram.py"
PUSH = """
import sys
from ngram_wdr_hf import WDRNgramGPT2LMHeadModel

folder = sys.argv[1]
WDRNgramGPT2LMHeadModel.from_pretrained(folder).push_to_hub("me/pushed")
for repository in ("me/configuration", "me/model"):
    model = WDRNgramGPT2LMHeadModel.from_pretrained(folder)
    part = model.config if repository == "me/configuration" else model
    part.save_pretrained(folder, push_to_hub=True, repo_id=repository)
"""


class Pushed(NamedTuple):
    """A model, and the files of the repositories that it was pushed to."""

    model: WDRNgramGPT2LMHeadModel
    repositories: dict[str, dict[str, bytes]]


@pytest.fixture(scope="module")
def pushed(tmp_path_factory) -> Pushed:
    """A model that was pushed in three ways, by a process whose environment names the server."""
    folder, model = tmp_path_factory.mktemp("pushed"), tiny_model(ensemble_lambda=0.4)
    model.save_pretrained(folder / "model")
    with running_hub() as (address, repositories):
        run_python(
            *("-c", PUSH, str(folder / "model")),
            HF_ENDPOINT=address,
            HF_TOKEN="hf_test",
            HF_HOME=str(folder / "home"),
            HF_HUB_OFFLINE="0",
            HF_HUB_DISABLE_XET="1",
            NO_PROXY="127.0.0.1",
        )
    return Pushed(model, repositories)


def test_push_to_hub_carries_heads_and_code(pushed, tmp_path):
    files = pushed.repositories["me/pushed"]
    assert set(files) >= {"config.json", "generation_config.json", "model.safetensors", CODE}
    assert [name for name in files if name.endswith(".py")] == [CODE]
    assert files[CODE].decode("utf-8") == bundle(WDRNgramGPT2LMHeadModel)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert json.loads(files["config.json"])["auto_map"] == {
        "AutoConfig": "modeling_wdr_ngram.WDRNgramConfig",
        "AutoModelForCausalLM": "modeling_wdr_ngram.WDRNgramGPT2LMHeadModel",
    }
    assert_same_state(AutoModelForCausalLM.from_pretrained(tmp_path), pushed.model)


@pytest.mark.parametrize("what", ["configuration", "model"])
def test_saving_can_push_the_code(pushed, what):
    """Push from a folder that already has the code file. Transformers pushes changed files only."""
    files = pushed.repositories[f"me/{what}"]
    assert set(files) >= {"config.json", CODE} and ("model.safetensors" in files) == (what == "model")


def test_finished_run_is_pushed(uploaded, texts, tmp_path, capsys):
    options = ["--output_dir", str(tmp_path / "run"), *QUICK, "--push_to_hub", "--hub_model_id", "me/tiny"]
    run("--train_file", texts["train"], *options)
    assert capsys.readouterr().out.splitlines()[-1].endswith(" me/tiny.")
    model = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    results = {"README.md", "lambda_sweep.png", "metrics.json", "run.yaml", "trainer_state.json", "training.png"}
    assert set(uploaded) == {*model, *results, CODE}
    assert uploaded["README.md"] == (tmp_path / "run" / "README.md").read_bytes()


@pytest.mark.parametrize("arguments", [ClmModelArguments, MlmModelArguments, NmtModelArguments])
def test_compared_models_are_not_pushed(uploaded, tmp_path, arguments):
    pushed = {"config.json", "adapter/adapter_config.json"}
    folders = ["checkpoint-2", "runs/now", *arguments.kinds, *(f"{kind}/checkpoint-2" for kind in arguments.kinds)]
    for name in (*pushed, ".lock", "comparison.png", *(f"{folder}/optimizer.pt" for folder in folders)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    push_run(tmp_path, "me/tiny", TrainingArguments())
    assert set(uploaded) == pushed


def test_unreachable_hub_stops_the_run_before_training(texts, tmp_path, monkeypatch, capsys):
    use_hub("http://127.0.0.1:9", monkeypatch)
    fail = failing(SCRIPT, tmp_path, monkeypatch, capsys)
    options = ["--output_dir", "run", *QUICK, "--push_to_hub", "--hub_model_id", "me/tiny"]
    assert_names(fail("--train_file", texts["train"], *options), "--push_to_hub", "me/tiny")
