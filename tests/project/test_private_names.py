"""The private names of other libraries that the package relies on: a release that changes one is read in one line."""

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
# What is imported from here is documented, or exported on purpose.
PUBLIC_MODULES = (*LIBRARIES, "transformers.generation", "transformers.modeling_outputs", "transformers.utils")
PUBLIC_MODULES += (
    "accelerate.utils",
    "datasets.exceptions",
    "torch.nn",
    "torch.optim.lr_scheduler",
    "torch.utils.data",
)
# Public in spite of the underscore.
NAMED_TUPLE = ("_asdict", "_fields", "_make", "_replace")
MADE_BY_METACLASSES = ("_abc_impl", "_backward_cls", "_field_defaults", "_fields")
GETTERS = ("getattr", "hasattr", "setattr")
# Every part of a listed path counts as listed: `torch._dynamo` as well as what is called on it.
LISTED = {part for private in PRIVATE_NAMES for part in re.split(r"[.:]", private.path)}


@pytest.mark.parametrize("private", PRIVATE_NAMES, ids=lambda private: private.path)
def test_name_is_there(private: PrivateName):
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
def test_a_change_is_seen(replacements: dict[str, str], expected: str):
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
        for place in re.split(", | and ", private.used_by):
            files = (PACKAGE / place).rglob("*.py") if place.endswith("/") else [PACKAGE / place]
            sources = [file.read_text(encoding="utf-8") for file in files if file.exists()]
            assert any(private.name in source for source in sources), f"{private.path} is not used by {place}"


def test_private_attributes_are_listed():
    trees = {path.relative_to(PACKAGE): ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    own = {name for tree in trees.values() for name in defined_names(tree)}
    used = {(name, f"{path}:{line}") for path, tree in trees.items() for name, line in private_attributes(tree)}
    unlisted = sorted(f"{place} {name}" for name, place in used if name not in {*own, *LISTED, *NAMED_TUPLE})
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
        # Transformers notes on a class what it found out about it.
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
    """What has become of a name; `None` if it is as we need it."""
    try:
        if private.set_by is not None:
            resolve(private.path.rpartition(".")[0])
            return None if sets(resolve(private.set_by), private.name) else f"{private.set_by} no longer sets it"
        found = resolve(private.path)
    except (ImportError, AttributeError):
        return "gone"
    if private.parameters is None:
        return None
    signature = inspect.signature(found)
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    names = ", ".join(parameter.name for parameter in parameters)
    return None if accepts(parameters, private.parameters) else f"its parameters are now ({names})"


def resolve(path: str) -> Any:
    module, _, name = path.partition(":")
    found = importlib.import_module(module)
    for part in filter(None, name.split(".")):
        found = getattr(found, part)
    return found


def accepts(parameters: list[inspect.Parameter], expected: str) -> bool:
    """Whether a call with the expected parameters, positional ones before `*`, is still possible."""
    names = re.findall(r"\w+|\*|\.\.\.", expected)
    hands_on = "..." in names
    names = [name for name in names if name != "..."]
    num_positional = names.index("*") if "*" in names else len(names)
    positional, keyword = names[:num_positional], names[num_positional + 1 :]
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    first = [parameter.name for parameter in parameters if parameter.kind in by_position][:num_positional]
    required = {p.name for p in parameters if p.kind not in variadic and p.default is p.empty}
    is_known = {*keyword} <= {parameter.name for parameter in parameters}
    return first == positional and is_known and (hands_on or required <= {*names})


def sets(owner: Any, attribute: str) -> bool:
    """Whether the source of a class or function assigns the attribute to an object, or makes it a buffer."""
    name = re.escape(attribute)
    assignment = rf"\.{name}\b(\s*:[^=\n]+)?(\s*,\s*[\w.]+)*\s*=[^=]|\bregister_buffer\(\s*[\"']{name}[\"']"
    return re.search(assignment, inspect.getsource(owner)) is not None


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def private_attributes(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The private attributes that a module reads, calls or sets, also by `getattr`, and the lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            yield node.attr, node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in GETTERS:
            name = node.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and is_private(name.value):
                yield name.value, node.lineno


def defined_names(tree: ast.Module) -> Iterator[str]:
    """The functions, classes and variables that a module defines, and the attributes that it gives to `self`."""
    for node in ast.walk(tree):
        targets = []
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        # Not those of `+=`, which needs a value from elsewhere.
        for part in (part for target in targets for part in ast.walk(target)):
            if isinstance(part, ast.Name):
                yield part.id
            elif isinstance(part, ast.Attribute) and ast.unparse(part.value) == "self":
                yield part.attr


def own_classes() -> Iterator[type]:
    for found in pkgutil.walk_packages([str(PACKAGE)], "ngram_wdr_hf."):
        if found.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(found.name)
        except ModuleNotFoundError:  # an optional package
            continue
        yield from (cls for cls in vars(module).values() if isinstance(cls, type) and cls.__module__ == found.name)


def is_public(module: str, name: str) -> bool:
    """Whether a name is imported from a public module, or could be."""
    if module in PUBLIC_MODULES:
        return True
    wanted = getattr(importlib.import_module(module), name)
    root = module.split(".")[0]
    public = [importlib.import_module(other) for other in PUBLIC_MODULES if other.split(".")[0] == root]
    return any(getattr(other, name, None) is wanted for other in public)
