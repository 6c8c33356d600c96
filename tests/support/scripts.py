"""Short runs of the training scripts, and the texts and sentence pairs for them."""

import io
import json
import random
import re
import shutil
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ngram_wdr_hf.data.tokenizers import train_sentence_tokenizer, train_word_tokenizer
from ngram_wdr_hf.training import clm, glue, mlm, nmt
from ngram_wdr_hf.training.options import RunTrainingArguments
from ngram_wdr_hf.training.parsing import parse
from tests.support.tiny import plain_model, plain_seq2seq

SCRIPTS: dict[str, ModuleType] = {"clm": clm, "mlm": mlm, "nmt": nmt, "glue": glue}


def as_arguments(**options) -> list[str]:
    return [argument for name, value in options.items() for argument in (f"--{name}", *str(value).split(" "))]


# A few steps, evaluated twice.
STEPS = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, "logging_steps": 1, "warmup_steps": 0}
STEPS |= {"disable_tqdm": "true"}
BLOCKS = {**STEPS, "block_size": 16, "per_device_train_batch_size": 4}
QUICK = {
    "clm": as_arguments(**BLOCKS, sample_tokens=8),
    "mlm": as_arguments(**BLOCKS, vocab_size=300),
    "nmt": as_arguments(**STEPS, vocab_size=400, batch_tokens=256, num_beams=2, lambda_grid="0 0.4", num_workers=1),
    "glue": as_arguments(num_train_epochs=2, per_device_train_batch_size=8, learning_rate=1e-2, disable_tqdm="true"),
}
EVALUATE = ("--do_train", "false", "--model_name_or_path")
# Long enough to learn.
LONGER = {
    "clm": as_arguments(max_steps=40, eval_steps=20, block_size=14, sample_tokens=7, head_sample_rate=1),
    "mlm": as_arguments(max_steps=240, eval_steps=60),
    "nmt": as_arguments(max_steps=150, eval_steps=50, learning_rate=1e-2, ngram_size=3, lambda_grid="0 0.2 0.4 0.6"),
}


def run(task: str, *arguments: str | Path) -> Any:
    """Run a script and return its result."""
    return SCRIPTS[task].main([*map(str, arguments)])


def run_in_one_of_two(rank: int, folder: Path, task: str, arguments: list[str]) -> None:
    """Run a script in a process of `in_two_processes`. What it prints goes to a file."""
    with open(folder / f"printed_{rank}", "w", encoding="utf-8") as printed, redirect_stdout(printed):
        run(task, *arguments)


def parsed(task: str, *arguments: str) -> tuple[Any, Any, RunTrainingArguments]:
    """Return the options of a causal or a translation model."""
    classes = {"clm": (clm.ClmOptions, clm.ClmModelOptions), "nmt": (nmt.PairOptions, nmt.NmtModelOptions)}[task]
    arguments = [*arguments, "--report_to", "none"]
    return parse((*classes, RunTrainingArguments), arguments, task, "", {"output_dir": "run"})


class FinishedRun(NamedTuple):
    """A finished run: its command without the folder, its folder, its result and its output."""

    command: list[str]
    folder: Path
    result: Any
    printed: str


def finish(task: str, folder: Path, *command: str) -> FinishedRun:
    with redirect_stdout(io.StringIO()) as printed:
        result = run(task, *command, "--output_dir", folder)
    return FinishedRun([*command], folder, result, printed.getvalue())


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def metrics_of(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))


def figures_of(folder: Path) -> tuple:
    """Return everything that a resumed run has to find again."""
    metrics = metrics_of(folder)
    metrics["history"] = [
        {name: value for name, value in entry.items() if "runtime" not in name and "per_second" not in name}
        for entry in metrics["history"]
        if "train_loss" not in entry
    ]
    return weights_of(folder), metrics


def weights_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def translations_of(folder: Path) -> list[dict[str, str]]:
    lines = (folder / "test_translations.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def card_code(folder: Path) -> str:
    """Return the example code in a model card."""
    card = (folder / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", card, flags=re.DOTALL | re.MULTILINE)
    return code


def cut_off(complete: Path, broken: Path, last_step: int | None = None) -> None:
    """Copy the folder of a run, as it was before the result was saved, or soon after a step."""
    shutil.copytree(complete, broken)
    for name in ("trainer_state.json", "model.safetensors", "config.json", "metrics.json", "README.md"):
        (broken / name).unlink()
    for path in broken.glob("checkpoint-*"):
        if last_step is not None and int(path.name.split("-")[1]) > last_step:
            shutil.rmtree(path)


def write_text(path: Path, lines: int, seed: int) -> Path:
    """Write sentences with predictable next words."""
    chance = random.Random(seed)
    names = ["the cat", "a dog", "one bird", "my fish"]
    verbs = ["sees", "likes", "hears", "follows"]
    sentences = [f"{chance.choice(names)} {chance.choice(verbs)} {chance.choice(names)} today ." for _ in range(lines)]
    path.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return path


def save_plain_model(texts: dict[str, str], folder: Path) -> str:
    """Save a plain model with dropout, whose random numbers a resumed run must find, and a tokenizer for the texts."""
    tokenizer = train_word_tokenizer([Path(texts["train"]).read_text(encoding="utf-8")])
    tokenizer.save_pretrained(folder)
    ends = {"bos_token_id": 1, "eos_token_id": 1}
    plain_model(vocab_size=len(tokenizer), n_positions=16, resid_pdrop=0.1, **ends).save_pretrained(folder)
    return str(folder)


LANGUAGES = {"source": "en", "target": "de"}
NUM_PAIRS = {"train": 200, "validation": 24, "test": 22}
NOUNS = {"the cat": "die Katze", "the child": "das Kind", "the mouse": "die Maus", "the horse": "das Pferd"}
VERBS = {"sees": "sieht", "likes": "mag", "hears": "hört", "follows": "verfolgt"}
TIMES = {"": "", " today": "heute ", " often": "oft ", " in the morning": "am Morgen "}
# An encoder-decoder model for this small vocabulary.
SIZES = {"d_model": 32, "init_std": 0.1, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.1}


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


def save_plain_seq2seq(name: str, folder: Path, **fields) -> str:
    """Save a plain encoder-decoder model that knows nothing yet, with dropout, and a tokenizer for the pairs."""
    tokenizer = train_sentence_tokenizer([text for pair in toy_pairs(200, 0) for text in pair], 400)
    tokenizer.save_pretrained(folder)
    sizes = {"d_model": 32, "num_layers": 1, "dropout_rate": 0.1} if name == "t5" else SIZES
    plain_seq2seq(name, vocab_size=len(tokenizer), **{**sizes, **fields}).save_pretrained(folder)
    return str(folder)
