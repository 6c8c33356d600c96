"""The draft vocabulary: set, saved, loaded, and without effect on the generated text."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, GPT2LMHeadModel, Trainer, TrainingArguments

from ngram_wdr_hf import WDRNgramConfig, WDRNgramGPT2LMHeadModel
from ngram_wdr_hf.decoding.drafter import Drafter
from tests.support.errors import raises_naming
from tests.support.options import DRAFTS, EVERYTHING, NO_END
from tests.support.processes import run_without_package
from tests.support.side_by_side import assert_same_generation, generate, generate_both, were_drafts_right
from tests.support.tiny import (
    SIZES,
    VOCAB_SIZE,
    model_of,
    plain_model,
    plain_seq2seq,
    prompts,
    random_ids,
    tiny_model,
    tiny_seq2seq,
)

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
def drafted_tokens(monkeypatch):
    """The tokens drafted by heads and by prompt lookup."""
    drafted = {"head": set(), "copy": set()}
    draft = Drafter.draft

    def spy(*args):
        drafts = draft(*args)
        for row, kinds in zip(drafts.tokens.tolist(), drafts.kinds, strict=True):
            for token, kind in zip(row, kinds, strict=True):
                if kind is not None:
                    drafted["copy" if kind.is_lookup else "head"].add(token)
        return drafts

    monkeypatch.setattr(Drafter, "draft", spy)
    return drafted


@pytest.mark.parametrize("tokens", [TOKENS, tuple(TOKENS), torch.tensor(TOKENS), torch.tensor(TOKENS).numpy()])
def test_set_draft_tokens(tokens):
    assert_tokens(model_with_tokens(tokens))


def test_set_twice():
    model = model_with_tokens(draft_vocab_size=9)
    assert_tokens(model)
    model.ngram_set_draft_tokens([3])
    assert_tokens(model, [3])


def test_first_tokens_by_default():
    assert_tokens(tiny_model(draft_vocab_size=5), range(5))
    assert_tokens(tiny_seq2seq("t5", draft_vocab_size=5), range(5))
    assert not hasattr(tiny_model(), "draft_token_ids") and tiny_model().config.draft_vocab_size is None


@pytest.mark.parametrize("copied", [0, 8], ids=["heads", "heads and copies"])
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("name", ["gpt2", "marian", "bart"])
def test_drafts_are_of_the_chosen_tokens_and_the_text_of_any(name, batch_size, copied, drafted_tokens):
    model, inputs = model_of(name), prompts(batch_size, name)
    free = generate(model, inputs, **EVERYTHING, **NO_END)
    text = free.sequences[:, -len(free.scores) :].flatten().tolist()
    # Every second one of the tokens that come, and one that does not.
    tokens = [*list(dict.fromkeys(text))[::2], 3]
    assert set(text) - set(tokens)
    model.ngram_set_draft_tokens(tokens)
    options = {**EVERYTHING, **NO_END, **DRAFTS, "prompt_lookup_num_tokens": copied}
    speculative = generate(model, inputs, **options)
    assert_same_generation(free, speculative, ends=())
    assert were_drafts_right(speculative)
    assert drafted_tokens["head"] and drafted_tokens["head"] <= set(tokens)
    assert bool(drafted_tokens["copy"]) == (copied > 0)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_processors_and_samples(batch_size, drafted_tokens):
    model, inputs = model_with_tokens(), prompts(batch_size)
    options = {"prompt_lookup_num_tokens": 0, "no_repeat_ngram_size": 2, "suppress_tokens": [7, 30], **NO_END}
    plain = generate(model, inputs, **{**options, "prompt_lookup_num_tokens": None})
    assert torch.equal(generate(model, inputs, **options, **DRAFTS), plain)
    # What is suppressed is not drafted.
    assert drafted_tokens["head"] and drafted_tokens["head"] <= set(TOKENS) - {7, 30}
    drafted_tokens["head"].clear()
    sampled = generate(model, inputs, do_sample=True, **options, **DRAFTS)
    assert drafted_tokens["head"] and drafted_tokens["head"] <= set(TOKENS) - {7, 30}
    assert set(sampled[:, 6:].flatten().tolist()) - set(TOKENS)


def test_all_chosen_tokens_suppressed():
    """If all draft tokens are suppressed, the text is still correct."""
    model, inputs = model_with_tokens([22, 7]), prompts(4)
    for do_sample in (False, True):
        options = {"suppress_tokens": [22, 7], "do_sample": do_sample, **NO_END}
        tokens = generate(model, inputs, **options, **DRAFTS)
        assert not torch.isin(tokens[:, 6:], torch.tensor([22, 7])).any()
        assert do_sample or torch.equal(tokens, generate(model, inputs, **options))


@pytest.mark.parametrize(("size", "expected"), [(1, [22]), (3, [22, 7, 30]), (6, TOKENS), (VOCAB_SIZE, None)])
def test_size_of_a_call(size, expected, drafted_tokens):
    model = model_with_tokens()
    options = {"prompt_lookup_num_tokens": 0, **NO_END, **DRAFTS}
    tokens = generate(model, prompts(4), draft_vocab_size=size, **options)
    assert torch.equal(tokens, generate(model, prompts(4), **NO_END))
    assert drafted_tokens["head"] <= set(expected or range(VOCAB_SIZE))
    assert len(drafted_tokens["head"]) > (0 if size == 1 else 1)
    assert expected or drafted_tokens["head"] - set(TOKENS)
    # It was for this call only.
    assert_tokens(model)


def test_size_of_a_call_without_chosen_tokens(drafted_tokens):
    generate(tiny_model(), prompts(4), draft_vocab_size=9, prompt_lookup_num_tokens=0, **NO_END, **DRAFTS)
    assert drafted_tokens["head"] and max(drafted_tokens["head"]) < 9


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16, torch.float64, "auto"])
@pytest.mark.parametrize("load", [WDRNgramGPT2LMHeadModel, AutoModelForCausalLM])
def test_round_trip(tmp_path, load, dtype):
    model = model_with_tokens()
    if dtype == "auto":
        model.half()
    model.save_pretrained(tmp_path)
    assert load_file(tmp_path / "model.safetensors")["draft_token_ids"].tolist() == TOKENS
    loaded = load.from_pretrained(tmp_path, **({} if dtype is None else {"dtype": dtype}))
    assert loaded.dtype == {None: torch.float32, "auto": torch.float16}.get(dtype, dtype)
    assert_tokens(loaded)
    assert_tokens(loaded.to(torch.float64).half().bfloat16())


@pytest.mark.parametrize("name", ["marian", "bart", "t5"])
def test_round_trip_of_encoder_decoder_models(tmp_path, name):
    model = tiny_seq2seq(name, torch.float64)
    model.ngram_set_draft_tokens(TOKENS)
    model.save_pretrained(tmp_path / "ours")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours", dtype=torch.float64)
    assert_tokens(loaded)
    plain, speculative = generate_both(loaded, prompts(3, name))
    assert_same_generation(plain, speculative)
    plain_seq2seq(name).save_pretrained(tmp_path / "plain")
    assert_tokens(type(model).from_pretrained(tmp_path / "plain", draft_vocab_size=7), range(7))


def test_checkpoints_without_tokens(tmp_path):
    """Checkpoints without draft tokens, plain or ours: the default is the first ids of the vocabulary."""
    plain_model().save_pretrained(tmp_path / "plain")
    tiny_model().save_pretrained(tmp_path / "ours")
    for folder in ("plain", "ours"):
        for size in (1, 30, VOCAB_SIZE):
            loaded = WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path / folder, draft_vocab_size=size)
            assert_tokens(loaded, range(size))
    config = WDRNgramConfig(**SIZES, draft_vocab_size=7)
    assert_tokens(WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path / "plain", config=config), range(7))
    loaded = WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path / "plain", draft_vocab_size=7)
    assert were_drafts_right(generate(loaded, prompts(4), **EVERYTHING, **DRAFTS))


@pytest.mark.parametrize("size", [2, 7])
def test_another_size_on_loading(tmp_path, size):
    model_with_tokens().save_pretrained(tmp_path)
    for load in (WDRNgramGPT2LMHeadModel, AutoModelForCausalLM):
        with raises_naming(ValueError, "draft_vocab_size", "6", str(size)):
            load.from_pretrained(tmp_path, draft_vocab_size=size)
    assert_tokens(WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path, draft_vocab_size=6))


CHANGED = [(4, TOKENS[:4]), (9, [*TOKENS, 0, 1, 3]), (VOCAB_SIZE, range(VOCAB_SIZE)), (None, None)]


@pytest.mark.parametrize(("size", "tokens"), CHANGED, ids=["fewer", "more", "all", "none in particular"])
def test_size_changed_before_saving(tmp_path, size, tokens):
    """The checkpoint can be loaded after the size was changed."""
    model = model_with_tokens()
    model.config.draft_vocab_size = size
    model.save_pretrained(tmp_path)
    loaded, info = WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    if tokens is None:
        assert loaded.config.draft_vocab_size is None and not hasattr(loaded, "draft_token_ids")
    else:
        assert_tokens(loaded, tokens)
    assert_same_generation(*generate_both(loaded, prompts(3)))


def test_plain_class_loads_our_trunk(tmp_path):
    model = model_with_tokens()
    model.save_pretrained(tmp_path)
    plain = GPT2LMHeadModel.from_pretrained(tmp_path)
    assert torch.equal(plain(random_ids(2, 7)).logits, model(random_ids(2, 7)).logits)
    assert "draft_token_ids" not in plain.state_dict()


def test_without_heads(tmp_path):
    """Without heads, the model has no draft tokens."""
    model = tiny_model(ngram_size=1, draft_vocab_size=5)
    assert list(model.state_dict()) == list(plain_model().state_dict())
    model.save_pretrained(tmp_path)
    loaded, info = WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and loaded.config.draft_vocab_size == 5
    plain_model().save_pretrained(tmp_path / "plain")
    loaded = WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path / "plain", ngram_size=1, draft_vocab_size=5)
    assert list(loaded.state_dict()) == list(plain_model().state_dict())


def test_tokens_for_a_model_without_heads():
    model = tiny_model(ngram_size=1)
    with raises_naming(ValueError, "`ngram_set_draft_tokens`", "`ngram_size`"):
        model.ngram_set_draft_tokens(TOKENS)
    assert list(model.state_dict()) == list(plain_model().state_dict())


@pytest.mark.parametrize(
    ("tokens", "names"),
    [
        ([3, 4, 3], ["`token_ids`", str(VOCAB_SIZE - 1)]),
        ([3, VOCAB_SIZE], ["`token_ids`", str(VOCAB_SIZE - 1)]),
        ([3, -1], ["`token_ids`", str(VOCAB_SIZE - 1)]),
        ([], ["`draft_vocab_size`", "0"]),
        (list(range(VOCAB_SIZE + 1)), ["`draft_vocab_size`", str(VOCAB_SIZE + 1)]),
    ],
)
def test_bad_tokens(tokens, names):
    model = model_with_tokens()
    with raises_naming(ValueError, *names):
        model.ngram_set_draft_tokens(tokens)
    # The earlier tokens are unchanged.
    assert_tokens(model)


@pytest.mark.parametrize("tokens", [[1.5, 2.5], torch.tensor([1.5, 2.5]), [True, False]])
def test_tokens_that_are_not_integers(tokens):
    with raises_naming(ValueError, "`token_ids`", str(VOCAB_SIZE - 1)):
        tiny_model().ngram_set_draft_tokens(tokens)


def test_vocabulary_of_a_decoder():
    """Marian's decoder may have another vocabulary than its encoder."""
    fields = {"decoder_vocab_size": 20, "share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
    model = tiny_seq2seq("marian", torch.float64, **fields)
    with raises_naming(ValueError, "`token_ids`", "19"):
        model.ngram_set_draft_tokens([3, 20])
    model.ngram_set_draft_tokens([3, 19, 7])
    plain, speculative = generate_both(model, prompts(3, "marian"))
    assert_same_generation(plain, speculative)


def test_resized_embeddings():
    model = model_with_tokens([5, 36, 3])
    model.resize_token_embeddings(VOCAB_SIZE + 8)
    assert torch.equal(generate(model, prompts(3), **DRAFTS), generate(model, prompts(3)))


def test_tokens_that_a_smaller_vocabulary_lacks():
    model = model_with_tokens([5, 36, 3])
    model.resize_token_embeddings(20)
    inputs = {"input_ids": random_ids(1, 5) % 20}
    with raises_naming(ValueError, "`ngram_set_draft_tokens`"):
        generate(model, inputs, **DRAFTS)
    model.ngram_set_draft_tokens([5, 3])
    assert torch.equal(generate(model, inputs, **DRAFTS), generate(model, inputs))


def test_saved_in_mid_training(tmp_path):
    data = [{"input_ids": ids, "labels": ids} for ids in random_ids(4, 8)]
    settings = {"max_steps": 2, "save_steps": 1, "per_device_train_batch_size": 2, "report_to": "none"}
    arguments = TrainingArguments(tmp_path, **settings, use_cpu=True, disable_tqdm=True)
    model = model_with_tokens()
    Trainer(model, arguments, train_dataset=data).train()
    assert_tokens(model)
    for step in (1, 2):
        assert_tokens(AutoModelForCausalLM.from_pretrained(tmp_path / f"checkpoint-{step}"))
    # Resumed by a new model, created from the configuration.
    other = tiny_model(seed=1, draft_vocab_size=len(TOKENS))
    Trainer(other, arguments, train_dataset=data).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert_tokens(other)


ELSEWHERE = """
import json
import sys

import torch
from transformers import AutoModelForCausalLM

for dtype in (torch.float32, torch.bfloat16):
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True, dtype=dtype)
    print(json.dumps([str(model.draft_token_ids.dtype), *model.draft_token_ids.tolist()]))
model.float()
options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None, "pad_token_id": 1}
ids = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
plain = model.generate(ids, **options)
output = model.generate(ids, **options, use_mtp=True, draft_threshold=0.0, return_dict_in_generate=True)
assert torch.equal(output.sequences, plain) and sum(output.speculation.num_accepted) > 0
"""


def test_loads_where_the_package_is_not_installed(tmp_path):
    model_with_tokens(ensemble_lambda=0.4).save_pretrained(tmp_path / "ours")
    printed = run_without_package(ELSEWHERE, tmp_path, str(tmp_path / "ours"))
    assert [json.loads(line) for line in printed] == [["torch.int64", *TOKENS]] * 2
