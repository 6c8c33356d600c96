"""Rows of tokens: kept on disk in parts, padded for training and evaluation."""

import numpy as np
import pytest
import torch

from ngram_wdr_hf.data.rows import EvaluationRows, RowStore, TrainingRows, pad_batch, pad_prompts
from ngram_wdr_hf.evaluation.scores import score
from tests.support.checkpoints import tokenizer_of_words
from tests.support.tiny import tiny_model

ROWS = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]
PADDED = [[5, 6, 7, 8], [9, 10, 0, 0], [11, 12, 13, 0]]
MASK = [[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]


def as_arrays(rows):
    return [np.array(row, dtype=np.int32) for row in rows]


def as_lists(store):
    return [row.tolist() for row in store.rows]


def test_store_keeps_rows_in_order_and_reads_no_unfinished_part(tmp_path):
    store = RowStore(tmp_path / "rows")
    assert store.rows == []
    store.append(ROWS[:2])
    (tmp_path / "rows" / ".part-00001.npz").write_bytes(b"PK, interrupted")
    again = RowStore(tmp_path / "rows")
    assert as_lists(store) == as_lists(again) == ROWS[:2] and len(again.parts) == 1
    again.append(ROWS[2:])
    assert as_lists(again) == as_lists(RowStore(tmp_path / "rows")) == ROWS
    assert sorted(path.name for path in (tmp_path / "rows").iterdir()) == ["part-00000.npz", "part-00001.npz"]


def test_parts_up_to_a_number_of_tokens(tmp_path):
    store = RowStore(tmp_path)
    assert store.limit(5).rows == []
    for row in ROWS:
        store.append([row])
    lengths = np.cumsum([len(row) for row in ROWS])
    for amount in range(1, 12):
        count = next((i + 1 for i, length in enumerate(lengths) if length >= amount), len(ROWS))
        assert as_lists(RowStore(tmp_path).limit(amount)) == ROWS[:count]


def test_batches_are_padded_on_the_right():
    rows = TrainingRows(as_arrays(ROWS))
    items = [{**rows[i], "last_hidden_state": torch.full((len(ROWS[i]), 2), float(i + 1))} for i in range(len(rows))]
    batch = pad_batch(items)
    assert batch["input_ids"].tolist() == PADDED and batch["attention_mask"].tolist() == MASK
    assert batch["labels"].tolist() == [[5, 6, 7, 8], [9, 10, -100, -100], [11, 12, 13, -100]]
    assert batch["last_hidden_state"][1].tolist() == [[2.0, 2.0], [2.0, 2.0], [0.0, 0.0], [0.0, 0.0]]


def test_prompts_are_padded_on_either_side():
    left, right = (pad_prompts(ROWS, side) for side in ("left", "right"))
    assert left["input_ids"].tolist() == [[5, 6, 7, 8], [0, 0, 9, 10], [0, 11, 12, 13]]
    assert left["attention_mask"].tolist() == [[1, 1, 1, 1], [0, 0, 1, 1], [0, 1, 1, 1]]
    assert right["input_ids"].tolist() == PADDED and right["attention_mask"].tolist() == MASK


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_every_token_but_the_first_is_scored_in_its_own_row(batch_size):
    """The scores are those of the rows one by one, for every depth."""
    model = tiny_model(torch.float64, ngram_size=3)
    rows = EvaluationRows(as_arrays(ROWS), tokenizer_of_words())
    assert rows.num_targets == 6
    scores = score(model, rows, [0.0, 0.4, (0.8, 0.1, 0.2)], batch_size)
    # One row at a time, weighted by its targets.
    counts = torch.tensor([[max(0, len(row) - 1 - n) for n in range(3)] for row in ROWS])
    grid = {"ensemble_lambda": [0.0, 0.4], "ensemble_weights": [(0.8, 0.1, 0.2)]}
    with torch.no_grad():
        inputs = ({"input_ids": torch.tensor([row]), "labels": torch.tensor([row])} for row in ROWS)
        outputs = [model.eval()(**each, num_items_in_batch=1, **grid) for each in inputs]
    assert scores.nll_sums == pytest.approx(sum(output.loss for output in outputs).tolist())
    head_sums = (torch.stack([output.head_losses for output in outputs]) * counts).sum(0)
    assert scores.head_nlls == pytest.approx((head_sums / counts.sum(0)).tolist())
    assert scores.num_tokens == 6
