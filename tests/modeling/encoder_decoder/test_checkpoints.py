"""Checkpoints of encoder-decoder models: saving and loading, new heads, and heads that do not match."""

import re

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from ngram_wdr_hf import NgramEnsembleLogitsProcessor
from tests.support.checkpoints import assert_same_state, rewrite_config, rewrite_weights
from tests.support.errors import raises_naming
from tests.support.processes import run_without_package
from tests.support.tiny import SEQ2SEQ, VOCAB_SIZE, plain_seq2seq, random_ids, tiny_seq2seq
from tests.support.translation import BATCHES, NAMES, VARIANTS, fit

SOURCE = random_ids(2, 6, seed=5)
TARGET = random_ids(2, 7, seed=6)


def logits(model, ensemble_lambda=None) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(SOURCE, decoder_input_ids=TARGET, ensemble_lambda=ensemble_lambda).logits


@pytest.mark.parametrize(("name", "fields"), VARIANTS)
def test_round_trip(tmp_path, name, fields):
    model = tiny_seq2seq(name, ensemble_lambda=0.3, **fields)
    model.save_pretrained(tmp_path)
    model_class, config_class = SEQ2SEQ[name][:2]
    batch = fit(BATCHES["ragged"], fields)
    expected = model(**batch)
    for load in (model_class, AutoModelForSeq2SeqLM):
        loaded = load.from_pretrained(tmp_path)
        assert type(loaded) is model_class and not loaded.training
        # Marian's sinusoidal positions, which are not in the file, and its logit bias are among these.
        assert_same_state(loaded, model)
        output = loaded(**batch)
        assert torch.equal(output.logits, expected.logits) and torch.equal(output.loss, expected.loss)
        tied = [
            key for key, value in loaded.named_parameters(remove_duplicate=False) if value is loaded.lm_head.weight
        ]
        same = [key for key, value in model.named_parameters(remove_duplicate=False) if value is model.lm_head.weight]
        assert tied == same
    assert type(AutoConfig.from_pretrained(tmp_path)) is config_class


@pytest.mark.parametrize(("size", "target"), [(1, "wdr"), (2, "wdr"), (4, "simple")])
@pytest.mark.parametrize("name", NAMES)
def test_round_trip_of_the_heads(tmp_path, name, size, target):
    model = tiny_seq2seq(name, ngram_size=size, ngram_target=target)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert_same_state(loaded, model)
    assert torch.equal(logits(loaded, 0.4), logits(model, 0.4))


@pytest.mark.parametrize("name", NAMES)
def test_shared_weights_are_saved_once(tmp_path, name):
    model = tiny_seq2seq(name)
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    vocabularies = [key for key, value in state.items() if value.shape == (VOCAB_SIZE, model.config.d_model)]
    assert len(vocabularies) == 1
    assert len([key for key in state if key.startswith("ngram_heads.")]) == 12
    assert ("final_logits_bias" in state) is (name != "t5")
    assert not any("embed_positions" in key for key in state) or name == "bart"


@pytest.mark.parametrize("name", NAMES)
def test_round_trip_in_shards(tmp_path, name):
    model = tiny_seq2seq(name)
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_same_state(SEQ2SEQ[name][0].from_pretrained(tmp_path), model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_dtype(tmp_path, name, dtype):
    model = tiny_seq2seq(name).to(dtype)
    model.save_pretrained(tmp_path)
    assert_same_state(SEQ2SEQ[name][0].from_pretrained(tmp_path), model)
    loaded = SEQ2SEQ[name][0].from_pretrained(tmp_path, dtype=torch.float32)
    assert {value.dtype for value in loaded.state_dict().values()} == {torch.float32}
    assert all(
        torch.equal(loaded.get_parameter(key), value.float())
        for key, value in model.ngram_heads.named_parameters("ngram_heads")
    )


def initial_std(model) -> float:
    """Return the initial standard deviation of the backbone's linear layers."""
    config = model.config
    return config.initializer_factor * config.d_model**-0.5 if config.model_type.endswith("t5") else config.init_std


@pytest.mark.parametrize("name", NAMES)
def test_plain_checkpoint_gets_new_heads(tmp_path, transformers_log, name):
    model_class = SEQ2SEQ[name][0]
    plain = plain_seq2seq(name, d_model=64, **({} if name == "t5" else {"init_std": 0.02}))
    if name != "t5":
        plain.final_logits_bias.normal_()
    plain.save_pretrained(tmp_path)
    model, info = model_class.from_pretrained(tmp_path, ngram_size=4, output_loading_info=True)
    warnings = [record.message for record in transformers_log.records if "ngram_size=4" in record.message]
    assert len(warnings) == 1 and re.search(r"\b3 .*heads", warnings[0])
    assert len([key for key in info["missing_keys"] if key.startswith("ngram_heads.")]) == 12
    state = model.state_dict()
    assert all(torch.equal(state[key], value) for key, value in plain.state_dict().items())
    assert torch.equal(logits(model), logits_of_plain(plain))
    for head in model.ngram_heads:
        for layer in (head.fc_in, head.fc_out):
            assert layer.weight.std().item() == pytest.approx(initial_std(model), rel=0.1)
            assert not layer.bias.any()
    assert not torch.equal(model.ngram_heads[0].fc_in.weight, model.ngram_heads[1].fc_in.weight)
    model.save_pretrained(tmp_path / "ours")
    transformers_log.clear()
    assert_same_state(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours"), model)
    assert "ngram_size=" not in transformers_log.text


def logits_of_plain(model) -> torch.Tensor:
    with torch.no_grad():
        return model(SOURCE, decoder_input_ids=TARGET).logits


@pytest.mark.parametrize("name", NAMES)
def test_new_heads_of_a_new_model(name):
    """A model made from a configuration initialises its heads like one loaded from a plain checkpoint."""
    model_class, config_class, _, _, sizes = SEQ2SEQ[name]
    model = model_class(config_class(**{**sizes, "d_model": 64}))
    for head in model.ngram_heads:
        for layer in (head.fc_in, head.fc_out):
            assert layer.weight.std().item() == pytest.approx(initial_std(model), rel=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_plain_checkpoint_without_heads(tmp_path, transformers_log, name):
    plain = plain_seq2seq(name)
    plain.save_pretrained(tmp_path)
    assert_same_state(SEQ2SEQ[name][0].from_pretrained(tmp_path, ngram_size=1), plain)
    assert "ngram_size=" not in transformers_log.text


@pytest.mark.parametrize(("name", "fields"), VARIANTS)
def test_stock_class_loads_the_trunk(tmp_path, name, fields):
    model = tiny_seq2seq(name, **fields)
    model.save_pretrained(tmp_path / "ours")
    plain = SEQ2SEQ[name][2].from_pretrained(tmp_path / "ours")
    state = model.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in plain.state_dict().items())
    batch = fit(BATCHES["ragged"], fields)
    assert torch.equal(plain(**batch).logits, model(**batch).logits)
    # A trunk saved by the stock class can get another number of heads.
    plain.save_pretrained(tmp_path / "trunk")
    other = SEQ2SEQ[name][0].from_pretrained(tmp_path / "trunk", ngram_size=3)
    assert len(other.ngram_heads) == 2
    assert torch.equal(other(**batch).logits, model(**batch).logits)


def assert_rejected(name, folder, *names, **kwargs) -> None:
    for load in (SEQ2SEQ[name][0], AutoModelForSeq2SeqLM):
        with raises_naming(ValueError, folder.name, *names):
            load.from_pretrained(folder, **kwargs)


@pytest.mark.parametrize("name", NAMES)
def test_missing_heads_are_rejected(tmp_path, name):
    tiny_seq2seq(name).save_pretrained(tmp_path)
    rewrite_weights(tmp_path, lambda key: not key.startswith("ngram_heads.1."))
    assert_rejected(name, tmp_path, "`ngram_size=4`", "head 2.")
    rewrite_weights(tmp_path, lambda key: not key.startswith("ngram_heads."))
    assert_rejected(name, tmp_path, "`ngram_size=4`", "head 1, 2, 3.")


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("name", NAMES)
def test_another_number_of_heads_is_rejected(tmp_path, name, size):
    tiny_seq2seq(name, ngram_size=4).save_pretrained(tmp_path)
    assert_rejected(name, tmp_path, "`ngram_size=4`", f"`ngram_size={size}`", ngram_size=size)
    rewrite_config(tmp_path, ngram_size=size)
    assert_rejected(name, tmp_path, f"`ngram_size={size}`", " head ")


@pytest.mark.parametrize("name", NAMES)
def test_damaged_weights(tmp_path, name):
    tiny_seq2seq(name).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:500])
    with raises_naming(OSError, str(tmp_path)):
        SEQ2SEQ[name][0].from_pretrained(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_resized_embeddings(tmp_path, name):
    model = tiny_seq2seq(name, ensemble_lambda=0.4)
    before = logits(model)
    model.resize_token_embeddings(VOCAB_SIZE + 8)
    torch.testing.assert_close(logits(model)[..., :VOCAB_SIZE], before)
    labels = TARGET.clone()
    labels[:, 2] = VOCAB_SIZE + 7
    loss = model.train()(SOURCE, labels=labels).loss
    loss.backward()
    assert model.lm_head.weight.grad[VOCAB_SIZE + 7].any()
    model.save_pretrained(tmp_path)
    loaded = SEQ2SEQ[name][0].from_pretrained(tmp_path)
    assert loaded.config.vocab_size == VOCAB_SIZE + 8
    assert_same_state(loaded, model)
    assert torch.equal(loaded.train()(SOURCE, labels=labels).loss, loss)
    assert torch.equal(logits(loaded), logits(model))


def test_resized_decoder_embeddings(tmp_path):
    """Resize only the target vocabulary of a Marian model with separate vocabularies."""
    model = tiny_seq2seq("marian", share_encoder_decoder_embeddings=False, ensemble_lambda=0.4)
    before = logits(model)
    model.resize_decoder_token_embeddings(VOCAB_SIZE + 8)
    torch.testing.assert_close(logits(model)[..., :VOCAB_SIZE], before)
    labels = torch.full_like(TARGET, VOCAB_SIZE + 7)
    assert model.train()(SOURCE, labels=labels).loss.isfinite()
    with raises_naming(ValueError, "`input_ids`", str(VOCAB_SIZE + 7)):
        model(labels, labels=labels)
    model.save_pretrained(tmp_path)
    assert_same_state(SEQ2SEQ["marian"][0].from_pretrained(tmp_path), model)


ELSEWHERE = """
import sys

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM

names, folder = sys.argv[1].split(","), sys.argv[2]
for name in names:
    for path in (f"{folder}/{name}", f"{folder}/{name}_again"):
        config = AutoConfig.from_pretrained(path, trust_remote_code=True)
        model = AutoModelForSeq2SeqLM.from_pretrained(path, trust_remote_code=True)
        assert type(model).__module__.startswith("transformers_modules."), type(model)
        ids = torch.tensor([[5, 6, 7, 8]])
        for ensemble_lambda in (None, 0.0):
            for num_beams in (1, 3):
                options = {"num_beams": num_beams, "max_new_tokens": 12, "ensemble_lambda": ensemble_lambda}
                print(model.generate(ids, do_sample=False, **options)[0].tolist())
        print(round(model.train()(ids, labels=ids).loss.item(), 5))
        model.save_pretrained(f"{folder}/{name}_again")
"""


def test_loads_where_the_package_is_not_installed(tmp_path):
    # With these seeds the ensemble changes the text.
    seeds = {"marian": 0, "bart": 0, "t5": 1}
    models = {name: tiny_seq2seq(name, seed=seed, ensemble_lambda=0.9) for name, seed in seeds.items()}
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
    printed = run_without_package(ELSEWHERE, tmp_path, ",".join(NAMES), str(tmp_path))
    ids = torch.tensor([[5, 6, 7, 8]])
    expected = []
    for model in models.values():
        texts = [
            model.generate(ids, do_sample=False, num_beams=num_beams, max_new_tokens=12, ensemble_lambda=value)[0]
            for value in (None, 0.0)
            for num_beams in (1, 3)
        ]
        assert not torch.equal(texts[0], texts[2]) and not torch.equal(texts[1], texts[3])
        lines = [
            *(str(tokens.tolist()) for tokens in texts),
            str(round(model.train()(ids, labels=ids).loss.item(), 5)),
        ]
        # Once for the checkpoint, and once for the one that its own code saved.
        expected += lines * 2
    assert printed == expected


LORA_TARGETS = {"marian": ["q_proj", "v_proj"], "bart": ["q_proj", "v_proj"], "t5": ["q", "v"]}


@pytest.mark.parametrize("name", NAMES)
def test_adapters_train_with_the_heads(tmp_path, name):
    """PEFT wraps the model: LoRA on the trunk, the heads trained in full, and the ensemble through the wrapper."""
    start, wrapped = tiny_seq2seq(name), tiny_seq2seq(name)
    config = LoraConfig(
        task_type="SEQ_2_SEQ_LM",
        target_modules=LORA_TARGETS[name],
        modules_to_save=[f"ngram_heads.{n}" for n in range(3)],
        init_lora_weights=False,
    )
    model = get_peft_model(wrapped, config).train()
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.1)
    model(**BATCHES["ragged"]).loss.backward()
    optimizer.step()
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tiny_seq2seq(name), tmp_path)
    processor = NgramEnsembleLogitsProcessor(model, 0.4)
    options = {"max_new_tokens": 8, "num_beams": 3, "do_sample": False}
    by_processor = model.eval().generate(input_ids=SOURCE, logits_processor=[processor], **options)
    by_argument = model.generate(input_ids=SOURCE, ensemble_lambda=0.4, **options)
    assert torch.equal(by_processor, by_argument)
    assert torch.equal(loaded.generate(input_ids=SOURCE, ensemble_lambda=0.4, **options), by_argument)
    merged = model.merge_and_unload()
    assert torch.equal(merged.generate(SOURCE, ensemble_lambda=0.4, **options), by_argument)
    before, adapted = dict(start.named_parameters()), tuple(f".{target}.weight" for target in LORA_TARGETS[name])
    for key, value in merged.named_parameters():
        assert torch.equal(value, before[key]) is not (key.endswith(adapted) or "ngram_heads" in key), key


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize("name", NAMES)
def test_adapter_on_the_output_embedding(name):
    model = get_peft_model(tiny_seq2seq(name).train(), LoraConfig(target_modules=[*LORA_TARGETS[name], "lm_head"]))
    with raises_naming(ValueError, "`target_modules`", "`modules_to_save`"):
        model(**BATCHES["ragged"])
