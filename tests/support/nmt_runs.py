"""
Small runs of `train_nmt.py`, and the sentence pairs for them. Test modules import it before pytest does as a plugin,
which is no harm where nothing is asserted: PYTEST_DONT_REWRITE.
"""

import io
import json
import random
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from ngram_wdr_hf.data.tokenizer import train_sentence_tokenizer
from ngram_wdr_hf.training.nmt.arguments import parse_nmt_arguments
from ngram_wdr_hf.training.nmt.report import NmtResult
from ngram_wdr_hf.training.nmt.run import run_nmt

from tests.support.tiny import plain_seq2seq

SCRIPT = Path(__file__).parents[2] / "train_nmt.py"
LANGUAGES = {"source": "en", "target": "de"}
NUM_PAIRS = {"train": 200, "validation": 24, "test": 22}
NOUNS = {"the cat": "die Katze", "the child": "das Kind", "the mouse": "die Maus", "the horse": "das Pferd"}
VERBS = {"sees": "sieht", "likes": "mag", "hears": "hört", "follows": "verfolgt"}
TIMES = {"": "", " today": "heute ", " often": "oft ", " in the morning": "am Morgen "}
# For a model with a vocabulary of these few words.
SIZES = {"d_model": 32, "init_std": 0.1, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.1}


def as_arguments(**options) -> list[str]:
    return [argument for name, value in options.items() for argument in (f"--{name}", *str(value).split(" "))]


QUICK = as_arguments(
    max_steps=4,
    eval_strategy="steps",
    eval_steps=2,
    logging_steps=1,
    warmup_steps=0,
    vocab_size=400,
    batch_tokens=256,
    num_beams=2,
    lambda_grid="0 0.4",
    num_workers=1,
    disable_tqdm="true",
)


def toy_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Sentences of which English puts the time last and German first, the verb after it."""
    chance = random.Random(seed)
    pairs = []
    for _ in range(count):
        one, other, verb = chance.choice([*NOUNS]), chance.choice([*NOUNS]), chance.choice([*VERBS])
        time = chance.choice([*TIMES])
        german = [NOUNS[one], VERBS[verb]] if not time else [VERBS[verb], NOUNS[one]]
        pairs.append((f"{one} {verb} {other}{time} .", f"{TIMES[time]}{' '.join(german)} {NOUNS[other]} ."))
    return pairs


def write_sides(folder: Path, split: str, pairs: list[tuple[str, str]]) -> list[str]:
    """Two parallel text files, as arguments."""
    arguments = []
    for i, (side, language) in enumerate(LANGUAGES.items()):
        path = folder / f"{split}.{language}"
        path.write_text("".join(f"{pair[i]}\n" for pair in pairs), encoding="utf-8")
        arguments += [f"--{split}_{side}", str(path)]
    return arguments


@pytest.fixture(scope="session")
def pair_files(tmp_path_factory) -> dict[str, list[str]]:
    """The arguments for the files of each split."""
    folder = tmp_path_factory.mktemp("pairs")
    return {
        split: write_sides(folder, split, toy_pairs(count, seed))
        for seed, (split, count) in enumerate(NUM_PAIRS.items())
    }


@pytest.fixture(scope="session")
def pairs(pair_files) -> list[str]:
    """All of them."""
    return [argument for arguments in pair_files.values() for argument in arguments]


@pytest.fixture(scope="session")
def plain_checkpoints(tmp_path_factory) -> dict[str, str]:
    """Plain models that know nothing yet, and a tokenizer for the pairs; with dropout."""
    tokenizer = train_sentence_tokenizer([text for pair in toy_pairs(200, 0) for text in pair], 400)
    folders = {}
    for name in ("marian", "bart", "t5"):
        sizes = {"d_model": 32, "num_layers": 1, "dropout_rate": 0.1} if name == "t5" else SIZES
        folders[name] = str(tmp_path_factory.mktemp(name))
        tokenizer.save_pretrained(folders[name])
        plain_seq2seq(name, vocab_size=len(tokenizer), **sizes).save_pretrained(folders[name])
    return folders


@pytest.fixture(scope="session")
def marian(plain_checkpoints) -> str:
    """A plain Marian."""
    return plain_checkpoints["marian"]


class FinishedRun(NamedTuple):
    """A run that is complete: its command, its folder, its result and what it printed."""

    command: list[str]
    folder: Path
    result: NmtResult
    printed: str


@pytest.fixture(scope="session")
def finished_nmt(marian, pairs, tmp_path_factory) -> FinishedRun:
    """Long enough to learn something."""
    folder = tmp_path_factory.mktemp("finished_nmt") / "run"
    options = as_arguments(max_steps=150, eval_steps=50, learning_rate=1e-2, ngram_size=3, lambda_grid="0 0.2 0.4 0.6")
    command = ["--model_name_or_path", marian, *pairs, "--output_dir", str(folder), *QUICK, *options]
    with redirect_stdout(io.StringIO()) as printed:
        (result,) = run(*command)
    return FinishedRun(command, folder, result, printed.getvalue())


def run(*arguments: str) -> list[NmtResult]:
    return run_nmt(parse_nmt_arguments(arguments, "train_nmt.py"))


def metrics_of(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))


def translations_of(folder: Path) -> list[dict[str, str]]:
    lines = (folder / "test_translations.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
