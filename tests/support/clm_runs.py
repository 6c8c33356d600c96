"""Small runs of `train_clm.py`, and the texts for them."""

import random
from pathlib import Path

from ngram_wdr_hf.training.clm.arguments import parse_clm_arguments
from ngram_wdr_hf.training.clm.report import ClmResult
from ngram_wdr_hf.training.clm.run import run_clm

SCRIPT = Path(__file__).parents[2] / "train_clm.py"
QUICK = {
    "max_steps": 4,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "logging_steps": 1,
    "warmup_steps": 0,
    "block_size": 16,
    "per_device_train_batch_size": 4,
    "sample_tokens": 8,
    "disable_tqdm": "true",
}
QUICK = [argument for name, value in QUICK.items() for argument in (f"--{name}", str(value))]


def write_text(path: Path, lines: int, seed: int) -> Path:
    """Sentences in which a word says much about the ones that follow it."""
    chance = random.Random(seed)
    names = ["the cat", "a dog", "one bird", "my fish"]
    verbs = ["sees", "likes", "hears", "follows"]
    sentences = [f"{chance.choice(names)} {chance.choice(verbs)} {chance.choice(names)} today ." for _ in range(lines)]
    path.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return path


def run(*arguments: str) -> list[ClmResult]:
    return run_clm(parse_clm_arguments(arguments, "train_clm.py"))


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
