"""Training text that a model writes itself, so that its heads learn to draft what it would say."""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from ...data.errors import InputError
from ...data.rows import RowStore
from ...evaluation.modes import evaluating
from .arguments import RunArguments
from .own_text_arguments import OWN_TEXT_BATCH_SIZE

SETTINGS = "settings.json"


@dataclass(frozen=True)
class SelfGeneration:
    r"""
    How a model writes its training text.

    Args:
        amount (`int`): How much to write: tokens with their prompts.
        max_length (`int`): Maximum number of tokens of a row.
        temperature (`float`): The temperature of sampling; 0 is greedy search.
        batch_size (`int`): Rows that are written at the same time.
        seed (`int`): The seed of the first batch; every further batch has the next one.
        model (`str`, *optional*): The name of the model.
        inputs (`str`, *optional*): A digest of what the model continues.
    """

    amount: int
    max_length: int
    temperature: float
    batch_size: int
    seed: int
    model: str = ""
    inputs: str = ""

    @classmethod
    def of(
        cls, arguments: RunArguments, default_temperature: float, max_length: int, inputs: Iterable[np.ndarray]
    ) -> "SelfGeneration":
        """Return what the options of a run say. `inputs` are the tokens that the model will continue."""
        data = arguments.data
        return cls(
            data.self_generated,
            max_length,
            default_temperature if data.self_generated_temperature is None else data.self_generated_temperature,
            data.self_generated_batch_size or OWN_TEXT_BATCH_SIZE,
            arguments.training.seed,
            arguments.model.model_name_or_path,
            _digest(inputs),
        )


def write_rows(
    model: PreTrainedModel,
    write_part: Callable[[int], Sequence[Sequence[int]]],
    size: Callable[[Sequence[np.ndarray]], int],
    unit: str,
    options: SelfGeneration,
    folder: Path,
    shows_progress: bool = True,
) -> RowStore:
    r"""
    Let a model write rows, part by part, until there are `options.amount` of them, and keep them in `folder`: an
    interrupted call continues there, and ends with what an uninterrupted one would have written, also if it was for
    more. Raise an `InputError` if the folder has rows that were written with other options.

    Args:
        model (`PreTrainedModel`): The model, in evaluation mode meanwhile.
        write_part (`Callable`): Function that writes the rows of the part with this number.
        size (`Callable`): Function that returns how much of the amount some rows are.
        unit (`str`): The unit of the amount, for the progress bar.
        options (`SelfGeneration`): How to write.
        folder (`Path`): The folder of the rows.
        shows_progress (`bool`, *optional*, defaults to `True`): Whether to show a progress bar.
    """
    _check_options(options, folder)
    store = RowStore(folder).limit(options.amount, size)
    done = sum(map(size, store.parts))
    with (
        evaluating(model),
        torch.random.fork_rng(),
        tqdm(
            total=options.amount,
            initial=done,
            desc="The model writes its training text",
            unit=f" {unit}",
            disable=not shows_progress,
        ) as bar,
    ):
        while done < options.amount:
            part = len(store.parts)
            torch.manual_seed(options.seed + part)
            store.append(write_part(part))
            bar.update(size(store.parts[-1]))
            done += size(store.parts[-1])
    return store


@torch.no_grad()
def generate_rows(
    model: PreTrainedModel, inputs: dict[str, torch.Tensor], begin: int, max_new_tokens: int, temperature: float
) -> list[list[int]]:
    """
    Return what the model generates from `inputs`, without the ensemble and without drafts: the tokens from column
    `begin` on, up to and including the end token.
    """
    sampling = {"do_sample": False}
    if temperature:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    ends = model.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [] if ends is None else [ends])
    generated = model.generate(
        **{name: tensor.to(model.device) for name, tensor in inputs.items()},
        max_length=None,
        max_new_tokens=max_new_tokens,
        pad_token_id=next(iter(ends), 0),
        num_beams=1,
        use_mtp=False,
        ensemble_lambda=0.0,
        **sampling,
    )
    rows = generated[:, begin:].tolist()
    return [row[: next((i + 1 for i, token in enumerate(row) if token in ends), len(row))] for row in rows]


def _check_options(options: SelfGeneration, folder: Path) -> None:
    """Write the options to the folder, or check that they are those in it; the amount may differ."""
    path, now = folder / SETTINGS, asdict(options)
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        different = [name for name in now if name != "amount" and name in before and before[name] != now[name]]
        if different:
            name = different[0]
            how = "from other inputs" if name == "inputs" else f"with `{name}` {before[name]} and not {now[name]}"
            raise InputError(f"The text in {folder} was written {how}: delete the folder to write it again.")
        return
    folder.mkdir(parents=True, exist_ok=True)
    # Renamed when complete, so that an interruption leaves no damaged file.
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(json.dumps(now, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(path)


def _digest(rows: Iterable[np.ndarray]) -> str:
    total = hashlib.sha256()
    for row in rows:
        total.update(np.asarray(row, dtype=np.int64).tobytes())
        # No token has this id, so the ends of the rows count as well.
        total.update(b"\xff" * 8)
    return total.hexdigest()[:16]
