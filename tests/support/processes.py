"""Subprocesses: Python, Python without the package, a script that is killed, distributed processes."""

import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = 300


def run_python(*arguments: str | Path, folder: Path = ROOT, is_silent: bool = False, **environment: str) -> str:
    """
    Run Python in `folder`, check that it succeeds (without warnings if `is_silent`), and return its output.
    `environment` is added to the current one.
    """
    command, environment = [sys.executable, *map(str, arguments)], {**os.environ, **environment}
    run = subprocess.run(command, env=environment, cwd=folder, capture_output=True, encoding="utf-8", timeout=PATIENCE)
    assert run.returncode == 0 and not (is_silent and run.stderr), run.stdout + run.stderr
    return run.stdout


def run_without_package(code: str, folder: Path, *arguments: str) -> list[str]:
    """Run `code` in `folder` as if the package were not installed, and return the printed lines."""
    script = folder / "elsewhere.py"
    script.write_text('import sys\n\nsys.modules["ngram_wdr_hf"] = None\n' + code, encoding="utf-8")
    return run_python("-I", script, *arguments, folder=folder).splitlines()


def in_two_processes(function, folder: Path, *arguments) -> None:
    """
    Call `function(rank, folder, *arguments)` in two processes of one group, joined through a file in `folder`. They
    start faster than those of `accelerate launch`, and have its ranks in their environment.
    """
    import torch.multiprocessing as mp

    # Fork from a process that has only done the imports, which take longer than the tests.
    mp.set_forkserver_preload([function.__module__])
    context = mp.start_processes(
        _join, (function, folder, *arguments), nprocs=2, join=False, start_method="forkserver"
    )
    deadline = time.monotonic() + PATIENCE
    try:
        while not context.join(timeout=1):
            assert time.monotonic() < deadline, f"Still running after {PATIENCE} seconds."
    finally:
        for process in context.processes:
            process.kill()


def _join(rank: int, function, folder: Path, *arguments) -> None:
    import torch
    import torch.distributed as dist

    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    torch.set_num_threads(1)
    store = f"file://{folder / 'processes'}"
    dist.init_process_group("gloo", store, rank=rank, world_size=2, timeout=timedelta(seconds=PATIENCE))
    function(rank, folder, *arguments)
    dist.destroy_process_group()
