"""Two processes against one: in parallel by Accelerate, and sharded by FSDP2. On CPUs, by gloo."""

import json
import os
from pathlib import Path

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from accelerate.utils.launch import prepare_multi_gpu_env
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from ngram_wdr_hf.data.errors import InputError
from tests.support.clm_runs import SCRIPT, run
from tests.support.errors import raises_naming
from tests.support.processes import CONFIGURATIONS, in_two_processes, launch
from tests.support.scripts import as_arguments, metrics_of

BLOCK_SIZE = 26
SETTINGS = {
    "max_steps": 20,
    "logging_steps": 1,
    "block_size": BLOCK_SIZE,
    "per_device_eval_batch_size": 4,
    # Two epochs with an incomplete last batch, which one and two processes would pad differently.
    "dataloader_drop_last": True,
    # Some gradients are zero up to rounding, which Adam would scale to full steps.
    "adam_epsilon": 1e-4,
    "learning_rate": 5e-3,
    "sample_tokens": 4,
    "num_workers": 1,
    "disable_tqdm": True,
}


@pytest.fixture(scope="module")
def command(files) -> list[str]:
    """Options, with a training and a validation text."""
    return [*as_arguments(**SETTINGS), *files[:4]]


@pytest.fixture(scope="module")
def one_process(command, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "run"
    run(*command, "--per_device_train_batch_size", "8", "--output_dir", str(folder))
    return folder


def assert_same_run(folder: Path, expected: Path) -> None:
    """Check that losses, evaluations, metrics and weights are equal."""
    log, expected_log = (metrics_of(path)["history"] for path in (folder, expected))
    names = ["loss", "eval_loss", "eval_perplexity"]
    names += [
        f"{prefix}{name}_loss" for prefix in ("", "eval_") for name in ("next_word", "head_1", "head_2", "head_3")
    ]
    curves = [{name: [entry[name] for entry in log if name in entry] for name in names} for log in (log, expected_log)]
    assert len(curves[0]["loss"]) == len(curves[0]["head_3_loss"]) == 20 and len(curves[0]["eval_loss"]) == 2
    assert curves[0] == {name: pytest.approx(curve, abs=1e-4, rel=1e-5) for name, curve in curves[1].items()}
    assert curves[0]["loss"][-1] < curves[0]["loss"][0] - 0.05

    (split,), (expected_split,) = (metrics_of(path)["splits"].values() for path in (folder, expected))
    by_ensemble, expected_by_ensemble = split.pop("ensembles"), expected_split.pop("ensembles")
    assert split == {name: pytest.approx(value, rel=1e-5) for name, value in expected_split.items()}
    assert by_ensemble == {name: pytest.approx(value, rel=1e-5) for name, value in expected_by_ensemble.items()}
    # One process has one window more than the other.
    assert -(-split["num_tokens"] // BLOCK_SIZE) % 2 == 1

    ensembles = [
        metrics_of(path)["ensemble_weights"] or metrics_of(path)["ensemble_lambda"] for path in (folder, expected)
    ]
    assert ensembles[0] == pytest.approx(ensembles[1], abs=1e-3)
    weights, expected_weights = (
        AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (folder, expected)
    )
    torch.testing.assert_close(weights, expected_weights, atol=1e-5, rtol=1e-5)


def test_two_processes_equal_one_with_twice_the_batch(command, one_process, tmp_path):
    """A run of two processes is not continued by one, with another batch size."""
    command = [*command, "--per_device_train_batch_size", "4", "--output_dir", str(tmp_path / "run")]
    code, output = launch(SCRIPT, *command)
    assert code == 0, output
    assert_same_run(tmp_path / "run", one_process)
    logs = [entry for entry in metrics_of(one_process)["history"] if "head_3_loss" in entry]
    assert all(logs[-1][f"head_{n}_loss"] < logs[0][f"head_{n}_loss"] - 0.05 for n in (1, 2, 3))
    with raises_naming(InputError, "num_processes: saved 2, now None"):
        run(*command)


def train_sharded(rank: int, folder: Path, environment: dict[str, str], frozen: list[str], *free: list[str]) -> None:
    os.environ.update(environment)
    start = AcceleratorState.__init__

    def start_sharded(self, *args, fsdp_plugin=None, **kwargs):
        start(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        # On CPUs, accelerate ignores its FSDP configuration.
        if fsdp_plugin is not None:
            self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            self.fsdp_plugin = fsdp_plugin

    AcceleratorState.__init__ = start_sharded
    for command in free:
        run(*command)
    # Accelerate could not distribute the list of draft tokens.
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    run(*frozen)


def test_fsdp(command, one_process, tmp_path):
    """
    FSDP2 of accelerate with the example's configuration, in float32: free heads, heads that change the model, with
    embeddings that are not tied, and heads on a frozen trunk.
    """
    launcher = launch_command_parser().parse_args(
        ["--config_file", str(CONFIGURATIONS / "fsdp2.yaml"), "--mixed_precision", "no", "train_clm.py"]
    )
    environment = prepare_multi_gpu_env(_validate_launch_command(launcher)[0])
    environment = {name: value for name, value in environment.items() if name.startswith(("ACCELERATE_", "FSDP_"))}
    folders = {name: tmp_path / name for name in ("heads", "free", "paper")}
    options = {
        "heads": ["--model_name_or_path", str(one_process), "--train_mode", "heads", "--recipe", "drafts"],
        "free": [],
        "paper": ["--recipe", "paper", "--config_overrides", "tie_word_embeddings=false"],
    }
    run(*command, *options["paper"], "--per_device_train_batch_size", "8", "--output_dir", str(tmp_path / "one"))
    command = [*command, "--per_device_train_batch_size", "4", "--output_dir"]
    commands = [[*command, str(folder), *options[name]] for name, folder in folders.items()]
    in_two_processes(train_sharded, tmp_path, environment, *commands)
    for folder in folders.values():
        # Only FSDP writes these files.
        assert len(list(folder.glob("checkpoint-*/pytorch_model_fsdp.bin"))) == 2
        # FSDP replaces the model's class, which must not end up in a checkpoint.
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        assert config["architectures"] == ["WDRNgramGPT2LMHeadModel"]
        assert config["auto_map"]["AutoModelForCausalLM"] == "modeling_wdr_ngram.WDRNgramGPT2LMHeadModel"
        assert [path.name for path in folder.glob("*.py")] == ["modeling_wdr_ngram.py"]
    assert_same_run(folders["free"], one_process)
    assert_same_run(folders["paper"], tmp_path / "one")
    before, after = (load_file(path / "model.safetensors") for path in (one_process, folders["heads"]))
    assert all(torch.equal(after[name], weight) != name.startswith("ngram_heads.") for name, weight in before.items())


@pytest.mark.parametrize("path", sorted(CONFIGURATIONS.glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_reads_every_configuration(path):
    configuration = load_config_from_file(str(path))
    assert configuration.num_processes > 1
    # The launcher would ignore unknown options.
    known = vars(launch_command_parser().parse_args(["script.py"]))
    assert set(configuration.fsdp_config) <= set(known)
