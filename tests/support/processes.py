"""Subprocesses: Python that starts at once, without the package, a script that is killed, distributed processes."""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from functools import cache
from pathlib import Path

import pytest

from tests.support.scripts import weights_of

ROOT = Path(__file__).parents[2]
CONFIGURATIONS = ROOT / "examples" / "accelerate"
PATIENCE = 300


@cache
def warm_python() -> list[str]:
    """
    Return a command to use like `python`, for processes that have torch and Transformers imported from the start, but
    not the package: the imports take longer than most of what such processes are for. They are forked from one parent,
    with the settings of its environment that these libraries read while they are imported, such as HF_HOME.
    """
    folder, here = tempfile.mkdtemp(prefix="warm_"), Path(__file__).parent
    address = f"{folder}/address"
    command = [sys.executable, "-I", str(here / "warm_parent.py"), address]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout.readline() == b"listening\n"

    def end() -> None:
        parent.communicate()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return [sys.executable, "-I", "-S", str(here / "warm_client.py"), address]


def run_python(*arguments: str, is_warm: bool = False, is_silent: bool = False, **environment: str) -> str:
    """
    Run Python, or `warm_python`, with these arguments, check that it succeeds (without warnings if `is_silent`), and
    return its output. `environment` is added to the current one.
    """
    run = subprocess.run(
        [*(warm_python() if is_warm else [sys.executable]), *arguments],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=PATIENCE,
    )
    assert run.returncode == 0 and not (is_silent and run.stderr), run.stderr
    return run.stdout


def run_without_package(code: str, folder: Path, *arguments: str) -> list[str]:
    """Run `code` in `folder` as if the package were not installed, and return the printed lines."""
    script = folder / "elsewhere.py"
    script.write_text('import sys\n\nsys.modules["ngram_wdr_hf"] = None\n' + code, encoding="utf-8")
    run = subprocess.run(
        [*warm_python(), "-I", str(script), *arguments],
        env={"PATH": ""},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def killed_and_resumed(run, folder: Path, options: list[str], subfolder: str = "") -> tuple[Path, Path]:
    """
    Repeat a script's `run` of 40 steps that was killed soon after step 10, where it saves. Return the folders of one
    that was not, and of this one, whose weights are the same.
    """
    import torch.multiprocessing as mp

    whole, parts = ([*options, "--output_dir", str(folder / name)] for name in ("complete", "broken"))
    complete, broken = (folder / name / subfolder for name in ("complete", "broken"))
    run(*whole)
    mp.set_forkserver_preload([run.__module__])
    process = mp.get_context("forkserver").Process(target=run, args=parts)
    process.start()
    deadline = time.monotonic() + PATIENCE
    while not (broken / "checkpoint-10" / "trainer_state.json").exists():
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.join()
    assert not (broken / "model.safetensors").exists()
    # Simulate a kill during saving.
    (broken / "checkpoint-40").mkdir()
    (broken / "checkpoint-40" / "trainer_state.json").write_text('{"epoch": 1')
    run(*parts)
    assert weights_of(broken) == weights_of(complete)
    return complete, broken


def launch(script: Path, *arguments: str) -> tuple[int, str]:
    """Run `accelerate launch` with two processes and return the exit code and the output."""
    command = [*warm_python(), "-m", "accelerate.commands.launch"]
    command += ["--config_file", str(CONFIGURATIONS / "cpu_2_processes.yaml"), str(script), *arguments]
    process = subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
    )
    try:
        output, _ = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        # SIGTERM makes the launcher stop its processes, which would otherwise wait forever.
        process.terminate()
        output, _ = process.communicate(timeout=PATIENCE)
        pytest.fail(f"Still running after {PATIENCE} seconds:\n{output}")
    return process.returncode, output


def in_two_processes(function, folder: Path, *arguments) -> None:
    """
    Call `function(rank, folder, *arguments)` in two processes of one group, joined through a file in `folder`. They
    start faster than those of `launch`, and have its ranks in their environment.
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
