"""README and docs: links lead somewhere, and snippets run."""

import re
from pathlib import Path

import pytest
import torch
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Olmo2Config, Olmo2ForCausalLM

from tests.support.processes import ROOT
from tests.support.tiny import LLAMA_SIZES, plain_model

DOCUMENTS = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md")), *(ROOT / "experiments").glob("*.md")]


def snippets(document: Path) -> list[str]:
    """Return the snippets, except that for a server: `tests/cli` runs it with one."""
    found = re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [snippet for snippet in found if "from openai" not in snippet]


PAGES = [document for document in DOCUMENTS if snippets(document)]
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"image_size": 28, "patch_size": 14}
TEXT = {**LLAMA_SIZES, "head_dim": 8, "sliding_window": 8}
# The checkpoints of the snippets, as folders in the current one.
CHECKPOINTS = {
    "gpt2": lambda: plain_model(vocab_size=500),
    "allenai/OLMo-2-0425-1B": lambda: Olmo2ForCausalLM(Olmo2Config(**LLAMA_SIZES)),
    "google/gemma-3-4b-it": lambda: Gemma3ForConditionalGeneration(
        Gemma3Config(text_config=TEXT, vision_config=VISION)
    ),
}


def test_links_lead_somewhere():
    for document in DOCUMENTS:
        for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
            if not link.startswith(("http", "#")):
                assert (document.parent / link.split("#")[0]).exists(), f"{document.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_snippets(page, tmp_path, monkeypatch, capsys):
    """The snippets of a page run in order. Names of checkpoints resolve to local folders."""
    monkeypatch.chdir(tmp_path)
    for name, build in CHECKPOINTS.items():
        if f'"{name}"' in page.read_text(encoding="utf-8"):
            build().save_pretrained(tmp_path / name)
    torch.manual_seed(0)
    scope: dict = {}
    for snippet in snippets(page):
        exec(compile(snippet, page.name, "exec"), scope)
    if page.name in ("README.md", "ensemble.md"):
        assert "perplexity" in capsys.readouterr().out
