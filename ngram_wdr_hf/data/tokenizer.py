"""Tokenizers trained on the data: words, as PTB and WikiText are scored, or byte-level BPE."""

from collections.abc import Iterable, Iterator

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

UNKNOWN, END = "<unk>", "<eos>"
# More distinct words than any text has; the trainer wants a number.
NO_LIMIT = 2**31 - 1


def train_word_tokenizer(texts: Iterable[str], vocab_size: int | None = None) -> PreTrainedTokenizerFast:
    """
    Whitespace-separated words, `<unk>` for any other, and one `<eos>` for each line break.

    Args:
        texts (`Iterable[str]`): The training text, in pieces.
        vocab_size (`int`, *optional*): At most so many words, the most frequent; all by default.
    """
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Replace("\n", f" {END} ")
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(vocab_size=vocab_size or NO_LIMIT, special_tokens=[UNKNOWN, END])
    tokenizer.train_from_iterator(texts, trainer)
    return _wrap(tokenizer, unk_token=UNKNOWN)


def train_bpe_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE, which has a token for every text; `<eos>` ends a document."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _wrap(tokenizer)


def start_token_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """What stands before the first word of a text, so that it is predicted like any other."""
    return tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id


def texts_of(rows: Iterable[dict[str, str]]) -> Iterator[str]:
    for row in rows:
        yield row["text"]


def _wrap(tokenizer: Tokenizer, **special_tokens: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        clean_up_tokenization_spaces=False,
        **special_tokens,
    )
