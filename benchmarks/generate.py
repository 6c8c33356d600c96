"""
Tokens per second of `generate` with the ensemble, relative to stock GPT-2 in the same process.

    python benchmarks/generate.py                        # both sizes, about 5 minutes on 2 cores
    python benchmarks/generate.py --size large --batch-size 8

Each round decodes a fixed number of tokens greedily with every model in turn, and compares it with stock GPT-2 in the
same round. The printed ratio is the median over the rounds.
"""

import argparse
import operator
import statistics
import time

import torch
from tqdm import tqdm
from transformers import GPT2Config, GPT2LMHeadModel

from ngram_wdr_hf import WDRNgramConfig, WDRNgramGPT2LMHeadModel

SIZES = {
    "small": {"vocab_size": 10_000, "n_embd": 256, "n_layer": 6, "n_head": 4, "n_inner": 2100},
    "large": {"vocab_size": 50_257, "n_embd": 768, "n_layer": 12, "n_head": 12},
}
# Only the large size has a limit: relative to a small model, the heads cost more.
LIMITS = {"small": None, "large": 0.95}
PROMPT_LENGTH = 32


def build(size: str, ngram_size: int, target: str) -> tuple[GPT2LMHeadModel, WDRNgramGPT2LMHeadModel]:
    fields = {**SIZES[size], "bos_token_id": 0, "eos_token_id": 0}
    torch.manual_seed(0)
    stock = GPT2LMHeadModel(GPT2Config(**fields)).eval()
    ours = WDRNgramGPT2LMHeadModel(WDRNgramConfig(**fields, ngram_size=ngram_size, ngram_target=target)).eval()
    # Share the weights: different memory addresses change the speed by a percent or two.
    ours.transformer, ours.lm_head = stock.transformer, stock.lm_head
    return stock, ours


def seconds(model, ids: torch.Tensor, new_tokens: int, **options) -> float:
    start = time.perf_counter()
    model.generate(
        ids, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False, pad_token_id=0, **options
    )
    return time.perf_counter() - start


def report(size: str, arguments: argparse.Namespace) -> bool:
    stock, ours = build(size, arguments.ngram_size, arguments.target)
    ids = torch.randint(1, SIZES[size]["vocab_size"], (arguments.batch_size, PROMPT_LENGTH))
    runs = {
        "stock GPT-2": (stock, {}),
        f"N={arguments.ngram_size}, λ=0": (ours, {"ensemble_lambda": 0.0}),
        f"N={arguments.ngram_size}, λ=0.4": (ours, {"ensemble_lambda": 0.4}),
    }
    times = {name: [] for name in runs}
    for model, options in runs.values():
        seconds(model, ids, arguments.new_tokens, **options)  # warm-up
    for repeat in tqdm(range(arguments.repeats), desc=size, leave=False):
        order = list(runs)
        for name in order[repeat % len(order) :] + order[: repeat % len(order)]:
            model, options = runs[name]
            times[name].append(seconds(model, ids, arguments.new_tokens, **options))
    fields, limit = SIZES[size], LIMITS[size]
    print(
        f"\nV={fields['vocab_size']:,} d={fields['n_embd']} layers={fields['n_layer']}, batch {arguments.batch_size}"
    )
    print(f"{'model':<14}{'tokens/s':>10}{'ratio':>8}{'limit':>8}")
    for name, elapsed in times.items():
        speed = arguments.batch_size * arguments.new_tokens / statistics.median(elapsed)
        ratio = statistics.median(map(operator.truediv, times["stock GPT-2"], elapsed))
        print(f"{name:<14}{speed:>10.1f}{ratio:>8.3f}{'-' if limit is None else limit:>8}")
    return limit is None or ratio >= limit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, action="append", help="model size to measure (default: both)")
    parser.add_argument("--batch-size", type=int, default=1, help="batch rows (default: 1)")
    parser.add_argument("--new-tokens", type=int, default=32, help="tokens to generate per round (default: 32)")
    parser.add_argument("--repeats", type=int, default=30, help="number of rounds (default: 30)")
    parser.add_argument("--ngram-size", type=int, default=4, help="the paper's N (default: 4)")
    parser.add_argument("--target", choices=("wdr", "simple"), default="wdr", help="what the heads predict")
    arguments = parser.parse_args()
    results = [report(size, arguments) for size in arguments.size or SIZES]
    print("\nWithin the limits." if all(results) else "\nNOT within the limits.")


if __name__ == "__main__":
    main()
