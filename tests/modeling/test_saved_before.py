"""Checkpoints saved by version 0.1.0 load with the same weights, ensemble and drafts as then."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

import ngram_wdr_hf  # noqa: F401 (registers the classes)

FOLDER = Path(__file__).parents[1] / "fixtures" / "version_0_1_0"
AUTO_CLASSES = {
    "bert": AutoModelForMaskedLM,
    "gpt2": AutoModelForCausalLM,
    "marian": AutoModelForSeq2SeqLM,
    "olmo2": AutoModelForCausalLM,
}
IDS = torch.tensor([[3, 5, 7, 4, 5, 9], [2, 2, 8, 6, 10, 11]])


@pytest.mark.parametrize("name", AUTO_CLASSES)
@torch.no_grad()
def test_loaded_model_equals_version_0_1_0(name):
    expected = json.loads((FOLDER / name / "expected.json").read_text(encoding="utf-8"))
    model = AUTO_CLASSES[name].from_pretrained(FOLDER / name, dtype=torch.float64).eval()
    assert type(model).__module__.startswith("ngram_wdr_hf.") and len(model.ngram_heads) == 2
    labels = torch.where(torch.arange(6) % 2 == 0, IDS, -100) if name == "bert" else IDS
    text = {"decoder_input_ids": IDS} if name == "marian" else {}
    output = model(input_ids=IDS, labels=labels, **text)
    assert output.loss.item() == pytest.approx(expected["loss"], rel=1e-12)
    torch.testing.assert_close(output.head_losses.tolist(), expected["head_losses"], rtol=1e-12, atol=0)
    torch.testing.assert_close(output.logits[:, -1].tolist(), expected["logits"], rtol=1e-10, atol=1e-12)
    if name == "bert":
        return
    # Saved with λ = 0.3, which changes the logits.
    without = model(input_ids=IDS, ensemble_lambda=0.0, **text).logits
    assert (without - output.logits).abs().max() > 1e-2
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "num_beams": 1}
    for drafts, key in ((False, "generated_plain"), (True, "generated_drafts")):
        tokens = model.generate(IDS, attention_mask=torch.ones_like(IDS), use_mtp=drafts, **options)
        assert tokens.tolist() == expected[key]


def test_draft_tokens_are_kept():
    model = AutoModelForCausalLM.from_pretrained(FOLDER / "gpt2")
    assert model.draft_token_ids.tolist() == [5, 7, 3, 9, 2, 11] and model.config.draft_vocab_size == 6
