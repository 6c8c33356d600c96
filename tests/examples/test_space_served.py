"""The page of `examples/space` on a server: requests, and the page in a browser."""

import shutil
from collections.abc import Iterator

import app
import generation
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from tests.examples.values import NEW_TOKENS, PROMPT, WEIGHTS, settings
from tests.support.errors import raises_naming


@pytest.fixture(scope="module")
def address(folder) -> Iterator[str]:
    """The address of the page, served on this machine only."""
    page = app.build(folder)
    _, address, _ = page.launch(prevent_thread_lock=True, quiet=True, **app.LAUNCH)
    yield address
    page.close()


def test_requests(address, checkpoint):
    client = Client(address, verbose=False)
    text, speed = client.predict(*settings(), api_name="/continue")
    expected = generation.generate(checkpoint, PROMPT, NEW_TOKENS, WEIGHTS, always_drafts=True)
    assert text == expected.traced.fragment()
    assert "tokens per second" in speed
    with raises_naming(AppError, "40 tokens", "at most 39"):
        client.predict(*settings("a" * 40), api_name="/continue")


@pytest.fixture
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright to drive a browser")
    with playwright.sync_playwright() as driver:
        own = driver.chromium.executable_path
        names = ("chromium", "chromium-browser", "google-chrome", own)
        found = next(filter(None, map(shutil.which, names)), None)
        if found is None:
            pytest.skip("needs Chromium: install Debian's, or run `playwright install chromium`")
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


def test_page_in_a_browser(address, browser, checkpoint):
    page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    requested = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(address)
    page.locator("#prompt textarea").fill(PROMPT)
    page.get_by_label("Let the heads draft").check()
    page.get_by_role("button", name="Continue the text").click()
    page.locator("#speed table").wait_for()

    expected = generation.generate(checkpoint, PROMPT, NEW_TOKENS * 2, WEIGHTS, always_drafts=True).traced
    tokens = page.locator("#text .text .token")
    sources = tokens.evaluate_all("found => found.map(one => one.title)")
    names = {0: "", -1: "prompt lookup"}
    assert sources == [names.get(one.source, f"head {one.source}") for one in expected.tokens]
    shown = tokens.evaluate_all("found => found.map(one => one.firstChild.textContent)")
    assert "".join(shown) == "".join(one.text for one in expected.tokens)
    colors = tokens.evaluate_all("found => found.map(one => getComputedStyle(one).backgroundColor)")
    by_source = set(zip(sources, colors, strict=True))
    assert len(by_source) == len(set(colors)) == len(set(sources)) > 1
    assert "tokens per second" in page.locator("#speed table").inner_text()
    assert "times as fast" in page.locator("#speed").inner_text()

    page.get_by_label("λ", exact=True).check()
    page.get_by_label("number input for λ, the share of the heads").wait_for()
    page.locator("#prompt textarea").fill("a" * 40)
    page.get_by_role("button", name="Continue the text").click()
    page.get_by_text("at most 39").wait_for()
    # Nothing is wider than a telephone, the colours are those of the system, and no other host was asked.
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    assert requested and all(url.startswith((address, "data:", "blob:")) for url in requested)
