"""Text that a language model writes itself, from prompts."""

import math
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...data.errors import InputError
from ...data.rows import RowStore, pad_prompts, total_length
from ...data.tokenizers import start_token_id
from ..common.self_generated import SelfGeneration, generate_rows, write_rows

# Prompts are cut to this share of the longest row, so that there is room for an answer.
PROMPT_SHARE = 0.5


def encode_prompts(lines: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """
    Return the token ids of each prompt: of a message of the user in the tokenizer's chat template, if it has one, or
    of the start token and the text. Without lines, the start token is the only prompt.
    """
    start = start_token_id(tokenizer)
    if not lines:
        if start is None:
            raise InputError(
                "`--self_generated` needs prompts, because the tokenizer has no token that begins a text: set "
                "`--prompt_file`."
            )
        return [[start]]
    if tokenizer.chat_template is not None:
        messages = [[{"role": "user", "content": line}] for line in lines]
        return [
            tokenizer.apply_chat_template(message, add_generation_prompt=True)["input_ids"] for message in messages
        ]
    beginning = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    return [[*beginning, *ids] for ids in tokenizer(list(lines), add_special_tokens=False)["input_ids"]]


def write_own_text(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    options: SelfGeneration,
    folder: Path,
    shows_progress: bool = True,
) -> RowStore:
    """
    Let a model continue prompts until it has written `options.amount` tokens in all, and return the rows, prompts
    included, as [`write_rows`] keeps them in `folder`.
    """
    limit = math.ceil(PROMPT_SHARE * options.max_length)

    def write_part(part: int) -> list[list[int]]:
        first = part * options.batch_size
        return _continue(
            model, [prompts[(first + i) % len(prompts)][-limit:] for i in range(options.batch_size)], options
        )

    return write_rows(model, write_part, total_length, "tokens", options, folder, shows_progress)


def _continue(model: PreTrainedModel, prompts: Sequence[Sequence[int]], options: SelfGeneration) -> list[list[int]]:
    """Return the prompts with the model's continuations, up to and including the end token."""
    # Padding on the left, so that all rows continue at the same position.
    inputs = pad_prompts(prompts, side="left")
    longest = inputs["input_ids"].shape[1]
    rows = generate_rows(model, inputs, longest, options.max_length - longest, options.temperature)
    return [[*prompt, *row] for prompt, row in zip(prompts, rows, strict=True)]
