"""White space and line ends: tokenizers and readers of lines follow Python's `str.split` and its files."""

import sys

import pytest

from ngram_wdr_hf.data.pairs import read_lines
from ngram_wdr_hf.data.token_stream import TokenStream, tokenize
from ngram_wdr_hf.data.tokenizers import texts_of, train_masked_tokenizer, train_word_tokenizer
from tests.support.texts import load, write

SPACES = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]


@pytest.fixture(scope="module")
def word_tokenizer():
    return train_word_tokenizer(["one two\n"])


@pytest.fixture(scope="module")
def masked_tokenizer():
    return train_masked_tokenizer(["one two\n"], 300)


def test_words_end_at_the_white_space_of_python_only(word_tokenizer):
    # White space has codes of at most 16 bits; surrogates are no text.
    text = "".join(chr(code) for code in range(0x10000) if not 0xD800 <= code <= 0xDFFF)
    assert {*SPACES} < {*text}
    words = word_tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [word for word, _ in words] == text.split()


@pytest.mark.parametrize("space", SPACES, ids=ascii)
def test_words_between_white_space_are_known(space, word_tokenizer, masked_tokenizer):
    text = f"one{space}two{space}{space}one"
    words = word_tokenizer.tokenize(text)
    assert [word for word in words if word != "<eos>"] == text.split()
    assert words.count("<eos>") == text.count("\n")
    assert masked_tokenizer.tokenize(text) == masked_tokenizer.tokenize("one two one")


@pytest.mark.parametrize("streaming", [False, True])
def test_text_with_all_white_space(streaming, tmp_path):
    """A file with every white space except line ends between words."""
    lines = [f"one{space}two" for space in SPACES if space not in "\r\n"]
    path = write(tmp_path / "odd.txt", "".join(f"{line}\n" for line in lines))
    assert read_lines([path]) == lines
    rows = load(path, streaming)
    assert list(texts_of(rows)) == [f"{line}\n" for line in lines]
    tokenizer = train_word_tokenizer(texts_of(rows))
    stream = TokenStream.from_rows(tokenize(rows, tokenizer))
    assert tokenizer.convert_ids_to_tokens(stream[:]) == ["one", "two", "<eos>"] * len(lines)
    assert stream.num_words == len(stream)
