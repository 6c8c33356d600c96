"""PEFT: adapters train with the heads, and come back with them, by every loader."""

import warnings

import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, pipeline

from ngram_wdr_hf import NgramEnsembleLogitsProcessor, with_ngram_heads
from tests.support.batches import padded
from tests.support.errors import raises_naming
from tests.support.tiny import LLAMA_SIZES, make, random_ids
from tests.support.tokenizers import letter_tokenizer

LORA = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj"], "modules_to_save": ["ngram_heads"]}
DRAFTS = {"use_mtp": True, "max_new_tokens": 20, "draft_threshold": 0.0, "return_dict_in_generate": True}
LOADERS = {
    "auto peft": lambda adapter, base: AutoPeftModelForCausalLM.from_pretrained(adapter),
    "peft": lambda adapter, base: PeftModel.from_pretrained(base(), adapter),
    "auto": lambda adapter, base: AutoModelForCausalLM.from_pretrained(adapter),
    "pipeline": lambda adapter, base: pipeline("text-generation", adapter, tokenizer=letter_tokenizer()).model,
}

LORA_TARGETS = {"gpt2": ["c_attn"], "marian": ["q_proj", "v_proj"], "t5": ["q", "v"]}
TASKS = {"gpt2": "CAUSAL_LM", "marian": "SEQ_2_SEQ_LM", "t5": "SEQ_2_SEQ_LM"}


@pytest.mark.parametrize("heads", [["ngram_heads"], ["ngram_heads.0", "ngram_heads.1", "ngram_heads.2"]], ids=len)
@pytest.mark.parametrize("name", LORA_TARGETS)
def test_adapters_train_with_the_heads(tmp_path, name, heads):
    """PEFT wraps the model: LoRA on the trunk, the heads trained in full, and the ensemble through the wrapper."""
    start, wrapped, batch = make(name), make(name), padded(name)
    config = LoraConfig(
        task_type=TASKS[name],
        target_modules=LORA_TARGETS[name],
        modules_to_save=heads,
        init_lora_weights=False,
        fan_in_fan_out=name == "gpt2",
    )
    model = get_peft_model(wrapped, config).train()
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.1)
    model(**batch).loss.backward()
    optimizer.step()
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(make(name), tmp_path)
    processor = NgramEnsembleLogitsProcessor(model, 0.4)
    options = {"input_ids": batch["input_ids"][:, :2], "max_new_tokens": 8, "num_beams": 3, "do_sample": False}
    by_argument = model.eval().generate(ensemble_lambda=0.4, **options)
    assert torch.equal(model.generate(logits_processor=[processor], **options), by_argument)
    assert torch.equal(loaded.generate(ensemble_lambda=0.4, **options), by_argument)
    merged = model.merge_and_unload()
    assert torch.equal(merged.generate(ensemble_lambda=0.4, **options), by_argument)
    before, adapted = dict(start.named_parameters()), tuple(f".{target}.weight" for target in LORA_TARGETS[name])
    for key, value in merged.named_parameters():
        assert torch.equal(value, before[key]) is not (key.endswith(adapted) or "ngram_heads" in key), key


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> str:
    """A checkpoint without heads."""
    torch.manual_seed(0)
    path = str(tmp_path_factory.mktemp("plain"))
    LlamaForCausalLM(LlamaConfig(**LLAMA_SIZES, initializer_range=0.3, eos_token_id=None)).save_pretrained(path)
    return path


def trained_adapter(model, folder: str) -> PeftModel:
    """Train LoRA and all heads for a few steps, and save them."""
    model, ids = get_peft_model(model, LoraConfig(**LORA)).train(), random_ids(4, 12)
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    return model.eval()


@torch.no_grad()
def results(model) -> tuple[list[float], list[int], list[float]]:
    """Return the losses of a model, the tokens that it generates, and the acceptance rates of its drafts."""
    ids = random_ids(2, 9, seed=3)
    output = model.eval()(input_ids=ids, labels=ids, ensemble_lambda=0.4)
    found = model.generate(input_ids=ids[:1], **DRAFTS)
    rates = found.speculation.acceptance_rate_by_source["heads"]
    assert rates
    return [output.loss.item(), *output.head_losses.tolist()], found.sequences.tolist(), rates


@pytest.mark.parametrize("loader", LOADERS)
def test_adapter_on_a_saved_base_with_heads(plain, tmp_path, loader):
    base, adapter = str(tmp_path / "base"), str(tmp_path / "adapter")
    with_ngram_heads(plain).save_pretrained(base)
    model = trained_adapter(AutoModelForCausalLM.from_pretrained(base), adapter)
    loaded = LOADERS[loader](adapter, lambda: AutoModelForCausalLM.from_pretrained(base))
    assert results(loaded) == results(model)


@pytest.mark.parametrize("loader", LOADERS)
def test_adapter_on_new_heads(plain, tmp_path, loader):
    """The plain checkpoint would be loaded without heads, so the base is the call that adds them, which is no path."""
    adapter, call = str(tmp_path), f"with_ngram_heads({plain!r}, ngram_size=4, ngram_target='simple')"
    model = trained_adapter(with_ngram_heads(plain, ngram_target="simple"), adapter)
    assert model.peft_config["default"].base_model_name_or_path == call
    if loader == "peft":
        loaded = LOADERS[loader](adapter, lambda: with_ngram_heads(plain, ngram_target="simple"))
        assert results(loaded) == results(model)
    else:
        with raises_naming(OSError, call):
            LOADERS[loader](adapter, None)


def test_adapter_on_another_number_of_heads(plain, tmp_path):
    trained_adapter(with_ngram_heads(plain), str(tmp_path))
    with pytest.warns(UserWarning, match=r"more N-gram heads than the model, which has 1: .* `ngram_size`"):
        PeftModel.from_pretrained(with_ngram_heads(plain, 2), str(tmp_path))
    with pytest.raises(KeyError, match=r"ngram_heads\.3"):
        PeftModel.from_pretrained(with_ngram_heads(plain, 5), str(tmp_path))


@pytest.mark.parametrize("name", LORA_TARGETS)
def test_adapter_without_the_heads(name):
    """The heads are frozen, and have half of the loss: a warning, unless they leave the model alone."""
    frozen = {"target_modules": LORA_TARGETS[name], "fan_in_fan_out": name == "gpt2"}
    with pytest.warns(UserWarning, match=r'frozen\. .* `modules_to_save=\["ngram_heads"\]`'):
        get_peft_model(make(name).train(), LoraConfig(**frozen))(**padded(name))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        get_peft_model(make(name, head_gradient=0.0).train(), LoraConfig(**frozen))(**padded(name))
        get_peft_model(make(name, ngram_size=1).train(), LoraConfig(**frozen))(**padded(name))
        only_heads = make(name).requires_grad_(False).train()
        only_heads.ngram_heads.requires_grad_(True)
        only_heads(**padded(name))


def test_adapter_that_is_switched_off():
    model, ids = make("gpt2"), random_ids(2, 9)
    before = model(ids, labels=ids).head_losses
    adapter = LoraConfig(target_modules=["c_attn"], modules_to_save=["ngram_heads"], fan_in_fan_out=True)
    model = get_peft_model(model, adapter)
    for head in model.ngram_head_list:
        torch.nn.init.normal_(head.fc_in.weight, std=0.3)
    assert not torch.equal(model(ids, labels=ids).head_losses, before)
    with model.disable_adapter():
        assert torch.equal(model(ids, labels=ids).head_losses, before)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize("name", LORA_TARGETS)
def test_adapters_of_the_output_embedding(name):
    choices = [({"target_modules": [*LORA_TARGETS[name], "lm_head"]}, "`target_modules`")]
    if name == "gpt2":
        choices.append(({"trainable_token_indices": {"wte": [1, 2]}}, "`trainable_token_indices`"))
    for options, field in choices:
        config = LoraConfig(**{"target_modules": LORA_TARGETS[name], "fan_in_fan_out": name == "gpt2", **options})
        with raises_naming(ValueError, field, "`modules_to_save`"):
            get_peft_model(make(name).train(), config)(**padded(name))
