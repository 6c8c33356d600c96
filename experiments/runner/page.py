"""The page of a table: Markdown with tables and plots, written from the results alone."""

from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean

from ngram_wdr_hf.evaluation.gradient_diversity import GRADIENT_DIVERSITY
from ngram_wdr_hf.training.report import as_markdown

from .plots import plot_diversity, plot_lambda
from .results import GLUE, WITHOUT_HEADS, Results
from .stats import differences, paired, signed, summarize
from .tables import Experiment

NO_FIGURE = ""
# How much the plain model's perplexity may differ between the chosen epoch and its own best one, relatively.
SAME_EPOCH = 1e-6


def write_page(experiment: Experiment, results: Results, folder: Path) -> Path:
    """
    Write the page of a table and its plots to `folder`, and return the page's path. Runs that are not as the table has
    them now are left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    num_records = len(results.records)
    results = results.of_table(experiment)
    num_left_out = num_records - len(results.records)
    parts = [
        f"# {experiment.content['title']}",
        experiment.content["about"],
        f"Scale `{experiment.scale}`. {experiment.setup['note']} Written by "
        f"`python experiments/run.py {experiment.table} --scale {experiment.scale} --report`.",
        f"Figures are {experiment.content['metric']}, mean ± standard deviation over seeds. Differences are to the "
        "plain model of the same seed, with a 95 % interval by Student's t. The best λ, the temperature and the "
        "fitted weights are chosen on the validation set. The minutes of an interrupted run are those since it was "
        "last resumed.",
        f"Left out: {num_left_out} records of runs with other options, data or scripts." if num_left_out else "",
    ]
    for group, place in experiment.groups.items():
        if results.of(group):
            parts += [f"## {place['label']}", *_sections(experiment, results, group, folder)]
    path = folder / f"{experiment.name}.md"
    path.write_text("\n\n".join(part.strip() for part in parts if part) + "\n", encoding="utf-8")
    return path


def _sections(experiment: Experiment, results: Results, group: str, folder: Path) -> Iterable[str]:
    """Yield the tables and plots of a group."""
    for split in results.splits(group):
        title = "after fine-tuning, validation × 100" if split == GLUE else split
        yield f"### {title[0].upper()}{title[1:]}"
        yield figure_table(experiment, results, group, split)
        yield "Difference to the plain model:"
        yield difference_table(experiment, results, group, split)
    yield _plain_note(experiment, results, group)
    if any(record["lambda"] for record in results.of(group)):
        yield "### Over λ"
        for split in results.splits(group):
            if len(results.lambdas(group, split)) > 2:
                yield f"{split.capitalize()}:"
                yield lambda_table(experiment, results, group, split)
        image = f"{experiment.name}-{group}-lambda.png"
        plot_lambda(experiment, results, group, folder / image)
        yield f"![{experiment.content['metric']} over λ]({image})"
    if any(record["weights"] for record in results.of(group)):
        yield "### Fitted weights"
        yield weights_table(experiment, results, group)
    if any(record[GRADIENT_DIVERSITY] for record in results.of(group)):
        image = f"{experiment.name}-{group}-gradient-diversity.png"
        plot_diversity(experiment, results, group, folder / image)
        yield "### Gradient diversity"
        yield diversity_table(experiment, results, group)
        yield f"![Gradient diversity over epochs]({image})"
    if any("bootstrap" in record for record in results.of(group)):
        yield "### Paired bootstrap on the test set"
        yield bootstrap_table(experiment, results, group)


def _rows(
    experiment: Experiment, results: Results, group: str, heading: list[str], cells: Callable[[str], list[str] | None]
) -> str:
    """Return a table with a row per system; a system has none if it has no records, or `cells` returns `None`."""
    rows = [heading]
    for system in experiment.systems:
        found = cells(system) if results.of(group, system) else None
        if found is not None:
            rows.append([experiment.label(system), *found])
    return as_markdown(rows)


def figure_table(experiment: Experiment, results: Results, group: str, split: str) -> str:
    columns = results.columns(group, split)

    def cells(system: str) -> list[str]:
        records = results.of(group, system)
        minutes = [record["minutes"] for record in records if record["minutes"] is not None]
        found = [results.values(group, system, split, column) for column in columns]
        return [
            f"{len(records)}",
            f"{records[0]['parameters']:,}",
            f"{mean(minutes):.1f}" if minutes else NO_FIGURE,
            *(summarize([*values.values()]).text() if values else NO_FIGURE for values in found),
        ]

    return _rows(experiment, results, group, ["system", "seeds", "parameters", "minutes of training", *columns], cells)


def difference_table(experiment: Experiment, results: Results, group: str, split: str) -> str:
    columns = results.columns(group, split)

    def cells(system: str) -> list[str] | None:
        found = [
            paired(results.values(group, system, split, column), results.baseline(group, split, column))
            for column in columns
        ]
        if system == "plain" or not any(found):
            return None
        count = max(difference.count for difference in found if difference)
        return [f"{count}", *(difference.text() if difference else NO_FIGURE for difference in found)]

    return _rows(experiment, results, group, ["system", "seeds", *columns], cells)


def lambda_table(experiment: Experiment, results: Results, group: str, split: str) -> str:
    columns = [f"λ={value:g}" for value in results.lambdas(group, split)]

    def cells(system: str) -> list[str] | None:
        found = [results.values(group, system, split, column) for column in columns]
        best = sorted({record["best_lambda"] for record in results.of(group, system)} - {None})
        if not any(found):
            return None
        chosen = ", ".join(f"{value:g}" for value in best)
        return [chosen, *(summarize([*values.values()]).text() if values else NO_FIGURE for values in found)]

    return _rows(experiment, results, group, ["system", "best λ on validation", *columns], cells)


def weights_table(experiment: Experiment, results: Results, group: str) -> str:
    most = max(len(record["weights"] or ()) for record in results.of(group))

    def cells(system: str) -> list[str] | None:
        fitted = [record for record in results.of(group, system) if record["weights"]]
        if not fitted:
            return None
        means = [summarize(values).text() for values in zip(*(record["weights"] for record in fitted), strict=True)]
        temperature = summarize([record["temperature_weight"] for record in fitted]).text()
        return [temperature, *means, *([NO_FIGURE] * (most - len(means)))]

    heads = [f"head {n}" for n in range(1, most)]
    return _rows(experiment, results, group, ["system", "temperature alone", "next token", *heads], cells)


def diversity_table(experiment: Experiment, results: Results, group: str) -> str:
    """Return the table of gradient diversity: the mean of all measurements after the first, over seeds."""

    def cells(system: str) -> list[str] | None:
        values = mean_diversity(results, group, system)
        return [f"{len(values)}", summarize([*values.values()]).text(3)] if values else None

    return _rows(experiment, results, group, ["system", "seeds", "mean after the first measurement"], cells)


def mean_diversity(results: Results, group: str, system: str) -> dict[int, float]:
    """Return the mean gradient diversity by seed, without the first measurement, before the training."""
    return {
        seed: mean([*values.values()][1:])
        for seed, values in diversity_by_step(results, group, system).items()
        if len(values) > 1
    }


def diversity_by_step(results: Results, group: str, system: str) -> dict[int, dict[int, float]]:
    """Return the gradient diversity by seed and step."""
    return {
        record["seed"]: {step: value for step, _, value in record[GRADIENT_DIVERSITY]}
        for record in results.of(group, system)
    }


def bootstrap_table(experiment: Experiment, results: Results, group: str) -> str:
    rows = [["system", "seed", "translations", "BLEU", "plain", "difference", "p"]]
    for system in experiment.systems:
        for record in results.of(group, system):
            for name, test in record.get("bootstrap", {}).items():
                difference = signed(test["bleu"] - test["baseline"])
                scores = [f"{test['bleu']:.2f}", f"{test['baseline']:.2f}", difference, f"{test['p']:.3f}"]
                rows.append([experiment.label(system), f"{record['seed']}", name, *scores])
    return as_markdown(rows)


def _plain_note(experiment: Experiment, results: Results, group: str) -> str:
    """Return where the plain model's figures come from, if it has no run, and whether it had a better epoch."""
    if "plain" not in experiment.without_heads:
        return ""
    better = []
    for record in results.of(group, "plain"):
        chosen, lowest = record["validation_perplexity"], record["lowest_validation_perplexity"]
        if lowest is not None and lowest < chosen * (1 - SAME_EPOCH):
            better.append(f"{lowest:.2f} instead of {chosen:.2f} (seed {record['seed']})")
    source = experiment.label(experiment.without_heads["plain"])
    note = f"The plain model is the model of “{source}” without its heads, which do not change it."
    if better:
        note += (
            " Its epoch was chosen with the ensemble; the perplexity by token of the plain model's own best epoch "
            f"was, on validation, {', '.join(better)}."
        )
    if others := _other_free_models(experiment, results, group):
        note += (
            f" Without heads, other free systems differ from it by up to {others}: their runs are from other "
            "machines, which round differently, or had their best ensemble in another epoch."
        )
    return note


def _other_free_models(experiment: Experiment, results: Results, group: str) -> str:
    """Return how much free systems differ from the plain model without their heads, with their labels."""
    plain = results.values(group, "plain", "test", WITHOUT_HEADS)
    found = []
    for system in experiment.systems:
        is_free = any(record["options"].get("recipe") == "free" for record in results.of(group, system))
        changes = differences(results.values(group, system, "test", WITHOUT_HEADS), plain) if is_free else {}
        largest = max(map(abs, changes.values()), default=0.0)
        if largest >= 0.005:
            found.append(f"{largest:.2f} ({experiment.label(system)})")
    return ", ".join(found)
