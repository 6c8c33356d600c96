"""Two processes against one: in parallel by Accelerate, sharded by FSDP2, and with bad input. On CPUs, by gloo."""

import json
import os
import random
from contextlib import redirect_stderr
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from accelerate.utils.launch import prepare_multi_gpu_env
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.multiprocessing import ProcessRaisedException
from transformers import AutoModelForCausalLM

from ngram_wdr_hf.command.main import main
from ngram_wdr_hf.training.clm.arguments import parse_clm_arguments
from ngram_wdr_hf.training.clm.run import run_clm
from ngram_wdr_hf.training.common.checkpoints import read_state
from ngram_wdr_hf.training.run_trainer import Processes
from tests.support.errors import raises_naming
from tests.support.processes import CONFIGURATIONS, ROOT, in_two_processes, launch
from tests.support.scripts import metrics_of, one_sentence
from tests.support.tiny import random_ids, tiny_model

BLOCK_SIZE = 24
SETTINGS = {
    "max_steps": 20,
    "logging_steps": 1,
    "block_size": BLOCK_SIZE,
    "per_device_eval_batch_size": 4,
    # Two epochs with an incomplete last batch, which one and two processes would pad differently.
    "dataloader_drop_last": True,
    # Some gradients are zero up to rounding, which Adam would scale to full steps.
    "adam_epsilon": 1e-5,
    "learning_rate": 5e-3,
    "sample_tokens": 4,
    "num_workers": 1,
    "disable_tqdm": True,
}
LAMBDAS = [0.0, 0.3, 1.0]
# Tied embeddings with word differences; neither, with label smoothing.
MODELS = [{}, {"tie_word_embeddings": False, "ngram_target": "simple", "label_smoothing": 0.1}]


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> dict[str, str]:
    """`--train_file` and `--validation_file`: rows of 15 words, each of which depends on the one before."""
    folder, chance = tmp_path_factory.mktemp("texts"), random.Random(0)
    files = {}
    for split, num_rows in (("train", 125), ("validation", 22)):
        word, rows = 0, []
        for _ in range(num_rows):
            row = []
            for _ in range(15):
                word = (3 * word + chance.randrange(2)) % 40
                row.append(f"w{word}")
            rows.append(" ".join(row) + "\n")
        path = folder / f"{split}.txt"
        path.write_text("".join(rows), encoding="utf-8")
        files[f"{split}_file"] = str(path)
    return files


@pytest.fixture(scope="module")
def one_process(texts, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "run"
    run_here(texts, folder, per_device_train_batch_size=8)
    return folder


@pytest.fixture(scope="module")
def two_processes(texts, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("two") / "run"
    code, output = launch(ROOT / "train_clm.py", *options(texts, folder, per_device_train_batch_size=4))
    assert code == 0, output
    return folder


def options(texts: dict[str, str], folder: Path, **settings) -> list[str]:
    settings = {**SETTINGS, **texts, "output_dir": folder, **settings}
    return [text for name, value in settings.items() for text in (f"--{name}", str(value))]


def run_here(texts: dict[str, str], folder: Path, **settings) -> None:
    run_clm(parse_clm_arguments(options(texts, folder, **settings), "train_clm.py"))


def assert_same_run(folder: Path, expected: Path) -> None:
    """Check that losses, evaluations, metrics and weights are equal."""
    log, expected_log = (metrics_of(path)["history"] for path in (folder, expected))
    names = [
        f"{prefix}{name}_loss" for prefix in ("", "eval_") for name in ("next_word", "head_1", "head_2", "head_3")
    ]
    names += ["loss", "eval_loss", "eval_perplexity"]
    curves = [{name: [entry[name] for entry in log if name in entry] for name in names} for log in (log, expected_log)]
    assert len(curves[0]["loss"]) == len(curves[0]["head_3_loss"]) == 20 and len(curves[0]["eval_loss"]) == 2
    assert curves[0] == {name: pytest.approx(curve, abs=1e-4, rel=1e-5) for name, curve in curves[1].items()}
    assert all(curves[0][f"head_{n}_loss"][-1] < curves[0][f"head_{n}_loss"][0] - 0.05 for n in (1, 2, 3))

    (split,), (expected_split,) = (metrics_of(path)["splits"].values() for path in (folder, expected))
    by_ensemble, expected_by_ensemble = split.pop("ensembles"), expected_split.pop("ensembles")
    assert split == {name: pytest.approx(value, rel=1e-5) for name, value in expected_split.items()}
    assert by_ensemble == {name: pytest.approx(value, rel=1e-5) for name, value in expected_by_ensemble.items()}
    assert by_ensemble.keys() == {"without heads", "temperature", "best λ", "fitted"}
    # One process has one window more than the other.
    assert -(-split["num_tokens"] // BLOCK_SIZE) % 2 == 1

    model, expected_model = (AutoModelForCausalLM.from_pretrained(path) for path in (folder, expected))
    assert model.config.ensemble_weights == metrics_of(folder)["ensemble_weights"]
    assert model.config.ensemble_weights == pytest.approx(expected_model.config.ensemble_weights, abs=1e-3)
    assert len(model.ngram_heads) == 3
    torch.testing.assert_close(model.state_dict(), expected_model.state_dict(), atol=1e-5, rtol=1e-5)


def test_two_processes_equal_one_with_twice_the_batch(one_process, two_processes):
    assert_same_run(two_processes, one_process)
    assert [Processes.number_in(read_state(folder)) for folder in (one_process, two_processes)] == [1, 2]


def test_two_processes_equal_gradient_accumulation(texts, two_processes, tmp_path):
    folder = tmp_path / "run"
    run_here(texts, folder, per_device_train_batch_size=4, gradient_accumulation_steps=2)
    assert_same_run(two_processes, folder)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows and labels, with more targets in the second half than in the first."""
    ids = random_ids(4, 12)
    labels = ids.clone()
    labels[0, :7] = labels[1, 3] = -100
    return ids, labels


def fit(model, ids: torch.Tensor, labels: torch.Tensor, num_items: torch.Tensor, num_processes: int = 1):
    """Return the losses of 20 steps as in Trainer, summed over all processes."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    losses = []
    for _ in range(20):
        loss = model.train()(ids, labels=labels, num_items_in_batch=num_items).loss
        # FSDP averages the gradients of all processes.
        (num_processes * loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    losses = torch.stack(losses)
    if num_processes > 1:
        dist.all_reduce(losses)
    return losses


@torch.no_grad()
def grid(model) -> tuple[torch.Tensor, torch.Tensor]:
    ids, labels = batch()
    output = model.eval()(ids, labels=labels, ensemble_lambda=LAMBDAS)
    return output.loss, output.head_losses


def fit_sharded(rank: int, folder: Path) -> None:
    mesh = init_device_mesh("cpu", (2,))
    ids, labels = batch()
    num_items = (labels[:, 1:] != -100).sum()
    for i, fields in enumerate(MODELS):
        model = tiny_model(**fields)
        for block in model.transformer.h:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
        here = sum(parameter.to_local().numel() for parameter in model.parameters())
        assert here < 0.6 * sum(parameter.numel() for parameter in model.parameters())

        rows = slice(2 * rank, 2 * rank + 2)
        losses = fit(model, ids[rows], labels[rows], num_items, num_processes=2)
        results = {"losses": losses, "grid": grid(model)}
        state_options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state_dict = get_model_state_dict(model, options=state_options)
        if rank == 0:
            model.save_pretrained(folder / f"model_{i}", state_dict=state_dict)
            torch.save(results, folder / f"results_{i}.pt")
        # The check for missing head gradients also works with shards.
        with raises_naming(RuntimeError, "`ngram_heads`"):
            model.train()(ids).logits.sum().backward()


def test_fsdp_equals_unsharded_training(tmp_path):
    """FSDP2 of torch: each block, then the rest, sharded on two processes."""
    in_two_processes(fit_sharded, tmp_path)
    ids, labels = batch()
    for i, fields in enumerate(MODELS):
        start, model = tiny_model(**fields), tiny_model(**fields)
        losses = fit(model, ids, labels, (labels[:, 1:] != -100).sum())
        assert losses[-1] < losses[0] - 1
        results = torch.load(tmp_path / f"results_{i}.pt")
        torch.testing.assert_close(results["losses"], losses, atol=1e-4, rtol=0)
        torch.testing.assert_close(results["grid"], grid(model), atol=1e-4, rtol=0)

        loaded, info = type(model).from_pretrained(tmp_path / f"model_{i}", output_loading_info=True)
        assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        torch.testing.assert_close(loaded.state_dict(), model.state_dict(), atol=1e-5, rtol=1e-5)
        for before, after in zip(start.ngram_heads.parameters(), loaded.ngram_heads.parameters(), strict=True):
            assert not torch.allclose(before, after, atol=1e-3)
        assert_our_code(tmp_path / f"model_{i}")


def assert_our_code(folder: Path) -> None:
    """FSDP replaces the model's class, which must not end up in a checkpoint."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["WDRNgramGPT2LMHeadModel"]
    assert config["auto_map"]["AutoModelForCausalLM"] == "modeling_wdr_ngram.WDRNgramGPT2LMHeadModel"
    assert [path.name for path in folder.glob("*.py")] == ["modeling_wdr_ngram.py"]


def train_sharded(rank: int, folder: Path, arguments: list[str], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    start = AcceleratorState.__init__

    def start_sharded(self, *args, fsdp_plugin=None, **kwargs):
        start(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        # On CPUs, accelerate ignores its FSDP configuration.
        if fsdp_plugin is not None:
            self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            self.fsdp_plugin = fsdp_plugin

    AcceleratorState.__init__ = start_sharded
    run_clm(parse_clm_arguments(arguments, "train_clm.py"))


def test_fsdp_run_equals_an_unsharded_run(texts, one_process, tmp_path):
    """FSDP2 of accelerate with the example's configuration, in float32."""
    launcher = launch_command_parser().parse_args(
        ["--config_file", str(CONFIGURATIONS / "fsdp2.yaml"), "--mixed_precision", "no", "train_clm.py"]
    )
    environment = prepare_multi_gpu_env(_validate_launch_command(launcher)[0])
    environment = {name: value for name, value in environment.items() if name.startswith(("ACCELERATE_", "FSDP_"))}
    folder = tmp_path / "run"
    in_two_processes(train_sharded, tmp_path, options(texts, folder, per_device_train_batch_size=4), environment)
    # Only FSDP writes these files.
    assert len(list(folder.glob("checkpoint-*/pytorch_model_fsdp.bin"))) == 2
    assert_same_run(folder, one_process)
    assert_our_code(folder)
    assert load_file(folder / "model.safetensors")["ngram_heads.2.fc_out.weight"].shape == (128, 128)


def command_of_one(rank: int, folder: Path, first: list[str], second: list[str]) -> None:
    """Run the command in one of two processes, each with its own options, and write its errors and its exit code."""
    with open(folder / f"errors_{rank}", "w", encoding="utf-8") as errors, redirect_stderr(errors):
        code = main(["clm", *(second if rank else first)])
    (folder / f"code_{rank}").write_text(str(code))


def test_bad_input_ends_both_processes(texts, tmp_path):
    arguments = options({**texts, "train_file": "missing.txt"}, tmp_path / "run")
    in_two_processes(command_of_one, tmp_path, arguments, arguments)
    for rank in range(2):
        assert (tmp_path / f"code_{rank}").read_text() == "2"
        assert "error: The file missing.txt" in one_sentence((tmp_path / f"errors_{rank}").read_text())
    assert not (tmp_path / "run").exists()


def test_bad_input_of_one_process_ends_the_other(texts, tmp_path):
    """The first process, without an error, must not wait for the second forever."""
    arguments = options(texts, tmp_path / "run")
    # Its connection to the second is closed.
    with pytest.raises(ProcessRaisedException, match="Process 0 terminated"):
        in_two_processes(command_of_one, tmp_path, arguments, [*arguments, "--seed", "1"])
    assert (tmp_path / "code_1").read_text() == "2" and not (tmp_path / "code_0").exists()
    assert "seed: saved 42, now 1" in one_sentence((tmp_path / "errors_1").read_text())


@pytest.mark.parametrize("path", sorted(CONFIGURATIONS.glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_reads_every_configuration(path):
    configuration = load_config_from_file(str(path))
    assert configuration.num_processes > 1
    first_line = path.read_text(encoding="utf-8").split("\n")[0]
    assert first_line.startswith("# ")
    # The launcher would ignore unknown options.
    known = vars(launch_command_parser().parse_args(["script.py"]))
    assert set(configuration.fsdp_config) <= set(known)
