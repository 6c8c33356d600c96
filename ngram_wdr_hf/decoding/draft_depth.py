"""How deep to draft: as long as another draft is expected to save more than it costs."""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from torch import nn
from transformers import PreTrainedModel
from transformers.generation import GenerationConfig

# Decoding a token is bound by memory: every weight is read once. All other work is expressed by the bytes that could
# be read meanwhile, whose order of magnitude counts. By device: how many vectors can be multiplied with a matrix while
# its weights are read once; the number of vectors below which a product is not faster; the time to call the attention
# or the MLP of a layer, or a head. Of a CPU, measured in float32 on two threads, with [`CpuProducts`]. Of others, from
# data sheets: 300 TFLOP/s in half precision at 1.5 TB/s, and 0.1 ms a call.
TOKENS_PER_READ = {"cpu": 4, "other": 200}
MIN_TOKENS = {"cpu": 2, "other": 1}
CALL_BYTES = {"cpu": 3e6, "other": 1.5e8}
# The time to sample from the scores of one position, per token of the vocabulary; and to sort them, as top-p does.
SCORE_BYTES, SORT_BYTES = 300.0, 1500.0
# A forward pass copies the cache to append to it, and attention reads the copy. Shifting rows costs about as much.
CACHE_READS = 3
# Besides the model: an attention mask, and dropping rejected drafts; running a head, and choosing its token.
CALLS_PER_CHECK = CALLS_PER_HEAD = 2
# Costs are derived anew when the text has grown by this number of tokens.
COLUMNS_PER_COST = 64

# A rate is a mean over about the last 64 drafts of its kind; its prior counts as 2 drafts, as a generation may be
# short.
DECAY, PRIOR_WEIGHT = 1 - 1 / 64, 2.0
# The share of the time spent on trials, which draft with all heads at any cost. Otherwise, what was once found too
# expensive would never be learned again.
TRIAL_SHARE = 0.01


class Costs(NamedTuple):
    """
    The costs of drafting at some batch size, as shares of a plain forward pass, which reads one token per row:
    `heads` of running head 1, 2, ..., `checks` of checking 0, 1, ... drafts per row.
    """

    heads: list[float]
    checks: list[float]


class DraftCosts:
    """
    The costs of drafting with these `heads` of a model, one per depth, from `draft_vocab_size` tokens, at most
    `max_drafts` per row. A given `threshold` is the cost of a head's draft, half of it for running the head.
    `cache_bytes` is the size of the cache per token of a row, once it is known.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        generation_config: GenerationConfig,
        heads: Sequence[nn.Module],
        max_drafts: int,
        draft_vocab_size: int,
        threshold: float | None = None,
    ):
        self.threshold, self.max_drafts, self.cache_bytes = threshold, max_drafts, 0.0
        self.device = "cpu" if model.device.type == "cpu" else "other"
        # Of an embedding table, a forward pass reads one vector per token.
        modules = [module for module in model.get_decoder().modules() if not isinstance(module, nn.Embedding)]
        output = model.get_output_embeddings().weight
        self.forward_bytes = _bytes_of({output, *(w for module in modules for w in module.parameters(recurse=False))})
        # The layers are the longest list of modules. Each is an attention and an MLP.
        self.num_calls = 2 * max((len(module) for module in modules if isinstance(module, nn.ModuleList)), default=1)
        shortlist_bytes = _bytes_of([output]) * draft_vocab_size / model.ngram_vocab_size
        self.head_bytes = [_bytes_of(head.parameters()) + shortlist_bytes for head in heads]
        # In greedy search, choosing a token costs little.
        sorts = (generation_config.top_p or 1.0) < 1.0 or generation_config.min_p is not None
        score_bytes = (SCORE_BYTES + sorts * SORT_BYTES) if generation_config.do_sample else 0.0
        self.choice_bytes = score_bytes * model.ngram_vocab_size
        self.draft_choice_bytes = score_bytes * draft_vocab_size
        self._costs_at = cache(self._derive)

    def at(self, num_rows: int, num_columns: int) -> Costs:
        """Return the costs for a batch of `num_rows` rows, with about `num_columns` tokens each in the cache."""
        return self._costs_at(num_rows, num_columns // COLUMNS_PER_COST * COLUMNS_PER_COST)

    def _derive(self, num_rows: int, num_columns: int) -> Costs:
        if self.threshold is not None:
            half = self.threshold / 2
            return Costs([half] * len(self.head_bytes), [half * number for number in range(self.max_drafts + 1)])
        cache_work = CACHE_READS * num_rows * num_columns * self.cache_bytes
        forwards = []
        for num_drafts in range(self.max_drafts + 1):
            num_tokens = num_rows * (1 + num_drafts)
            work = self._product(self.forward_bytes, num_tokens) + num_tokens * self.choice_bytes
            # Rows that accept different numbers of drafts are shifted in the cache.
            num_copies = 2 if num_drafts and num_rows > 1 else 1
            num_calls = self.num_calls + (CALLS_PER_CHECK if num_drafts else 0)
            forwards.append(work + num_calls * CALL_BYTES[self.device] + num_copies * cache_work)
        extra = CALLS_PER_HEAD * CALL_BYTES[self.device] + num_rows * self.draft_choice_bytes
        heads = [(self._product(head, num_rows) + extra) / forwards[0] for head in self.head_bytes]
        return Costs(heads, [forward / forwards[0] - 1 for forward in forwards])

    def _product(self, weight_bytes: float, num_tokens: int) -> float:
        """Return the cost of multiplying weights with the vectors of some tokens, in bytes read."""
        return weight_bytes * (1 + max(num_tokens, MIN_TOKENS[self.device]) / TOKENS_PER_READ[self.device])


def _bytes_of(weights: Iterable[nn.Parameter]) -> int:
    return sum(weight.numel() * weight.element_size() for weight in weights)


class DraftKind(NamedTuple):
    """
    Class of drafts with similar acceptance rates: by prompt lookup, by the length of the match (`"lookup"`); by a
    head, by its confidence in tenths (`"head"`), or by its depth before it is run (`"depth"`, 0 for the first head).
    """

    source: str
    level: int

    @classmethod
    def of_lookup(cls, match_length: int) -> "DraftKind":
        # Longer matches than 6 are accepted equally often.
        return cls("lookup", min(match_length, 6))

    @classmethod
    def of_head(cls, confidence: float) -> "DraftKind":
        # The confidence is the probability of the head's best token; it may be NaN.
        return cls("head", min(int(confidence * 10), 9) if confidence > 0 else 0)

    @property
    def is_lookup(self) -> bool:
        return self.source == "lookup"

    def prior(self) -> float:
        """Return a guess of the acceptance rate, before any draft of this kind was checked."""
        if self.source == "lookup":
            # 0.3 for a match of one token, 0.88 for one of six: the usual rates in text that repeats itself.
            return 1 - 0.7**self.level
        if self.source == "head":
            # Heads are accepted more often than their confidence suggests.
            return ((self.level + 0.5) / 10) ** 0.5
        # Deeper drafts count only if those before them are accepted, which happens where the text is easy to predict.
        return 0.5 if self.level else 0.3


class DraftDepth:
    """
    Decides how deep to draft. Costs are shares of a forward pass, and an accepted draft saves one, so they can be
    compared: a head is run if the chance that its draft is accepted exceeds the cost of running it and of checking
    the draft; the draft is made if its chance, now that the head's confidence is known, exceeds the cost of checking
    it. A chance is the product of the acceptance rates up to it, learned by kind.

    So drafts that are never accepted cost `TRIAL_SHARE` of the time, and at first what the priors promise. There is
    no clock, and every call of `generate` starts anew: the same random numbers give the same text.
    """

    def __init__(self, draft_costs: DraftCosts):
        self.draft_costs = draft_costs
        # By kind: the (decaying) numbers of accepted drafts and of all drafts.
        self.counts: dict[DraftKind, tuple[float, float]] = {}
        # What may be spent on trials.
        self.credit = 0.0

    def begin(self, tokens_left: Sequence[int], num_columns: int) -> None:
        """
        Begin a step with `num_columns` tokens in the cache. Rows count in proportion to the tokens that they can still
        get, as the last row to finish determines the time.
        """
        self.costs = self.draft_costs.at(len(tokens_left), num_columns)
        self.depth = 0
        # The chance that all drafts so far are accepted, in each row.
        self.chances = [left / sum(tokens_left) for left in tokens_left]
        price = sum(self.costs.heads) + self.costs.checks[len(self.costs.heads)]
        self.credit = min(self.credit + TRIAL_SHARE, price)
        self.is_trial = self.credit >= price
        self.credit -= price * self.is_trial

    def prefers_lookup(self, match_length: int) -> bool:
        """Return whether a copy is more likely to be accepted than the first head's draft, or that does not pay."""
        rate = self.rate(DraftKind("depth", 0))
        if self.costs.heads and (self.is_trial or rate >= self.costs.heads[0] + self._check_cost()):
            return self.rate(DraftKind.of_lookup(match_length)) >= rate
        return True

    def runs_head(self, drafts_by_head: Sequence[bool]) -> bool:
        """Return whether to run the head of the current depth, given the rows that it would draft for."""
        chance = sum(chance for chance, by_head in zip(self.chances, drafts_by_head, strict=True) if by_head)
        rate = self.rate(DraftKind("depth", self.depth))
        return self.is_trial or chance * rate >= self.costs.heads[self.depth] + self._check_cost()

    def drafts(self, kinds: Sequence[DraftKind | None]) -> bool:
        """Return whether to make the drafts of the current depth, `None` for no draft. If so, go one deeper."""
        rates = [0.0 if kind is None else self.rate(kind) for kind in kinds]
        chances = [chance * rate for chance, rate in zip(self.chances, rates, strict=True)]
        is_trial = self.is_trial and self.depth < len(self.costs.heads)
        if any(kinds) and (is_trial or sum(chances) >= self._check_cost()):
            self.chances, self.depth = chances, self.depth + 1
            return True
        for kind in kinds:
            # A head that was run for nothing.
            if kind is not None and not kind.is_lookup:
                self._count(DraftKind("depth", self.depth), False)
        return False

    def learn(self, kinds: Sequence[Sequence[DraftKind | None]], num_accepted: Sequence[int]) -> None:
        """Update the rates after a step, in which the first `num_accepted[i]` drafts of row i were accepted."""
        for row, accepted in zip(kinds, num_accepted, strict=True):
            # Drafts after a rejected one tell nothing.
            for depth, kind in enumerate(row[: accepted + 1]):
                if kind is None:
                    break
                self._count(kind, depth < accepted)
                if not kind.is_lookup:
                    self._count(DraftKind("depth", depth), depth < accepted)

    def rate(self, kind: DraftKind) -> float:
        """Return the acceptance rate of drafts of this kind, given that all drafts before them are accepted."""
        accepted, total = self.counts.get(kind, (0.0, 0.0))
        prior = kind.prior()
        if kind.source == "head":
            # What the first head's drafts of any confidence have shown so far.
            first = DraftKind("depth", 0)
            prior *= min(1.0, self.rate(first) / first.prior())
        return (accepted + PRIOR_WEIGHT * prior) / (total + PRIOR_WEIGHT)

    def first_draft(self) -> tuple[float, float]:
        """Return the acceptance rate of the first head's drafts, and what one costs at the batch size of this step."""
        return self.rate(DraftKind("depth", 0)), self.costs.heads[0] + self.costs.checks[1]

    def _check_cost(self) -> float:
        # Of checking one more draft per row.
        return self.costs.checks[self.depth + 1] - self.costs.checks[self.depth]

    def _count(self, kind: DraftKind, is_accepted: bool) -> None:
        accepted, total = self.counts.get(kind, (0.0, 0.0))
        self.counts[kind] = accepted * DECAY + is_accepted, total * DECAY + 1
