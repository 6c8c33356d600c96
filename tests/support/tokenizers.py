"""Letter and word tokenizers for the vocabulary of the tiny models."""

import string

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.support.tiny import VOCAB_SIZE

SPECIAL = {"eos_token": "<eos>", "pad_token": "<pad>"}


def letter_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per letter."""
    tokens = [*SPECIAL.values(), *string.ascii_letters][:VOCAB_SIZE]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges=[]))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, padding_side="left", **SPECIAL)


def word_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per word: w2, w3 and so on."""
    words = [*SPECIAL.values(), *(f"w{i}" for i in range(2, VOCAB_SIZE))]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<eos>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL)
