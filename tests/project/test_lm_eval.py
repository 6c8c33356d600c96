"""The lm-evaluation-harness gives the same results as our evaluation, on our checkpoint and a custom task."""

import json

import lm_eval
import pytest
from datasets import Dataset
from lm_eval.tasks import TaskManager

from ngram_wdr_hf.data.token_stream import EvaluationWindows, TokenStream, tokenize
from ngram_wdr_hf.data.tokenizers import start_token_id
from ngram_wdr_hf.evaluation.scores import score
from tests.support.checkpoints import CONTEXT, random_lines, save_checkpoint, tokenizer_of_words

pytestmark = pytest.mark.slow

# Much longer than the model's context; shorter; as long with its end token; one longer; several lines.
LENGTHS = [(3 * CONTEXT + 5,), (3,), (CONTEXT - 1,), (CONTEXT,), (11, 0, 25, 4)]
TEXTS = [random_lines(*lengths, seed=seed) for seed, lengths in enumerate(LENGTHS)]
TASK = """
task: texts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: text
metric_list: [{{metric: word_perplexity}}, {{metric: byte_perplexity}}]
"""
WEIGHTS = (0.8, 0.3, -0.1, 0.05)


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
def test_log_likelihoods(model_args, ensemble, window_size, tmp_path):
    """The harness pads batches on the right and passes no attention mask."""
    tokenizer = tokenizer_of_words()
    model = save_checkpoint(tmp_path, tokenizer, ensemble_lambda=0.4)
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    (tmp_path / "texts.yaml").write_text(TASK.format(file=file))
    results = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(tmp_path), **model_args},
        tasks=["texts"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        device="cpu",
        batch_size=3,
        bootstrap_iters=0,
    )
    samples = sorted(results["samples"]["texts"], key=lambda sample: sample["doc_id"])
    ours, plain = [], []
    for text in TEXTS:
        rows = tokenize(Dataset.from_dict({"text": text.splitlines(keepends=True)}), tokenizer)
        windows = EvaluationWindows(TokenStream.from_rows(rows), window_size, start_token_id=start_token_id(tokenizer))
        nll_sums = score(model, windows, [0.0, ensemble], batch_size=4).nll_sums
        ours.append(-nll_sums[1])
        plain.append(-nll_sums[0])
    assert [sample["filtered_resps"][0] for sample in samples] == pytest.approx(ours, rel=1e-5)
    # The ensemble matters.
    assert ensemble == 0 or all(abs(one / other - 1) > 1e-3 for one, other in zip(ours, plain, strict=True))
