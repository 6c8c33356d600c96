"""`transformers serve` with our checkpoints and OpenAI's client: the answers are those of `generate`."""

import json
import re
import shutil
from pathlib import Path

import openai
import pytest
import torch
from transformers import Olmo2Config, Olmo2ForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from ngram_wdr_hf import with_ngram_heads
from tests.support.processes import ROOT
from tests.support.servers import Server, serving
from tests.support.tiny import LLAMA_SIZES, tiny_model
from tests.support.tokenizers import word_tokenizer

TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
PROMPT = "w3 w4 w5 w3"
MESSAGES = [{"role": "user", "content": PROMPT}]
NUM_TOKENS = 24
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
RUN = "runs/clm"
# The page's command, with any model instead of one.
LINE = next(line for line in PAGE.splitlines() if line.startswith("transformers serve "))
COMMAND = [word for word in LINE.split() if word != RUN]
WEIGHTS = (0.6, 0.9, -0.4, 0.3)


def olmo2() -> PreTrainedModel:
    """Return a model of a class that is created on demand, with large weights."""
    torch.manual_seed(0)
    model = with_ngram_heads(Olmo2ForCausalLM(Olmo2Config(**LLAMA_SIZES, eos_token_id=0)), ngram_size=3).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.4)
    return model


def weighted() -> PreTrainedModel:
    """Return a model with weights in its generation config, which take precedence over λ."""
    model = tiny_model(ensemble_lambda=0.4)
    model.generation_config.update(ensemble_weights=list(WEIGHTS), allow_custom_entries=True)
    return model


MODELS = {
    "lambda": lambda: tiny_model(ensemble_lambda=0.4),
    "weights": weighted,
    "drafts": lambda: tiny_model(ensemble_lambda=0.4),
    "on demand": olmo2,
    "no template": tiny_model,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, tuple[PreTrainedModel, Path]]:
    """Models and their folders, by name. Only the last has a tokenizer without a chat template."""
    saved = {}
    for name, make in MODELS.items():
        model, tokenizer = make(), word_tokenizer()
        model.generation_config.use_mtp = True if name in ("drafts", "on demand") else None
        tokenizer.chat_template = None if name == "no template" else TEMPLATE
        saved[name] = model, tmp_path_factory.mktemp("models") / name
        for part in (model, tokenizer):
            part.save_pretrained(saved[name][1])
    return saved


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    """The server. It loads the model that a request names, with the code in its folder."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copytree(models["drafts"][1], folder / RUN)
    with serving(folder, *COMMAND[2:], "--log-level", "info") as server:
        yield server


def expected(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **options) -> str:
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    output = model.generate(ids, **{"max_new_tokens": NUM_TOKENS, "do_sample": False, **options})
    return tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)


def ask(server: Server, folder: Path) -> dict[str, str]:
    """Return the answers to one prompt, by the way of asking."""
    client, options = server.client(), {"model": str(folder), "temperature": 0}
    chat = client.chat.completions.create(messages=MESSAGES, max_tokens=NUM_TOKENS, **options)
    chunks = list(client.chat.completions.create(messages=MESSAGES, max_tokens=NUM_TOKENS, stream=True, **options))
    text = client.completions.create(prompt=PROMPT, max_tokens=NUM_TOKENS, **options)
    parts = list(client.completions.create(prompt=PROMPT, max_tokens=NUM_TOKENS, stream=True, **options))
    response = client.responses.create(input=PROMPT, max_output_tokens=NUM_TOKENS, stream=False, **options)
    events = client.responses.create(input=PROMPT, max_output_tokens=NUM_TOKENS, stream=True, **options)
    usages = [answer.usage.completion_tokens for answer in (chat, chunks[-1], text, parts[-1])]
    assert len(set(usages)) == 1 and chat.usage.prompt_tokens == 4
    assert {chat.choices[0].finish_reason, chunks[-1].choices[0].finish_reason} == {
        "length" if usages[0] == NUM_TOKENS else "stop"
    }
    # Word by word.
    assert len(chunks) > 10
    return {
        "chat": chat.choices[0].message.content,
        "chat, streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
        "text": text.choices[0].text,
        "text, streamed": "".join(part.choices[0].text for part in parts),
        "response": response.output_text,
        "response, streamed": "".join(event.delta for event in events if event.type == "response.output_text.delta"),
    }


@pytest.mark.parametrize("name", ["lambda", "weights", "drafts", "on demand"])
def test_answers_are_those_of_generate(server, models, name):
    model, folder = models[name]
    answer = expected(model, word_tokenizer(), use_mtp=False)
    assert answer == expected(model, word_tokenizer())
    assert set(ask(server, folder).values()) == {answer}
    if name != "on demand":
        # The ensemble of the folder counts.
        assert answer != expected(model, word_tokenizer(), ensemble_lambda=0.0)
    if name == "weights":
        assert answer != expected(model, word_tokenizer(), ensemble_lambda=0.4)


def draftings(server: Server) -> list[tuple[int, int]]:
    """Return tokens and forward passes of every generation with drafts that the server has logged."""
    lines = re.findall(r"Speculative decoding: (\d+) tokens, (\d+) forward passes", server.log.read_text())
    return [(int(tokens), int(forwards)) for tokens, forwards in lines]


@pytest.mark.parametrize("name", ["drafts", "lambda"])
def test_drafts_are_used_where_the_folder_says_so(server, models, name):
    model, folder = models[name]
    before = len(draftings(server))
    ask(server, folder)
    found = draftings(server)[before:]
    if name == "lambda":
        assert found == []
        return
    ids = word_tokenizer()(PROMPT, return_tensors="pt").input_ids
    output = model.generate(ids, max_new_tokens=NUM_TOKENS, do_sample=False, return_dict_in_generate=True)
    assert found == [(output.speculation.num_tokens, output.speculation.num_forwards)] * 6
    assert output.speculation.tokens_per_forward > 1.2


def test_sampling(server, models):
    """Sampling with drafts follows the seed. What the request's generation config does not say, the folder's does."""
    model, folder = models["drafts"]
    options = {"do_sample": True, "temperature": 0.7, "max_new_tokens": NUM_TOKENS}
    before = len(draftings(server))
    for seed in (1, 2):
        answer = server.client().completions.create(
            model=str(folder), prompt=PROMPT, seed=seed, extra_body={"generation_config": json.dumps(options)}
        )
        torch.manual_seed(seed)
        assert answer.choices[0].text == expected(model, word_tokenizer(), **options)
    assert len(draftings(server)) == before + 2


def test_client_that_leaves(server, models):
    """The server stops writing and answers the next request."""
    client, folder = server.client(), str(models["drafts"][1])
    with client.completions.create(model=folder, prompt=PROMPT, max_tokens=50, stream=True) as stream:
        next(iter(stream))
    answer = client.completions.create(model=folder, prompt=PROMPT, max_tokens=NUM_TOKENS, temperature=0)
    assert answer.choices[0].text == expected(models["drafts"][0], word_tokenizer())


def test_without_a_chat_template(server, models):
    """Completions need none."""
    model, folder = models["no template"]
    client, options = server.client(), {"model": str(folder), "max_tokens": NUM_TOKENS, "temperature": 0}
    assert client.completions.create(prompt=PROMPT, **options).choices[0].text == expected(model, word_tokenizer())
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(messages=MESSAGES, **options)


def test_snippet_of_the_page(server, models, capsys):
    (snippet,) = (code for code in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL) if "openai" in code)
    scope: dict = {}
    exec(compile(snippet.replace("http://localhost:8000", server.address), "serving.md", "exec"), scope)
    assert scope["request"]["model"] == RUN
    tokenizer = word_tokenizer()
    ids = tokenizer(scope["request"]["prompt"], return_tensors="pt").input_ids
    output = models["drafts"][0].generate(ids, max_new_tokens=scope["request"]["max_tokens"], do_sample=False)
    answer = tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)
    assert answer and capsys.readouterr().out == f"{answer}\n{answer}"
