"""Each mistake gets one clear sentence, where the user stands."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from ngram_wdr_hf import NgramEnsembleLogitsProcessor, WDRNgramConfig, WDRNgramGPT2LMHeadModel
from tests.support.tiny import SIZES, VOCAB_SIZE, plain_model, random_ids, tiny_model


@pytest.mark.parametrize("size", [0, -1, 2.0, "4", None, True])
def test_ngram_size(size):
    with pytest.raises(ValueError, match=r"`ngram_size` must be an integer of at least 1 .*, got"):
        WDRNgramConfig(ngram_size=size)


@pytest.mark.parametrize("name", ["ensemble_lambda", "label_smoothing"])
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "0.4", None, True])
def test_fractions(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be a number from 0 to 1, got"):
        WDRNgramConfig(**{name: value})


def test_unknown_target_and_activation():
    with pytest.raises(ValueError, match="`ngram_target` must be one of wdr, simple, got 'difference'"):
        WDRNgramConfig(ngram_target="difference")
    with pytest.raises(ValueError, match="`ngram_head_activation` must be the name of a Transformers activation"):
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
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path, **{name: value})


def test_label_smoothing_set_later():
    model, ids = tiny_model().train(), random_ids(1, 5)
    model.config.label_smoothing = 5
    with pytest.raises(ValueError, match="`label_smoothing` must be a number from 0 to 1, got 5"):
        model(ids, labels=ids)


def test_adapter_on_the_output_embedding():
    model = get_peft_model(tiny_model().train(), LoraConfig(target_modules=["c_attn", "lm_head"], fan_in_fan_out=True))
    with pytest.raises(ValueError, match="cannot see an adapter"):
        model(input_ids=random_ids(1, 5), labels=random_ids(1, 5))


@pytest.mark.parametrize("value", [-0.1, 2, "much"])
def test_lambda_of_a_call(value):
    model, ids = tiny_model(), random_ids(1, 5)
    message = "`ensemble_lambda` must be a number from 0 to 1, got"
    with pytest.raises(ValueError, match=message):
        model(ids, ensemble_lambda=value)
    with pytest.raises(ValueError, match=message):
        model.generate(ids, ensemble_lambda=value, max_new_tokens=2)
    with pytest.raises(ValueError, match=message):
        NgramEnsembleLogitsProcessor(model, value)
    with pytest.raises(ValueError, match=message):
        model(ids, labels=ids, ensemble_lambda=[0.1, value])


def test_several_lambdas_are_for_evaluation():
    model, ids = tiny_model(), random_ids(1, 5)
    message = "Several values of `ensemble_lambda` at once are for evaluation mode, with `labels`"
    for call in (
        lambda: model(ids, ensemble_lambda=[0.0, 0.1]),
        lambda: model(ids, labels=ids, ensemble_lambda=[]),
        lambda: model.train()(ids, labels=ids, ensemble_lambda=[0.0, 0.1]),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("training", [True, False])
def test_labels_of_another_shape(training):
    model, ids = tiny_model().train(training), random_ids(2, 5)
    for labels in (ids[:, :4], ids[:1], ids[0]):
        with pytest.raises(ValueError, match=r"`labels` must have the shape of the tokens they label, \(2, 5\), got"):
            model(ids, labels=labels)
    with pytest.raises(ValueError, match="`labels` must have the shape"):
        model(ids, shift_labels=ids[:, 1:])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("token", [VOCAB_SIZE, VOCAB_SIZE + 100, -1, -100])
def test_tokens_outside_the_vocabulary(token, training):
    model, ids = tiny_model().train(training), random_ids(2, 5)
    wrong = ids.clone()
    wrong[1, 3] = token
    with pytest.raises(ValueError, match=f"`input_ids` must lie in the vocabulary of {VOCAB_SIZE} tokens"):
        model(wrong, labels=ids)
    if token != -100:
        with pytest.raises(ValueError, match=f"`labels` must lie in the vocabulary of {VOCAB_SIZE} tokens"):
            model(ids, labels=wrong)


def test_tokens_outside_the_vocabulary_in_generate():
    with pytest.raises(ValueError, match="`input_ids` must lie in the vocabulary"):
        tiny_model().generate(torch.tensor([[3, VOCAB_SIZE]]), max_new_tokens=2)


@pytest.mark.parametrize("model", [plain_model, lambda: tiny_model(ngram_size=1)], ids=["stock", "N = 1"])
def test_processor_for_a_model_without_heads(model):
    with pytest.raises(ValueError, match="needs a model with N-gram heads"):
        NgramEnsembleLogitsProcessor(model(), 0.4)


def test_processor_misused():
    model, other, ids = tiny_model(), tiny_model(seed=1), random_ids(1, 5)
    processor = NgramEnsembleLogitsProcessor(model, 0.4)
    with pytest.raises(ValueError, match="made for another model"):
        other.generate(ids, logits_processor=[processor], max_new_tokens=2)
    with pytest.raises(ValueError, match="one is enough"):
        model.generate(ids, logits_processor=[processor, processor], max_new_tokens=2)
    with pytest.raises(ValueError, match="asked for twice"):
        model.generate(ids, logits_processor=[processor], ensemble_lambda=0.2, max_new_tokens=2)


def test_embeddings_without_ids():
    """WDR needs to know the words in between, and so does the ensemble; simple heads learn without."""
    ids = random_ids(2, 6)
    message = "pass `input_ids` instead of `inputs_embeds`"
    for options in ({"ngram_target": "wdr"}, {"ngram_target": "simple", "ensemble_lambda": 0.4}):
        model = tiny_model(**options)
        with pytest.raises(ValueError, match=message):
            model(inputs_embeds=model.transformer.wte(ids), labels=ids)
    model = tiny_model().train()
    with pytest.raises(ValueError, match=message):
        model(inputs_embeds=model.transformer.wte(ids), labels=ids)
    model = tiny_model(ngram_target="simple").train()
    by_embeddings = model(inputs_embeds=model.transformer.wte(ids), attention_mask=torch.ones_like(ids), labels=ids)
    torch.testing.assert_close(by_embeddings.loss, model(ids, labels=ids).loss)


def test_no_input():
    with pytest.raises(ValueError, match="Pass either `input_ids` or `inputs_embeds`"):
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
