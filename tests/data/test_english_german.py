"""The built-in English-German pairs."""

from ngram_wdr_hf.data.english_german import english_german

SIZES = {"train": 600, "validation": 40, "test": 30}


def test_pairs_of_splits():
    splits, again, larger = english_german(SIZES), english_german(SIZES), english_german({**SIZES, "train": 700})
    other = english_german(SIZES, seed=1)
    assert {split: len(rows) for split, rows in splits.items()} == SIZES
    for side in ("source", "target"):
        texts = [text for rows in splits.values() for text in rows[side]]
        assert len({*texts}) == len(texts) and all(text.strip() for text in texts)
    assert all(rows.to_list() == again[split].to_list() != other[split].to_list() for split, rows in splits.items())
    # The test set does not depend on the size of the training set.
    assert splits["test"].to_list() == larger["test"].to_list()
