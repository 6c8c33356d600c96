"""Several runs at a time, each in a process of its own with one thread."""

import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path

from .tables import ROOT, Run

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
# Imported once for all runs: the imports take longer than a short run.
IMPORTS = ["__main__", *(f"ngram_wdr_hf.training.{task}" for task in ("clm", "nmt", "mlm", "glue"))]
# Seconds between two progress lines of a run, and for a stopped run to end.
PROGRESS_SECONDS, STOP_SECONDS = 60, 30

Notify = Callable[[str], None]


class Job:
    """A run in its process, with a log file beside its folder."""

    def __init__(self, run: Run):
        self.run = run
        self.log = run.folder.with_name(f"{run.folder.name}.log")
        self.start = self.told = time.monotonic()
        self.shown: str | None = None
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTS)
        self.process = context.Process(target=_execute, args=(run.commands, str(self.log)), name=run.name)
        self.process.start()

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self.start) / 60

    def progress(self) -> str | None:
        """Return the run's last line about an evaluation, if it is new and the last report is long enough ago."""
        if time.monotonic() - self.told < PROGRESS_SECONDS:
            return None
        self.told = time.monotonic()
        line = last_line(self.log, "validation perplexity")
        is_new, self.shown = line != self.shown, line
        return line if is_new else None


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Let Ctrl-C wait: a job that is just starting could not be stopped."""
    held = []
    # A signal mask would not do: it is one thread's, and any thread of the process can take the signal.
    handler = signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if held:
        signal.raise_signal(signal.SIGINT)


def stop(jobs: Sequence[Job]) -> None:
    """Ask the processes to end, and kill those that do not."""
    for job in jobs:
        job.process.terminate()
    for job in jobs:
        job.process.join(STOP_SECONDS)
        job.process.kill()
        job.process.join()


def complete(runs: Sequence[Run], jobs: int, notify: Notify) -> list[Run]:
    """
    Execute the commands of all runs, up to `jobs` at a time, and return the runs that failed. `notify` gets a line for
    every run that starts, progresses or ends. If this is interrupted, all processes are stopped.
    """
    os.environ.update(ONE_THREAD)
    # For the imports of the processes' common parent.
    paths = [str(ROOT), str(ROOT / "experiments"), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    waiting, running, failed = list(runs), [], []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                with held_interrupts():
                    running.append(Job(waiting.pop(0)))
                notify(f"{running[-1].run.name}: started, {len(waiting)} waiting")
            wait([job.process.sentinel for job in running], timeout=1)
            for job in [job for job in running if not job.process.is_alive()]:
                running.remove(job)
                job.process.join()
                if job.process.exitcode == 0:
                    notify(f"{job.run.name}: finished after {job.minutes:.1f} minutes")
                else:
                    failed.append(job.run)
                    notify(f"{job.run.name}: failed, see {job.log}: {last_line(job.log)}")
            for job in running:
                if line := job.progress():
                    notify(f"{job.run.name}: {line}, {job.minutes:.0f} minutes")
    finally:
        stop(running)
    return failed


def last_line(log: Path, part: str = "") -> str | None:
    """Return the last line of a log that contains `part` and is not empty, without repeated spaces."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    found = [line for line in lines if part in line and line.strip()]
    return " ".join(found[-1].split()) if found else None


def _execute(commands: list[list[str]], log: str) -> None:
    """Execute the commands one after the other in this process, up to one that fails, and write their output."""
    import torch

    # Away from the terminal: Ctrl-C reaches the runner, which stops its runs.
    os.setsid()
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # For progress lines.
    sys.stdout.reconfigure(line_buffering=True)
    torch.set_num_threads(1)
    for words in commands:
        sys.argv = words
        try:
            runpy.run_path(words[0], run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise
