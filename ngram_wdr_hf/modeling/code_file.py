"""
The code file of a checkpoint: whole modules of this package, in import order. With it, `trust_remote_code=True` loads
the checkpoint where the package is not installed.
"""

import ast
import importlib.util
import sys
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import transformers
from transformers import PreTrainedModel

from ..version import __version__

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
    """A module: its first line, its own modules, its other imports as `(module, name, bound name)`, and the rest."""

    title: str
    own_imports: list[str]
    imports: set[tuple[str, str | None, str]]
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
    statements, imports = "", set()
    if model_class.__module__ == f"{PACKAGE}.backbones":  # made on the spot
        statements, imports = _class_statements(model_class)
        del roots[model_class.__module__]
    modules: dict[str, ModuleText] = {}
    for root in roots:
        _add_module(root, modules)
    imports |= set().union(*(module.imports for module in modules.values()))
    parts = [HEADER.format(name=model_class.__name__, package=PACKAGE, version=__version__), _import_lines(imports)]
    for name, module in modules.items():
        title = f"{name.removeprefix(PACKAGE + '.').replace('.', '/')}.py: {module.title}"
        parts.append(textwrap.fill(title, LINE_LENGTH, initial_indent="# ", subsequent_indent="# "))
        parts.append(f"{module.body}\n\n")
    return "\n".join([*parts, statements + f"announce({model_class.__name__})\n"])


def _add_module(name: str, modules: dict[str, ModuleText]) -> None:
    """Add a module to `modules`, after those that it imports."""
    if name in modules or name == LEFT_OUT:
        return
    module = _read_module(name)
    for imported in module.own_imports:
        _add_module(imported, modules)
    modules[name] = module


def _read_module(name: str) -> ModuleText:
    """Read a module. Of `if TYPE_CHECKING`, only the other branch counts; calls that register something do not."""
    source = Path(sys.modules[name].__file__).read_text(encoding="utf-8")
    tree, lines = ast.parse(source), source.splitlines()
    title = " ".join((ast.get_docstring(tree) or "").partition("\n\n")[0].split())
    own_imports, imports = [], set()
    for node in tree.body:
        kept: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.level:
            relative = "." * node.level + (node.module or "")
            own_imports.append(importlib.util.resolve_name(relative, name.rpartition(".")[0]))
        elif isinstance(node, ast.ImportFrom):
            imports |= {(node.module, alias.name, alias.asname or alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            imports |= {(alias.name, None, alias.asname or alias.name) for alias in node.names}
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            kept = [ast.unparse(statement) for statement in node.orelse]
        elif not isinstance(node, ast.Expr):
            continue
        lines[node.lineno - 1 : node.end_lineno] = [*kept, *[None] * (node.end_lineno - node.lineno + 1 - len(kept))]
    body = "\n".join(line for line in lines if line is not None)
    return ModuleText(title, own_imports, imports - {("typing", "TYPE_CHECKING", "TYPE_CHECKING")}, body.strip("\n"))


def _class_statements(model_class: type[PreTrainedModel]) -> tuple[str, set[tuple[str, str | None, str]]]:
    """Return the class statements of a model made on the spot and of its configuration, and what they import."""
    config_class, backbone = model_class.config_class, model_class.ngram_backbone_class()
    members = {name: value for name, value in vars(model_class).items() if name.startswith("ngram_")}
    used = [
        cls for cls in (*model_class.__bases__, *config_class.__bases__, *members.values()) if isinstance(cls, type)
    ]
    values = {name: value.__name__ if isinstance(value, type) else repr(value) for name, value in members.items()}
    decorator = f"@takes_arguments_of({backbone.__name__})\n" if "forward" in vars(model_class) else ""
    text = f'''class {config_class.__name__}({", ".join(base.__name__ for base in config_class.__bases__)}):
    """{config_class.__doc__}"""

    model_type = "{config_class.model_type}"


{decorator}class {model_class.__name__}({", ".join(base.__name__ for base in model_class.__bases__)}):
    """{model_class.__doc__}"""

    config_class = {config_class.__name__}
{"".join(f"    {name} = {value}{chr(10)}" for name, value in values.items())}

'''
    stock = {cls.__name__: cls for cls in used if not cls.__module__.startswith(f"{PACKAGE}.")}
    # Transformers' classes come from its top level, where they are public.
    modules = {
        name: "transformers" if getattr(transformers, name, None) is cls else cls.__module__
        for name, cls in stock.items()
    }
    return text, {(module, name, name) for name, module in modules.items()}


def _import_lines(imports: set[tuple[str, str | None, str]]) -> str:
    """Return import statements, those of the standard library first."""
    lines, names = [], defaultdict(list)
    for module, name, bound in sorted(imports, key=str):
        if name is None:
            lines.append(f"import {module}" if bound == module else f"import {module} as {bound}")
        else:
            names[module].append(name if bound == name else f"{name} as {bound}")
    for module, clauses in names.items():
        line = f"from {module} import {', '.join(clauses)}"
        wrapped = f"from {module} import (\n    {f',{chr(10)}    '.join(clauses)},\n)"
        lines.append(line if len(line) <= LINE_LENGTH else wrapped)
    is_standard = {line: line.split()[1].partition(".")[0] in sys.stdlib_module_names for line in lines}
    return "\n".join(sorted(lines, key=lambda line: (not is_standard[line], line))) + "\n\n"
