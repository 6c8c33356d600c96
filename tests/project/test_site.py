"""The site of the documentation: a strict build, which checks links and anchors; mathematics, notebooks, no hosts."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import ngram_wdr_hf
from tests.support.processes import ROOT, run_python

pytestmark = pytest.mark.slow


class Page(HTMLParser):
    """The anchors of a page, and the files that a browser loads with it."""

    def __init__(self, path: Path):
        super().__init__()
        self.anchors: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found["id"]} if found.get("id") else set()
        target = found.get("href") or found.get("src")
        if target and tag != "a" and not target.startswith("data:"):
            self.loaded.add(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site").resolve()
    run_python("-m", "mkdocs", "build", "--strict", "--site-dir", str(folder), NO_MKDOCS_2_WARNING="1")
    return folder


def test_no_other_host_is_needed(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        targets = Page(page).loaded
        assert not [target for target in targets if urlsplit(target).netloc], page
        assert all((page.parent / urlsplit(target).path).exists() for target in targets if target[0] != "/"), page


def test_mathematics_and_notebooks(site):
    for page, formulas in (("method", 40), ("notebooks/02_wdr_targets", 10)):
        html = (site / page / "index.html").read_text(encoding="utf-8")
        assert html.count("<math") > formulas and "arithmatex" not in html
        prose = re.sub(r"(?s)<(script|code).*?</\1>", "", html)
        assert not re.findall(r"\$|\\[a-zA-Z]+", prose)
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        found = Page(site / "notebooks" / notebook.stem / "index.html")
        assert [link for link in found.loaded if link.endswith(f"{notebook.stem}-1.png")]


def test_public_functions_are_documented(site):
    anchors = set().union(*(Page(page).anchors for page in (site / "api").rglob("*.html")))
    names = {anchor.rpartition(".")[2] for anchor in anchors if anchor.startswith("ngram_wdr_hf.")}
    public = {name for name in ngram_wdr_hf.__all__ if not name.startswith(("WDR", "__"))}
    assert "fit_ensemble" in public and public <= names
