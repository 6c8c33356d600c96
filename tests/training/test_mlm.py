"""`ngram-wdr mlm`, from its arguments to what it leaves."""

import ast
import math
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from ngram_wdr_hf.data.masking import MaskedText, Masking
from tests.support import scripts
from tests.support.scripts import EVALUATE, card_code, metrics_of
from tests.support.texts import stream_of
from tests.support.tiny import make_stock

QUICK = scripts.QUICK["mlm"]
run = partial(scripts.run, "mlm")


def test_run_and_its_files(finished, capsys):
    _, folder, _, printed = finished("mlm")
    metrics, card = metrics_of(folder), (folder / "README.md").read_text()
    assert metrics["model"] == "wdr N=3" and metrics["ensemble_lambda"] is None
    for split in ("validation", "test"):
        figures = metrics["splits"][split]
        row = rf"wdr N=3 +{split} +{figures['num_masked']:,} +{figures['perplexity']:.2f} +{figures['accuracy']:.2%}"
        assert len(re.findall(row, printed)) == 1 and f"{figures['perplexity']:.2f}" in card
    # An untrained model's perplexity is about the vocabulary size.
    validation = metrics["splits"]["validation"]
    assert validation["perplexity"] < 50 and validation["accuracy"] > 0.1
    logged = [entry for entry in metrics["history"] if {"loss", "masked_word_loss", "head_2_loss"} <= entry.keys()]
    assert len(logged) == 240 and logged[-1]["head_2_loss"] < logged[0]["head_2_loss"]
    exec(card_code(folder), {})
    assert len(ast.literal_eval(capsys.readouterr().out)) == 5
    # Like CrammedBERT, only the heads have biases.
    parameters = AutoModelForMaskedLM.from_pretrained(folder).named_parameters()
    assert all("ngram_heads" in name for name, _ in parameters if name.endswith("bias"))


@torch.no_grad()
def test_scores_are_those_of_the_masked_words(finished, texts):
    _, folder, result, _ = finished("mlm")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    lines = Path(texts["test"]).read_text().splitlines()
    ids = [token for line in lines for token in tokenizer(line, add_special_tokens=False).input_ids]
    nll, correct, counts, heads = 0.0, 0, torch.zeros(3), torch.zeros(3)
    for block in MaskedText(stream_of(ids), 16, Masking(tokenizer, probability=0.25)):
        block = {name: ids[None] for name, ids in block.items()}
        output, labels = model(**block), block.pop("labels")[0]
        logits = model(**block).logits[0]
        for place in (labels != -100).nonzero()[:, 0].tolist():
            nll -= float(logits[place].log_softmax(-1)[labels[place]])
            correct += int(logits[place].argmax() == labels[place])
        counts += output.head_counts
        heads += output.head_losses * output.head_counts
    figures = result.splits["test"]
    assert figures["num_masked"] == counts[0] > 10 and figures["head_counts"] == counts.tolist()
    assert figures["perplexity"] == pytest.approx(math.exp(nll / counts[0]), rel=1e-4)
    assert figures["accuracy"] == pytest.approx(correct / counts[0].item())
    names = ("masked_word_loss", "head_1_loss", "head_2_loss")
    assert [figures[name] for name in names] == pytest.approx((heads / counts).tolist(), rel=1e-4)


def test_heads_of_a_plain_checkpoint(finished, files, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(finished("mlm").folder)
    plain = make_stock("bert", vocab_size=len(tokenizer))
    for part in (tokenizer, plain):
        part.save_pretrained(tmp_path / "plain")
    options = ["--model_name_or_path", tmp_path / "plain", "--train_mode", "heads"]
    run(*files, *QUICK, *options, "--output_dir", tmp_path / "run")
    weights = AutoModelForMaskedLM.from_pretrained(tmp_path / "run").state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in plain.state_dict().items())
    assert weights["ngram_heads.1.fc_out.weight"].any()


def test_heads_without_targets_have_no_loss(files, tmp_path):
    """With three masked words per block, there are never four in a row. The text is streamed."""
    options = ["--wdr_compose", "masked", "--mlm_probability", "0.2", "--ngram_size", "4", "--streaming", "true"]
    result = run(*files, *QUICK, *options, "--output_dir", tmp_path, "--metric_for_best_model", "heads_loss")
    figures = metrics_of(tmp_path)["splits"]["validation"]
    assert figures["head_counts"][3] == 0 < figures["masked_word_loss"] and figures["head_3_loss"] is None
    evaluations = [entry for entry in result.history if "eval_loss" in entry]
    assert len(evaluations) == 2 and not any("eval_head_3_loss" in entry for entry in evaluations)
    for entry in evaluations:
        heads = [value for name, value in entry.items() if name.startswith("eval_head_")]
        assert entry["eval_heads_loss"] == pytest.approx(sum(heads) / len(heads))
    assert all(value > 0 for entry in result.history for name, value in entry.items() if name.startswith("head_"))


def test_evaluation_with_other_masks(files, tmp_path):
    """Evaluation masks as in training, unless options say otherwise."""
    run(*files, *QUICK, "--masking", "span", "--mlm_probability", "0.3", "--output_dir", tmp_path)
    again = [*EVALUATE, tmp_path, *files[-2:]]
    changes = ("", "--masking span --mlm_probability 0.3", "--masking token", "--mlm_probability 0.15")
    trained, same, tokens, fewer = (run(*again, *options.split()).splits["test"] for options in changes)
    assert trained == same
    assert tokens["num_masked"] == trained["num_masked"] and tokens["perplexity"] != trained["perplexity"]
    assert fewer["num_masked"] < 0.6 * trained["num_masked"]
