"""
Time to evaluate a grid of λ in one pass, relative to evaluating one λ in the same process.

    python benchmarks/evaluate.py                      # both sizes, about 4 minutes on 2 cores
    python benchmarks/evaluate.py --size small --repeats 9

The baseline is the faster of a forward pass with labels, as in `Trainer.evaluate`, and a grid of one λ. The runs take
turns in every round; the printed ratio is the median over the rounds.
"""

import argparse
import statistics
import time

import torch
from tqdm import tqdm

from ngram_wdr_hf import WDRNgramConfig, WDRNgramGPT2LMHeadModel

SIZES = {
    "small": ({"vocab_size": 10_000, "n_embd": 256, "n_layer": 6, "n_head": 4, "n_inner": 2100}, (16, 256)),
    "large": ({"vocab_size": 50_257, "n_embd": 768, "n_layer": 12, "n_head": 12}, (4, 256)),
}
LAMBDAS = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
LIMIT = 1.5


@torch.no_grad()
def seconds(model: WDRNgramGPT2LMHeadModel, ids: torch.Tensor, ensemble_lambda: float | list[float]) -> float:
    start = time.perf_counter()
    model(ids, labels=ids, ensemble_lambda=ensemble_lambda, use_cache=False)
    return time.perf_counter() - start


def report(size: str, arguments: argparse.Namespace) -> bool:
    fields, shape = SIZES[size]
    torch.manual_seed(0)
    config = WDRNgramConfig(
        **fields,
        ngram_size=arguments.ngram_size,
        activation_function="gelu_pytorch_tanh",
        bos_token_id=0,
        eos_token_id=0,
    )
    model = WDRNgramGPT2LMHeadModel(config).eval()
    ids = torch.randint(1, config.vocab_size, shape)
    runs = {"one λ, logits": 0.4, "one λ, grid": [0.4], f"{len(LAMBDAS)} λ": LAMBDAS}
    times = {name: [] for name in runs}
    for value in runs.values():
        seconds(model, ids, value)  # warm-up
    for repeat in tqdm(range(arguments.repeats), desc=size, leave=False):
        order = list(runs)
        for name in order[repeat % len(order) :] + order[: repeat % len(order)]:
            times[name].append(seconds(model, ids, runs[name]))
    print(f"\nV={config.vocab_size:,} d={config.n_embd} layers={config.n_layer}, {shape[0]} x {shape[1]} tokens")
    print(f"{'evaluation':<16}{'ms':>8}{'ratio':>8}{'limit':>8}")
    one = [min(pair) for pair in zip(times["one λ, logits"], times["one λ, grid"], strict=True)]
    ratio = 0.0
    for name, elapsed in times.items():
        ratio = statistics.median(grid / single for grid, single in zip(elapsed, one, strict=True))
        limit = LIMIT if runs[name] is LAMBDAS else "-"
        print(f"{name:<16}{1000 * statistics.median(elapsed):>8.0f}{ratio:>8.2f}{limit:>8}")
    return ratio <= LIMIT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, action="append", help="model size to measure (default: both)")
    parser.add_argument("--repeats", type=int, default=9, help="number of rounds (default: 9)")
    parser.add_argument("--ngram-size", type=int, default=4, help="the paper's N (default: 4)")
    arguments = parser.parse_args()
    results = [report(size, arguments) for size in arguments.size or SIZES]
    print("\nWithin the limit." if all(results) else "\nNOT within the limit.")


if __name__ == "__main__":
    main()
