"""Printed tables fit into 80 columns."""

import pytest

from ngram_wdr_hf.training.common.report import as_text

NARROW = [["model", "split", "words"], ["wdr", "test", "1,234"]]


def test_a_table_that_fits():
    assert as_text(NARROW) == "model  split  words\nwdr    test   1,234"


@pytest.mark.parametrize("count", [7, 11, 30])
def test_a_wide_table(count):
    heading = ["model", "split", "words", *(f"λ={i / 10:g}" for i in range(count))]
    values = [f"{100 + i}.25" for i in range(count)]
    printed = as_text([heading, ["wdr N=4, masked tokens", "validation", "217,646", *values]])
    tables = [table.split("\n") for table in printed.split("\n\n")]
    assert len(tables) > 1 and max(len(line) for table in tables for line in table) <= 80
    # Every table has the first two columns, and every other column occurs once.
    begins = ("model ", "wdr N=4, masked tokens  validation ")
    assert all(line.startswith(begin) for table in tables for line, begin in zip(table, begins, strict=True))
    assert [cell for head, _ in tables for cell in head.split()[2:]] == heading[2:]
    assert [cell for _, row in tables for cell in row.split()[5:]] == ["217,646", *values]
    # Columns stay aligned to the right.
    assert all(head.endswith(head.split()[-1]) and len(head) <= len(row) for head, row in tables)
