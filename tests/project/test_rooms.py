"""The architecture: imports point one way, and mixins use prefixed names."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ngram_wdr_hf

PACKAGE = Path(ngram_wdr_hf.__file__).parent
# A room imports only itself and the rooms before it.
ROOMS = ("method", "decoding", "modeling", "backbones", "data", "engines", "evaluation", "metrics")
ROOMS += ("training", "analysis")
# Modules outside the rooms; the command imports all of them.
TOP_LEVEL_MODULES = ("__init__.py", "__main__.py", "cli.py", "compat.py", "version.py")
CLASSES = (
    "GPT2LMHeadModel",
    "MarianMTModel",
    "T5ForConditionalGeneration",
    "BertForMaskedLM",
    "ReformerModelWithLMHead",
)


def imports_of(path: Path) -> Iterator[str]:
    """Yield what a module imports: rooms and modules at the top of the package, and other packages."""
    package = path.relative_to(PACKAGE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            names = [".".join((*above, node.module or name)) for name in names]
        # Modules that `evaluate` copies import the package by its name.
        yield from (name.removeprefix(f"{PACKAGE.name}.").partition(".")[0] for name in names)


def test_every_module_is_in_a_room():
    assert sorted(path.name for path in PACKAGE.glob("*.py")) == sorted(TOP_LEVEL_MODULES)
    assert {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room):
    # Scripts may use the public names.
    wrong = {PACKAGE.name, "cli", *ROOMS[ROOMS.index(room) + 1 :]}
    wrong |= set() if room in ("training", "analysis") else set(ngram_wdr_hf.__all__)
    imports = {(path.name, name) for path in (PACKAGE / room).rglob("*.py") for name in imports_of(path)}
    assert imports and {(path, name) for path, name in imports if name in wrong} == set()


def test_wrong_import_is_detected(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.project.test_rooms.PACKAGE", tmp_path / PACKAGE.name)
    module = tmp_path / PACKAGE.name / "method" / "loss.py"
    module.parent.mkdir(parents=True)
    module.write_text("from .. import decoding")
    with pytest.raises(AssertionError, match="decoding"):
        test_imports_point_one_way("method")


def names_without_prefix(ours: object, stock: object) -> set[str]:
    """Return the names that `ours` adds to `stock`, without our prefix, old ones and cached properties."""
    added = set(dir(ours)) - set(dir(stock)) - {"set_draft_tokens", "draft_token_ids"}
    assert added
    return {name for name in added if not name.startswith(("ngram_", "_ngram_")) and "_cached_value" not in name}


@pytest.mark.parametrize("name", CLASSES)
def test_names_added_to_a_class_begin_with_ngram(name):
    model_class = getattr(ngram_wdr_hf, f"WDRNgram{name}")
    assert names_without_prefix(model_class, model_class.ngram_backbone_class()) == set()
