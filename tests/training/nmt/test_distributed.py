"""`train_nmt.py` in two processes, against one that accumulates. On CPUs, by gloo."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from tests.support.nmt_runs import QUICK, SIZES, run, translations_of
from tests.support.processes import in_two_processes
from tests.support.scripts import as_arguments, metrics_of
from tests.support.tiny import plain_seq2seq

OPTIONS = as_arguments(
    max_steps=40,
    batch_tokens=240,
    eval_steps=10,
    # Some gradients are zero up to rounding, which Adam would scale to full steps.
    adam_epsilon=1e-5,
    learning_rate=1e-2,
    lr_scheduler_type="constant",
    ngram_size=3,
    # Translates in every evaluation, by both processes.
    metric_for_best_model="bleu",
)


@pytest.fixture(scope="module")
def options(marian, pairs, tmp_path_factory) -> list[str]:
    """Without dropout, because each process has its own random state."""
    folder, tokenizer = tmp_path_factory.mktemp("without_dropout"), AutoTokenizer.from_pretrained(marian)
    tokenizer.save_pretrained(folder)
    sizes = {**SIZES, "dropout": 0.0}
    plain_seq2seq("marian", vocab_size=len(tokenizer), **sizes).save_pretrained(folder)
    return ["--model_name_or_path", str(folder), *pairs, *QUICK, *OPTIONS]


def run_in_one_of_two(rank: int, folder: Path, arguments: list[str]) -> None:
    with open(folder / f"printed_{rank}", "w", encoding="utf-8") as printed, redirect_stdout(printed):
        run(*arguments)


def approx_nested(figures: dict) -> dict:
    """Return dictionaries of numbers, nested or not, for an approximate comparison."""
    return {
        name: approx_nested(value) if isinstance(value, dict) else pytest.approx(value, rel=1e-4)
        for name, value in figures.items()
    }


def test_two_processes_equal_gradient_accumulation(options, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    with redirect_stdout(io.StringIO()) as printed:
        run(*options, "--output_dir", str(one), "--gradient_accumulation_steps", "2")
    in_two_processes(run_in_one_of_two, tmp_path, [*options, "--output_dir", str(two)])
    output = "".join((tmp_path / f"printed_{rank}").read_text(encoding="utf-8") for rank in range(2))
    # Messages are printed once. In evaluation, one process has no batch.
    for printed_by in (printed.getvalue(), output):
        (train, validation) = (
            int(re.findall(rf"^{split}: \d+ pairs in (\d+) batches", printed_by, flags=re.MULTILINE)[0])
            for split in ("train", "validation")
        )
        assert train % 2 == 0 and validation == 1 and printed_by.count("train: 200 pairs in") == 1
    assert_same_run(two, one)


def assert_same_run(folder: Path, expected: Path) -> None:
    """Check that losses, evaluations, translations and weights are equal."""
    metrics, expected_metrics = metrics_of(folder), metrics_of(expected)
    names = [f"{prefix}{name}_loss" for prefix in ("", "eval_") for name in ("next_word", "head_1", "head_2")]
    names += ["loss", "eval_loss", "eval_perplexity", "eval_best_perplexity"]
    curves, expected_curves = (
        {name: [entry[name] for entry in log["history"] if name in entry] for name in names}
        for log in (metrics, expected_metrics)
    )
    assert len(curves["loss"]) == len(curves["head_2_loss"]) == 40 and len(curves["eval_loss"]) == 4
    assert curves == {name: pytest.approx(curve, abs=1e-4, rel=1e-5) for name, curve in expected_curves.items()}
    assert all(curves[name][-1] < curves[name][0] - 1 for name in ("next_word_loss", "head_1_loss", "head_2_loss"))

    bleu, expected_bleu = (
        [entry["eval_bleu"] for entry in log["history"] if "eval_bleu" in entry] for log in (metrics, expected_metrics)
    )
    assert bleu == expected_bleu and len(set(bleu)) > 1
    for split, figures in metrics["splits"].items():
        expected_figures = expected_metrics["splits"][split]
        assert figures["bleu"] == expected_figures["bleu"] and figures["chrf"] == expected_figures["chrf"]
        for name in ("ensembles", "ensemble_perplexity"):
            assert figures.pop(name) == approx_nested(expected_figures.pop(name))
        assert figures == {
            name: value if isinstance(value, str) else pytest.approx(value, rel=1e-5)
            for name, value in expected_figures.items()
        }
    rows = translations_of(folder)
    assert rows == translations_of(expected) and len(rows) == 22 and len({row["hypothesis"] for row in rows}) > 1

    model, expected_model = (AutoModelForSeq2SeqLM.from_pretrained(path) for path in (folder, expected))
    assert model.config.ensemble_lambda == (metrics["ensemble_lambda"] or 0.0)
    assert model.config.ensemble_weights == metrics["ensemble_weights"]
    assert len(model.ngram_heads) == 2
    torch.testing.assert_close(model.state_dict(), expected_model.state_dict(), atol=1e-5, rtol=1e-5)
