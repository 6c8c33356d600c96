"""
Run the experiments of the paper: train what is missing, collect the figures, write the page.

    python experiments/run.py ptb --scale small --data PTB --seeds 1 2 3 --jobs 2
    python experiments/run.py nmt --scale small --data MULTI30K --only free-wdr wdr
    python experiments/run.py ptb --scale smoke                # about a minute, no data files
    python experiments/run.py ptb --scale small --report       # only the page, from experiments/results

Tables: ptb, primary, nmt, mlm (experiments/tables). Repeat a command to resume after an interruption. Runs in the
results are not trained again, even if their folders are gone. `python experiments/verdicts.py` then judges the
paper's claims.
"""

import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

from runner.collect import collect, is_finished, is_recorded
from runner.jobs import complete
from runner.page import write_page
from runner.results import Results
from runner.tables import ROOT, Experiment, load_experiment, table_names

from ngram_wdr_hf.cli import run_script
from ngram_wdr_hf.data.errors import InputError


def parse(arguments: Sequence[str]) -> Namespace:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=table_names(), help="Name of the table.")
    parser.add_argument(
        "--scale",
        default="small",
        help="`paper`, for a GPU; `small`, for a CPU; `short`, its first epochs; `smoke`, a test.",
    )
    parser.add_argument("--data", type=Path, help="Folder of the data files that the scale needs.")
    parser.add_argument("--seeds", type=int, nargs="+", help="Seeds to train with. Default: those of the scale.")
    parser.add_argument("--jobs", type=int, default=1, help="Number of runs at a time, with one thread each.")
    parser.add_argument("--only", nargs="+", help="Systems to train: `system` or `group/system`. Default: all.")
    parser.add_argument("--runs", type=Path, help="Folder of the runs. Default: runs/TABLE-SCALE.")
    parser.add_argument("--report", action="store_true", help="Train nothing, and write the page from the results.")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "experiments" / "results", help="Folder of the figures."
    )
    parser.add_argument("--pages", type=Path, default=ROOT / "docs" / "results", help="Folder of the pages.")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        raise InputError(f"`--jobs` must be at least 1, got {options.jobs}.")
    return options


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    experiment = load_experiment(options.table, options.scale)
    path = options.results / f"{experiment.name}.json"
    failed = [] if options.report else train(experiment, options, path)
    page = write_page(experiment, Results.load(path), options.pages)
    print(f"Written: {path}, {page}")
    if failed:
        raise InputError(f"{len(failed)} runs failed: {', '.join(failed)}. Correct the cause, and repeat the command.")


def train(experiment: Experiment, options: Namespace, path: Path) -> list[str]:
    """
    Train the missing runs, write the figures of all finished ones to `path`, and return the names of those that
    failed.
    """
    folder = (options.runs or Path("runs") / experiment.name).absolute()
    data = options.data.absolute() if options.data is not None else None
    seeds = list(dict.fromkeys(options.seeds or experiment.setup["seeds"]))
    runs = experiment.runs(folder, data, seeds, options.only)
    experiment.prepare(folder, data)
    results = Results.load(path) if path.exists() else Results(experiment.table, experiment.scale)
    missing = [run for run in runs if not (is_recorded(run, results) or is_finished(run))]
    print(f"{experiment.name}: {len(runs)} runs, {len(missing)} to train. Folder: {folder}", flush=True)
    failed = complete(missing, options.jobs, lambda line: print(line, flush=True))
    # Also those of earlier commands, for comparisons.
    collect(experiment, experiment.runs(folder, data, seeds), results)
    results.save(path)
    return [run.name for run in failed]


if __name__ == "__main__":
    sys.exit(run_script(main))
