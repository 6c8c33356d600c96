"""Small runs of `train_nmt.py`, and the sentence pairs for them."""

import json
import random
from pathlib import Path

from ngram_wdr_hf.data.tokenizers import train_sentence_tokenizer
from ngram_wdr_hf.metrics import TRANSLATION
from ngram_wdr_hf.training import nmt
from ngram_wdr_hf.training.report import RunResult
from tests.support.processes import ROOT
from tests.support.scripts import QUICK_STEPS, as_arguments
from tests.support.tiny import plain_seq2seq

SCRIPT = ROOT / "train_nmt.py"
LANGUAGES = {"source": "en", "target": "de"}
NUM_PAIRS = {"train": 200, "validation": 24, "test": 22}
NOUNS = {"the cat": "die Katze", "the child": "das Kind", "the mouse": "die Maus", "the horse": "das Pferd"}
VERBS = {"sees": "sieht", "likes": "mag", "hears": "hört", "follows": "verfolgt"}
TIMES = {"": "", " today": "heute ", " often": "oft ", " in the morning": "am Morgen "}
# A model for this small vocabulary.
SIZES = {"d_model": 32, "init_std": 0.1, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.1}
QUICK = as_arguments(**QUICK_STEPS, vocab_size=400, batch_tokens=256, num_beams=2, lambda_grid="0 0.4", num_workers=1)
# Long enough to learn something.
LONGER = as_arguments(max_steps=150, eval_steps=50, learning_rate=1e-2, ngram_size=3, lambda_grid="0 0.2 0.4 0.6")
# Options to repeat for evaluation only, because they are no training settings.
SEARCH = as_arguments(num_beams=2, disable_tqdm="true")


def toy_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Return sentence pairs. English puts the time last, German first and the verb after it."""
    chance = random.Random(seed)
    pairs = []
    for _ in range(count):
        one, other, verb = chance.choice([*NOUNS]), chance.choice([*NOUNS]), chance.choice([*VERBS])
        time = chance.choice([*TIMES])
        german = [NOUNS[one], VERBS[verb]] if not time else [VERBS[verb], NOUNS[one]]
        pairs.append((f"{one} {verb} {other}{time} .", f"{TIMES[time]}{' '.join(german)} {NOUNS[other]} ."))
    return pairs


def write_sides(folder: Path, split: str, pairs: list[tuple[str, str]]) -> list[str]:
    """Write two parallel text files and return the options for them."""
    arguments = []
    for i, (side, language) in enumerate(LANGUAGES.items()):
        path = folder / f"{split}.{language}"
        path.write_text("".join(f"{pair[i]}\n" for pair in pairs), encoding="utf-8")
        arguments += [f"--{split}_{side}", str(path)]
    return arguments


def write_json(folder: Path, split: str, pairs: list[tuple[str, str]]) -> None:
    """Write JSON lines with the fields `en` and `de`."""
    rows = [json.dumps(dict(zip(LANGUAGES.values(), pair, strict=True))) for pair in pairs]
    (folder / f"{split}.jsonl").write_text("\n".join(rows), encoding="utf-8")


def write_pairs(folder: Path) -> dict[str, list[str]]:
    """Write the files of each split and return the options for them."""
    return {
        split: write_sides(folder, split, toy_pairs(count, seed))
        for seed, (split, count) in enumerate(NUM_PAIRS.items())
    }


def save_plain_models(folder: Path) -> dict[str, str]:
    """Save plain models with dropout and a tokenizer for the pairs, one folder per model."""
    tokenizer = train_sentence_tokenizer([text for pair in toy_pairs(200, 0) for text in pair], 400)
    folders = {name: str(folder / name) for name in ("marian", "bart", "t5")}
    for name, path in folders.items():
        sizes = {"d_model": 32, "num_layers": 1, "dropout_rate": 0.1} if name == "t5" else SIZES
        tokenizer.save_pretrained(path)
        plain_seq2seq(name, vocab_size=len(tokenizer), **sizes).save_pretrained(path)
    return folders


def run(*arguments: str) -> RunResult | None:
    return nmt.main(arguments)


def translations_of(folder: Path) -> list[dict[str, str]]:
    lines = (folder / "test_translations.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def with_bleu(monkeypatch, figures: list[float]) -> list[list[str]]:
    """Replace the BLEU of the first scored sets by `figures`, then by 0. Return the list of scored sets."""
    scored, load = [], nmt.evaluate.load

    class Changed:
        def compute(self, predictions, references):
            scored.append(list(predictions))
            figure = figures[len(scored) - 1] if len(scored) <= len(figures) else 0.0
            return load(TRANSLATION).compute(predictions=predictions, references=references) | {"bleu": figure}

    monkeypatch.setattr(nmt.evaluate, "load", lambda *args, **kwargs: Changed())
    return scored
