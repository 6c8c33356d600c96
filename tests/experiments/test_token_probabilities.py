"""The probabilities of single tokens give the figures of the run, and are in the order of its text."""

import json
import random

import numpy as np
import pytest
from runner.counts import fit_mixture, perplexity

from experiments import token_probabilities
from ngram_wdr_hf.training import clm
from tests.support.scripts import as_arguments

BLOCKS = {
    "max_steps": 4,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "block_size": 16,
    "per_device_train_batch_size": 4,
}


def test_probabilities_of_a_run(tmp_path):
    chance, files = random.Random(0), {}
    for split, count in {"train": 60, "validation": 12, "test": 9}.items():
        lines = [" ".join(chance.choices("abcdef", weights=range(1, 7), k=8)) for _ in range(count)]
        files[f"{split}_file"] = tmp_path / f"{split}.txt"
        files[f"{split}_file"].write_text("\n".join(lines) + "\n")
    folder = tmp_path / "run"
    options = as_arguments(**files, **BLOCKS, sample_tokens=0, num_workers=1, disable_tqdm="true")
    clm.main([*options, "--lambda_grid", "0", "0.4", "--output_dir", str(folder)])
    token_probabilities.main(["--run", str(folder)])
    found = dict(np.load(folder / token_probabilities.FILE))
    splits = json.loads((folder / "metrics.json").read_text())["splits"]
    for split in ("validation", "test"):
        for name, figures in splits[split]["ensembles"].items():
            column = "best λ" if name.startswith("best λ") else name
            assert perplexity(found[f"{split}/{column}"]) == pytest.approx(figures["token_perplexity"], rel=1e-4)
        assert len(found[f"{split}/late"]) == len(found[f"{split}/tokens"]) == splits[split]["num_tokens"]
    assert len(found["train/tokens"]) == 60 * 9

    # A step of the window of 1: every token but the first ones has the longest context.
    token_probabilities.main(["--run", str(folder), "--stride", "1"])
    closer = np.load(folder / token_probabilities.FILE)["test/without heads"]
    own = found["test/without heads"]
    assert np.allclose(closer[:16], own[:16]) and not np.allclose(closer[16:], own[16:])
    both = np.stack([closer, found["test/late"]])
    assert perplexity(fit_mixture(both) @ both) <= min(map(perplexity, both)) * (1 + 1e-9)
