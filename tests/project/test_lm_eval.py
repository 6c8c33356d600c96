"""The lm-evaluation-harness gives the same results as our evaluation, on our checkpoint and custom tasks."""

import json
import math
import re

import evaluate
import lm_eval
import pytest
from datasets import Dataset
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows

from ngram_wdr_hf.data.token_stream import EvaluationWindows, TokenStream, tokenize
from ngram_wdr_hf.data.tokenizers import start_token_id
from ngram_wdr_hf.evaluation.scores import score
from ngram_wdr_hf.method.documents import IGNORE_INDEX
from ngram_wdr_hf.method.ensemble import Ensemble
from ngram_wdr_hf.metrics import PERPLEXITY
from tests.support.checkpoints import CONTEXT, random_lines, save_checkpoint, tokenizer_of_words
from tests.support.processes import run_python

# Much longer than the model's context; shorter; as long with its end token; one longer. `TEXTS` adds several lines.
LINES = [
    random_lines(3 * CONTEXT + 5, seed=0),
    random_lines(3, seed=1),
    random_lines(CONTEXT - 1, seed=2),
    random_lines(CONTEXT, seed=3),
]
TEXTS = [*LINES, random_lines(11, 0, 25, 4, seed=4)]
TASK = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: text
metric_list:
  - metric: word_perplexity
  - metric: byte_perplexity
"""


WEIGHTS = (0.8, 0.3, -0.1, 0.05)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A model with λ = 0.4 in its configuration, and its folder."""
    folder = tmp_path_factory.mktemp("checkpoint")
    return save_checkpoint(folder, tokenizer_of_words(), ensemble_lambda=0.4), str(folder)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A folder with two tasks: all texts, and the one-line texts."""
    folder = tmp_path_factory.mktemp("tasks")
    for name, texts in (("texts", TEXTS), ("lines", LINES)):
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, file=file))
    return str(folder)


def run(tasks: str, name: str, folder: str, batch_size: int = 3, **model_args) -> tuple[dict, list[float]]:
    """Run the harness. Return its results and the log-likelihood of each text."""
    results = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": folder, **model_args},
        tasks=[name],
        task_manager=TaskManager(include_path=tasks, include_defaults=False),
        device="cpu",
        batch_size=batch_size,
        bootstrap_iters=0,
    )
    samples = sorted(results["samples"][name], key=lambda sample: sample["doc_id"])
    return results["results"][name], [sample["filtered_resps"][0] for sample in samples]


def our_log_likelihoods(model, ensemble: Ensemble, window_size: int = CONTEXT) -> list[float]:
    tokenizer = tokenizer_of_words()
    log_likelihoods = []
    for text in TEXTS:
        rows = tokenize(Dataset.from_dict({"text": text.splitlines(keepends=True)}), tokenizer)
        windows = EvaluationWindows(TokenStream.from_rows(rows), window_size, start_token_id=start_token_id(tokenizer))
        log_likelihoods.append(-score(model, windows, [ensemble], batch_size=4).nll_sums[0])
    return log_likelihoods


@pytest.mark.parametrize(
    ("model_args", "ensemble", "window_size"),
    [
        ({}, 0.4, CONTEXT),
        ({"ensemble_lambda": 0.0}, 0.0, CONTEXT),
        ({"ensemble_lambda": 0.0, "ensemble_weights": [*WEIGHTS]}, WEIGHTS, CONTEXT),
        ({"max_length": 7}, 0.4, 7),
    ],
    ids=["own", "plain", "weights", "narrow"],
)
def test_log_likelihoods(checkpoint, tasks, model_args, ensemble, window_size):
    model, folder = checkpoint
    results, theirs = run(tasks, "texts", folder, **model_args)
    ours = our_log_likelihoods(model, ensemble, window_size)
    assert theirs == pytest.approx(ours, rel=1e-5)
    # For a final line break the harness counts one more word; we count one more per line.
    num_words = sum(len(re.split(r"\s+", text)) for text in TEXTS)
    assert results["word_perplexity,none"] == pytest.approx(math.exp(-sum(ours) / num_words), rel=1e-4)
    num_bytes = sum(len(text.encode()) for text in TEXTS)
    assert results["byte_perplexity,none"] == pytest.approx(math.exp(-sum(ours) / num_bytes), rel=1e-4)


@pytest.mark.parametrize("ensemble", [0.4, WEIGHTS])
def test_the_ensemble_matters(checkpoint, ensemble):
    for own, plain in zip(*(our_log_likelihoods(checkpoint[0], value) for value in (ensemble, 0.0)), strict=True):
        assert abs(own / plain - 1) > 1e-3


def test_padding_does_not_matter(checkpoint, tasks):
    """The harness pads batches on the right and passes no attention mask."""
    (_, alone), (_, together) = (run(tasks, "texts", checkpoint[1], batch_size) for batch_size in (1, 64))
    assert alone == pytest.approx(together, rel=1e-5)


def test_word_perplexity_is_the_metrics(checkpoint, tasks):
    """For one-line texts the harness counts words as we do."""
    results, _ = run(tasks, "lines", checkpoint[1])
    ours = evaluate.load(PERPLEXITY).compute(predictions=LINES, model_id=checkpoint[1])
    assert results["word_perplexity,none"] == pytest.approx(ours["word_perplexity"], rel=1e-4)


def test_without_the_package(checkpoint, tasks):
    """The code in the checkpoint is enough."""
    script = f"""
import sys
import lm_eval
from lm_eval.tasks import TaskManager
results = lm_eval.simple_evaluate(
    model="hf",
    model_args={{"pretrained": {checkpoint[1]!r}, "trust_remote_code": True}},
    tasks=["texts"],
    task_manager=TaskManager(include_path={tasks!r}, include_defaults=False),
    device="cpu",
    bootstrap_iters=0,
)
assert "ngram_wdr_hf" not in sys.modules
print("\\nsum", sum(sample["filtered_resps"][0] for sample in results["samples"]["texts"]))
"""
    printed = run_python("-c", script, is_warm=True)
    total = float(re.search(r"^sum (\S+)$", printed, flags=re.MULTILINE)[1])
    assert total == pytest.approx(sum(our_log_likelihoods(checkpoint[0], 0.4)), rel=1e-5)


@pytest.mark.parametrize("stride", [1, 2, 4, 5])
def test_windows_are_the_same(stride):
    """Windows are equal for every text length and stride, not only for the stride of the harness."""
    window_size, start = 5, 99
    for length in range(1, 4 * window_size):
        tokens = list(range(length))
        theirs = list(get_rolling_token_windows(tokens, start, window_size, window_size - stride + 1))
        stream = TokenStream.from_rows(Dataset.from_dict({"input_ids": [tokens], "num_words": [length]}))
        windows = EvaluationWindows(stream, window_size, stride, start)
        ours = []
        for i in range(len(windows)):
            window = {name: row.tolist() for name, row in windows[i].items()}
            ours.append((window["input_ids"], [token for token in window["shift_labels"] if token != IGNORE_INDEX]))
            # The scored tokens are the last ones.
            assert window["shift_labels"][-len(ours[-1][1]) :] == ours[-1][1]
        assert ours == theirs
