"""Checkpoints with heads loaded for other tasks, by the Auto classes: the stock model, without the heads."""

from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from ngram_wdr_hf import with_ngram_heads
from tests.support.checkpoints import assert_same_state
from tests.support.reformer import LAYERS
from tests.support.reformer import SIZES as REFORMER_SIZES
from tests.support.tiny import BERT_SIZES, LLAMA_SIZES, SIZES, T5_SIZES, TRANSLATION_SIZES

BACKBONES = {
    "GPT2LMHeadModel": {**SIZES, "id2label": dict.fromkeys(range(3), "")},
    "BartForConditionalGeneration": TRANSLATION_SIZES,
    "T5ForConditionalGeneration": T5_SIZES,
    "BertForMaskedLM": BERT_SIZES,
    "ReformerModelWithLMHead": {**REFORMER_SIZES, **LAYERS["local"], "is_decoder": True},
    # Created on demand.
    "Olmo2ForCausalLM": LLAMA_SIZES,
    "Qwen2ForCausalLM": {**LLAMA_SIZES, "tie_word_embeddings": True},
}
TASKS = [
    ("GPT2LMHeadModel", "AutoModel", "GPT2Model"),
    ("GPT2LMHeadModel", "AutoModelForSequenceClassification", "GPT2ForSequenceClassification"),
    ("BartForConditionalGeneration", "AutoModel", "BartModel"),
    ("BartForConditionalGeneration", "AutoModelForSequenceClassification", "BartForSequenceClassification"),
    ("BartForConditionalGeneration", "AutoModelForCausalLM", "BartForCausalLM"),
    ("T5ForConditionalGeneration", "AutoModel", "T5Model"),
    ("T5ForConditionalGeneration", "AutoModelForTextEncoding", "T5EncoderModel"),
    ("BertForMaskedLM", "AutoModel", "BertModel"),
    ("BertForMaskedLM", "AutoModelForPreTraining", "BertForPreTraining"),
    ("ReformerModelWithLMHead", "AutoModel", "ReformerModel"),
    ("Olmo2ForCausalLM", "AutoModel", "Olmo2Model"),
    ("Qwen2ForCausalLM", "AutoModelForSequenceClassification", "Qwen2ForSequenceClassification"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder of a plain checkpoint and of the same with heads, by the backbone's name."""

    @cache
    def save(name: str) -> tuple[Path, Path]:
        torch.manual_seed(0)
        backbone = getattr(transformers, name)
        plain = backbone(backbone.config_class(**BACKBONES[name]))
        folder = tmp_path_factory.mktemp(name)
        plain.save_pretrained(folder / "plain")
        fields = {} if name == "BertForMaskedLM" else {"ensemble_lambda": 0.4, "draft_vocab_size": 8}
        with_ngram_heads(plain, **fields).save_pretrained(folder / "ours")
        return folder / "plain", folder / "ours"

    return save


def load(auto_class: str, folder: Path, **options) -> tuple[PreTrainedModel, dict]:
    # For the weights that are new in both.
    torch.manual_seed(0)
    return getattr(transformers, auto_class).from_pretrained(folder, output_loading_info=True, **options)


@pytest.mark.parametrize(("backbone", "auto_class", "expected"), TASKS)
def test_stock_model_of_another_task(folders, transformers_log, backbone, auto_class, expected):
    plain, heads = folders(backbone)
    stock, stock_info = load(auto_class, plain)
    transformers_log.clear()
    model, info = load(auto_class, heads)
    assert type(model) is type(stock) is getattr(transformers, expected)
    assert_same_state(model, stock)
    assert info == stock_info
    lines = [record.getMessage() for record in transformers_log.records if "heads" in record.getMessage()]
    assert len(lines) == 1 and "\n" not in lines[0] and expected in lines[0]
    ours, theirs = (each.config.to_dict() for each in (model, stock))
    assert type(model.config) is type(stock.config)
    # The class that saved the checkpoint, and the folder.
    different = {"architectures": None, "_name_or_path": str(heads)}
    assert ours == {**theirs, **different}


def test_saved_as_a_stock_model(folders, tmp_path):
    _, heads = folders("GPT2LMHeadModel")
    model = load("AutoModelForSequenceClassification", heads, num_labels=5, dtype=torch.float64)[0]
    assert model.score.weight.shape == (5, 16) and model.dtype == torch.float64
    model.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.py"))
    assert_same_state(transformers.GPT2ForSequenceClassification.from_pretrained(tmp_path), model)


@pytest.mark.parametrize("auto_class", ["AutoModelForCausalLM", "AutoModelForPreTraining"])
def test_our_class_in_place_of_the_backbone(folders, auto_class):
    model, _ = load(auto_class, folders("GPT2LMHeadModel")[1])
    assert type(model).__name__ == "WDRNgramGPT2LMHeadModel"


def test_from_a_configuration(folders):
    """With fields that were changed, too."""
    for name, auto_class in product(BACKBONES, ("AutoModel", "AutoModelForSequenceClassification")):
        configs = [transformers.AutoConfig.from_pretrained(folder) for folder in folders(name)]
        for config in configs:
            # Accepted for one label only if it is set afterwards.
            config.num_labels, config.problem_type = 1, "single_label_classification"
        before = configs[1].to_dict()
        stock, model = (getattr(transformers, auto_class).from_config(config) for config in configs)
        assert type(model) is type(stock) and type(model.config) is type(stock.config)
        assert configs[1].to_dict() == before
