"""Drafts in the scripts: `--use_mtp`, `--draft_vocab_size`, and the default in the generation config."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, GPT2LMHeadModel

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.tokenizers import end_token_id
from tests.support import clm_runs, nmt_runs
from tests.support.errors import raises_naming


def test_samples(files, tmp_path, capsys):
    folder = str(tmp_path / "run")
    (result,) = clm_runs.run(*files, "--output_dir", folder, *clm_runs.QUICK, "--use_mtp", "--draft_vocab_size", "9")
    labels = list(result.samples)
    weights = "weights " + " ".join(f"{weight:.2f}" for weight in result.fit.weights)
    assert [label.split(",")[0] for label in labels] == ["λ=0", weights]
    for label in labels:
        assert float(re.search(r"([\d.]+) tokens per forward pass", label)[1]) >= 1
        assert label in capsys.readouterr().out or label in (tmp_path / "run" / "README.md").read_text()
    # A second evaluation gives the same text; without drafts, the label has no statistics.
    (again,) = clm_runs.run("--do_train", "false", "--model_name_or_path", folder, "--use_mtp", "--sample_tokens", "8")
    assert again.samples == result.samples
    (plain,) = clm_runs.run("--do_train", "false", "--model_name_or_path", folder, "--sample_tokens", "8")
    assert list(plain.samples) == ["λ=0", weights]


def test_the_most_frequent_tokens_are_drafted(files, texts, tmp_path):
    folder = str(tmp_path / "run")
    clm_runs.run(*files, "--output_dir", folder, *clm_runs.QUICK, "--draft_vocab_size", "9")
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.draft_vocab_size == 9
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lines = Path(texts["train"]).read_text(encoding="utf-8").splitlines()
    counts = Counter(token for line in lines for token in tokenizer(line).input_ids)
    # Count the tokens of the text.
    counts[end_token_id(tokenizer)] = len(lines)
    drafted = model.draft_token_ids.tolist()
    assert len(set(drafted)) == 9
    assert min(counts[token] for token in drafted) >= max(
        count for token, count in counts.items() if token not in drafted
    )
    # In evaluation, a smaller size keeps the most frequent of these.
    (result,) = clm_runs.run(
        *("--do_train", "false", "--model_name_or_path", folder, "--use_mtp"),
        *("--draft_vocab_size", "3", "--sample_tokens", "8"),
    )
    assert len(result.samples) == 2


def test_translation(finished_nmt, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sentences = [source for source, _ in nmt_runs.toy_pairs(30, seed=5)]
    Path("text.en").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    command = ["--do_train", "false", "--model_name_or_path", str(finished_nmt.folder), "--translate", "text.en"]
    nmt_runs.run(*command, "--num_beams", "1")
    greedy = capsys.readouterr().out
    calls = []
    model_class = type(AutoModelForSeq2SeqLM.from_pretrained(finished_nmt.folder))
    generate = model_class.generate

    def watched(self, *args, **kwargs):
        calls.append(kwargs["use_mtp"])
        return generate(self, *args, **kwargs)

    monkeypatch.setattr(model_class, "generate", watched)
    nmt_runs.run(*command, "--num_beams", "1", "--use_mtp")
    assert capsys.readouterr().out == greedy and len(set(greedy.split("\n"))) > 5
    assert calls and all(calls)
    with raises_naming(InputError, "`--use_mtp`", "`--num_beams 1`"):
        nmt_runs.run(*command, "--use_mtp")


def test_the_most_frequent_target_tokens_are_drafted(marian, pairs, tmp_path):
    folder = tmp_path / "run"
    nmt_runs.run(
        *("--model_name_or_path", marian, *pairs, "--output_dir", str(folder), *nmt_runs.QUICK),
        *("--draft_vocab_size", "12", "--num_beams", "1", "--use_mtp"),
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    targets = [target for _, target in nmt_runs.toy_pairs(nmt_runs.NUM_PAIRS["train"], seed=0)]
    counts = Counter(token for target in targets for token in tokenizer(text_target=target).input_ids)
    expected = torch.tensor([count for _, count in counts.most_common(12)])
    assert torch.equal(torch.tensor([counts[token] for token in model.draft_token_ids.tolist()]), expected)


def saved_options(folder: Path) -> dict:
    return json.loads((folder / "generation_config.json").read_text())


def test_drafts_are_the_default_of_heads_for_drafts(checkpoint, files, tmp_path):
    """Also if the command is repeated. A training of all weights without that loss is not for drafts."""
    folder = tmp_path / "run"
    command = ["--model_name_or_path", checkpoint, *files, *clm_runs.QUICK, "--output_dir", str(folder)]
    for _ in range(2):
        clm_runs.run(*command, "--train_mode", "heads", "--ngram_size", "2", "--head_loss_tokens", "draft")
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert model.generation_config.use_mtp is True
        # The stock class is not told to draft.
        assert "use_mtp" not in saved_options(folder)
        inputs = AutoTokenizer.from_pretrained(folder)("the cat sees", return_tensors="pt")
        GPT2LMHeadModel.from_pretrained(folder).generate(**inputs, max_new_tokens=3)
    clm_runs.run(
        *("--model_name_or_path", str(folder), *files, *clm_runs.QUICK, "--output_dir", str(tmp_path / "all")),
        *("--head_loss_tokens", "all"),
    )
    assert not AutoModelForCausalLM.from_pretrained(tmp_path / "all").generation_config.use_mtp


def test_default_of_a_translation_model(marian, pairs, tmp_path):
    for loss in ("draft", "all"):
        folder = tmp_path / loss
        nmt_runs.run(
            *("--model_name_or_path", marian, *pairs, *nmt_runs.QUICK, "--output_dir", str(folder)),
            *("--train_mode", "heads", "--num_beams", "1", "--head_loss_tokens", loss),
        )
        model = AutoModelForSeq2SeqLM.from_pretrained(folder)
        assert bool(model.generation_config.use_mtp) == (loss == "draft")
        assert "use_mtp" not in saved_options(folder)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--use_mtp", "--ngram_size", "1"], "`--use_mtp`"),
        (["--use_mtp", "--ngram_target", "none"], "`--use_mtp`"),
        (["--draft_vocab_size", "0"], "`--draft_vocab_size`"),
        (["--draft_vocab_size", "100000"], "100000"),
    ],
)
def test_bad_options(files, tmp_path, options, name):
    with raises_naming(InputError, name):
        clm_runs.run(*files, "--output_dir", str(tmp_path / "run"), *clm_runs.QUICK, *options)
