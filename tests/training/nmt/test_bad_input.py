"""Bad input of `train_nmt.py` gives a one-line message and exit code 2, and nothing is overwritten."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from ngram_wdr_hf.data.tokenizers import train_bpe_tokenizer, train_sentence_tokenizer
from tests.support.errors import assert_names
from tests.support.nmt_runs import QUICK, SCRIPT, toy_pairs, write_sides
from tests.support.scripts import cut_in_half, failing
from tests.support.tiny import plain_model, plain_seq2seq


@pytest.fixture
def fails(capsys, monkeypatch, tmp_path):
    """Run the script as from the shell, and return its error message."""
    fail = failing(SCRIPT, tmp_path, monkeypatch, capsys)

    def call(*arguments: str) -> str:
        message = fail(*arguments)
        assert message.startswith("error: ") and message.endswith((".", "?"))
        return message

    return call


def test_files(fails, pair_files, pairs, tmp_path):
    (_, source, _, target) = pair_files["train"]
    message = fails("--train_source", source, "--train_target", "nowhere.de")
    assert_names(message, "nowhere.de")
    Path("short.de").write_text("eins\nzwei\n")
    message = fails("--train_source", source, "--train_target", "short.de")
    assert_names(message, source, "200", "short.de", "2")
    message = fails("--train_source", source)
    assert_names(message, "`--train_target`")
    message = fails("--train_target", target)
    assert_names(message, "`--train_target`", "`--train_source`")
    message = fails(*pair_files["train"], *pair_files["validation"][:2])
    assert_names(message, "`--validation_target`")
    assert_names(fails(*pair_files["test"]), "`--train_source`", "`--do_train false`")
    Path("latin.de").write_bytes("hört\n".encode("latin-1") * 200)
    assert_names(fails("--train_source", source, "--train_target", "latin.de"), "latin.de", "UTF-8")
    Path("zero.en").touch()
    assert_names(fails("--train_source", "zero.en", "--train_target", "zero.en"), "zero.en")
    Path("blank.en").write_text("\n \n\n")
    message = fails("--train_source", "blank.en", "--train_target", "blank.en")
    assert_names(message, "train")
    one = write_sides(tmp_path, "train", toy_pairs(1, 0))
    assert_names(fails(*one), "2.0")
    message = fails(*pairs[:-2], "--reverse", *QUICK)
    assert_names(message, "test", "target")


def test_json_lines(fails, pairs):
    Path("pairs.jsonl").write_text(json.dumps({"en": "a", "de": "b"}) + "\n", encoding="utf-8")
    languages = ["--source_lang", "en", "--target_lang"]
    message = fails("--train_file", "pairs.jsonl", *languages, "fr")
    assert_names(message, "`fr`", "`--target_lang`")
    assert_names(fails("--train_file", "pairs.jsonl"), "en, de", "`--source_lang`")
    assert_names(fails("--train_file", "none.jsonl", *languages, "de"), "none.jsonl")
    message = fails("--train_file", "pairs.jsonl", *pairs)
    assert_names(message, "`--dataset_name`", "`--train_file`")
    assert_names(fails("--dataset_name", "wmt14", *pairs), "`--dataset_name`", "`--train_file`")
    Path("broken.jsonl").write_text('{"en": "a", "de": \n', encoding="utf-8")
    assert_names(fails("--train_file", "broken.jsonl", *languages, "de"), "broken.jsonl")


def test_no_pair_left(fails, pairs):
    assert_names(fails(*pairs, *QUICK, "--max_length", "2"), "`--max_length`")
    message = fails(*pairs, *QUICK, "--ngram_size", "40")
    assert_names(message, "`--ngram_size 40`", "target")


def test_translate(fails, finished_nmt):
    Path("text.en").write_text("the cat .\n")
    trained_model = ["--model_name_or_path", str(finished_nmt.folder)]
    assert_names(fails("--translate", "text.en"), "`--translate`", "`--do_train false")
    assert_names(fails("--translate", "text.en", *trained_model), "`--translate`", "`--do_train false")
    alone = ["--do_train", "false", *trained_model]
    assert_names(fails("--translate", "none.en", *alone), "none.en")
    assert_names(fails("--translate_to", "text.de", *alone), "`--translate_to`")
    message = fails("--translate", "text.en", "--do_train", "false")
    assert_names(message, "`--do_train false`", "`--model_name_or_path`")
    Path("latin.en").write_bytes("café\n".encode("latin-1"))
    assert_names(fails("--translate", "latin.en", *alone), "latin.en", "UTF-8")
    # Checked before translating.
    assert_names(
        fails("--translate", "text.en", "--translate_to", "none/text.de", *alone), "`--translate_to none/text.de`"
    )


def test_output_folder_in_use(fails, finished_nmt, tmp_path):
    shutil.copytree(finished_nmt.folder, tmp_path / "run")
    command = [*finished_nmt.command, "--output_dir", "run"]
    message = fails(*command, "--ngram_size", "2")
    assert_names(message, "`--output_dir run`", "ngram_size", "3", "2")
    message = fails(*command, "--reverse")
    assert_names(message, "reverse", "False", "True")
    Path("thesis").mkdir()
    Path("thesis/chapter1.tex").write_text("...")
    assert_names(fails(*command, "--output_dir", "thesis"), "`--output_dir thesis`")
    assert_names(fails(*command, "--output_dir", write_text()), "`--output_dir text`")
    Path("run/tokenizer.json").write_text("{")
    assert_names(fails(*command), "tokenizer", "run")


def write_text() -> str:
    Path("text").write_text("...")
    return "text"


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt"])
def test_damaged_checkpoint(fails, finished_nmt, tmp_path, name):
    shutil.copytree(finished_nmt.folder, tmp_path / "run")
    # An interrupted run with a truncated last checkpoint.
    Path("run/trainer_state.json").unlink()
    cut_in_half(Path("run/checkpoint-150") / name)
    message = fails(*finished_nmt.command, "--output_dir", "run")
    assert_names(message, "checkpoint-150", "damaged")


def test_models(fails, finished_nmt, marian, pairs, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(marian)
    plain_model(vocab_size=len(tokenizer)).save_pretrained(tmp_path / "gpt2")
    tokenizer.save_pretrained(tmp_path / "gpt2")
    message = fails("--model_name_or_path", "gpt2", *pairs, *QUICK)
    assert_names(message, "gpt2", "ngram-wdr nmt")
    message = fails("--model_name_or_path", "gpt2", "--do_train", "false", *pairs)
    assert_names(message, "gpt2")
    # The run of another task, whose data options have the same names.
    Path("gpt2", "run.yaml").write_text("train_file: [text.en]\n")
    message = fails("--model_name_or_path", "gpt2", "--do_train", "false")
    assert_names(message, "gpt2", "wrong kind of model", "ngram-wdr nmt")
    shutil.copytree(marian, tmp_path / "damaged")
    cut_in_half(tmp_path / "damaged" / "model.safetensors")
    for options in ([*pairs, *QUICK], ["--do_train", "false", *pairs]):
        assert_names(fails("--model_name_or_path", "damaged", *options), "damaged")
    assert_names(fails("--model_name_or_path", "nowhere", *pairs, *QUICK), "nowhere")
    plain_seq2seq("marian").save_pretrained(tmp_path / "no_tokenizer")
    assert_names(fails("--model_name_or_path", "no_tokenizer", *pairs, *QUICK), "no_tokenizer")
    message = fails("--model_name_or_path", str(finished_nmt.folder), "--ngram_size", "2", *pairs, *QUICK)
    assert_names(message, "ngram_size")
    assert_names(fails("--do_train", "false", *pairs), "`--do_train false`", "`--model_name_or_path`")


def test_tokenizers(fails, marian, pairs, tmp_path):
    message = fails(*pairs, *QUICK, "--vocab_size", "200")
    assert_names(message, "`--vocab_size`", "258", "200")
    train_bpe_tokenizer(["the cat"], 300).save_pretrained(tmp_path / "no_padding")
    message = fails(*pairs, *QUICK, "--tokenizer", "no_padding")
    assert_names(message, "`--tokenizer no_padding`")
    larger = train_sentence_tokenizer([text for pair in toy_pairs(90, 0) for text in pair] + ["häuser" * 9], 900)
    larger.save_pretrained(tmp_path / "larger")
    message = fails("--model_name_or_path", marian, "--tokenizer", "larger", *pairs, *QUICK)
    assert_names(message, "tokenizer", str(len(larger)))
    alone = ["--do_train", "false", "--model_name_or_path", marian, *pairs[-4:]]
    assert_names(fails(*alone, "--tokenizer", "bpe"), "`--tokenizer bpe`")


def test_invalid_comparisons(fails, finished_nmt, marian, pairs):
    message = fails("--model_name_or_path", marian, "--train_mode", "heads", *pairs, *QUICK, "--compare")
    assert_names(message, "`--compare`", "`--train_mode heads`")
    message = fails("--model_name_or_path", str(finished_nmt.folder), *pairs, *QUICK, "--compare")
    assert_names(message, "`--compare`", "`--model_name_or_path`")


def test_fsdp_cannot_translate(fails, pairs, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    message = fails(*pairs, *QUICK, "--metric_for_best_model", "bleu")
    assert_names(message, "`--metric_for_best_model bleu`", "FSDP")


OPTIONS = {
    "--per_device_train_batch_size 8": "`--batch_tokens`",
    "--per_device_eval_batch_size 8": "`--batch_tokens`",
    "--batch_tokens 0": "`--batch_tokens`",
    "--lambda_grid 0 1.5": "`--lambda_grid`",
    "--lambda_grid -0.1": "`--lambda_grid`",
    "--num_beams 0": "`--num_beams`",
    "--num_examples -1": "`--num_examples`",
    "--max_length 1": "`--max_length`",
    "--max_length_ratio 0.5": "`--max_length_ratio`",
    "--bow_loss_weight -1": "`--bow_loss_weight`",
    "--bow_loss_weight nan": "`--bow_loss_weight`",
    "--label_smoothing_factor 0.1": "`--label_smoothing_factor`",
    "--label_smoothing 2": "`--label_smoothing`",
    "--ngram_size 0": "`--ngram_size`",
    "--ngram_size 3 --ngram_target none": "`--ngram_target none`",
    "--preset paper-tf-small": "`--preset`",
    "--train_mode heads": "`--train_mode heads`",
    "--do_train false": "`--do_train false`",
    "--do_train false --compare": "`--model_name_or_path`",
    "--validation_percentage 150": "150",
    "--metric_for_best_model meteor": "`--metric_for_best_model`",
    "--no_such_option 3": "`--no_such_option`",
}


@pytest.mark.parametrize("options", OPTIONS)
def test_options(fails, pair_files, options):
    assert_names(fails(*pair_files["train"], *QUICK, *options.split(" ")), OPTIONS[options])
