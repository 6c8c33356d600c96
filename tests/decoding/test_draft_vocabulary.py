"""The draft vocabulary: set, saved, loaded, and without effect on the generated text."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2LMHeadModel

from ngram_wdr_hf import WDRNgramGPT2LMHeadModel
from ngram_wdr_hf.decoding.drafter import Drafter
from tests.support.errors import raises_naming
from tests.support.options import DRAFTS, EVERYTHING, NO_END
from tests.support.side_by_side import assert_same_generation, generate, generate_both, were_drafts_right
from tests.support.tiny import VOCAB_SIZE, model_of, plain_model, prompts, random_ids, tiny_model

TOKENS = [22, 7, 30, 5, 36, 2]


def model_with_tokens(tokens=TOKENS, **fields) -> WDRNgramGPT2LMHeadModel:
    model = tiny_model(**fields)
    model.ngram_set_draft_tokens(tokens)
    return model


def assert_tokens(model, tokens=TOKENS) -> None:
    """Check the draft tokens: integers, whatever the dtype of the weights."""
    assert model.draft_token_ids.dtype == torch.long and model.draft_token_ids.tolist() == list(tokens)
    assert model.config.draft_vocab_size == len(tokens)


@pytest.fixture
def drafted(monkeypatch) -> dict[bool, set[int]]:
    """The tokens drafted by heads, and those copied by prompt lookup."""
    drafted, draft = {False: set(), True: set()}, Drafter.draft

    def spy(*args):
        drafts = draft(*args)
        for row, kinds in zip(drafts.tokens.tolist(), drafts.kinds, strict=True):
            for token, kind in zip(row, kinds, strict=True):
                if kind is not None:
                    drafted[kind.is_lookup].add(token)
        return drafts

    monkeypatch.setattr(Drafter, "draft", spy)
    return drafted


@pytest.mark.parametrize("tokens", [tuple(TOKENS), torch.tensor(TOKENS), torch.tensor(TOKENS).numpy()])
def test_set_draft_tokens(tokens):
    model = model_with_tokens(tokens, draft_vocab_size=9)
    assert_tokens(model)
    model.ngram_set_draft_tokens([3])
    assert_tokens(model, [3])
    assert not hasattr(tiny_model(), "draft_token_ids") and tiny_model().config.draft_vocab_size is None


@pytest.mark.parametrize("copied", [0, 8], ids=["heads", "heads and copies"])
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_drafts_are_of_the_chosen_tokens_and_the_text_of_any(name, batch_size, copied, drafted):
    model, inputs = model_of(name), prompts(batch_size, name)
    free = generate(model, inputs, **EVERYTHING, **NO_END)
    text = free.sequences[:, -len(free.scores) :].flatten().tolist()
    # Every second one of the tokens that come, and one that does not.
    tokens = [*list(dict.fromkeys(text))[::2], 3]
    assert set(text) - set(tokens)
    model.ngram_set_draft_tokens(tokens)
    speculative = generate(model, inputs, **EVERYTHING, **NO_END, **DRAFTS, prompt_lookup_num_tokens=copied)
    assert_same_generation(free, speculative, ends=())
    assert were_drafts_right(speculative)
    assert drafted[False] and drafted[False] <= set(tokens)
    assert bool(drafted[True]) == (copied > 0)


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("suppressed", [[7, 30], TOKENS])
def test_suppressed_tokens(suppressed, do_sample, drafted):
    """What is suppressed is not drafted, unless nothing else is left. The text is right in any case."""
    model, inputs = model_with_tokens(), prompts(4)
    options = {"no_repeat_ngram_size": 2, "suppress_tokens": suppressed, "do_sample": do_sample, **NO_END}
    tokens = generate(model, inputs, **options, **DRAFTS, prompt_lookup_num_tokens=0)
    assert not torch.isin(tokens[:, 6:], torch.tensor(suppressed)).any()
    assert set(tokens[:, 6:].flatten().tolist()) - set(TOKENS)
    assert drafted[False] and drafted[False] <= set(TOKENS) - (set(suppressed) if suppressed != TOKENS else set())
    assert do_sample or torch.equal(tokens, generate(model, inputs, **options))


@pytest.mark.parametrize(("size", "expected"), [(1, [22]), (3, [22, 7, 30]), (9, [*TOKENS, 0, 1, 3])])
def test_size_of_a_call(size, expected, drafted):
    model = model_with_tokens()
    tokens = generate(model, prompts(4), draft_vocab_size=size, prompt_lookup_num_tokens=0, **NO_END, **DRAFTS)
    assert torch.equal(tokens, generate(model, prompts(4), **NO_END))
    assert drafted[False] and drafted[False] <= set(expected)
    # It was for this call only.
    assert_tokens(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("load", [WDRNgramGPT2LMHeadModel, AutoModelForCausalLM])
def test_round_trip(tmp_path, load, dtype):
    model = model_with_tokens()
    model.save_pretrained(tmp_path)
    assert load_file(tmp_path / "model.safetensors")["draft_token_ids"].tolist() == TOKENS
    loaded = load.from_pretrained(tmp_path, dtype=dtype)
    assert loaded.dtype == dtype
    assert_tokens(loaded)
    assert_tokens(loaded.to(torch.float64).half().bfloat16())
    # The stock class leaves them out.
    plain = GPT2LMHeadModel.from_pretrained(tmp_path)
    assert torch.equal(plain(random_ids(2, 7)).logits, model(random_ids(2, 7)).logits)
    with raises_naming(ValueError, "draft_vocab_size", "6", "7"):
        load.from_pretrained(tmp_path, draft_vocab_size=7)


@pytest.mark.parametrize("make", [tiny_model, plain_model])
def test_checkpoints_without_tokens(tmp_path, make):
    """The default is the first ids of the vocabulary; without heads, the model has no draft tokens."""
    make().save_pretrained(tmp_path)
    loaded = WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path, draft_vocab_size=30)
    assert_tokens(loaded, range(30))
    assert were_drafts_right(generate(loaded, prompts(4), **EVERYTHING, **DRAFTS))
    assert not hasattr(tiny_model(ngram_size=1, draft_vocab_size=5), "draft_token_ids")


CHANGED = {4: TOKENS[:4], 9: [*TOKENS, 0, 1, 3], VOCAB_SIZE: range(VOCAB_SIZE), None: None}


@pytest.mark.parametrize("size", CHANGED)
def test_size_changed_before_saving(tmp_path, size):
    """The checkpoint can be loaded after the size was changed."""
    model = model_with_tokens()
    model.config.draft_vocab_size = size
    model.save_pretrained(tmp_path)
    loaded, info = WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    if size is None:
        assert loaded.config.draft_vocab_size is None and not hasattr(loaded, "draft_token_ids")
    else:
        assert_tokens(loaded, CHANGED[size])
    assert_same_generation(*generate_both(loaded, prompts(3)))


BAD = [[3, 4, 3], [3, VOCAB_SIZE], [3, -1], [1.5, 2.5], [True, False], [], list(range(VOCAB_SIZE + 1))]


@pytest.mark.parametrize("tokens", BAD, ids=str)
def test_bad_tokens(tokens):
    model = model_with_tokens()
    with raises_naming(ValueError, "`token_ids`" if 0 < len(tokens) <= VOCAB_SIZE else "`draft_vocab_size`"):
        model.ngram_set_draft_tokens(tokens)
    # The earlier tokens are unchanged.
    assert_tokens(model)
    with raises_naming(ValueError, "`ngram_set_draft_tokens`", "`ngram_size`"):
        tiny_model(ngram_size=1).ngram_set_draft_tokens(tokens)


def test_resized_embeddings():
    model = model_with_tokens([5, 36, 3])
    model.resize_token_embeddings(VOCAB_SIZE + 8)
    assert torch.equal(generate(model, prompts(3), **DRAFTS), generate(model, prompts(3)))
    model.resize_token_embeddings(20)
    with raises_naming(ValueError, "`ngram_set_draft_tokens`"):
        generate(model, {"input_ids": random_ids(1, 5) % 20}, **DRAFTS)
