"""Decoding methods, timed in turn on the same prompts, for `speculate.py`."""

import copy
import operator
import statistics
import time
from dataclasses import dataclass, field

import torch
from torch import nn
from tqdm import tqdm
from transformers import PreTrainedModel

from ngram_wdr_hf.backbones.stock_tasks import stock_config
from ngram_wdr_hf.decoding.statistics import SpeculationStatistics
from ngram_wdr_hf.modeling.generation import OWN_OPTIONS

HEADS_ONLY = {"use_mtp": True, "prompt_lookup_num_tokens": 0}
LOOKUP_ONLY = {"use_mtp": True, "num_assistant_tokens": 0}


@dataclass
class Way:
    """A decoding method, timed relative to the one named by `baseline`."""

    model: PreTrainedModel
    options: dict = field(default_factory=dict)
    baseline: str | None = None
    limit: float | None = None
    new_tokens: int = 64
    seconds: list[float] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor, **options) -> torch.Tensor:
        return self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=self.new_tokens,
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
            return self.new_tokens * len(batches) / len(calls), []
        counts = [self(ids, mask, return_dict_in_generate=True).speculation for ids, mask in batches]
        total = sum(counts, SpeculationStatistics())
        return total.mean_acceptance_length, total.acceptance_rate_per_position


def stock_of(ours: PreTrainedModel) -> PreTrainedModel:
    """Build the stock model that shares the weights of `ours`."""
    config = stock_config(ours.config)
    with torch.device("meta"):
        stock = ours.ngram_backbone_class()(config)
    for name, module in ours.named_children():
        if name != "ngram_heads":
            setattr(stock, name, module)
    for name, buffer in ours.named_buffers(recurse=False):
        if name in stock._buffers:
            setattr(stock, name, buffer)
    stock.generation_config = copy.deepcopy(ours.generation_config)
    # A default of our checkpoints, and an error for the stock class.
    stock.generation_config.use_mtp = None
    for name in OWN_OPTIONS:
        vars(stock.generation_config).pop(name, None)
    return stock.eval()


def with_fresh_heads(ours: PreTrainedModel) -> PreTrainedModel:
    """Build a model with untrained heads that shares the other weights of `ours`."""
    fresh = copy.copy(ours)
    heads = copy.deepcopy(ours.ngram_heads)
    for weight in heads.parameters():
        nn.init.normal_(weight, std=0.02) if weight.ndim > 1 else nn.init.zeros_(weight)
    # A shallow copy of a module shares the dictionary of its parts.
    fresh._modules = {**ours._modules, "ngram_heads": heads}
    return fresh.eval()


def report(title: str, ways: dict[str, Way], batches: list, rounds: int) -> bool:
    """
    Time all ways in turn and print a table. Return whether all ratios are within their limits and all greedy outputs
    are the same as those of their baseline.
    """
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
        # The ratio if drafting and checking were free.
        gain, acceptance = way.tokens_per_forward(batches)
        speed = len(batches[0][0]) * way.new_tokens / statistics.median(way.seconds)
        limit = "-" if way.limit is None else way.limit
        shares = " ".join(f"{share:.2f}" for share in acceptance)
        print(f"{name:<37}{gain:>15.2f}{speed:>10.0f}{ratio:>8.3f}{limit:>7}  {shares}")
        is_within = is_within and (way.limit is None or ratio >= way.limit)
        if not way.options.get("do_sample"):
            same = sum(map(torch.equal, way.outputs, baseline.outputs))
            is_within = is_within and same == len(way.outputs)
            if way is not baseline:
                print(f"{'':<37}{same} of {len(way.outputs)} outputs are the same as those of {way.baseline}")
    return is_within
