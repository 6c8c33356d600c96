"""The private names of other libraries that the package relies on. A changed name fails with a one-line message."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ngram_wdr_hf
from tests.project.private_names import PRIVATE_NAMES, PrivateName

PACKAGE = Path(ngram_wdr_hf.__file__).parent
LIBRARIES = ("accelerate", "datasets", "evaluate", "torch", "transformers", "trl")
# Modules with documented or deliberately exported names.
PUBLIC_MODULES = (*LIBRARIES, "transformers.generation", "transformers.modeling_outputs", "transformers.utils")
PUBLIC_MODULES += (
    "accelerate.utils",
    "datasets.exceptions",
    "torch.distributed.tensor",
    "torch.nn",
    "torch.optim.lr_scheduler",
    "torch.utils.data",
)
# Public names with an underscore.
NAMED_TUPLE = ("_asdict", "_fields", "_make", "_replace")
MADE_BY_METACLASSES = ("_abc_impl", "_backward_cls", "_field_defaults", "_fields", "_is_protocol")
GETTERS = ("getattr", "hasattr", "setattr")
# Every part of a listed path counts as listed, such as `_dynamo` in `torch._dynamo`.
LISTED = {part for private in PRIVATE_NAMES for part in re.split(r"[.:]", private.path)}


@pytest.mark.parametrize("private", PRIVATE_NAMES, ids=lambda private: private.path)
def test_name_exists_unchanged(private: PrivateName):
    pytest.importorskip(private.library)
    change = change_of(private)
    assert change is None, describe(private, change)


@pytest.mark.parametrize(
    ("replacements", "expected"),
    [
        ({"path": "transformers.generation.utils:GenerationMixin._gone"}, "gone"),
        ({"path": "transformers.generation.gone:GenerationMixin._prefill"}, "gone"),
        ({"parameters": "input_ids, another"}, "its parameters are now (input_ids, generation_config, model_kwargs"),
        ({"parameters": "generation_config, input_ids, model_kwargs"}, "its parameters are now"),
        ({"parameters": "input_ids, *, another"}, "its parameters are now"),
        ({"parameters": "input_ids, generation_config"}, "its parameters are now"),
        ({"set_by": "transformers.generation.utils:GenerationMixin.generate"}, "no longer sets it"),
    ],
)
def test_change_is_reported(replacements: dict[str, str], expected: str):
    fields = {
        "path": "transformers.generation.utils:GenerationMixin._prefill",
        "used_by": "decoding/loop.py",
        "reason": "read the prompt",
        "parameters": "input_ids, generation_config, model_kwargs",
    }
    assert change_of(PrivateName(**fields)) is None
    private = PrivateName(**{**fields, **replacements})
    message = describe(private, change_of(private))
    assert expected in message and message.endswith("needed by decoding/loop.py to read the prompt")


def test_names_are_listed_once_and_used_where_they_say():
    assert len({private.path for private in PRIVATE_NAMES}) == len(PRIVATE_NAMES)
    for private in PRIVATE_NAMES:
        for user in re.split(", | and ", private.used_by):
            files = (PACKAGE / user).rglob("*.py") if user.endswith("/") else [PACKAGE / user]
            sources = [file.read_text(encoding="utf-8") for file in files if file.exists()]
            assert any(private.name in source for source in sources), f"{private.path} is not used by {user}"


def test_private_attributes_are_listed():
    trees = {path.relative_to(PACKAGE): ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    own = {name for tree in trees.values() for name in defined_names(tree)}
    used = {(name, f"{path}:{line}") for path, tree in trees.items() for name, line in private_attributes(tree)}
    unlisted = sorted(f"{location} {name}" for name, location in used if name not in {*own, *LISTED, *NAMED_TUPLE})
    assert not unlisted, f"not listed in private_names.py: {', '.join(unlisted)}"
    needed = {name for name, _ in used} | own
    left_over = [private.path for private in PRIVATE_NAMES if is_private(private.name) and private.name not in needed]
    assert not left_over, f"listed in private_names.py, but no longer used: {', '.join(left_over)}"


def test_overridden_private_names_are_listed():
    unlisted = {
        f"{cls.__module__}.{cls.__name__}.{name} ({base.__module__}.{base.__name__})"
        for cls in own_classes()
        for owner in cls.__mro__
        for name in vars(owner)
        if is_private(name)
        and owner.__module__.startswith("ngram_wdr_hf")
        and name not in MADE_BY_METACLASSES
        # Transformers caches properties on the class.
        and not name.endswith("_cached_value")
        for base in cls.__mro__
        if not base.__module__.startswith("ngram_wdr_hf") and name in vars(base) and name not in LISTED
    }
    assert not unlisted, f"not listed in private_names.py: {', '.join(sorted(unlisted))}"


def test_undocumented_imports_are_listed():
    listed = {private.path for private in PRIVATE_NAMES}
    unlisted = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or node.level or node.module.split(".")[0] not in LIBRARIES:
                continue
            for alias in node.names:
                imported = f"{node.module}:{alias.name}"
                is_listed = any(name == imported or name.startswith(f"{imported}.") for name in listed)
                if not (is_listed or is_public(node.module, alias.name)):
                    unlisted.add(f"{path.relative_to(PACKAGE)}:{node.lineno} {imported}")
    assert not unlisted, f"not listed in private_names.py: {', '.join(sorted(unlisted))}"


def describe(private: PrivateName, change: str | None) -> str:
    parameters = "" if private.parameters is None else f"({private.parameters})"
    return f"{private.path.replace(':', '.')}{parameters}: {change}; needed by {private.used_by} to {private.reason}"


def change_of(private: PrivateName) -> str | None:
    """Describe how a name has changed; `None` if it is as expected."""
    try:
        if private.set_by is not None:
            resolve(private.path.rpartition(".")[0])
            return None if sets(resolve(private.set_by), private.name) else f"{private.set_by} no longer sets it"
        target = resolve(private.path)
    except (ImportError, AttributeError):
        return "gone"
    if private.parameters is None:
        return None
    signature = inspect.signature(target)
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    names = ", ".join(parameter.name for parameter in parameters)
    return None if accepts(parameters, private.parameters) else f"its parameters are now ({names})"


def resolve(path: str) -> Any:
    module, _, name = path.partition(":")
    target = importlib.import_module(module)
    for part in filter(None, name.split(".")):
        target = getattr(target, part)
    return target


def accepts(parameters: list[inspect.Parameter], expected: str) -> bool:
    """Return whether a call with the expected parameters, positional ones before `*`, still works."""
    names = re.findall(r"\w+|\*|\.\.\.", expected)
    passes_others = "..." in names
    names = [name for name in names if name != "..."]
    num_positional = names.index("*") if "*" in names else len(names)
    positional, keyword = names[:num_positional], names[num_positional + 1 :]
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    first = [parameter.name for parameter in parameters if parameter.kind in by_position][:num_positional]
    required = {p.name for p in parameters if p.kind not in variadic and p.default is p.empty}
    is_known = {*keyword} <= {parameter.name for parameter in parameters}
    return first == positional and is_known and (passes_others or required <= {*names})


def sets(owner: Any, attribute: str) -> bool:
    """Return whether the source of a class or function sets the attribute or registers it as a buffer."""
    name = re.escape(attribute)
    assignment = rf"\.{name}\b(\s*:[^=\n]+)?(\s*,\s*[\w.]+)*\s*=[^=]|\bregister_buffer\(\s*[\"']{name}[\"']"
    return re.search(assignment, inspect.getsource(owner)) is not None


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def private_attributes(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the private attributes that a module uses, also by `getattr`, and their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            yield node.attr, node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in GETTERS:
            name = node.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and is_private(name.value):
                yield name.value, node.lineno


def defined_names(tree: ast.Module) -> Iterator[str]:
    """Yield the functions, classes and variables that a module defines, and the attributes it sets on `self`."""
    for node in ast.walk(tree):
        targets = []
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        # `+=` does not define a name.
        for part in (part for target in targets for part in ast.walk(target)):
            if isinstance(part, ast.Name):
                yield part.id
            elif isinstance(part, ast.Attribute) and ast.unparse(part.value) == "self":
                yield part.attr


def own_classes() -> Iterator[type]:
    for info in pkgutil.walk_packages([str(PACKAGE)], "ngram_wdr_hf."):
        if info.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(info.name)
        except ModuleNotFoundError:  # an optional package
            continue
        yield from (cls for cls in vars(module).values() if isinstance(cls, type) and cls.__module__ == info.name)


def is_public(module: str, name: str) -> bool:
    """Return whether a name is imported from a public module, or could be."""
    if module in PUBLIC_MODULES:
        return True
    imported = getattr(importlib.import_module(module), name)
    root = module.split(".")[0]
    public = [importlib.import_module(other) for other in PUBLIC_MODULES if other.split(".")[0] == root]
    return any(getattr(other, name, None) is imported for other in public)
