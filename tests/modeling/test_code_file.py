"""The code file of a checkpoint: whole modules, in import order."""

import ast
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, Olmo2ForCausalLM, PreTrainedModel

import ngram_wdr_hf
from ngram_wdr_hf import WDRNgramGPT2LMHeadModel, with_ngram_heads
from ngram_wdr_hf.modeling.code_file import code_file
from tests.support.architectures import ARCHITECTURES
from tests.support.batches import padded
from tests.support.processes import run_without_package
from tests.support.tiny import make, tiny_model

# Bloom has other arguments than the mixin's `forward`.
ON_THE_SPOT = ("Olmo2ForCausalLM", "BloomForCausalLM", "MT5ForConditionalGeneration")


def made(name: str):
    """Return a model of a class made on the spot."""
    return with_ngram_heads(ARCHITECTURES[name].build(), ensemble_lambda=0.4).eval()


@pytest.fixture(scope="module")
def code() -> dict[str, str]:
    """The code of every class of the package, and of some classes made on the spot."""
    public = [getattr(ngram_wdr_hf, name) for name in ngram_wdr_hf.__all__]
    named = [cls for cls in public if isinstance(cls, type) and issubclass(cls, PreTrainedModel)]
    classes = [*named, *(type(made(name)) for name in ON_THE_SPOT)]
    return {cls.__name__: code_file(cls) for cls in classes}


def test_ruff_finds_no_undefined_names(code, tmp_path):
    for name, source in code.items():
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    options = ["--no-cache", "--isolated", "--select", "F"]
    run = subprocess.run([sys.executable, "-m", "ruff", "check", *options, str(tmp_path)], capture_output=True)
    assert run.returncode == 0, run.stdout.decode()


def test_heading_imports_and_definitions(code):
    for name, source in code.items():
        tree = ast.parse(source)
        head = ast.get_docstring(tree)
        assert name in head and f"`ngram_wdr_hf` {ngram_wdr_hf.__version__}" in head and "Apache License" in head
        imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
        roots = {(getattr(node, "module", None) or node.names[0].name).partition(".")[0] for node in imports}
        # The code does without its own package, which it tries to import to draft and to write this file again.
        assert roots - {"ngram_wdr_hf"} <= {"torch", "transformers"} | sys.stdlib_module_names
        assert "ngram_wdr_hf" not in {getattr(node, "module", None) for node in tree.body}
        names = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        stored = [part for node in tree.body if isinstance(node, ast.Assign) for part in ast.walk(node.targets[0])]
        names += [part.id for part in stored if isinstance(part, ast.Name)]
        assert {name for name in names if names.count(name) > 1} <= {"logger"}


def test_code_has_only_the_modules_that_the_class_needs(code):
    gpt2 = code["WDRNgramGPT2LMHeadModel"]
    assert "class NgramHistory" in gpt2 and "class NgramGenerationMixin" in gpt2
    for name in ("NgramSeq2SeqMixin", "NgramMaskedMixin", "WDRNgramBertForMaskedLM", "SpeculativeDecoding"):
        assert f"class {name}" not in gpt2
    for name in ("NgramHistory", "NgramGenerationMixin"):
        assert f"class {name}" not in code["WDRNgramBertForMaskedLM"]
    assert "def bag_of_words_nll" in code["WDRNgramMarianMTModel"]


def test_files_of_a_checkpoint(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.glob("*.py")] == ["modeling_wdr_ngram.py"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(model) is WDRNgramGPT2LMHeadModel
    assert model.config.auto_map == {
        "AutoConfig": "modeling_wdr_ngram.WDRNgramConfig",
        "AutoModelForCausalLM": "modeling_wdr_ngram.WDRNgramGPT2LMHeadModel",
    }


def test_classes_outside_of_the_package_save_no_code(tmp_path):
    own_model, own_olmo2 = (type("Own", (base,), {}) for base in (WDRNgramGPT2LMHeadModel, Olmo2ForCausalLM))
    backbone = own_olmo2(ARCHITECTURES["Olmo2ForCausalLM"].build().config)
    for model in (own_model(tiny_model().config), with_ngram_heads(backbone)):
        model.save_pretrained(tmp_path)
        assert not list(tmp_path.glob("*.py"))
        assert "auto_map" not in type(model.config).from_pretrained(tmp_path).to_dict()


ELSEWHERE = """
import logging
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig

folder, results, messages = Path(sys.argv[1]), {}, []
handler = logging.Handler()
handler.emit = lambda record: messages.append(record.getMessage())
logging.getLogger().addHandler(handler)
for name, batch in torch.load(folder / "batches.pt").items():
    for path in (folder / name, folder / "again" / name):
        config = AutoConfig.from_pretrained(path, trust_remote_code=True)
        (auto_class,) = config.auto_map.keys() - {"AutoConfig"}
        model = getattr(transformers, auto_class).from_pretrained(path, trust_remote_code=True)
        assert type(model).__module__.startswith("transformers_modules."), type(model)
        with torch.no_grad():
            outputs = [model(**batch).logits, model.train()(**batch).loss]
        if model.eval().can_generate():
            ids = batch["input_ids"][:1, :2]
            for options in ({"ensemble_lambda": 0.0}, {}, {"num_beams": 3}, {"use_mtp": True}):
                outputs.append(model.generate(ids, max_new_tokens=12, do_sample=False, **options))
        results.setdefault(name, []).append(outputs)
        # A model loaded this way saves its code again.
        model.save_pretrained(folder / "again" / name)
torch.save(results, folder / "results.pt")
assert any("`use_mtp=True` needs the package" in message for message in messages), messages
"""


def test_loads_where_the_package_is_not_installed(tmp_path):
    """The same logits, loss, tokens and beams, also of the checkpoint that this code saves. Drafts are left out."""
    models = {name: make(name, ensemble_lambda=0.9) for name in ("gpt2", "marian", "t5")}
    models |= {"bert": make("bert")} | {name: made(name) for name in ON_THE_SPOT}
    batches = {}
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        batches[name] = padded("marian" if model.config.is_encoder_decoder else "bert" if name == "bert" else "gpt2")
    torch.save(batches, tmp_path / "batches.pt")
    run_without_package(ELSEWHERE, tmp_path, str(tmp_path))
    results, num_changed = torch.load(tmp_path / "results.pt"), 0
    for name, model in models.items():
        with torch.no_grad():
            expected = [model(**batches[name]).logits, model.train()(**batches[name]).loss]
        if model.eval().can_generate():
            ids = batches[name]["input_ids"][:1, :2]
            for options in ({"ensemble_lambda": 0.0}, {}, {"num_beams": 3}, {}):
                expected.append(model.generate(ids, max_new_tokens=12, do_sample=False, **options))
            num_changed += not torch.equal(expected[2], expected[3])
        for outputs in results[name]:
            torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-5)
        saved = [tmp_path / part / name / "modeling_wdr_ngram.py" for part in ("", "again")]
        assert saved[0].read_bytes() == saved[1].read_bytes()
        assert len(list(saved[1].parent.glob("*.py"))) == 1
    # The ensemble changes the text.
    assert num_changed >= 3
