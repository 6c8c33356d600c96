"""The architecture: imports point one way, and mixins use prefixed names."""

import ast
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, GPT2LMHeadModel

import ngram_wdr_hf
from ngram_wdr_hf import (
    WDRNgramBertForMaskedLM,
    WDRNgramGPT2LMHeadModel,
    WDRNgramMarianMTModel,
    WDRNgramReformerModelWithLMHead,
    WDRNgramT5ForConditionalGeneration,
)
from tests.support.tiny import tiny_model

PACKAGE = Path(ngram_wdr_hf.__file__).parent
# A room imports only itself and the rooms before it.
ROOMS = (
    "method",
    "decoding",
    "modeling",
    "backbones",
    "data",
    "evaluation",
    "metrics",
    "training",
    "analysis",
    "serve",
    "command",
)
TASKS = ("clm", "nmt", "mlm", "glue")
# Modules outside the rooms: the public names, what an import of the package runs, and the version.
TOP_LEVEL_MODULES = ("__init__.py", "__main__.py", "auto_classes.py", "version.py")


def imports_of(path: Path) -> list[tuple[str, ...]]:
    """Return the package's modules that a module imports, as paths from the package root."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    package = list(parts if path.name == "__init__.py" else parts[:-1])
    package = package[:-1] if path.name == "__init__.py" else package
    imported = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            module = [*base, *(node.module.split(".") if node.module else [])]
            imported += [tuple(module) if module else (alias.name,) for alias in node.names]
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
        imported += [tuple(name.split(".")[1:]) for name in names if name.partition(".")[0] == PACKAGE.name]
    return imported


def modules(room: str) -> list[Path]:
    return sorted((PACKAGE / room).rglob("*.py"))


def test_every_module_is_in_a_room():
    assert sorted(path.name for path in PACKAGE.glob("*.py")) == sorted(TOP_LEVEL_MODULES)
    assert {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room):
    allowed = {*ROOMS[: ROOMS.index(room) + 1], "auto_classes", "version"}
    # The package exports names of the rooms up to the backbones.
    if ROOMS.index(room) > ROOMS.index("backbones"):
        allowed |= set(ngram_wdr_hf.__all__)
    wrong = {
        f"{path.relative_to(PACKAGE)} imports {'.'.join(imported)}"
        for path in modules(room)
        for imported in imports_of(path)
        if imported and imported[0] not in allowed
    }
    assert wrong == set()
    assert any(imports_of(path) for path in modules(room))


def test_wrong_import_is_detected(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.project.test_rooms.PACKAGE", tmp_path / PACKAGE.name)
    module = tmp_path / PACKAGE.name / "method" / "loss.py"
    module.parent.mkdir(parents=True)
    for source in (
        "from ..decoding.loop import x",
        "from .. import decoding",
        "import ngram_wdr_hf.decoding",
        "from ngram_wdr_hf.decoding import loop",
        "def f():\n    from ..decoding import loop",
    ):
        module.write_text(source)
        with pytest.raises(AssertionError, match="decoding"):
            test_imports_point_one_way("method")


def test_tasks_do_not_import_each_other():
    for path in modules("training"):
        parts = path.relative_to(PACKAGE).parts
        own = parts[1] if parts[1] in TASKS else None
        imports = {imported[1] for imported in imports_of(path) if imported[:1] == ("training",) and len(imported) > 1}
        assert imports & set(TASKS) <= {own}, path


def test_the_analysis_uses_only_public_names_of_models():
    private = {
        f"{path.name}:{node.lineno} {node.attr}"
        for path in modules("analysis")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
    }
    assert private == set()


# A deprecated public method, and a buffer of saved checkpoints.
OLD_NAMES = {"set_draft_tokens", "draft_token_ids"}


def names_added(ours: object, stock: object) -> set[str]:
    """Return the names that `ours` adds to `stock`, without properties that Transformers caches."""
    added = set(dir(ours)) - set(dir(stock)) - OLD_NAMES
    return {name for name in added if not name.endswith("_cached_value")}


@pytest.mark.parametrize(
    "model_class",
    [
        WDRNgramGPT2LMHeadModel,
        WDRNgramMarianMTModel,
        WDRNgramT5ForConditionalGeneration,
        WDRNgramBertForMaskedLM,
        WDRNgramReformerModelWithLMHead,
    ],
)
def test_names_added_to_a_class_begin_with_ngram(model_class):
    added = names_added(model_class, model_class.ngram_backbone_class())
    assert added and {name for name in added if not name.startswith(("ngram_", "_ngram_"))} == set()


def test_names_added_to_a_model_begin_with_ngram(tmp_path):
    model = tiny_model(ensemble_lambda=0.4)
    model.ngram_set_draft_tokens(range(5))
    model.save_pretrained(tmp_path)
    added = names_added(model, GPT2LMHeadModel.from_pretrained(tmp_path))
    assert {name for name in added if not name.startswith(("ngram_", "_ngram_"))} == set()
    with pytest.warns(FutureWarning, match="ngram_set_draft_tokens"):
        model.set_draft_tokens([3, 1])
    assert model.draft_token_ids.tolist() == [3, 1]
    assert AutoModelForCausalLM.from_pretrained(tmp_path).draft_token_ids.tolist() == list(range(5))
