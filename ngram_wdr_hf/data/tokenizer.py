"""Tokenizers trained on the data: words, as PTB and WikiText are scored, or byte-level BPE."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator

from datasets import Dataset, IterableDataset
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from .errors import InputError
from .text import reading

UNKNOWN, END, PADDING = "<unk>", "<eos>", "<pad>"


def train_word_tokenizer(texts: Iterable[str], vocab_size: int | None = None) -> PreTrainedTokenizerFast:
    """
    Whitespace-separated words, `<unk>` for any other, and one `<eos>` for each line break.

    Args:
        texts (`Iterable[str]`): The training text, in pieces.
        vocab_size (`int`, *optional*): At most so many words, the most frequent; all by default.
    """
    counts = Counter(word for text in texts for word in text.split())
    # The special tokens may occur in the text, as they do in PTB, and have their places already.
    special = [UNKNOWN, END]
    words = sorted(counts.keys() - special, key=lambda word: (-counts[word], word))
    vocabulary = [*special, *words][:vocab_size]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Replace("\n", f" {END} ")
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _wrap(tokenizer, unk_token=UNKNOWN)


def train_bpe_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE, which has a token for every text; `<eos>` ends a document."""
    return _wrap(_train_bpe(texts, vocab_size, [END], begins_with_space=False))


def train_sentence_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """
    Byte-level BPE for sentences, of one language or of two that share it: a word has the same tokens wherever it
    stands, every sentence ends in `<eos>`, and `<pad>` fills a batch.
    """
    tokenizer = _train_bpe(texts, vocab_size, [END, PADDING], begins_with_space=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, tokenizer.token_to_id(END))]
    )
    return _wrap(tokenizer, pad_token=PADDING)


def train_masked_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """
    Lower-case byte-level BPE with BERT's special tokens, for masked words and pairs of texts. Not WordPiece: trained
    twice on the same text, `tokenizers` makes two different ones.
    """
    special = {"pad_token": PADDING, "cls_token": "<cls>", "sep_token": "<sep>", "mask_token": "<mask>"}
    # Between words there is one space, and none at the end of a line: it would be a word to guess.
    normalizer = normalizers.Sequence(
        [
            normalizers.BertNormalizer(handle_chinese_chars=False),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Strip(),
        ]
    )
    tokenizer = _train_bpe(texts, vocab_size, list(special.values()), begins_with_space=True, normalizer=normalizer)
    begin, end = special["cls_token"], special["sep_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} $B {end}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (begin, end)],
    )
    # Not which of two texts a token belongs to: a ModernBERT is not told.
    names = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, model_input_names=names, **special
    )


def _train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: list[str],
    begins_with_space: bool,
    normalizer: normalizers.Normalizer | None = None,
) -> Tokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < len(alphabet) + len(special_tokens):
        raise InputError(
            f"A BPE tokenizer has at least {len(alphabet) + len(special_tokens)} tokens, one for each byte: raise "
            f"`--vocab_size`, which is {vocab_size}."
        )
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=begins_with_space)
    # The space before the first word is the tokenizer's own.
    own_space = [decoders.Strip(" ", 1, 0)] if begins_with_space else []
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), *own_space])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        initial_alphabet=alphabet,
        # In a file, its bars are empty lines.
        show_progress=sys.stderr.isatty(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load_tokenizer(name_or_path: str) -> PreTrainedTokenizerBase:
    """A pretrained tokenizer, from a folder or the Hub."""
    try:
        return AutoTokenizer.from_pretrained(name_or_path)
    except Exception as error:  # the classes are many: not found, not a tokenizer, cut off, no connection
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"There is no usable tokenizer in {name_or_path} ({reason}): give another.") from error


def start_token_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """What stands before the first word of a text, so that it is predicted like any other."""
    return tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id


def end_token_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """What stands after the last word of a document in running text."""
    return tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id


def texts_of(rows: Dataset | IterableDataset) -> Iterator[str]:
    """The texts alone, read many at a time: a hundred times as fast as row by row."""
    for batch in reading(rows.iter(1000)):
        yield from (text or "" for text in batch["text"])


def _wrap(tokenizer: Tokenizer, **special_tokens: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        clean_up_tokenization_spaces=False,
        **special_tokens,
    )
