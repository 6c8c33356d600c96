"""`benchmarks/speculate.py` with a checkpoint and a file of prompts."""

import json
import sys
from pathlib import Path

import pytest
import torch

from tests.support.tiny import model_of, tiny_model
from tests.support.tokenizers import word_tokenizer


@pytest.fixture
def benchmark(monkeypatch):
    """The module of the script. Its helpers are imported as when it is run."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import speculate

    yield speculate
    for name in ("speculate", "decoding_ways", "prompt_file"):
        sys.modules.pop(name, None)


def test_report(benchmark, tmp_path, capsys):
    tokenizer = word_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}w5 {{ message['content'] }} {% endfor %}w6"
    for part in (tiny_model(), tokenizer):
        part.save_pretrained(tmp_path)
    lines = [{"messages": [{"role": "user", "content": "w2 w3"}]}, {"prompt": "w7 w8"}]
    (tmp_path / "prompts").write_text("\n".join(map(json.dumps, lines)))
    options = f"--model {tmp_path} --prompts {tmp_path / 'prompts'} --rounds 1 --new-tokens 12 --threads 1"
    with pytest.raises(SystemExit) as ended:
        benchmark.main([*options.split(), "--batch-size", "1", "--batch-size", "2"])
    assert not ended.value.code
    printed = capsys.readouterr().out
    assert "greedy, batch size 2" in printed and "sampling, temperature 0.7, top-p 0.9, batch size 1" in printed
    # Stock prompt lookup supports one row.
    for way, count in {
        "stock, prompt lookup": 2,
        "heads, always": 4,
        "heads and prompt lookup": 4,
        "untrained heads": 4,
    }.items():
        assert sum(line.startswith(way) for line in printed.splitlines()) == count
    assert printed.count("2 of 2 outputs are the same") == 6
    assert printed.count("1 of 1 outputs are the same") == 5


@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_stock_twin(name, benchmark):
    import decoding_ways

    ours = model_of(name)
    ours.generation_config.ensemble_lambda = 0.5
    stock, fresh = decoding_ways.stock_of(ours), decoding_ways.with_fresh_heads(ours)
    assert type(stock) is type(ours).ngram_backbone_class()
    ids = torch.tensor([[2, 3, 4, 5]])
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 1}
    expected = ours.generate(ids, ensemble_lambda=0.0, **options)
    assert torch.equal(stock.generate(ids, **options), expected)
    assert not torch.equal(fresh.ngram_heads[0].fc_in.weight, ours.ngram_heads[0].fc_in.weight)
    assert torch.equal(fresh.generate(ids, ensemble_lambda=0.0, use_mtp=True, **options), expected)
