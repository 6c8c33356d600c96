"""
Speed of speculative decoding with the heads, relative to stock Transformers with the same weights: plain decoding,
prompt lookup, and a small draft model of the same family.

    python benchmarks/speculate.py                    # trains its models on the first run: 15 minutes on 2 cores
    python benchmarks/speculate.py --batch-size 8 --prompts 32

The models are the defaults of `train_clm.py`, with WDR and with simple heads; the prompts come from its validation
text. In every round all decoding methods take turns on the same prompts, and each is compared with stock decoding in
the same round. The printed ratio is the median over the rounds. Greedy outputs must be the same, token for token.
Untrained heads show the worst-case cost of drafting, relative to the same model without drafts.
"""

import argparse
import operator
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedModel
from transformers.utils import logging

from ngram_wdr_hf import WDRNgramConfig, WDRNgramGPT2LMHeadModel
from ngram_wdr_hf.data.english import python_english
from ngram_wdr_hf.training.clm.arguments import parse_clm_arguments
from ngram_wdr_hf.training.clm.run import run_clm

TARGETS = ("wdr", "simple")
PROMPT_LENGTH, NEW_TOKENS = 32, 64
SMALL = {"n_embd": 64, "n_layer": 1, "n_head": 2}
# Limits: the least gain at batch size 1, and the worst ratio with untrained heads.
GAIN_LIMIT, LOSS_LIMIT = 1.3, 0.9
HEADS_ONLY = {"use_mtp": True, "prompt_lookup_num_tokens": 0}


@dataclass
class Way:
    """A decoding method, timed relative to the one named by `baseline`."""

    model: PreTrainedModel
    options: dict = field(default_factory=dict)
    baseline: str | None = None
    limit: float | None = None
    seconds: list[float] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor, **options) -> torch.Tensor:
        return self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=NEW_TOKENS,
            use_cache=True,
            # All methods generate the same number of tokens.
            eos_token_id=None,
            pad_token_id=0,
            **self.options,
            **options,
        )

    def run(self, ids: torch.Tensor, mask: torch.Tensor, seed: int) -> None:
        torch.manual_seed(seed)
        start = time.perf_counter()
        output = self(ids, mask)
        self.seconds.append(time.perf_counter() - start)
        self.outputs.append(output)

    def tokens_per_forward(self, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[float, list[float]]:
        """Return the tokens per row and forward pass, and the acceptance rate by depth."""
        if not self.options.get("use_mtp"):
            calls = []
            hook = self.model.base_model.register_forward_hook(lambda *_: calls.append(None))
            for ids, mask in batches:
                self(ids, mask)
            hook.remove()
            return NEW_TOKENS * len(batches) / len(calls), []
        counts = [self(ids, mask, return_dict_in_generate=True).speculation for ids, mask in batches]
        depth = max(len(count.num_drafted) for count in counts)
        drafted, accepted = (
            [sum(getattr(count, name)[i] for count in counts if i < len(count.num_drafted)) for i in range(depth)]
            for name in ("num_drafted", "num_accepted")
        )
        gain = sum(count.num_tokens for count in counts) / sum(count.num_row_forwards for count in counts)
        return gain, [a / d for a, d in zip(accepted, drafted, strict=True)]


def train(folder: Path) -> None:
    """Train the models of the benchmark that `folder` does not have yet."""
    for target in TARGETS:
        if not (folder / target / "metrics.json").exists():
            run_clm(
                parse_clm_arguments(["--ngram_target", target, "--output_dir", str(folder / target)], "train_clm.py")
            )
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
    run_clm(parse_clm_arguments(options.split(), "train_clm.py"))


def stock_of(ours: WDRNgramGPT2LMHeadModel) -> GPT2LMHeadModel:
    """Build the stock model that shares the weights of `ours`."""
    stock = GPT2LMHeadModel(GPT2Config(**{k: v for k, v in ours.config.to_dict().items() if k != "model_type"}))
    stock.transformer, stock.lm_head = ours.transformer, ours.lm_head
    return stock.eval()


def with_fresh_heads(ours: WDRNgramGPT2LMHeadModel) -> WDRNgramGPT2LMHeadModel:
    """Build a model with untrained heads that shares the other weights of `ours`."""
    fresh = WDRNgramGPT2LMHeadModel(WDRNgramConfig(**ours.config.to_dict())).eval()
    fresh.transformer, fresh.lm_head = ours.transformer, ours.lm_head
    return fresh


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
            ways["ours, without drafts"] = Way(ours, {})
            ways["  untrained heads"] = Way(with_fresh_heads(ours), HEADS_ONLY, "ours, without drafts", LOSS_LIMIT)
            ensemble = {"ensemble_lambda": 0.4}
            ways["ensemble, λ=0.4"] = Way(ours, ensemble)
            ways["  wdr heads, λ=0.4"] = Way(ours, {**ensemble, **HEADS_ONLY}, "ensemble, λ=0.4")
            ways["  wdr heads and prompt lookup, λ=0.4"] = Way(ours, {**ensemble, "use_mtp": True}, "ensemble, λ=0.4")
    for way in ways.values():
        way.options = {**way.options, **(sampling or {"do_sample": False})}
    return ways


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


def report(title: str, ways: dict[str, Way], batches: list, rounds: int) -> bool:
    for way in ways.values():
        way(*batches[0])  # warm-up
    for i in tqdm(range(rounds * len(batches)), desc=title, leave=False):
        names = list(ways)
        for name in names[i % len(names) :] + names[: i % len(names)]:
            ways[name].run(*batches[i % len(batches)], seed=i)
    print(f"\n{title}: {len(batches)} x {len(batches[0][0])} prompts, {rounds} rounds")
    print(f"{'':<37}{'tokens/forward':>15}{'tokens/s':>10}{'ratio':>8}{'limit':>7}  acceptance rate by depth")
    is_within = True
    for name, way in ways.items():
        baseline = ways[way.baseline or name]
        ratio = statistics.median(map(operator.truediv, baseline.seconds, way.seconds))
        gain, acceptance = way.tokens_per_forward(batches)
        speed = len(batches[0][0]) * NEW_TOKENS / statistics.median(way.seconds)
        limit = "-" if way.limit is None else way.limit
        shares = " ".join(f"{share:.2f}" for share in acceptance)
        print(f"{name:<37}{gain:>15.2f}{speed:>10.0f}{ratio:>8.3f}{limit:>7}  {shares}")
        is_within = is_within and (way.limit is None or ratio >= way.limit)
        if not way.options.get("do_sample"):
            same = sum(map(torch.equal, way.outputs, baseline.outputs))
            if same < len(way.outputs):
                print(f"  {len(way.outputs) - same} of {len(way.outputs)} outputs differ from {way.baseline}")
                is_within = False
    return is_within


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/speculate"), help="folder of the trained models")
    parser.add_argument("--batch-size", type=int, action="append", help="batch rows (default: 1 and 8)")
    parser.add_argument("--prompts", type=int, default=16, help="number of prompts (default: 16)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds over the prompts (default: 3)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="number of PyTorch threads")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    train(arguments.runs)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    is_within = True
    for batch_size in arguments.batch_size or (1, 8):
        batches = prompts_of(arguments.runs, arguments.prompts, batch_size)
        for name, sampling in {
            "greedy": {},
            "sampling, top-k 40, temperature 0.8": {"do_sample": True, "top_k": 40, "temperature": 0.8},
        }.items():
            ways = ways_of(arguments.runs, batch_size, sampling)
            is_within &= report(f"{name}, batch size {batch_size}", ways, batches, arguments.rounds)
    print("\nWithin the limits." if is_within else "\nNOT within the limits.")
    sys.exit(not is_within)


if __name__ == "__main__":
    main()
