"""Invalid fields, arguments and batches: the error names the field or the argument."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from ngram_wdr_hf import NgramEnsembleLogitsProcessor, WDRNgramConfig, WDRNgramGPT2LMHeadModel
from tests.support.errors import raises_naming
from tests.support.tiny import SIZES, VOCAB_SIZE, plain_model, random_ids, tiny_model


@pytest.mark.parametrize("size", [0, -1, 2.0, "4", None, True])
def test_ngram_size(size):
    with raises_naming(ValueError, "`ngram_size`", repr(size)):
        WDRNgramConfig(ngram_size=size)


@pytest.mark.parametrize("name", ["ensemble_lambda", "label_smoothing"])
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "0.4", None, True])
def test_fields_from_0_to_1(name, value):
    with raises_naming(ValueError, f"`{name}`", repr(value)):
        WDRNgramConfig(**{name: value})


def test_unknown_target_and_activation():
    with raises_naming(ValueError, "`ngram_target`", "wdr", "simple", "'difference'"):
        WDRNgramConfig(ngram_target="difference")
    with raises_naming(ValueError, "`ngram_head_activation`", "'reluu'"):
        WDRNgramConfig(ngram_head_activation="reluu")


BAD_FIELDS = [
    ("ngram_size", 0),
    ("ngram_size", True),
    ("ngram_size", 2.0),
    ("ngram_size", "4"),
    ("ngram_target", "difference"),
    ("ngram_head_activation", "reluu"),
    ("ensemble_lambda", 3),
    ("label_smoothing", 5),
]


@pytest.mark.parametrize(("name", "value"), BAD_FIELDS)
def test_fields_given_on_loading(tmp_path, name, value):
    plain_model().save_pretrained(tmp_path)
    with raises_naming(ValueError, f"`{name}`", repr(value)):
        WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path, **{name: value})


def test_label_smoothing_set_later():
    model, ids = tiny_model().train(), random_ids(1, 5)
    model.config.label_smoothing = 5
    with raises_naming(ValueError, "`label_smoothing`", "5"):
        model(ids, labels=ids)


def test_adapter_on_the_output_embedding():
    model = get_peft_model(tiny_model().train(), LoraConfig(target_modules=["c_attn", "lm_head"], fan_in_fan_out=True))
    with raises_naming(ValueError, "`target_modules`", "`modules_to_save`"):
        model(input_ids=random_ids(1, 5), labels=random_ids(1, 5))


def test_trainable_tokens_of_a_tied_embedding():
    config = LoraConfig(target_modules=["c_attn"], trainable_token_indices={"wte": [1, 2]}, fan_in_fan_out=True)
    model = get_peft_model(tiny_model().train(), config)
    with raises_naming(ValueError, "`trainable_token_indices`", "`modules_to_save`"):
        model(input_ids=random_ids(1, 5), labels=random_ids(1, 5))


@pytest.mark.parametrize("value", [-0.1, 2, "much"])
def test_lambda_of_a_call(value):
    model, ids = tiny_model(), random_ids(1, 5)
    names = ("`ensemble_lambda`", repr(value))
    with raises_naming(ValueError, *names):
        model(ids, ensemble_lambda=value)
    with raises_naming(ValueError, *names):
        model.generate(ids, ensemble_lambda=value, max_new_tokens=2)
    with raises_naming(ValueError, *names):
        NgramEnsembleLogitsProcessor(model, value)
    with raises_naming(ValueError, *names):
        model(ids, labels=ids, ensemble_lambda=[0.1, value])


def test_several_lambdas_are_for_evaluation():
    model, ids = tiny_model(), random_ids(1, 5)
    names = ("`ensemble_lambda`", "`labels`")
    for call in (
        lambda: model(ids, ensemble_lambda=[0.0, 0.1]),
        lambda: model(ids, labels=ids, ensemble_lambda=[]),
        lambda: model.train()(ids, labels=ids, ensemble_lambda=[0.0, 0.1]),
    ):
        with raises_naming(ValueError, *names):
            call()


@pytest.mark.parametrize("training", [True, False])
def test_labels_of_another_shape(training):
    model, ids = tiny_model().train(training), random_ids(2, 5)
    for labels in (ids[:, :4], ids[:1], ids[0]):
        with raises_naming(ValueError, "`labels`", "(2, 5)", str(tuple(labels.shape))):
            model(ids, labels=labels)
    with raises_naming(ValueError, "`labels`", "(2, 5)", "(2, 4)"):
        model(ids, shift_labels=ids[:, 1:])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("token", [VOCAB_SIZE, VOCAB_SIZE + 100, -1, -100])
def test_tokens_outside_the_vocabulary(token, training):
    model, ids = tiny_model().train(training), random_ids(2, 5)
    wrong = ids.clone()
    wrong[1, 3] = token
    with raises_naming(ValueError, "`input_ids`", str(token)):
        model(wrong, labels=ids)
    if token != -100:
        with raises_naming(ValueError, "`labels`", str(token)):
            model(ids, labels=wrong)


def test_tokens_outside_the_vocabulary_in_generate():
    with raises_naming(ValueError, "`input_ids`", str(VOCAB_SIZE)):
        tiny_model().generate(torch.tensor([[3, VOCAB_SIZE]]), max_new_tokens=2)


@pytest.mark.parametrize("model", [plain_model, lambda: tiny_model(ngram_size=1)], ids=["stock", "N = 1"])
def test_processor_for_a_model_without_heads(model):
    with raises_naming(ValueError, "NgramEnsembleLogitsProcessor", "ngram_size"):
        NgramEnsembleLogitsProcessor(model(), 0.4)


def test_processor_misused():
    model, other, ids = tiny_model(), tiny_model(seed=1), random_ids(1, 5)
    processor = NgramEnsembleLogitsProcessor(model, 0.4)
    with raises_naming(ValueError, "`NgramEnsembleLogitsProcessor(model=...)`"):
        other.generate(ids, logits_processor=[processor], max_new_tokens=2)
    with raises_naming(ValueError, "`logits_processor`", "`NgramEnsembleLogitsProcessor`"):
        model.generate(ids, logits_processor=[processor, processor], max_new_tokens=2)
    twice = ("`NgramEnsembleLogitsProcessor`", "`ensemble_lambda=0` to `generate`")
    with raises_naming(ValueError, *twice):
        model.generate(ids, logits_processor=[processor], ensemble_lambda=0.2, max_new_tokens=2)
    model.generation_config.ensemble_lambda = 0.2
    with raises_naming(ValueError, *twice):
        model.generate(ids, logits_processor=[processor], max_new_tokens=2)
    model.generate(ids, logits_processor=[processor], ensemble_lambda=0, max_new_tokens=2)


def test_embeddings_without_ids():
    """The losses of WDR heads need the token ids; simple heads can be trained without."""
    ids, model = random_ids(2, 6), tiny_model()
    for training in (True, False):
        with raises_naming(ValueError, "`input_ids`", "`inputs_embeds`", "`labels`"):
            model.train(training)(inputs_embeds=model.transformer.wte(ids), labels=ids)
    model = tiny_model(ngram_target="simple").train()
    by_embeddings = model(inputs_embeds=model.transformer.wte(ids), attention_mask=torch.ones_like(ids), labels=ids)
    torch.testing.assert_close(by_embeddings.loss, model(ids, labels=ids).loss)


def test_no_input():
    with raises_naming(ValueError, "`input_ids`", "`inputs_embeds`"):
        tiny_model()(labels=random_ids(1, 4))


def test_fields_reach_the_configuration():
    config = WDRNgramConfig(**SIZES, ngram_size=3, ngram_target="simple", ensemble_lambda=0.2, label_smoothing=0.1)
    again = WDRNgramConfig.from_dict(config.to_dict())
    assert (again.ngram_size, again.ngram_target, again.ensemble_lambda, again.label_smoothing) == (
        3,
        "simple",
        0.2,
        0.1,
    )
