"""What `train_clm.py` cannot use gets one sentence and the exit code 2, and nothing is overwritten."""

import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertLMHeadModel, ViTConfig, ViTModel

import ngram_wdr_hf.training.common.model
from ngram_wdr_hf.data.tokenizer import train_word_tokenizer
from tests.support.clm_runs import QUICK, SCRIPT
from tests.support.scripts import cut_in_half, failing
from tests.support.tiny import VOCAB_SIZE, plain_seq2seq, tiny_model

BERT_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


@pytest.fixture
def fails(capsys, monkeypatch, tmp_path):
    """Runs the script as the shell would; returns its one sentence."""
    return failing(SCRIPT, tmp_path, monkeypatch, capsys)


def test_files(fails, files, texts, tmp_path):
    assert "There is no file nowhere.txt" in fails("--train_file", "nowhere.txt")
    (tmp_path / "empty.txt").touch()
    assert "empty.txt is empty" in fails("--train_file", texts["train"], "--validation_file", "empty.txt")
    (tmp_path / "short.txt").write_text("the cat\n")
    assert "The test text has 3 tokens, and N = 4 needs more than 4" in fails(
        *files, "--test_file", "short.txt", *QUICK
    )
    assert "There is nothing to train on" in fails("--validation_file", texts["validation"])
    message = fails("--train_file", "short.txt", "--validation_file", "short.txt", *QUICK, "--streaming")
    assert "text has 3 tokens" in message
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "test.txt").write_text("the cat\n" * 20)
    assert "There is nothing to train on" in fails("--dataset_name", "folder", *QUICK)
    assert "either `--dataset_name` or text files" in fails(*files, "--dataset_name", "wikitext")


def test_a_vocabulary_that_is_not_covered(fails, finished_clm, files, tmp_path):
    (tmp_path / "german.txt").write_text("die Katze sieht heute einen Hund und einen Vogel\n" * 5)
    arguments = ["--do_train", "false", "--model_name_or_path", str(finished_clm.folder)]
    assert "does not cover the test text: 90% of its tokens" in fails(*arguments, "--test_file", "german.txt")
    words = Path(files[1]).read_text() + " ".join(map(str, range(100)))
    larger = train_word_tokenizer([words])
    larger.save_pretrained(tmp_path / "larger")
    message = fails("--model_name_or_path", str(finished_clm.folder), "--tokenizer", "larger", *files, *QUICK)
    assert f"The tokenizer has {len(larger)} tokens" in message
    (tmp_path / "german_train.txt").write_text("die Katze sieht heute einen Hund und einen Vogel\n" * 20)
    arguments = [
        "--model_name_or_path",
        str(finished_clm.folder),
        "--train_file",
        "german_train.txt",
        *files[2:],
        *QUICK,
    ]
    assert "does not cover the train text" in fails(*arguments, "--streaming")


def test_a_folder_that_is_not_free(fails, finished_clm, files, tmp_path):
    shutil.copytree(finished_clm.folder, tmp_path / "run")
    message = fails(*files, "--output_dir", "run", *QUICK, "--ngram_size", "3")
    assert "holds a run with other settings (ngram_size: None there, 3 here)" in message
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("...")
    assert "The folder thesis holds something else" in fails(*files, "--output_dir", "thesis", *QUICK)
    (tmp_path / "file").write_text("...")
    assert "file is a file: choose another `--output_dir`" in fails(*files, "--output_dir", "file", *QUICK)
    (tmp_path / "run" / "run.yaml").write_text("")
    assert "run.yaml is damaged" in fails(*files, "--output_dir", "run", *QUICK)
    shutil.copy(finished_clm.folder / "run.yaml", tmp_path / "run")
    (tmp_path / "run" / "tokenizer.json").write_text("{")
    assert "There is no usable tokenizer in run" in fails(*files, "--output_dir", "run", *QUICK)


def test_what_cannot_be_compared(fails, checkpoint, finished_clm, files):
    message = fails("--model_name_or_path", checkpoint, "--train_mode", "heads", *files, *QUICK, "--compare")
    assert "leave out `--train_mode heads`" in message
    assert "has heads already" in fails("--model_name_or_path", str(finished_clm.folder), *files, *QUICK, "--compare")
    message = fails("--model_name_or_path", str(finished_clm.folder), "--do_train", "false", "--compare")
    assert "leave out `--do_train false`" in message


@pytest.mark.parametrize("grid", [["-0.1"], ["0", "1.5"], ["much"], []])
def test_lambda_grid(fails, files, grid):
    assert "lambda_grid" in fails(*files, "--lambda_grid", *grid)


def test_lora_without_peft(fails, checkpoint, files, monkeypatch):
    monkeypatch.setattr(ngram_wdr_hf.training.common.model, "find_spec", lambda name: None)
    message = fails("--model_name_or_path", checkpoint, "--train_mode", "lora", *files, *QUICK)
    assert "needs the package peft: install it with `pip install peft`" in message


def test_lora_with_fsdp(fails, checkpoint, files, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    message = fails("--model_name_or_path", checkpoint, "--train_mode", "lora", *files, *QUICK)
    assert "Adapters cannot be merged from FSDP's shards" in message


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt"])
def test_a_corrupt_checkpoint(fails, finished_clm, files, tmp_path, name):
    folder = tmp_path / "run"
    shutil.copytree(finished_clm.folder, folder)
    # Not finished_clm, and its last checkpoint cut off in the middle.
    (folder / "trainer_state.json").unlink()
    cut_in_half(folder / "checkpoint-4" / name)
    message = fails(*files, "--output_dir", "run", *QUICK)
    assert "checkpoint-4 is damaged" in message and "delete it" in message
    message = fails(*files, "--output_dir", "new", *QUICK, "--resume_from_checkpoint", "run/checkpoint-4")
    assert "checkpoint-4 is damaged" in message
    message = fails(*files, "--output_dir", "new", *QUICK, "--resume_from_checkpoint", "run/checkpoint-3")
    assert "checkpoint-3 is not there or not complete" in message
    # Trainer's state is written last.
    (folder / "checkpoint-4" / "trainer_state.json").write_text('{"epoch": 1')
    message = fails(*files, "--output_dir", "new", *QUICK, "--resume_from_checkpoint", "run/checkpoint-4")
    assert "checkpoint-4 is not there or not complete" in message


def test_models(fails, checkpoint, finished_clm, files, tmp_path):
    assert "There is no usable tokenizer in nowhere" in fails("--model_name_or_path", "nowhere", *files, *QUICK)
    message = fails("--model_name_or_path", str(finished_clm.folder), "--ngram_size", "3", *files, *QUICK)
    assert "was saved with `ngram_size=4`" in message
    shutil.copytree(finished_clm.folder, tmp_path / "cut_off")
    (tmp_path / "cut_off" / "model.safetensors").write_bytes(b"")
    message = fails("--model_name_or_path", "cut_off", *files, "--output_dir", "new", *QUICK)
    assert "The weights of cut_off are damaged" in message
    assert "at most 16" in fails("--model_name_or_path", checkpoint, *files, *QUICK, "--block_size", "32")
    tiny_model().save_pretrained(tmp_path / "without_tokenizer")
    message = fails("--model_name_or_path", "without_tokenizer", *files, *QUICK)
    assert "There is no usable tokenizer in without_tokenizer" in message
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    decoder = BertLMHeadModel(BertConfig(**BERT_SIZES, is_decoder=True))
    others = {
        "a BertLMHeadModel: its logits are not the product": decoder,
        "is a model of type bert: give a causal language model": BertForMaskedLM(BertConfig(**BERT_SIZES)),
        "is a ViTModel, which is neither a causal nor": ViTModel(ViTConfig(**BERT_SIZES)),
        "is a model of type t5: give a causal language model": plain_seq2seq("t5"),
    }
    for sentence, model in others.items():
        model.save_pretrained(tmp_path / "other")
        tokenizer.save_pretrained(tmp_path / "other")
        assert sentence in fails("--model_name_or_path", "other", *files, *QUICK)


OPTIONS = {
    "--ngram_size 0": "`--ngram_size` must be at least 1, got 0",
    "--ngram_size 16": "N = 16 needs blocks of more than 16 tokens",
    "--ngram_size 3 --ngram_target none": "`--ngram_target none` has no heads",
    "--ngram_target words": "`--ngram_target` must be one of wdr, simple, none",
    "--preset huge": "`--preset` must be one of tiny",
    "--train_mode heads": "say which with `--model_name_or_path`",
    "--train_mode some": "`--train_mode` must be one of full, heads, lora",
    "--do_train false": "say which with `--model_name_or_path`",
    "--streaming --max_steps -1": "set `--max_steps`",
    "--label_smoothing 2": "`label_smoothing` must be a number from 0 to 1",
    "--label_smoothing_factor 0.1": "use `--label_smoothing`",
    "--block_size 1": "`--block_size` must be at least 2",
    "--validation_percentage 0": "`--validation_percentage` must lie between 0 and 100",
    "--report_to nobody": "`--report_to` cannot be used: nobody is not supported",
    "--eval_strategy sometimes": "sometimes is not a valid IntervalStrategy",
    "--no_such_option 3": "not used by the HfArgumentParser: ['--no_such_option'",
    # Half a name would be read by one parser and not by the other.
    "--prese paper-tf-small": "not used by the HfArgumentParser: ['--prese'",
    "--prompt ": "has no token to begin with",
    "--sample_tokens -5": "`--sample_tokens` must be at least 0",
    "--streaming --eval_strategy epoch": "set `--eval_strategy steps`",
    "missing.yaml": "The settings file missing.yaml cannot be read",
}


@pytest.mark.parametrize("options", OPTIONS)
def test_options(fails, texts, options):
    arguments = ["--train_file", texts["train"], *QUICK, *options.split(" ")]
    if options.endswith("yaml"):
        arguments = [options]
    assert OPTIONS[options] in fails(*arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rat: 1", "unknown options: learning_rat"),
        ("- 1", "one `option: value` a line"),
        ("a: [", "cannot be read"),
        ("ngram_target: words", "`--ngram_target` must be one of"),
    ],
)
def test_settings_file(fails, tmp_path, text, message):
    (tmp_path / "settings.yaml").write_text(text)
    assert message in fails("settings.yaml")
