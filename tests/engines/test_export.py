"""The heads of a checkpoint in an engine's folder draft what our own decoding drafts."""

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2LMHeadModel, PhiConfig, PhiForCausalLM

from ngram_wdr_hf import with_ngram_heads
from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.engines import export as export_module
from ngram_wdr_hf.engines import vllm_plugin
from ngram_wdr_hf.engines.export import export, main
from tests.decoding.test_drafter import draft
from tests.support.tiny import LLAMA_SIZES, VOCAB_SIZE, make, random_ids, tiny_model
from tests.support.tokenizers import letter_tokenizer

READS = ("hidden", "hidden+tokens", "previous+token")


@pytest.fixture(autouse=True)
def vllm_is_elsewhere(monkeypatch):
    monkeypatch.setattr(export_module, "find_spec", lambda name: None)
    monkeypatch.setattr(vllm_plugin, "unused_attention", lambda _: torch.nn.Module())
    monkeypatch.setattr(vllm_plugin, "use_kernels_of_vllm", lambda drafts: None)
    monkeypatch.setattr(vllm_plugin, "warn_of_sampling", lambda: None)


def saved(model, folder) -> str:
    model.save_pretrained(folder)
    letter_tokenizer().save_pretrained(folder)
    return str(folder)


def engine_of(folder, depth: int, **target) -> vllm_plugin.NgramHeadDrafts:
    """Return the plugin's class with a stand-in for vLLM's configuration, and the weights of a folder."""
    config = SimpleNamespace(**json.loads((folder / "config.json").read_text()))
    target = {"vocab_size": config.vocab_size, "hidden_size": config.hidden_size, **target}
    speculation = SimpleNamespace(draft_model_config=SimpleNamespace(hf_config=config), num_speculative_tokens=depth)
    engine = getattr(vllm_plugin, config.architectures[0])(
        vllm_config=SimpleNamespace(
            speculative_config=speculation, model_config=SimpleNamespace(hf_config=SimpleNamespace(**target))
        )
    )
    weights = load_file(folder / "model.safetensors")
    assert engine.load_weights(weights.items()) == {f"drafts.{name}" for name in engine.drafts.state_dict()}
    return engine


@pytest.mark.parametrize("size", [None, 9])
@pytest.mark.parametrize("reads", READS)
@torch.no_grad()
def test_drafts_of_the_plugin_are_our_own(reads, target, size, tmp_path):
    model = tiny_model(ngram_head_reads=reads, ngram_target=target, ngram_head_expansion=2)
    if size is not None:
        model.ngram_set_draft_tokens(torch.randperm(VOCAB_SIZE)[:size])
    _, method, _ = export(saved(model, tmp_path / "checkpoint"), tmp_path / "drafts")
    depth = 6 if reads == "previous+token" else 3
    engine, states = engine_of(tmp_path / "drafts", depth), torch.randn(5, 16)
    # The engine knows no next token: it takes the most likely one of the draft tokens.
    tokens = torch.arange(VOCAB_SIZE) if size is None else model.draft_token_ids
    next_tokens = tokens[model.lm_head(states)[:, tokens].argmax(-1)]
    drafts = draft(model, next_tokens[:, None], states, num_assistant_tokens=depth).tokens
    if method == "eagle":
        # vLLM's loop: the head gets the last tokens and its own output.
        assert reads == "previous+token" and target == "simple"
        engine.lm_head.weight, chosen = model.lm_head.weight, [next_tokens]
        for _ in range(depth):
            last, states = engine(chosen[-1], None, states)
            chosen.append(engine.compute_logits(last).argmax(dim=-1))
        assert torch.equal(torch.stack(chosen[1:], dim=1), drafts)
    else:
        logits = engine.compute_logits(engine(states))
        assert torch.equal(torch.stack([one.argmax(dim=-1) for one in logits], dim=1), drafts)
    assert drafts.shape == (5, depth) and len(drafts.unique()) > 2


@torch.no_grad()
def test_output_embedding_with_a_bias(tmp_path):
    model = with_ngram_heads(PhiForCausalLM(PhiConfig(**LLAMA_SIZES, initializer_range=0.3)), ngram_target="simple")
    torch.nn.init.normal_(model.lm_head.bias)
    export(saved(model, tmp_path / "checkpoint"), tmp_path / "drafts")
    engine, states = engine_of(tmp_path / "drafts", 2), torch.randn(5, 16)
    drafts = draft(model, model.lm_head(states).argmax(-1)[:, None], states, num_assistant_tokens=2).tokens
    assert torch.equal(engine.drafts(states, 2), drafts)


def test_half_precision_keeps_token_ids(tmp_path, monkeypatch):
    """vLLM creates modules with the model's dtype as the default, in which large integers are rounded."""
    model = tiny_model(vocab_size=400).bfloat16()
    model.ngram_set_draft_tokens([399, 257, 300])
    export(saved(model, tmp_path / "checkpoint"), tmp_path / "drafts")
    torch.set_default_dtype(torch.bfloat16)
    try:
        engine = engine_of(tmp_path / "drafts", 1)
    finally:
        torch.set_default_dtype(torch.float32)
    assert (
        engine.drafts.token_ids.tolist() == [399, 257, 300] and engine.drafts.shortlist.weight.dtype == torch.bfloat16
    )


def test_which_model_is_served(tmp_path, capsys):
    """The plain model that heads were trained on, one given by name, or a copy without heads."""
    model, checkpoint = tiny_model(), tmp_path / "checkpoint"
    saved(model, checkpoint)
    main([str(checkpoint), str(tmp_path / "drafts"), "--to", "vllm"])
    printed = capsys.readouterr().out
    assert f"vllm serve {tmp_path / 'drafts' / 'model'} --speculative-config" in printed
    assert '"method": "medusa"' in printed and '"num_speculative_tokens": 3' in printed
    plain, ids = AutoModelForCausalLM.from_pretrained(tmp_path / "drafts" / "model"), random_ids(2, 5)
    assert type(plain) is GPT2LMHeadModel and plain.config.model_type == "gpt2"
    assert not hasattr(plain.config, "ngram_size")
    assert torch.equal(plain(ids).logits, model(ids).logits)
    (checkpoint / "run.yaml").write_text("train_mode: heads\nmodel_name_or_path: somewhere")
    assert export(str(checkpoint), tmp_path / "again") == ("somewhere", "medusa", 3)
    assert export(str(checkpoint), tmp_path / "again", "elsewhere") == ("elsewhere", "medusa", 3)
    assert not (tmp_path / "again" / "model").exists()


def test_bad_input(tmp_path, monkeypatch):
    for model, words in (
        (tiny_model(ngram_size=1), "no N-gram heads"),
        (make("marian"), "causal models only"),
        (make("bert"), "causal models only"),
    ):
        with pytest.raises(InputError, match=words):
            export(saved(model, tmp_path / type(model).__name__), tmp_path / "drafts")
    assert not (tmp_path / "drafts").exists()
    export(saved(tiny_model(), tmp_path / "checkpoint"), tmp_path / "drafts")
    with pytest.raises(ValueError, match="a vocabulary of 37 and a width of 16, and the served one has 40 and 16"):
        engine_of(tmp_path / "drafts", 3, vocab_size=40)
    with pytest.raises(ValueError, match="`num_speculative_tokens` is 4, and there are 3 heads"):
        engine_of(tmp_path / "drafts", 4)
