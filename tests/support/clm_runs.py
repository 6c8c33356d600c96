"""Small runs of `train_clm.py`, and the texts for them."""

import random
from pathlib import Path

from ngram_wdr_hf.data.tokenizers import train_word_tokenizer
from ngram_wdr_hf.training.clm import ClmModelOptions, ClmOptions, main
from ngram_wdr_hf.training.options import RunTrainingArguments
from ngram_wdr_hf.training.parsing import parse
from ngram_wdr_hf.training.report import RunResult
from tests.support.processes import ROOT
from tests.support.scripts import QUICK_BLOCKS, as_arguments
from tests.support.tiny import plain_model

SCRIPT = ROOT / "train_clm.py"
QUICK = as_arguments(**QUICK_BLOCKS, sample_tokens=8)


def write_text(path: Path, lines: int, seed: int) -> Path:
    """Write sentences with predictable next words."""
    chance = random.Random(seed)
    names = ["the cat", "a dog", "one bird", "my fish"]
    verbs = ["sees", "likes", "hears", "follows"]
    sentences = [f"{chance.choice(names)} {chance.choice(verbs)} {chance.choice(names)} today ." for _ in range(lines)]
    path.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return path


def write_texts(folder: Path) -> dict[str, str]:
    """Write one file per split and return their paths."""
    lines = {"train": 300, "validation": 40, "test": 30}
    return {name: str(write_text(folder / f"{name}.txt", count, i)) for i, (name, count) in enumerate(lines.items())}


def save_plain_model(texts: dict[str, str], folder: Path) -> str:
    """Save a plain model with dropout and a tokenizer for the texts."""
    tokenizer = train_word_tokenizer([Path(texts["train"]).read_text(encoding="utf-8")])
    tokenizer.save_pretrained(folder)
    ends = {"bos_token_id": 1, "eos_token_id": 1}
    plain_model(vocab_size=len(tokenizer), n_positions=16, resid_pdrop=0.1, **ends).save_pretrained(folder)
    return str(folder)


def run(*arguments: str) -> RunResult:
    return main(arguments)


def parsed(*arguments: str) -> tuple[ClmOptions, ClmModelOptions, RunTrainingArguments]:
    classes = (ClmOptions, ClmModelOptions, RunTrainingArguments)
    return parse(classes, [*arguments, "--report_to", "none"], "clm", "", {"output_dir": "run"})
