"""`with_ngram_heads`: from a model, from a checkpoint, and errors for unsupported models."""

import pickle

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, LlamaConfig, LlamaForCausalLM
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.modeling_outputs import CausalLMOutputWithPast

import ngram_wdr_hf
from ngram_wdr_hf import backbones, with_ngram_heads
from tests.support.errors import assert_names, raises_naming
from tests.support.processes import run_python
from tests.support.tiny import SIZES, T5_SIZES, TRANSLATION_SIZES, VOCAB_SIZE, random_ids

SMALL = {"vocab_size": VOCAB_SIZE, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
BERT = {**SMALL, "intermediate_size": 32, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
LLAMA = {**BERT, "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.3}
EXPERTS = {"moe_intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
ON_THE_SPOT = {
    "Olmo2ForCausalLM": LLAMA,
    "PhiForCausalLM": {**LLAMA, "tie_word_embeddings": False},  # with a logit bias
    "CohereForCausalLM": {**LLAMA, "logit_scale": 0.3},
    "BloomForCausalLM": {"vocab_size": VOCAB_SIZE, "hidden_size": 16, "n_layer": 2, "n_head": 2},
    "MixtralForCausalLM": {**LLAMA, "num_local_experts": 4},
    "Qwen3MoeForCausalLM": {**LLAMA, **EXPERTS},
    "MBartForConditionalGeneration": TRANSLATION_SIZES,
    "MT5ForConditionalGeneration": T5_SIZES,
}
ALL = {**ON_THE_SPOT, "GPT2LMHeadModel": SIZES, "BartForConditionalGeneration": TRANSLATION_SIZES}
ADAPTER = LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True)


def tiny(name: str, sizes=BERT, **fields) -> transformers.PreTrainedModel:
    model_class = getattr(transformers, name)
    return model_class(model_class.config_class(**{**sizes, **fields}))


def plain(name: str, **fields) -> transformers.PreTrainedModel:
    """Return a stock model with large random weights, so that each affects the logits."""
    torch.manual_seed(0)
    model = tiny(name, ALL[name], **fields)
    for tensor in (*model.parameters(), *(buffer for key, buffer in model.named_buffers() if "bias" in key)):
        nn.init.normal_(tensor, std=0.3)
    return model.eval()


def inputs_of(model: transformers.PreTrainedModel) -> dict[str, torch.Tensor]:
    ids = {"input_ids": random_ids(2, 7)}
    return {**ids, "decoder_input_ids": random_ids(2, 9, seed=1)} if model.config.is_encoder_decoder else ids


@torch.no_grad()
def logits(model: transformers.PreTrainedModel, **kwargs) -> torch.Tensor:
    return model(**inputs_of(model), **kwargs).logits


def auto_class(model: transformers.PreTrainedModel) -> type:
    return AutoModelForSeq2SeqLM if model.config.is_encoder_decoder else AutoModelForCausalLM


@pytest.mark.parametrize("name", ALL)
def test_from_an_instance(name):
    model = plain(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    weight, expected = model.get_output_embeddings().weight, logits(model)
    ours = with_ngram_heads(model, ngram_size=3, ngram_target="simple", ensemble_lambda=0.4)
    assert type(ours) is type(with_ngram_heads(model)) is getattr(backbones, f"WDRNgram{name}")
    assert isinstance(ours, type(model)) and type(ours) is getattr(ngram_wdr_hf, f"WDRNgram{name}")
    assert (type(ours).__module__ == "ngram_wdr_hf.backbones") is (name in ON_THE_SPOT)
    assert torch.equal(logits(ours, ensemble_lambda=0.0), expected) and not torch.equal(logits(ours), expected)
    assert (ours.config.ngram_size, ours.config.ngram_target, ours.config.ensemble_lambda) == (3, "simple", 0.4)
    assert len(ours.ngram_heads) == 2 and not ours.training
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert (ours.get_output_embeddings().weight is ours.get_input_embeddings().weight) is tied
    # The given model stays unchanged.
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    ours.config.vocab_size = ours.generation_config.max_length = 99
    assert model.get_output_embeddings().weight is weight and not hasattr(model, "ngram_heads")
    assert model.config.vocab_size == VOCAB_SIZE and model.generation_config.max_length != 99
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_the_state_of_an_instance_is_kept():
    model = plain("Olmo2ForCausalLM", attn_implementation="eager", name_or_path="somewhere").double().train()
    model.generation_config.update(max_new_tokens=11, top_k=7)
    model.model.layers[0].requires_grad_(False)
    ours = with_ngram_heads(model)
    for name, parameter in ours.named_parameters():
        assert parameter.dtype == torch.float64 and parameter.requires_grad == ("layers.0" not in name)
    assert ours.training and ours.device == model.device
    # PEFT names the base of an adapter by the first: loaded from "somewhere", it would have no heads.
    names = (ours.name_or_path, ours.config.name_or_path, with_ngram_heads(model, 1).name_or_path)
    assert names == ("with_ngram_heads('somewhere', ngram_size=4)", "somewhere", "somewhere")
    assert ours.generation_config.to_dict() == model.generation_config.to_dict()
    assert ours.config._attn_implementation == "eager" != plain("Olmo2ForCausalLM").config._attn_implementation
    assert torch.equal(logits(ours.eval()), logits(model.eval()))
    assert ours.generate(random_ids(1, 4), do_sample=False).shape == (1, 15)
    mixed = plain("GPT2LMHeadModel", tie_word_embeddings=False).half()
    mixed.lm_head.float()
    dtypes = {name: parameter.dtype for name, parameter in with_ngram_heads(mixed).named_parameters()}
    assert all(dtypes[name] == parameter.dtype for name, parameter in mixed.named_parameters())


@pytest.mark.parametrize("name", ["Olmo2ForCausalLM", "GPT2LMHeadModel", "MBartForConditionalGeneration"])
def test_from_a_folder(name, tmp_path):
    model = plain(name)
    model.save_pretrained(tmp_path)
    fields = {"ensemble_lambda": 0.3, "label_smoothing": 0.1, "ngram_head_activation": "gelu"}
    ours = with_ngram_heads(tmp_path, ngram_size=2, dtype=torch.float64, device_map="cpu", **fields)
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float64}
    assert {field: getattr(ours.config, field) for field in fields} == fields and len(ours.ngram_heads) == 1
    assert torch.equal(logits(ours, ensemble_lambda=0.0), logits(model.double()))
    for options, named in (({"no_such_field": 3}, "no_such_field"), ({"ngram_sise": 3}, "`ngram_size`")):
        with pytest.raises(TypeError, match=named):
            with_ngram_heads(tmp_path, **options)
    with raises_naming(ValueError, "`config`"):
        with_ngram_heads(tmp_path, config=model.config)


@pytest.mark.parametrize("name", ON_THE_SPOT)
def test_checkpoints_go_both_ways(name, tmp_path):
    """Plain checkpoints load into our class, experts included, and ours into the plain class."""
    model = plain(name)
    model.save_pretrained(tmp_path / "plain")
    ours = with_ngram_heads(tmp_path / "plain", ngram_size=3).eval()
    assert torch.equal(logits(ours), logits(model))
    ours.save_pretrained(tmp_path / "ours")
    stored = load_file(tmp_path / "plain" / "model.safetensors")
    assert any(".experts.3." in key for key in stored) is ("Mix" in name or "Moe" in name)
    assert torch.equal(logits(type(model).from_pretrained(tmp_path / "ours")), logits(model))
    again = auto_class(ours).from_pretrained(tmp_path / "ours")
    assert type(again) is type(ours) and type(AutoConfig.from_pretrained(tmp_path / "ours")) is type(ours.config)
    assert torch.equal(logits(again, ensemble_lambda=0.5), logits(ours, ensemble_lambda=0.5))


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize("name", ["BloomForCausalLM", "GPT2LMHeadModel", "BartForConditionalGeneration"])
def test_new_heads_on_the_trunk_of_a_checkpoint_with_heads(name, is_folder, tmp_path):
    """The stock class keeps the fields of the old heads, which say nothing about new ones."""
    model = plain(name)
    fields = {"ensemble_weights": [0.8, 0.3, 0.1], "head_gradient": 0.0, "ngram_head_reads": "hidden+tokens"}
    with_ngram_heads(model, ngram_size=3, draft_vocab_size=5, **fields).save_pretrained(tmp_path / "heads")
    trunk = type(model).from_pretrained(tmp_path / "heads")
    assert trunk.config.to_dict()["ensemble_weights"] == fields["ensemble_weights"]
    trunk.save_pretrained(tmp_path / "trunk")
    ours = with_ngram_heads(tmp_path / "trunk" if is_folder else trunk, ngram_size=2, head_sample_rate=0.5).eval()
    assert torch.equal(logits(ours), logits(model))
    fresh = with_ngram_heads(model, ngram_size=2, head_sample_rate=0.5).config
    for field in fresh._ngram_fields():
        assert getattr(ours.config, field) == getattr(fresh, field), field


ELSEWHERE = """
import pathlib, pickle, sys, torch, ngram_wdr_hf
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

for folder in map(pathlib.Path, sys.argv[1:]):
    inputs, logits, name = torch.load(folder / "expected.pt")
    config = AutoConfig.from_pretrained(folder)
    auto_class = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    for model in (auto_class.from_pretrained(folder), pickle.loads((folder / "model.pkl").read_bytes())):
        assert type(model).__name__ == name and len(model.ngram_heads) == 2, type(model)
        assert type(model.config) is type(config), type(config)
        with torch.no_grad():
            assert torch.equal(model(**inputs, ensemble_lambda=0.5).logits, logits), name
    print(name)
"""


def test_in_another_process(tmp_path):
    """Checkpoints and pickles load in a process that only imports the package."""
    names = ["MixtralForCausalLM", "BloomForCausalLM", "BartForConditionalGeneration", "MT5ForConditionalGeneration"]
    for name in names:
        ours = with_ngram_heads(plain(name), ngram_size=3)
        ours.save_pretrained(tmp_path / name)
        expected = (inputs_of(ours), logits(ours, ensemble_lambda=0.5), f"WDRNgram{name}")
        torch.save(expected, tmp_path / name / "expected.pt")
        (tmp_path / name / "model.pkl").write_bytes(pickle.dumps(ours))
    printed = run_python("-c", ELSEWHERE, *(str(tmp_path / name) for name in names))
    assert printed.split() == [f"WDRNgram{name}" for name in names]


def test_classes_by_their_name():
    from ngram_wdr_hf.backbones import WDRNgramOlmo2ForCausalLM

    assert issubclass(WDRNgramOlmo2ForCausalLM, transformers.Olmo2ForCausalLM)
    for name in ("WDRNgramNothing", "Olmo2ForCausalLM", "WDRNgramAutoConfig", "WDRNgram"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(backbones, name)
    for model_type in ("wdr_ngram_roberta", "wdr_ngram_electra", "wdr_ngram_camembert"):
        with raises_naming(ValueError, "logits"):
            AutoConfig.for_model(model_type)
    with raises_naming(ValueError, "BartForCausalLM", "`labels`"):
        _ = backbones.WDRNgramBartForCausalLM


class OwnLlama(LlamaForCausalLM):
    """A custom class with a stock configuration."""


class OwnBart(transformers.BartForConditionalGeneration):
    """A custom encoder-decoder class."""


@pytest.mark.parametrize(
    ("own", "sizes"), [(OwnLlama, LLAMA), (OwnBart, TRANSLATION_SIZES)], ids=["Llama", "Bart, which has a file"]
)
def test_custom_classes(own, sizes, tmp_path):
    """A custom class leaves that of its parent alone."""
    models = [with_ngram_heads(cls(own.config_class(**sizes)).eval(), ngram_size=3) for cls in (own.__base__, own)]
    assert isinstance(models[1], own) and not isinstance(models[0], own)
    for i, model in enumerate(models):
        model.save_pretrained(tmp_path / str(i))
        loaded = auto_class(model).from_pretrained(tmp_path / str(i))
        assert type(loaded) is type(model)
        assert torch.equal(logits(loaded, ensemble_lambda=0.4), logits(model, ensemble_lambda=0.4))
    assert type(pickle.loads(pickle.dumps(models[1]))) is type(models[1])


def test_two_custom_classes_of_one_name(caplog):
    """They share a model type, and so what their checkpoints load as."""
    for module, count in (("one", 0), ("one", 0), ("two", 1)):
        with_ngram_heads(type("Twin", (LlamaForCausalLM,), {"__module__": module})(LlamaConfig(**LLAMA)))
        lines = [record.getMessage() for record in caplog.records if record.name.endswith("registry")]
        assert sum("Twin" in line for line in lines) == count


@pytest.mark.parametrize("name", ["MixtralForCausalLM", "Qwen3MoeForCausalLM"])
def test_load_balancing(name):
    """The load-balancing loss equals that of the stock class."""
    stock, ids = plain(name, output_router_logits=True, router_aux_loss_coef=0.7).train(), random_ids(2, 7)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    labels = ids.masked_fill(mask == 0, -100)
    expected = stock(ids, attention_mask=mask, labels=labels)
    expected.loss.backward()
    ours = with_ngram_heads(stock, ngram_size=1)
    output = ours(ids, attention_mask=mask, labels=labels)
    output.loss.backward()
    for field in ("loss", "aux_loss", "router_logits"):
        torch.testing.assert_close(output[field], expected[field])
    for key, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, stock.get_parameter(key).grad)
    # With heads, it comes on top of the N-gram loss, and through a tuple, too.
    ours = with_ngram_heads(stock, ngram_size=3)
    ours.config.output_router_logits = False
    without = ours(ids, attention_mask=mask, labels=labels)
    output = ours(ids, attention_mask=mask, labels=labels, output_router_logits=True)
    assert "aux_loss" not in without and "router_logits" not in without
    torch.testing.assert_close(output.loss, without.loss + 0.7 * expected.aux_loss)
    torch.testing.assert_close(output.head_losses, without.head_losses)
    assert ours(ids, labels=labels, output_router_logits=True, return_dict=False)[0].ndim == 0


@pytest.mark.parametrize("model_type", ["SwitchTransformers", "NllbMoe"])
def test_load_balancing_of_an_encoder_and_a_decoder(model_type):
    """The loss is added or raises an error; it is never silently left out."""
    sizes = T5_SIZES if model_type == "SwitchTransformers" else TRANSLATION_SIZES
    sizes = {**sizes, "num_experts": 4, "encoder_sparse_step": 2, "decoder_sparse_step": 2, "router_jitter_noise": 0.0}
    stock = tiny(f"{model_type}ForConditionalGeneration", sizes)
    ours, ids = with_ngram_heads(stock.train(), ngram_size=1), random_ids(2, 7)
    try:
        loss = ours(ids, labels=ids, output_router_logits=True).loss
    except ValueError as error:
        assert_names(str(error), "output_router_logits")
    else:
        torch.testing.assert_close(loss, stock(ids, labels=ids, output_router_logits=True).loss)
    assert ours(ids, labels=ids, output_router_logits=False).loss.requires_grad


class Blocks(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        ids = random_ids(1, 9, seed=i)[0]
        return {"input_ids": ids, "labels": ids}


@pytest.mark.parametrize(("name", "is_folder"), [("Olmo2ForCausalLM", False), ("MixtralForCausalLM", True)])
def test_trainer_saves_and_resumes(name, is_folder, tmp_path):
    """Resuming also restores experts, which are stored under other names in stock checkpoints."""
    source = plain(name)
    if is_folder:
        source.save_pretrained(tmp_path / "plain")
        source = tmp_path / "plain"

    def train(folder, **options):
        arguments = transformers.TrainingArguments(
            output_dir=str(folder), max_steps=2, save_steps=1, learning_rate=0.01, report_to="none", use_cpu=True
        )
        torch.manual_seed(0)
        trainer = transformers.Trainer(with_ngram_heads(source, ngram_size=3), arguments, train_dataset=Blocks())
        trainer.train(**options)
        return trainer.model.state_dict()

    whole = train(tmp_path / "whole")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "whole" / "checkpoint-2")
    assert all(torch.equal(value, whole[key]) for key, value in saved.state_dict().items())
    again = train(tmp_path / "again", resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-1"))
    assert whole.keys() == again.keys() and all(torch.equal(value, whole[key]) for key, value in again.items())


class Cubed(LlamaForCausalLM):
    def forward(self, *args, **kwargs):
        return CausalLMOutputWithPast(logits=super().forward(*args, **kwargs).logits ** 3)


class Bounded(LlamaForCausalLM):
    """Soft-caps its logits at a bound that is in no configuration and too large to show in an untrained model."""

    def forward(self, input_ids, attention_mask=None, labels=None, use_cache=None, **kwargs):
        output = super().forward(input_ids, attention_mask=attention_mask, use_cache=use_cache, **kwargs)
        logits = 30 * torch.tanh(output.logits / 30)
        loss = None if labels is None else self.loss_function(logits, labels, self.config.vocab_size)
        return CausalLMOutputWithPast(loss=loss, logits=logits)


class RMSNormed(LlamaForCausalLM):
    """A second RMSNorm changes nothing before it is trained."""

    def __init__(self, config):
        super().__init__(config)
        self.last_norm = nn.RMSNorm(config.hidden_size, eps=1e-6)

    def forward(self, input_ids=None, attention_mask=None, use_cache=None, **kwargs):
        states = self.model(input_ids, attention_mask=attention_mask, use_cache=use_cache).last_hidden_state
        return CausalLMOutputWithPast(logits=self.lm_head(self.last_norm(states)))


class BothWays(LlamaForCausalLM):
    """A model that sees the future: every state includes the mean of all states."""

    def __init__(self, config):
        super().__init__(config)
        self.model.norm.register_forward_hook(lambda norm, args, states: states + states.mean(1, keepdim=True))


def composite(name: str) -> transformers.PreTrainedModel:
    """A model for text beside one for pictures, or two for text."""
    if name == "EncoderDecoderModel":
        parts = {"encoder": {**BERT, "model_type": "bert"}, "decoder": {**BERT, "model_type": "bert"}}
        parts["decoder"] |= {"is_decoder": True, "add_cross_attention": True}
        return tiny(name, parts)
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    return tiny(name, {"text_config": {**LLAMA, "head_dim": 8}, "vision_config": vision, "image_token_index": 5})


REFUSED = {
    "LlamaForSequenceClassification": lambda: tiny("LlamaForSequenceClassification", LLAMA),
    "BertModel": lambda: tiny("BertModel"),
    "BertLMHeadModel": lambda: tiny("BertLMHeadModel"),
    "GPT2DoubleHeadsModel": lambda: tiny("GPT2DoubleHeadsModel", SIZES),
    **{
        name: lambda name=name: composite(name)
        for name in ("LlavaForConditionalGeneration", "Gemma3ForConditionalGeneration", "EncoderDecoderModel")
    },
    **{cls.__name__: lambda cls=cls: cls(LlamaConfig(**LLAMA)) for cls in (Cubed, Bounded, RMSNormed, BothWays)},
    # A vocabulary for which two tokens that should differ could be the same.
    "BothWays ": lambda: BothWays(LlamaConfig(**{**LLAMA, "vocab_size": 42})),
    "Linear": lambda: nn.Linear(2, 2),
    "LlamaConfig": lambda: LlamaConfig(**LLAMA),
    # The weights of a model with an adapter in it have other names, so that a copy would have lost them.
    "GPT2LMHeadModel": lambda: get_peft_model(plain("GPT2LMHeadModel"), ADAPTER).base_model.model,
    "PeftModel": lambda: get_peft_model(plain("GPT2LMHeadModel"), ADAPTER),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_models(name):
    error_type = TypeError if name in ("Linear", "LlamaConfig", "PeftModel") else ValueError
    with raises_naming(error_type, name.strip()):
        with_ngram_heads(REFUSED[name]())


MASKED = {"BertForMaskedLM": BERT, "ModernBertForMaskedLM": {**BERT, "cls_token_id": 0, "sep_token_id": 0}}


@pytest.mark.parametrize("name", [*MASKED, "GPT2LMHeadModel", "Olmo2ForCausalLM", "MBartForConditionalGeneration"])
def test_what_has_heads(name, tmp_path):
    """Models, checkpoints, and models by the code of a checkpoint."""
    ours = with_ngram_heads(tiny(name, {**ALL, **MASKED}[name]), ngram_size=3)
    ours.save_pretrained(tmp_path)
    by_code = get_class_from_dynamic_module(f"modeling_wdr_ngram.{type(ours).__name__}", tmp_path)
    assert by_code is not type(ours)
    for model in (ours, by_code(by_code.config_class(**{**ALL, **MASKED}[name], ngram_size=3))):
        with raises_naming(ValueError, f"WDRNgram{name}", "`ngram_size=3`"):
            with_ngram_heads(model)
    with raises_naming(ValueError, str(tmp_path), type(ours).ngram_auto_class):
        with_ngram_heads(tmp_path)


FIELDS = {"ngram_size": 0, "ngram_target": "words", "ensemble_lambda": 2, "no_such_field": 3, "dtype": torch.bfloat16}


@pytest.mark.parametrize("name", FIELDS)
def test_invalid_fields(name):
    with raises_naming(ValueError, f"`{name}`"):
        with_ngram_heads(plain("Olmo2ForCausalLM"), **{name: FIELDS[name]})


def test_loading_info(tmp_path):
    """Transformers reports new weights: the heads, and what a model for another task lacks."""
    tiny("LlamaForSequenceClassification", LLAMA).save_pretrained(tmp_path)
    model, info = with_ngram_heads(tmp_path, output_loading_info=True)
    assert len(model.ngram_heads) == 3 and len(info["missing_keys"]) == 13 and "lm_head.weight" in info["missing_keys"]
