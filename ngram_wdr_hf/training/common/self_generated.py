"""Training text that a model writes itself, so that its heads learn to draft what it would say."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...data.errors import InputError
from ...data.rows import RowStore, pad_prompts
from ...data.tokenizer import start_token_id
from ...evaluation.modes import evaluating

SETTINGS = "settings.json"
# Prompts are cut to this share of the longest row, so that there is room for an answer.
PROMPT_SHARE = 0.5


@dataclass(frozen=True)
class SelfGeneration:
    r"""
    How a model writes its training text.

    Args:
        num_tokens (`int`): Number of tokens to write, prompts included.
        max_length (`int`): Maximum number of tokens of a row, prompt included.
        temperature (`float`): The temperature of sampling; 0 is greedy search.
        batch_size (`int`): Rows that are written at the same time.
        seed (`int`): The seed of the first batch; every further batch has the next one.
    """

    num_tokens: int
    max_length: int
    temperature: float
    batch_size: int
    seed: int


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
    Let a model continue prompts until it has written `options.num_tokens` tokens in all, and return the rows, prompts
    included. They are kept in `folder`: an interrupted call continues there, and writes what an uninterrupted one
    would have written. Raise an `InputError` if the folder has rows that were written with other options.
    """
    _check_options(options, folder)
    store = RowStore(folder)
    limit = math.ceil(PROMPT_SHARE * options.max_length)
    with (
        evaluating(model),
        torch.random.fork_rng(),
        tqdm(
            total=options.num_tokens,
            initial=store.num_tokens,
            desc="The model writes its training text",
            unit=" tokens",
            disable=not shows_progress,
        ) as bar,
    ):
        while store.num_tokens < options.num_tokens:
            part = len(store.parts)
            torch.manual_seed(options.seed + part)
            first = part * options.batch_size
            batch = [prompts[(first + i) % len(prompts)][-limit:] for i in range(options.batch_size)]
            store.append(_continue(model, batch, options))
            bar.update(sum(map(len, store.parts[-1])))
    return store


def _check_options(options: SelfGeneration, folder: Path) -> None:
    """Write the options to the folder, or check that they are those in it; the number of tokens may differ."""
    path, now = folder / SETTINGS, asdict(options)
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        different = [name for name in now if name != "num_tokens" and before.get(name) != now[name]]
        if different:
            name = different[0]
            raise InputError(
                f"The text in {folder} was written with `{name}` {before.get(name)} and not {now[name]}: delete the "
                "folder to write it again."
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(now, indent=2) + "\n", encoding="utf-8")


@torch.no_grad()
def _continue(model: PreTrainedModel, prompts: Sequence[Sequence[int]], options: SelfGeneration) -> list[list[int]]:
    """Return the prompts with the model's continuations, up to and including the end token."""
    # Padding on the left, so that all rows continue at the same position.
    batch = pad_prompts(prompts, side="left")
    longest = batch["input_ids"].shape[1]
    sampling = {"do_sample": False}
    if options.temperature:
        sampling = {"do_sample": True, "temperature": options.temperature, "top_k": 0, "top_p": 1.0}
    ends = model.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [] if ends is None else [ends])
    generated = model.generate(
        **{name: tensor.to(model.device) for name, tensor in batch.items()},
        max_length=None,
        max_new_tokens=options.max_length - longest,
        pad_token_id=next(iter(ends), 0),
        use_mtp=False,
        ensemble_lambda=0.0,
        **sampling,
    )
    rows = []
    for prompt, row in zip(prompts, generated[:, longest:].tolist(), strict=True):
        end = next((i + 1 for i, token in enumerate(row) if token in ends), len(row))
        rows.append([*prompt, *row[:end]])
    return rows
