"""Every table at its smallest scale, through the runner."""

import json
import shutil

import pytest
from runner.tables import load_experiment, table_names

from experiments.run import main
from tests.support.scripts import contents


@pytest.mark.parametrize("table", table_names())
def test_smoke(table, tmp_path, capsys):
    experiment = load_experiment(table, "smoke")
    places = [f"--{name}={tmp_path / name}" for name in ("runs", "results", "pages")]
    command = [table, "--scale", "smoke", *places]
    main(command)
    printed = capsys.readouterr().out
    assert printed.count("finished after") == len(experiment.runs(tmp_path / "runs", None, [1]))
    path, page = tmp_path / "results" / f"{table}-smoke.json", tmp_path / "pages" / f"{table}-smoke.md"
    records = json.loads(path.read_text(encoding="utf-8"))["runs"]
    assert {(record["group"], record["system"]) for record in records} == {
        (group, system) for group in experiment.groups for system in experiment.systems
    }
    for record in records:
        assert record["figures"].keys() >= {"validation", "test"}
        plain = next(r for r in records if (r["group"], r["system"]) == (record["group"], "plain"))
        assert plain["head_parameters"] == 0 < plain["parameters"] <= record["parameters"]
    text = page.read_text(encoding="utf-8")
    assert all(experiment.label(system) in text for system in experiment.systems)
    assert all((page.parent / part.split(")")[0]).is_file() for part in text.split("](")[1:])

    # Nothing is trained again, and the page needs only the results.
    before = contents(tmp_path / "runs")
    main(command)
    assert "0 to train" in capsys.readouterr().out and contents(tmp_path / "runs") == before
    assert page.read_text(encoding="utf-8") == text
    shutil.rmtree(tmp_path / "runs")
    for again in (command, [*command, "--report"]):
        page.unlink()
        main(again)
        assert page.read_text(encoding="utf-8") == text
    assert not list((tmp_path / "runs").rglob("metrics.json"))
