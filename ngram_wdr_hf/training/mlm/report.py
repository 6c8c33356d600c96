"""Results of a masked language modeling run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...evaluation.scores import MaskedScores
from ..common.model_card import as_markdown
from ..common.report import TaskResult, as_text
from ..trainer import loss_names

USAGE = """from transformers import AutoModelForMaskedLM, AutoTokenizer

model = AutoModelForMaskedLM.from_pretrained({name}, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained({name}, trust_remote_code=True)
inputs = tokenizer("It is " + tokenizer.mask_token, return_tensors="pt")
is_masked = inputs["input_ids"] == tokenizer.mask_token_id
best = model(**inputs).logits[is_masked][0].topk(5).indices
print([tokenizer.decode(token) for token in best])"""


@dataclass
class MlmResult(TaskResult):
    """
    A finished masked language modeling run.

    Args:
        scores (`dict[str, MaskedScores]`): Perplexity, accuracy and head losses by split.
        guesses (`list[tuple[str, str, str]]`): Examples of masked tokens: the text around the token, the token, and
            the model's best predictions, joined by commas.
    """

    kind = "A masked language model"
    pipeline_tag = "fill-mask"

    scores: dict[str, MaskedScores]
    guesses: list[tuple[str, str, str]]

    def metrics(self) -> dict[str, dict[str, Any]]:
        return {
            split: {
                "perplexity": scores.perplexity,
                "accuracy": scores.accuracy,
                **dict(zip(loss_names(len(scores.head_nlls), "masked_word"), scores.head_nlls, strict=True)),
                "num_masked": scores.num_masked,
                "head_counts": scores.head_counts,
            }
            for split, scores in self.scores.items()
        }

    def usage(self, name: str) -> str:
        return USAGE.format(name=name)

    def tables(self) -> str:
        return as_markdown(masked_table([self]))

    def sample_text(self) -> str:
        return as_markdown(guesses_table(self)) if self.guesses else "None."


def masked_table(results: Sequence[MlmResult]) -> list[list[str]]:
    """
    Return a table with a row per model and split: number of masked tokens, perplexity, accuracy, and the NLL of each
    head. Cells without a value are empty.
    """
    most_heads = max(result.ngram_size for result in results) - 1
    heads = [f"{n}-level NLL" for n in range(1, most_heads + 1)]
    rows = [["model", "split", "masked tokens", "perplexity", "accuracy", *heads]]
    for result in results:
        for split, scores in result.scores.items():
            cells = ["" if nll is None else f"{nll:.3f}" for nll in scores.head_nlls[1:]]
            cells += [""] * (most_heads - len(cells))
            row = [result.name, split, f"{scores.num_masked:,}", f"{scores.perplexity:.2f}", f"{scores.accuracy:.2%}"]
            rows.append([*row, *cells])
    return rows


def guesses_table(result: MlmResult) -> list[list[str]]:
    """Return a table with a row per example: the masked token, the model's predictions, and the text around it."""
    return [["token", "predictions", "text"], *([token, guesses, text] for text, token, guesses in result.guesses)]


def print_tables(results: Sequence[MlmResult]) -> None:
    """Print the results of all models in one table, a row per model and split."""
    print(f"\nMasked tokens\n\n{as_text(masked_table(results))}")


def print_guesses(result: MlmResult) -> None:
    """Print examples of masked tokens, if any: the token, the model's predictions, and below it the text around it."""
    if result.guesses:
        print(f"\n--- {result.name}")
    for text, token, guesses in result.guesses:
        print(f"{token}: {guesses}\n    {text}")
