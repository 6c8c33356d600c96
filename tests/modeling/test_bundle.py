"""The code file of a checkpoint."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    BloomForCausalLM,
    MT5Config,
    MT5ForConditionalGeneration,
    Olmo2Config,
    Olmo2ForCausalLM,
    PreTrainedModel,
)

import ngram_wdr_hf
from ngram_wdr_hf import WDRNgramBertForMaskedLM, WDRNgramGPT2LMHeadModel, with_ngram_heads
from ngram_wdr_hf.modeling import bundle as bundle_module
from ngram_wdr_hf.modeling.bundle import bundle
from tests.support.errors import raises_naming
from tests.support.processes import ROOT, run_python, run_without_package
from tests.support.tiny import random_ids, tiny_model

SIZES = {"vocab_size": 24, "pad_token_id": 0, "eos_token_id": 1}
MADE = {
    "olmo2": lambda: Olmo2ForCausalLM(
        Olmo2Config(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, **SIZES)
    ),
    "bloom": lambda: BloomForCausalLM(BloomConfig(hidden_size=8, n_layer=1, n_head=2, **SIZES)),
    "mt5": lambda: MT5ForConditionalGeneration(
        MT5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0, **SIZES)
    ),
}


def made(name: str, **fields):
    """Return a model of a class created on demand, with large weights, so that the heads have an effect."""
    torch.manual_seed(0)
    model = with_ngram_heads(MADE[name](), ngram_size=3, **fields).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.4)
    return model


@pytest.fixture(scope="module")
def code() -> dict[str, str]:
    """The code of every class of the package, and of some classes created on demand."""
    public = [getattr(ngram_wdr_hf, name) for name in ngram_wdr_hf.__all__]
    named = [cls for cls in public if isinstance(cls, type) and issubclass(cls, PreTrainedModel)]
    classes = [*named, *(type(with_ngram_heads(make(), ngram_size=2)) for make in MADE.values())]
    return {cls.__name__: bundle(cls) for cls in classes}


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_ruff_passes(code, tmp_path, command):
    for name, source in code.items():
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    options = ["--no-cache", "--config", str(ROOT / "pyproject.toml")]
    run = subprocess.run([sys.executable, "-m", "ruff", *command, *options, str(tmp_path)], capture_output=True)
    assert run.returncode == 0, run.stdout.decode()
    assert len(code) >= 20


def test_heading_and_imports(code):
    for name, source in code.items():
        tree = ast.parse(source)
        head = ast.get_docstring(tree)
        assert name in head and f"`ngram_wdr_hf` {ngram_wdr_hf.__version__}" in head and "Apache License" in head
        imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
        modules = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in imports}
        roots = {module.partition(".")[0] for module in modules}
        assert roots <= {"torch", "transformers"} | sys.stdlib_module_names
        assert all(node in tree.body for node in imports)


def top_level_names(source: str) -> set[str]:
    return {
        name.id if isinstance(name, ast.Name) else name.name
        for node in ast.parse(source).body
        for name in ([node] if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else ast.walk(node))
        if isinstance(name, (ast.FunctionDef, ast.ClassDef))
        or (isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store))
    }


def test_no_two_modules_define_the_same_name():
    """All modules that may be in a code file."""
    package = Path(ngram_wdr_hf.__file__).parent
    defined = {}
    for room in ("method", "decoding", "modeling", "backbones"):
        for path in (package / room).glob("*.py"):
            # What only makes bundles and classes is in none.
            if path.stem not in ("__init__", "bundle", "registry", "with_heads", "checks"):
                for name in top_level_names(path.read_text(encoding="utf-8")):
                    defined.setdefault(name, []).append(path.stem)
    assert len(defined) > 100
    assert {name: modules for name, modules in defined.items() if len(modules) > 1} == {}


def test_name_defined_twice_is_rejected(monkeypatch):
    parse_module = bundle_module._parse_module

    def rename(module_name):
        module = parse_module(module_name)
        if module_name.endswith("method.loss"):
            other = bundle_module._Module(module.title, dict(module.definitions), module.own_imports)
            other.other_imports = dict(module.other_imports)
            # As if the loss had a head of its own.
            other.definitions["NgramHead"] = module.definitions["ngram_loss"]
            definition = module.definitions["ngram_loss"]
            other.definitions["ngram_loss"] = bundle_module._Definition(
                definition.source, definition.uses | {"NgramHead"}, False, False
            )
            return other
        return module

    monkeypatch.setattr(bundle_module, "_parse_module", rename)
    with raises_naming(ValueError, "`NgramHead`"):
        bundle(WDRNgramGPT2LMHeadModel)


def test_code_has_only_what_the_class_needs(code):
    """Every definition is used by another one, or is the model class or its configuration."""
    for name, source in code.items():
        *body, last = ast.parse(source).body
        definitions = [node for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        mentioned = [part.id for node in body for part in ast.walk(node) if isinstance(part, ast.Name)]
        unused = {node.name for node in definitions if node.name not in mentioned}
        assert unused == {name, "offer_by_name"} and ast.unparse(last) == f"offer_by_name({name})"
    names = {name: top_level_names(source) for name, source in code.items()}
    assert "SpeculativeDecoding" in names["WDRNgramGPT2LMHeadModel"]
    assert not {"SpeculativeDecoding", "NgramHistory", "NgramGenerationMixin"} & names["WDRNgramBertForMaskedLM"]
    assert not {"NgramReformerCache", "NgramSeq2SeqMixin", "wdr"} & names["WDRNgramGPT2LMHeadModel"]
    assert "bag_of_words_nll" in names["WDRNgramMarianMTModel"]


def test_code_is_deterministic():
    script = (
        "import sys, ngram_wdr_hf; from ngram_wdr_hf.modeling.bundle import bundle; "
        "sys.stdout.write(bundle(ngram_wdr_hf.WDRNgramT5ForConditionalGeneration))"
    )
    # Each process has hashes of its own.
    environment = {"PYTHONHASHSEED": "random", "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    assert run_python("-c", script, **environment) == bundle(ngram_wdr_hf.WDRNgramT5ForConditionalGeneration)


def test_files_of_a_checkpoint(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.glob("*.py")] == ["modeling_wdr_ngram.py"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(model) is WDRNgramGPT2LMHeadModel
    assert model.config.auto_map == {
        "AutoConfig": "modeling_wdr_ngram.WDRNgramConfig",
        "AutoModelForCausalLM": "modeling_wdr_ngram.WDRNgramGPT2LMHeadModel",
    }


def test_saved_configuration_has_the_code(tmp_path):
    tiny_model().config.save_pretrained(tmp_path / "folder" / "inside")
    assert (tmp_path / "folder" / "inside" / "modeling_wdr_ngram.py").read_text(encoding="utf-8") == bundle(
        WDRNgramGPT2LMHeadModel
    )


class MyModel(WDRNgramGPT2LMHeadModel):
    pass


def test_derived_class_does_not_save_code_of_its_base(tmp_path):
    MyModel(tiny_model().config).save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.py"))
    assert "auto_map" not in MyModel.config_class.from_pretrained(tmp_path).to_dict()


class OwnOlmo2(Olmo2ForCausalLM):
    pass


def test_class_outside_of_the_package_saves_no_code(tmp_path):
    config = MADE["olmo2"]().config
    with_ngram_heads(OwnOlmo2(config), ngram_size=2).save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.py"))


ELSEWHERE = """
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

folder, results = sys.argv[1], {}
for name, ids in torch.load(f"{folder}/ids.pt").items():
    config = AutoConfig.from_pretrained(f"{folder}/{name}", trust_remote_code=True)
    auto_class = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model = auto_class.from_pretrained(f"{folder}/{name}", trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    options = {"max_new_tokens": 10, "do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    outputs = [
        model.generate(ids, attention_mask=torch.ones_like(ids), ensemble_lambda=value, **options, **drafts)
        for value in (0.0, 0.4)
        for drafts in ({}, {"use_mtp": True, "draft_threshold": 0.0})
    ]
    results[name] = [(output.sequences, torch.stack(output.scores)) for output in outputs]
    # A model loaded this way saves its code again.
    model.save_pretrained(f"{folder}/again/{name}")
torch.save(results, f"{folder}/results.pt")
"""


def test_loads_where_the_package_is_not_installed(tmp_path):
    """Also for classes created on demand: the same tokens and scores, with λ and with drafts."""
    models = {name: made(name) for name in MADE} | {"gpt2": tiny_model()}
    ids = {name: random_ids(2, 5, seed=3) % 20 + 2 for name in models}
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
    torch.save(ids, tmp_path / "ids.pt")
    run_without_package(ELSEWHERE, tmp_path, str(tmp_path))
    results = torch.load(tmp_path / "results.pt")
    options = {"max_new_tokens": 10, "do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    for name, model in models.items():
        for (sequences, scores), value in zip(results[name], (0.0, 0.0, 0.4, 0.4), strict=True):
            mask = torch.ones_like(ids[name])
            expected = model.generate(ids[name], attention_mask=mask, ensemble_lambda=value, **options)
            assert torch.equal(sequences, expected.sequences)
            torch.testing.assert_close(scores, torch.stack(expected.scores), rtol=1e-4, atol=1e-4)
        # λ has an effect where the history has predictions: not at a decoder's first token.
        assert not torch.allclose(results[name][0][1][1], results[name][2][1][1], atol=1e-3)
        saved = [tmp_path / part / name / "modeling_wdr_ngram.py" for part in ("", "again")]
        assert saved[0].read_bytes() == saved[1].read_bytes()
        assert len(list((tmp_path / "again" / name).glob("*.py"))) == 1


def test_class_created_on_demand_is_at_the_end():
    model = made("mt5")
    source = bundle(type(model))
    assert source.endswith(
        "    config_class = WDRNgramMT5Config\n    ngram_base_class = MT5Model\n    ngram_scales_if_tied = False\n\n\n"
        "offer_by_name(WDRNgramMT5ForConditionalGeneration)\n"
    )
    assert (
        "class WDRNgramMT5ForConditionalGeneration(NgramT5Mixin, MT5ForConditionalGeneration, GenerationMixin):"
        in source
    )
    assert 'model_type = "wdr_ngram_mt5"' in source
    imported = next(node for node in ast.parse(source).body if getattr(node, "module", None) == "transformers")
    assert {"MT5Config", "MT5ForConditionalGeneration", "MT5Model"} <= {alias.name for alias in imported.names}
    assert transformers.MT5Model is type(model).ngram_base_class
    assert WDRNgramBertForMaskedLM.__name__ not in source
