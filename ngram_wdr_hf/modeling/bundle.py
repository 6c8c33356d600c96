"""
The code file of a checkpoint: a model class and everything of this package that it needs. With it,
`trust_remote_code=True` loads the checkpoint where the package is not installed.
"""

import ast
import importlib.util
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import transformers
from transformers import PreTrainedModel

from ..version import __version__
from .lookup import offer_by_name

MODULE = "modeling_wdr_ngram"
PACKAGE = __name__.partition(".")[0]
# Comments have the package's line length; imports are wrapped as ruff does by default.
LINE_LENGTH, IMPORT_LENGTH = 119, 88
HEADER = '''"""
{name} with everything it needs of `{package}` {version}, module by module.

Generated when the checkpoint was saved. Licensed under the Apache License, Version 2.0
(https://www.apache.org/licenses/LICENSE-2.0); there is no warranty of any kind.
"""'''


@dataclass(frozen=True)
class ClassStatements:
    r"""
    The source of a model class made on demand and of its configuration, which are in no module. It is executed to
    create the classes, and appended to the code file of their checkpoints.

    Args:
        source (`str`): The two class statements.
        names (`Mapping[str, type]`): The classes that the statements mention, such as their base classes, by name.
    """

    source: str
    names: Mapping[str, type]


@dataclass(frozen=True, eq=False)
class _Definition:
    """
    A top-level definition of a module: its source with the comments above it, the names it uses, whether it is an
    assignment, and whether it follows the statement before it without a blank line.
    """

    source: str
    uses: set[str]
    is_assignment: bool
    follows_directly: bool


@dataclass
class _Module:
    """
    A parsed module of the package. `title` is the first paragraph of its docstring. `definitions` are by name, in the
    module's order; a statement that assigns several names is listed once per name. `own_imports` (from the package)
    and `other_imports` map each imported name to its module and its name there, `None` for an imported module itself.
    """

    title: str
    definitions: dict[str, _Definition] = field(default_factory=dict)
    own_imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    other_imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)


_STATEMENTS: dict[type[PreTrainedModel], ClassStatements] = {}


def bundle(model_class: type[PreTrainedModel]) -> str:
    r"""
    Return the source of one module that defines `model_class` and its configuration, and offers the class by its name.
    It contains all definitions of the package that the two classes need, in the order of dependence, and imports
    nothing of the package.
    """
    statements = _STATEMENTS.get(model_class)
    classes = (model_class.config_class, model_class) if statements is None else statements.names.values()
    own = [part for part in (offer_by_name, *classes) if _is_in_package(part.__module__)]
    roots = [(part.__module__, part.__name__) for part in own]
    needed, imports = _collect(roots)
    if statements is not None:
        for name, cls in statements.names.items():
            if not _is_in_package(cls.__module__):
                # Import Transformers' classes from the top level, where they are public.
                is_public = getattr(transformers, name, None) is cls
                imports[name] = ("transformers" if is_public else cls.__module__, name)
    header = HEADER.format(name=model_class.__name__, package=PACKAGE, version=__version__)
    class_statements = "" if statements is None else f"{statements.source}\n\n\n"
    definitions = "".join(_write_modules(needed)) + class_statements
    return f"{header}\n\n{_write_imports(imports)}\n\n{definitions}{offer_by_name.__name__}({model_class.__name__})\n"


def carry_code(model_class: type[PreTrainedModel], auto_class: str, statements: ClassStatements | None = None) -> None:
    """
    Make the configuration of `model_class` write the code file, and point `auto_map` to it, whenever it is saved,
    alone or with its model. `auto_class` is the name of the Auto class that loads the model. A class made on demand
    needs its class `statements`; they are `None` for a class of the package.

    Transformers' `register_for_auto_class` only copies files of one flat folder. Classes loaded from a checkpoint's
    code file still use it, to copy that file.
    """
    if statements is not None:
        _STATEMENTS[model_class] = statements
    config_class = model_class.config_class
    save_config = config_class.save_pretrained

    def save_pretrained(self, save_directory, push_to_hub: bool = False, **kwargs) -> None:
        # The code file does not define subclasses of `model_class`.
        if self.architectures in (None, [model_class.__name__]) and type(self) is config_class:
            folder = Path(save_directory)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{MODULE}.py").write_text(bundle(model_class), encoding="utf-8")
            classes = {"AutoConfig": config_class, auto_class: model_class}
            self.auto_map = {auto: f"{MODULE}.{cls.__name__}" for auto, cls in classes.items()}
        if push_to_hub:
            # `save_config` would push only files written after it has listed the folder, without the code file.
            self.push_to_hub(kwargs.pop("repo_id", Path(save_directory).name), **kwargs)
        save_config(self, save_directory, **kwargs)

    config_class.save_pretrained = save_pretrained


def _is_in_package(module: str) -> bool:
    return module == PACKAGE or module.startswith(f"{PACKAGE}.")


def _collect(roots: list[tuple[str, str]]) -> tuple[dict[str, set[str]], dict[str, tuple[str, str | None]]]:
    """
    Follow the names that definitions use, starting from `roots`, pairs of module and name. Return all definitions
    needed, `roots` included, as names by module in the order of dependence; and the imports from other libraries, as
    in `_Module.other_imports`. Raise a `ValueError` if one name has two meanings.
    """
    needed: dict[str, set[str]] = {}
    imports: dict[str, tuple[str, str | None]] = {}
    defined_in: dict[str, str] = {}

    def visit(module_name: str, name: str) -> None:
        module = _parse_module(module_name)
        if name in needed.get(module_name, ()):
            return
        if name in module.definitions:
            if name in imports or defined_in.setdefault(name, module_name) != module_name:
                raise ValueError(
                    f"`{name}` of {module_name} has another meaning in another module of the same code file. Rename "
                    "one of them."
                )
            needed.setdefault(module_name, set()).add(name)
            for used in sorted(module.definitions[name].uses):
                visit(module_name, used)
        elif name in module.own_imports:
            visit(*module.own_imports[name])
        elif name in module.other_imports:
            source = module.other_imports[name]
            if name in defined_in or imports.setdefault(name, source) != source:
                raise ValueError(
                    f"`{name}` of {module_name} has another meaning in another module of the same code file. Import "
                    "it under another name."
                )

    for root in roots:
        visit(*root)
    ordered: list[str] = []

    def order(module_name: str) -> None:
        if module_name not in ordered:
            for target, _ in _parse_module(module_name).own_imports.values():
                order(target)
            ordered.append(module_name)

    for module_name in sorted({module_name for module_name, _ in roots}):
        order(module_name)
    return {module_name: needed[module_name] for module_name in ordered if module_name in needed}, imports


@cache
def _parse_module(module_name: str) -> _Module:
    """Return the imports and the definitions at the top level of an imported module of the package."""
    source = inspect.getsource(sys.modules[module_name])
    tree, lines = ast.parse(source), source.split("\n")
    module = _Module(" ".join(ast.get_docstring(tree).partition("\n\n")[0].split()))
    end = 0
    for node in _executed(tree.body):
        if isinstance(node, ast.ImportFrom) and node.level:
            target = importlib.util.resolve_name(
                "." * node.level + (node.module or ""), module_name.rpartition(".")[0]
            )
            module.own_imports |= {alias.asname or alias.name: (target, alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module.other_imports |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            # `import torch.nn.functional as F` binds the submodule, `import torch.nn` binds `torch`.
            module.other_imports |= {
                alias.asname or alias.name.partition(".")[0]: (alias.name, None) for alias in node.names
            }
        elif names := _defined_names(node):
            begin = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
            while begin > end + 1 and lines[begin - 2].startswith("#"):
                begin -= 1
            definition = _Definition(
                source=textwrap.dedent("\n".join(lines[begin - 1 : node.end_lineno])),
                uses=set(_names_in(node)),
                is_assignment=isinstance(node, (ast.Assign, ast.AnnAssign)),
                follows_directly=begin == end + 1,
            )
            module.definitions |= dict.fromkeys(names, definition)
        end = node.end_lineno
    return module


def _executed(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, of those for type checkers (`if TYPE_CHECKING:`) only the `else` branch."""
    for statement in statements:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            yield from statement.orelse
        else:
            yield statement


def _defined_names(node: ast.stmt) -> list[str]:
    """Return the names that a function, class or assignment defines; none for any other statement."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = (
        node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    )
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def _names_in(node: ast.AST) -> Iterator[str]:
    """Yield all names in a statement, also those in quoted annotations. Names may be repeated."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        annotation = getattr(part, "returns" if isinstance(part, ast.FunctionDef) else "annotation", None)
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            yield from _names_in(ast.parse(annotation.value))


def _write_modules(needed: dict[str, set[str]]) -> Iterator[str]:
    """Yield the source of the needed definitions piece by piece. Each module begins with its path and title."""
    for module_name, names in needed.items():
        module = _parse_module(module_name)
        title = f"{module_name.replace('.', '/')}.py: {module.title}"
        yield textwrap.fill(title, LINE_LENGTH, initial_indent="# ", subsequent_indent="# ")
        previous = None
        for definition in dict.fromkeys(module.definitions[name] for name in module.definitions if name in names):
            are_assignments = definition.is_assignment and (previous is None or previous.is_assignment)
            follows_directly = definition.follows_directly and previous is not None
            yield ("\n" if follows_directly else "\n\n") if are_assignments else "\n\n\n"
            yield definition.source
            previous = definition
        yield "\n\n\n"


def _write_imports(imports: dict[str, tuple[str, str | None]]) -> str:
    """
    Return import statements for `imports`, as in `_Module.other_imports`. They are in ruff's order: the standard
    library first, `import` before `from`.
    """
    sections: tuple[list[str], list[str]] = ([], [])
    by_module: dict[str, dict[str, str]] = {}
    for bound, (module_name, name) in sorted(imports.items()):
        if name is not None:
            by_module.setdefault(module_name, {})[bound] = name
            continue
        alias = "" if bound == module_name.partition(".")[0] else f" as {bound}"
        sections[_is_third_party(module_name)].append(f"import {module_name}{alias}")
    for section in sections:
        section.sort()
    for module_name, names in sorted(by_module.items()):
        clauses = [
            name if bound == name else f"{name} as {bound}"
            for bound, name in sorted(names.items(), key=lambda item: _name_order(item[1]))
        ]
        line = f"from {module_name} import {', '.join(clauses)}"
        if len(line) > IMPORT_LENGTH:
            line = f"from {module_name} import (\n" + "".join(f"    {clause},\n" for clause in clauses) + ")"
        sections[_is_third_party(module_name)].append(line)
    return "\n\n".join("\n".join(section) for section in sections if section)


def _is_third_party(module_name: str) -> bool:
    return module_name.partition(".")[0] not in sys.stdlib_module_names


def _name_order(name: str) -> tuple[int, str]:
    """Return the sort key of an imported name: constants, then classes, then everything else, each alphabetically."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2, name.lower())
