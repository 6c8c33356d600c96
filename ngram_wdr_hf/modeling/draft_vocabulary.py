"""The tokens that heads choose drafts from."""

from collections.abc import Sequence

import torch

from ..method.configuration import check_draft_vocab_size
from ..method.typing_bases import Backbone


class DraftVocabularyMixin(Backbone):
    """Mixin for a list of draft tokens, kept in the buffer `draft_token_ids` and saved with the model."""

    def ngram_set_draft_tokens(self, token_ids: Sequence[int] | torch.Tensor) -> None:
        r"""
        Restrict the heads' drafts in `generate(use_mtp=True)` to the given tokens, which makes drafting cheaper. This
        also sets `config.draft_vocab_size` to their number. The tokens are saved with the model.

        Args:
            token_ids (`Sequence[int]` or `torch.LongTensor`):
                The token ids, without duplicates and most useful first: usually the most frequent ones of the training
                data. With a smaller `draft_vocab_size`, `generate` uses only the first of them.
        """
        if self.config.ngram_size == 1:
            raise ValueError("`ngram_set_draft_tokens` needs a model with heads: use `ngram_size` >= 2.")
        vocab_size = self.ngram_vocab_size
        tokens = torch.as_tensor(token_ids, device=self.device).flatten()
        check_draft_vocab_size(len(tokens), vocab_size)
        is_integer = not tokens.is_floating_point() and tokens.dtype != torch.bool
        if not is_integer or len(tokens.unique()) < len(tokens) or tokens.min() < 0 or tokens.max() >= vocab_size:
            raise ValueError(
                f"`token_ids` must be integers from 0 to {vocab_size - 1} without duplicates. Remove all others."
            )
        self.config.draft_vocab_size = len(tokens)
        self.register_buffer("draft_token_ids", tokens.long())

    def ngram_draft_vocabulary(self, draft_vocab_size: int | None = None) -> torch.Tensor | None:
        """
        Return the tokens that the heads choose drafts from, `(draft_vocab_size,)`: those of `ngram_set_draft_tokens`,
        then the first others of the vocabulary. `draft_vocab_size=None` means that of `config`. Return `None` for
        the full vocabulary.
        """
        if draft_vocab_size is None:
            draft_vocab_size = self.config.draft_vocab_size
        vocab_size = self.ngram_vocab_size
        check_draft_vocab_size(draft_vocab_size, vocab_size)
        if draft_vocab_size is None or draft_vocab_size == vocab_size:
            return None
        tokens = getattr(self, "draft_token_ids", None)
        if tokens is None:
            tokens = torch.arange(draft_vocab_size, device=self.device)
        elif len(tokens) < draft_vocab_size:
            all_tokens = torch.arange(vocab_size, device=tokens.device)
            tokens = torch.cat([tokens, all_tokens[~torch.isin(all_tokens, tokens)]])
        tokens = tokens[:draft_vocab_size]
        if int(tokens.max()) >= vocab_size:
            raise ValueError(
                f"`draft_token_ids` contains {int(tokens.max())}, but the vocabulary now has {vocab_size} tokens: "
                "choose others with `ngram_set_draft_tokens`."
            )
        return tokens

    def _ngram_match_draft_tokens(self) -> None:
        """
        Make the buffer `draft_token_ids`, the tokens that heads may draft, match `config.draft_vocab_size`, which may
        have been changed: delete it for `None`; otherwise truncate it, or create or extend it with the first tokens of
        the vocabulary that it lacks. Without heads, it is not created.
        """
        size, tokens = self.config.draft_vocab_size, getattr(self, "draft_token_ids", None)
        if size is None and tokens is not None:
            del self.draft_token_ids
        elif size is not None and self.config.ngram_size > 1 and (tokens is None or len(tokens) != size):
            vocabulary = self.ngram_draft_vocabulary(size)
            self.ngram_set_draft_tokens(range(size) if vocabulary is None else vocabulary)
