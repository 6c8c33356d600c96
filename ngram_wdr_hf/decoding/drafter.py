"""Drafts by the N-gram heads: guesses at the next few tokens, for the model to check in one forward pass."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from transformers.generation import GenerationConfig

from ..method.differences import conjugate_of
from ..method.logits import LogitLayer, logits_of, target_embeddings
from .pace import DraftKind, DraftPace
from .prompt_lookup import Copy, TextMemory
from .rows import TextRows

# About how many tokens a forward pass takes in for the price of two: on a processor, and on an accelerator.
FREE_TOKENS = {"cpu": 40}
FREE_TOKENS_ELSEWHERE = 200
# Of the text before, so many tokens are copied at a time, if so many or fewer tokens before them are the same.
COPIED_TOKENS, LONGEST_MATCH = 8, 3


@dataclass
class Drafts:
    r"""
    Args:
        tokens (`torch.LongTensor` of shape `(num_rows, D)`): What was drafted, D from 0 on.
        kinds (`list[list[DraftKind | None]]`): For each row what is known of its drafts, `None` where it has none.
        probabilities (`list[torch.Tensor]`, D of shape `(num_rows, vocab_size)`): If sampling, what they come from.
    """

    tokens: torch.LongTensor
    kinds: list[list[DraftKind | None]]
    probabilities: list[torch.Tensor] = field(default_factory=list)

    @classmethod
    def none(cls, num_rows: int, device: torch.device) -> "Drafts":
        return cls(torch.empty(num_rows, 0, dtype=torch.long, device=device), [[] for _ in range(num_rows)])

    @property
    def depth(self) -> int:
        return self.tokens.shape[1]


class Drafter:
    r"""
    Guesses what comes after the next token: by copying, where the last tokens stood in the text before, and with the
    model's heads otherwise. Head n's guess is made with the n tokens before it, drafted ones included; for WDR heads
    that is a vector addition.

    Args:
        model (`PreTrainedModel`): With N-gram heads.
        generation_config ([`GenerationConfig`]): Has the options of [`NgramGenerationMixin`].
    """

    def __init__(self, model, generation_config: GenerationConfig):
        self.model = model
        self.samples = bool(generation_config.do_sample)
        self.heads = list(model.ngram_heads)[: generation_config.num_assistant_tokens]
        copied = generation_config.prompt_lookup_num_tokens
        self.num_copied = COPIED_TOKENS if copied is None else copied
        self.longest_match = generation_config.max_matching_ngram_size or LONGEST_MATCH
        self.memories: dict[int, TextMemory] = {}
        free_tokens = FREE_TOKENS.get(model.device.type, FREE_TOKENS_ELSEWHERE)
        self.pace = DraftPace(getattr(generation_config, "draft_threshold", None), free_tokens, self.samples)
        self.vocabulary = model.ngram_draft_vocabulary(getattr(generation_config, "draft_vocab_size", None))
        self.shortlist = None
        # What an adapter adds to the product does not show in its weights.
        if self.vocabulary is not None and not hasattr(model.get_output_embeddings(), "base_layer"):
            layer = LogitLayer.of(model)
            self.vocabulary = self.vocabulary.to(layer.weight.device)
            self.shortlist = layer.select(self.vocabulary)

    def draft(self, text: TextRows, hidden_states: torch.Tensor, next_tokens: torch.LongTensor) -> Drafts:
        r"""
        Args:
            text ([`TextRows`]): The rows so far, their next tokens included.
            hidden_states (`torch.Tensor` of shape `(num_rows, d)`): From which the next tokens were predicted.
            next_tokens (`torch.LongTensor` of shape `(num_rows,)`): The next tokens.
        """
        drafts = Drafts.none(len(next_tokens), next_tokens.device)
        tokens_left = text.tokens_left()
        self.pace.begin(tokens_left)
        copies = self._find_copies(text)
        heads = [] if all(copies) else self.heads
        last_tokens, neighbors = next_tokens, []
        # The forward pass that checks the drafts brings one token of its own.
        limit = min(max(tokens_left) - 1, max(len(heads), self.num_copied if any(copies) else 0))
        for depth in range(limit):
            choice = probabilities = None
            kinds = [copy and DraftKind.of_copy(copy.match_length + depth) for copy in copies]
            if depth < len(heads) and self.pace.asks_heads(kinds):
                prediction = heads[depth](hidden_states)
                embeddings = target_embeddings(self.model, last_tokens.to(hidden_states.device))
                if embeddings is not None:
                    neighbors.insert(0, embeddings)
                    prediction = prediction + conjugate_of(neighbors)
                logits = self._logits(prediction).to(next_tokens.device)
                probabilities = self._process(text, logits, drafts.tokens).softmax(dim=-1)
                confidences, choice = probabilities.max(dim=-1)
                sure = confidences.tolist()
                kinds = [kind or DraftKind.of_head(sure[i]) for i, kind in enumerate(kinds)]
            else:
                heads = []
            # Decided before a token is sampled: to drop a token for what it is would change the distribution.
            if not self.pace.goes_on(kinds):
                break
            if self.samples and probabilities is not None:
                choice = torch.multinomial(probabilities, 1)[:, 0]
            if choice is not None and self.vocabulary is not None:
                choice = self.vocabulary[choice]
            last_tokens = self._with_copies(choice, copies, next_tokens)
            if self.samples:
                drafts.probabilities.append(self._proposal(probabilities, last_tokens, copies))
            drafts.tokens = torch.cat([drafts.tokens, last_tokens[:, None]], dim=1)
            for row, kind in zip(drafts.kinds, kinds, strict=True):
                row.append(kind)
        return drafts

    def _find_copies(self, text: TextRows) -> list[Copy | None]:
        """For each row what to copy, if that is worth more than what the heads would say."""
        if self.num_copied == 0:
            return [None] * len(text.rows)
        copies = []
        for row in text.rows:
            if row not in self.memories:
                self.memories[row] = TextMemory(self.longest_match)
            memory = self.memories[row]
            memory.add(text.tokens[row][memory.num_read :])
            copy = memory.find()
            worth = copy is not None and self.pace.prefers_copy(DraftKind.of_copy(copy.match_length))
            copies.append(copy if worth else None)
        return copies

    def _with_copies(
        self, choice: torch.LongTensor | None, copies: list[Copy | None], next_tokens: torch.LongTensor
    ) -> torch.LongTensor:
        """The heads' choice, with the next token to copy in the rows that copy."""
        if choice is not None and not any(copies):
            return choice
        # A row that neither copies nor has a head left gets any token.
        tokens = torch.tensor([0 if copy is None else copy.next_token() for copy in copies], device=next_tokens.device)
        if choice is None:
            return tokens
        return torch.where(torch.tensor([copy is not None for copy in copies], device=tokens.device), tokens, choice)

    def _proposal(
        self, probabilities: torch.Tensor | None, tokens: torch.LongTensor, copies: list[Copy | None]
    ) -> torch.Tensor:
        """The distribution over the whole vocabulary that `tokens` come from: for a copy, all on one token."""
        if probabilities is None:
            return F.one_hot(tokens, self.model.ngram_vocab_size).float()
        if self.vocabulary is not None:
            probabilities = self._spread(probabilities, 0.0)
        for row, copy in enumerate(copies):
            if copy is not None:
                probabilities[row] = 0.0
                probabilities[row, tokens[row]] = 1.0
        return probabilities

    def _spread(self, values: torch.Tensor, elsewhere: float) -> torch.Tensor:
        """Values for the drafter's vocabulary as values for the whole one."""
        everything = values.new_full((len(values), self.model.ngram_vocab_size), elsewhere)
        return everything.index_copy_(1, self.vocabulary, values)

    def _logits(self, predictions: torch.Tensor) -> torch.Tensor:
        if self.shortlist is not None:
            return self.shortlist(predictions).float()
        logits = logits_of(self.model, predictions).float()
        return logits if self.vocabulary is None else logits[:, self.vocabulary]

    def _process(self, text: TextRows, logits: torch.Tensor, drafts: torch.LongTensor) -> torch.Tensor:
        if not text.processors:
            return logits
        if self.vocabulary is None or text.is_pointwise:
            scores = text.process(logits[:, None], drafts)[:, 0]
        else:
            # Not forbidden, but as good as: some processors do not like it when nothing is left.
            everything = self._spread(logits, torch.finfo(logits.dtype).min)
            scores = text.process(everything[:, None], drafts)[:, 0, self.vocabulary]
        # Where the processors leave none of the tokens to choose from, any of them will do: it will not stand.
        is_nothing = ~(scores > -torch.inf).any(dim=-1, keepdim=True)
        return torch.where(is_nothing, logits, scores)
