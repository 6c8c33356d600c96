"""Bad input of `finetune_glue.py` gives a one-line message and exit code 2, and nothing is written."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, GPT2Tokenizer, PreTrainedTokenizerFast

from ngram_wdr_hf.data.tokenizers import train_word_tokenizer
from tests.support.backbones import tiny_backbone
from tests.support.errors import assert_names
from tests.support.glue_runs import QUICK, SCRIPT, WORDS, run, tiny_checkpoint, tokenizer_for, write_task
from tests.support.scripts import failing
from tests.support.tiny import plain_seq2seq


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """Change to a folder with the checkpoint `model` and the files of all tasks in `glue`."""
    monkeypatch.chdir(tmp_path)
    tiny_checkpoint("gpt2", tmp_path / "model")
    for name in ("sst2", "cola", "rte"):
        write_task(tmp_path / "glue", name)
    return tmp_path


@pytest.fixture
def fails(here, capsys, monkeypatch):
    """Run the script as from the shell, and return its error message."""
    return failing(SCRIPT, here, monkeypatch, capsys)


MODEL = ["--model_name_or_path", "model", *QUICK]
GLUE = ["--data_dir", "glue"]


def test_tasks_and_sources(fails):
    assert_names(fails(*MODEL, *GLUE, "--task", "mnli"), "`--task`", "'mnli'")
    assert_names(fails(*MODEL, *GLUE), "`--task`")
    assert_names(fails(*GLUE, "--task", "sst2"), "`--model_name_or_path`")
    assert_names(fails(*MODEL, "--task", "sst2"), "`--data_dir`", "`--dataset_name`")
    assert_names(fails(*MODEL, "--task", "sst2", *GLUE, "--dataset_name", "glue"), "`--data_dir`", "`--dataset_name`")
    files = ["--train_file", "glue/SST-2/train.tsv", "--validation_file", "glue/SST-2/dev.tsv"]
    assert_names(fails(*MODEL, "--task", "sst2", *GLUE, *files), "`--data_dir`", "`--dataset_name`")
    assert_names(fails(*MODEL, "--task", "sst2", *files[:2]), "`--train_file`", "`--validation_file`")
    assert_names(fails(*MODEL, "--task", "sst2", "cola", *files), "`--data_dir`", "`--task`")


FILES = {
    "": ("dev.tsv", "empty"),
    "sentence\tlabel\n": ("dev.tsv", "examples"),
    "film\t1\nplot\t0\n": ("dev.tsv", "sentence"),
    "sentence\tmood\nfilm\t1\n": ("dev.tsv", "label"),
    "sentence\tlabel\nfilm\t1\nplot\n": ("dev.tsv", "3", "1", "2"),
    "sentence\tlabel\nfilm\t1\nplot\t0\t0\n": ("dev.tsv", "3", "2"),
    "sentence\tlabel\nfilm\t1\n\nplot\t2\n": ("dev.tsv", "4", "'2'"),
    "sentence\tlabel\n  \t1\n": ("dev.tsv", "2", "sentence"),
}


@pytest.mark.parametrize("text", FILES)
def test_files(fails, text):
    Path("glue/SST-2/dev.tsv").write_text(text)
    # All files are checked before the first task starts.
    assert_names(fails(*MODEL, "--task", "cola", "sst2", *GLUE), *FILES[text])


def test_other_files(fails):
    Path("glue/CoLA/dev.tsv").write_text("sentence\tlabel\nfilm\t1\n")
    assert_names(fails(*MODEL, "--task", "cola", *GLUE), "glue/CoLA/dev.tsv", "1", "2", "4")
    Path("glue/CoLA/dev.tsv").write_bytes("gj04\t1\t\tübel\n".encode("latin-1"))
    assert_names(fails(*MODEL, "--task", "cola", *GLUE), "glue/CoLA/dev.tsv", "UTF-8")
    Path("glue/CoLA/dev.tsv").unlink()
    message = fails(*MODEL, "--task", "cola", *GLUE)
    assert_names(message, "glue/CoLA/dev.tsv")
    assert_names(fails(*MODEL, "--task", "rte", "--data_dir", "nowhere"), "nowhere/RTE/train.tsv")


def test_datasets(fails):
    shutil.copytree("glue/SST-2", "one")
    for name, split in (("train", "train"), ("dev", "validation")):
        path = Path(f"one/{name}.tsv")
        path.rename(f"one/{split}.csv").write_text(path.with_name(f"{split}.csv").read_text().replace("\t", ","))
    options = [*MODEL, "--dataset_name", "one", "--task"]
    # The dataset holds one task, without its name.
    assert_names(fails(*options, "sst2", "cola"), "one", "sst2")
    assert_names(fails(*options, "rte"), "one", "sentence1", "train", "RTE")
    Path("one/validation.csv").write_text("sentence,label\nfilm,1\nplot,7\n")
    assert_names(fails(*options, "sst2"), "one", "validation", "7")
    Path("one/validation.csv").unlink()
    assert_names(fails(*options, "sst2"), "one", "validation")
    assert_names(fails(*MODEL, "--dataset_name", "nowhere", "--task", "sst2"), "nowhere")


def test_tokenizers(fails):
    command = [*MODEL, *GLUE, "--task", "rte"]
    larger = train_word_tokenizer([" ".join([*WORDS, "more", "words"]) + "\n"])
    larger.save_pretrained("model")
    assert_names(fails(*command), str(len(larger)), str(len(larger) - 2))
    train_word_tokenizer(["other words\n"]).save_pretrained("model")
    assert_names(fails(*command), "tokenizer", "100%")
    backend = tokenizer_for("gpt2").backend_tokenizer
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>").save_pretrained("model")
    assert_names(fails(*command), "`eos_token`")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        Path("model", name).unlink()
    assert_names(fails(*command), "tokenizer", "model")
    # For stock models, Transformers then creates an empty tokenizer.
    tiny_checkpoint("plain gpt2", Path("plain"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        Path("plain", name).unlink()
    assert isinstance(AutoTokenizer.from_pretrained("plain"), GPT2Tokenizer)
    message = fails("--model_name_or_path", "plain", *QUICK, *GLUE, "--task", "sst2")
    assert_names(message, "plain", "no tokenizer")


def test_every_text_needs_an_end_token(fails):
    """Stock BART would fail in the middle of training."""
    tiny_checkpoint("bart", Path("bart"))
    command = ["--model_name_or_path", "bart", *QUICK, *GLUE, "--task", "sst2"]
    path = Path("glue/SST-2/dev.tsv")
    path.write_text(path.read_text() + "film <eos> plot\t1\n")
    assert_names(fails(*command), "`--model_name_or_path`", "end token")


def test_models(fails):
    command = [*GLUE, "--task", "sst2", *QUICK, "--model_name_or_path"]
    weights = Path("model/model.safetensors")
    # Cloned: the file is memory-mapped and will be truncated.
    weights_by_name = {name: value.clone() for name, value in load_file(weights).items()}
    weights.write_bytes(weights.read_bytes()[:1000])
    assert_names(fails(*command, "model"), "`--model_name_or_path model`", "weights")
    weights.unlink()
    assert_names(fails(*command, "model"), "`--model_name_or_path model`", "weights")
    name = "transformer.h.1.mlp.c_fc.weight"
    save_file({key: value for key, value in weights_by_name.items() if key != name}, weights, {"format": "pt"})
    assert_names(fails(*command, "model"), "`--model_name_or_path model`", f"`{name}`")
    save_file({**weights_by_name, name: torch.zeros(3, 4)}, weights, {"format": "pt"})
    assert_names(fails(*command, "model"), "`--model_name_or_path model`", f"`{name}`")
    unsupported = {"marian": plain_seq2seq("marian"), "tensorized_transformer": tiny_backbone("tensorized")}
    for model_type, model in unsupported.items():
        model.save_pretrained("other")
        tokenizer_for("gpt2").save_pretrained("other")
        message = fails(*command, "other")
        assert_names(message, "`--model_name_or_path other`", model_type)
    shutil.rmtree("other")
    tokenizer_for("gpt2").save_pretrained("other")
    assert_names(fails(*command, "other"), "`--model_name_or_path other`")


OPTIONS = {
    "--do_train false": "`--do_train false`",
    "--eval_strategy steps": "`--eval_strategy`",
    "--metric_for_best_model loss": "`--metric_for_best_model loss`",
    "--resume_from_checkpoint somewhere": "`--resume_from_checkpoint`",
    "--push_to_hub true": "`--push_to_hub`",
    "--max_length 4": "`--max_length`",
    "--max_length 33": "33",
    "--seeds one": "--seeds",
    "--report_to nobody": "`--report_to`",
    "--ngram_size 3": "`--ngram_size`",
    "--train_sampling_strategy by_name": "by_name",
    "--dataloader_drop_last true --per_device_train_batch_size 900": "`--dataloader_drop_last`",
}


@pytest.mark.parametrize("options", OPTIONS)
def test_options(fails, options):
    assert_names(fails(*MODEL, *GLUE, "--task", "sst2", *options.split()), OPTIONS[options])


def test_output_folder_in_use(fails, here):
    command = [*MODEL, *GLUE, "--task", "sst2", "--max_steps", "1", "--output_dir", "run"]
    run(*command)
    assert_names(fails(*command, "--max_length", "8"), "`--output_dir", "max_length", "None", "8")
    shutil.copytree("model", "run/cola/seed-42")
    assert_names(fails(*command, "--task", "cola"), "`--output_dir run/cola/seed-42`")
    # An interrupted run with a damaged last checkpoint.
    Path("run/sst2/seed-42/trainer_state.json").unlink()
    weights = Path("run/sst2/seed-42/checkpoint-1/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:1000])
    message = fails(*command)
    assert_names(message, "checkpoint-1", "damaged")
