"""Drafts by the N-gram heads and by prompt lookup, for the model to check in one forward pass."""

import math
from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from transformers.generation import GenerationConfig

from ..method.configuration import check_fraction, check_integer
from ..method.logits import LogitLayer, logits_of, target_embeddings
from .cpu_products import CACHE_BYTES, CpuProducts
from .draft_depth import DraftCosts, DraftDepth, DraftKind
from .prompt_lookup import PromptLookup, PromptMatch
from .row_texts import RowTexts

# The default limit of drafts by a shared head, which has no largest depth; that of prompt lookup, too.
MAX_DRAFTS = 8


@dataclass
class DraftOptions:
    """The options of `generate` about drafts: see [`NgramGenerationMixin`]. `None` stands for the default."""

    num_assistant_tokens: int | None = None
    prompt_lookup_num_tokens: int | None = None
    max_matching_ngram_size: int | None = None
    draft_vocab_size: int | None = None
    draft_threshold: float | None = None
    cpu_products: bool | None = None

    def __post_init__(self):
        if self.draft_threshold is not None:
            check_fraction("draft_threshold", self.draft_threshold)
        minima = {"num_assistant_tokens": 0, "prompt_lookup_num_tokens": 0, "max_matching_ngram_size": 1}
        for name, minimum in minima.items():
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), minimum)


@dataclass
class Drafts:
    """
    The drafts of one step, D >= 0 for each row: `tokens`, `(num_rows, D)`, and per row the `kinds`, `None` where it
    has no draft but an arbitrary token. In sampling, `probabilities` are the D distributions q that they were sampled
    from, `(num_rows, vocab_size)`.
    """

    tokens: torch.Tensor
    kinds: list[list[DraftKind | None]]
    probabilities: list[torch.Tensor] = field(default_factory=list)

    @classmethod
    def none(cls, num_rows: int, device: torch.device) -> "Drafts":
        return cls(torch.empty(num_rows, 0, dtype=torch.long, device=device), [[] for _ in range(num_rows)])


class Drafter:
    r"""
    Proposes tokens after the next one: by prompt lookup if the last tokens occurred before and a copy is likely to be
    accepted, by the model's heads otherwise. Head n's draft depends on the n tokens before it, drafts included. For
    WDR heads this takes only a vector addition.

    Args:
        model (`PreTrainedModel`): A model with N-gram heads.
        generation_config ([`GenerationConfig`]): The options of the generation.
        options ([`DraftOptions`]): Those about drafts.
    """

    def __init__(self, model, generation_config: GenerationConfig, options: DraftOptions):
        self.model = model
        self.samples = bool(generation_config.do_sample)
        # A shared head has no largest depth.
        depth = options.num_assistant_tokens
        largest = max(model.config.ngram_size - 1, MAX_DRAFTS)
        self.heads = model.ngram_heads.active.by_depth(largest if depth is None else depth)
        self.max_copied = MAX_DRAFTS if options.prompt_lookup_num_tokens is None else options.prompt_lookup_num_tokens
        self.max_match = options.max_matching_ngram_size or 3
        self.lookups = defaultdict(partial(PromptLookup, self.max_match))
        self.vocabulary = model.ngram_draft_vocabulary(options.draft_vocab_size)
        self.shortlist = None
        # An adapter adds to the logits, which the weights of a shortlist would miss.
        if self.vocabulary is not None and not hasattr(model.get_output_embeddings(), "base_layer"):
            layer = LogitLayer.of(model)
            self.vocabulary = self.vocabulary.to(layer.weight.device)
            self.shortlist = layer.select(self.vocabulary)
        draft_vocab_size = model.ngram_vocab_size if self.shortlist is None else len(self.vocabulary)
        max_drafts = max(len(self.heads), self.max_copied)
        self.costs = DraftCosts(
            model, generation_config, self.heads, max_drafts, draft_vocab_size, options.draft_threshold
        )
        self.depth = DraftDepth(self.costs)
        self.num_declined = 0  # steps without drafts, although there was room for them
        # Of a small model, the processor's cache keeps the weights.
        is_large = model.device.type == "cpu" and model.get_memory_footprint() > CACHE_BYTES
        self.uses_products = is_large and options.cpu_products is not False

    def draft(
        self, text: RowTexts, hidden_states: torch.Tensor, next_tokens: torch.Tensor, max_drafts: float = math.inf
    ) -> Drafts:
        """
        Return drafts, at most `max_drafts` per row, depth by depth until another would cost more than it saves.
        `next_tokens`, `(num_rows,)`, are the last tokens of the rows, which the model has chosen from
        `hidden_states`, `(num_rows, d)`, but not read yet.
        """
        drafts = Drafts.none(len(next_tokens), next_tokens.device)
        tokens_left = text.tokens_left()
        self.depth.begin(tokens_left, text.longest)
        matches = self._find_matches(text)
        num_heads = 0 if all(matches) else len(self.heads)
        by_head = [match is None for match in matches]
        last_tokens, neighbors = next_tokens, []
        # The forward pass that checks the drafts adds one token of its own.
        limit = min(max(tokens_left) - 1, max(num_heads, self.max_copied if any(matches) else 0), max_drafts)
        for depth in range(limit):
            choice = probabilities = None
            kinds = [match and DraftKind.of_lookup(match.match_length + depth) for match in matches]
            if depth < num_heads and self.depth.runs_head(by_head):
                embeddings = target_embeddings(self.model, last_tokens.to(hidden_states.device))
                if embeddings is not None:
                    neighbors.insert(0, embeddings)
                head = self.heads[depth]
                with self.products(len(next_tokens)):
                    if neighbors:
                        hidden_states = head.advance(hidden_states, neighbors[0])
                    logits = self._logits(head.predict(hidden_states, neighbors)).to(next_tokens.device)
                probabilities = self._process(text, logits, drafts.tokens).softmax(dim=-1)
                confidences, choice = probabilities.max(dim=-1)
                heads = map(DraftKind.of_head, confidences.tolist())
                kinds = [kind or of_head for kind, of_head in zip(kinds, heads, strict=True)]
            else:
                num_heads = depth
            # Decided before sampling: dropping a draft because of its token would change the distribution.
            if not self.depth.drafts(kinds):
                break
            if self.samples and probabilities is not None:
                choice = torch.multinomial(probabilities, 1)[:, 0]
            if choice is not None and self.vocabulary is not None:
                choice = self.vocabulary[choice]
            last_tokens = choice
            if choice is None or any(matches):
                tokens = [match.token(depth) if match else 0 for match in matches]
                copied = last_tokens = torch.tensor(tokens, device=next_tokens.device)
                if choice is not None:
                    last_tokens = torch.where(torch.tensor(by_head, device=copied.device), choice, copied)
            if self.samples:
                drafts.probabilities.append(self._proposal(probabilities, last_tokens, matches))
            drafts.tokens = torch.cat([drafts.tokens, last_tokens[:, None]], dim=1)
            for row, kind in zip(drafts.kinds, kinds, strict=True):
                row.append(kind)
        self.num_declined += min(max(tokens_left) - 1, max_drafts) > 0 and drafts.tokens.shape[1] == 0
        return drafts

    def explanation(self) -> str:
        """Say in one sentence why there were steps without drafts; empty if there were none."""
        if not self.num_declined:
            return ""
        reason = "no head drafts, and there was nothing to copy"
        if self.heads:
            rate, cost = self.depth.first_draft()
            reason = f"head 1's acceptance rate ({rate:.2f}) has to exceed its cost ({cost:.2f} forward passes)"
        return f"{self.num_declined} forward passes had no drafts: {reason}."

    def products(self, num_tokens: int) -> AbstractContextManager:
        """Return the context for products with this number of vectors."""
        return CpuProducts() if self.uses_products and CpuProducts.pay_for(num_tokens) else nullcontext()

    def _find_matches(self, text: RowTexts) -> list[PromptMatch | None]:
        """Index the new tokens of each row, and return its match, `None` if the first head's draft is preferred."""
        if self.max_copied == 0:
            return [None] * len(text.rows)
        matches = []
        for row in text.rows:
            lookup = self.lookups[row]
            lookup.add(text.tokens[row][lookup.num_read :])
            match = lookup.find()
            matches.append(match if match and self.depth.prefers_lookup(match.match_length) else None)
        return matches

    def _proposal(
        self, probabilities: torch.Tensor | None, tokens: torch.Tensor, matches: list[PromptMatch | None]
    ) -> torch.Tensor:
        """
        Return the distribution q of one draft per row, `(num_rows, vocab_size)`: the heads' `probabilities` over the
        draft vocabulary, or one-hot for copied tokens and without `probabilities`.
        """
        if probabilities is None:
            return F.one_hot(tokens, self.model.ngram_vocab_size).float()
        if self.vocabulary is not None:
            probabilities = self._expand(probabilities, 0.0)
        for row, match in enumerate(matches):
            if match is not None:
                probabilities[row] = 0.0
                probabilities[row, tokens[row]] = 1.0
        return probabilities

    def _expand(self, values: torch.Tensor, fill_value: float) -> torch.Tensor:
        """Expand values for the draft vocabulary, `(num_rows, draft_vocab_size)`, to the full vocabulary."""
        expanded = values.new_full((len(values), self.model.ngram_vocab_size), fill_value)
        return expanded.index_copy_(1, self.vocabulary, values)

    def _logits(self, predictions: torch.Tensor) -> torch.Tensor:
        """Return the logits of predictions `(num_rows, d)` over the draft vocabulary, in float32."""
        if self.shortlist is not None:
            return self.shortlist(predictions).float()
        logits = logits_of(self.model, predictions).float()
        return logits if self.vocabulary is None else logits[:, self.vocabulary]

    def _process(self, text: RowTexts, logits: torch.Tensor, drafts: torch.Tensor) -> torch.Tensor:
        """
        Apply the logits processors to logits over the draft vocabulary, at the depth after `drafts`. A row whose draft
        tokens are all forbidden keeps its logits.
        """
        if not text.processors:
            return logits
        if self.vocabulary is None or text.is_pointwise:
            scores = text.process(logits[:, None], drafts)[:, 0]
        else:
            # A finite minimum, since some processors fail if all scores are -inf.
            expanded = self._expand(logits, torch.finfo(logits.dtype).min)
            scores = text.process(expanded[:, None], drafts)[:, 0, self.vocabulary]
        # Any forbidden token will do: the draft will be rejected.
        all_forbidden = ~(scores > -torch.inf).any(dim=-1, keepdim=True)
        return torch.where(all_forbidden, logits, scores)
