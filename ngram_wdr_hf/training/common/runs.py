"""All runs of a command: one, or one for each kind of model."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from .arguments import RunArguments
from .hub import make_repository, push_run
from .lock import lock
from .plots import save_gradient_diversity_plot, save_lambda_plot, save_training_plot
from .report import TaskResult
from .run import Run
from .run_folder import EVALUATION
from .settings import best_metric, check_together, comparison_runs, output_folder, with_data_of_run
from .train import end_if_diverged

ResultType = TypeVar("ResultType", bound=TaskResult)


def run_all(
    arguments: RunArguments,
    complete: Callable[[Run], ResultType],
    print_results: Callable[[list[ResultType]], None],
) -> list[ResultType]:
    """
    Do the run of these options and, with `--compare`, one for each other kind of model. `complete` does one of them.
    Return the results, printed and saved, that of the options first.
    """
    arguments, repository = begin(arguments)
    with in_their_folders(all_runs(arguments, repository)) as runs:
        results = [complete(run) for run in runs]
        if arguments.training.process_index == 0:
            print_results(results)
            finish(arguments, results, repository)
    return results


def begin(arguments: RunArguments) -> tuple[RunArguments, str | None]:
    """
    Check the options together and complete them; without training, data options come from the evaluated run. Return
    the options and the id of the repository on the Hub to push to, created here. It is `None` if the run is not
    pushed, or not by this process.
    """
    check_together(arguments)
    training = arguments.training
    training.metric_for_best_model = best_metric(arguments)
    if training.metric_for_best_model == "accepted_drafts":
        training.greater_is_better = True
    repository = make_repository(training) if training.process_index == 0 else None
    # Trainer would push its own model card.
    training.push_to_hub = False
    return arguments if training.do_train else with_data_of_run(arguments), repository


def all_runs(arguments: RunArguments, repository: str | None = None) -> list[Run]:
    """
    Return the run of these options, to be pushed to `repository` unless `None`, and with `--compare`, one for each
    other kind of model, in a subfolder.
    """
    first = Run(arguments, repository)
    others = comparison_runs(arguments) if arguments.report.compare else ()
    return [first, *(Run(other, first=first) for other in others)]


@contextmanager
def in_their_folders(runs: Iterable[Run]) -> Iterator[Iterator[Run]]:
    """Hold the lock on the folder of each of these runs, from the run's turn to the end. Raise as `lock` does."""
    with ExitStack() as locks:
        yield (run for run in runs if lock(run.folder.path, locks) is None)


def finish(arguments: RunArguments, results: Sequence[TaskResult], repository: str | None) -> None:
    """
    Plot the comparison of `--compare`, print where the results are, and push them to `repository`, unless `None`. For
    the first process only.
    """
    folder = output_folder(arguments)
    if arguments.report.compare:
        save_lambda_plot(results, folder / "comparison.png")
        save_training_plot(results, folder / "comparison_training.png")
        save_gradient_diversity_plot(results, folder / "comparison_gradient_diversity.png")
    if arguments.training.do_train:
        print(f"\nSaved in {folder}: the model, README.md, metrics.json and the plots.")
    else:
        print(f"\nSaved in {folder}: {EVALUATION}.md and {EVALUATION}.json.")
    end_if_diverged({result.name: result.history for result in results})
    if repository is not None:
        push_run(folder, repository, arguments.training)
        print(f"Pushed to {repository}.")
