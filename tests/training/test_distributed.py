"""Two processes against one: in parallel by Accelerate, and sharded by FSDP2. On CPUs, by gloo."""

import json
import os
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from accelerate.utils.launch import prepare_multi_gpu_env
from safetensors.torch import load_file

from ngram_wdr_hf.data.errors import InputError
from tests.support import scripts
from tests.support.errors import raises_naming
from tests.support.processes import ROOT, in_two_processes, run_python
from tests.support.scripts import (
    as_arguments,
    metrics_of,
    run_in_one_of_two,
    save_plain_seq2seq,
    translations_of,
    write_text,
)

pytestmark = pytest.mark.slow
CONFIGURATIONS = ROOT / "examples" / "accelerate"
run = partial(scripts.run, "clm")

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


def assert_same_run(
    folder: Path, expected: Path, heads: int, counts: tuple[int, int], *more: str, rel=1e-5, falls=0.05
) -> None:
    """
    Check that losses, figures and weights are equal. `counts` are the numbers of steps and of evaluations, `more` is
    logged, too, `rel` is the tolerance for the figures of ensembles, and each loss `falls` by more than that.
    """
    metrics, others = metrics_of(folder), metrics_of(expected)
    depths = [f"{name}_loss" for name in ("next_word", *(f"head_{n}" for n in range(1, heads + 1)))]
    for name in [*depths, *(f"eval_{name}" for name in depths), "loss", "eval_loss", "eval_perplexity", *more]:
        curve, other = ([entry[name] for entry in each["history"] if name in entry] for each in (metrics, others))
        assert curve == pytest.approx(other, abs=1e-4, rel=1e-5) and len(curve) == counts["eval" in name], name
        # They learn.
        assert name not in depths or curve[-1] < curve[0] - falls
    for split, figures in metrics["splits"].items():
        for name, other in others["splits"][split].items():
            if name == "ensembles":
                assert figures[name] == {heading: pytest.approx(value, rel=rel) for heading, value in other.items()}
            elif isinstance(other, str) or name in ("bleu", "chrf"):
                assert figures[name] == other
            else:
                assert figures[name] == pytest.approx(other, rel=rel if isinstance(other, dict) else 1e-5)
    ensembles = [each["ensemble_weights"] or each["ensemble_lambda"] for each in (metrics, others)]
    assert ensembles[0] == pytest.approx(ensembles[1], abs=1e-3)
    weights, expected_weights = (load_file(path / "model.safetensors") for path in (folder, expected))
    # FSDP also saves the tied weights.
    weights = {name: weights[name] for name in expected_weights}
    torch.testing.assert_close(weights, expected_weights, atol=1e-5, rtol=1e-5)


def test_two_processes_equal_one_with_twice_the_batch(command, one_process, tmp_path):
    """A run of two processes is not continued by one, with another batch size."""
    command = [*command, "--per_device_train_batch_size", "4", "--output_dir", str(tmp_path / "run")]
    launcher = ["-m", "accelerate.commands.launch", "--config_file", CONFIGURATIONS / "cpu_2_processes.yaml"]
    run_python(*launcher, ROOT / "train_clm.py", *command, OMP_NUM_THREADS="1")
    assert_same_run(tmp_path / "run", one_process, 3, (20, 2))
    # One process has one window more than the other.
    assert -(-metrics_of(one_process)["splits"]["validation"]["num_tokens"] // BLOCK_SIZE) % 2 == 1
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
    arguments = ["--config_file", str(CONFIGURATIONS / "fsdp2.yaml"), "--mixed_precision", "no", "train_clm.py"]
    launcher = launch_command_parser().parse_args(arguments)
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
        assert [path.name for path in folder.glob("*.py")] == ["modeling_wdr_ngram.py"]
    assert_same_run(folders["free"], one_process, 3, (20, 2))
    assert_same_run(folders["paper"], tmp_path / "one", 3, (20, 2))
    before, after = (load_file(path / "model.safetensors") for path in (one_process, folders["heads"]))
    assert all(torch.equal(after[name], weight) != name.startswith("ngram_heads.") for name, weight in before.items())


def test_two_processes_mask_anew_in_every_epoch(texts, tmp_path):
    """The result is that of one process."""
    text = write_text(tmp_path / "train.txt", lines=12, seed=0)
    options = as_arguments(train_file=text, validation_file=texts["validation"], max_steps=12, eval_steps=6)
    options = [*scripts.QUICK["mlm"], *options, *as_arguments(dataloader_drop_last=True, adam_epsilon=1e-5)]
    halves = ["--per_device_train_batch_size", "2", "--output_dir", str(tmp_path / "two")]
    in_two_processes(run_in_one_of_two, tmp_path, "mlm", [*options, *halves])
    scripts.run("mlm", *options, "--output_dir", tmp_path / "one")
    one, two = (metrics_of(tmp_path / name)["splits"]["validation"] for name in ("one", "two"))
    assert one.pop("head_counts") == two.pop("head_counts")
    assert two == pytest.approx(one, rel=1e-4)
    assert metrics_of(tmp_path / "one")["history"][-1]["epoch"] > 2


def test_two_processes_translate_as_one_that_accumulates(pairs, tmp_path):
    """Without dropout, because each process has its own random state. In evaluation, one process has no batch."""
    plain = save_plain_seq2seq("marian", tmp_path / "plain", dropout=0.0)
    options = ["--model_name_or_path", plain, *pairs, *scripts.QUICK["nmt"], "--lr_scheduler_type", "constant"]
    # BLEU is computed by both processes.
    options += as_arguments(max_steps=40, eval_steps=10, batch_tokens=240, ngram_size=3, learning_rate=1e-2)
    options += as_arguments(adam_epsilon=1e-5, metric_for_best_model="bleu")
    one, two = tmp_path / "one", tmp_path / "two"
    scripts.run("nmt", *options, "--output_dir", one, "--gradient_accumulation_steps", "2")
    in_two_processes(run_in_one_of_two, tmp_path, "nmt", [*options, "--output_dir", str(two)])
    # Messages are printed once.
    output = "".join((tmp_path / f"printed_{rank}").read_text(encoding="utf-8") for rank in range(2))
    batches = re.findall(r"in (\d+) batches", output)
    assert int(batches[0]) % 2 == 0 and batches[1:] == ["1", "1"]
    assert_same_run(two, one, 2, (40, 4), "eval_fitted_perplexity", "eval_bleu", rel=1e-4, falls=1.0)
    assert len({entry["eval_bleu"] for entry in metrics_of(one)["history"] if "eval_bleu" in entry}) > 1
    rows = translations_of(two)
    assert rows == translations_of(one) and len(rows) == 22 and len({row["hypothesis"] for row in rows}) > 1
