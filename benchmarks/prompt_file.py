"""A checkpoint with heads and a file of prompts, for `speculate.py`."""

import json
from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.modeling.generation import NgramGenerationMixin


def load_model(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a checkpoint with heads and its tokenizer; raise an `InputError` for anything else."""
    try:
        config = AutoConfig.from_pretrained(name)
        auto_class = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        model, tokenizer = auto_class.from_pretrained(name).eval(), AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise InputError(f"`--model {name}` cannot be loaded: {str(error).splitlines()[0]}") from error
    if not isinstance(model, NgramGenerationMixin) or not model.ngram_heads:
        raise InputError(f"`--model {name}` has no N-gram heads: add them with `with_ngram_heads` and train them.")
    vocab_size = model.config.get_text_config(encoder=True).vocab_size
    if len(tokenizer) > vocab_size:
        raise InputError(
            f"The tokenizer of `--model {name}` has {len(tokenizer)} tokens, but the model has {vocab_size}: use the "
            "tokenizer that the model was trained with."
        )
    return model, tokenizer


def read_prompts(path: Path, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """
    Return the tokens of each prompt in a file: one prompt per line, or JSON lines with `{"prompt": ...}` or
    `{"messages": [...]}`. Messages get the tokenizer's chat template, and so do lines if it has one. Empty lines are
    skipped.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"`--prompts {path}` cannot be read: it must be a text file in UTF-8.") from error
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise InputError(f"`--prompts {path}` is empty: write one prompt per line.")
    is_json = numbered[0][1].lstrip().startswith("{")
    prompts = [
        _tokens_of(line, is_json, f"Line {number} of `--prompts {path}`", tokenizer) for number, line in numbered
    ]
    if not all(prompts):
        raise InputError(f"Line {numbered[prompts.index([])][0]} of `--prompts {path}` has no tokens: remove it.")
    return prompts


def _tokens_of(line: str, is_json: bool, place: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens of one line; `place` names it in errors."""
    if is_json:
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{place} is not JSON, but the first line is: write all lines alike.") from error
    elif tokenizer.chat_template is None:
        record = {"prompt": line.strip()}
    else:
        record = {"messages": [{"role": "user", "content": line.strip()}]}
    prompt, messages = (record.get(name) if isinstance(record, dict) else None for name in ("prompt", "messages"))
    if isinstance(prompt, str):
        return tokenizer(prompt).input_ids
    if not isinstance(messages, list):
        raise InputError(f'{place} needs a text in "prompt" or a list in "messages".')
    if tokenizer.chat_template is None:
        raise InputError(f"{place} has messages, but the tokenizer has no chat template: use prompts.")
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # templates raise errors of their own
        raise InputError(f"{place} has messages that the chat template refuses: {error}") from error
    # The template contains the special tokens.
    return tokenizer(text, add_special_tokens=False).input_ids


def check_lengths(prompts: list[list[int]], model: PreTrainedModel, new_tokens: int) -> None:
    """Raise an `InputError` if a prompt and its new tokens do not fit into the model's positions."""
    config = model.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    longest = max(map(len, prompts)) + (0 if model.config.is_encoder_decoder else new_tokens)
    if positions is not None and longest > positions:
        raise InputError(
            f"The longest prompt and `--new-tokens` need {longest} positions, but the model has {positions}: shorten "
            "one of them."
        )


def batches_of(prompts: list[list[int]], batch_size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return batches of token ids with their attention masks, shorter prompts left-padded."""
    batches = []
    for begin in range(0, len(prompts), batch_size):
        rows = prompts[begin : begin + batch_size]
        width = max(map(len, rows))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        batches.append((ids, mask))
    return batches
