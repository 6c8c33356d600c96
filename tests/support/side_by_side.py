"""Plain and speculative decoding of the same prompts, side by side."""

import string
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tests.support.tiny import SEQ2SEQ, VOCAB_SIZE, left_pad, random_ids, tiny_model, tiny_seq2seq

END, PAD = 0, 1
NO_END = {"eos_token_id": None, "pad_token_id": PAD}
# A price of 0 makes the heads draft all the time.
DRAFTS = {"use_mtp": True, "draft_threshold": 0.0}
EVERYTHING = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
LENGTHS = (6, 3, 1, 4)


def prompts(batch_size: int, name: str = "gpt2") -> dict[str, torch.Tensor]:
    """Of different lengths, padded on the side that the model wants."""
    ids, mask = left_pad([random_ids(1, length, seed=length)[0] for length in LENGTHS[:batch_size]], PAD)
    if name in SEQ2SEQ:
        order = mask.argsort(dim=1, descending=True, stable=True)
        ids, mask = ids.gather(1, order), mask.gather(1, order)
    return {"input_ids": ids, "attention_mask": mask}


def model_of(name: str, **fields) -> PreTrainedModel:
    return tiny_seq2seq(name, torch.float64, **fields) if name in SEQ2SEQ else tiny_model(torch.float64, **fields)


def generate(model, inputs: dict[str, Any], **options):
    return model.generate(**{"max_new_tokens": 20, "do_sample": False, **inputs, **options})


def generate_both(model, inputs: dict[str, Any], **options) -> tuple[Any, Any]:
    """What plain decoding returns, and what speculative decoding does."""
    options = {**EVERYTHING, **options}
    return generate(model, inputs, **options), generate(model, inputs, **options, **DRAFTS)


def row_lengths(output, ends: Sequence[int] = (END,)) -> list[int]:
    """How many tokens each row was given, its end included."""
    rows = output.sequences[:, output.sequences.shape[1] - len(output.scores) :].tolist()
    return [next((i + 1 for i, token in enumerate(row) if token in ends), len(row)) for row in rows]


def assert_same_generation(plain, speculative, ends: Sequence[int] = (END,), tolerance: float = 1e-4) -> None:
    """The same tokens, and the same scores up to the end of each row. After it, a row has none."""
    assert torch.equal(speculative.sequences, plain.sequences)
    lengths = row_lengths(plain, ends)
    for kind in ("scores", "logits"):
        for step, (actual, wanted) in enumerate(zip(speculative[kind], plain[kind], strict=True)):
            assert actual.dtype == wanted.dtype and actual.shape == wanted.shape
            is_over = torch.tensor([step >= length for length in lengths])
            torch.testing.assert_close(actual[~is_over], wanted[~is_over], rtol=0, atol=tolerance)
            assert not actual[is_over].any()
    assert speculative.speculation.num_tokens == sum(lengths)


def were_drafts_right(output) -> bool:
    """Whether some drafts stood and others did not."""
    return 0 < sum(output.speculation.num_accepted) < sum(output.speculation.num_drafted)


def letter_tokenizer() -> PreTrainedTokenizerFast:
    """A letter a token."""
    tokens = ["<eos>", "<pad>", *string.ascii_letters][:VOCAB_SIZE]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges=[]))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>", padding_side="left")
