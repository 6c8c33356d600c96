"""Results of a language modeling run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...evaluation.scores import Scores
from ..common.report import TaskResult, as_markdown, as_text, lambda_table
from ..trainer import loss_names

USAGE = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("THIS_FOLDER", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")"""


@dataclass
class ClmResult(TaskResult):
    """
    A finished language modeling run.

    Args:
        scores (`dict[str, Scores]`): Perplexities and head losses by split.
        samples (`dict[str, str]`): Generated texts, prompt included, by label: λ, with `use_mtp` also the tokens per
            forward pass.
    """

    kind = "A language model"
    pipeline_tag = "text-generation"
    usage = USAGE
    lambda_figure = "perplexity by word"

    scores: dict[str, Scores]
    samples: dict[str, str]

    def metrics(self) -> dict[str, dict[str, Any]]:
        return {
            split: {
                "lambda": scores.lambdas,
                "perplexity": scores.perplexities("word"),
                "token_perplexity": scores.perplexities("token"),
                **dict(zip(loss_names(len(scores.head_nlls)), scores.head_nlls, strict=True)),
                "num_words": scores.num_words,
                "num_tokens": scores.num_tokens,
            }
            for split, scores in self.scores.items()
        }

    def tables(self) -> str:
        return "\n\n".join(
            f"Perplexity by {unit}:\n\n{as_markdown(perplexity_table([self], unit))}" for unit in units_of([self])
        )

    def sample_text(self) -> str:
        return "\n\n".join(f"λ = {label}:\n\n```text\n{text}\n```" for label, text in self.samples.items())

    def over_lambda(self) -> dict[str, dict[float, float]]:
        return {split: scores.by_lambda("word") for split, scores in self.scores.items()}


def perplexity_table(results: Sequence[ClmResult], unit: str) -> list[list[str]]:
    """
    Return a table of perplexities by `unit`, `"word"` or `"token"`: a row per model and split, a column per λ. An
    asterisk marks the chosen λ.
    """
    figures = [
        {split: (scores.count(unit), scores.by_lambda(unit)) for split, scores in result.scores.items()}
        for result in results
    ]
    return lambda_table(results, f"{unit}s", figures)


def units_of(results: Sequence[ClmResult]) -> list[str]:
    """Return the units of perplexity to show: `["word"]` if every token is a word, else `["word", "token"]`."""
    all_scores = [scores for result in results for scores in result.scores.values()]
    is_same = all(scores.num_words == scores.num_tokens for scores in all_scores)
    return ["word"] if is_same else ["word", "token"]


def print_tables(results: Sequence[ClmResult]) -> None:
    """Print the perplexities of all models in one table per unit."""
    for unit in units_of(results):
        print(f"\nPerplexity by {unit} (* the λ chosen on validation)\n\n{as_text(perplexity_table(results, unit))}")


def print_samples(result: ClmResult) -> None:
    """Print the generated texts of one model, if any."""
    for label, text in result.samples.items():
        print(f"\n--- {result.name}, λ={label}\n{text}")
