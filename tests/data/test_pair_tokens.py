"""Tokenized pairs: exact decoding, and tokens against a simple tokenizer."""

import numpy as np
import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.pair_batches import encode_sources, tokenize_pairs
from ngram_wdr_hf.data.tokenizers import train_sentence_tokenizer
from tests.support.errors import raises_naming

SENTENCES = [
    "",
    "a",
    "Die Mädchen grüßen übermorgen Öl und Äpfel.",
    "naïve café, 日本語, עברית, 🤗👩‍👩‍👧",
    "two  spaces, a tab\t.",
    "\x00\x7f\x85\xa0\u2028\ufffd",
    "".join(map(chr, range(0x21, 0x300))),
]


@pytest.mark.parametrize("text", SENTENCES)
def test_sentences_are_ended_and_decode_back_exactly(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    assert ids[-1] == tokenizer.eos_token_id and ids.count(tokenizer.eos_token_id) == 1
    assert tokenizer.pad_token_id not in ids
    # The tokenizer adds a space before the first word.
    assert tokenizer.decode(ids, skip_special_tokens=True).removeprefix(" ") == text
    assert tokenizer(text_target=text)["input_ids"] == tokenizer([text, "a"])["input_ids"][0] == ids


@pytest.mark.parametrize("word", ["Haus", "über", "🤗", "unheard-of", "1"])
def test_word_has_the_same_tokens_at_any_position(tokenizer, word):
    texts = (word, "a", f"{word} a", f"a {word} a", f"a {word}")
    tokens, a, first, inside, last = tokenizer(texts, add_special_tokens=False)["input_ids"]
    assert (first, inside, last) == (tokens + a, a + tokens + a, a + tokens)


def test_one_vocabulary_for_both_languages(pairs, tokenizer):
    assert len(tokenizer) == 500 and tokenizer.pad_token_id != tokenizer.eos_token_id
    alone = train_sentence_tokenizer(pairs["source"][:], 500)
    mean_length = [np.mean([len(ids) for ids in t(pairs["target"][:])["input_ids"]]) for t in (tokenizer, alone)]
    # Trained on German as well, it needs fewer tokens for German.
    assert mean_length[0] < 0.8 * mean_length[1]


def test_tokenizer_needs_a_token_for_each_byte():
    assert len(train_sentence_tokenizer(["a b"], 258)) == 258
    with raises_naming(InputError, "vocab_size", "258", "257"):
        train_sentence_tokenizer(["a b"], 257)


def test_tokenizer_survives_saving(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.eos_token_id == tokenizer.eos_token_id and loaded.pad_token_id == tokenizer.pad_token_id
    ids = tokenizer(SENTENCES)["input_ids"]
    assert loaded(SENTENCES)["input_ids"] == ids and loaded.batch_decode(ids) == tokenizer.batch_decode(ids)


class TwoLanguages:
    """A tokenizer whose tokens are word lengths, negative for targets, and end in 0."""

    is_fast, eos_token_id = False, 0

    def __call__(self, text=None, text_target=None, **options):
        sign, texts = (1, text) if text_target is None else (-1, text_target)
        room = options["max_length"] - 1 if options.get("truncation") else None
        return {"input_ids": [[*[sign * len(word) for word in line.split()][:room], 0] for line in texts]}


@pytest.mark.parametrize(
    ("longest", "sources", "targets", "is_truncated"),
    [
        (None, [[1, 2, 3, 4, 0], [5, 0]], [[-1, 0], [-1, -2, -3, 0]], [False, False]),
        (5, [[1, 2, 3, 4, 0], [5, 0]], [[-1, 0], [-1, -2, -3, 0]], [False, False]),
        (4, [[1, 2, 3, 0], [5, 0]], [[-1, 0], [-1, -2, -3, 0]], [True, False]),
        (3, [[1, 2, 0], [5, 0]], [[-1, 0], [-1, -2, 0]], [True, True]),
        (1, [[0], [0]], [[0], [0]], [True, True]),
    ],
)
def test_tokenized_pairs(longest, sources, targets, is_truncated):
    rows = Dataset.from_dict({"source": ["a bb ccc dddd", "eeeee"], "target": ["a", " a bb  ccc "]})
    tokens = tokenize_pairs(rows, TwoLanguages(), longest)
    expected = {"input_ids": sources, "labels": targets, "num_words": [1, 3], "is_truncated": is_truncated}
    assert tokens.to_dict() == expected
    assert encode_sources(rows["source"][:], TwoLanguages(), longest)[0] == sources


def test_prefix_precedes_sources_only():
    rows = Dataset.from_dict({"source": ["ccc", ""], "target": ["a", "bb"]})
    tokens = tokenize_pairs(rows, TwoLanguages(), prefix="to German: ")
    assert tokens["input_ids"][:] == [[2, 7, 3, 0], [2, 7, 0]]
    assert tokens["labels"][:] == [[-1, 0], [-2, 0]] and tokens["num_words"][:] == [1, 1]
    assert encode_sources(["ccc"], TwoLanguages(), prefix="to German: ") == ([[2, 7, 3, 0]], 0)
    # Truncation keeps it.
    assert encode_sources(["ccc"], TwoLanguages(), 3, "to German: ") == ([[2, 7, 0]], 1)


def test_processes_give_the_same_tokens(pairs, tokenizer):
    rows = pairs.select([*range(400)] * 5)
    tokens = tokenize_pairs(rows, tokenizer, longest=12)
    assert tokens.to_dict() == tokenize_pairs(rows, tokenizer, longest=12, num_workers=2).to_dict()
    ids = tokenizer(pairs["target"][:])["input_ids"]
    assert tokens["labels"][:400] == [row if len(row) <= 12 else [*row[:11], row[-1]] for row in ids]
    assert tokens["num_words"][:400] == [len(text.split()) for text in pairs["target"][:]]
    assert encode_sources([], tokenizer, 12) == ([], 0)
