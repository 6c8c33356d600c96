"""Bad input of `train_clm.py` gives a one-line message and exit code 2, and nothing is overwritten."""

import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertLMHeadModel, ViTConfig, ViTModel

import ngram_wdr_hf.training.common.model
from ngram_wdr_hf.data.tokenizers import train_word_tokenizer
from tests.support.clm_runs import QUICK, SCRIPT
from tests.support.errors import assert_names
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
    """Run the script as from the shell, and return its error message."""
    return failing(SCRIPT, tmp_path, monkeypatch, capsys)


def test_files(fails, files, texts, tmp_path):
    assert_names(fails("--train_file", "nowhere.txt"), "nowhere.txt")
    (tmp_path / "empty.txt").touch()
    assert_names(fails("--train_file", texts["train"], "--validation_file", "empty.txt"), "empty.txt")
    (tmp_path / "short.txt").write_text("the cat\n")
    assert_names(fails(*files, "--test_file", "short.txt", *QUICK), "`--ngram_size 4`", "test", "3")
    assert_names(fails("--validation_file", texts["validation"]), "`--train_file`", "`--dataset_name`")
    message = fails("--train_file", "short.txt", "--validation_file", "short.txt", *QUICK, "--streaming")
    assert_names(message, "`--ngram_size 4`", "3")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "test.txt").write_text("the cat\n" * 20)
    assert_names(fails("--dataset_name", "folder", *QUICK), "`--train_file`", "`--dataset_name`")
    assert_names(fails(*files, "--dataset_name", "wikitext"), "`--dataset_name`")


def test_tokenizer_that_does_not_fit(fails, finished_clm, files, tmp_path):
    (tmp_path / "german.txt").write_text("die Katze sieht heute einen Hund und einen Vogel\n" * 5)
    arguments = ["--do_train", "false", "--model_name_or_path", str(finished_clm.folder)]
    assert_names(fails(*arguments, "--test_file", "german.txt"), "`--tokenizer`", "test", "90%")
    words = Path(files[1]).read_text() + " ".join(map(str, range(100)))
    larger = train_word_tokenizer([words])
    larger.save_pretrained(tmp_path / "larger")
    message = fails("--model_name_or_path", str(finished_clm.folder), "--tokenizer", "larger", *files, *QUICK)
    assert_names(message, "tokenizer", str(len(larger)))
    (tmp_path / "german_train.txt").write_text("die Katze sieht heute einen Hund und einen Vogel\n" * 20)
    arguments = [
        "--model_name_or_path",
        str(finished_clm.folder),
        "--train_file",
        "german_train.txt",
        *files[2:],
        *QUICK,
    ]
    assert_names(fails(*arguments, "--streaming"), "`--tokenizer`", "train text")


def test_output_folder_in_use(fails, finished_clm, files, tmp_path):
    shutil.copytree(finished_clm.folder, tmp_path / "run")
    message = fails(*files, "--output_dir", "run", *QUICK, "--ngram_size", "3")
    assert_names(message, "`--output_dir run`", "ngram_size", "None", "3")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("...")
    assert_names(fails(*files, "--output_dir", "thesis", *QUICK), "`--output_dir thesis`")
    (tmp_path / "file").write_text("...")
    assert_names(fails(*files, "--output_dir", "file", *QUICK), "`--output_dir file`")
    (tmp_path / "run" / "run.yaml").write_text("")
    assert_names(fails(*files, "--output_dir", "run", *QUICK), "run.yaml", "damaged")
    shutil.copy(finished_clm.folder / "run.yaml", tmp_path / "run")
    (tmp_path / "run" / "tokenizer.json").write_text("{")
    assert_names(fails(*files, "--output_dir", "run", *QUICK), "tokenizer", "run")


def test_invalid_comparisons(fails, checkpoint, finished_clm, files):
    message = fails("--model_name_or_path", checkpoint, "--train_mode", "heads", *files, *QUICK, "--compare")
    assert_names(message, "`--compare`", "`--train_mode heads`")
    assert_names(
        fails("--model_name_or_path", str(finished_clm.folder), *files, *QUICK, "--compare"),
        "`--compare`",
        "`--model_name_or_path`",
    )
    message = fails("--model_name_or_path", str(finished_clm.folder), "--do_train", "false", "--compare")
    assert_names(message, "`--compare`", "`--do_train false`")


@pytest.mark.parametrize("grid", [["-0.1"], ["0", "1.5"], ["much"], []])
def test_lambda_grid(fails, files, grid):
    assert_names(fails(*files, "--lambda_grid", *grid), "--lambda_grid")


def test_lora_without_peft(fails, checkpoint, files, monkeypatch):
    monkeypatch.setattr(ngram_wdr_hf.training.common.model, "find_spec", lambda name: None)
    message = fails("--model_name_or_path", checkpoint, "--train_mode", "lora", *files, *QUICK)
    assert_names(message, "`--train_mode lora`", "`pip install peft`")


def test_lora_with_fsdp(fails, checkpoint, files, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    message = fails("--model_name_or_path", checkpoint, "--train_mode", "lora", *files, *QUICK)
    assert_names(message, "`--train_mode lora`", "FSDP")


def test_fit_with_fsdp(fails, files, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    message = fails(*files, *QUICK, "--metric_for_best_model", "fitted_perplexity")
    assert_names(message, "`--metric_for_best_model fitted_perplexity`", "FSDP")


def test_checkpoint_of_another_model(fails, finished_clm, files, tmp_path):
    command = [
        *files,
        "--output_dir",
        "new",
        *QUICK,
        "--resume_from_checkpoint",
        str(finished_clm.folder / "checkpoint-4"),
    ]
    for option, value in {"ngram_size": "3", "ngram_target": "simple"}.items():
        assert_names(fails(*command, f"--{option}", value), f"`{option}={value}`", "checkpoint-4")
    # The folder is free for the right options.
    assert not (tmp_path / "new" / "run.yaml").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt"])
def test_damaged_checkpoint(fails, finished_clm, files, tmp_path, name):
    folder = tmp_path / "run"
    shutil.copytree(finished_clm.folder, folder)
    # An interrupted run with a truncated last checkpoint.
    (folder / "trainer_state.json").unlink()
    cut_in_half(folder / "checkpoint-4" / name)
    message = fails(*files, "--output_dir", "run", *QUICK)
    assert_names(message, "checkpoint-4", "damaged")
    message = fails(*files, "--output_dir", "new", *QUICK, "--resume_from_checkpoint", "run/checkpoint-4")
    assert_names(message, "checkpoint-4", "damaged")
    message = fails(*files, "--output_dir", "new", *QUICK, "--resume_from_checkpoint", "run/checkpoint-3")
    assert_names(message, "checkpoint-3", "incomplete")
    # Trainer's state is written last.
    (folder / "checkpoint-4" / "trainer_state.json").write_text('{"epoch": 1')
    message = fails(*files, "--output_dir", "new", *QUICK, "--resume_from_checkpoint", "run/checkpoint-4")
    assert_names(message, "checkpoint-4", "incomplete")


def test_models(fails, checkpoint, finished_clm, files, tmp_path):
    for name in ("nowhere", "./nowhere", "/nowhere/at/all"):
        assert_names(fails("--model_name_or_path", name, *files, *QUICK), f"`{name}`", "folder")
    for option, value in {"ngram_size": "3", "ngram_target": "simple"}.items():
        message = fails("--model_name_or_path", str(finished_clm.folder), f"--{option}", value, *files, *QUICK)
        assert_names(message, f"`{option}={value}`")
    shutil.copytree(finished_clm.folder, tmp_path / "cut_off")
    (tmp_path / "cut_off" / "model.safetensors").write_bytes(b"")
    message = fails("--model_name_or_path", "cut_off", *files, "--output_dir", "new", *QUICK)
    assert_names(message, "cut_off")
    assert_names(
        fails("--model_name_or_path", checkpoint, *files, *QUICK, "--block_size", "32"), "`--block_size`", "16", "32"
    )
    tiny_model().save_pretrained(tmp_path / "without_tokenizer")
    message = fails("--model_name_or_path", "without_tokenizer", *files, *QUICK)
    assert_names(message, "tokenizer", "without_tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    decoder = BertLMHeadModel(BertConfig(**BERT_SIZES, is_decoder=True))
    unsupported = {
        "BertLMHeadModel": decoder,
        "bert": BertForMaskedLM(BertConfig(**BERT_SIZES)),
        "ViTModel": ViTModel(ViTConfig(**BERT_SIZES)),
        "t5": plain_seq2seq("t5"),
    }
    for name, model in unsupported.items():
        model.save_pretrained(tmp_path / "other")
        tokenizer.save_pretrained(tmp_path / "other")
        assert_names(fails("--model_name_or_path", "other", *files, *QUICK), name)


OPTIONS = {
    "--ngram_size 0": "`--ngram_size`",
    "--ngram_size 16": "`--block_size`",
    "--ngram_size 3 --ngram_target none": "`--ngram_target none`",
    "--ngram_target words": "`--ngram_target`",
    "--preset huge": "`--preset`",
    "--train_mode heads": "`--train_mode heads`",
    "--train_mode some": "`--train_mode`",
    "--do_train false": "`--do_train false`",
    "--streaming --max_steps -1": "`--max_steps`",
    "--label_smoothing 2": "`--label_smoothing`",
    "--label_smoothing_factor 0.1": "`--label_smoothing_factor`",
    "--block_size 1": "`--block_size`",
    "--validation_percentage 0": "`--validation_percentage`",
    "--report_to nobody": "`--report_to`",
    "--eval_strategy sometimes": "`--eval_strategy`",
    "--no_such_option 3": "`--no_such_option`",
    "--prese paper-tf-small": "`--preset`",
    "--prompt ": "`--prompt`",
    "--sample_tokens -5": "`--sample_tokens`",
    "--streaming --eval_strategy epoch": "`--eval_strategy steps`",
    "--streaming --save_strategy epoch --load_best_model_at_end false": "`--save_strategy steps`",
    "--streaming --logging_strategy epoch": "`--logging_strategy steps`",
    "--streaming --dataloader_num_workers 2": "`--dataloader_num_workers`",
    "--dataloader_drop_last true --per_device_train_batch_size 500": "`--dataloader_drop_last`",
    "missing.yaml": "missing.yaml",
}


@pytest.mark.parametrize("options", OPTIONS)
def test_options(fails, texts, options):
    arguments = ["--train_file", texts["train"], *QUICK, *options.split(" ")]
    if options.endswith("yaml"):
        arguments = [options]
    assert_names(fails(*arguments), OPTIONS[options])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("learning_rat: 1", "learning_rat"),
        ("- 1", "`option: value`"),
        ("a: [", "settings.yaml"),
        ("ngram_target: words", "`--ngram_target`"),
    ],
)
def test_settings_file(fails, tmp_path, text, name):
    (tmp_path / "settings.yaml").write_text(text)
    assert_names(fails("settings.yaml"), name)
