"""Batches for causal models: padded, packed, with holes, too short."""

import torch

from tests.support.tiny import left_pad, random_ids


def batches() -> dict[str, dict]:
    ids = random_ids(2, 9)
    padded, left_mask = left_pad([random_ids(1, 9)[0], random_ids(1, 5, seed=1)[0]])
    right_mask = left_mask.flip(1)
    right_padded = torch.where(right_mask == 1, random_ids(2, 9, seed=2), 1)
    holes = ids.clone()
    holes[0, 3] = holes[1, 5:7] = holes[1, 1] = -100
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 0, 1, 2], [0, 1, 2, 3, 4, 5, 6, 0, 1]])
    inner_mask = torch.tensor([[1, 1, 1, 0, 0, 1, 1, 1, 1], [1] * 9])
    return {
        "plain": {"input_ids": ids, "labels": ids},
        "right padding": {
            "input_ids": right_padded,
            "attention_mask": right_mask,
            "labels": right_padded.masked_fill(right_mask == 0, -100),
        },
        "left padding": {
            "input_ids": padded,
            "attention_mask": left_mask,
            "labels": padded.masked_fill(left_mask == 0, -100),
        },
        "padding inside, labels everywhere": {"input_ids": ids, "attention_mask": inner_mask, "labels": ids},
        "holes": {"input_ids": ids, "labels": holes},
        "packed": {"input_ids": ids, "labels": ids, "position_ids": positions, "use_cache": False},
        "packed, first tokens masked": {
            "input_ids": ids,
            "labels": ids.masked_fill(positions == 0, -100),
            "position_ids": positions,
            "use_cache": False,
        },
        "shorter than N": {"input_ids": ids[:, :3], "labels": ids[:, :3]},
        "one token": {"input_ids": ids[:, :1], "labels": ids[:, :1]},
        "no labels at all": {"input_ids": ids, "labels": torch.full_like(ids, -100)},
    }


BATCHES = batches()

# Must have no effect in evaluation mode.
DROPOUT = {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5}


def padded_batch() -> dict[str, torch.Tensor]:
    """Build a batch of different lengths. Row 2 has no labels; row 3 has only a label that is not a next token."""
    ids = random_ids(6, 9)
    mask = (torch.arange(9) < torch.tensor([9, 4, 7, 9, 2, 8])[:, None]).long()
    labels = ids.masked_fill(mask == 0, -100)
    labels[2] = labels[3, 1:] = labels[5, 3] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}
