"""English text from the Python installation: its help topics and the docstrings of its standard library."""

import ast
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

from datasets import Dataset

# Not library code, or not always installed.
SKIPPED_FOLDERS = {
    *("__pycache__", "dist-packages", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages", "test"),
    *("tests", "turtledemo"),
}
MIN_WORDS = 5
# The last digits of the document numbers that belong to each split.
SPLIT_DIGITS = {"train": (0, 1, 2, 3, 5, 6, 7, 8), "validation": (4,), "test": (9,)}


def python_english() -> dict[str, Dataset]:
    """Return splits of about 300,000 words, a document per row of `text`. They differ between Python versions."""
    # The cache key: raise the version when the texts change.
    documents = Dataset.from_generator(_rows, gen_kwargs={"python": platform.python_version(), "version": 1})
    return {
        split: documents.select([i for i in range(len(documents)) if i % 10 in digits])
        for split, digits in SPLIT_DIGITS.items()
    }


def _rows(**key: str | int) -> Iterator[dict[str, str]]:
    """Yield topics and docstrings of at least `MIN_WORDS` words, once each, in the same order on every machine."""
    seen = set()
    for text in (*(topics[name] for name in sorted(topics)), *_docstrings()):
        text = text.strip()
        if len(text.split()) >= MIN_WORDS and text not in seen:
            seen.add(text)
            yield {"text": text}


def _docstrings() -> Iterator[str]:
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        if SKIPPED_FOLDERS.isdisjoint(path.relative_to(library).parts):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield ast.get_docstring(node) or ""
