"""A small synchronous grammar that generates English sentences with their German translations.

A `Speaker` draws a random tree of meaning (`Sentence`, `Clause`, `NounPhrase`), which `english` and `german` render in
the two languages.
"""

import random

from datasets import Dataset, Features, Value

from .errors import InputError
from .in_english import english
from .in_german import german
from .speaker import Speaker

NUM_PAIRS = {"train": 12_000, "validation": 300, "test": 500}
MOST_PAIRS = 1_000_000
FEWEST_WORDS, MOST_WORDS = 4, 22


def english_german(num_pairs: dict[str, int] | None = None, seed: int = 0) -> dict[str, Dataset]:
    """
    Return splits of English sentences (`source`) and German translations (`target`). No sentence of either language
    occurs twice, within a split or across splits.

    Args:
        num_pairs (`dict[str, int]`, *optional*): Number of pairs per split, by default 12,000 for `train`, 300 for
            `validation`, 500 for `test`.
        seed (`int`, *optional*, defaults to 0): The same seed gives the same pairs.
    """
    num_pairs = NUM_PAIRS if num_pairs is None else num_pairs
    if min(num_pairs.values(), default=0) < 0 or sum(num_pairs.values()) > MOST_PAIRS:
        sizes = ", ".join(f"{size:,} for {split}" for split, size in num_pairs.items())
        raise InputError(f"`num_pairs` must not be negative, and at most {MOST_PAIRS:,} in all, got {sizes}.")
    speaker, seen, splits = Speaker(random.Random(seed)), set(), {}
    features = Features({"source": Value("string"), "target": Value("string")})
    # Last split first, so that the test set does not depend on the size of the training set.
    for split, size in reversed(num_pairs.items()):
        pairs = [_new_pair(speaker, seen) for _ in range(size)]
        splits[split] = Dataset.from_dict({name: [pair[name] for pair in pairs] for name in features}, features)
    return {split: splits[split] for split in num_pairs}


def _new_pair(speaker: Speaker, seen: set[str]) -> dict[str, str]:
    while True:
        sentence = speaker.sentence()
        pair = {"source": english(sentence), "target": german(sentence)}
        if FEWEST_WORDS <= len(pair["source"].split()) <= MOST_WORDS and seen.isdisjoint(pair.values()):
            seen.update(pair.values())
            return pair
