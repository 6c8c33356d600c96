"""`benchmarks/speculate.py` with a checkpoint and a file of prompts."""

import json
import sys
from pathlib import Path

import pytest
import torch

from tests.support.tiny import VOCAB_SIZE, plain_model, tiny_model, tiny_seq2seq
from tests.support.tokenizers import word_tokenizer

TEMPLATE = (
    "{% for message in messages %}w5 {{ message['content'] }} {% endfor %}{% if add_generation_prompt %}w6{% endif %}"
)


@pytest.fixture
def benchmark(monkeypatch):
    """The module of the script. Its helpers are imported as when it is run."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import speculate

    yield speculate
    for name in ("speculate", "decoding_ways", "prompt_file"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    model, tokenizer = tiny_model(), word_tokenizer()
    tokenizer.chat_template = TEMPLATE
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


PROMPTS = {
    "text": ("w2 w3 w4 w2 w3", "", "  w7 w8  "),
    "json": ({"prompt": "w2 w3 w4 w2 w3"}, {"prompt": "w7 w8"}),
    "messages": ({"messages": [{"role": "user", "content": "w2 w3"}]}, {"prompt": "w7"}),
}


@pytest.mark.parametrize("kind", PROMPTS)
def test_report(kind, checkpoint, benchmark, tmp_path, capsys):
    prompts = write(tmp_path / "prompts", *PROMPTS[kind])
    options = ["--model", str(checkpoint), "--prompts", str(prompts), "--rounds", "1", "--new-tokens", "12"]
    with pytest.raises(SystemExit) as ended:
        benchmark.main([*options, "--threads", "1", "--batch-size", "1", "--batch-size", "2"])
    assert not ended.value.code
    printed = capsys.readouterr().out
    for title in (
        "greedy, batch size 1",
        "sampling, temperature 0.7, top-p 0.9, batch size 1",
        "greedy, batch size 2",
    ):
        assert title in printed
    # Stock prompt lookup supports one row.
    for way, count in {"stock, prompt lookup": 2, "heads and prompt lookup": 4, "untrained heads": 4}.items():
        assert sum(line.startswith(way) for line in printed.splitlines()) == count
    assert printed.count("2 of 2 outputs are the same") == 5
    assert printed.count("1 of 1 outputs are the same") == 4


def test_prompts(checkpoint, benchmark, tmp_path):
    import prompt_file

    _, tokenizer = prompt_file.load_model(str(checkpoint))
    read = {
        kind: prompt_file.read_prompts(write(tmp_path / kind, *lines), tokenizer) for kind, lines in PROMPTS.items()
    }
    assert read["text"] == read["json"] == [[2, 3, 4, 2, 3], [7, 8]]
    assert read["messages"] == [[5, 2, 3, 6], [7]]
    ((ids, mask),) = prompt_file.batches_of(read["text"], 2)
    assert ids[mask.bool()].tolist() == [2, 3, 4, 2, 3, 7, 8] and mask.tolist() == [[1] * 5, [0, 0, 0, 1, 1]]


@pytest.mark.parametrize("name", ["gpt2", "bart", "marian"])
def test_stock_twin(name, benchmark):
    import decoding_ways

    ours = tiny_model() if name == "gpt2" else tiny_seq2seq(name)
    ours.generation_config.ensemble_lambda = 0.5
    stock = decoding_ways.stock_of(ours)
    assert type(stock) is type(ours).ngram_backbone_class()
    ids = torch.tensor([[2, 3, 4, 5]])
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 1}
    expected = ours.generate(ids, ensemble_lambda=0.0, **options)
    assert torch.equal(stock.generate(ids, **options), expected)
    before = ours.ngram_heads[0].fc_in.weight.clone()
    fresh = decoding_ways.with_fresh_heads(ours)
    assert torch.equal(ours.ngram_heads[0].fc_in.weight, before)
    assert not torch.equal(fresh.ngram_heads[0].fc_in.weight, before)
    assert torch.equal(fresh.generate(ids, ensemble_lambda=0.0, use_mtp=True, **options), expected)


def assert_refused(benchmark, capsys, model, prompts, *words):
    """The script ends with one sentence that has these words."""
    with pytest.raises(SystemExit) as ended:
        benchmark.main(["--model", str(model), "--prompts", str(prompts), "--rounds", "1"])
    assert ended.value.code == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert all(word in message for word in words), message


def test_unusable_prompts(checkpoint, benchmark, tmp_path, capsys):
    cases = {
        "empty": ((), ("empty",)),
        "blank": ((" ", ""), ("empty",)),
        "mixed": (({"prompt": "w2"}, "w3"), ("Line 2", "JSON")),
        "field": (({"text": "w2"},), ("Line 1", "prompt", "messages")),
        "list": (({"prompt": "w2"}, "[1]"), ("Line 2", "prompt")),
        "long": (("w2 " * 60,), ("positions", "64")),
    }
    for name, (lines, words) in cases.items():
        assert_refused(benchmark, capsys, checkpoint, write(tmp_path / name, *lines), *words)
    assert_refused(benchmark, capsys, checkpoint, tmp_path / "missing", "missing", "cannot be read")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xfa")
    assert_refused(benchmark, capsys, checkpoint, tmp_path / "bytes", "UTF-8")


def test_unusable_models(benchmark, tmp_path, capsys):
    prompts = write(tmp_path / "prompts", "w2 w3")
    assert_refused(benchmark, capsys, tmp_path / "nothing", prompts, "nothing", "cannot be loaded")
    for name, model in {"plain": plain_model(), "no heads": tiny_model(ngram_size=1)}.items():
        model.save_pretrained(tmp_path / name)
        word_tokenizer().save_pretrained(tmp_path / name)
        assert_refused(benchmark, capsys, tmp_path / name, prompts, "no N-gram heads")
    tiny_model().save_pretrained(tmp_path / "large")
    tokenizer = word_tokenizer()
    tokenizer.add_tokens(["more", "tokens"])
    tokenizer.save_pretrained(tmp_path / "large")
    assert_refused(benchmark, capsys, tmp_path / "large", prompts, str(VOCAB_SIZE), str(VOCAB_SIZE + 2), "tokenizer")
    word_tokenizer().save_pretrained(tmp_path / "large")
    messages = write(tmp_path / "messages", {"messages": [{"role": "user", "content": "w2"}]})
    assert_refused(benchmark, capsys, tmp_path / "large", messages, "chat template")


def test_unusable_options(benchmark, capsys):
    for options, word in ((["--model", "x"], "--prompts"), (["--prompts", "x"], "--model"), (["--rounds", "0"], "1")):
        with pytest.raises(SystemExit) as ended:
            benchmark.main(options)
        assert ended.value.code == 2 and word in capsys.readouterr().err
