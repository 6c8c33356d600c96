"""What heads on a frozen model learn from: text that the model writes itself, and its hidden states on disk."""

import ctypes
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from ..data.errors import InputError
from ..data.pairs import read_lines
from ..data.rows import RowStore, pad_batch, pad_prompts, total_length
from ..data.tokenizers import start_token_id
from ..evaluation.head_acceptance import best_tokens
from ..evaluation.models import max_positions
from ..evaluation.scores import evaluating
from ..method.logits import LogitLayer
from .run_folder import RunFolder
from .server_text import write_by_server
from .trainer import to_device

# Tokens of a row that a model writes, its prompt included.
LONGEST_ROW = 1024


def own_rows(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    options: Any,
    folder: RunFolder,
    training: TrainingArguments,
) -> dict[str, list[np.ndarray]]:
    """Return the text of `--self_generated` by split, from the run's folder; in training, write what is missing."""
    if options.self_generated is None:
        return {}
    store = RowStore(folder.path / "self_generated")
    if training.do_train and total_length(store.rows) < options.self_generated:
        folder.begin(tokenizer)
        lines = [line for line in read_lines(options.prompt_file or []) if line.strip()]
        prompts = encode_prompts(lines, tokenizer)
        _write_rows(to_device(model, training), tokenizer, prompts, store, options, training)
    rows = store.limit(options.self_generated).rows
    if not options.validates_on_own_text:
        return {"train": rows}
    held_out = max(1, round(len(rows) * options.validation_percentage / 100))
    if held_out >= len(rows):
        raise InputError("`--self_generated` must be enough for several rows: raise it.")
    return {"train": rows[:-held_out], "validation": rows[-held_out:]}


def encode_prompts(lines: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Return the ids of each prompt, in the tokenizer's chat template if it has one; by default, the start token."""
    if not lines:
        if start_token_id(tokenizer) is None:
            raise InputError("`--self_generated` needs a `--prompt_file`: the tokenizer has no token to begin with.")
        return [[start_token_id(tokenizer)]]
    if tokenizer.chat_template is not None:
        messages = [[{"role": "user", "content": line}] for line in lines]
        return [tokenizer.apply_chat_template(each, add_generation_prompt=True)["input_ids"] for each in messages]
    beginning = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    return [[*beginning, *ids] for ids in tokenizer(list(lines), add_special_tokens=False)["input_ids"]]


def _write_rows(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[int]],
    store: RowStore,
    options: Any,
    training: TrainingArguments,
) -> None:
    """
    Let the model or its server continue prompts, part by part. An interrupted call is continued by the next; without a
    server, token for token.
    """
    amount, size = options.self_generated, options.self_generated_batch_size
    # Room for an answer.
    longest = min(max_positions(model) or LONGEST_ROW, LONGEST_ROW)
    prompts = [prompt[-max(longest // 2, longest - options.self_generated_length) :] for prompt in prompts]
    done, is_silent = total_length(store.rows), training.disable_tqdm or training.process_index > 0
    bar = tqdm(total=amount, initial=done, desc="The model writes its text", unit=" tokens", disable=is_silent)
    if options.server is not None:
        with bar:
            write_by_server(model, tokenizer, prompts, store, options, bar)
        return
    _keep_freed_memory()
    with evaluating(model), torch.random.fork_rng(), bar:
        while total_length(store.rows) < amount:
            part = len(store.parts)
            torch.manual_seed(training.seed + part)
            chosen = [prompts[(part * size + i) % len(prompts)] for i in range(size)]
            store.append(_continue(model, chosen, options, bar))
            # Prompts count, and what follows the end of a row does not.
            bar.n = total_length(store.rows)
            bar.refresh()


def _keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next cache of `generate`: the kernel takes half of the time to clear it."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(libc, "mallopt"):
        M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
        libc.mallopt(M_MMAP_THRESHOLD, 2**30)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


@torch.no_grad()
def _continue(model: PreTrainedModel, prompts: Sequence[Sequence[int]], options: Any, bar: tqdm) -> list[list[int]]:
    """Return the prompts with the model's continuations, without drafts, up to and including the end token."""

    def move_bar(input_ids: torch.LongTensor, scores: Any, **kwargs) -> torch.BoolTensor:
        """Be a stopping criterion that stops no row."""
        bar.update(len(input_ids))
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    temperature, ends = options.self_generated_temperature, model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    # Padding on the left, so that all rows continue at the same position.
    inputs = {name: tensor.to(model.device) for name, tensor in pad_prompts(prompts, side="left").items()}
    begin = inputs["input_ids"].shape[1]
    generated = model.generate(
        **inputs,
        **(sampling if temperature else {"do_sample": False}),
        max_length=None,
        max_new_tokens=min(options.self_generated_length, (max_positions(model) or math.inf) - begin),
        pad_token_id=0 if ends[0] is None else ends[0],
        num_beams=1,
        use_mtp=False,
        ensemble_lambda=0.0,
        stopping_criteria=[move_bar],
    )
    rows = generated[:, begin:].tolist()
    lengths = [next((i + 1 for i, token in enumerate(row) if token in ends), len(row)) for row in rows]
    return [[*prompt, *row[:length]] for prompt, row, length in zip(prompts, rows, lengths, strict=True)]


class CachedRows(Dataset):
    """Rows of tokens with a frozen model's hidden states `(T, d)` and its own next tokens, computed once, on disk."""

    def __init__(self, rows: Dataset, folder: Path, model: PreTrainedModel, training: TrainingArguments):
        self.rows = rows
        self.folder = folder / "hidden_states"
        self.width = model.get_output_embeddings().weight.shape[1]
        # Row i is between ends[i] and ends[i + 1].
        self.ends = np.cumsum([0, *(len(rows[i]["input_ids"]) for i in range(len(rows)))])
        with training.main_process_first(local=False, desc="computing hidden states"):
            self._fill(to_device(model, training), training)

    @torch.no_grad()
    def _fill(self, model: PreTrainedModel, training: TrainingArguments) -> None:
        """Compute what is missing. An interrupted call is continued by the next one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        progress = self.folder / "num_rows_by_length.json"
        done = json.loads(progress.read_text()) if progress.exists() else 0
        states, tokens = self._open("r+" if done else "w+")
        # Rows of similar lengths need little padding.
        order = np.argsort(np.diff(self.ends), kind="stable")
        loader = DataLoader(Subset(self.rows, order[done:]), training.eval_batch_size, collate_fn=pad_batch)
        is_silent = training.disable_tqdm or training.process_index > 0
        autocast = torch.autocast(model.device.type, torch.bfloat16, enabled=training.bf16)
        with evaluating(model), autocast:
            for batch in tqdm(loader, desc="Hidden states", unit=" batches", disable=is_silent):
                inputs = {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask")}
                # Without the heads.
                predictions, _ = model._ngram_predict({**inputs, "use_cache": False}, None, uses_ensemble=False)
                main = predictions.main[inputs["attention_mask"].bool()]
                begin, done = done, done + len(batch["input_ids"])
                spans = np.concatenate([np.arange(self.ends[i], self.ends[i + 1]) for i in order[begin:done]])
                states[spans] = main.float().cpu().numpy()
                tokens[spans] = best_tokens(LogitLayer.of(model), main).cpu().numpy()
                states.flush()
                tokens.flush()
                # Renamed when complete, so that an interruption leaves no damaged file.
                unfinished = progress.with_name(f".{progress.name}")
                unfinished.write_text(str(done))
                unfinished.replace(progress)

    def _open(self, mode: str) -> tuple[np.memmap, np.memmap]:
        """Open the states, in half the size of float32 (far more exact than training needs), and the next tokens."""
        count = int(self.ends[-1])
        states = np.memmap(self.folder / "states.bin", np.float16, mode, shape=(count, self.width))
        return states, np.memmap(self.folder / "tokens.bin", np.int32, mode, shape=(count,))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        states, tokens = self._open("r")
        span = slice(self.ends[i], self.ends[i + 1])
        next_tokens = torch.from_numpy(np.array(tokens[span], dtype=np.int64))
        return {
            "input_ids": self.rows[i]["input_ids"],
            "last_hidden_state": torch.from_numpy(np.array(states[span])),
            # Trainer counts targets only with labels.
            "labels": next_tokens,
            "shift_labels": next_tokens,
        }
