"""Two processes against one: in parallel by Accelerate, and sharded by FSDP2. On CPUs, by gloo."""

import json
import os
import random
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from accelerate.utils.launch import prepare_multi_gpu_env
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from tests.support.clm_runs import SCRIPT, run
from tests.support.errors import raises_naming
from tests.support.processes import CONFIGURATIONS, in_two_processes, launch
from tests.support.scripts import as_arguments, metrics_of
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


@pytest.fixture(scope="module")
def command(tmp_path_factory) -> list[str]:
    """Options with texts: rows of 15 words, each of which depends on the one before."""
    folder, chance = tmp_path_factory.mktemp("texts"), random.Random(0)
    settings = dict(SETTINGS)
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
        settings[f"{split}_file"] = path
    return as_arguments(**settings)


@pytest.fixture(scope="module")
def one_process(command, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "run"
    run(*command, "--per_device_train_batch_size", "8", "--output_dir", str(folder))
    return folder


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


def test_two_processes_equal_one_with_twice_the_batch(command, one_process, tmp_path):
    """A run of two processes is not continued by one, with another batch size."""
    command = [*command, "--per_device_train_batch_size", "4", "--output_dir", str(tmp_path / "run")]
    code, output = launch(SCRIPT, *command)
    assert code == 0, output
    assert_same_run(tmp_path / "run", one_process)
    with raises_naming(ValueError, "num_processes: saved 2, now None"):
        run(*command)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows and labels, with more targets in the second half than in the first."""
    ids = random_ids(4, 12)
    labels = ids.clone()
    labels[0, :7] = labels[1, 3] = -100
    return ids, labels


def fit(model, ids: torch.Tensor, labels: torch.Tensor, num_items: torch.Tensor, num_processes: int = 1):
    """Return the losses of 20 steps as in Trainer, summed over all processes, and then those of several ensembles."""
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
    ids, labels = batch()
    with torch.no_grad():
        output = model.eval()(ids, labels=labels, ensemble_lambda=[0.0, 0.3, 1.0])
    return losses, output.loss, output.head_losses


# Tied embeddings with word differences; neither, with label smoothing; free heads.
MODELS = [
    {},
    {"tie_word_embeddings": False, "ngram_target": "simple", "label_smoothing": 0.1},
    {"head_gradient": 0.0, "ngram_head_reads": "hidden+tokens"},
]


def fit_sharded(rank: int, folder: Path) -> None:
    mesh = init_device_mesh("cpu", (2,))
    ids, labels = batch()
    for i, fields in enumerate(MODELS):
        model = tiny_model(**fields)
        for block in model.transformer.h:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
        here = sum(parameter.to_local().numel() for parameter in model.parameters())
        assert here < 0.6 * sum(parameter.numel() for parameter in model.parameters())
        rows = slice(2 * rank, 2 * rank + 2)
        results = fit(model, ids[rows], labels[rows], (labels[:, 1:] != -100).sum(), num_processes=2)
        state_options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state_dict = get_model_state_dict(model, options=state_options)
        if rank == 0:
            model.save_pretrained(folder / f"model_{i}", state_dict=state_dict)
            torch.save(results, folder / f"results_{i}.pt")
        # The check for missing head gradients also works with shards.
        with raises_naming(RuntimeError, "`ngram_heads`"):
            model.train()(ids).logits.sum().backward()


def assert_our_code(folder: Path) -> None:
    """FSDP replaces the model's class, which must not end up in a checkpoint."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["WDRNgramGPT2LMHeadModel"]
    assert config["auto_map"]["AutoModelForCausalLM"] == "modeling_wdr_ngram.WDRNgramGPT2LMHeadModel"
    assert [path.name for path in folder.glob("*.py")] == ["modeling_wdr_ngram.py"]


def test_fsdp_equals_unsharded_training(tmp_path):
    """FSDP2 of torch: each block, then the rest, sharded on two processes."""
    in_two_processes(fit_sharded, tmp_path)
    ids, labels = batch()
    for i, fields in enumerate(MODELS):
        start, model = tiny_model(**fields), tiny_model(**fields)
        expected = fit(model, ids, labels, (labels[:, 1:] != -100).sum())
        assert expected[0][-1] < expected[0][0] - 1
        torch.testing.assert_close(torch.load(tmp_path / f"results_{i}.pt"), expected, atol=1e-4, rtol=0)
        loaded, info = type(model).from_pretrained(tmp_path / f"model_{i}", output_loading_info=True)
        assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        torch.testing.assert_close(loaded.state_dict(), model.state_dict(), atol=1e-5, rtol=1e-5)
        for before, after in zip(start.ngram_heads.parameters(), loaded.ngram_heads.parameters(), strict=True):
            assert not torch.allclose(before, after, atol=1e-3)
        assert_our_code(tmp_path / f"model_{i}")


def train_sharded(rank: int, folder: Path, environment: dict[str, str], free: list[str], frozen: list[str]) -> None:
    os.environ.update(environment)
    start = AcceleratorState.__init__

    def start_sharded(self, *args, fsdp_plugin=None, **kwargs):
        start(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        # On CPUs, accelerate ignores its FSDP configuration.
        if fsdp_plugin is not None:
            self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            self.fsdp_plugin = fsdp_plugin

    AcceleratorState.__init__ = start_sharded
    run(*free)
    # Accelerate could not distribute the list of draft tokens.
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    run(*frozen)


def test_fsdp_runs(command, one_process, tmp_path):
    """FSDP2 of accelerate with the example's configuration, in float32: with free heads, and with a frozen trunk."""
    launcher = launch_command_parser().parse_args(
        ["--config_file", str(CONFIGURATIONS / "fsdp2.yaml"), "--mixed_precision", "no", "train_clm.py"]
    )
    environment = prepare_multi_gpu_env(_validate_launch_command(launcher)[0])
    environment = {name: value for name, value in environment.items() if name.startswith(("ACCELERATE_", "FSDP_"))}
    free, heads = tmp_path / "free", tmp_path / "heads"
    command = [*command, "--per_device_train_batch_size", "4", "--output_dir"]
    frozen = ["--model_name_or_path", str(one_process), "--train_mode", "heads", "--recipe", "drafts"]
    commands = [*command, str(free)], [*command, str(heads), *frozen]
    in_two_processes(train_sharded, tmp_path, environment, *commands)
    # Only FSDP writes these files.
    assert all(len(list(folder.glob("checkpoint-*/pytorch_model_fsdp.bin"))) == 2 for folder in (free, heads))
    assert_same_run(free, one_process)
    assert_our_code(free)
    before, after = (AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (one_process, heads))
    for name, weight in before.items():
        assert torch.equal(weight, after[name]) != name.startswith("ngram_heads.")


@pytest.mark.parametrize("path", sorted(CONFIGURATIONS.glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_reads_every_configuration(path):
    configuration = load_config_from_file(str(path))
    assert configuration.num_processes > 1
    assert path.read_text(encoding="utf-8").split("\n")[0].startswith("# ")
    # The launcher would ignore unknown options.
    known = vars(launch_command_parser().parse_args(["script.py"]))
    assert set(configuration.fsdp_config) <= set(known)
