"""Presets of masked language models."""

import pytest

from ngram_wdr_hf.training.mlm.arguments import MlmModelArguments
from ngram_wdr_hf.training.mlm.model import MASKED_MODELS
from ngram_wdr_hf.training.mlm.presets import MLM_PRESETS


@pytest.mark.parametrize("preset", [name for name, preset in MLM_PRESETS.items() if preset.backbone == "modernbert"])
@pytest.mark.parametrize("num_layers", [None, 1, 6])
def test_every_layer_sees_the_whole_text(preset, num_layers):
    overrides = None if num_layers is None else [f"num_hidden_layers={num_layers}"]
    fields = MlmModelArguments(preset=preset, config_overrides=overrides).new_config
    config = MASKED_MODELS["modernbert"].config_class(**fields)
    assert config.layer_types == ["full_attention"] * (num_layers or MLM_PRESETS[preset].config["num_hidden_layers"])
