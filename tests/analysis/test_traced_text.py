"""A generated text by source: texts of tokens, the page, the terminal, and what `traced_text` generates."""

import re
from html.parser import HTMLParser

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ngram_wdr_hf.analysis import Draft, TracedRow, TracedText, TracedToken, traced_text
from ngram_wdr_hf.analysis.token_texts import token_texts
from ngram_wdr_hf.analysis.traced_text import traced_tokens
from ngram_wdr_hf.data.tokenizer import train_bpe_tokenizer, train_sentence_tokenizer, train_word_tokenizer
from ngram_wdr_hf.decoding.statistics import SpeculationStatistics, TokenTrace
from ngram_wdr_hf.evaluation.unavailable import Unavailable
from tests.support.errors import raises_naming
from tests.support.options import ALWAYS, NO_END
from tests.support.tiny import VOCAB_SIZE, model_of, plain_model, tiny_model
from tests.support.tokenizers import letter_tokenizer, word_tokenizer

TEXT = "hello the cat"
ODD = "the cat\n\n hello\t 🙂é the <b>&cat"
HAND_MADE = TracedText(
    [
        TracedRow(
            "1 < 2 &amp;",
            [
                TracedToken("<i>", 1),
                TracedToken(" a\n", 2),
                TracedToken("\n", 0, (Draft('" onfocus="x', 3),), (Draft("</span>", -1), Draft("\n", -1))),
                TracedToken("", -1),
                TracedToken("🙂", 12),
                TracedToken("\x00\x1b[2Jend", 0),
            ],
        )
    ],
    SpeculationStatistics(num_tokens=6, num_row_forwards=2),
)


def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer like Llama's: a mark for spaces, and unknown characters as bytes."""
    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(special_tokens=special, show_progress=False)
    backend.train_from_iterator([TEXT, "b & t"], trainer)
    space = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(space)
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>")


def word_piece_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {"[UNK]": 0, "the": 1, "cat": 2, "##s": 3, "##ify": 4}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


@pytest.mark.parametrize("make", [train_bpe_tokenizer, train_sentence_tokenizer, sentencepiece_tokenizer])
def test_texts_of_tokens_make_up_the_text(make):
    tokenizer = make() if make is sentencepiece_tokenizer else make([TEXT] * 3, 280)
    ids = tokenizer(ODD, add_special_tokens=False).input_ids
    texts = token_texts(ids, tokenizer)
    assert len(texts) == len(ids) and "".join(texts) == ODD
    # Four bytes of an emoji and two of é: all but the last of each are empty.
    assert texts.count("") == 4 and texts[texts.index("🙂") - 3 : texts.index("🙂")] == [""] * 3
    assert " the" in texts


def test_texts_of_words_pieces_and_special_tokens():
    tokenizer = train_word_tokenizer([TEXT])
    assert token_texts(tokenizer("hello\nthe cat").input_ids, tokenizer) == ["hello", " <eos>", " the", " cat"]
    assert token_texts([1, 2, 3, 4, 2], word_piece_tokenizer()) == ["the", " cat", "s", "ify", " cat"]
    tokenizer = sentencepiece_tokenizer()
    assert token_texts([1, *tokenizer("the cat").input_ids], tokenizer) == ["<s>", " the", " cat"]
    assert token_texts([], tokenizer) == []


def test_bytes_that_are_no_character():
    """They do not hold back the rest of the text, and show at the end of it."""
    tokenizer = sentencepiece_tokenizer()
    first, letter = (tokenizer.convert_tokens_to_ids(token) for token in ("<0xF0>", "a"))
    assert token_texts([letter, *[first] * 9, letter, letter], tokenizer)[-1] == "a"
    assert "�" in token_texts([letter, first], tokenizer)[-1]
    assert token_texts([first, letter], tokenizer)[1].endswith("a")


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
    assert found[1].rejected == (Draft(" cat", 2),) and found[1].dropped == (Draft("hello", 3), Draft(" the", -1))
    assert found[4].rejected == (Draft("🙃", 1),)
    assert found[6].rejected == (Draft("", 1),) and found[6].dropped == (Draft("", 2), Draft("☃", 3))
    assert all(not token.rejected and not token.dropped for token in (found[0], found[2], found[5]))


class Tokens(HTMLParser):
    """The tokens of a page: their attributes, and the text inside and after each; popups apart."""

    def __init__(self, html: str):
        super().__init__()
        self.tags, self.tokens, self.texts, self.popups, self.rest = [], [], [], [], ""
        self.feed(html)
        assert not self.tags

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "meta":
            return
        self.tags.append((tag, attributes.get("class", "")))
        if "token" in attributes.get("class", "").split() and "td" not in dict(self.tags):
            self.tokens.append(attributes)
            self.texts.append("")
        if attributes.get("class") == "popup":
            assert "hidden" in attributes
            self.popups.append("")

    def handle_endtag(self, tag):
        assert self.tags.pop()[0] == tag

    def handle_data(self, data):
        if ("span", "popup") in self.tags:
            self.popups[-1] += data
        elif any(tag == "span" and "token" in kind for tag, kind in self.tags) and "td" not in dict(self.tags):
            self.texts[-1] += data
        elif "style" not in dict(self.tags):
            self.rest += data


def test_the_page_shows_sources_and_rejected_drafts():
    html = HAND_MADE.to_html()
    found = Tokens(html)
    assert found.texts == ["<i>", " a⏎", "⏎", "◌", "🙂", "␀␛[2Jend"]
    assert [token.get("data-mark") for token in found.tokens] == ["1", "2", "×", "c", "12", None]
    assert [token.get("title") for token in found.tokens] == [
        "head 1",
        "head 2",
        None,
        "prompt lookup",
        "head 12",
        None,
    ]
    # The depth of a head is also a shade; the deepest ones share the last.
    shades = [token.get("style") for token in found.tokens]
    assert len({*shades[:2], shades[4]}) == 3 and all("%" in shades[i] for i in (0, 1, 4))
    (drafts,) = found.popups
    assert drafts == 'Rejected: “" onfocus="x” by head 3. Dropped after it: “</span>”, “⏎” by prompt lookup.'
    # Only the token with a rejected draft stops the Tab key, and a screen reader reads the drafts there.
    focusable = [token for token in found.tokens if "tabindex" in token]
    assert focusable == [found.tokens[2]] and focusable[0]["aria-label"] == f"“⏎” by the model. {drafts}"
    assert not {name for token in found.tokens for name in token} & {"onfocus", "onclick"}
    assert "1 < 2 &amp;" in found.rest and "3.00 per forward pass" in found.rest
    assert not re.search(r"@import|url\(|<link|<script|<i>|\x00|\x1b", html)


def test_the_legend_counts_tokens_and_drafts():
    rows = re.findall(r"<tr>(.*?)</tr>", HAND_MADE.fragment(), flags=re.DOTALL)
    cells = [[re.sub(r"<.*?>", "", cell) for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row)] for row in rows]
    assert cells == [
        ["source", "tokens", "share", "drafts", "accepted"],
        ["model", "2", "33%", "", ""],
        ["of these, draft rejected", "1", "17%", "", ""],
        ["head 1", "1", "17%", "1", "100%"],
        ["head 2", "1", "17%", "1", "100%"],
        ["head 3", "0", "0%", "1", "0%"],
        ["head 12", "1", "17%", "1", "100%"],
        ["prompt lookup", "1", "17%", "3", "33%"],
    ]


def test_notebook_page_and_file(tmp_path):
    assert HAND_MADE._repr_html_() == HAND_MADE.fragment()
    assert repr(HAND_MADE) == "TracedText(1 rows, 6 tokens)"
    assert HAND_MADE.fragment() in HAND_MADE.to_html()
    path = HAND_MADE.page(tmp_path / "text.html")
    assert path.read_text(encoding="utf-8") == HAND_MADE.to_html()


def test_a_long_prompt_is_cut():
    long = TracedText([TracedRow("a" * 700 + "b", [TracedToken("c", 0)])], SpeculationStatistics(1, 1, 1))
    assert f'<span class="prompt">…{"a" * 599}b</span>' in long.fragment()


def test_terminal():
    plain = str(HAND_MADE)
    assert plain.startswith(
        '1 < 2 &amp;|<i>¹ a²\n⏎{✗³“" onfocus="x” ᶜ“</span>” ᶜ“⏎”}\n◌ᶜ🙂¹²␀␛[2Jend\n\n6 tokens, 3.00 per forward pass'
    )
    assert "\nmodel: 2 tokens (33%)\n" in plain
    assert plain.endswith("prompt lookupᶜ: 1 tokens (17%); 3 drafts, 33% accepted")
    assert "\x1b" not in plain


@pytest.mark.parametrize("options", [{}, {"do_sample": True, "num_return_sequences": 2}, {"ensemble_lambda": 0.4}])
@pytest.mark.parametrize("name", ["gpt2", "bart", "t5"])
def test_what_is_generated(name, options):
    """The text is that of `generate`, for prompts of different lengths; counts are those of its statistics."""
    model, tokenizer = model_of(name), word_tokenizer()
    prompts = ["w5 w6 w7 w8 w5 w6", "w9", "w3 w4 w3"]
    torch.manual_seed(0)
    found = traced_text(model, tokenizer, prompts, 12, **ALWAYS, **NO_END, **options)
    copies = options.get("num_return_sequences", 1)
    assert [row.prompt for row in found.rows] == [prompt for prompt in prompts for _ in range(copies)]
    assert all(len(row.tokens) == 12 for row in found.rows)
    assert found.is_encoder_decoder == (name != "gpt2")
    counts, statistics = found.counts, found.statistics
    assert sum(counts.values()) == statistics.num_tokens == 36 * copies
    assert statistics.num_tokens - counts[0] == sum(statistics.num_accepted)
    assert sum(found.num_drafts.values()) <= sum(statistics.num_drafted)
    assert any(token.rejected for token in found.tokens)
    if options.get("do_sample"):
        return
    for row in found.rows:
        alone = tokenizer(row.prompt, return_tensors="pt")
        inputs = {"input_ids": alone.input_ids, "attention_mask": alone.attention_mask}
        ids = model.generate(**inputs, max_new_tokens=12, do_sample=False, **NO_END, **options)[0, -12:]
        assert "".join(token.text for token in row.tokens).split() == tokenizer.decode(ids).split()
    pages = Tokens(found.to_html())
    assert " ".join(pages.texts).split() == [word for token in found.tokens for word in token.text.split()]


def test_model_without_rows_that_move(monkeypatch):
    """It gets one row at a time, and the statistics are those of all rows."""
    model, tokenizer, prompts = tiny_model(), word_tokenizer(), ["w5 w6 w5", "w9"]
    together = traced_text(model, tokenizer, prompts, 8, **ALWAYS, **NO_END)
    monkeypatch.setattr(type(model), "ngram_rows_can_move", False)
    apart = traced_text(model, tokenizer, prompts, 8, **ALWAYS, **NO_END)
    texts = [["".join(token.text for token in row.tokens) for row in found.rows] for found in (together, apart)]
    assert texts[0] == texts[1]
    assert apart.statistics.num_tokens == 16 and len(apart.statistics.trace) == 2
    assert apart.statistics.num_forwards == apart.statistics.num_row_forwards > together.statistics.num_forwards


def test_prompts_as_ids_up_to_the_model_length():
    model, tokenizer = tiny_model(n_positions=16), letter_tokenizer()
    ids = torch.randint(2, VOCAB_SIZE, (2, 15))
    found = traced_text(model.train(), tokenizer, ids, 8, **NO_END)
    assert model.training and [len(row.tokens) for row in found.rows] == [1, 1]
    assert [row.prompt for row in found.rows] == tokenizer.batch_decode(ids)
    assert len(traced_text(model, tokenizer, ids[0], **NO_END).rows) == 1


def test_end_of_a_row():
    """The end token is part of the text; nothing comes after it."""
    tokenizer, ends = word_tokenizer(), list(range(VOCAB_SIZE))
    found = traced_text(tiny_model(), tokenizer, ["w5 w6", "w7"], 9, eos_token_id=ends, pad_token_id=1)
    assert [len(row.tokens) for row in found.rows] == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"prompt": ""}, ["`prompt` has no tokens"]),
        ({"prompt": []}, ["`prompt` has no tokens"]),
        ({"prompt": ["w5", ""]}, ["`prompt` has no tokens"]),
        ({"prompt": None}, ["`prompt` must"]),
        ({"prompt": [5, VOCAB_SIZE]}, ["`prompt`", f"token id {VOCAB_SIZE}"]),
        ({"prompt": [5, -1]}, ["`prompt`", "token id -1"]),
        ({"prompt": [5] * 64}, ["`prompt` has 64 tokens", "63"]),
        ({"max_new_tokens": 0}, ["`max_new_tokens`", "0"]),
        ({"use_mtp": False}, ["`use_mtp`", "leave it out"]),
        ({"max_length": 20}, ["`max_length`", "`max_new_tokens`"]),
        ({"num_beams": 2}, ["`use_mtp=True`", "beam"]),
        ({"draft_threshold": 2.0}, ["`draft_threshold`"]),
        ({"model": plain_model()}, ["`model`", "GPT2LMHeadModel", "`with_ngram_heads`"]),
    ],
)
def test_bad_input(arguments, names):
    with raises_naming(ValueError, *names):
        traced_text(**{"model": tiny_model(), "tokenizer": word_tokenizer(), "prompt": "w5", **arguments})


def test_model_that_cannot_draft():
    with raises_naming(Unavailable, "`model`", "`ngram_size`"):
        traced_text(tiny_model(ngram_size=1), word_tokenizer(), "w5")
