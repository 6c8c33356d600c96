"""Batches for every kind of model: padded, packed, with holes, too short. The loss that the slow reference expects."""

import torch

from tests.support import reference
from tests.support.tiny import KINDS, MASKED, SEQ2SEQ, VOCAB_SIZE, left_pad, model_of, random_ids
from tests.support.training import assert_same_gradients, gradients


def _causal_batches() -> dict[str, dict]:
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


def _translation_batches() -> dict[str, dict]:
    source, labels = random_ids(2, 6, seed=7), random_ids(2, 7)
    source_mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    padded_source = torch.where(source_mask == 1, source, 1)
    ragged = labels.clone()
    ragged[1, 4:] = -100
    holes = labels.clone()
    holes[0, 3] = holes[1, 0] = holes[1, 4:6] = -100
    decoder_ids = random_ids(2, 7, seed=3)
    padded, left_mask = left_pad([decoder_ids[0], decoder_ids[1, :4]])
    right_mask, inner_mask = left_mask.flip(1), torch.tensor([[1, 1, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 1]])
    own = {"input_ids": source, "decoder_input_ids": decoder_ids}
    return {
        "plain": {"input_ids": source, "labels": labels},
        "ragged": {"input_ids": padded_source, "attention_mask": source_mask, "labels": ragged},
        "holes": {"input_ids": source, "labels": holes},
        "decoder ids of one's own": {**own, "labels": holes},
        "left-padded decoder": {
            "input_ids": source,
            "decoder_input_ids": padded,
            "decoder_attention_mask": left_mask,
            "labels": labels.masked_fill(left_mask == 0, -100),
        },
        # The label of the last token before the padding, the end token, is a target as well.
        "right-padded decoder": {
            **own,
            "decoder_attention_mask": right_mask,
            "labels": labels.masked_fill(right_mask == 0, -100),
        },
        "padding inside, labels everywhere": {**own, "decoder_attention_mask": inner_mask, "labels": labels},
        "shorter than N": {"input_ids": source, "labels": labels[:, :2]},
        "one token": {"input_ids": source[:, :1], "labels": labels[:, :1]},
        "no labels at all": {"input_ids": source, "labels": torch.full_like(labels, -100)},
    }


def masked_batch(batch_size: int, length: int, share: float = 0.7, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids with masked tokens, and labels. Some targets keep their token in the input."""
    ids = random_ids(batch_size, length, seed)
    chances = torch.rand(ids.shape, generator=torch.Generator().manual_seed(seed + 1))
    labels = ids.masked_fill(chances >= share, -100)
    return ids.masked_fill(chances < 0.8 * share, 0), labels


def _masked_batches() -> dict[str, dict]:
    ids, labels = masked_batch(3, 13)
    mask = torch.ones_like(ids)
    mask[0, 9:] = mask[2, :4] = 0
    positions = torch.tensor([*range(4), *range(7), *range(2)]).repeat(3, 1)
    return {
        "plain": {"input_ids": ids, "labels": labels},
        "padded": {
            "input_ids": ids.masked_fill(mask == 0, 1),
            "attention_mask": mask,
            "labels": labels.masked_fill(mask == 0, -100),
        },
        "packed": {"input_ids": ids, "labels": labels, "position_ids": positions},
    }


BATCHES, TRANSLATIONS, MASKED_BATCHES = _causal_batches(), _translation_batches(), _masked_batches()


def batches_of(name: str) -> dict[str, dict]:
    """Return the batches for a kind of model."""
    return TRANSLATIONS if name in SEQ2SEQ else MASKED_BATCHES if name in MASKED else BATCHES


def padded(name: str) -> dict:
    """Return a padded batch for a kind of model."""
    return dict(batches_of(name)["ragged" if name in SEQ2SEQ else "padded" if name in MASKED else "right padding"])


# T5 computes attention weights in float32, even in a float64 model.
TOLERANCE = {name: {} for name in KINDS} | {"t5": {"rtol": 1e-5, "atol": 1e-6}}


def shift_right(labels: torch.Tensor) -> torch.Tensor:
    """Return the default decoder inputs: the start token, then the labels shifted by one."""
    return torch.cat([torch.full_like(labels[:, :1], 1), labels[:, :-1].masked_fill(labels[:, :-1] == -100, 1)], 1)


def text_of(name: str, batch: dict) -> dict:
    """Return a batch without its labels as arguments of `reference.hidden_states`."""
    if name not in SEQ2SEQ:
        return {key: value for key, value in batch.items() if key != "labels"}
    decoder_ids = batch.get("decoder_input_ids")
    return {
        "input_ids": shift_right(batch["labels"]) if decoder_ids is None else decoder_ids,
        "attention_mask": batch.get("decoder_attention_mask"),
        "encoder_ids": batch["input_ids"],
        "encoder_mask": batch.get("attention_mask"),
    }


def expected_loss(name: str, model, batch: dict, **options) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the training loss and the mean NLL of each depth."""
    text = text_of(name, batch)
    if name not in SEQ2SEQ:
        return reference.training_loss(model, labels=batch["labels"], **text, **options)
    text["decoder_ids"], text["decoder_mask"] = text.pop("input_ids"), text.pop("attention_mask")
    return reference.translation_loss(model, labels=batch["labels"], **text, **options)


def assert_loss_matches(name, batch, num_items=None, **fields) -> None:
    """Check the training loss of every depth and its gradients against the slow reference."""
    model = model_of(name, **fields).train()
    output = model(**batch, num_items_in_batch=num_items)
    expected, expected_nlls = expected_loss(name, model, batch, num_items=num_items)
    assert output.logits is None and output.past_key_values is None
    torch.testing.assert_close(output.loss, expected, **TOLERANCE[name])
    torch.testing.assert_close(output.head_losses, expected_nlls, **TOLERANCE[name])
    assert output.head_losses.shape == (model.config.ngram_size,) and not output.head_losses.requires_grad
    # Without targets, the expected loss is a constant without gradients.
    expected = expected + 0 * model.lm_head.weight.sum()
    assert_same_gradients(gradients(model, output.loss), gradients(model, expected), **TOLERANCE[name])


def expected_nll(name: str, logits: torch.Tensor, batch: dict) -> torch.Tensor:
    """Return the mean next-token NLL of the ensemble's logits."""
    if name in SEQ2SEQ:
        return reference.translation_nll(logits, batch["labels"], batch.get("decoder_attention_mask"))
    structure = {key: batch[key] for key in ("attention_mask", "position_ids") if key in batch}
    return reference.next_word_nll(logits, batch["labels"], **structure)


# Every kind with and without tied embeddings: Marian with separate vocabularies, too, and T5 with (original) and
# without (v1.1) scaled hidden states.
VARIANTS = [
    ("gpt2", {}),
    ("gpt2", {"tie_word_embeddings": False}),
    ("marian", {}),
    ("marian", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 23}),
    ("marian", {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}),
    ("marian", {"scale_embedding": True}),
    ("bart", {}),
    ("bart", {"tie_word_embeddings": False, "scale_embedding": True}),
    ("t5", {}),
    ("t5", {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"}),
    ("bert", {}),
    ("modernbert", {}),
]


def fit(batch: dict, fields: dict) -> dict:
    """Map the decoder tokens of a batch into the vocabulary of a variant."""
    size = fields.get("decoder_vocab_size", VOCAB_SIZE)
    decoder_side = [key for key in ("labels", "decoder_input_ids") if key in batch]
    return batch | {key: torch.where(batch[key] < 0, batch[key], batch[key] % size) for key in decoder_side}


# Must have no effect in evaluation mode.
DROPOUT = {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5}


def padded_batch() -> dict[str, torch.Tensor]:
    """Build a batch of different lengths. Row 2 has no labels; row 3 has only a label that is not a next token."""
    ids = random_ids(6, 9)
    mask = (torch.arange(9) < torch.tensor([9, 4, 7, 9, 2, 8])[:, None]).long()
    labels = ids.masked_fill(mask == 0, -100)
    labels[2] = labels[3, 1:] = labels[5, 3] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}
