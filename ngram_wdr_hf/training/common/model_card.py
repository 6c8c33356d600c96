"""The model card of a run, and the Markdown it is made of."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from ...method.ensemble import describe_ensemble
from .report import TaskResult, divergence

# Marks the chosen λ; an asterisk has a meaning in Markdown.
STAR = " ★"


def literal(text: str) -> str:
    """Return a string as it is written in Python code."""
    return json.dumps(text, ensure_ascii=False)


def code_block(text: str, language: str = "text") -> str:
    """Return a fenced block. Its fence is longer than any backticks in the text, which would otherwise end it."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def escape(text: str) -> str:
    """Return a text as one line of Markdown that is shown as it is, in a table as well."""
    return re.sub(r"([\\`*_\[\]<>&|~$#])", r"\\\1", " ".join(text.split()))


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts as Markdown; the first row is the heading."""
    head, *body = ([escape(cell) for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])


def save_model_card(result: TaskResult, path: Path, name: str) -> None:
    """
    Write the model card of a run: use, results, plots, samples and settings, as Markdown.

    Args:
        result (`TaskResult`): The run.
        path (`Path`): The file to write.
        name (`str`): What the example code loads: the run's folder, or its repository on the Hub.
    """
    settings = "\n".join(
        f"- `{option}`: {escape(str(value))}" for option, value in result.settings.items() if value is not None
    )
    lambda_note = ensemble_note = lambda_plot = ""
    if result.ensemble is not None:
        lambda_note = f"; the ensemble has {describe_ensemble(result.ensemble)}"
        ensemble_note = " Call `generate(..., ensemble_lambda=0.0)` to generate without the ensemble."
        lambda_plot = (
            "★: the best ensemble on the validation set, saved with the model.\n\n![Results over λ](lambda_sweep.png)"
            "\n"
        )
    remark = divergence(result.history)
    path.write_text(
        f"""---
library_name: transformers
pipeline_tag: {result.pipeline_tag}
tags:
- ngram-wdr-hf
- n-gram-prediction
---

# {result.name}

{result.kind} with N-gram heads, after [*N-gram Prediction and Word Difference Representations for Language \
Modeling*](https://hf.co/papers/2409.03295), trained with `ngram_wdr_hf`. {result.num_parameters:,} parameters, \
{result.head_parameters:,} of them in the heads{lambda_note}.{f" {remark}" if remark else ""}

## Use

{code_block(result.usage(literal(name)), "python")}

With `ngram_wdr_hf` installed and imported, `trust_remote_code` is not needed.{ensemble_note}

## Results

{result.tables()}

{lambda_plot}![Training](training.png)

## Sample

{result.sample_text()}

## Settings

{settings}
""",
        encoding="utf-8",
    )
