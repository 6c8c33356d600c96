"""What `finetune_glue.py` cannot use gets one sentence and the exit code 2, and nothing is written."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, GPT2Tokenizer, PreTrainedTokenizerFast

from ngram_wdr_hf.data.tokenizer import train_word_tokenizer
from tests.support.backbones import tiny_backbone
from tests.support.glue_runs import QUICK, SCRIPT, WORDS, run, tiny_checkpoint, tokenizer_for, write_task
from tests.support.scripts import failing
from tests.support.tiny import plain_seq2seq


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder to work in, with the checkpoint `model` and the files of all tasks in `glue`."""
    monkeypatch.chdir(tmp_path)
    tiny_checkpoint("gpt2", tmp_path / "model")
    for name in ("sst2", "cola", "rte"):
        write_task(tmp_path / "glue", name)
    return tmp_path


@pytest.fixture
def fails(here, capsys, monkeypatch):
    """Runs the script as the shell would; returns its one sentence."""
    return failing(SCRIPT, here, monkeypatch, capsys)


MODEL = ["--model_name_or_path", "model", *QUICK]
GLUE = ["--data_dir", "glue"]


def test_tasks_and_sources(fails):
    assert "There is no task 'mnli': `--task` takes sst2, cola, rte." in fails(*MODEL, *GLUE, "--task", "mnli")
    assert "Say what to learn with `--task`" in fails(*MODEL, *GLUE)
    assert "Say what to fine-tune with `--model_name_or_path`" in fails(*GLUE, "--task", "sst2")
    assert "Say where the examples are" in fails(*MODEL, "--task", "sst2")
    assert "Say where the examples are" in fails(*MODEL, "--task", "sst2", *GLUE, "--dataset_name", "glue")
    files = ["--train_file", "glue/SST-2/train.tsv", "--validation_file", "glue/SST-2/dev.tsv"]
    assert "Say where the examples are" in fails(*MODEL, "--task", "sst2", *GLUE, *files)
    assert "One `--task` has a `--train_file` and a `--validation_file`" in fails(*MODEL, "--task", "sst2", *files[:2])
    assert "several have `--data_dir`" in fails(*MODEL, "--task", "sst2", "cola", *files)


FILES = {
    "": "dev.tsv is empty",
    "sentence\tlabel\n": "dev.tsv has no examples",
    "film\t1\nplot\t0\n": "does not begin with the names of SST-2's columns: no sentence",
    "sentence\tmood\nfilm\t1\n": "does not begin with the names of SST-2's columns: no label",
    "sentence\tlabel\nfilm\t1\nplot\n": "Line 3 of glue/SST-2/dev.tsv has 1 columns instead of 2",
    "sentence\tlabel\nfilm\t1\nplot\t0\t0\n": "Line 3 of glue/SST-2/dev.tsv has 3 columns instead of 2",
    "sentence\tlabel\nfilm\t1\n\nplot\t2\n": "Line 4 of glue/SST-2/dev.tsv has the label '2': SST-2 has 0, 1, ",
    "sentence\tlabel\n  \t1\n": "Line 2 of glue/SST-2/dev.tsv has an empty sentence",
}


@pytest.mark.parametrize("text", FILES)
def test_files(fails, text):
    Path("glue/SST-2/dev.tsv").write_text(text)
    # Whatever the task before it would take is not begun.
    assert FILES[text] in fails(*MODEL, "--task", "cola", "sst2", *GLUE)


def test_other_files(fails):
    Path("glue/CoLA/dev.tsv").write_text("sentence\tlabel\nfilm\t1\n")
    assert "Line 1 of glue/CoLA/dev.tsv has 2 columns instead of 4" in fails(*MODEL, "--task", "cola", *GLUE)
    Path("glue/CoLA/dev.tsv").write_bytes("gj04\t1\t\tübel\n".encode("latin-1"))
    assert "is not a table of UTF-8 text" in fails(*MODEL, "--task", "cola", *GLUE)
    Path("glue/CoLA/dev.tsv").unlink()
    message = fails(*MODEL, "--task", "cola", *GLUE)
    assert message == "error: There is no file glue/CoLA/dev.tsv: check the path."
    assert "There is no file nowhere/RTE/train.tsv" in fails(*MODEL, "--task", "rte", "--data_dir", "nowhere")


def test_datasets(fails):
    shutil.copytree("glue/SST-2", "one")
    for name, split in (("train", "train"), ("dev", "validation")):
        path = Path(f"one/{name}.tsv")
        path.rename(f"one/{split}.csv").write_text(path.with_name(f"{split}.csv").read_text().replace("\t", ","))
    options = [*MODEL, "--dataset_name", "one", "--task"]
    # It holds one task, and does not say which.
    assert "The dataset one cannot be loaded for the task sst2" in fails(*options, "sst2", "cola")
    assert "The dataset one has no column sentence1 in its train split: it is not RTE." in fails(*options, "rte")
    Path("one/validation.csv").write_text("sentence,label\nfilm,1\nplot,7\n")
    assert "Row 1 of one's validation split has the label 7" in fails(*options, "sst2")
    Path("one/validation.csv").unlink()
    assert "The dataset one has no validation split" in fails(*options, "sst2")
    assert "The dataset nowhere cannot be loaded" in fails(*MODEL, "--dataset_name", "nowhere", "--task", "sst2")


def test_tokenizers(fails):
    command = [*MODEL, *GLUE, "--task", "rte"]
    larger = train_word_tokenizer([" ".join([*WORDS, "more", "words"]) + "\n"])
    larger.save_pretrained("model")
    assert f"The tokenizer has {len(larger)} tokens and model only {len(larger) - 2}" in fails(*command)
    train_word_tokenizer(["other words\n"]).save_pretrained("model")
    assert "100% of their tokens are unknown to it" in fails(*command)
    backend = tokenizer_for("gpt2").backend_tokenizer
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>").save_pretrained("model")
    assert "The tokenizer cannot join two sentences" in fails(*command)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        Path("model", name).unlink()
    assert "There is no usable tokenizer in model" in fails(*command)
    # Of stock models, Transformers then makes one that knows nothing.
    tiny_checkpoint("plain gpt2", Path("plain"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        Path("plain", name).unlink()
    assert isinstance(AutoTokenizer.from_pretrained("plain"), GPT2Tokenizer)
    message = fails("--model_name_or_path", "plain", *QUICK, *GLUE, "--task", "sst2")
    assert "The tokenizer makes nothing of the text of example 1" in message


def test_an_end_for_every_text(fails):
    """Stock BART would fail in the middle of the training."""
    tiny_checkpoint("bart", Path("bart"))
    command = ["--model_name_or_path", "bart", *QUICK, *GLUE, "--task", "sst2"]
    path = Path("glue/SST-2/dev.tsv")
    path.write_text(path.read_text() + "film <eos> plot\t1\n")
    assert "does not put equally many of them into every text" in fails(*command)


def test_models(fails):
    command = [*GLUE, "--task", "sst2", *QUICK, "--model_name_or_path"]
    weights = Path("model/model.safetensors")
    # Not where the file was mapped to, which will be cut off.
    whole = {name: value.clone() for name, value in load_file(weights).items()}
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "The weights of model cannot be loaded" in fails(*command, "model")
    weights.unlink()
    assert "The weights of model cannot be loaded" in fails(*command, "model")
    name = "transformer.h.1.mlp.c_fc.weight"
    save_file({key: value for key, value in whole.items() if key != name}, weights, {"format": "pt"})
    assert f"model is no complete gpt2: `{name}` is missing or has another shape" in fails(*command, "model")
    save_file({**whole, name: torch.zeros(3, 4)}, weights, {"format": "pt"})
    assert f"model is no complete gpt2: `{name}` is missing or has another shape" in fails(*command, "model")
    others = {"marian": plain_seq2seq("marian"), "tensorized_transformer": tiny_backbone("tensorized")}
    for model_type, model in others.items():
        model.save_pretrained("other")
        tokenizer_for("gpt2").save_pretrained("other")
        message = fails(*command, "other")
        assert f"of type {model_type}, for which Transformers has no classifier" in message
    shutil.rmtree("other")
    tokenizer_for("gpt2").save_pretrained("other")
    assert "There is no usable model in other" in fails(*command, "other")


OPTIONS = {
    "--do_train false": "Leave out `--do_train false`",
    "--eval_strategy steps": "Leave out `--eval_strategy`",
    "--metric_for_best_model loss": "Leave out `--metric_for_best_model`",
    "--resume_from_checkpoint somewhere": "Leave out `--resume_from_checkpoint`",
    "--push_to_hub true": "Leave out `--push_to_hub`",
    "--max_length 4": "`--max_length` must be at least 8",
    "--max_length 33": "`--max_length 33` is more than the model can see: at most 32.",
    "--seeds one": "invalid int value: 'one'",
    "--report_to nobody": "nobody is not supported",
    "--ngram_size 3": "not used by the HfArgumentParser: ['--ngram_size', '3']",
    "--train_sampling_strategy by_name": "invalid choice",
}


@pytest.mark.parametrize("options", OPTIONS)
def test_options(fails, options):
    assert OPTIONS[options] in fails(*MODEL, *GLUE, "--task", "sst2", *options.split())


def test_a_folder_that_is_not_free(fails, here):
    command = [*MODEL, *GLUE, "--task", "sst2", "--max_steps", "1", "--output_dir", "run"]
    run(*command)
    assert "holds a run with other settings (max_length: None there, 8 here)" in fails(*command, "--max_length", "8")
    shutil.copytree("model", "run/cola/seed-42")
    assert "The folder run/cola/seed-42 holds something else" in fails(*command, "--task", "cola")
    # The run went on until something damaged its last checkpoint.
    Path("run/sst2/seed-42/trainer_state.json").unlink()
    weights = Path("run/sst2/seed-42/checkpoint-1/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:1000])
    message = fails(*command)
    assert "checkpoint-1 is damaged" in message and "delete it" in message
