"""Several runs at a time: their output, failures and interruption."""

import os
import time
from pathlib import Path

import pytest
from runner.jobs import complete
from runner.tables import Run


def scripts(folder: Path, *codes: str) -> list[Run]:
    """Return runs of scripts with this code."""
    runs = []
    for seed, code in enumerate(codes):
        script = folder / f"script{seed}.py"
        script.write_text(code)
        runs.append(Run("group", "system", seed, folder / "group" / f"system-s{seed}", {}, [[str(script), "a", "b"]]))
    return runs


def test_output_and_failures(tmp_path):
    threads = "import os, sys, torch; print(torch.get_num_threads(), os.environ['OMP_NUM_THREADS'], sys.argv[1:])"
    runs = scripts(tmp_path, threads, "import sys; print('error: no text', file=sys.stderr); sys.exit(2)")
    lines = []
    assert complete(runs, 2, lines.append) == [runs[1]]
    assert (tmp_path / "group" / "system-s0.log").read_text() == "1 1 ['a', 'b']\n"
    assert any("seed 0: finished" in line for line in lines)
    assert any("seed 1: failed" in line and line.endswith("error: no text") for line in lines)


def test_an_interruption_stops_the_runs(tmp_path):
    code = "import os, time; open('{}', 'w').write(str(os.getpid())); time.sleep(600)"
    paths = [tmp_path / f"pid{i}" for i in range(3)]
    runs = scripts(tmp_path, *(code.format(path) for path in paths))

    def notify(line: str) -> None:
        if "seed 1: started" in line:
            while not all(path.exists() and path.read_text() for path in paths[:2]):
                time.sleep(0.05)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        complete(runs, 2, notify)
    for path in paths[:2]:
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.read_text()), 0)
    assert not paths[2].exists()
