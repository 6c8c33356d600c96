"""
The code file of a checkpoint: whole modules of this package, in import order. With it, `trust_remote_code=True` loads
the checkpoint where the package is not installed.
"""

import ast
import importlib.util
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import transformers
from transformers import PreTrainedModel

from ..version import __version__
from .made_class import make_class

NAME = "modeling_wdr_ngram"
PACKAGE = __name__.partition(".")[0]
# What registers the classes of the package, and is not needed by one of them.
LEFT_OUT = f"{PACKAGE}.backbones.registry"
LINE_LENGTH = 119
HEADER = '''"""
{name} with everything it needs of `{package}` {version}, module by module.

Generated when the checkpoint was saved. Licensed under the Apache License, Version 2.0
(https://www.apache.org/licenses/LICENSE-2.0); there is no warranty of any kind.
"""
'''


class ModuleText(NamedTuple):
    """A module: what it is, the modules of the package that it imports, its other imports, and the rest of it."""

    title: str
    own_imports: list[str]
    imports: set[str]
    body: str


def write_code_file(model_class: type[PreTrainedModel], folder: Path) -> dict[str, str] | None:
    """
    Write the code file of `model_class` to a checkpoint's folder and return the `auto_map` of its configuration. Do
    nothing for a class with a backbone that is neither Transformers' nor ours: its code may be missing elsewhere.
    """
    model_class = next(cls for cls in model_class.__mro__ if not cls.__module__.startswith("torch."))  # without FSDP
    known = ("transformers.", f"{PACKAGE}.")
    if not all(cls.__module__.startswith(known) for cls in (model_class, model_class.ngram_backbone_class())):
        return None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.py").write_text(code_file(model_class), encoding="utf-8")
    classes = {"AutoConfig": model_class.config_class, model_class.ngram_auto_class: model_class}
    return {auto: f"{NAME}.{cls.__name__}" for auto, cls in classes.items()}


def code_file(model_class: type[PreTrainedModel]) -> str:
    """Return the source of one module that defines `model_class` and its configuration without this package."""
    parents = (*model_class.__mro__, *model_class.config_class.__mro__)
    roots = dict.fromkeys(cls.__module__ for cls in reversed(parents) if cls.__module__.startswith(f"{PACKAGE}."))
    statements, imports = f"announce({model_class.__name__})\n", set()
    if model_class.__module__ == f"{PACKAGE}.backbones":  # made on the spot
        del roots[model_class.__module__]
        roots[make_class.__module__] = None
        made, imports = _make_statements(model_class)
        statements = made + statements
    modules: dict[str, ModuleText] = {}
    for root in roots:
        _add_module(root, modules)
    imports = sorted(imports.union(*(module.imports for module in modules.values())))
    header = HEADER.format(name=model_class.__name__, package=PACKAGE, version=__version__)
    parts = [header, *imports, "\n"]
    for name, module in modules.items():
        title = f"{name.removeprefix(PACKAGE + '.').replace('.', '/')}.py: {module.title}"
        parts.append(textwrap.fill(title, LINE_LENGTH, initial_indent="# ", subsequent_indent="# "))
        parts.append(f"{module.body}\n\n")
    return "\n".join([*parts, statements])


def _add_module(name: str, modules: dict[str, ModuleText]) -> None:
    """Add a module to `modules`, after those that it imports."""
    if name not in modules and name != LEFT_OUT:
        module = _read_module(name)
        for imported in module.own_imports:
            _add_module(imported, modules)
        modules[name] = module


def _read_module(name: str) -> ModuleText:
    """Read a module. Of `if TYPE_CHECKING`, only the other branch counts; calls that register something do not."""
    source = Path(sys.modules[name].__file__).read_text(encoding="utf-8")
    tree, lines = ast.parse(source), source.splitlines()
    own_imports, imports = [], set()
    for node in tree.body:
        kept: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.level:
            relative = "." * node.level + (node.module or "")
            own_imports.append(importlib.util.resolve_name(relative, name.rpartition(".")[0]))
            kept = [f"{alias.asname} = {alias.name}" for alias in node.names if alias.asname]
        elif isinstance(node, ast.ImportFrom):
            names = (ast.unparse(alias) for alias in node.names if alias.name != "TYPE_CHECKING")
            imports |= {f"from {node.module} import {name}" for name in names}
        elif isinstance(node, ast.Import):
            imports |= {f"import {ast.unparse(alias)}" for alias in node.names}
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            kept = [ast.unparse(statement) for statement in node.orelse]
        elif not isinstance(node, ast.Expr):
            continue
        lines[node.lineno - 1 : node.end_lineno] = [*kept, *[None] * (node.end_lineno - node.lineno + 1 - len(kept))]
    title = " ".join((ast.get_docstring(tree) or "").partition("\n\n")[0].split())
    return ModuleText(title, own_imports, imports, "\n".join(line for line in lines if line is not None).strip("\n"))


def _make_statements(model_class: type[PreTrainedModel]) -> tuple[str, set[str]]:
    """Return the statements that make a class without a file and its configuration, and what they import."""
    config_class, backbone = model_class.config_class, model_class.ngram_backbone_class()
    mixins = ", ".join(cls.__bases__[0].__name__ for cls in (model_class, config_class))
    members = {name: value for name, value in vars(model_class).items() if name.startswith("ngram_")}
    values = {name: value.__name__ if isinstance(value, type) else repr(value) for name, value in members.items()}
    text = f"""\
{model_class.__name__} = make_class(
    {backbone.__name__},
    ({mixins}),
    "{config_class.__name__.removeprefix("WDRNgram")}",
    "{config_class.model_type}",
    __name__,
    {{{", ".join(f'"{name}": {value}' for name, value in values.items())}}},
)
{config_class.__name__} = {model_class.__name__}.config_class
"""
    stock = [backbone, *(value for value in members.values() if isinstance(value, type))]
    # Transformers' classes come from its top level, where they are public.
    public = {cls for cls in stock if getattr(transformers, cls.__name__, None) is cls}
    modules = {cls.__name__: "transformers" if cls in public else cls.__module__ for cls in stock}
    return text, {f"from {module} import {name}" for name, module in modules.items()}
