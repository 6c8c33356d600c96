"""
Time and peak memory of a training step with N-gram heads, relative to stock GPT-2.

    python benchmarks/train_step.py                      # both sizes, about 10 minutes on 2 cores
    python benchmarks/train_step.py --size small         # V=10,000 d=256
    python benchmarks/train_step.py --size large --repeats 5

A step is forward and backward, without the optimizer. The models take turns in one process, and each is compared with
stock GPT-2 in the same round. The time ratio is the median over the rounds; its limit is the ratio of floating-point
operations. Memory is the growth of the resident set during a step, measured in a separate process per model.
"""

import argparse
import json
import operator
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import GPT2Config, GPT2LMHeadModel

from ngram_wdr_hf import WDRNgramConfig, WDRNgramGPT2LMHeadModel

SIZES = {
    "small": {
        "model": {"vocab_size": 10_000, "n_embd": 256, "n_layer": 6, "n_head": 4, "n_inner": 2100, "n_positions": 256},
        "batch": (16, 256),
    },
    "large": {
        "model": {"vocab_size": 50_257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 256},
        "batch": (4, 256),
    },
}
NGRAM_SIZES = (1, 2, 4)
# GPT-2's default `gelu_new` is the same function, unfused; its cost would hide that of the heads.
COMMON = {"activation_function": "gelu_pytorch_tanh", "bos_token_id": 0, "eos_token_id": 0, "use_cache": False}


def build(size: str, ngram_size: int | None) -> torch.nn.Module:
    """Build a model in training mode; `None` for stock GPT-2."""
    torch.manual_seed(0)
    fields = {**SIZES[size]["model"], **COMMON}
    if ngram_size is None:
        return GPT2LMHeadModel(GPT2Config(**fields)).train()
    return WDRNgramGPT2LMHeadModel(WDRNgramConfig(**fields, ngram_size=ngram_size)).train()


def batch(size: str) -> torch.Tensor:
    return torch.randint(0, SIZES[size]["model"]["vocab_size"], SIZES[size]["batch"])


def step(model: torch.nn.Module, ids: torch.Tensor) -> None:
    model(ids, labels=ids).loss.backward()


def operations(size: str, ngram_size: int) -> float:
    """Count the multiplications per token in a forward pass. The backward pass has twice as many for every model."""
    model, (_, length) = SIZES[size]["model"], SIZES[size]["batch"]
    width, vocab_size = model["n_embd"], model["vocab_size"]
    attention = 4 * width**2 + 2 * length * width
    feed_forward = 2 * width * model.get("n_inner", 4 * width)
    trunk = model["n_layer"] * (attention + feed_forward) + width * vocab_size
    return trunk + (ngram_size - 1) * (2 * width**2 + width * vocab_size)


def measure_times(size: str, repeats: int) -> dict[int | None, list[float]]:
    """Return the seconds of each step by model; `None` is stock GPT-2."""
    ids = batch(size)
    models = {ngram_size: build(size, ngram_size) for ngram_size in (None, *NGRAM_SIZES)}
    times = {ngram_size: [] for ngram_size in models}
    # The first round is a warm-up.
    for repeat in tqdm(range(repeats + 1), desc=size, leave=False):
        for ngram_size, model in models.items():
            start = time.perf_counter()
            step(model, ids)
            if repeat > 0:
                times[ngram_size].append(time.perf_counter() - start)
            model.zero_grad(set_to_none=True)
    return times


def resident(field: str) -> float:
    """Read a field of this process's memory status, in MiB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def measure_memory(size: str, ngram_size: int | None) -> float:
    """Measure the MiB that a step needs in addition to the model's weights, in this process."""
    model, ids = build(size, ngram_size), batch(size)
    # Load what any first step loads, such as libraries and workspaces, before measuring.
    tiny = torch.randn(8, 8, requires_grad=True)
    (tiny @ tiny).sum().backward()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    step(model, ids)
    return resident("VmHWM") - before


def memory_in_new_process(size: str, ngram_size: int | None) -> float:
    command = [sys.executable, __file__, "--size", size, "--memory-of", json.dumps(ngram_size)]
    # Allocate every tensor with `mmap`, so that freed memory is returned and not counted.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    run = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(run.stdout.split()[-1])


def report(size: str, repeats: int) -> bool:
    fields, (rows, length) = SIZES[size]["model"], SIZES[size]["batch"]
    print(f"\nV={fields['vocab_size']:,} d={fields['n_embd']} layers={fields['n_layer']}, {rows} x {length} tokens")
    print(f"{'model':<12}{'step':>9}{'time ratio':>13}{'limit':>8}{'memory':>12}{'memory ratio':>14}{'limit':>8}")
    times = measure_times(size, repeats)
    memory = {ngram_size: memory_in_new_process(size, ngram_size) for ngram_size in times}
    is_within = True
    for ngram_size, seconds in times.items():
        name = "stock GPT-2" if ngram_size is None else f"N={ngram_size}"
        line = f"{name:<12}{statistics.median(seconds):>8.2f}s"
        if ngram_size is None:
            line += f"{'':>21}{memory[None]:>8.0f} MiB"
        else:
            ratio = statistics.median(map(operator.truediv, seconds, times[None]))
            limit = operations(size, ngram_size) / operations(size, 1)
            memory_ratio = memory[ngram_size] / memory[None]
            line += f"{ratio:>13.2f}{limit:>8.2f}{memory[ngram_size]:>8.0f} MiB{memory_ratio:>14.2f}{1.0:>8.2f}"
            is_within = is_within and ratio <= limit and memory_ratio <= 1.0
        print(line, flush=True)
    return is_within


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, action="append", help="model size to measure (default: both)")
    parser.add_argument("--repeats", type=int, default=5, help="timed steps per model (default: 5)")
    parser.add_argument("--memory-of", type=json.loads, default=False, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of is not False:
        print(measure_memory(arguments.size[0], arguments.memory_of))
        return
    results = [report(size, arguments.repeats) for size in arguments.size or SIZES]
    print("\nWithin the limits." if all(results) else "\nNOT within the limits.")


if __name__ == "__main__":
    main()
