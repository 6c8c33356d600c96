"""Settings files that do not fit, and failures outside the program: one line and exit code 2."""

import errno
import gzip
import os
import zlib
from pathlib import Path

import pytest
import torch
from datasets.exceptions import DatasetGenerationError
from safetensors import SafetensorError

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.masking import MaskedText, Masking
from ngram_wdr_hf.data.token_stream import EvaluationWindows
from ngram_wdr_hf.data.tokenizers import train_masked_tokenizer
from ngram_wdr_hf.evaluation.scores import MaskedScores, score, score_masked
from ngram_wdr_hf.training.clm.arguments import parse_clm_arguments
from ngram_wdr_hf.training.common.command_line import run_script
from tests.support import mlm_runs
from tests.support.errors import assert_names, raises_naming
from tests.support.masked import tiny_masked
from tests.support.scripts import one_sentence
from tests.support.texts import stream_of
from tests.support.tiny import tiny_model

SETTINGS = {
    b"\x80\x81binary": "settings.yaml",
    b"\x00\x01\x02": "settings.yaml",
    b"max_steps: [": "settings.yaml",
    b"- max_steps": "settings.yaml",
    b"max_steps": "settings.yaml",
    b"lerning_rate: 1": "`--learning_rate`",
    b"3: 4": "`3`",
    b"max_steps: many": "`--max_steps`",
    b"max_steps: 1.5": "`--max_steps`",
    b"max_steps: [1, 2]": "`max_steps`",
    b"max_steps: {a: 1}": "`max_steps`",
    b"max_steps:": "`max_steps`",
    b"max_steps: true": "`--max_steps`",
    b"max_steps: 0": "`--max_steps`",
    b"learning_rate: fast": "`--learning_rate`",
    b"learning_rate: .nan": "`--learning_rate`",
    b"train_file: {a: 1}": "`train_file`",
    b"train_file: [[a]]": "`train_file`",
    b"train_file: 3": "3",
    b"tokenizer: [word, bpe]": "`tokenizer`",
    b"tokenizer: ''": "`--tokenizer`",
    b"lambda_grid: [0, much]": "`--lambda_grid`",
    b"streaming: perhaps": "`--streaming`",
    b"output_dir: {}": "`output_dir`",
    b"lr_scheduler_type: steep": "`--lr_scheduler_type`",
    b"lr_scheduler_kwargs: {steepness: 1}\nmax_steps: 1": "`--lr_scheduler_kwargs",
    b"lr_scheduler_kwargs: [1]": "`lr_scheduler_kwargs`",
    b"seed: null": "`seed`",
    b"preset: 3": "`--preset`",
    b"help: true": "`help`",
}


@pytest.mark.parametrize("content", SETTINGS, ids=repr)
def test_settings_files(content, tmp_path, monkeypatch, capsys):
    from tests.support.clm_runs import run

    monkeypatch.chdir(tmp_path)
    Path("settings.yaml").write_bytes(content)
    assert run_script(lambda arguments: run(*arguments), ["settings.yaml", "--num_workers", "1"]) == 2
    assert_names(one_sentence(capsys.readouterr().err), SETTINGS[content])
    assert os.listdir() == ["settings.yaml"]


def test_settings_file_equals_command_line(tmp_path):
    """`no` is the word "no", and `1e-3` a number; the command line wins, and the preset comes last."""
    path = tmp_path / "settings.yaml"
    path.write_text(
        "preset: paper-tf-small\neval_strategy: no\nlearning_rate: 1e-3\ntrain_file: a.txt\nlambda_grid: [0, 0.4]\n"
        "save_total_limit: null\nstreaming: yes\nseed: 3\nreport_to: [tensorboard, wandb]\nprompt: 2024-01-01\n"
        "lr_scheduler_kwargs: {power: 2}\nlabel_smoothing: null\n"
    )
    parsed = parse_clm_arguments([str(path), "--seed", "4", "--output_dir", str(tmp_path / "run")], "")
    assert (parsed.model.preset, parsed.model.label_smoothing, parsed.report.prompt) == (
        "paper-tf-small",
        None,
        "2024-01-01",
    )
    assert (parsed.data.train_file, parsed.data.streaming) == (["a.txt"], True)
    assert parsed.report.lambda_grid == [0.0, 0.4]
    training = parsed.training
    assert (training.eval_strategy, training.learning_rate, training.seed) == ("no", 1e-3, 4)
    assert (training.save_total_limit, training.report_to) == (None, ["tensorboard", "wandb"])
    assert training.lr_scheduler_kwargs == {"power": 2}


def system_error(code: int) -> OSError:
    return OSError(code, os.strerror(code), "some/file")


OUTSIDE = {
    "read-only": (system_error(errno.EROFS), "some/file"),
    "permission": (system_error(errno.EACCES), "some/file"),
    "no such file": (system_error(errno.ENOENT), "some/file"),
    "a folder": (system_error(errno.EISDIR), "some/file"),
    "name too long": (system_error(errno.ENAMETOOLONG), "some/file"),
    "disk full": (system_error(errno.ENOSPC), "some/file"),
    "too many files": (system_error(errno.EMFILE), "some/file"),
    "without a file": (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "disk"),
    "no such model": (OSError("nowhere is not a valid\nmodel identifier"), "nowhere"),
    "gzip": (gzip.BadGzipFile("Not a gzipped file"), "gzipped"),
    "zlib": (zlib.error("invalid distance"), "invalid distance"),
    "cut off": (EOFError("Compressed file ended"), "Compressed file"),
    "Latin-1": (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "invalid start byte"),
    "safetensors": (SafetensorError("header too large"), "header too large"),
    "memory": (torch.OutOfMemoryError("CUDA out of memory"), "`--per_device_train_batch_size`"),
    "main memory": (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "`--per_device_train_batch_size`"),
}


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("generated", [False, True])
def test_failures_outside_the_program(name, generated, capsys):
    error, named = OUTSIDE[name]

    def main(arguments):
        if not generated:
            raise error
        # `datasets` wraps what goes wrong while it reads a file.
        raise DatasetGenerationError("An error occurred") from error

    assert run_script(main, []) == 2
    assert_names(one_sentence(capsys.readouterr().err), named)


@pytest.mark.parametrize(
    "error", [TypeError("x"), AttributeError("x"), RuntimeError("x"), KeyError("x"), ValueError("x")]
)
def test_errors_of_the_program_are_raised(error):
    def main(arguments):
        raise error

    with pytest.raises(type(error)):
        run_script(main, [])


@pytest.mark.parametrize("length", [0, 1])
def test_text_without_targets_has_no_perplexity(length):
    with raises_naming(InputError, "targets"):
        score(tiny_model(), EvaluationWindows(stream_of([3] * length), 8), [0.0], batch_size=2).perplexities()


def test_text_without_masked_tokens_has_no_perplexity():
    tokenizer = train_masked_tokenizer(["one two\n"], 300)
    text = MaskedText(stream_of([tokenizer.sep_token_id] * 5), 8, Masking(tokenizer))
    scores = score_masked(tiny_masked("bert", vocab_size=len(tokenizer)), text, batch_size=2)
    assert isinstance(scores, MaskedScores) and scores.num_masked == 0
    for name in ("nll", "perplexity", "accuracy"):
        with raises_naming(InputError, "targets"):
            getattr(scores, name)


def test_text_without_tokens_to_mask(files, tmp_path, monkeypatch, capsys):
    (tmp_path / "special.txt").write_text("<sep> <sep> <sep> <sep> <sep>\n" * 3)
    command = [*files, "--validation_file", str(tmp_path / "special.txt"), *mlm_runs.QUICK]
    assert (
        run_script(lambda arguments: mlm_runs.run(*arguments), [*command, "--output_dir", str(tmp_path / "run")]) == 2
    )
    assert_names(one_sentence(capsys.readouterr().err), "validation", "mask")
    assert not (tmp_path / "run").exists()
