"""The page in a real browser: search, tags and keys work, and no text becomes markup."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from scimult.library import Library
from tests.serving.conftest import Running, running
from tests.tiny import save_tiny_model

playwright = pytest.importorskip("playwright.sync_api")
NAMES = ("chromium", "chromium-browser", "google-chrome")
SCRIPT = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
TURNED = "graph \u202egnitirw desrever\u202c \u2067right to left\u2069"
ARABIC = "\u0645\u062e\u0637\u0637"
LONG = "graph " + "a" * 1_000_000
PAPERS: list[dict[str, Any]] = [
    {"id": "script", "title": SCRIPT, "abstract": f"So. {SCRIPT}", "venue": SCRIPT, "year": 2001},
    {"id": "turned", "title": TURNED, "abstract": "An open \u202e mark.", "year": 2002},
    {"id": "arabic", "title": ARABIC, "year": 2003},
    {"id": "long", "title": LONG, "abstract": "b" * 1_000_000, "year": 2004},
    {"id": "<b>id</b>", "title": "graph", "abstract": "One. Two graphs. Three.", "year": 2005},
    *({"id": f"p{n}", "title": f"graph {n}", "year": 2006, "open": n % 2 == 0} for n in range(9)),
]  # fmt: skip

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("page")
    model = save_tiny_model(root / "model", similarity="cosine")
    Library.create(root / "library", PAPERS, model=model)
    with running(root / "library", most_tokens=4096) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium: install the package chromium")
    with playwright.sync_playwright() as found:
        opened = found.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


class View:
    """A page, its requests and its errors."""

    def __init__(self, browser: Any, url: str, width: int = 1280, scheme: str = "light") -> None:
        viewport = {"width": width, "height": 800}
        self.page = browser.new_page(viewport=viewport, color_scheme=scheme)
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.goto(url)
        self.page.wait_for_selector("#tasks input", state="attached")

    def wait_for_answer(self) -> None:
        """Wait for the answer."""
        expect = playwright.expect(self.page.locator("#status"))
        expect.to_have_text(re.compile(" papers|No paper|: "), timeout=60_000)

    def wait_for_results(self, count: int) -> None:
        """Wait until this many results are shown."""
        results = self.page.locator("#results > li")
        playwright.expect(results).to_have_count(count, timeout=60_000)

    def titles(self) -> list[str]:
        """Return the titles of the results."""
        found: list[str] = self.page.locator("#results h2").all_text_contents()
        return found


def test_search_more_like_this_and_tags_by_keys(server: Running, browser: Any) -> None:
    view = View(browser, server.url)
    page = view.page
    page.keyboard.type("graph")
    page.keyboard.press("Enter")
    view.wait_for_answer()
    expected = server.post("/search", {"text": "graph"}).json()["papers"]
    assert view.titles() == [(one["title"][:300] + "…")[: len(one["title"])] for one in expected]
    page.click("#more")
    view.wait_for_results(14)
    assert page.locator("#more").is_hidden()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("t")
    page.wait_for_selector("#results li:nth-child(2) .chips")
    assert page.locator("#results li:nth-child(2) .chip").count() == 3
    page.keyboard.press("l")
    playwright.expect(page.locator("#status")).to_contain_text(" like ")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "text"
    assert view.errors == []
    assert {url.startswith(server.url) or url == "data:," for url in view.requests} == {True}


def test_filters_and_a_draft(server: Running, browser: Any) -> None:
    view = View(browser, server.url)
    page = view.page
    page.fill("#text", "graph")
    page.click("#filters summary")
    page.get_by_label("year", exact=True).fill("2002")
    page.get_by_label("year, to").fill("2003")
    page.click("button.main")
    view.wait_for_answer()
    assert sorted(view.titles()) == sorted([TURNED, ARABIC])
    page.get_by_label("year", exact=True).fill("")
    page.get_by_label("year, to").fill("")
    page.get_by_label("open").select_option("true")
    page.click("button.main")
    view.wait_for_results(5)
    page.get_by_text("Related to a draft").click()
    page.fill("#text", "A graph\nOf words.")
    page.click("#suggest")
    page.wait_for_selector("#tags .chip")
    page.click("button.main")
    view.wait_for_answer()
    hits = Library.open(server.served.path).recommend(
        title="A graph", abstract="Of words.", where={"open": True}
    )
    assert view.titles() == [hit.title for hit in hits]
    page.click("button[type=reset]")
    assert view.titles() == []
    assert page.locator("#tasks input:checked").count() == 1
    assert view.errors == []


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light")])
def test_texts_stay_texts(server: Running, browser: Any, width: int, scheme: str) -> None:
    view = View(browser, server.url, width, scheme)
    page = view.page
    page.fill("#text", "graph")
    page.keyboard.press("Enter")
    view.wait_for_answer()
    page.click("#more")
    view.wait_for_results(14)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.title() == "SciMult"
    assert page.locator("#results img, #results script, #results b").count() == 0
    titles = view.titles()
    assert {SCRIPT, TURNED, ARABIC} <= set(titles)
    assert max(map(len, titles)) == 301
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("document.body.innerHTML.length") < 60_000
    # Directional marks end with their element.
    score = page.locator("#results li", has_text="An open").locator(".score")
    assert page.evaluate("(e) => getComputedStyle(e).direction", score.element_handle()) == "ltr"
    assert view.errors == []


def test_injected_scripts_do_not_run(server: Running, browser: Any) -> None:
    view = View(browser, server.url)
    view.page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x: onerror=\"alert(1)\">');"
        "const s = document.createElement('script'); s.textContent = 'document.title = 2';"
        "document.body.append(s);"
    )
    view.page.wait_for_timeout(100)
    assert view.page.title() == "SciMult"
    assert any("Content Security Policy" in message for message in view.errors)
    policy = httpx.get(server.url).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_a_key_is_requested_and_kept(folder: Path, browser: Any) -> None:
    with running(folder, key="a-key-of-many-letters") as server:
        page = browser.new_page()
        page.goto(server.url)
        page.fill("#key", "wrong")
        page.keyboard.press("Enter")
        playwright.expect(page.locator("#status")).to_contain_text("wrong")
        page.fill("#key", "a-key-of-many-letters")
        page.keyboard.press("Enter")
        page.wait_for_selector("#tasks input", state="attached")
        page.fill("#text", "graph")
        page.click("#ask button.main")
        page.wait_for_selector("#results li")
        assert "a-key-of-many-letters" not in page.content()
