"""Text that an OpenAI-style server of the model writes (vLLM, SGLang, llama.cpp), many rows at a time."""

import json
import math
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.errors import InputError
from ..data.rows import RowStore, pad_batch, total_length
from ..evaluation.head_acceptance import best_tokens
from ..evaluation.models import max_positions
from ..evaluation.scores import evaluating
from ..method.logits import LogitLayer

# Rows per part of the store, and answers to compare with the model's own: their number and length.
ROWS_PER_PART = 256
COMPARED_ROWS, COMPARED_TOKENS = 16, 32
# The share of greedy tokens that a server of the same model has in common with it, rounding and quantization aside.
LEAST_AGREEMENT = 0.8
# Seconds. An answer may wait for others.
TIMEOUT = 600.0


class ServedModel:
    """The only or first model of the server at a URL, which is to be `model`."""

    def __init__(self, url: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        self.url = url.rstrip("/").removesuffix("/v1") + "/v1"
        self.tokenizer, self.longest = tokenizer, max_positions(model) or math.inf
        ends = model.generation_config.eos_token_id
        self.end_token_id = ends[0] if isinstance(ends, list) else ends
        self.name = self.call("models")["data"][0]["id"]

    def call(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the reply of the server; raise an `InputError` if there is none that can be used."""
        data = None if body is None else json.dumps(body).encode()
        try:
            request = Request(f"{self.url}/{path}", data, {"Content-Type": "application/json"})
            with urlopen(request, timeout=TIMEOUT) as reply:
                return json.load(reply)
        except (OSError, HTTPException, ValueError) as error:
            reason = error.read().decode()[:300] if isinstance(error, HTTPError) else error
            raise InputError(
                f"`--server {self.url}` did not answer ({reason}): see to the server and repeat the command, which "
                "continues the text that is there."
            ) from error

    def answer(self, prompt: Sequence[int], max_tokens: int, temperature: float) -> list[int]:
        """Return the tokens that the model continues a prompt with, up to and including the end token."""
        # The whole distribution is sampled, without a seed, which ends vLLM's CPU build. vLLM returns the tokens; the
        # text of other servers is tokenized again.
        sampling = {"temperature": temperature, "top_p": 1.0, "top_k": -1, "return_token_ids": True}
        length = min(max_tokens, self.longest - len(prompt))
        body = {"model": self.name, "prompt": [*prompt], "max_tokens": length, **sampling}
        choice = self.call("completions", body)["choices"][0]
        tokens = choice.get("token_ids") or self.tokenizer(choice["text"], add_special_tokens=False)["input_ids"]
        has_end = self.end_token_id in (None, *tokens[-1:]) or choice["finish_reason"] != "stop"
        return [*tokens] if has_end else [*tokens, self.end_token_id]


def write_by_server(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    store: RowStore,
    options: Any,
    bar: tqdm,
) -> None:
    """
    Let `--server` continue prompts until the store has `--self_generated` tokens, `--self_generated_batch_size` rows
    at a time. What was answered before an interruption is kept.
    """
    length, temperature = options.self_generated_length, options.self_generated_temperature
    rows, begun, count = [], len(store.rows), total_length(store.rows)
    requests: dict[Future, Sequence[int]] = {}
    pool = ThreadPoolExecutor(options.self_generated_batch_size)
    try:
        served = ServedModel(options.server, model, tokenizer)
        check_model(served, model, prompts, pool)
        while count < options.self_generated:
            while len(requests) < options.self_generated_batch_size:
                prompt = prompts[begun % len(prompts)]
                requests[pool.submit(served.answer, prompt, length, temperature)] = prompt
                begun += 1
            done, _ = wait(requests, return_when=FIRST_COMPLETED)
            if any(future.exception() for future in done):
                # Other requests may be answered still.
                done, _ = wait(requests)
            new = [[*requests.pop(future), *future.result()] for future in done if not future.exception()]
            rows += new
            count += total_length(new)
            bar.update(total_length(new))
            for future in done:
                future.result()
            if len(rows) >= ROWS_PER_PART:
                store.append(rows)
                rows = []
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        if rows:
            store.append(rows)


@torch.no_grad()
def check_model(
    served: ServedModel, model: PreTrainedModel, prompts: Sequence[Sequence[int]], pool: ThreadPoolExecutor
) -> None:
    """Raise an `InputError` if the server's greedy answers are not those of `model`."""
    asked = prompts[:COMPARED_ROWS]
    answers = list(pool.map(lambda prompt: served.answer(prompt, COMPARED_TOKENS, 0.0), asked))
    items = [{"input_ids": torch.tensor([*pair[0], *pair[1]])} for pair in zip(asked, answers, strict=True)]
    batch = {name: tensor.to(model.device) for name, tensor in pad_batch(items).items()}
    with evaluating(model):
        choices = best_tokens(LogitLayer.of(model), model.ngram_predictions(**batch).main).tolist()
    pairs = [
        (token, row[len(prompt) - 1 + i])
        for prompt, answer, row in zip(asked, answers, choices, strict=True)
        for i, token in enumerate(answer)
    ]
    agreement = sum(token == choice for token, choice in pairs) / max(len(pairs), 1)
    if agreement < LEAST_AGREEMENT:
        raise InputError(
            f"`--server {served.url}` serves another model, `{served.name}`: only {agreement:.0%} of its greedy "
            "tokens are those of the model that gets heads. Serve that model."
        )
