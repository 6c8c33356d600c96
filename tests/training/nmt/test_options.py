"""Options of `train_nmt.py` that depend on each other, and on the run that is evaluated."""

from dataclasses import fields

import pytest
import torch
import yaml
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.pair_batches import tokenize_pairs
from ngram_wdr_hf.data.pairs import PAIRS
from ngram_wdr_hf.data.tokenizers import train_sentence_tokenizer
from ngram_wdr_hf.training.clm.arguments import parse_clm_arguments
from ngram_wdr_hf.training.common.run import Run
from ngram_wdr_hf.training.common.settings import best_metric, check_together, comparison_runs, with_data_of_run
from ngram_wdr_hf.training.nmt.arguments import (
    NmtDataArguments,
    NmtModelArguments,
    NmtReportArguments,
    NmtTrainingArguments,
    parse_nmt_arguments,
)
from ngram_wdr_hf.training.nmt.data import find_nmt_tokenizer, load_pairs
from ngram_wdr_hf.training.nmt.model import build_nmt_model, set_search
from tests.support.errors import raises_naming
from tests.support.nmt_runs import SCRIPT
from tests.support.processes import run_python
from tests.support.tiny import tiny_seq2seq


def parse(*options: str):
    return parse_nmt_arguments([*options, "--report_to", "none"], "")


def test_given_options_override_the_run(tmp_path):
    settings = {"reverse": False, "source_prefix": "A: ", "validation_percentage": 7.0}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
    tiny_seq2seq("marian").config.save_pretrained(tmp_path)
    evaluation = ["--do_train", "false", "--model_name_or_path", str(tmp_path)]
    data = with_data_of_run(parse(*evaluation)).data
    assert (data.reverse, data.source_prefix, data.validation_percentage) == (False, "A: ", 7.0)
    data = with_data_of_run(parse(*evaluation, "--reverse", "--source_prefix", "B: ")).data
    assert (data.reverse, data.source_prefix, data.validation_percentage) == (True, "B: ", 7.0)


@pytest.mark.parametrize("metric", ["bleu", "chrf", "perplexity", "eval_next_word_loss"])
def test_metric_that_a_frozen_backbone_cannot_change(metric):
    frozen = ["--train_mode", "heads", "--model_name_or_path", "somewhere", "--metric_for_best_model"]
    with raises_naming(InputError, f"`--metric_for_best_model {metric.removeprefix('eval_')}`"):
        check_together(parse(*frozen, metric))
    arguments = parse(*frozen, "eval_loss")
    check_together(arguments)
    assert best_metric(arguments) == "heads_loss"


def test_accepted_drafts_need_frozen_models():
    arguments = parse("--train_mode", "heads", "--model_name_or_path", "somewhere", "--head_loss_tokens", "draft")
    check_together(arguments)
    assert best_metric(arguments) == "accepted_drafts"
    with raises_naming(InputError, "`--metric_for_best_model accepted_drafts`", "`--train_mode heads`"):
        check_together(parse("--metric_for_best_model", "accepted_drafts"))


def test_sharded_heads_are_chosen_by_their_loss(monkeypatch):
    """FSDP leaves no process with the whole output embedding, which drafts need."""
    frozen = ["--train_mode", "heads", "--model_name_or_path", "somewhere", "--head_loss_tokens", "draft"]
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    arguments = parse(*frozen)
    check_together(arguments)
    assert best_metric(arguments) == "heads_loss"
    assert not Run(arguments).trainer_options(tiny_seq2seq("marian"))["measures_acceptance"]
    with raises_naming(InputError, "`--metric_for_best_model accepted_drafts`", "FSDP"):
        check_together(parse(*frozen, "--metric_for_best_model", "accepted_drafts"))


@pytest.mark.parametrize("options", [["--ngram_target", "none"], ["--ngram_size", "1"], ["--compare"]])
def test_heads_loss_needs_heads(options):
    with raises_naming(InputError, "`--metric_for_best_model heads_loss`"):
        check_together(parse(*options, "--metric_for_best_model", "heads_loss"))


@pytest.mark.parametrize("parse_arguments", [parse_nmt_arguments, parse_clm_arguments])
@pytest.mark.parametrize(("metric", "is_large"), [("perplexity", False), ("best_perplexity", False), ("loss", False)])
def test_lower_perplexity_is_better(parse_arguments, metric, is_large):
    assert parse_arguments(["--metric_for_best_model", metric], "").training.greater_is_better is is_large


def test_bleu_is_not_a_metric_of_language_models():
    assert parse("--metric_for_best_model", "bleu").training.greater_is_better is True
    with raises_naming(InputError, "`--metric_for_best_model`", "'bleu'"):
        check_together(parse_clm_arguments(["--metric_for_best_model", "bleu", "--report_to", "none"], ""))


def test_one_beam_can_be_saved(tmp_path):
    model = tiny_seq2seq("bart")
    model.generation_config.early_stopping = True
    set_search(parse("--num_beams", "1", "--length_penalty", "0.6"), model)
    model.save_pretrained(tmp_path)
    assert model.generation_config.num_beams == 1
    set_search(parse(), model)
    assert model.generation_config.num_beams == 1
    set_search(parse("--num_beams", "4", "--length_penalty", "0.6"), model)
    assert (model.generation_config.num_beams, model.generation_config.length_penalty) == (4, 0.6)


def test_tokenizer_without_end_tokens(tmp_path):
    words = Tokenizer(models.WordLevel({"<unk>": 0, "<eos>": 1, "<pad>": 2, "a": 3}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(tmp_path)
    arguments = parse("--tokenizer", str(tmp_path))
    with raises_naming(InputError, "`--tokenizer", "end token"):
        find_nmt_tokenizer({}, arguments.data, arguments.model, None)


def test_truncation_does_not_change_the_tokenizer():
    tokenizer = train_sentence_tokenizer(["one two three four five"], 300)
    before = tokenizer.backend_tokenizer.to_str()
    rows = Dataset.from_dict({"source": ["one two three four five"], "target": ["one"]}, features=PAIRS)
    tokens = tokenize_pairs(rows, tokenizer, "train", longest=3)
    assert tokens["is_truncated"][:] == [True] and len(tokens["input_ids"][0]) == 3
    assert tokenizer.backend_tokenizer.to_str() == before
    assert torch.tensor(tokens["input_ids"][0])[-1] == tokenizer.eos_token_id


def test_comparison_runs(pairs):
    """For a model of each kind, the other three run in subfolders."""
    for kind, options in (
        ("plain", ["--ngram_target", "none"]),
        ("bow", ["--ngram_size", "1", "--bow_loss_weight", "1"]),
        ("simple", ["--ngram_target", "simple"]),
        ("wdr", []),
    ):
        arguments = parse_nmt_arguments([*pairs, *options, "--output_dir", "run", "--compare"], "")
        compared = comparison_runs(arguments)
        assert arguments.model.kind == kind
        assert [other.training.output_dir for other in compared] == [
            f"run/{name}" for name in ("plain", "bow", "simple", "wdr") if name != kind
        ]
        assert [f"run/{other.model.kind}" for other in compared] == [other.training.output_dir for other in compared]
        assert all(other.data == arguments.data for other in compared)


def test_settings_from_a_file(pair_files, tmp_path):
    path, (_, source, _, target) = tmp_path / "settings.yaml", pair_files["train"]
    options = {"preset": "paper-small", "train_source": source, "train_target": [target], "batch_tokens": 1000}
    path.write_text(yaml.safe_dump({**options, "learning_rate": "1e-3", "reverse": True, "lambda_grid": 0.4}))
    arguments = parse_nmt_arguments([str(path), "--batch_tokens", "500"], "")
    # Precedence: command line, file, preset. A single value becomes a list.
    assert arguments.data.batch_tokens == 500 and arguments.data.reverse
    assert arguments.training.learning_rate == 1e-3 and arguments.report.lambda_grid == [0.4]
    assert arguments.data.train_source == [source] and arguments.data.train_target == [target]
    assert arguments.data.max_length == 175 and arguments.report.patience == 50


@pytest.mark.parametrize(
    ("preset", "inner", "heads", "dropout", "rate", "batch_tokens", "ngram_size"),
    [("paper-small", 1024, 4, 0.3, 5e-4, 4096, 3), ("paper-base", 2048, 8, 0.1, 1e-3, 25_000, 2)],
)
def test_the_papers_settings(marian, preset, inner, heads, dropout, rate, batch_tokens, ngram_size):
    arguments = parse_nmt_arguments(["--preset", preset], "")
    tokenizer = AutoTokenizer.from_pretrained(marian)
    model = build_nmt_model(arguments.model, tokenizer)
    config, training = model.config, arguments.training
    assert (config.d_model, config.dropout, config.label_smoothing, config.ngram_size) == (
        *(512, dropout, 0.1),
        ngram_size,
    )
    for side in ("encoder", "decoder"):
        sizes = [getattr(config, f"{side}_{name}") for name in ("ffn_dim", "attention_heads", "layers")]
        assert sizes == [inner, heads, 6]
    assert (training.learning_rate, training.lr_scheduler_type) == (rate, "inverse_sqrt")
    assert arguments.data.batch_tokens == batch_tokens
    # Encoder, decoder and output share one embedding.
    attention, forward, norm = 4 * (512**2 + 512), 2 * 512 * inner + 512 + inner, 2 * 512
    encoder, decoder = attention + forward + 2 * norm, 2 * attention + forward + 3 * norm
    expected = 6 * (encoder + decoder) + len(tokenizer) * 512
    heads_of_ours = sum(parameter.numel() for parameter in model.ngram_heads.parameters())
    learned = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert learned - heads_of_ours == expected
    vocabulary = arguments.model.presets[preset].subword_vocab_size
    millions = (expected + (vocabulary - len(tokenizer)) * 512) / 1e6
    assert round(millions, 1) == {"paper-small": 36.7, "paper-base": 60.5}[preset]


def test_help_names_every_option():
    shown = run_python(str(SCRIPT), "--help_all", is_warm=True, is_silent=True, COLUMNS="200")
    for group in (NmtDataArguments, NmtModelArguments, NmtReportArguments, NmtTrainingArguments):
        for option in fields(group):
            assert f"--{option.name}" in shown
    assert "ngram-wdr nmt --compare" in shown
    for name in ("tiny", "paper-small", "paper-base"):
        assert f"`{name}`: " in shown


def test_default_arguments(tmp_path, monkeypatch):
    """The defaults are the built-in pairs, the small preset and its folder."""
    monkeypatch.chdir(tmp_path)
    arguments = parse_nmt_arguments([], "")
    assert arguments.model.preset == "tiny" and arguments.training.output_dir == "runs/nmt"
    assert arguments.training.do_train and arguments.model.kind == "wdr" and not arguments.data.is_given()
    told = []
    splits = load_pairs(arguments.data, True, told.append)
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 12_000, "validation": 300, "test": 500}
    assert not told
    reverse = load_pairs(parse_nmt_arguments(["--reverse"], "").data, True, told.append)
    assert reverse["test"]["source"][:] == splits["test"]["target"][:]
    english = {word for sentence in splits["test"]["source"] for word in sentence.lower().split()}
    german = {word for sentence in splits["test"]["target"] for word in sentence.lower().split()}
    assert {"and", "or", "ago"} <= english and {"und", "oder", "vor"} <= german
    assert not {"and", "or", "ago"} & german and not list(tmp_path.iterdir())
