"""What `train_nmt.py` cannot use gets one sentence and the exit code 2, and nothing is overwritten."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from ngram_wdr_hf.data.tokenizer import train_bpe_tokenizer, train_sentence_tokenizer
from tests.support.nmt_runs import QUICK, SCRIPT, toy_pairs, write_sides
from tests.support.scripts import cut_in_half, failing
from tests.support.tiny import plain_model, plain_seq2seq


@pytest.fixture
def fails(capsys, monkeypatch, tmp_path):
    """Runs the script as the shell would; returns its one sentence."""
    fail = failing(SCRIPT, tmp_path, monkeypatch, capsys)

    def call(*arguments: str) -> str:
        sentence = fail(*arguments)
        assert sentence.startswith("error: ") and sentence.endswith((".", "]"))
        return sentence

    return call


def test_files(fails, pair_files, pairs, tmp_path):
    (_, source, _, target) = pair_files["train"]
    message = fails("--train_source", source, "--train_target", "nowhere.de")
    assert message == "error: There is no file nowhere.de: check the path."
    Path("short.de").write_text("eins\nzwei\n")
    message = fails("--train_source", source, "--train_target", "short.de")
    assert "not parallel" in message and "has 200 lines" in message and "short.de has 2." in message
    message = fails("--train_source", source)
    assert "The train set has no translations: give a `--train_target`" in message
    message = fails("--train_target", target)
    assert "There is a `--train_target` without a `--train_source`" in message
    message = fails(*pair_files["train"], *pair_files["validation"][:2])
    assert "The validation set has no translations" in message
    assert "There is nothing to train on" in fails(*pair_files["test"])
    Path("latin.de").write_bytes("hört\n".encode("latin-1") * 200)
    assert "is not UTF-8 text" in fails("--train_source", source, "--train_target", "latin.de")
    Path("zero.en").touch()
    assert "zero.en is empty" in fails("--train_source", "zero.en", "--train_target", "zero.en")
    Path("blank.en").write_text("\n \n\n")
    message = fails("--train_source", "blank.en", "--train_target", "blank.en")
    assert "The train set has no pair with text on both sides" in message
    one = write_sides(tmp_path, "train", toy_pairs(1, 0))
    assert "cannot give 2.0 percent for validation" in fails(*one)
    message = fails(*pairs[:-2], "--reverse", *QUICK)
    assert "The test set has no target to translate from" in message


def test_json_lines(fails, pairs):
    Path("pairs.jsonl").write_text(json.dumps({"en": "a", "de": "b"}) + "\n", encoding="utf-8")
    languages = ["--source_lang", "en", "--target_lang"]
    message = fails("--train_file", "pairs.jsonl", *languages, "fr")
    assert "has no language `fr`, but en, de: set `--target_lang`" in message
    assert "holds the languages en, de: set `--source_lang`" in fails("--train_file", "pairs.jsonl")
    assert "There is no file none.jsonl" in fails("--train_file", "none.jsonl", *languages, "de")
    message = fails("--train_file", "pairs.jsonl", *pairs)
    assert "only one of them" in message
    assert "only one of them" in fails("--dataset_name", "wmt14", *pairs)
    Path("broken.jsonl").write_text('{"en": "a", "de": \n', encoding="utf-8")
    assert "is not JSON lines" in fails("--train_file", "broken.jsonl", *languages, "de")


def test_pairs_of_which_none_is_left(fails, pairs):
    assert "No training pair is short enough" in fails(*pairs, *QUICK, "--max_length", "2")
    message = fails(*pairs, *QUICK, "--ngram_size", "40")
    assert "fewer than N = 40" in message and "The longest train target has" in message


def test_translate(fails, finished_nmt):
    Path("text.en").write_text("the cat .\n")
    run_of_ours = ["--model_name_or_path", str(finished_nmt.folder)]
    assert "add `--do_train false" in fails("--translate", "text.en")
    assert "add `--do_train false" in fails("--translate", "text.en", *run_of_ours)
    alone = ["--do_train", "false", *run_of_ours]
    assert "There is no file none.en" in fails("--translate", "none.en", *alone)
    assert "give the file" in fails("--translate_to", "text.de", *alone)
    message = fails("--translate", "text.en", "--do_train", "false")
    assert "say which with `--model_name_or_path`" in message
    Path("latin.en").write_bytes("café\n".encode("latin-1"))
    assert "latin.en is not UTF-8 text" in fails("--translate", "latin.en", *alone)
    # Before the work is done.
    assert "none" in fails("--translate", "text.en", "--translate_to", "none/text.de", *alone)


def test_a_folder_that_is_not_free(fails, finished_nmt, tmp_path):
    shutil.copytree(finished_nmt.folder, tmp_path / "run")
    command = [*finished_nmt.command, "--output_dir", "run"]
    message = fails(*command, "--ngram_size", "2")
    assert "holds a run with other settings (ngram_size: 3 there, 2 here)" in message
    message = fails(*command, "--reverse")
    assert "(reverse: False there, True here)" in message
    Path("thesis").mkdir()
    Path("thesis/chapter1.tex").write_text("...")
    assert "The folder thesis holds something else" in fails(*command, "--output_dir", "thesis")
    assert "text is a file" in fails(*command, "--output_dir", write_text())
    Path("run/tokenizer.json").write_text("{")
    assert "There is no usable tokenizer in run" in fails(*command)


def write_text() -> str:
    Path("text").write_text("...")
    return "text"


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt"])
def test_a_damaged_checkpoint_to_go_on_from(fails, finished_nmt, tmp_path, name):
    shutil.copytree(finished_nmt.folder, tmp_path / "run")
    # Not finished, and its last checkpoint cut off in the middle.
    Path("run/trainer_state.json").unlink()
    cut_in_half(Path("run/checkpoint-150") / name)
    message = fails(*finished_nmt.command, "--output_dir", "run")
    assert "checkpoint-150 is damaged" in message and "delete it" in message


def test_models(fails, finished_nmt, marian, pairs, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(marian)
    plain_model(vocab_size=len(tokenizer)).save_pretrained(tmp_path / "gpt2")
    tokenizer.save_pretrained(tmp_path / "gpt2")
    message = fails("--model_name_or_path", "gpt2", *pairs, *QUICK)
    assert "gpt2 is a model of type gpt2: give an encoder-decoder model, for train_nmt.py" in message
    message = fails("--model_name_or_path", "gpt2", "--do_train", "false", *pairs)
    assert "gpt2 is a model of type gpt2" in message
    shutil.copytree(marian, tmp_path / "damaged")
    cut_in_half(tmp_path / "damaged" / "model.safetensors")
    for options in ([*pairs, *QUICK], ["--do_train", "false", *pairs]):
        assert "The weights of damaged are damaged" in fails("--model_name_or_path", "damaged", *options)
    assert "There is no usable tokenizer in nowhere" in fails("--model_name_or_path", "nowhere", *pairs, *QUICK)
    plain_seq2seq("marian").save_pretrained(tmp_path / "no_tokenizer")
    assert "no usable tokenizer in no_tokenizer" in fails("--model_name_or_path", "no_tokenizer", *pairs, *QUICK)
    message = fails("--model_name_or_path", str(finished_nmt.folder), "--ngram_size", "2", *pairs, *QUICK)
    assert "was saved with `ngram_size=3`" in message
    assert "say which with `--model_name_or_path`" in fails("--do_train", "false", *pairs)


def test_tokenizers(fails, marian, pairs, tmp_path):
    message = fails(*pairs, *QUICK, "--vocab_size", "200")
    assert "at least 258 tokens" in message and "which is 200" in message
    train_bpe_tokenizer(["the cat"], 300).save_pretrained(tmp_path / "no_padding")
    message = fails(*pairs, *QUICK, "--tokenizer", "no_padding")
    assert "The tokenizer in no_padding has no padding or no end token" in message
    larger = train_sentence_tokenizer([text for pair in toy_pairs(90, 0) for text in pair] + ["häuser" * 9], 900)
    larger.save_pretrained(tmp_path / "larger")
    message = fails("--model_name_or_path", marian, "--tokenizer", "larger", *pairs, *QUICK)
    assert f"The tokenizer has {len(larger)} tokens" in message
    alone = ["--do_train", "false", "--model_name_or_path", marian, *pairs[-4:]]
    assert "`--tokenizer bpe` is trained on training pairs" in fails(*alone, "--tokenizer", "bpe")


def test_what_cannot_be_compared(fails, finished_nmt, marian, pairs):
    message = fails("--model_name_or_path", marian, "--train_mode", "heads", *pairs, *QUICK, "--compare")
    assert "leave out `--train_mode heads`" in message
    message = fails("--model_name_or_path", str(finished_nmt.folder), *pairs, *QUICK, "--compare")
    assert "has heads already" in message


def test_shards_cannot_translate(fails, pairs, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    message = fails(*pairs, *QUICK, "--metric_for_best_model", "bleu")
    assert "FSDP's shards cannot translate while they train" in message


OPTIONS = {
    "--per_device_train_batch_size 8": "set `--batch_tokens` instead",
    "--per_device_eval_batch_size 8": "set `--batch_tokens` instead",
    "--batch_tokens 0": "`--batch_tokens` must be at least 1, got 0",
    "--lambda_grid 0 1.5": "`--lambda_grid` must be a number from 0 to 1",
    "--lambda_grid -0.1": "`--lambda_grid` must be a number from 0 to 1",
    "--num_beams 0": "`--num_beams` must be at least 1, got 0",
    "--num_examples -1": "`--num_examples` must be at least 0, got -1",
    "--max_length 1": "`--max_length` must be at least 2, got 1",
    "--max_length_ratio 0.5": "`--max_length_ratio` must be at least 1, got 0.5",
    "--bow_loss_weight -1": "`--bow_loss_weight` must be at least 0, got -1.0",
    "--bow_loss_weight nan": "`bow_loss_weight` must be a number of at least 0",
    "--label_smoothing_factor 0.1": "use `--label_smoothing`",
    "--label_smoothing 2": "`label_smoothing` must be a number from 0 to 1",
    "--ngram_size 0": "`--ngram_size` must be at least 1, got 0",
    "--ngram_size 3 --ngram_target none": "`--ngram_target none` has no heads",
    "--preset paper-tf-small": "`--preset` must be one of tiny, paper-small, paper-base",
    "--train_mode heads": "say which with `--model_name_or_path`",
    "--do_train false": "say which with `--model_name_or_path`",
    "--do_train false --compare": "say which with `--model_name_or_path`",
    "--validation_percentage 150": "cannot give 150.0 percent for validation",
    "--metric_for_best_model meteor": "`--metric_for_best_model` must be one of",
    "--no_such_option 3": "not used by the HfArgumentParser: ['--no_such_option'",
}


@pytest.mark.parametrize("options", OPTIONS)
def test_options(fails, pair_files, options):
    assert OPTIONS[options] in fails(*pair_files["train"], *QUICK, *options.split(" "))
