"""
Write the probability that a trained language model gives to each token of its validation and test text, for mixtures
with other models: to `probabilities.npz` in the folder of the run.

    python experiments/token_probabilities.py --run RUN --stride 16

The columns are those of the run's table, and "late": without heads, at the last epoch instead of the chosen one.
"""

import json
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from ngram_wdr_hf.analysis.trained_run import load_run
from ngram_wdr_hf.cli import run_script
from ngram_wdr_hf.data.token_stream import EvaluationWindows
from ngram_wdr_hf.evaluation.scores import batches_of
from ngram_wdr_hf.method.documents import IGNORE_INDEX
from ngram_wdr_hf.method.ensemble import Ensemble
from ngram_wdr_hf.method.logits import LogitLayer
from ngram_wdr_hf.training.run_folder import METRICS

FILE = "probabilities.npz"


@torch.no_grad()
def token_probabilities(
    model: torch.nn.Module, text: EvaluationWindows, ensembles: Mapping[str, Ensemble]
) -> dict[str, np.ndarray]:
    """Return the probability of each token of a text, in its order, by ensemble."""
    found: dict[str, list[torch.Tensor]] = {name: [] for name in ensembles}
    layer = LogitLayer.of(model.eval())
    for batch in batches_of(text, batch_size=32):
        predictions = model.ngram_predictions(**batch)
        targets = predictions.targets[0]
        is_target = targets != IGNORE_INDEX
        for name, ensemble in ensembles.items():
            shares = layer(predictions.ensemble(ensemble)[is_target]).double().softmax(-1)
            found[name].append(shares.gather(1, targets[is_target][:, None])[:, 0])
    return {name: torch.cat(parts).numpy() for name, parts in found.items()}


def main(arguments: Sequence[str]) -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="Folder of a finished run of train_clm.py.")
    parser.add_argument("--stride", type=int, help="Step of the evaluation window. Default: that of the run.")
    options = parser.parse_args(arguments)
    checkpoints = sorted(options.run.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    metrics = json.loads((options.run / METRICS).read_text(encoding="utf-8"))
    ensembles: dict[str, Ensemble] = {"without heads": 0.0}
    if metrics["head_parameters"]:
        fit, grid = metrics["fit"], metrics["splits"]["validation"]
        ensembles |= {"best λ": min(zip(grid["token_perplexity"], grid["lambda"], strict=True))[1]}
        ensembles |= {"temperature": (fit["temperature_weight"], *([0.0] * (len(fit["weights"]) - 1)))}
        ensembles |= {"fitted": tuple(fit["weights"])}
    arrays = {}
    for split in ("validation", "test"):
        run = load_run(options.run, split, max_tokens=sys.maxsize)
        text, last = run.text, type(run.model).from_pretrained(checkpoints[-1])
        text = EvaluationWindows(text.stream, text.window_size, options.stride or text.stride, int(text.text[:1]))
        arrays |= {f"{split}/{name}": p for name, p in token_probabilities(run.model, text, ensembles).items()}
        arrays |= {f"{split}/{name}": p for name, p in token_probabilities(last, text, {"late": 0.0}).items()}
        arrays[f"{split}/tokens"] = text.stream.ids
    arrays["train/tokens"] = np.concatenate(run.training_ids)
    np.savez(options.run / FILE, **arrays)


if __name__ == "__main__":
    sys.exit(run_script(main))
