"""Invalid or misspelt fields, arguments and batches: the error names the field or the argument."""

from functools import partial

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from ngram_wdr_hf import NgramEnsembleLogitsProcessor, WDRNgramConfig, WDRNgramGPT2LMHeadModel, with_ngram_heads
from tests.support.batches import padded
from tests.support.errors import raises_naming
from tests.support.generation import text_inputs
from tests.support.tiny import KINDS, SIZES, make, make_stock, plain_model, random_ids, tiny_model

BAD_FIELDS = {
    "ngram_size": [0, -1, 2.0, "4", None, True],
    "ensemble_lambda": [-0.1, 1.1, float("nan"), "0.4", None, True],
    "label_smoothing": [-0.1, 5],
    "ngram_target": ["difference"],
    "ngram_head_activation": ["reluu"],
    "ngram_head_expansion": [0],
    "ngram_head_reads": ["tokens"],
    "draft_vocab_size": [0, 2.5],
    "head_loss_weight": [0, -1.0, "1"],
    "head_loss_decay": [0.0, 1.5],
    "head_sample_rate": [0.0, 1.5],
}


@pytest.fixture(scope="module")
def plain_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    plain_model().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in BAD_FIELDS for value in BAD_FIELDS[field]])
def test_fields(field, value, plain_folder):
    for load in (WDRNgramConfig, partial(WDRNgramGPT2LMHeadModel.from_pretrained, plain_folder)):
        with raises_naming(ValueError, f"`{field}`", repr(value)):
            load(**{field: value})


@pytest.mark.parametrize("value", [-0.1, 2, "much"])
def test_lambda_of_a_call(name, value):
    model, inputs = make(name), text_inputs(make(name), random_ids(1, 5))
    for call in (
        lambda: model(**inputs, ensemble_lambda=value),
        lambda: model(**inputs, labels=random_ids(1, 5), ensemble_lambda=[0.1, value]),
        lambda: model.generate(**inputs, ensemble_lambda=value, max_new_tokens=2),
        lambda: NgramEnsembleLogitsProcessor(model, value),
    ):
        with raises_naming(ValueError, "`ensemble_lambda`", repr(value)):
            call()


def test_several_lambdas_are_for_evaluation(name):
    model, inputs = make(name), text_inputs(make(name), random_ids(1, 5))
    labelled = {**inputs, "labels": random_ids(1, 5)}
    for training, batch, lambdas in ((False, inputs, [0.0, 0.1]), (False, labelled, []), (True, labelled, [0.0, 0.1])):
        with raises_naming(ValueError, "`ensemble_lambda`", "`labels`"):
            model.train(training)(**batch, ensemble_lambda=lambdas)


@pytest.mark.parametrize("training", [True, False])
def test_labels_of_another_shape(name, training):
    model, ids = make(name).train(training), random_ids(2, 5)
    inputs = text_inputs(model, ids)
    for labels in (ids[:, :4], ids[:1], ids[0]):
        with raises_naming(ValueError, "`labels`", "(2, 5)", str(tuple(labels.shape))):
            model(**inputs, labels=labels)
    with raises_naming(ValueError, "`labels`", "(2, 5)", "(2, 4)"):
        model(**inputs, shift_labels=ids[:, 1:])


def test_embeddings_without_ids(name):
    """The losses of WDR heads need the token ids; simple heads can be trained without."""
    prefix = "" if name == "gpt2" else "decoder_"
    for target in ("wdr", "simple"):
        model, ids = make(name, ngram_target=target), random_ids(2, 6)
        inputs = text_inputs(model, ids)
        embedded = {**inputs, f"{prefix}inputs_embeds": model.get_decoder().get_input_embeddings()(ids)}
        del embedded[f"{prefix}input_ids"]
        for training in (True, False):
            model.train(training)
            if target == "simple":
                actual, expected = model(**embedded, labels=ids), model(**inputs, labels=ids)
                torch.testing.assert_close(actual.loss, expected.loss)
                torch.testing.assert_close(actual.head_losses, expected.head_losses)
            else:
                with raises_naming(ValueError, f"`{prefix}input_ids`", f"`{prefix}inputs_embeds`", "`labels`"):
                    model(**embedded, labels=ids)


def test_processor_misused():
    model, other, ids = tiny_model(), tiny_model(seed=1), random_ids(1, 5)
    for without_heads in (plain_model(), tiny_model(ngram_size=1)):
        with raises_naming(ValueError, "NgramEnsembleLogitsProcessor", "ngram_size"):
            NgramEnsembleLogitsProcessor(without_heads, 0.4)
    with raises_naming(ValueError, "`encoder_inputs`"):
        NgramEnsembleLogitsProcessor(make("marian"), 0.4)(ids, torch.zeros(1, 37))
    processor = NgramEnsembleLogitsProcessor(model, 0.4)
    for each, processors in ((other, [processor]), (model, [processor, processor])):
        with raises_naming(ValueError, "`NgramEnsembleLogitsProcessor`", "`logits_processor`"):
            each.generate(ids, logits_processor=processors, max_new_tokens=2)
    for options in ({"ensemble_lambda": 0.2}, {"generation_config": GenerationConfig(ensemble_lambda=0.2)}):
        with raises_naming(ValueError, "`NgramEnsembleLogitsProcessor`", "`ensemble_lambda=0` to `generate`"):
            model.generate(ids, logits_processor=[processor], max_new_tokens=2, **options)
    model.generation_config.ensemble_lambda = 0.2
    model.generate(ids, logits_processor=[processor], ensemble_lambda=0, max_new_tokens=2)


def test_misspelt_arguments(name):
    model, ids = make(name), random_ids(1, 5)
    inputs = text_inputs(model, ids)
    for call in (
        lambda **options: model(**inputs, **options),
        lambda **options: model.generate(**inputs, max_new_tokens=2, **options),
        lambda **options: model.generate(**inputs, generation_config=GenerationConfig(max_new_tokens=2, **options)),
    ):
        with raises_naming(TypeError, "`ensemble_lamda`", "`ensemble_lambda`"):
            call(ensemble_lamda=0.4)
        call(ensemble_lambda=0.4)
    for wrong, right in {"draft_vocab_sise": "draft_vocab_size", "use_mpt": "use_mtp"}.items():
        with raises_naming(TypeError, f"`{wrong}`", f"`{right}`"):
            model.generate(**inputs, max_new_tokens=2, **{wrong: 1})


@pytest.mark.parametrize("name", ["gpt2", "marian", "bert"])
def test_unknown_arguments_are_left_to_the_stock_class(name):
    """Stock forwards ignore them, and stock `generate` refuses them."""
    batch = padded(name)
    for model in (make_stock(name), make(name)):
        assert torch.equal(model(**batch, something=1).logits, model(**batch).logits)
        if name != "bert":
            with raises_naming(ValueError, "something"):
                model.generate(batch["input_ids"], something=1)


def test_models_and_caches_without_an_ensemble():
    with raises_naming(TypeError, "`ensemble_lambda`"):
        make("bert")(random_ids(1, 5), ensemble_lambda=0.4)
    with raises_naming(ValueError, "continuous batching", "ensemble_lambda"):
        tiny_model(ensemble_lambda=0.4)(random_ids(1, 5), block_table=torch.zeros(1, 1))


def test_misspelt_fields(tmp_path, plain_folder):
    for config_class, wrong, right in (
        (WDRNgramConfig, "ngram_targets", "ngram_target"),
        (KINDS["marian"].ours.config_class, "bow_loss_weigth", "bow_loss_weight"),
    ):
        with raises_naming(TypeError, f"`{wrong}`", f"`{right}`"):
            config_class(**{wrong: 4})
    assert WDRNgramConfig(**SIZES, something=4).something == 4
    tiny_model().save_pretrained(tmp_path)
    for load, source in (
        (WDRNgramGPT2LMHeadModel.from_pretrained, tmp_path),
        (WDRNgramGPT2LMHeadModel.from_pretrained, plain_folder),
        (AutoModelForCausalLM.from_pretrained, tmp_path),
        (AutoConfig.from_pretrained, tmp_path),
        (with_ngram_heads, plain_folder),
        (with_ngram_heads, plain_model()),
    ):
        with raises_naming(TypeError, "`ngram_sise`", "`ngram_size`"):
            load(source, ngram_sise=4)


def test_no_stock_field_is_taken_for_ours():
    """Configurations with all fields of their backbone can be created again from what they save."""
    for kind in KINDS.values():
        config = kind.ours.config_class(ngram_size=3, label_smoothing=0.1)
        assert type(config).from_dict(config.to_dict()).to_dict() == config.to_dict()
