"""Tokenizers trained on the data: word tokenizers, as for PTB and WikiText, or byte-level BPE."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from datasets import Dataset, Features, IterableDataset
from datasets.fingerprint import Hasher
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from .errors import InputError

UNKNOWN, END, PADDING = "<unk>", "<eos>", "<pad>"
# The characters that `str.split` splits at. `tokenizers` does not count \x1c to \x1f as white space.
WHITE_SPACE = r"[\s\x1c-\x1f]"


def train_word_tokenizer(texts: Iterable[str], vocab_size: int | None = None) -> PreTrainedTokenizerFast:
    """
    Train a tokenizer of white-space-separated words, with `<unk>` for unknown words and `<eos>` for line breaks. As a
    text continues after a line break, `<eos>` is its `bos_token` and `sep_token`, but not its `eos_token`, at which a
    generation ends.

    Args:
        texts (`Iterable[str]`): The training text, in pieces.
        vocab_size (`int`, *optional*): Maximum vocabulary size, `<unk>` and `<eos>` included. The most frequent words
            are kept; all by default.
    """
    if vocab_size is not None and vocab_size < 3:
        raise InputError(f"`vocab_size` must be at least 3 for a word tokenizer, got {vocab_size}.")
    counts = Counter(word for text in texts for word in text.split())
    # The special tokens may occur in the text, as in PTB.
    special = [UNKNOWN, END]
    words = sorted(counts.keys() - special, key=lambda word: (-counts[word], word))
    vocabulary = [*special, *words][:vocab_size]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Replace("\n", f" {END} ")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f"{WHITE_SPACE}+"), behavior="removed")
    return _wrap(tokenizer, unk_token=UNKNOWN, bos_token=END, sep_token=END)


def train_bpe_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """
    Train byte-level BPE of at most `vocab_size` tokens, which encodes any text. Its end token `<eos>` is for
    `token_stream.tokenize`, which puts it after documents: the tokenizer itself adds no special tokens.
    """
    return _wrap(_train_bpe(texts, vocab_size, [END], begins_with_space=False), eos_token=END)


def train_sentence_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """
    Train byte-level BPE of at most `vocab_size` tokens for sentences of one or two languages. A word has the same
    tokens at any position. The tokenizer ends every sentence in `<eos>` and pads with `<pad>`.
    """
    tokenizer = _train_bpe(texts, vocab_size, [END, PADDING], begins_with_space=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, tokenizer.token_to_id(END))]
    )
    return _wrap(tokenizer, eos_token=END, pad_token=PADDING)


def train_masked_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """
    Train lower-case byte-level BPE of at most `vocab_size` tokens with BERT's special tokens, which the tokenizer puts
    around a text or a pair of texts. Not WordPiece, whose training in `tokenizers` is not deterministic.
    """
    special = {"pad_token": PADDING, "cls_token": "<cls>", "sep_token": "<sep>", "mask_token": "<mask>"}
    # One space between words and none at the end of a line, where it would become a token to predict.
    normalizer = normalizers.Sequence(
        [
            # First, because BERT's normalizer deletes control characters, and some of them separate words.
            normalizers.Replace(Regex(WHITE_SPACE), " "),
            normalizers.BertNormalizer(handle_chinese_chars=False),
            normalizers.Replace(Regex(" +"), " "),
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
    # No `token_type_ids`: ModernBERT does not take them.
    names = ["input_ids", "attention_mask"]
    return _wrap(tokenizer, model_input_names=names, **special)


def _train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: list[str],
    begins_with_space: bool,
    normalizer: normalizers.Normalizer | None = None,
) -> Tokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    smallest = len(alphabet) + len(special_tokens)
    if vocab_size < smallest:
        raise InputError(f"`vocab_size` must be at least {smallest}, a token for each byte, got {vocab_size}.")
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=begins_with_space)
    # Remove the space that the tokenizer adds before the first word.
    added_space = [decoders.Strip(" ", 1, 0)] if begins_with_space else []
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), *added_space])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        initial_alphabet=alphabet,
        # Redirected to a file, the bars are empty lines.
        show_progress=sys.stderr.isatty(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load_tokenizer(name_or_path: str) -> PreTrainedTokenizerBase:
    """Load a pretrained tokenizer from a folder or the Hub."""
    tokenizer = AutoTokenizer.from_pretrained(name_or_path)
    # For a folder without a tokenizer, Transformers returns one that encodes all text as nothing.
    if not tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens):
        raise InputError(f"{name_or_path} has no tokenizer: put the files of one there, or choose another.")
    return tokenizer


def start_token_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """
    Return the id of the token to put before a text, so that the first token is predicted, too: the BOS token, else the
    EOS token, else `None`.
    """
    return tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id


def end_token_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the id of the token that ends a document (in a word tokenizer, a line): EOS, else SEP, else `None`."""
    return tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id


def texts_of(rows: Dataset | IterableDataset) -> Iterator[str]:
    """Yield the text of each row, `""` instead of `None`."""
    # Reading in batches is about 100 times as fast as row by row.
    for batch in rows.iter(1000):
        yield from (text or "" for text in batch["text"])


def map_tokenizer(
    rows: Dataset,
    encode: Callable[[dict[str, list]], dict[str, list]],
    tokenizer: PreTrainedTokenizerBase,
    features: Features,
    num_workers: int,
    *key: Any,
) -> Dataset:
    """
    Return the rows encoded in batches by `encode`, in `num_workers` processes from 1,000 rows per process on. The
    result is cached; `key` is what it depends on besides the rows and the tokenizer.
    """
    # Not the tokenizer itself: once saved and loaded, it has other attributes, and a resumed run would miss the cache.
    definition = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else tokenizer
    return rows.map(
        encode,
        batched=True,
        remove_columns=rows.column_names,
        features=features,
        num_proc=num_workers if num_workers > 1 and len(rows) >= 1000 * num_workers else None,
        desc="Tokenizing",
        new_fingerprint=Hasher.hash([rows._fingerprint, definition, end_token_id(tokenizer), *key]),
    )


def _wrap(tokenizer: Tokenizer, **options: Any) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **options)
