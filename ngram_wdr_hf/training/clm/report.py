"""What a language modeling run leaves to look at."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...evaluation.scores import Scores
from ..common.report import RunResult, as_markdown, as_text, plot_over_lambda, write_metrics, write_model_card
from ..trainer import loss_names

USAGE = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("THIS_FOLDER", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")"""


@dataclass
class ClmResult(RunResult):
    """
    A finished language modeling run.

    Args:
        scores (`dict[str, Scores]`): By split.
        samples (`dict[str, str]`): Generated text by λ, as a label.
    """

    scores: dict[str, Scores]
    samples: dict[str, str]


def save_metrics(result: ClmResult, path: Path) -> None:
    splits = {
        split: {
            "lambda": scores.lambdas,
            "perplexity": scores.perplexities("word"),
            "token_perplexity": scores.perplexities("token"),
            **dict(zip(loss_names(len(scores.head_nlls)), scores.head_nlls, strict=True)),
            "num_words": scores.num_words,
            "num_tokens": scores.num_tokens,
        }
        for split, scores in result.scores.items()
    }
    write_metrics(result, splits, path)


def perplexity_table(results: Sequence[ClmResult], unit: str) -> list[list[str]]:
    """Perplexity by `"word"` or `"token"` for every model, split and λ; a star marks the λ that was chosen."""
    lambdas = sorted({value for result in results for scores in result.scores.values() for value in scores.lambdas})
    rows = [["model", "split", f"{unit}s", *(f"λ={value:g}" for value in lambdas)]]
    for result in results:
        for split, scores in result.scores.items():
            by_lambda = dict(zip(scores.lambdas, scores.perplexities(unit), strict=True))
            cells = []
            for value in lambdas:
                mark = "*" if value == result.ensemble_lambda and result.head_parameters else ""
                # Without heads there is nothing to mix: one figure says it all.
                is_shown = value in by_lambda and (result.head_parameters or value == lambdas[0])
                cells.append(f"{by_lambda[value]:.2f}{mark}" if is_shown else "")
            rows.append([result.name, split, f"{scores.count(unit):,}", *cells])
    return rows


def units_of(results: Sequence[ClmResult]) -> list[str]:
    """By word, and if tokens are not words also by token."""
    all_scores = [scores for result in results for scores in result.scores.values()]
    is_same = all(scores.num_words == scores.num_tokens for scores in all_scores)
    return ["word"] if is_same else ["word", "token"]


def print_tables(results: Sequence[ClmResult]) -> None:
    for unit in units_of(results):
        print(f"\nPerplexity by {unit} (* the λ chosen on validation)\n\n{as_text(perplexity_table(results, unit))}")


def save_lambda_plot(results: Sequence[ClmResult], path: Path) -> None:
    """Perplexity over λ for every split."""
    splits = list(dict.fromkeys(split for result in results for split in result.scores))

    def perplexities(result: ClmResult, split: str) -> dict[float, float]:
        scores = result.scores[split]
        return dict(zip(scores.lambdas, scores.perplexities("word"), strict=True))

    plot_over_lambda(results, splits, perplexities, "perplexity by word", path)


def save_model_card(result: ClmResult, path: Path) -> None:
    tables = "\n\n".join(
        f"Perplexity by {unit}:\n\n{as_markdown(perplexity_table([result], unit))}" for unit in units_of([result])
    )
    samples = "\n\n".join(f"λ = {label}:\n\n```text\n{text}\n```" for label, text in result.samples.items())
    tags = ["pipeline_tag: text-generation"]
    write_model_card(result, path, kind="A language model", tags=tags, usage=USAGE, tables=tables, samples=samples)
