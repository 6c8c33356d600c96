"""Drafts by the N-gram heads and by prompt lookup, for the model to check in one forward pass."""

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from transformers.generation import GenerationConfig

from ..method.logits import LogitLayer, logits_of, target_embeddings
from .few_tokens import fits_in_cache, multiply
from .pace import DraftKind, DraftPace
from .prices import DraftPrices, ThresholdPrices
from .prompt_lookup import PromptLookup, PromptMatch
from .rows import TextRows

# Prompt lookup: copy up to `MAX_COPIED` tokens that followed an earlier match of up to `MAX_MATCH` tokens.
MAX_COPIED, MAX_MATCH = 8, 3


@dataclass
class Drafts:
    r"""
    The drafts of one step: D >= 0 tokens for each active row.

    Args:
        tokens (`torch.LongTensor` of shape `(num_rows, D)`):
            The drafted tokens; an arbitrary token where a row has no draft.
        kinds (`list[list[DraftKind | None]]`):
            Per row, the kind of each draft: whether a head or prompt lookup made it, and how likely it is to be
            accepted. `None` if the row has no draft there.
        probabilities (`list[torch.Tensor]`, D of shape `(num_rows, vocab_size)`):
            The distribution q that each draft was sampled from. Empty in greedy search.
    """

    tokens: torch.Tensor
    kinds: list[list[DraftKind | None]]
    probabilities: list[torch.Tensor] = field(default_factory=list)

    @classmethod
    def none(cls, num_rows: int, device: torch.device) -> "Drafts":
        """Return an object without drafts (D = 0) for `num_rows` rows."""
        return cls(torch.empty(num_rows, 0, dtype=torch.long, device=device), [[] for _ in range(num_rows)])

    @property
    def depth(self) -> int:
        """The number of drafts per row, D."""
        return self.tokens.shape[1]


class Drafter:
    r"""
    Proposes tokens after the next one: by prompt lookup if the last tokens occurred before and a copy is likely to be
    accepted, by the model's heads otherwise. Head n's draft depends on the n tokens before it, drafts included. For
    WDR heads this takes only a vector addition.

    Args:
        model (`PreTrainedModel`): A model with N-gram heads.
        generation_config ([`GenerationConfig`]): The options of the generation, those of [`NgramGenerationMixin`] too.
    """

    def __init__(self, model, generation_config: GenerationConfig):
        self.model = model
        self.samples = bool(generation_config.do_sample)
        self.heads = list(model.ngram_heads)[: generation_config.num_assistant_tokens]
        max_copied = generation_config.prompt_lookup_num_tokens
        self.max_copied = MAX_COPIED if max_copied is None else max_copied
        self.max_match = generation_config.max_matching_ngram_size or MAX_MATCH
        self.lookups: dict[int, PromptLookup] = {}
        self.vocabulary = model.ngram_draft_vocabulary(getattr(generation_config, "draft_vocab_size", None))
        self.shortlist = None
        # An adapter adds to the logits, which the weights of a shortlist would miss.
        if self.vocabulary is not None and not hasattr(model.get_output_embeddings(), "base_layer"):
            layer = LogitLayer.of(model)
            self.vocabulary = self.vocabulary.to(layer.weight.device)
            self.shortlist = layer.select(self.vocabulary)
            self.multiply = F.linear if fits_in_cache(model) else multiply
        draft_vocab_size = model.ngram_vocab_size if self.shortlist is None else len(self.vocabulary)
        threshold, num_heads = getattr(generation_config, "draft_threshold", None), len(self.heads)
        max_drafts = max(num_heads, self.max_copied)
        if threshold is None:
            prices = DraftPrices(model, generation_config, num_heads, max_drafts, draft_vocab_size)
        else:
            prices = ThresholdPrices(threshold, num_heads, max_drafts)
        self.pace = DraftPace(prices)

    def draft(
        self,
        text: TextRows,
        hidden_states: torch.Tensor | None,
        next_tokens: torch.Tensor,
        max_drafts: float = math.inf,
    ) -> Drafts:
        r"""
        Return drafts of the tokens after `next_tokens`, depth by depth, until another draft would cost more than it
        saves or the maximum length is reached. There may be none.

        Args:
            text ([`TextRows`]): The batch rows so far, including their next tokens.
            hidden_states (`torch.Tensor` of shape `(num_rows, d)`, *optional*):
                The hidden states that predicted the next tokens. Without them, the heads cannot draft.
            next_tokens (`torch.LongTensor` of shape `(num_rows,)`):
                The last token of each active row, which the model has chosen but not read yet.
            max_drafts (`float`, *optional*, defaults to infinity): The maximum number of drafts per row.
        """
        drafts = Drafts.none(len(next_tokens), next_tokens.device)
        tokens_left = text.tokens_left()
        self.pace.begin(tokens_left, text.longest)
        matches = self._find_matches(text)
        heads_rest = hidden_states is None or self.pace.is_resting
        num_heads = 0 if heads_rest or all(matches) else len(self.heads)
        last_tokens, neighbors = next_tokens, []
        # The forward pass that checks the drafts adds one token of its own.
        limit = min(max(tokens_left) - 1, max(num_heads, self.max_copied if any(matches) else 0), max_drafts)
        for depth in range(limit):
            choice = probabilities = None
            ahead = [self._kinds(matches, i, num_heads) for i in range(depth, limit)]
            if depth < num_heads and self.pace.should_run_head(ahead):
                embeddings = target_embeddings(self.model, last_tokens.to(hidden_states.device))
                if embeddings is not None:
                    neighbors.insert(0, embeddings)
                logits = self._logits(self.heads[depth].predict(hidden_states, neighbors)).to(next_tokens.device)
                probabilities = self._process(text, logits, drafts.tokens).softmax(dim=-1)
                max_probabilities, choice = probabilities.max(dim=-1)
                confidences = max_probabilities.tolist()
                ahead[0] = [
                    DraftKind.of_head(confidences[i]) if match is None else kind
                    for i, (kind, match) in enumerate(zip(ahead[0], matches, strict=True))
                ]
            elif depth < num_heads:
                num_heads = depth
                ahead = [self._kinds(matches, i, num_heads) for i in range(depth, limit)]
            # Decided before sampling: dropping a draft because of its token would change the distribution.
            if not any(ahead[0]) or not self.pace.should_draft(ahead):
                break
            self.pace.go_deeper(ahead[0])
            if self.samples and probabilities is not None:
                choice = torch.multinomial(probabilities, 1)[:, 0]
            if choice is not None and self.vocabulary is not None:
                choice = self.vocabulary[choice]
            last_tokens = self._with_copies(choice, matches, next_tokens)
            if self.samples:
                drafts.probabilities.append(self._proposal(probabilities, last_tokens, matches))
            drafts.tokens = torch.cat([drafts.tokens, last_tokens[:, None]], dim=1)
            for row, kind in zip(drafts.kinds, ahead[0], strict=True):
                row.append(kind)
        return drafts

    def _kinds(self, matches: list[PromptMatch | None], depth: int, num_heads: int) -> list[DraftKind | None]:
        """
        Return the kind of each row's draft at a depth, 0 for the first: a copy for a row with a match, otherwise one
        of a head that has not been run yet, `None` beyond the last of `num_heads` heads.
        """
        of_head = DraftKind.of_depth(depth) if depth < num_heads else None
        return [of_head if match is None else DraftKind.of_lookup(match.match_length + depth) for match in matches]

    def _find_matches(self, text: TextRows) -> list[PromptMatch | None]:
        """
        Index the new tokens of each active row, and return its match for prompt lookup. It is `None` without a match,
        or if the first head's draft is more likely to be accepted. All are `None` if prompt lookup is disabled.
        """
        if self.max_copied == 0:
            return [None] * len(text.rows)
        matches = []
        for row in text.rows:
            if row not in self.lookups:
                self.lookups[row] = PromptLookup(self.max_match)
            lookup = self.lookups[row]
            lookup.add(text.tokens[row][lookup.num_read :])
            match = lookup.find()
            is_preferred = match is not None and self.pace.prefers_lookup(DraftKind.of_lookup(match.match_length))
            matches.append(match if is_preferred else None)
        return matches

    def _with_copies(
        self, choice: torch.Tensor | None, matches: list[PromptMatch | None], next_tokens: torch.Tensor
    ) -> torch.Tensor:
        """
        Return one draft per row, `(num_rows,)`: the next token of the row's match, or the heads' `choice` without a
        match, or 0 without both (`choice` is `None` if no head was run).
        """
        if choice is not None and not any(matches):
            return choice
        copied = [0 if match is None else match.next_token() for match in matches]
        tokens = torch.tensor(copied, device=next_tokens.device)
        if choice is None:
            return tokens
        has_match = torch.tensor([match is not None for match in matches], device=tokens.device)
        return torch.where(has_match, tokens, choice)

    def _proposal(
        self, probabilities: torch.Tensor | None, tokens: torch.Tensor, matches: list[PromptMatch | None]
    ) -> torch.Tensor:
        """
        Return the distribution q of one draft per row, `(num_rows, vocab_size)`: the heads' `probabilities`, or
        one-hot for copied tokens. `probabilities` are over the draft vocabulary; with `None`, all rows are one-hot.
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
        """
        Expand values for the draft vocabulary, `(num_rows, draft_vocab_size)`, to the full vocabulary. All other
        tokens get `fill_value`.
        """
        expanded = values.new_full((len(values), self.model.ngram_vocab_size), fill_value)
        return expanded.index_copy_(1, self.vocabulary, values)

    def _logits(self, predictions: torch.Tensor) -> torch.Tensor:
        """Return the logits of predictions `(num_rows, d)` over the draft vocabulary, in float32."""
        if self.shortlist is not None:
            logits = self.multiply(predictions, self.shortlist.weight, self.shortlist.bias)
            return self.shortlist.shape(logits).float()
        logits = logits_of(self.model, predictions).float()
        return logits if self.vocabulary is None else logits[:, self.vocabulary]

    def _process(self, text: TextRows, logits: torch.Tensor, drafts: torch.Tensor) -> torch.Tensor:
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
