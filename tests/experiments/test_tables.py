"""Tables: their commands are those of the scripts, at every scale. Bad input."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from runner.tables import Experiment, load_experiment, merge, table_names

from experiments.run import main
from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.training.new_models import BACKBONES
from ngram_wdr_hf.training.parsing import parse
from tests.support.errors import raises_naming

SCALES = ("paper", "small", "smoke")
TASKS = {
    "train_clm.py": "clm",
    "present_heads.py": "clm",
    "train_nmt.py": "nmt",
    "train_mlm.py": "mlm",
    "finetune_glue.py": "glue",
}


def experiments() -> list[Experiment]:
    return [load_experiment(table, scale) for table in table_names() for scale in SCALES]


def options_of(task: str, words: list[str], monkeypatch) -> tuple[Any, ...]:
    """Return the options of a command, as its script parses them."""
    module = import_module(f"ngram_wdr_hf.training.{task}")

    def stop(*arguments, **options):
        raise SystemExit(parse(*arguments, **options))

    monkeypatch.setattr(module, "parse", stop)
    with pytest.raises(SystemExit) as parsed:
        module.main(words)
    return parsed.value.code


@pytest.mark.parametrize("experiment", experiments(), ids=lambda experiment: experiment.name)
def test_every_command_is_accepted(experiment, tmp_path, monkeypatch):
    runs = experiment.runs(tmp_path, tmp_path, [1])
    assert len({run.folder for run in runs}) == len(runs) > 1
    for run in runs:
        for script, *words in run.commands:
            assert Path(script).is_file()
            data, model, training = options_of(TASKS[Path(script).name], words, monkeypatch)
            if script.endswith("finetune_glue.py"):
                assert str(run.folder) in (vars(data) | vars(model)).values()
                continue
            config_class = BACKBONES[model.presets[model.preset].backbone].config_class
            assert model.overrides.keys() <= {*config_class.__dataclass_fields__, *config_class.attribute_map}
            assert training.seed == 1 and training.output_dir == str(run.folder)


@pytest.mark.parametrize("experiment", experiments(), ids=lambda experiment: experiment.name)
def test_names_in_a_table_exist(experiment):
    systems = experiment.content["systems"]
    assert {"plain", *experiment.setup.get("system_options", {})} <= systems.keys()
    for derived, source in experiment.without_heads.items():
        assert systems[source]["options"]["recipe"] == "free" and derived in experiment.systems
    for claim in experiment.content["claims"]:
        sides = [side for pair in claim.get("pairs", ()) for side in (pair["of"], pair["to"])]
        assert {system for system, _ in sides} <= systems.keys()
    assert ("data" in next(iter(experiment.groups.values()))) <= (experiment.scale != "smoke")


def test_a_plain_model_with_a_free_twin_needs_no_run(tmp_path):
    experiment = load_experiment("ptb", "small")
    assert {run.system for run in experiment.runs(tmp_path, tmp_path, [1])} == {*experiment.systems} - {"plain"}
    assert experiment.select(["plain", "wdr-2"]) == [("ptb", "free-wdr-4"), ("ptb", "wdr-2")]
    assert ("ptb", "plain") in load_experiment("ptb", "paper").select(None)


def test_seeds_come_first_and_options_are_merged(tmp_path):
    runs = load_experiment("ptb", "small").runs(tmp_path, tmp_path, [2, 1], ["wdr-2", "ptb/wdr-3"])
    assert [run.name for run in runs] == [f"ptb/wdr-{n} seed {seed}" for seed in (2, 1) for n in (2, 3)]
    merged = merge({"a": 1, "config_overrides": ["x=1"]}, {"a": 2}, {"config_overrides": ["y=2"]})
    assert merged == {"a": 2, "config_overrides": ["x=1", "y=2"]}


def test_texts_are_cut_once(tmp_path):
    for name in ("train", "valid", "test"):
        (tmp_path / f"ptb.{name}.txt").write_text("".join(f"line {i}\n" for i in range(9000)))
    experiment = load_experiment("ptb", "small")
    experiment.prepare(tmp_path / "runs", tmp_path)
    cut = tmp_path / "runs" / "data" / "8000-lines-ptb.train.txt"
    assert cut.read_text().splitlines() == [f"line {i}" for i in range(8000)]


@pytest.mark.parametrize(
    "arguments, names",
    [
        ("ptb --scale smoke --only wdr-9", ["--only wdr-9", "wdr-4"]),
        ("ptb --data missing", ["missing", "ptb.train.txt"]),
        ("ptb --report --results .", ["ptb-small.json"]),
    ],
)
def test_bad_input(arguments, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with raises_naming(InputError, *names):
        main(arguments.split())
    assert not any(tmp_path.iterdir())
