"""
Time and peak memory of a training step with N-gram heads, relative to stock GPT-2.

    python benchmarks/train_step.py                      # all sizes, about 10 minutes on 2 cores
    python benchmarks/train_step.py --size small         # V=10,000 d=256
    python benchmarks/train_step.py --size large --model N=1 --model "N=4 ρ=1/3 γ=0" --repeats 9

A step is forward and backward, without the optimizer. The models take turns in one process, and each is compared with
stock GPT-2 in the same round. The time ratio is the median over the rounds; its limit is the ratio of floating-point
operations, and 1 for sampled heads (ρ < 1) unless the vocabulary is most of the model. Memory is the growth of the
resident set during a step, measured in a separate process per model.
"""

import argparse
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
    "wide-vocabulary": {
        "model": {"vocab_size": 50_257, "n_embd": 256, "n_layer": 6, "n_head": 4, "n_inner": 2100, "n_positions": 256},
        "batch": (4, 256),
    },
}
STOCK = "stock GPT-2"
MODELS = {
    STOCK: None,
    "N=1": {"ngram_size": 1},
    "N=2": {"ngram_size": 2},
    "N=4": {"ngram_size": 4},
    "N=4 ρ=1/3 γ=1": {"ngram_size": 4, "head_sample_rate": 1 / 3},
    "N=4 ρ=1/3 γ=0": {"ngram_size": 4, "head_sample_rate": 1 / 3, "head_gradient": 0.0},
    "N=4 ρ=1/8 γ=0": {"ngram_size": 4, "head_sample_rate": 1 / 8, "head_gradient": 0.0},
}
# GPT-2's default `gelu_new` is the same function, unfused; its cost would hide that of the heads.
COMMON = {"activation_function": "gelu_pytorch_tanh", "bos_token_id": 0, "eos_token_id": 0, "use_cache": False}


def build(size: str, name: str) -> torch.nn.Module:
    """Build a model in training mode."""
    torch.manual_seed(0)
    fields = {**SIZES[size]["model"], **COMMON}
    if name == STOCK:
        return GPT2LMHeadModel(GPT2Config(**fields)).train()
    return WDRNgramGPT2LMHeadModel(WDRNgramConfig(**fields, **MODELS[name])).train()


def batch(size: str) -> torch.Tensor:
    return torch.randint(0, SIZES[size]["model"]["vocab_size"], SIZES[size]["batch"])


def step(model: torch.nn.Module, ids: torch.Tensor) -> None:
    model(ids, labels=ids).loss.backward()


def operations(size: str, name: str) -> float:
    """Count the multiplications of a training step per token: forward, and twice as many backward."""
    model, (_, length), heads = SIZES[size]["model"], SIZES[size]["batch"], MODELS[name] or {"ngram_size": 1}
    width, vocab_size = model["n_embd"], model["vocab_size"]
    attention = 4 * width**2 + 2 * length * width
    feed_forward = 2 * width * model.get("n_inner", 4 * width)
    trunk = 3 * (model["n_layer"] * (attention + feed_forward) + width * vocab_size)
    # With γ = 0, heads compute no gradient for the output embedding, nor for their inputs.
    head = 6 * width**2 + 3 * width * vocab_size
    if heads.get("head_gradient") == 0.0:
        head -= width**2 + width * vocab_size
    return trunk + (heads["ngram_size"] - 1) * heads.get("head_sample_rate", 1.0) * head


def time_limit(size: str, name: str) -> float:
    """Return the highest time ratio that is within the limits."""
    if "ρ" in name and size != "wide-vocabulary":
        return 1.0
    return operations(size, name) / operations(size, STOCK)


def measure_times(size: str, names: list[str], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each step by model."""
    ids = batch(size)
    models = {name: build(size, name) for name in names}
    times = {name: [] for name in models}
    # The first round is a warm-up.
    for repeat in tqdm(range(repeats + 1), desc=size, leave=False):
        for name, model in models.items():
            start = time.perf_counter()
            step(model, ids)
            if repeat > 0:
                times[name].append(time.perf_counter() - start)
            model.zero_grad(set_to_none=True)
    return times


def resident(field: str) -> float:
    """Read a field of this process's memory status, in MiB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def measure_memory(size: str, name: str) -> float:
    """Measure the MiB that a step needs in addition to the model's weights, in this process."""
    model, ids = build(size, name), batch(size)
    # Load what any first step loads, such as libraries and workspaces, before measuring.
    tiny = torch.randn(8, 8, requires_grad=True)
    (tiny @ tiny).sum().backward()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    step(model, ids)
    return resident("VmHWM") - before


def memory_in_new_process(size: str, name: str) -> float:
    command = [sys.executable, __file__, "--size", size, "--memory-of", name]
    # Allocate every tensor with `mmap`, so that freed memory is returned and not counted.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    run = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(run.stdout.split()[-1])


def report(size: str, names: list[str], repeats: int) -> bool:
    fields, (rows, length) = SIZES[size]["model"], SIZES[size]["batch"]
    print(f"\nV={fields['vocab_size']:,} d={fields['n_embd']} layers={fields['n_layer']}, {rows} x {length} tokens")
    print(f"{'model':<15}{'step':>9}{'time ratio':>13}{'limit':>8}{'memory':>12}{'memory ratio':>14}{'limit':>8}")
    times = measure_times(size, names, repeats)
    memory = {name: memory_in_new_process(size, name) for name in names}
    is_within = True
    for name, seconds in times.items():
        line = f"{name:<15}{statistics.median(seconds):>8.2f}s"
        if name == STOCK:
            line += f"{'':>21}{memory[name]:>8.0f} MiB"
        else:
            ratio = statistics.median(map(operator.truediv, seconds, times[STOCK]))
            limit = time_limit(size, name)
            memory_ratio = memory[name] / memory[STOCK]
            line += f"{ratio:>13.2f}{limit:>8.2f}{memory[name]:>8.0f} MiB{memory_ratio:>14.2f}{1.0:>8.2f}"
            is_within = is_within and ratio <= limit and memory_ratio <= 1.0
        print(line, flush=True)
    return is_within


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, action="append", help="model size to measure (default: all)")
    parser.add_argument("--model", choices=list(MODELS)[1:], action="append", help="model to measure (default: all)")
    parser.add_argument("--repeats", type=int, default=5, help="timed steps per model (default: 5)")
    parser.add_argument("--memory-of", choices=MODELS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        print(measure_memory(arguments.size[0], arguments.memory_of))
        return
    names = [name for name in MODELS if name == STOCK or not arguments.model or name in arguments.model]
    results = [report(size, names, arguments.repeats) for size in arguments.size or SIZES]
    print("\nWithin the limits." if all(results) else "\nNOT within the limits.")


if __name__ == "__main__":
    main()
