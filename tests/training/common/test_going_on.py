"""Runs that go on after their end: for more steps or epochs."""

import json
import shutil

import pytest
import yaml
from safetensors.torch import load_file

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.training.common.checkpoints import read_state
from ngram_wdr_hf.training.run_trainer import Processes
from tests.support.errors import assert_names, raises_naming
from tests.support.scripts import as_arguments, contents, metrics_of, weights_of


@pytest.mark.parametrize("name", ["clm", "nmt", "mlm", "glue"])
def test_longer_run_equals_one_from_the_start(name, request, tmp_path):
    script = request.getfixturevalue(name)
    short, long = script.lengths
    folder, expected = tmp_path / "parts", tmp_path / "whole"
    run_folder = script(folder, short)
    before = read_state(run_folder)
    script(folder, long)
    whole = script(expected, long)
    assert weights_of(run_folder) == weights_of(whole)
    assert (run_folder / "run.yaml").read_text() == (whole / "run.yaml").read_text()
    after = read_state(run_folder)
    assert before.global_step < after.global_step == read_state(whole).global_step
    histories = [read_state(path).log_history for path in (run_folder, whole)]
    losses = [[entry["loss"] for entry in history if "loss" in entry] for history in histories]
    assert losses[0] == losses[1] and len(losses[0]) > before.global_step


def test_the_beginning_says_what_is_there(clm, tmp_path, capsys):
    folder, lines = tmp_path / "run", []
    for length in ("--max_steps 2", "--max_steps 2", "--max_steps 3"):
        clm(folder, length)
        printed = capsys.readouterr().out.split("\n")
        start = next(i for i, line in enumerate(printed) if "parameters" in line)
        lines.append(printed[start : start + 2])
    state = load_file(folder / "model.safetensors")
    parameters = sum(weight.numel() for weight in state.values())
    tokens = metrics_of(folder)["splits"]["validation"]["num_tokens"]
    assert all(f"{parameters:,} " in line and f"validation {tokens:,} tokens" in line for line, _ in lines)
    assert ["2 steps" in line for _, line in lines] == [True, True, False]
    assert str(folder / "checkpoint-2") in lines[2][1] and "3 steps" in lines[2][1]


def test_from_a_checkpoint_or_folder_of_another_run(clm, undisturbed, tmp_path):
    """Also the length of a checkpoint's run is no limit."""
    before = contents(undisturbed)
    whole = clm(tmp_path / "whole", "--max_steps 6")
    for name, start in (("b", undisturbed / "checkpoint-4"), ("c", undisturbed)):
        folder = clm(tmp_path / name, "--max_steps 6", "--resume_from_checkpoint", str(start))
        assert weights_of(folder) == weights_of(whole) != weights_of(undisturbed)
    assert contents(undisturbed) == before
    with raises_naming(InputError, "`--max_steps`", "3", "4"):
        clm(tmp_path / "d", "--max_steps 3", "--resume_from_checkpoint", str(undisturbed))
    (tmp_path / "empty").mkdir()
    with raises_naming(InputError, "`--resume_from_checkpoint"):
        clm(tmp_path / "d", "--max_steps 3", "--resume_from_checkpoint", str(tmp_path / "empty"))


@pytest.mark.parametrize(
    "option, value", [("learning_rate", 1e-3), ("weight_decay", 0.1), ("lr_scheduler_type", "linear")]
)
def test_a_checkpoint_with_another_optimizer(clm, undisturbed, tmp_path, option, value):
    """Trainer would restore the old one, and ignore the option."""
    start = undisturbed / "checkpoint-4"
    with raises_naming(InputError, f"`--{option} {value}`", str(start)):
        clm(
            tmp_path / "run",
            "--max_steps 6",
            "--resume_from_checkpoint",
            str(start),
            *as_arguments(**{option: value}),
        )
    assert not (tmp_path / "run").exists()


def test_lengths_that_do_not_fit(clm, undisturbed, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(undisturbed, folder)
    before = contents(folder)
    for shorter in ("--max_steps 3", "--max_steps -1 --num_train_epochs 0.01"):
        with raises_naming(InputError, f"`{shorter.split()[-2]}`", "4 steps"):
            clm(folder, shorter)
    for path in folder.glob("checkpoint-*"):
        shutil.rmtree(path)
    with raises_naming(InputError, f"`--output_dir {folder}`", "`--model_name_or_path"):
        clm(folder, "--max_steps 6")
    assert contents(folder) == {path: text for path, text in before.items() if "checkpoint-" not in path.parts[-2]}


def test_another_number_of_processes(clm, undisturbed, tmp_path):
    """The batch size would change with it. Older checkpoints do not say their number."""
    folder = tmp_path / "run"
    shutil.copytree(undisturbed, folder)
    path = folder / "checkpoint-4" / "trainer_state.json"
    state = json.loads(path.read_text())
    assert state["stateful_callbacks"].pop("Processes")["attributes"] == {"number": 1}
    processes = {"args": {}, "attributes": {"number": 2}}
    path.write_text(
        json.dumps({**state, "stateful_callbacks": {**state["stateful_callbacks"], "Processes": processes}})
    )
    before = contents(folder)
    with raises_naming(InputError, str(folder / "checkpoint-4"), "2 processes", "1 process,"):
        clm(folder, "--max_steps 5")
    assert contents(folder) == before
    clm(tmp_path / "other", "--max_steps 5", "--resume_from_checkpoint", str(folder))
    path.write_text(json.dumps(state))
    clm(folder, "--max_steps 5")
    assert weights_of(folder) == weights_of(tmp_path / "other")
    for run_folder in (folder, tmp_path / "other"):
        assert Processes.number_in(read_state(run_folder)) == 1


def test_schedule_that_depends_on_the_length(clm, tmp_path, capsys):
    schedule = as_arguments(lr_scheduler_type="linear")
    folder = clm(tmp_path / "run", "--max_steps 4", *schedule)
    assert "`--max_steps`" not in capsys.readouterr().out
    clm(folder, "--max_steps 8", *schedule)
    assert "`--max_steps`" in capsys.readouterr().out
    rates = [entry["learning_rate"] for entry in metrics_of(folder)["history"] if "learning_rate" in entry]
    assert rates == pytest.approx([0.01 * share for share in (1, 3 / 4, 2 / 4, 1 / 4, 4 / 8, 3 / 8, 2 / 8, 1 / 8)])
    assert yaml.safe_load((folder / "run.yaml").read_text())["max_steps"] == 8


def _line_with(capsys, text: str) -> str:
    """Return the only printed line that contains a text."""
    (line,) = [line for line in capsys.readouterr().out.split("\n") if text in line]
    return line


def test_early_stopping_ends_a_longer_run_as_well(clm, tmp_path, capsys):
    options = as_arguments(learning_rate=0.3, patience=1)
    folder = clm(tmp_path / "run", "--max_steps 20", *options)
    step, weights = read_state(folder).global_step, weights_of(folder)
    assert step < 20
    assert_names(_line_with(capsys, "`--patience"), f"step {step}")
    for length in ("--max_steps 20", "--max_steps 40"):
        clm(folder, length, *options)
        assert_names(_line_with(capsys, "`--patience"), str(folder), f"{step} steps")
    assert read_state(folder).global_step == step and weights_of(folder) == weights
    assert metrics_of(folder)["settings"]["max_steps"] == 40
