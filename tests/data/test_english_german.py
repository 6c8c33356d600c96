"""The built-in English-German pairs."""

import random
import re

import pytest

from ngram_wdr_hf.data.english_german import ENGLISH, GERMAN, KINDS, _phrase, english_german

SIZES = {"train": 600, "validation": 40, "test": 30}


def test_sizes_and_no_text_twice():
    splits = english_german(SIZES)
    assert {split: len(rows) for split, rows in splits.items()} == SIZES
    for side in ("source", "target"):
        texts = [text for rows in splits.values() for text in rows[side]]
        assert len({*texts}) == len(texts) and all(text.strip() for text in texts)


def test_same_seed_same_pairs_and_a_test_set_of_its_own():
    splits, again, larger = english_german(SIZES), english_german(SIZES), english_german({**SIZES, "train": 700})
    other = english_german(SIZES, seed=1)
    for split, rows in splits.items():
        assert rows.to_list() == again[split].to_list() != other[split].to_list()
    assert splits["test"].to_list() == larger["test"].to_list()


@pytest.mark.parametrize("kind", ["day", "ago", "quantity", "speed", "price"])
def test_both_languages_have_the_same_digits(kind):
    for seed in range(50):
        phrase = _phrase(kind, random.Random(seed))
        english, german = (sorted(re.findall(r"\d", phrase(locale))) for locale in (ENGLISH, GERMAN))
        assert english == german


def test_languages_differ_in_order_number_and_case():
    class First:
        """Draws the first choice and the largest number."""

        choice = staticmethod(lambda choices: choices[0])
        randint = staticmethod(lambda low, high: high)
        randrange = staticmethod(lambda stop: stop - 1)

    texts = {kind: (_phrase(kind, First())(ENGLISH), _phrase(kind, First())(GERMAN)) for kind in KINDS}
    assert texts["ago"] == ("50 minutes ago", "vor 50 Minuten")
    assert texts["day"] == ("December 6", "6. Dezember")
    assert texts["speed"] == ("20 kilometers per second", "20 Kilometer pro Sekunde")
    assert all(english != german for english, german in texts.values())
