"""Checkpoints saved by earlier versions load with the same weights, ensemble, beams and drafts as then."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

import ngram_wdr_hf  # noqa: F401 (registers the classes)

FIXTURES = Path(__file__).parents[1] / "fixtures"
AUTO_CLASSES = {"bert": AutoModelForMaskedLM, "marian": AutoModelForSeq2SeqLM}
FOLDERS = sorted(f"{path.parents[1].name}/{path.parent.name}" for path in FIXTURES.glob("version_*/*/config.json"))
IDS = torch.tensor([[3, 5, 7, 4, 5, 9], [2, 2, 8, 6, 10, 11]])
DECODINGS = {
    "generated_plain": {"use_mtp": False},
    "generated_drafts": {"use_mtp": True},
    "beams": {"use_mtp": False, "num_beams": 3},
}


def load(folder: str):
    auto_class = AUTO_CLASSES.get(folder.split("/")[1], AutoModelForCausalLM)
    return auto_class.from_pretrained(FIXTURES / folder, dtype=torch.float64).eval()


@pytest.mark.parametrize("folder", FOLDERS)
@torch.no_grad()
def test_loaded_model_equals_that_of_then(folder):
    expected = json.loads((FIXTURES / folder / "expected.json").read_text(encoding="utf-8"))
    model = load(folder)
    assert type(model).__module__.startswith("ngram_wdr_hf.") and len(model.ngram_heads) == 2
    is_masked = folder.endswith("bert")
    labels = torch.where(torch.arange(6) % 2 == 0, IDS, -100) if is_masked else IDS
    text = {"decoder_input_ids": IDS} if model.config.is_encoder_decoder else {}
    output = model(input_ids=IDS, labels=labels, **text)
    assert output.loss.item() == pytest.approx(expected["loss"], rel=1e-12)
    torch.testing.assert_close(output.head_losses.tolist(), expected["head_losses"], rtol=1e-12, atol=0)
    torch.testing.assert_close(output.logits[:, -1].tolist(), expected["logits"], rtol=1e-10, atol=1e-12)
    if is_masked:
        return
    # Saved with λ = 0.3 or with weights, which changes the logits.
    without = model(input_ids=IDS, ensemble_lambda=0.0, **text).logits
    assert (without - output.logits).abs().max() > 1e-2
    decodings = [name for name in DECODINGS if name in expected]
    assert len(decodings) == (2 if folder.startswith("version_0_1_0") else 3)
    for name in decodings:
        options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "num_beams": 1, **DECODINGS[name]}
        assert model.generate(IDS, attention_mask=torch.ones_like(IDS), **options).tolist() == expected[name]


def test_draft_tokens_and_weights_are_kept():
    for folder in ("version_0_1_0/gpt2", "version_0_2_0/gpt2_reads_tokens"):
        model = load(folder)
        assert model.draft_token_ids.tolist() == [5, 7, 3, 9, 2, 11] and model.config.draft_vocab_size == 6
    assert load("version_0_2_0/gpt2").config.ensemble_weights == [0.7, 0.4, -0.1] and len(FOLDERS) == 9
