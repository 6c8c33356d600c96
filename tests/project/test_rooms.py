"""The architecture, read from the code: imports point one way, and the mixins keep to names of their own."""

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
# A room imports from those before it.
ROOMS = ("method", "decoding", "modeling", "backbones", "data", "evaluation", "metrics", "training", "analysis")
TASKS = ("clm", "nmt", "mlm", "glue")
# What has no room: the names that users import, and what describes the package.
ABOVE_ALL = ("__init__.py", "version.py")


def imports_of(path: Path) -> list[tuple[str, ...]]:
    """What a module imports of the package, as paths from its root."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    package = list(parts if path.name == "__init__.py" else parts[:-1])
    package = package[:-1] if path.name == "__init__.py" else package
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            module = [*base, *(node.module.split(".") if node.module else [])]
            # `from . import module` names the module last.
            found += [tuple(module) if module else (alias.name,) for alias in node.names]
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
        found += [tuple(name.split(".")[1:]) for name in names if name.partition(".")[0] == PACKAGE.name]
    return found


def modules(room: str) -> list[Path]:
    return sorted((PACKAGE / room).rglob("*.py"))


def test_every_module_is_in_a_room():
    assert sorted(path.name for path in PACKAGE.glob("*.py")) == sorted(ABOVE_ALL)
    assert {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room):
    allowed = {*ROOMS[: ROOMS.index(room) + 1], "version"}
    # The public names are those of the rooms up to the backbones.
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


def test_a_wrong_direction_would_be_seen(tmp_path, monkeypatch):
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


def test_tasks_know_nothing_of_each_other():
    for path in modules("training"):
        parts = path.relative_to(PACKAGE).parts
        own = parts[1] if parts[1] in TASKS else None
        others = {imported[1] for imported in imports_of(path) if imported[:1] == ("training",) and len(imported) > 1}
        assert others & set(TASKS) <= {own}, path


def test_the_analysis_asks_models_for_public_names_only():
    private = {
        f"{path.name}:{node.lineno} {node.attr}"
        for path in modules("analysis")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
    }
    assert private == set()


# A public name from before this rule, deprecated, and a name in saved checkpoints.
OLD_NAMES = {"set_draft_tokens", "draft_token_ids"}


def names_added(ours: object, stock: object) -> set[str]:
    """Without what Transformers notes on a class when it has found it out."""
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
def test_what_a_class_gets_begins_with_ngram(model_class):
    added = names_added(model_class, model_class.ngram_backbone_class())
    assert added and {name for name in added if not name.startswith(("ngram_", "_ngram_"))} == set()


def test_what_a_model_gets_begins_with_ngram(tmp_path):
    model = tiny_model(ensemble_lambda=0.4)
    model.ngram_set_draft_tokens(range(5))
    model.save_pretrained(tmp_path)
    added = names_added(model, GPT2LMHeadModel.from_pretrained(tmp_path))
    assert {name for name in added if not name.startswith(("ngram_", "_ngram_"))} == set()
    with pytest.warns(FutureWarning, match="ngram_set_draft_tokens"):
        model.set_draft_tokens([3, 1])
    assert model.draft_token_ids.tolist() == [3, 1]
    assert AutoModelForCausalLM.from_pretrained(tmp_path).draft_token_ids.tolist() == list(range(5))
