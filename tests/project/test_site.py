"""The site of the documentation: a strict build, every link inside it, mathematics, notebooks, and no other hosts."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import ngram_wdr_hf
from tests.support.processes import ROOT, run_python


class Links(HTMLParser):
    """The links and anchors of a page, and the files that a browser loads with it."""

    def __init__(self, page: Path):
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        target = found.get("href") or found.get("src")
        if target and not target.startswith(("data:", "javascript:")):
            (self.links if tag == "a" else self.loaded).add(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site").resolve()
    run_python("-m", "mkdocs", "build", "--strict", "--site-dir", str(folder), NO_MKDOCS_2_WARNING="1")
    return folder


def test_links_lead_somewhere(site):
    pages = {page: Links(page) for page in site.rglob("*.html")}
    assert len(pages) > 30
    for page, found in pages.items():
        assert not [target for target in found.loaded if urlsplit(target).netloc], page
        for link in found.links | found.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = unquote(parts.path)
            target = ((site if path.startswith("/") else page.parent) / path.lstrip("/")).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{page}: {link}"
            assert not parts.fragment or target not in pages or unquote(parts.fragment) in pages[target].anchors, link
    assert {"method/", "results/", "backbones/", "contributing/"} <= pages[site / "index.html"].links


def test_mathematics_and_notebooks(site):
    for page, formulas in (("method", 40), ("notebooks/02_wdr_targets", 10)):
        html = (site / page / "index.html").read_text(encoding="utf-8")
        assert html.count("<math") > formulas and "arithmatex" not in html
        prose = re.sub(r"(?s)<(script|code).*?</\1>", "", html)
        assert not re.findall(r"\$|\\[a-zA-Z]+", prose)
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        found = Links(site / "notebooks" / notebook.stem / "index.html")
        assert [link for link in found.loaded if link.endswith(f"{notebook.stem}-1.png")]


def test_public_functions_are_documented(site):
    anchors = set().union(*(Links(page).anchors for page in (site / "api").rglob("*.html")))
    names = {anchor.rpartition(".")[2] for anchor in anchors if anchor.startswith("ngram_wdr_hf.")}
    public = {name for name in ngram_wdr_hf.__all__ if not name.startswith(("WDR", "__"))}
    assert "fit_ensemble" in public and public <= names
    text = (site / "api" / "models" / "index.html").read_text(encoding="utf-8")
    assert "*optional*" not in text and "[<code>" not in text
