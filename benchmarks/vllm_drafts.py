"""
Speed of vLLM with the heads of a checkpoint as its drafts, relative to vLLM alone. Run it in an environment with vLLM.

    ngram-wdr export runs/heads drafts --to vllm
    python benchmarks/vllm_drafts.py MODEL drafts --prompts prompts.txt

MODEL is the plain model that the export named; `prompts.txt` has one prompt per line, sent in the tokenizer's chat
template if it has one. In every round all ways take turns on the same prompts; the ratios are medians over the rounds.
Useless drafts (heads with random weights) show what checking drafts costs. Greedy tokens are compared with those of
vLLM alone: in float32 they should be the same, in bfloat16 near ties may flip, as other numbers of rows are multiplied
by other kernels.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from prompt_file import read_prompts
from safetensors.torch import load_file, save_file
from tqdm import tqdm
from transformers import AutoTokenizer

COUNTERS = ("vllm:spec_decode_num_drafts", "vllm:spec_decode_num_accepted_tokens_per_pos")


def ways_of(drafts: Path, useless: Path, depths: list[int], useless_depths: list[int]) -> dict[str, dict]:
    """Return the arguments of vLLM by way. The first is what the others are compared with."""
    ways: dict[str, dict] = {"vLLM": {}, "vLLM, no async scheduling": {"async_scheduling": False}}
    architecture = json.loads((drafts / "config.json").read_text())["architectures"][0]
    method = "eagle" if architecture.startswith("Eagle") else "medusa"
    for folder, name, numbers in ((drafts, "heads", depths), (useless, "useless heads", useless_depths)):
        for depth in numbers:
            speculation = {"method": method, "model": str(folder), "num_speculative_tokens": depth}
            ways[f"{name}, {depth}"] = {"speculative_config": speculation}
    lookup = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    return {**ways, "prompt lookup": {"speculative_config": lookup}}


def write_useless_drafts(drafts: Path, useless: Path) -> None:
    """Write a copy of the drafts whose heads have random weights."""
    weights = load_file(drafts / "model.safetensors")
    torch.manual_seed(0)
    for name in weights:
        if name.startswith("heads."):
            weights[name] = torch.randn_like(weights[name].float()).to(weights[name].dtype)
    save_file(weights, useless / "model.safetensors")
    (useless / "config.json").write_text((drafts / "config.json").read_text())


def worker(pipe: Connection, model: str, dtype: str, new_tokens: int, options: dict) -> None:
    """Generate for every list of prompts that comes, and return the seconds, the tokens and the counts of drafts."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    from vllm import LLM, SamplingParams

    llm = LLM(model, dtype=dtype, max_model_len=1024, disable_log_stats=False, **options)
    sampling = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)

    def counts() -> list:
        values = {metric.name: metric for metric in llm.get_metrics()}
        drafts, accepted = (values.get(name) for name in COUNTERS)
        return [drafts.value, *accepted.values] if drafts is not None else [0]

    pipe.send("ready")
    for prompts in iter(pipe.recv, None):
        before, start = counts(), time.perf_counter()
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
        seconds = time.perf_counter() - start
        tokens = [list(output.outputs[0].token_ids) for output in outputs]
        pipe.send((seconds, tokens, [after - first for after, first in zip(counts(), before, strict=True)]))


def measure(arguments: argparse.Namespace, dtype: str, prompts: list[list[int]], useless: Path) -> None:
    """Start vLLM in every way, let all take turns, and print a table per number of requests at a time."""
    context, pipes, processes = multiprocessing.get_context("spawn"), {}, []
    for name, options in ways_of(arguments.drafts, useless, arguments.depth, arguments.useless_depth).items():
        pipes[name], other = context.Pipe()
        process = context.Process(
            target=worker, args=(other, arguments.model, dtype, arguments.new_tokens, options), daemon=True
        )
        process.start()
        processes.append(process)
        if pipes[name].recv() != "ready":
            raise RuntimeError(name)
    for size in arguments.requests:
        batches = [prompts[i : i + size] for i in range(0, len(prompts), size)]
        seconds: dict[str, list[float]] = {name: [] for name in pipes}
        results = {}
        for turn in tqdm(range(arguments.rounds + 1), desc=f"{dtype}, {size} at a time"):
            for name, pipe in pipes.items():
                parts = []
                for batch in batches:
                    pipe.send(batch)
                    parts.append(pipe.recv())
                # The first round warms up.
                if turn:
                    seconds[name].append(sum(part[0] for part in parts))
                results[name] = parts
        show(f"{dtype}, {size} requests at a time", seconds, results, len(prompts) * arguments.new_tokens)
    for pipe, process in zip(pipes.values(), processes, strict=True):
        pipe.send(None)
        process.join(timeout=30)
        process.kill()


def show(title: str, seconds: dict[str, list[float]], results: dict[str, list], num_tokens: int) -> None:
    """Print speed, ratio to the first way, tokens per pass, acceptance by position and the rows with equal tokens."""
    baseline = next(iter(seconds))
    expected = [row for part in results[baseline] for row in part[1]]
    headings = ("way", "tokens per second", "ratio", "tokens per pass", "acceptance", "same rows")
    print(f"\n{title}\n\n| {' | '.join(headings)} |\n{'|---' * len(headings)}|")
    for name, times in seconds.items():
        ratio = statistics.median(first / own for first, own in zip(seconds[baseline], times, strict=True))
        counts = [sum(numbers) for numbers in zip(*(part[2] for part in results[name]), strict=True)]
        passes, rates = counts[0], [accepted / counts[0] for accepted in counts[1:]] if counts[0] else []
        same = sum(a == b for a, b in zip(expected, (row for part in results[name] for row in part[1]), strict=True))
        per_pass = f"{1 + sum(rates):.2f}" if passes else ""
        listed = " / ".join(f"{rate:.2f}" for rate in rates)
        speed = num_tokens / statistics.median(times)
        print(
            f"| {name} | {speed:.0f} | {ratio:.2f} | {per_pass} | {listed} | {same} of {len(expected)} |", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the plain model")
    parser.add_argument("drafts", type=Path, help="folder of `ngram-wdr export`")
    parser.add_argument("--prompts", type=Path, required=True, help="text file with one prompt per line")
    parser.add_argument("--num-prompts", type=int, default=24, help="maximum number of prompts (default: 24)")
    parser.add_argument("--new-tokens", type=int, default=64, help="tokens per answer (default: 64)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds over the prompts (default: 5)")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 4, 8], help="requests at a time")
    parser.add_argument("--depth", type=int, nargs="+", default=[1, 2, 3], help="numbers of drafts")
    parser.add_argument("--useless-depth", type=int, nargs="+", default=[1, 3], help="numbers of useless drafts")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    prompts = read_prompts(arguments.prompts, tokenizer)[: arguments.num_prompts]
    with tempfile.TemporaryDirectory() as folder:
        write_useless_drafts(arguments.drafts, Path(folder))
        for dtype in arguments.dtype:
            measure(arguments, dtype, prompts, Path(folder))


if __name__ == "__main__":
    main()
