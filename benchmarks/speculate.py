"""
Speed of speculative decoding with the heads, relative to stock Transformers with the same weights: plain decoding,
prompt lookup, and a small draft model of the same family.

    python benchmarks/speculate.py                    # trains its models on the first run: 15 minutes on 2 cores
    python benchmarks/speculate.py --batch-size 8 --num-prompts 32
    python benchmarks/speculate.py --model DIR --prompts FILE

`--model` is any checkpoint with heads, or several with heads on the same model. `--prompts` is a text file with one
prompt per line, or JSON lines with `{"prompt": ...}` or `{"messages": [...]}`; lines and messages get the tokenizer's
chat template, if it has one. The number of tokens per forward pass is also the ratio that would be reached if drafting
and checking were free.

Without `--model`, the models are the defaults of `train_clm.py`, with WDR and with simple heads; the prompts come from
its validation text. In every round all decoding methods take turns on the same prompts, and each is compared with
stock decoding in the same round. The printed ratio is the median over the rounds. Greedy outputs must be the same,
token for token. Untrained heads show the worst-case cost of drafting.
"""

import argparse
import sys
from pathlib import Path

import torch
from decoding_ways import HEADS_ONLY, LOOKUP_ONLY, Way, report, stock_of, with_fresh_heads
from prompt_file import batches_of, check_lengths, load_model, read_prompts
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedModel
from transformers.utils import logging

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.python_english import python_english
from ngram_wdr_hf.training import clm

TARGETS = ("wdr", "simple")
PROMPT_LENGTH = 32
SMALL = {"n_embd": 64, "n_layer": 1, "n_head": 2}
# Limits: the least gain at batch size 1, and the worst ratio with untrained heads.
GAIN_LIMIT, LOSS_LIMIT = 1.3, 0.95
NUCLEUS = {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 0}


def train(folder: Path) -> None:
    """Train the models of the benchmark that `folder` does not have yet."""
    for target in TARGETS:
        if not (folder / target / "metrics.json").exists():
            clm.main(["--ngram_target", target, "--output_dir", str(folder / target)])
    if (folder / "small" / "metrics.json").exists():
        return
    tokenizer = AutoTokenizer.from_pretrained(folder / "wdr")
    config = AutoModelForCausalLM.from_pretrained(folder / "wdr").config
    fields = {name: getattr(config, name) for name in ("vocab_size", "n_positions", "bos_token_id", "eos_token_id")}
    GPT2LMHeadModel(GPT2Config(**fields, **SMALL)).save_pretrained(folder / "untrained")
    tokenizer.save_pretrained(folder / "untrained")
    options = (
        f"--model_name_or_path {folder / 'untrained'} --ngram_target none --output_dir {folder / 'small'} "
        "--learning_rate 2e-3 --lr_scheduler_type cosine --warmup_steps 0.1 --per_device_train_batch_size 8 "
        "--num_train_epochs 5"
    )
    clm.main(options.split())


def ways_of(folder: Path, batch_size: int, sampling: dict) -> dict[str, Way]:
    gain_limit = GAIN_LIMIT if batch_size == 1 and not sampling else None
    ways = {}
    for target in TARGETS:
        ours = AutoModelForCausalLM.from_pretrained(folder / target).eval()
        ours.config.ensemble_lambda, stock = 0.0, f"stock, {target} run"
        ways[stock] = Way(stock_of(ours))
        ways[f"  {target} heads, always"] = Way(ours, {**HEADS_ONLY, "draft_threshold": 0.0}, stock)
        ways[f"  {target} heads"] = Way(ours, HEADS_ONLY, stock)
        ways[f"  {target} heads and prompt lookup"] = Way(ours, {"use_mtp": True}, stock, gain_limit)
        if target == "wdr":
            if batch_size == 1:
                small = AutoModelForCausalLM.from_pretrained(folder / "small").eval()
                stock_small = stock_of(small)
                ways["  stock, prompt lookup"] = Way(ways[stock].model, {"prompt_lookup_num_tokens": 8}, stock)
                ways["  stock, draft model"] = Way(ways[stock].model, {"assistant_model": stock_small}, stock)
            ways["ours, without drafts"] = Way(ours, {"use_mtp": False})
            ways["  untrained heads"] = Way(with_fresh_heads(ours), HEADS_ONLY, "ours, without drafts", LOSS_LIMIT)
            ensemble = {"ensemble_lambda": 0.4}
            ways["ensemble, λ=0.4"] = Way(ours, {**ensemble, "use_mtp": False})
            ways["  wdr heads, λ=0.4"] = Way(ours, {**ensemble, **HEADS_ONLY}, "ensemble, λ=0.4")
            ways["  wdr heads and prompt lookup, λ=0.4"] = Way(ours, {**ensemble, "use_mtp": True}, "ensemble, λ=0.4")
    for way in ways.values():
        way.options = {**way.options, **(sampling or {"do_sample": False})}
    return ways


def ways_of_checkpoints(
    models: dict[str, PreTrainedModel], batch_size: int, new_tokens: int, sampling: dict
) -> dict[str, Way]:
    """The decoding methods of checkpoints of one model: without ensemble, so that all have the same distribution."""
    first, plain = next(iter(models.values())), {"ensemble_lambda": 0.0}
    stock_model = stock_of(first)
    ways = {"stock": Way(stock_model)}
    if batch_size == 1:
        ways["stock, prompt lookup"] = Way(stock_model, {"prompt_lookup_num_tokens": 8}, "stock")
    for name, ours in models.items():
        suffix = f" of {name}" if len(models) > 1 else ""
        ways[f"heads{suffix}"] = Way(ours, {**HEADS_ONLY, **plain}, "stock")
        ways[f"heads{suffix}, always"] = Way(ours, {**HEADS_ONLY, "draft_threshold": 0.0, **plain}, "stock")
        ways[f"heads{suffix} and prompt lookup"] = Way(ours, {"use_mtp": True, **plain}, "stock")
    ways["prompt lookup"] = Way(first, {**LOOKUP_ONLY, **plain}, "stock")
    ways["untrained heads"] = Way(with_fresh_heads(first), {**HEADS_ONLY, **plain}, "stock")
    for way in ways.values():
        way.options = {**way.options, **(sampling or {"do_sample": False})}
        way.new_tokens = new_tokens
    return ways


def run_checkpoints(arguments: argparse.Namespace) -> bool:
    """Compare the decoding methods of `--model` on `--prompts`; return whether all greedy outputs are the same."""
    loaded = {Path(name).name: load_model(name) for name in arguments.model}
    models, tokenizer = {name: model for name, (model, _) in loaded.items()}, next(iter(loaded.values()))[1]
    prompts = read_prompts(arguments.prompts, tokenizer)[: arguments.num_prompts]
    for model in models.values():
        check_lengths(prompts, model, arguments.new_tokens)
    is_within = True
    for batch_size in arguments.batch_size or (1, 8):
        batches = batches_of(prompts, batch_size)
        for name, sampling in {"greedy": {}, "sampling, temperature 0.7, top-p 0.9": NUCLEUS}.items():
            ways = ways_of_checkpoints(models, batch_size, arguments.new_tokens, sampling)
            is_within &= report(f"{name}, batch size {batch_size}", ways, batches, arguments.rounds)
    return is_within


def prompts_of(folder: Path, number: int, batch_size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return batches of validation text beginnings. Each row of a batch but the first is shorter and left-padded."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "wdr")
    texts = (tokenizer(text).input_ids[:PROMPT_LENGTH] for text in python_english()["validation"]["text"])
    ids = torch.tensor([tokens for tokens in texts if len(tokens) == PROMPT_LENGTH][:number])
    batches = []
    for batch in ids.split(batch_size):
        lengths = torch.linspace(PROMPT_LENGTH, PROMPT_LENGTH / 2, len(batch)).long()
        mask = (torch.arange(PROMPT_LENGTH) >= PROMPT_LENGTH - lengths[:, None]).long()
        batches.append((batch * mask, mask))
    return batches


def run_default(arguments: argparse.Namespace) -> bool:
    """Compare the decoding methods of the default models, trained on the first run; return whether all is well."""
    train(arguments.runs)
    is_within = True
    for batch_size in arguments.batch_size or (1, 8):
        batches = prompts_of(arguments.runs, arguments.num_prompts, batch_size)
        for name, sampling in {
            "greedy": {},
            "sampling, top-k 40, temperature 0.8": {"do_sample": True, "top_k": 40, "temperature": 0.8},
        }.items():
            ways = ways_of(arguments.runs, batch_size, sampling)
            is_within &= report(f"{name}, batch size {batch_size}", ways, batches, arguments.rounds)
    return is_within


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", help="checkpoints with heads on one model (default: train two models)")
    parser.add_argument("--prompts", type=Path, help="file of prompts for `--model`")
    parser.add_argument("--runs", type=Path, default=Path("runs/speculate"), help="folder of the small models")
    parser.add_argument("--batch-size", type=int, action="append", help="batch rows (default: 1 and 8)")
    parser.add_argument("--num-prompts", type=int, default=16, help="maximum number of prompts (default: 16)")
    parser.add_argument("--new-tokens", type=int, default=64, help="tokens to generate with `--model` (default: 64)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds over the prompts (default: 3)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="number of PyTorch threads")
    options = parser.parse_args(arguments)
    if (options.model is None) != (options.prompts is None):
        parser.error("`--model` and `--prompts` need each other: give both, or none.")
    counts = {name: getattr(options, name) for name in ("num_prompts", "new_tokens", "rounds", "threads")}
    for name, count in {**counts, "batch_size": min(options.batch_size or [1])}.items():
        if count < 1:
            parser.error(f"`--{name.replace('_', '-')}` must be at least 1, got {count}.")
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        is_within = run_default(options) if options.model is None else run_checkpoints(options)
    except InputError as error:
        parser.error(str(error))
    print("\nWithin the limits." if is_within else "\nNOT within the limits.")
    sys.exit(not is_within)


if __name__ == "__main__":
    main()
