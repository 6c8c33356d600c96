"""Checkpoints: saving and loading, new heads, and heads that do not match."""

import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, GPT2LMHeadModel

from ngram_wdr_hf import WDRNgramConfig, WDRNgramGPT2LMHeadModel
from tests.support.checkpoints import assert_same_state, rewrite_config, rewrite_weights
from tests.support.errors import raises_naming
from tests.support.processes import run_without_package
from tests.support.tiny import SIZES, VOCAB_SIZE, plain_model, random_ids, tiny_model


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("target", ["wdr", "simple"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_round_trip(tmp_path, size, target, tied):
    model = tiny_model(ngram_size=size, ngram_target=target, tie_word_embeddings=tied, ensemble_lambda=0.3)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    ids = random_ids(2, 7)
    for load in (WDRNgramGPT2LMHeadModel, AutoModelForCausalLM):
        loaded = load.from_pretrained(tmp_path)
        assert type(loaded) is WDRNgramGPT2LMHeadModel
        assert_same_state(loaded, model)
        assert torch.equal(loaded(ids).logits, model(ids).logits)
        assert (loaded.lm_head.weight is loaded.transformer.wte.weight) is tied
    assert type(AutoConfig.from_pretrained(tmp_path)) is WDRNgramConfig


def test_round_trip_in_shards(tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_same_state(WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path), model)


@pytest.mark.parametrize("tied", [True, False])
def test_resized_embeddings(tmp_path, tied):
    model = tiny_model(tie_word_embeddings=tied, ensemble_lambda=0.4)
    ids = random_ids(2, 7)
    with torch.no_grad():
        before = model(ids).logits
    model.resize_token_embeddings(VOCAB_SIZE + 8)
    torch.testing.assert_close(model(ids).logits[..., :VOCAB_SIZE], before)
    model.train()(ids, labels=torch.full_like(ids, VOCAB_SIZE + 7)).loss.backward()
    model.save_pretrained(tmp_path)
    loaded = WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path)
    assert loaded.config.vocab_size == VOCAB_SIZE + 8
    assert_same_state(loaded, model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtype(tmp_path, dtype):
    model = tiny_model().to(dtype)
    model.save_pretrained(tmp_path)
    assert_same_state(WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path), model)
    loaded = WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path, dtype=torch.float32)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    assert_same_state(loaded, model.float())


def test_device_map(tmp_path):
    model = tiny_model(ensemble_lambda=0.4)
    model.save_pretrained(tmp_path)
    loaded = WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path, device_map="cpu")
    assert_same_state(loaded, model)
    ids = random_ids(1, 6)
    assert torch.equal(loaded.generate(ids, max_new_tokens=5), model.generate(ids, max_new_tokens=5))


def test_settings_can_change_on_loading(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    loaded = WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path, ensemble_lambda=0.5, label_smoothing=0.1)
    assert (loaded.config.ensemble_lambda, loaded.config.label_smoothing) == (0.5, 0.1)


def test_plain_checkpoint_gets_new_heads(tmp_path, transformers_log):
    plain = plain_model(n_embd=64, initializer_range=0.02)
    plain.save_pretrained(tmp_path)
    model, info = WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path, ngram_size=4, output_loading_info=True)
    warnings = [record.message for record in transformers_log.records if "ngram_size=4" in record.message]
    assert len(warnings) == 1 and re.search(r"\b3 .*heads", warnings[0])
    assert len(info["missing_keys"]) == 12
    state = model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in plain.state_dict().items())
    for head in model.ngram_heads:
        for layer in (head.fc_in, head.fc_out):
            assert 0.018 < layer.weight.std() < 0.022 and not layer.bias.any()
    assert not torch.equal(model.ngram_heads[0].fc_in.weight, model.ngram_heads[1].fc_in.weight)
    model.save_pretrained(tmp_path / "ours")
    transformers_log.clear()
    assert_same_state(AutoModelForCausalLM.from_pretrained(tmp_path / "ours"), model)
    assert "ngram_size=" not in transformers_log.text


def test_plain_checkpoint_without_heads(tmp_path, transformers_log):
    plain = plain_model()
    plain.save_pretrained(tmp_path)
    assert_same_state(WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path, ngram_size=1), plain)
    assert "ngram_size=" not in transformers_log.text


def test_stock_class_loads_the_trunk(tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    plain = GPT2LMHeadModel.from_pretrained(tmp_path)
    state = model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in plain.state_dict().items())
    ids = random_ids(2, 7)
    assert torch.equal(plain(ids).logits, model(ids).logits)


def assert_rejected(folder, *names, **kwargs):
    for load in (WDRNgramGPT2LMHeadModel, AutoModelForCausalLM):
        with raises_naming(ValueError, folder.name, *names):
            load.from_pretrained(folder, **kwargs)


def test_missing_heads_are_rejected(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    rewrite_weights(tmp_path, lambda name: not name.startswith("ngram_heads.1."))
    assert_rejected(tmp_path, "`ngram_size=4`", "head 2.")
    rewrite_weights(tmp_path, lambda name: not name.startswith("ngram_heads."))
    assert_rejected(tmp_path, "`ngram_size=4`", "head 1, 2, 3.")


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_another_number_of_heads_is_rejected(tmp_path, size):
    tiny_model(ngram_size=4).save_pretrained(tmp_path)
    assert_rejected(tmp_path, "`ngram_size=4`", f"`ngram_size={size}`", ngram_size=size)
    rewrite_config(tmp_path, ngram_size=size)
    assert_rejected(tmp_path, f"`ngram_size={size}`", " head ")


def test_heads_of_another_shape_are_rejected(tmp_path):
    """Also with `ignore_mismatched_sizes`, which would replace a trained head by a new one."""
    tiny_model().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    state = load_file(path)
    state["ngram_heads.1.fc_in.weight"] = torch.zeros(16, 8)
    save_file(state, path, metadata={"format": "pt"})
    assert_rejected(tmp_path, "`ngram_size=4`", "head 2.", ignore_mismatched_sizes=True)


def test_another_ngram_size_on_a_saved_trunk(tmp_path):
    """The stock class saves the N-gram fields but no heads, so that new heads can be added."""
    model = tiny_model(ngram_size=4)
    model.save_pretrained(tmp_path / "ours")
    GPT2LMHeadModel.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "trunk")
    other = WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path / "trunk", ngram_size=3)
    assert len(other.ngram_heads) == 2
    ids = random_ids(1, 5)
    assert torch.equal(other(ids).logits, model(ids).logits)


def test_weights_without_a_configuration(tmp_path):
    plain_model().save_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    model = WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path, config=WDRNgramConfig(**SIZES, ngram_size=3))
    assert len(model.ngram_heads) == 2


def test_damaged_weights(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:500])
    with raises_naming(OSError, str(tmp_path)):
        WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path)


ELSEWHERE = """
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

folder, again = sys.argv[1:]
for path in (folder, again):
    config = AutoConfig.from_pretrained(path, trust_remote_code=True)
    model = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    ids = torch.tensor([[5, 6, 7, 8]])
    print(model.generate(ids, max_new_tokens=12, do_sample=False)[0].tolist())
    print(model.generate(ids, max_new_tokens=12, do_sample=False, ensemble_lambda=0.0)[0].tolist())
    print(round(model.train()(ids, labels=ids).loss.item(), 5))
    model.save_pretrained(again)
"""


def test_loads_where_the_package_is_not_installed(tmp_path):
    model = tiny_model(ensemble_lambda=0.4)
    model.save_pretrained(tmp_path / "ours")
    printed = run_without_package(ELSEWHERE, tmp_path, str(tmp_path / "ours"), str(tmp_path / "again"))
    ids = torch.tensor([[5, 6, 7, 8]])
    expected = [model.generate(ids, max_new_tokens=12, do_sample=False)[0].tolist()]
    expected.append(model.generate(ids, max_new_tokens=12, do_sample=False, ensemble_lambda=0.0)[0].tolist())
    assert expected[0] != expected[1]
    expected.append(round(model.train()(ids, labels=ids).loss.item(), 5))
    # Once for the checkpoint, and once for the one that its own code saved.
    assert printed == [str(line) for line in expected] * 2
