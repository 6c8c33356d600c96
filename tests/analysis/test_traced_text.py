"""A generated text by source: texts of tokens, the page, the terminal, and what `traced_text` generates."""

import re

import pytest
import torch

from ngram_wdr_hf.analysis import Draft, TracedRow, TracedText, TracedToken, traced_text
from ngram_wdr_hf.analysis.token_text import token_texts
from ngram_wdr_hf.analysis.traced_text import traced_tokens
from ngram_wdr_hf.data.tokenizers import train_bpe_tokenizer, train_sentence_tokenizer, train_word_tokenizer
from ngram_wdr_hf.decoding.statistics import SpeculationStatistics, TokenTrace
from tests.support.options import ALWAYS, NO_END
from tests.support.tiny import model_of
from tests.support.tokenizers import word_tokenizer

TEXT = "hello the cat"
ODD = "the cat\n\n hello\t 🙂é the <b>&cat"


@pytest.mark.parametrize("train", [train_bpe_tokenizer, train_sentence_tokenizer])
def test_texts_of_tokens_make_up_the_text(train):
    tokenizer = train([TEXT] * 3, 280)
    ids = tokenizer(ODD, add_special_tokens=False).input_ids
    texts = token_texts(ids, tokenizer)
    assert len(texts) == len(ids) and "".join(texts) == ODD
    # Four bytes of an emoji and two of é: all but the last of each are empty.
    assert texts.count("") == 4 and texts[texts.index("🙂") - 3 : texts.index("🙂")] == [""] * 3
    words = train_word_tokenizer([TEXT])
    assert token_texts(words("hello\nthe cat").input_ids, words) == ["hello", " <eos>", " the", " cat"]


def test_tokens_of_a_trace():
    tokenizer = train_bpe_tokenizer([TEXT] * 3, 280)
    the, cat, hello = (tokenizer(text).input_ids[0] for text in (" the", " cat", "hello"))
    smile, snowman = tokenizer("🙂").input_ids, tokenizer("☃").input_ids
    trace = [
        TokenTrace(the, 1),
        TokenTrace(smile[0], 0, ((cat, 2),), ((hello, 3), (the, -1))),
        # The draft completes another character than the text does.
        *(TokenTrace(token, 2) for token in smile[1:3]),
        TokenTrace(smile[3], 0, ((smile[3] + 1, 1),)),
        TokenTrace(cat, -1, (), ()),
        TokenTrace(hello, 0, ((snowman[0], 1),), ((snowman[1], 2), (snowman[2], 3))),
    ]
    found = traced_tokens([hello], trace, tokenizer)
    assert [token.text for token in found] == [" the", "", "", "", "🙂", " cat", "hello"]
    assert [token.source for token in found] == [1, 0, 2, 2, 0, -1, 0]
    assert found[1].rejected == (Draft(" cat", 2), Draft("hello", 3), Draft(" the", -1))
    assert found[4].rejected == (Draft("🙃", 1),)
    assert found[6].rejected == (Draft("", 1), Draft("", 2), Draft("☃", 3))
    assert not any(token.rejected for token in (found[0], found[2], found[5]))


def test_page_and_marks(tmp_path):
    tokens = [
        TracedToken("<i>", 1),
        TracedToken(" a\n", 2),
        TracedToken("\n", 0, (Draft('" onfocus="x', 3), Draft("</span>", -1), Draft("\n", -1))),
        *(TracedToken("", -1), TracedToken("🙂", 12), TracedToken("\x00\x1b[2Jend", 0)),
    ]
    traced = TracedText([TracedRow("1 < 2 &amp;", tokens)], SpeculationStatistics(num_tokens=6, num_row_forwards=2))
    html = traced.page(tmp_path / "text.html").read_text(encoding="utf-8")
    assert "1 &lt; 2 &amp;amp;" in html and not re.search(r"<link|<script|<i>|\x00|\x1b", html)
    assert str(traced) == '1 < 2 &amp;|<i>[1] a\n[2]\n{✗[3]“" onfocus="x” [c]“</span>” [c]“⏎”}◌[c]🙂[12]␀␛[2Jend'
    assert traced.acceptance == {1: 1.0, 2: 1.0, 3: 0.0, 12: 1.0, -1: 1 / 3}


@pytest.mark.parametrize("options", [{}, {"do_sample": True, "num_return_sequences": 2}, {"ensemble_lambda": 0.4}])
@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_what_is_generated(name, options):
    """The text is that of `generate`, for prompts of different lengths; counts are those of its statistics."""
    model, tokenizer = model_of(name), word_tokenizer()
    prompts = ["w5 w6 w7 w8 w5 w6", "w9", "w3 w4 w3"]
    torch.manual_seed(0)
    found = traced_text(model, tokenizer, prompts, 12, **ALWAYS, **NO_END, **options)
    copies, statistics = options.get("num_return_sequences", 1), found.statistics
    assert [row.prompt for row in found.rows] == [prompt for prompt in prompts for _ in range(copies)]
    assert all(len(row.tokens) == 12 for row in found.rows) and found.is_encoder_decoder == (name != "gpt2")
    assert sum(found.counts.values()) == statistics.num_tokens == 36 * copies
    assert statistics.num_tokens - found.counts[0] == sum(statistics.num_accepted)
    assert any(token.rejected for token in found.tokens)
    for row in () if options.get("do_sample") else found.rows:
        inputs = tokenizer(row.prompt, return_tensors="pt", return_token_type_ids=False)
        ids = model.generate(**inputs, max_new_tokens=12, do_sample=False, **NO_END, **options)[0, -12:]
        assert "".join(token.text for token in row.tokens).split() == tokenizer.decode(ids).split()
