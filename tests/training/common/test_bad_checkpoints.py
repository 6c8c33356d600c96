"""Checkpoints whose files do not fit together: one line that names the checkpoint, before anything is trained."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import Trainer

from ngram_wdr_hf.data.tokenizers import train_word_tokenizer
from ngram_wdr_hf.training.common.command_line import run_script
from tests.support import clm_runs, nmt_runs
from tests.support.errors import assert_names
from tests.support.scripts import one_sentence


def configure(file: str = "config.json", **fields) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps({**config, **fields}))

    return change


def write(file: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / file).write_bytes(content)


def larger_tokenizer(folder: Path) -> None:
    text = Path(folder.parent / "text").read_text()
    train_word_tokenizer([text, " ".join(map(str, range(90)))]).save_pretrained(folder)


# The damage, and what the line names besides the folder.
DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "configuration is cut off": (write("config.json", b"{"), "config.json"),
    "configuration is binary": (write("config.json", bytes(range(256))), "config.json"),
    "configuration is empty": (write("config.json", b"{}"), "model_type"),
    "vocabulary is larger": (configure(vocab_size=99), "weights"),
    "vocabulary is smaller": (configure(vocab_size=5), "weights"),
    "vocabulary is negative": (configure(vocab_size=-1), "negative"),
    "vocabulary is a word": (configure(vocab_size="many"), "vocab_size"),
    "more layers": (configure(n_layer=5), "transformer.h.2"),
    "no heads of attention": (configure(n_head=0), "ZeroDivisionError"),
    "unknown activation": (configure(activation_function="steep"), "steep"),
    "unknown type": (configure(model_type="nonsense"), "nonsense"),
    "another type": (configure(model_type="t5"), "t5"),
    "weights are empty": (write("model.safetensors", b""), "weights"),
    "weights are no weights": (write("model.safetensors", b"x" * 500), "weights"),
    "tokenizer is cut off": (write("tokenizer.json", b"{"), "tokenizer"),
    "tokenizer is larger": (larger_tokenizer, "tokenizer"),
    "no beams": (configure("generation_config.json", num_beams=0), "`num_beams`"),
    "length is a word": (configure("generation_config.json", max_length="long"), "`max_length`"),
    "end is a word": (configure("generation_config.json", eos_token_id="end"), "`eos_token_id`"),
}


@pytest.fixture
def fails(tmp_path, monkeypatch, capsys) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Trainer, "train", lambda *args, **kwargs: pytest.fail("trained"))

    def call(run: Callable[..., object], *arguments: str) -> str:
        command = ["--model_name_or_path", "damaged", *arguments, "--output_dir", "run"]
        assert run_script(lambda options: run(*options), command) == 2
        assert not Path("run", "run.yaml").exists()
        return one_sentence(capsys.readouterr().err)

    return call


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("do_train", ["true", "false"])
def test_damaged_checkpoints(name, do_train, fails, checkpoint, texts, files):
    damage, named = DAMAGES[name]
    shutil.copy(texts["train"], "text")
    shutil.copytree(checkpoint, "damaged")
    damage(Path("damaged"))
    assert_names(fails(clm_runs.run, *files, *clm_runs.QUICK, "--do_train", do_train), "damaged", named)


def test_translation_without_a_start(fails, marian, pairs):
    shutil.copytree(marian, "damaged")
    write("generation_config.json", b"{}")(Path("damaged"))
    assert_names(fails(nmt_runs.run, *pairs, *nmt_runs.QUICK), "damaged", "`decoder_start_token_id`")
