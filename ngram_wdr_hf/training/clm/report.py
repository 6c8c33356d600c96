"""Results of a language modeling run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...evaluation.scores import Scores
from ..common.model_card import STAR, as_markdown, code_block, literal
from ..common.report import TaskResult, as_text, describe_fits, describe_mark, ensemble_table, lambda_table
from ..trainer import loss_names

USAGE = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained({name}, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained({name}, trust_remote_code=True)
inputs = tokenizer({prompt}, return_tensors="pt")
ids = model.generate(**inputs, do_sample=True, max_length={max_length})
print(tokenizer.decode(ids[0]))"""


@dataclass
class ClmResult(TaskResult):
    """
    A finished language modeling run.

    Args:
        scores (`dict[str, Scores]`): Perplexities and head losses by split.
        samples (`dict[str, str]`): Generated texts, prompt included, by label: the ensemble, with `use_mtp` also the
            tokens per forward pass.
        prompt (`str`): A prompt for example code.
        max_length (`int`): The maximum length for example code, in tokens.
    """

    kind = "A language model"
    pipeline_tag = "text-generation"
    lambda_figure = "perplexity by token"

    scores: dict[str, Scores]
    samples: dict[str, str]
    prompt: str
    max_length: int

    def metrics(self) -> dict[str, dict[str, Any]]:
        return {
            split: {
                "lambda": scores.lambdas,
                "perplexity": scores.perplexities("word"),
                "token_perplexity": scores.perplexities("token"),
                "ensembles": {
                    name: {
                        "perplexity": scores.perplexity(ensemble, "word"),
                        "token_perplexity": scores.perplexity(ensemble),
                    }
                    for name, ensemble in self.ensembles().items()
                    if ensemble in scores.ensembles
                },
                **dict(zip(loss_names(len(scores.head_nlls)), scores.head_nlls, strict=True)),
                "num_words": scores.num_words,
                "num_tokens": scores.num_tokens,
            }
            for split, scores in self.scores.items()
        }

    def usage(self, name: str) -> str:
        return USAGE.format(name=name, prompt=literal(self.prompt), max_length=self.max_length)

    def tables(self) -> str:
        parts = []
        for unit in units_of([self]):
            parts += [f"Perplexity by {unit}:", as_markdown(perplexity_table([self], unit, STAR))]
            if len(self.ensembles()) > 1:
                parts.append(as_markdown(perplexity_by_ensemble([self], unit, STAR)))
        return "\n\n".join([*parts, describe_fits([self])]).rstrip()

    def sample_text(self) -> str:
        return "\n\n".join(f"With {label}:\n\n{code_block(text)}" for label, text in self.samples.items())

    def over_lambda(self) -> dict[str, dict[float, float]]:
        return {split: scores.by_lambda() for split, scores in self.scores.items()}

    def with_weights(self) -> dict[str, float]:
        weights = self.ensembles().get("fitted", self.ensembles().get("weights"))
        if weights is None:
            return {}
        return {split: scores.perplexity(weights) for split, scores in self.scores.items()}


def perplexity_table(results: Sequence[ClmResult], unit: str, mark: str = "*") -> list[list[str]]:
    """
    Return a table of perplexities by `unit`, `"word"` or `"token"`: a row per model and split, a column per λ. An
    asterisk marks the chosen λ.
    """
    figures = [
        {split: (scores.count(unit), scores.by_lambda(unit)) for split, scores in result.scores.items()}
        for result in results
    ]
    return lambda_table(results, f"{unit}s", figures, mark)


def perplexity_by_ensemble(results: Sequence[ClmResult], unit: str, mark: str = "*") -> list[list[str]]:
    """
    Return a table of perplexities by `unit`: a row per model and split, a column per ensemble. An asterisk marks the
    chosen one.
    """
    figures = [
        {
            split: (scores.count(unit), {value: scores.perplexity(value, unit) for value in scores.ensembles})
            for split, scores in result.scores.items()
        }
        for result in results
    ]
    return ensemble_table(results, f"{unit}s", figures, mark)


def units_of(results: Sequence[ClmResult]) -> list[str]:
    """Return the units of perplexity to show: `["word"]` if every token is a word, else `["word", "token"]`."""
    all_scores = [scores for result in results for scores in result.scores.values()]
    is_same = all(scores.num_words == scores.num_tokens for scores in all_scores)
    return ["word"] if is_same else ["word", "token"]


def print_tables(results: Sequence[ClmResult]) -> None:
    """
    Print the perplexities of all models in one table per unit: by λ, or if a model has an ensemble with weights, by
    ensemble, with the weights and the gain.
    """
    has_weights = any(len(result.ensembles()) > 1 for result in results)
    table, title = perplexity_table, ""
    if has_weights:
        table, title = perplexity_by_ensemble, ", with and without the heads"
    for unit in units_of(results):
        print(f"\nPerplexity by {unit}{title} {describe_mark(results)}\n\n{as_text(table(results, unit))}")
    if not has_weights:
        return
    print(f"\n{describe_fits(results)}".rstrip())
    for result in results:
        for split, scores in result.scores.items():
            if result.fit is not None:
                print(f"{result.name}, {split}: {describe_gain(result, scores)}")


def describe_gain(result: ClmResult, scores: Scores) -> str:
    """Return how much lower the perplexity by token is with the fitted weights."""
    fitted = scores.perplexity(result.fit.ensemble)
    gains = [1 - fitted / scores.perplexity(other) for other in (0.0, result.fit.temperature)]
    return f"perplexity {gains[0]:.1%} below the model without heads, {gains[1]:.1%} below temperature alone"


def print_samples(result: ClmResult) -> None:
    """Print the generated texts of one model, if any."""
    for label, text in result.samples.items():
        print(f"\n--- {result.name}, {label}\n{text}")
