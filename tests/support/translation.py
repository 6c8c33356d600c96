"""Batches and model variants for encoder-decoder models, and a check of the loss against the slow reference."""

import torch

from tests.support import reference
from tests.support.tiny import SEQ2SEQ, VOCAB_SIZE, left_pad, random_ids, tiny_seq2seq
from tests.support.training import assert_same_gradients, gradients

NAMES = list(SEQ2SEQ)
# T5 computes attention weights in float32, even in a float64 model.
TOLERANCE = {"marian": {}, "bart": {}, "t5": {"rtol": 1e-5, "atol": 1e-6}}


def batches() -> dict[str, dict]:
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


BATCHES = batches()


def shift_right(labels: torch.Tensor) -> torch.Tensor:
    """Return the default decoder inputs: the start token, then the labels shifted by one."""
    return torch.cat([torch.full_like(labels[:, :1], 1), labels[:, :-1].masked_fill(labels[:, :-1] == -100, 1)], 1)


def text_of(batch: dict) -> dict:
    """Return the batch as arguments of `reference.hidden_states`."""
    decoder_ids = batch.get("decoder_input_ids")
    return {
        "input_ids": shift_right(batch["labels"]) if decoder_ids is None else decoder_ids,
        "attention_mask": batch.get("decoder_attention_mask"),
        "encoder_ids": batch["input_ids"],
        "encoder_mask": batch.get("attention_mask"),
    }


def expected_loss(model, batch: dict, **options) -> tuple[torch.Tensor, torch.Tensor]:
    text = text_of(batch)
    return reference.translation_loss(
        model,
        text["encoder_ids"],
        text["input_ids"],
        batch["labels"],
        encoder_mask=text["encoder_mask"],
        decoder_mask=text["attention_mask"],
        **options,
    )


def assert_loss_matches(name, batch, num_items=None, **fields) -> None:
    model = tiny_seq2seq(name, torch.float64, **fields).train()
    output = model(**batch, num_items_in_batch=num_items)
    expected, expected_nlls = expected_loss(model, batch, num_items=num_items)
    assert output.logits is None and output.past_key_values is None
    torch.testing.assert_close(output.loss, expected, **TOLERANCE[name])
    torch.testing.assert_close(output.head_losses, expected_nlls, **TOLERANCE[name])
    assert output.head_losses.shape == (model.config.ngram_size,) and not output.head_losses.requires_grad
    # Without targets, the expected loss is a constant without gradients.
    expected = expected + 0 * model.lm_head.weight.sum()
    assert_same_gradients(gradients(model, output.loss), gradients(model, expected), **TOLERANCE[name])


# Includes Marian with separate vocabularies, and T5 with (original) and without (v1.1) scaled hidden states.
VARIANTS = [
    ("marian", {}),
    ("marian", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 23}),
    ("marian", {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}),
    ("marian", {"scale_embedding": True}),
    ("bart", {}),
    ("bart", {"tie_word_embeddings": False, "scale_embedding": True}),
    ("t5", {}),
    ("t5", {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"}),
]


def fit(batch: dict, fields: dict) -> dict:
    """Map the decoder tokens of a batch into the vocabulary of a variant."""
    size = fields.get("decoder_vocab_size", VOCAB_SIZE)
    decoder_side = [key for key in ("labels", "decoder_input_ids") if key in batch]
    return batch | {key: torch.where(batch[key] < 0, batch[key], batch[key] % size) for key in decoder_side}
