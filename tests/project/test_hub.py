"""`push_to_hub` with the real client, up to the commit that it would send."""

import json
from collections import defaultdict

import pytest
from huggingface_hub import CommitInfo, HfApi, RepoUrl, constants
from transformers import AutoModelForCausalLM

from ngram_wdr_hf import WDRNgramGPT2LMHeadModel
from ngram_wdr_hf.modeling.code_file import code_file
from ngram_wdr_hf.training import run_folder
from tests.support.checkpoints import assert_same_state
from tests.support.scripts import QUICK, run
from tests.support.tiny import tiny_model

CODE = "modeling_wdr_ngram.py"


@pytest.fixture
def repositories(monkeypatch) -> dict[str, dict[str, bytes]]:
    """The files of each repository that is pushed to."""
    files = defaultdict(dict)

    def create_commit(self, repo_id: str, operations, **options) -> CommitInfo:
        for operation in operations:
            with operation.as_file() as file:
                files[repo_id][operation.path_in_repo] = file.read()
        return CommitInfo(f"https://huggingface.co/{repo_id}/commit/0", "", "", "0")

    monkeypatch.setattr(HfApi, "create_repo", lambda self, repo_id, **options: RepoUrl(repo_id))
    monkeypatch.setattr(HfApi, "create_commit", create_commit)
    # The Hub checks the header of a model card. Without Xet, a folder is one commit.
    monkeypatch.setattr(HfApi, "_validate_yaml", lambda *args, **options: None)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    # The functions of `huggingface_hub` are bound to the original methods.
    monkeypatch.setattr(run_folder, "create_repo", HfApi().create_repo)
    return files


def test_models_are_pushed_with_heads_and_code(repositories, tmp_path):
    model = tiny_model(ensemble_lambda=0.4)
    model.save_pretrained(tmp_path / "model")
    model.push_to_hub("me/pushed")
    # The folder has the code file already, and Transformers pushes changed files only.
    model.save_pretrained(tmp_path / "model", push_to_hub=True, repo_id="me/saved")
    for name in ("me/pushed", "me/saved"):
        assert repositories[name].keys() >= {"config.json", "generation_config.json", "model.safetensors", CODE}
    files = repositories["me/pushed"]
    assert files[CODE].decode("utf-8") == code_file(WDRNgramGPT2LMHeadModel)
    assert "AutoModelForCausalLM" in json.loads(files["config.json"])["auto_map"]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert_same_state(AutoModelForCausalLM.from_pretrained(tmp_path), model)


def test_finished_run_is_pushed(repositories, texts, tmp_path):
    options = ["--train_file", texts["train"], *QUICK["clm"], "--output_dir", tmp_path / "run"]
    run("clm", *options, "--push_to_hub", "--hub_model_id", "me/run")
    files = repositories["me/run"]
    model = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert files.keys() >= {*model, "README.md", "lambda_sweep.png", "metrics.json", "run.yaml", "training.png", CODE}
    assert files["README.md"] == (tmp_path / "run" / "README.md").read_bytes()
    assert not [name for name in files if "/" in name or "optimizer" in name]
