"""Functions to compare and edit checkpoints, and to save tiny ones with a word tokenizer."""

import json
import random
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerBase

from ngram_wdr_hf.data.tokenizers import train_word_tokenizer
from tests.support.tiny import tiny_model


def assert_same_state(model, other):
    state, expected = model.state_dict(), other.state_dict()
    assert set(state) == set(expected)
    for name, value in expected.items():
        assert state[name].dtype == value.dtype and torch.equal(state[name], value), name


def loss_and_logits(model, batch) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        output = model.eval()(**batch)
    return output.loss, output.logits


def tied_names(model) -> list[str]:
    weight = model.get_output_embeddings().weight
    return [key for key, value in model.named_parameters(remove_duplicate=False) if value is weight]


def initial_std(config) -> float:
    """Return the initial standard deviation of the backbone's linear layers."""
    if config.model_type.endswith("t5"):
        return config.initializer_factor * config.d_model**-0.5
    return getattr(config, "initializer_range", None) or config.init_std


def rewrite_weights(folder: Path, keep) -> None:
    path = folder / "model.safetensors"
    save_file({name: value for name, value in load_file(path).items() if keep(name)}, path, metadata={"format": "pt"})


def rewrite_config(folder: Path, **fields) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


WORDS = [f"word{i}" for i in range(30)]
CONTEXT = 16


def random_lines(*lengths: int, seed: int = 0) -> str:
    """Return one line of random words per length."""
    generator = random.Random(seed)
    return "".join(" ".join(generator.choices(WORDS, k=length)) + "\n" for length in lengths)


def tokenizer_of_words() -> PreTrainedTokenizerBase:
    return train_word_tokenizer([" ".join(WORDS) + "\n"])


def save_checkpoint(folder: Path, tokenizer: PreTrainedTokenizerBase, make=tiny_model, **fields):
    """Save a tiny model with the vocabulary of `tokenizer`, and the tokenizer."""
    fields = {"n_positions": CONTEXT, "pad_token_id": None, **fields}
    model = make(vocab_size=len(tokenizer), **fields)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model
