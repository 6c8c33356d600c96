"""What heads on a frozen model learn from: text that the model writes itself, and its hidden states on disk."""

import ctypes
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteria, TrainingArguments

from ..data.errors import InputError
from ..data.pairs import read_lines
from ..data.rows import RowStore, pad_batch, pad_prompts, total_length
from ..data.tokenizers import start_token_id
from ..evaluation.head_acceptance import best_tokens
from ..evaluation.models import max_positions
from ..evaluation.scores import evaluating
from ..method.logits import LogitLayer
from .run_folder import RunFolder
from .trainer import to_device

SELF_GENERATED, HIDDEN_STATES = "self_generated", "hidden_states"
# Tokens of a row that a model writes, its prompt included.
LONGEST_ROW = 1024


class OwnRows(NamedTuple):
    """Rows of tokens that a model wrote itself, for training and, without another text, for validation."""

    train: Sequence[np.ndarray] = ()
    validation: Sequence[np.ndarray] = ()

    def counts(self) -> dict[str, str]:
        """Return the number of tokens of each split, with the unit."""
        splits = {"own text": self.train, "validation on own text": self.validation}
        return {name: f"{total_length(rows):,} tokens" for name, rows in splits.items() if rows}


def own_rows(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    options: Any,
    folder: RunFolder,
    training: TrainingArguments,
) -> OwnRows:
    """
    Return the text of `--self_generated`: what is in the folder of the run, and in training, what is missing there,
    written now. Without another text (`options.validates_on_own_text`), the last rows are for validation.
    """
    if options.self_generated is None:
        return OwnRows()
    store = RowStore(folder.path / SELF_GENERATED)
    if training.do_train and total_length(store.rows) < options.self_generated:
        folder.begin(tokenizer)
        lines = [line for line in read_lines(options.prompt_file) if line.strip()] if options.prompt_file else []
        _write_rows(to_device(model, training), encode_prompts(lines, tokenizer), store, options, training)
    rows = store.limit(options.self_generated).rows
    if not options.validates_on_own_text:
        return OwnRows(rows)
    held_out = max(1, round(len(rows) * options.validation_percentage / 100))
    if held_out >= len(rows):
        raise InputError("`--self_generated` must be enough for several rows: raise it.")
    return OwnRows(rows[:-held_out], rows[-held_out:])


def encode_prompts(lines: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """
    Return the token ids of each prompt: of a message of the user in the tokenizer's chat template, if it has one, or
    of the start token and the text. Without lines, the start token is the only prompt.
    """
    start = start_token_id(tokenizer)
    if not lines and start is None:
        raise InputError("`--self_generated` needs a `--prompt_file`, as the tokenizer has no token to begin with.")
    if not lines:
        return [[start]]
    if tokenizer.chat_template is not None:
        messages = [[{"role": "user", "content": line}] for line in lines]
        return [tokenizer.apply_chat_template(each, add_generation_prompt=True)["input_ids"] for each in messages]
    beginning = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    return [[*beginning, *ids] for ids in tokenizer(list(lines), add_special_tokens=False)["input_ids"]]


def _write_rows(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    store: RowStore,
    options: Any,
    training: TrainingArguments,
) -> None:
    """
    Let the model continue prompts, part by part, until `store` has `options.self_generated` tokens. An interrupted
    call is continued by the next one, which writes what an uninterrupted one would have.
    """
    amount, size = options.self_generated, options.self_generated_batch_size
    # Room for an answer.
    longest = min(max_positions(model) or LONGEST_ROW, LONGEST_ROW)
    prompts = [prompt[-max(longest // 2, longest - options.self_generated_length) :] for prompt in prompts]
    done = total_length(store.rows)
    _keep_freed_memory()
    with (
        evaluating(model),
        torch.random.fork_rng(),
        tqdm(
            total=amount,
            initial=done,
            desc="The model writes its training text",
            unit=" tokens",
            disable=training.disable_tqdm or training.process_index > 0,
        ) as bar,
    ):
        while done < amount:
            part = len(store.parts)
            torch.manual_seed(training.seed + part)
            chosen = [prompts[(part * size + i) % len(prompts)] for i in range(size)]
            store.append(_continue(model, chosen, options, bar))
            done += total_length(store.parts[-1])
            # Prompts count, and tokens after the end of a row do not.
            bar.n = done
            bar.refresh()


def _keep_freed_memory() -> None:
    """
    Let glibc keep freed memory for the next step of `generate`, which makes a new cache in every step. Otherwise, up
    to half of the time on a CPU goes to the kernel, which clears the same pages again and again.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(libc, "mallopt"):
        M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
        libc.mallopt(M_MMAP_THRESHOLD, 2**30)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


class _Progress(StoppingCriteria):
    """Criteria that never stop, and move a progress bar with every step."""

    def __init__(self, bar: tqdm):
        self.bar = bar

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs) -> torch.BoolTensor:
        self.bar.update(len(input_ids))
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


@torch.no_grad()
def _continue(model: PreTrainedModel, prompts: Sequence[Sequence[int]], options: Any, bar: tqdm) -> list[list[int]]:
    """Return the prompts with the model's continuations, without drafts, up to and including the end token."""
    temperature, search = options.self_generated_temperature, model.generation_config
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    ends = search.eos_token_id if isinstance(search.eos_token_id, list) else [search.eos_token_id]
    # Padding on the left, so that all rows continue at the same position.
    inputs = {name: tensor.to(model.device) for name, tensor in pad_prompts(prompts, side="left").items()}
    begin = inputs["input_ids"].shape[1]
    generated = model.generate(
        **inputs,
        **{"do_sample": False, **sampling},
        max_length=None,
        max_new_tokens=min(options.self_generated_length, (max_positions(model) or math.inf) - begin),
        pad_token_id=0 if ends[0] is None else ends[0],
        num_beams=1,
        use_mtp=False,
        ensemble_lambda=0.0,
        stopping_criteria=[_Progress(bar)],
    )
    rows = generated[:, begin:].tolist()
    lengths = [next((i + 1 for i, token in enumerate(row) if token in ends), len(row)) for row in rows]
    return [[*prompt, *row[:length]] for prompt, row, length in zip(prompts, rows, lengths, strict=True)]


class CachedRows(Dataset):
    r"""
    Rows with the hidden states of a frozen model, computed once and kept on disk. An item has `input_ids`,
    `last_hidden_state` of shape `(T, d)`, and `shift_labels`: the model's own most likely next tokens. `labels` are
    the same tensor, since Trainer counts targets only with labels. The rows may have different lengths.

    Args:
        rows (`Dataset`): Items with `input_ids`.
        folder (`Path`): The run's folder.
        model (`PreTrainedModel`): The model.
        training (`TrainingArguments`): For device, batch size and progress bar.
    """

    def __init__(self, rows: Dataset, folder: Path, model: PreTrainedModel, training: TrainingArguments):
        self.rows = rows
        self.folder = folder / HIDDEN_STATES
        self.width = model.get_output_embeddings().weight.shape[1]
        self.ends = np.cumsum([len(rows[i]["input_ids"]) for i in range(len(rows))])
        with training.main_process_first(local=False, desc="computing hidden states"):
            self._fill(to_device(model, training), training)

    @torch.no_grad()
    def _fill(self, model: PreTrainedModel, training: TrainingArguments) -> None:
        """Compute what is missing. An interrupted call is continued by the next one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        progress = self.folder / "num_rows.json"
        done = json.loads(progress.read_text()) if progress.exists() else 0
        states, tokens = self._open("r+" if done else "w+")
        rest = Subset(self.rows, range(done, len(self.rows)))
        loader = DataLoader(rest, training.eval_batch_size, collate_fn=pad_batch)
        total, is_silent = int(self.ends[-1]), training.disable_tqdm or training.process_index > 0
        with evaluating(model), tqdm(total=total, desc="Hidden states", unit=" tokens", disable=is_silent) as bar:
            for batch in loader:
                inputs = {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask")}
                main = model.ngram_predictions(**inputs).main[inputs["attention_mask"].bool()]
                begin = self._begin(done)
                states[begin : begin + len(main)] = main.float().cpu().numpy()
                tokens[begin : begin + len(main)] = best_tokens(LogitLayer.of(model), main).cpu().numpy()
                states.flush()
                tokens.flush()
                done += len(batch["input_ids"])
                # Renamed when complete, so that an interruption leaves no damaged file.
                unfinished = progress.with_name(f".{progress.name}")
                unfinished.write_text(str(done))
                unfinished.replace(progress)
                bar.n = int(self.ends[done - 1])
                bar.refresh()

    def _open(self, mode: str) -> tuple[np.memmap, np.memmap]:
        """Open the states, in half the size of float32 (far more exact than training needs), and the next tokens."""
        count = int(self.ends[-1])
        states = np.memmap(self.folder / "states.bin", np.float16, mode, shape=(count, self.width))
        return states, np.memmap(self.folder / "tokens.bin", np.int32, mode, shape=(count,))

    def _begin(self, i: int) -> int:
        return 0 if i == 0 else int(self.ends[i - 1])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        states, tokens = self._open("r")
        span = slice(self._begin(i), int(self.ends[i]))
        next_tokens = torch.from_numpy(np.array(tokens[span], dtype=np.int64))
        return {
            "input_ids": self.rows[i]["input_ids"],
            "last_hidden_state": torch.from_numpy(np.array(states[span])),
            "labels": next_tokens,
            "shift_labels": next_tokens,
        }
