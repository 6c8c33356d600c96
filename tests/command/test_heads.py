"""`ngram-wdr heads MODEL`: heads for a pretrained model, trained on its own text or on another."""

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, GPT2LMHeadModel

from ngram_wdr_hf.command import heads
from ngram_wdr_hf.command.main import main
from ngram_wdr_hf.training.common.arguments import HEADS_LEARNING_RATE
from tests.support.clm_runs import QUICK
from tests.support.scripts import one_sentence


@pytest.fixture
def parsed(monkeypatch) -> list:
    """The options of the runs, which are not run."""
    runs = []
    monkeypatch.setattr(heads, "run_clm", runs.append)
    return runs


def test_run_on_its_own_text(checkpoint, tmp_path, monkeypatch):
    """The model stays as it is, and the run is one of `ngram-wdr clm`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(heads, "OWN_TOKENS", 200)
    assert main(["heads", checkpoint, *QUICK, "--ngram_size", "3"]) == 0
    folder = tmp_path / "runs" / "heads"
    trained, plain = AutoModelForCausalLM.from_pretrained(folder), GPT2LMHeadModel.from_pretrained(checkpoint)
    weights = trained.state_dict()
    assert len(trained.ngram_heads) == 2 and trained.generation_config.use_mtp is True
    assert all(torch.equal(weights[name], tensor) for name, tensor in plain.state_dict().items())
    settings = yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))
    assert settings["train_mode"] == "heads" and settings["self_generated"] == 200
    assert settings["head_loss_tokens"] == "draft" and settings["cache_hidden_states"]
    assert trained.config.ngram_head_expansion == 3 and trained.config.head_sample_rate == 1
    assert main(["clm", str(folder / "run.yaml"), *QUICK, "--output_dir", str(folder)]) == 0
    # Heads that are there already are trained further.
    assert main(["heads", str(folder), *QUICK, "--output_dir", "further"]) == 0
    further = AutoModelForCausalLM.from_pretrained("further")
    assert further.config.ngram_head_expansion == 3 and len(further.ngram_heads) == 2


def test_defaults(checkpoint, texts, tmp_path, monkeypatch, parsed):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("the cat\n")
    assert main(["heads", checkpoint]) == 0
    assert main(["heads", checkpoint, "--prompt_file", "prompts.txt"]) == 0
    for options in parsed:
        assert options.data.self_generated == 200_000 and options.training.output_dir == "runs/heads"
        assert options.model.model_name_or_path == checkpoint and options.model.train_mode == "heads"
        assert options.training.learning_rate == HEADS_LEARNING_RATE
    (tmp_path / "run.yaml").write_text("seed: 3\noutput_dir: other\n")
    assert main(["heads", checkpoint, "run.yaml", "--train_file", texts["train"], "--learning_rate", "0.1"]) == 0
    data, training = parsed[-1].data, parsed[-1].training
    assert data.self_generated is None and data.train_file == [texts["train"]]
    assert (training.seed, training.output_dir, training.learning_rate) == (3, "other", 0.1)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ([], "ngram-wdr heads MODEL"),
        (["--seed", "1"], "ngram-wdr heads MODEL"),
        (["gpt2", "--train_mode", "lora"], "`--train_mode`"),
        (["gpt2", "--model_name_or_path=gpt2"], "`--model_name_or_path`"),
        (["gpt2", "--do_train", "false"], "ngram-wdr clm --do_train false"),
    ],
    ids=str,
)
def test_bad_input(arguments, name, tmp_path, monkeypatch, capsys, parsed):
    monkeypatch.chdir(tmp_path)
    assert main(["heads", *arguments]) == 2
    assert name in one_sentence(capsys.readouterr().err)
    assert parsed == []
