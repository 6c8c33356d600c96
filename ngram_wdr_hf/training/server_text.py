"""Text that an OpenAI-style server of the model writes (vLLM, SGLang, llama.cpp), many rows at a time."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import httpx
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
# An answer may wait for others, and a request is repeated before it counts as failed.
TIMEOUT, RETRIES = 600.0, 3


class ServedModel:
    """The only or first model of a server, which is to be `model`. It takes so many requests at a time."""

    def __init__(self, url: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, num_requests: int):
        self.url = url.rstrip("/") if url.rstrip("/").endswith("/v1") else f"{url.rstrip('/')}/v1"
        self.tokenizer, self.longest = tokenizer, max_positions(model) or math.inf
        ends = model.generation_config.eos_token_id
        self.end_token_id = ends[0] if isinstance(ends, list) else ends
        limits = httpx.Limits(max_connections=num_requests)
        transport = httpx.AsyncHTTPTransport(retries=RETRIES, limits=limits)
        self.client = httpx.AsyncClient(base_url=self.url, timeout=TIMEOUT, transport=transport)
        self.name: str | None = None

    async def call(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        """Return the reply of the server; raise an `InputError` if there is none that can be used."""
        try:
            reply = await self.client.request(method, path, **arguments)
            reply.raise_for_status()
            return reply.json()
        except (httpx.HTTPError, ValueError) as error:
            reply = getattr(error, "response", None)
            reason = (reply.text[:300] if reply is not None else str(error)) or type(error).__name__
            raise InputError(
                f"`--server {self.url}` did not answer ({reason}): see to the server and repeat the command, which "
                "goes on from the text that it has."
            ) from error

    async def answer(self, prompt: Sequence[int], max_tokens: int, temperature: float) -> list[int]:
        """Return the tokens that the model continues a prompt with, up to and including the end token."""
        if self.name is None:
            self.name = (await self.call("GET", "models"))["data"][0]["id"]
        # The whole distribution is sampled, without a seed, which ends vLLM's CPU build. vLLM returns the tokens; the
        # text of other servers is tokenized again.
        sampling = {"temperature": temperature, "top_p": 1.0, "top_k": -1, "return_token_ids": True}
        length = min(max_tokens, self.longest - len(prompt))
        body = {"model": self.name, "prompt": [*prompt], "max_tokens": length, **sampling}
        choice = (await self.call("POST", "completions", json=body))["choices"][0]
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
    size = options.self_generated_batch_size

    async def write() -> None:
        served = ServedModel(options.server, model, tokenizer, size)
        async with served.client:
            await check_model(served, model, prompts)
            rows, begun, count = [], len(store.rows), total_length(store.rows)
            requests: set[asyncio.Task] = set()

            async def request(i: int) -> list[int]:
                prompt = prompts[i % len(prompts)]
                length, temperature = options.self_generated_length, options.self_generated_temperature
                return [*prompt, *await served.answer(prompt, length, temperature)]

            try:
                while count < options.self_generated:
                    while len(requests) < size:
                        requests.add(asyncio.create_task(request(begun)))
                        begun += 1
                    done, requests = await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
                    new = [task.result() for task in done if task.exception() is None]
                    rows += new
                    count += total_length(new)
                    bar.update(total_length(new))
                    for task in done:
                        task.result()
                    if len(rows) >= ROWS_PER_PART:
                        store.append(rows)
                        rows = []
            except InputError:
                # Other requests may be answered still.
                rows += [row for row in await asyncio.gather(*requests, return_exceptions=True) if type(row) is list]
                raise
            finally:
                for task in requests:
                    task.cancel()
                if rows:
                    store.append(rows)

    asyncio.run(write())


@torch.no_grad()
async def check_model(served: ServedModel, model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> None:
    """Raise an `InputError` if the server's greedy answers are not those of `model`."""
    asked = prompts[:COMPARED_ROWS]
    answers = await asyncio.gather(*(served.answer(prompt, COMPARED_TOKENS, 0.0) for prompt in asked))
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
