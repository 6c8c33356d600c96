"""Markdown in model cards shows any text as it is."""

import re

import pytest

from ngram_wdr_hf.training.common.model_card import as_markdown, code_block, escape

TEXTS = [
    "a plain text",
    "```\nrm -rf\n```",
    "````python\n```\n````",
    "ends in ``",
    "<eos> <b>bold</b> &amp; <!-- no comment",
    "a | b || \\| c",
    "*not* _emphasized_, ~~struck~~, [no](link), $x$, \\",
    "two\nlines and a\ttab",
]


@pytest.mark.parametrize("text", TEXTS)
def test_code_block(text):
    fence, rest = re.fullmatch(r"(`{3,})text\n(.*)", code_block(text), flags=re.DOTALL).groups()
    assert rest == f"{text}\n{fence}"
    # Only a fence of at least this length would end the block.
    assert fence not in text


@pytest.mark.parametrize("text", TEXTS)
def test_table(text):
    head, line, row = as_markdown([["first", "second"], [text, "2*"]]).split("\n")
    assert (head, line) == ("| first | second |", "| --- | --- |")
    # Without the escaped characters, which have no meaning.
    bare = re.sub(r"\\[!-/:-@\[-`{-~]", "", row)
    assert bare.count("|") == 3 and not set(bare) & set("`*_[]<>&~$\\")
    assert row == f"| {escape(text)} | 2\\* |"
    assert re.sub(r"\\(\W|_)", r"\1", escape(text)) == " ".join(text.split())
