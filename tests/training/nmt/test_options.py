"""Options of `train_nmt.py` that depend on each other, and on the run that is evaluated."""

import pytest
import torch
import yaml
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.pair_batches import tokenize_pairs
from ngram_wdr_hf.data.pairs import PAIRS
from ngram_wdr_hf.data.tokenizer import train_sentence_tokenizer
from ngram_wdr_hf.training.clm.arguments import parse_clm_arguments
from ngram_wdr_hf.training.common.settings import check_together, with_data_of_run
from ngram_wdr_hf.training.nmt.arguments import parse_nmt_arguments
from ngram_wdr_hf.training.nmt.data import find_nmt_tokenizer
from ngram_wdr_hf.training.nmt.run import _set_search

from tests.support.tiny import tiny_seq2seq


def parse(*options: str):
    return parse_nmt_arguments([*options, "--report_to", "none"], "")


def test_what_is_asked_for_stands(tmp_path):
    settings = {"reverse": False, "source_prefix": "A: ", "validation_percentage": 7.0}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
    evaluation = ["--do_train", "false", "--model_name_or_path", str(tmp_path)]
    data = with_data_of_run(parse(*evaluation)).data
    assert (data.reverse, data.source_prefix, data.validation_percentage) == (False, "A: ", 7.0)
    data = with_data_of_run(parse(*evaluation, "--reverse", "--source_prefix", "B: ")).data
    assert (data.reverse, data.source_prefix, data.validation_percentage) == (True, "B: ", 7.0)


@pytest.mark.parametrize("metric", ["bleu", "chrf", "perplexity", "eval_next_word_loss"])
def test_a_frozen_backbone_is_not_judged_by_what_it_says(metric):
    frozen = ["--train_mode", "heads", "--model_name_or_path", "somewhere", "--metric_for_best_model"]
    with pytest.raises(InputError, match=r"With a frozen backbone .* never changes"):
        check_together(parse(*frozen, metric))
    arguments = parse(*frozen, "eval_loss")
    check_together(arguments)
    assert arguments.training.metric_for_best_model == "heads_loss"


@pytest.mark.parametrize("options", [["--ngram_target", "none"], ["--ngram_size", "1"], ["--compare"]])
def test_heads_loss_needs_heads(options):
    with pytest.raises(InputError, match="needs heads in every model"):
        check_together(parse(*options, "--metric_for_best_model", "heads_loss"))


@pytest.mark.parametrize("parse_arguments", [parse_nmt_arguments, parse_clm_arguments])
@pytest.mark.parametrize(("metric", "is_large"), [("perplexity", False), ("best_perplexity", False), ("loss", False)])
def test_the_best_perplexity_is_the_smallest(parse_arguments, metric, is_large):
    assert parse_arguments(["--metric_for_best_model", metric], "").training.greater_is_better is is_large


def test_bleu_is_no_metric_of_a_language_model():
    assert parse("--metric_for_best_model", "bleu").training.greater_is_better is True
    with pytest.raises(InputError, match=r"`--metric_for_best_model` must be one of loss, .*got 'bleu'"):
        check_together(parse_clm_arguments(["--metric_for_best_model", "bleu", "--report_to", "none"], ""))


def test_one_beam_can_be_saved(tmp_path):
    model = tiny_seq2seq("bart")
    model.generation_config.early_stopping = True
    _set_search(parse("--num_beams", "1", "--length_penalty", "0.6"), model)
    model.save_pretrained(tmp_path)
    assert model.generation_config.num_beams == 1
    _set_search(parse(), model)
    assert model.generation_config.num_beams == 1
    _set_search(parse("--num_beams", "4", "--length_penalty", "0.6"), model)
    assert (model.generation_config.num_beams, model.generation_config.length_penalty) == (4, 0.6)


def test_a_tokenizer_that_does_not_end_sentences(tmp_path):
    words = Tokenizer(models.WordLevel({"<unk>": 0, "<eos>": 1, "<pad>": 2, "a": 3}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(tmp_path)
    arguments = parse("--tokenizer", str(tmp_path))
    with pytest.raises(InputError, match="does not end a sentence"):
        find_nmt_tokenizer({}, arguments.data, arguments.model, None)


def test_cutting_does_not_change_the_tokenizer():
    tokenizer = train_sentence_tokenizer(["one two three four five"], 300)
    before = tokenizer.backend_tokenizer.to_str()
    rows = Dataset.from_dict({"source": ["one two three four five"], "target": ["one"]}, features=PAIRS)
    tokens = tokenize_pairs(rows, tokenizer, "train", longest=3)
    assert tokens["is_truncated"][:] == [True] and len(tokens["input_ids"][0]) == 3
    assert tokenizer.backend_tokenizer.to_str() == before
    assert torch.tensor(tokens["input_ids"][0])[-1] == tokenizer.eos_token_id
