"""`transformers serve` with our checkpoints and OpenAI's client: the answers are those of `generate`."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from transformers import Olmo2Config, Olmo2ForCausalLM, PreTrainedModel

from ngram_wdr_hf import with_ngram_heads
from tests.support.processes import ROOT
from tests.support.servers import serving
from tests.support.tiny import LLAMA_SIZES, tiny_model
from tests.support.tokenizers import word_tokenizer

PROMPT, NUM_TOKENS = "w3 w4 w5 w3", 24
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
RUN = "runs/clm"
# The page's command, with any model instead of one.
LINE = next(line for line in PAGE.splitlines() if line.startswith("transformers serve "))
COMMAND = [word for word in LINE.split() if word != RUN]


def olmo2() -> PreTrainedModel:
    """Return a model of a class that is created on demand, with large weights."""
    torch.manual_seed(0)
    model = with_ngram_heads(Olmo2ForCausalLM(Olmo2Config(**LLAMA_SIZES, eos_token_id=0)), ngram_size=3).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.4)
    return model


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, tuple[PreTrainedModel, Path]]:
    """Models and their folders, by name. Weights in a generation config take precedence over λ."""
    made = {name: tiny_model(ensemble_lambda=0.4) for name in ("lambda", "weights", "drafts")} | {"on demand": olmo2()}
    made["weights"].generation_config.update(ensemble_weights=[0.6, 0.9, -0.4, 0.3], allow_custom_entries=True)
    saved = {}
    for name, model in made.items():
        model.config.draft_by_default = name in ("drafts", "on demand")
        tokenizer = word_tokenizer()
        tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
        saved[name] = model, tmp_path_factory.mktemp("models") / name
        for part in (model, tokenizer):
            part.save_pretrained(saved[name][1])
    return saved


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    """The server. It loads the model that a request names, with the code in its folder."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copytree(models["drafts"][1], folder / RUN)
    with serving(folder, *COMMAND[2:]) as server:
        yield server


def answer_of(model: PreTrainedModel, prompt: str = PROMPT, **options) -> str:
    ids = word_tokenizer()(prompt, return_tensors="pt").input_ids
    sequences = model.generate(ids, **{"max_new_tokens": NUM_TOKENS, "do_sample": False, **options})
    return word_tokenizer().decode(sequences[0, ids.shape[1] :], skip_special_tokens=True)


@pytest.mark.parametrize("name", ["lambda", "weights", "drafts", "on demand"])
def test_answers_are_those_of_generate(server, models, name):
    """With the ensemble of the folder; streamed and in one piece."""
    model, folder = models[name]
    answer = answer_of(model)
    assert answer == answer_of(model, use_mtp=False)
    if name != "on demand":
        assert answer != answer_of(model, ensemble_lambda=0.0)
    if name == "weights":
        assert answer != answer_of(model, ensemble_lambda=0.4)
    client, options = server.client(), {"model": str(folder), "temperature": 0}
    chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": NUM_TOKENS, **options}
    text = {"prompt": PROMPT, "max_tokens": NUM_TOKENS, **options}
    response = {"input": PROMPT, "max_output_tokens": NUM_TOKENS, **options}
    chunks = list(client.chat.completions.create(**chat, stream=True))
    # Word by word.
    assert len(chunks) > 10
    parts, events = client.completions.create(**text, stream=True), client.responses.create(**response, stream=True)
    assert {
        client.chat.completions.create(**chat).choices[0].message.content,
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
        client.completions.create(**text).choices[0].text,
        "".join(part.choices[0].text for part in parts),
        client.responses.create(**response, stream=False).output_text,
        "".join(event.delta for event in events if event.type == "response.output_text.delta"),
    } == {answer}


def test_sampling(server, models):
    """Sampling with drafts follows the seed. What the request's generation config does not say, the folder's does."""
    model, folder = models["drafts"]
    options = {"do_sample": True, "temperature": 0.7, "max_new_tokens": NUM_TOKENS}
    for seed in (1, 2):
        answer = server.client().completions.create(
            model=str(folder), prompt=PROMPT, seed=seed, extra_body={"generation_config": json.dumps(options)}
        )
        torch.manual_seed(seed)
        assert answer.choices[0].text == answer_of(model, **options)


def test_snippet_of_the_page(server, models, capsys):
    (snippet,) = (code for code in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL) if "openai" in code)
    scope: dict = {}
    exec(compile(snippet.replace("http://localhost:8000", server.address), "serving.md", "exec"), scope)
    request = scope["request"]
    answer = answer_of(models["drafts"][0], request["prompt"], max_new_tokens=request["max_tokens"])
    assert request["model"] == RUN and answer and capsys.readouterr().out == f"{answer}\n{answer}"
