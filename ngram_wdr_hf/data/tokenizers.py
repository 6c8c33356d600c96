"""Tokenizers trained on the data: word tokenizers, as for PTB and WikiText, or byte-level BPE."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
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
    Train a tokenizer of the `vocab_size` most frequent white-space-separated words, by default all, with `<unk>` for
    unknown words and `<eos>` for line breaks, both counted. As a text continues after a line break, `<eos>` is the
    `bos_token` and `sep_token`, but not the `eos_token`, at which a generation ends.
    """
    if vocab_size is not None and vocab_size < 3:
        raise InputError(f"`vocab_size` must be at least 3 for a word tokenizer, got {vocab_size}.")
    counts = Counter(word for text in texts for word in text.split())
    # The special tokens may occur in the text, as in PTB.
    words = sorted(counts.keys() - {UNKNOWN, END}, key=lambda word: (-counts[word], word))
    vocabulary = {word: i for i, word in enumerate([UNKNOWN, END, *words][:vocab_size])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Replace("\n", f" {END} ")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f"{WHITE_SPACE}+"), behavior="removed")
    return _wrap(tokenizer, unk_token=UNKNOWN, bos_token=END, sep_token=END)


def train_bpe_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train byte-level BPE, which encodes any text. It adds no special tokens; `tokenize` adds `<eos>`."""
    return _wrap(_train_bpe(texts, vocab_size, [END], adds_space=False), eos_token=END)


def train_sentence_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train byte-level BPE for sentences, which end in `<eos>`. A word has the same tokens at any position."""
    tokenizer = _train_bpe(texts, vocab_size, [END, PADDING])
    special_tokens = [(END, tokenizer.token_to_id(END))]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", pair=f"$A {END} $B {END}", special_tokens=special_tokens
    )
    return _wrap(tokenizer, eos_token=END, pad_token=PADDING)


def train_masked_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train lower-case byte-level BPE that puts BERT's special tokens around a text or a pair of texts."""
    # Not WordPiece, whose training in `tokenizers` is not deterministic.
    begin, end = "<cls>", "<sep>"
    special = {"pad_token": PADDING, "cls_token": begin, "sep_token": end, "mask_token": "<mask>"}
    # First, because BERT's normalizer deletes control characters, and some of them separate words.
    parts = [normalizers.Replace(Regex(WHITE_SPACE), " "), normalizers.BertNormalizer(handle_chinese_chars=False)]
    # One space between words and none at the end of a line, where it would become a token to predict.
    parts += [normalizers.Replace(Regex(" +"), " "), normalizers.Strip()]
    tokenizer = _train_bpe(texts, vocab_size, list(special.values()), normalizers.Sequence(parts))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        pair=f"{begin} $A {end} $B {end}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (begin, end)],
    )
    # No `token_type_ids`: ModernBERT does not take them.
    return _wrap(tokenizer, model_input_names=["input_ids", "attention_mask"], **special)


def _train_bpe(
    texts: Iterable[str], vocab_size: int, special_tokens: list[str], normalizer: Any = None, adds_space: bool = True
) -> Tokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    smallest = len(alphabet) + len(special_tokens)
    if vocab_size < smallest:
        raise InputError(f"`vocab_size` must be at least {smallest}, a token for each byte, got {vocab_size}.")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=adds_space)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), *[decoders.Strip(" ", 1, 0)] * adds_space])
    options = {"initial_alphabet": alphabet, "show_progress": sys.stderr.isatty()}
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=special_tokens, **options)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _wrap(tokenizer: Tokenizer, **options: Any) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **options)


def load_tokenizer(name_or_path: str) -> PreTrainedTokenizerBase:
    """Load a pretrained tokenizer from a folder or the Hub."""
    tokenizer = AutoTokenizer.from_pretrained(name_or_path)
    # For a folder without a tokenizer, Transformers returns one that encodes all text as nothing.
    if not tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens):
        raise InputError(f"{name_or_path} has no tokenizer: put the files of one there, or choose another.")
    return tokenizer


def start_token_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the id of the token that predicts the first token of a text: BOS, else EOS, else `None`."""
    return tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id


def end_token_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the id of the token that ends a document (in a word tokenizer, a line): EOS, else SEP, else `None`."""
    return tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id


def texts_of(rows: Dataset | IterableDataset) -> Iterator[str]:
    """Yield the text of each row, `""` instead of `None`."""
    for batch in rows.iter(1000):  # about 100 times as fast as row by row
        yield from (text or "" for text in batch["text"])


def map_tokenizer(
    rows: Dataset, encode: Callable, features: Features, tokenizer: Any, num_workers: int, **options: Any
) -> Dataset:
    """Encode all columns, in processes of at least 1,000 rows. The result is cached."""
    # Not the tokenizer itself: saved and loaded, it has other attributes, and a resumed run would miss the cache.
    definition = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else tokenizer
    languages = [getattr(tokenizer, name, None) for name in ("src_lang", "tgt_lang")]
    key = [rows._fingerprint, features, definition, languages, end_token_id(tokenizer), options]
    return rows.map(
        partial(encode, tokenizer=tokenizer, **options),
        batched=True,
        remove_columns=rows.column_names,
        features=features,
        num_proc=num_workers if num_workers > 1 and len(rows) >= 1000 * num_workers else None,
        desc="Tokenizing",
        new_fingerprint=Hasher.hash(key),
    )
