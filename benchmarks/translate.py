"""
Time of beam search with the ensemble and of a training step with the heads, at the paper's small size, relative to
stock Marian in the same process.

    python benchmarks/translate.py                       # both, about 10 minutes on 2 cores
    python benchmarks/translate.py --only decode --repeats 30
    python benchmarks/translate.py --only train

The models take turns, and each is compared with stock Marian in the same round. The printed ratio is the median over
the rounds. The limit of a training step (forward and backward, no optimizer) is the ratio of floating-point
operations.
"""

import argparse
import operator
import statistics
import time
from collections.abc import Callable

import torch
from tqdm import tqdm
from transformers import MarianConfig, MarianMTModel

from ngram_wdr_hf import WDRNgramMarianConfig, WDRNgramMarianMTModel

WIDTH, INNER, LAYERS, VOCAB_SIZE = 512, 1024, 6, 10_000
FIELDS = {
    "vocab_size": VOCAB_SIZE,
    "d_model": WIDTH,
    "encoder_ffn_dim": INNER,
    "decoder_ffn_dim": INNER,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "activation_function": "relu",
    "scale_embedding": True,
    "dropout": 0.0,
    "eos_token_id": 0,
    "pad_token_id": 1,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
NGRAM_SIZES = (1, 2, 3)
DECODING_LIMIT = 0.9


def stock_and_ours(ngram_sizes: tuple[int, ...]) -> dict[str, MarianMTModel]:
    """Build stock Marian, and our models sharing its weights: other memory addresses change the speed by 1 to 2 %."""
    torch.manual_seed(0)
    stock = MarianMTModel(MarianConfig(**FIELDS))
    models = {"stock Marian": stock}
    for ngram_size in ngram_sizes:
        model = WDRNgramMarianMTModel(WDRNgramMarianConfig(**FIELDS, ngram_size=ngram_size))
        model.model, model.lm_head = stock.model, stock.lm_head
        models[f"N={ngram_size}"] = model
    return models


def take_turns(runs: dict[str, Callable[[], None]], repeats: int, name: str) -> dict[str, list[float]]:
    """Return the seconds of each run in each round, after a warm-up round."""
    times = {run: [] for run in runs}
    order = list(runs)
    for repeat in tqdm(range(repeats + 1), desc=name, leave=False):
        for run in order[repeat % len(order) :] + order[: repeat % len(order)]:
            start = time.perf_counter()
            runs[run]()
            if repeat > 0:
                times[run].append(time.perf_counter() - start)
    return times


def ratios(times: dict[str, list[float]]) -> dict[str, float]:
    """Return the median ratio of each run's time to stock Marian's in the same round."""
    stock = times["stock Marian"]
    return {run: statistics.median(map(operator.truediv, seconds, stock)) for run, seconds in times.items()}


@torch.no_grad()
def decode(arguments: argparse.Namespace) -> bool:
    models = {name: model.eval() for name, model in stock_and_ours((3,)).items()}
    ids = torch.randint(2, VOCAB_SIZE, (arguments.batch_size, arguments.length))
    options = {"num_beams": 5, "max_new_tokens": arguments.length, "min_new_tokens": arguments.length}
    runs = {
        "stock Marian": (models["stock Marian"], {}),
        "N=3, λ=0": (models["N=3"], {"ensemble_lambda": 0.0}),
        "N=3, λ=0.4": (models["N=3"], {"ensemble_lambda": 0.4}),
    }
    times = take_turns(
        {
            name: lambda model=model, added=added: model.generate(ids, **options, **added)
            for name, (model, added) in runs.items()
        },
        arguments.repeats,
        "decoding",
    )
    print(f"\nBeam search, 5 beams, {arguments.batch_size} sentences of {arguments.length} tokens")
    print(f"{'model':<14}{'sentences/s':>13}{'ratio':>8}{'limit':>8}")
    speeds = {name: 1 / ratio for name, ratio in ratios(times).items()}
    for name, speed in speeds.items():
        per_second = arguments.batch_size / statistics.median(times[name])
        print(f"{name:<14}{per_second:>13.2f}{speed:>8.3f}{DECODING_LIMIT:>8}", flush=True)
    return speeds["N=3, λ=0.4"] >= DECODING_LIMIT


def operations(ngram_size: int, length: int) -> float:
    """Count the multiplications per token pair in a forward pass. The backward pass has twice as many."""
    attention = 4 * WIDTH**2 + 2 * length * WIDTH
    feed_forward = 2 * WIDTH * INNER
    trunk = LAYERS * (attention + feed_forward) + LAYERS * (2 * attention + feed_forward) + WIDTH * VOCAB_SIZE
    return trunk + (ngram_size - 1) * (2 * WIDTH**2 + WIDTH * VOCAB_SIZE)


def train(arguments: argparse.Namespace) -> bool:
    models = {name: model.train() for name, model in stock_and_ours(NGRAM_SIZES).items()}
    rows = arguments.batch_tokens // arguments.length
    ids, labels = torch.randint(2, VOCAB_SIZE, (2, rows, arguments.length))

    def step(model: MarianMTModel) -> None:
        model(input_ids=ids, labels=labels).loss.backward()
        model.zero_grad(set_to_none=True)

    runs = {name: lambda model=model: step(model) for name, model in models.items()}
    times = take_turns(runs, arguments.repeats, "training")
    print(f"\nTraining step, {rows} x {arguments.length} tokens on each side")
    print(f"{'model':<14}{'step':>9}{'ratio':>8}{'limit':>8}")
    is_within = True
    for name, ratio in ratios(times).items():
        ngram_size = 1 if name == "stock Marian" else int(name.removeprefix("N="))
        limit = operations(ngram_size, arguments.length) / operations(1, arguments.length)
        print(f"{name:<14}{statistics.median(times[name]):>8.2f}s{ratio:>8.3f}{limit:>8.2f}", flush=True)
        is_within = is_within and ratio <= limit
    return is_within


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("decode", "train"), help="measure only this part (default: both)")
    parser.add_argument("--batch-size", type=int, default=8, help="sentences translated together (default: 8)")
    parser.add_argument("--batch-tokens", type=int, default=2048, help="tokens per training batch (default: 2048)")
    parser.add_argument("--length", type=int, default=24, help="tokens per sentence (default: 24)")
    parser.add_argument("--repeats", type=int, default=11, help="number of rounds (default: 11)")
    arguments = parser.parse_args()
    parts = {"decode": decode, "train": train}
    results = [part(arguments) for name, part in parts.items() if arguments.only in (None, name)]
    print("\nWithin the limits." if all(results) else "\nNOT within the limits.")


if __name__ == "__main__":
    main()
