"""Tokenizers trained on the data: white space as in Python's `str.split`, and exact decoding."""

import sys

import pytest
from transformers import AutoTokenizer

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.tokenizers import (
    end_token_id,
    start_token_id,
    train_bpe_tokenizer,
    train_masked_tokenizer,
    train_sentence_tokenizer,
    train_word_tokenizer,
)
from tests.support.errors import raises_naming
from tests.support.texts import TEXT

SPACES = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
ODD_TEXTS = [
    "",
    "  two  spaces , a tab\tand\r\nbreaks\r\n\n\n",
    "naïve café, 日本語, עברית, 🤗👩‍👩‍👧 do n't . `` ''",
    "\x00\x01\x7f\x85\xa0\u2028\ufeff\ufffd",
    "".join(map(chr, range(0x20, 0x500))),
]
BYTES = {"bpe": train_bpe_tokenizer, "sentence": train_sentence_tokenizer, "masked": train_masked_tokenizer}


@pytest.fixture(scope="module")
def tokenizers():
    tokenizers = {kind: train([TEXT, "Öl und Wasser"], 300) for kind, train in BYTES.items()}
    return {**tokenizers, "word": train_word_tokenizer([TEXT])}


def test_words_end_at_the_white_space_of_python_only(tokenizers):
    # White space has codes of at most 16 bits; surrogates are no text.
    text = "".join(chr(code) for code in range(0x10000) if not 0xD800 <= code <= 0xDFFF)
    assert {*SPACES} < {*text}
    words = tokenizers["word"].backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [word for word, _ in words] == text.split()
    for space in SPACES:
        text = f"dog{space}cat{space}{space}dog"
        words = tokenizers["word"].tokenize(text)
        assert [word for word in words if word != "<eos>"] == text.split() and words.count("<eos>") == text.count("\n")
        assert tokenizers["masked"].tokenize(text) == tokenizers["masked"].tokenize("dog cat dog")


def test_vocabulary_of_words(tokenizers):
    tokenizer, small = tokenizers["word"], train_word_tokenizer([TEXT], vocab_size=4)
    words = ["<unk>", "<eos>", "the", "saw", "dog", "it", "cat"]
    assert tokenizer.convert_ids_to_tokens(range(len(tokenizer))) == words
    assert small.convert_ids_to_tokens(range(len(small))) == words[:4]
    assert tokenizer("the Dog\n<unk>").input_ids == [2, 0, 1, 0]
    assert start_token_id(tokenizer) == end_token_id(tokenizer) == 1


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_bytes_decode_back_exactly(tokenizers, text):
    tokenizer = tokenizers["bpe"]
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    tokenizer = tokenizers["sentence"]
    ids = tokenizer(text).input_ids
    assert ids[-1] == tokenizer.eos_token_id and {*ids[:-1]}.isdisjoint(tokenizer.all_special_ids)
    # The tokenizer adds a space before the first word, if there is none.
    assert tokenizer.decode(ids[:-1]) == text.removeprefix(" ")


@pytest.mark.parametrize("word", ["Wasser", "über", "🤗", "1"])
def test_word_has_the_same_tokens_at_any_position_of_a_sentence(tokenizers, word):
    texts = [word, "a", f"{word} a", f"a {word} a", f"a {word}"]
    tokens, a, first, inside, last = tokenizers["sentence"](texts, add_special_tokens=False).input_ids
    assert (first, inside, last) == (tokens + a, a + tokens + a, a + tokens)


@pytest.mark.parametrize("kind", [*BYTES, "word"])
def test_tokenizers_survive_saving(tmp_path, tokenizers, kind):
    tokenizer = tokenizers[kind]
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.special_tokens_map == tokenizer.special_tokens_map
    ids = tokenizer(ODD_TEXTS).input_ids
    assert loaded(ODD_TEXTS).input_ids == ids and loaded.batch_decode(ids) == tokenizer.batch_decode(ids)


@pytest.mark.parametrize(("kind", "smallest"), [("bpe", 257), ("sentence", 258), ("masked", 260)])
def test_a_token_for_each_byte(kind, smallest):
    assert len(BYTES[kind](["a b"], smallest)) == smallest
    with raises_naming(InputError, "vocab_size", f"{smallest}"):
        BYTES[kind](["a b"], smallest - 1)
