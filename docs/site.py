"""
A hook of mkdocs.yml: pages of the site that are not files of this folder, links to them, and mathematics without
JavaScript.

The README, the other documents of the project and the notebooks become pages as they are, so that each has one source
and reads well on its own. Links between documents are those of the repository. A link to a file that has no page
becomes plain text.
"""

import json
import posixpath
import re
from base64 import b64decode
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
NOTEBOOKS = [f"notebooks/{path.stem}.md" for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
# Pages whose source is outside this folder: their paths in the site and in the repository.
SOURCES = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "experiments.md": "experiments/README.md",
} | {page: page.replace(".md", ".ipynb") for page in NOTEBOOKS}
PAGES = {source: page for page, source in SOURCES.items()}

LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
MATHEMATICS = re.compile(r'<(span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', flags=re.DOTALL)
# Docstrings refer to names in the style of Transformers: [`name`], [`~package.name`].
REFERENCE = re.compile(r"\[<code>~?([^<]*)</code>\]")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages of the results and the notebooks to the navigation."""
    sections = {title: pages for entry in config.nav for title, pages in entry.items()}
    for path in sorted(Path(config.docs_dir, "results").glob("*.md")):
        if path.stem != "index":
            title = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ").partition(":")[0]
            # A page of a table is named after the table and its scale, TABLE-SCALE. The scales have the same title.
            scale = path.stem.partition("-")[2]
            sections["Results"].append({f"{title}, {scale}" if scale else title: f"results/{path.name}"})
    sections["Notebooks"] += NOTEBOOKS
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, source in SOURCES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if source.endswith(".ipynb"):
            pictures: dict[str, str] = {}
            text = "\n\n".join(notebook_parts(json.loads(text), Path(source).stem, pictures))
            for name, content in pictures.items():
                files.append(File.generated(config, f"notebooks/{name}", content=b64decode(content)))
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links of the repository links of the site."""
    here = page.file.src_uri
    folder = posixpath.dirname(SOURCES.get(here, f"docs/{here}"))

    def in_the_site(link: re.Match) -> str:
        text, target, anchor = link[1], posixpath.normpath(posixpath.join(folder, link[2])), link[3] or ""
        if "://" in link[2] or not (ROOT / target).exists():
            return link[0]
        if target not in PAGES and not target.startswith("docs/"):
            return text
        path = PAGES.get(target, target.removeprefix("docs/"))
        return f"[{text}]({posixpath.relpath(path, posixpath.dirname(here) or '.')}{anchor})"

    return LINK.sub(in_the_site, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    def to_mathml(formula: re.Match) -> str:
        return convert(unescape(formula[2]).strip(), display="inline" if formula[1] == "span" else "block")

    return REFERENCE.sub(r"<code>\1</code>", MATHEMATICS.sub(to_mathml, html))


def notebook_parts(notebook: dict[str, Any], name: str, pictures: dict[str, str]) -> Iterator[str]:
    """Yield the cells of a notebook and their stored outputs as Markdown, and collect the pictures by file name."""
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source
            continue
        yield fence("python", source)
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "text/html" in data:
                yield f'<div class="output">{"".join(data["text/html"])}</div>'
            elif "image/png" in data:
                picture = f"{name}-{len(pictures) + 1}.png"
                pictures[picture] = "".join(data["image/png"])
                yield f"![Output of the cell]({picture})"
            else:
                yield fence("text", "".join(data.get("text/plain", output.get("text", ""))))


def fence(language: str, text: str) -> str:
    return f"````{language}\n{text.rstrip()}\n````"
