"""Checkpoints: saving and loading, new heads, missing heads, and fields that decide what weights mean."""

import pytest
import torch
from transformers import AutoConfig, GPT2LMHeadModel

from ngram_wdr_hf import WDRNgramGPT2LMHeadModel, with_ngram_heads
from ngram_wdr_hf.evaluation.models import load_checkpoint
from tests.support.batches import VARIANTS, fit, padded
from tests.support.checkpoints import (
    assert_same_state,
    initial_std,
    loss_and_logits,
    rewrite_config,
    rewrite_weights,
    save_checkpoint,
    tied_names,
    tokenizer_of_words,
)
from tests.support.errors import raises_naming
from tests.support.tiny import KINDS, MASKED, VOCAB_SIZE, make, make_stock, plain_model, tiny_model

NAMES = ["gpt2", "marian", "t5", "bert"]


@pytest.fixture(params=NAMES)
def name(request) -> str:
    return request.param


@pytest.mark.parametrize(("name", "fields"), VARIANTS)
def test_round_trip(tmp_path, name, fields):
    model = make(name, **({} if name in MASKED else {"ensemble_lambda": 0.3}), **fields)
    model.save_pretrained(tmp_path)
    for load in (KINDS[name].ours, KINDS[name].auto):
        loaded = load.from_pretrained(tmp_path)
        assert type(loaded) is KINDS[name].ours and not loaded.training
        # Marian's sinusoidal positions, which are not in the file, and its logit bias are among these.
        assert_same_state(loaded, model)
        actual, expected = (loss_and_logits(each, fit(padded(name), fields)) for each in (loaded, model))
        assert all(map(torch.equal, actual, expected))
        assert tied_names(loaded) == tied_names(model)
    assert type(AutoConfig.from_pretrained(tmp_path)) is type(model.config)


@pytest.mark.parametrize("fields", [{"ngram_size": 1}, {"ngram_size": 2}, {"ngram_target": "simple"}], ids=str)
def test_round_trip_of_the_heads(tmp_path, name, fields):
    fields = {"wdr_compose": "masked"} if name == "bert" and "ngram_target" in fields else fields
    model = make(name, **fields)
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    loaded = KINDS[name].auto.from_pretrained(tmp_path, device_map="cpu")
    assert_same_state(loaded, model)
    assert {field: getattr(loaded.config, field) for field in fields} == fields


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtype(tmp_path, name, dtype):
    model = make(name).to(dtype)
    model.save_pretrained(tmp_path)
    if name != "t5" or dtype != torch.float16:  # stock T5 keeps some layers in float32
        assert_same_state(KINDS[name].ours.from_pretrained(tmp_path), model)
    loaded = KINDS[name].ours.from_pretrained(tmp_path, dtype=torch.float32)
    assert {value.dtype for value in loaded.parameters()} == {torch.float32}
    for key, value in model.ngram_heads.named_parameters("ngram_heads"):
        assert torch.equal(loaded.get_parameter(key), value.float())


@pytest.mark.parametrize(("name", "tied"), [*((name, True) for name in NAMES), ("gpt2", False)])
def test_resized_embeddings(tmp_path, name, tied):
    model, batch = make(name, tie_word_embeddings=tied), padded(name)
    before = loss_and_logits(model, batch)[1]
    model.resize_token_embeddings(VOCAB_SIZE + 8)
    torch.testing.assert_close(loss_and_logits(model, batch)[1][..., :VOCAB_SIZE], before)
    batch["labels"] = torch.where(batch["labels"] == -100, -100, VOCAB_SIZE + 7)
    loss = model.train()(**batch).loss
    loss.backward()
    assert model.get_output_embeddings().weight.grad[VOCAB_SIZE + 7].any()
    model.save_pretrained(tmp_path)
    loaded = KINDS[name].ours.from_pretrained(tmp_path)
    assert loaded.config.vocab_size == VOCAB_SIZE + 8
    assert_same_state(loaded, model)
    assert torch.equal(loaded.train()(**batch).loss, loss)


WIDTHS = {"gpt2": {"n_embd": 64}, "bert": {"hidden_size": 64}, "marian": {"d_model": 64}, "t5": {"d_model": 64}}


def test_plain_checkpoint_gets_new_heads(tmp_path, transformers_log, name):
    """Transformers reports them as missing weights."""
    plain = make_stock(name, **WIDTHS[name])
    plain.save_pretrained(tmp_path)
    model, info = KINDS[name].ours.from_pretrained(tmp_path, ngram_size=4, output_loading_info=True)
    heads = {key for key in model.state_dict() if key.startswith("ngram_heads.")}
    assert len(heads) == 12 and info["missing_keys"] == heads and not info["unexpected_keys"]
    assert "ngram_heads.{0, 1, 2}.fc_in.weight" in transformers_log.text and "MISSING" in transformers_log.text
    state = model.state_dict()
    assert all(torch.equal(state[key], value) for key, value in plain.state_dict().items())
    # A model made from a configuration initializes its heads in the same way.
    for each in (model, KINDS[name].ours(model.config)):
        for head in each.ngram_heads:
            for layer in (head.fc_in, head.fc_out):
                assert layer.weight.std().item() == pytest.approx(initial_std(model.config), rel=0.1)
                assert not layer.bias.any()
        assert not torch.equal(each.ngram_heads[0].fc_in.weight, each.ngram_heads[1].fc_in.weight)
    model.save_pretrained(tmp_path / "ours")
    transformers_log.clear()
    assert_same_state(KINDS[name].auto.from_pretrained(tmp_path / "ours"), model)
    assert_same_state(KINDS[name].ours.from_pretrained(tmp_path, ngram_size=1), plain)
    assert "ngram_heads" not in transformers_log.text


@pytest.mark.parametrize(("name", "fields"), VARIANTS)
def test_stock_class_loads_the_trunk(tmp_path, name, fields):
    """It saves the N-gram fields but no heads, so that new heads can be added."""
    model, batch = make(name, **fields), fit(padded(name), fields)
    model.save_pretrained(tmp_path / "ours")
    plain = KINDS[name].stock.from_pretrained(tmp_path / "ours")
    state = model.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in plain.state_dict().items())
    plain.save_pretrained(tmp_path / "trunk")
    other = KINDS[name].ours.from_pretrained(tmp_path / "trunk", ngram_size=3)
    assert len(other.ngram_heads) == 2
    expected = loss_and_logits(model, batch)[1]
    assert all(torch.equal(loss_and_logits(each, batch)[1], expected) for each in (plain, other))


def test_missing_heads_are_new(tmp_path, name):
    """Transformers' own report names them, and those that the configuration does not have."""
    kind, model = KINDS[name], make(name)
    model.save_pretrained(tmp_path)
    rewrite_weights(tmp_path, lambda key: not key.startswith("ngram_heads.1."))
    loaded, info = kind.auto.from_pretrained(tmp_path, output_loading_info=True)
    assert len(info["missing_keys"]) == 4
    assert all(key.startswith("ngram_heads.1.") for key in info["missing_keys"])
    new, saved = loaded.state_dict(), model.state_dict()
    assert all(torch.equal(new[key], saved[key]) for key in saved if key not in info["missing_keys"])
    assert new["ngram_heads.1.fc_in.weight"].any() and not new["ngram_heads.1.fc_in.bias"].any()
    rewrite_config(tmp_path, ngram_size=2)
    loaded, info = kind.auto.from_pretrained(tmp_path, output_loading_info=True)
    assert len(loaded.ngram_heads) == 1 and not info["missing_keys"]
    assert all(key.startswith("ngram_heads.2.") for key in info["unexpected_keys"])


# Fields that change what weights mean: as saved, and another value.
OTHER_MEANINGS = [
    ("gpt2", {"ngram_size": 4}, 3),
    ("gpt2", {"ngram_size": 1}, 2),
    ("gpt2", {"ngram_target": "wdr"}, "simple"),
    ("gpt2", {"ngram_target": "simple"}, "wdr"),
    ("gpt2", {"ngram_head_activation": "relu"}, "gelu"),
    ("gpt2", {"ngram_head_expansion": 1}, 2),
    ("gpt2", {"ngram_head_reads": "hidden"}, "hidden+tokens"),
    ("gpt2", {"draft_vocab_size": 5}, 6),
    ("marian", {"ngram_target": "wdr"}, "simple"),
    ("t5", {"ngram_size": 4}, 5),
    ("bert", {"ngram_head_activation": "relu"}, "gelu"),
    ("bert", {"ngram_size": 3}, 4),
]


@pytest.mark.parametrize(("name", "saved", "other"), OTHER_MEANINGS)
def test_fields_that_change_what_weights_mean(tmp_path, name, saved, other):
    model = make(name, **saved)
    model.save_pretrained(tmp_path)
    ((field, value),) = saved.items()
    names = (f"`{field}={other}`", f"`{field}={value}`", tmp_path.name)
    changed = type(model.config).from_pretrained(tmp_path, **{field: other})
    changed.save_pretrained(tmp_path / "config")
    for load in (KINDS[name].ours, KINDS[name].auto):
        for arguments in ({field: other}, {"config": changed}):
            with raises_naming(ValueError, *names):
                load.from_pretrained(tmp_path, **arguments)
        load.from_pretrained(tmp_path, **saved)
    with raises_naming(ValueError, *names):
        KINDS[name].ours.from_pretrained(tmp_path, config=tmp_path / "config")


MAY_CHANGE = [
    ("gpt2", {}, {"ensemble_lambda": 0.3, "label_smoothing": 0.1}),
    ("marian", {}, {"bow_loss_weight": 1.0}),
    ("bert", {}, {"wdr_compose": "masked"}),
    # Without heads there is nothing that could mean something else.
    ("gpt2", {"ngram_size": 1}, {"ngram_target": "simple", "ngram_head_activation": "gelu"}),
]


@pytest.mark.parametrize(("name", "saved", "fields"), MAY_CHANGE)
def test_fields_that_may_change(tmp_path, name, saved, fields):
    make(name, **saved).save_pretrained(tmp_path)
    loaded = KINDS[name].ours.from_pretrained(tmp_path, **fields)
    assert {field: getattr(loaded.config, field) for field in fields} == fields


def test_fields_of_new_heads(tmp_path):
    """Plain checkpoints have no heads yet: neither the backbone's own, nor the trunk that a stock class saved."""
    plain_model().save_pretrained(tmp_path / "plain")
    tiny_model().save_pretrained(tmp_path / "ours")
    GPT2LMHeadModel.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "trunk")
    fields = {"ngram_size": 3, "ngram_target": "simple", "ngram_head_activation": "gelu", "draft_vocab_size": 5}
    for folder in ("plain", "trunk"):
        for load in (WDRNgramGPT2LMHeadModel.from_pretrained, with_ngram_heads):
            loaded = load(tmp_path / folder, **fields)
            assert {field: getattr(loaded.config, field) for field in fields} == fields


def test_training_on_drops_the_ensemble(tmp_path):
    """The saved ensemble, in either file, does not suit weights that are trained further."""
    tokenizer = tokenizer_of_words()
    model = save_checkpoint(tmp_path, tokenizer)
    model.generation_config.ensemble_lambda = 0.9
    for ensemble in ({"ensemble_lambda": 0.3}, {"ensemble_weights": [0.8, 0.3, -0.1, 0.05]}):
        model.config.ensemble_lambda = ensemble.get("ensemble_lambda", 0.0)
        model.config.ensemble_weights = ensemble.get("ensemble_weights")
        model.save_pretrained(tmp_path)
        loaded = load_checkpoint(str(tmp_path), "causal", tokenizer)
        assert loaded.ngram_ensemble() != 0 and loaded.generation_config.ensemble_lambda == 0.9
        loaded = load_checkpoint(str(tmp_path), "causal", tokenizer, ensemble_lambda=0.0, ensemble_weights=None)
        assert loaded.ngram_ensemble() == 0 and "ensemble_lambda" not in vars(loaded.generation_config)
    with raises_naming(ValueError, "`ngram_target=simple`", "`ngram_target=wdr`"):
        load_checkpoint(str(tmp_path), "causal", tokenizer, ngram_target="simple")
