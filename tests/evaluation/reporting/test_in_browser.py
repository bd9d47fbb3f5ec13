"""The page in a browser: wide and on a phone, light and dark, with hostile names."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scimult.evaluation.reporting.page import to_html
from scimult.evaluation.reporting.parts import Options
from scimult.evaluation.reporting.suite_report import SuiteReport, make_suite_report
from scimult.evaluation.reporting.verdict import Estimate, Picture, scale_of
from scimult.evaluation.results import load_results, provenance, save_result
from scimult.table import Cell, Table
from tests.evaluation.reporting.scored import write_results

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOSTILE = "</td><script>document.title='owned'</script><img src=x onerror=document.title='owned'>"
ENDLESS = "Donaudampfschifffahrtsgesellschaft" * 6
WIDTHS, MODES = (400, 1280), ("light", "dark")

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if path is None:
        pytest.skip("no Chromium: install the package chromium")
    with sync_api.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])


@pytest.fixture(scope="module")
def suite_report(tmp_path_factory: pytest.TempPathFactory) -> SuiteReport:
    root = tmp_path_factory.mktemp("report")
    write_results(root)
    options = Options(data=[root / "data"], resamples=100)
    return make_suite_report(root / "results", options, lambda message: None)


@pytest.fixture(scope="module")
def hostile(suite_report: SuiteReport) -> SuiteReport:
    """Return a report with names that are markup or very long, and a table of many systems."""
    wins = [replace(one, name=HOSTILE, system=ENDLESS) for one in suite_report.wins]
    heads = ["set", *(f"{ENDLESS[:40]}-{number}" for number in range(12)), HOSTILE]
    row = [Cell(ENDLESS), *(Cell("12.34", 0.1234, note="10.0 to 14.0") for _ in heads[1:])]
    wide = Table(f"Compared with {HOSTILE}", heads, 1, [row], [HOSTILE, ENDLESS])
    verdict = suite_report.verdict
    assert verdict is not None
    estimates = [replace(one, system=ENDLESS) for one in verdict.pictures[0].estimates]
    pictures = [replace(verdict.pictures[0], estimates=estimates, baseline=HOSTILE)]
    names = dict(zip(suite_report.systems, (ENDLESS, HOSTILE), strict=True))
    curves = [
        replace(
            one,
            name=HOSTILE,
            curves=[replace(line, system=names[line.system]) for line in one.curves],
        )
        for one in suite_report.curves
    ]
    return replace(
        suite_report,
        curves=curves,
        suite=ENDLESS,
        description=HOSTILE,
        folder=ENDLESS,
        systems=[*names.values()],
        wins=wins,
        tables=[wide, *suite_report.tables],
        verdict=replace(verdict, sentences=[HOSTILE, ENDLESS], pictures=pictures),
    )


def _open(browser: Browser, path: Path, suite_report: SuiteReport, width: int, mode: str) -> Page:
    path.write_text(to_html([suite_report], provenance()), encoding="utf-8")
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if mode == "dark" else "light"
    )
    page = context.new_page()
    page.goto(path.as_uri())
    return page


def _too_wide(page: Page) -> list[str]:
    """Return elements that overflow: the document, or a region that would scroll."""
    found: list[str] = page.evaluate(
        """() => [document.documentElement, ...document.querySelectorAll(".scroll")]
        .filter((e) => e.scrollWidth > e.clientWidth)
        .map((e) => `${e.tagName} ${e.ariaLabel} ${e.scrollWidth} > ${e.clientWidth}`)"""
    )
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_scrolls_sideways_and_no_name_is_markup(
    browser: Browser,
    suite_report: SuiteReport,
    hostile: SuiteReport,
    tmp_path: Path,
    width: int,
    mode: str,
) -> None:
    for shown in (suite_report, hostile):
        page = _open(browser, tmp_path / "page.html", shown, width, mode)
        assert _too_wide(page) == []
        assert page.title() == f"Evaluation report: {shown.suite}"
        assert page.locator("img").count() == 0
        for one in page.locator("details.wins > summary").all()[:2]:
            one.click()
        assert _too_wide(page) == []
        page.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_picture_and_the_verdict_come_first(
    browser: Browser, suite_report: SuiteReport, tmp_path: Path, width: int
) -> None:
    page = _open(browser, tmp_path / "page.html", suite_report, width, "light")
    picture, lead, table = (
        page.locator(name).first.bounding_box() for name in (".forest", ".lead", "table")
    )
    assert picture is not None
    assert lead is not None
    assert table is not None
    # Both begin on the first screen, the picture first.
    assert picture["y"] < 900
    assert lead["y"] < 900
    assert (picture["y"] < lead["y"]) if width < 640 else (picture["x"] < lead["x"])
    assert max(picture["y"], lead["y"]) < table["y"]
    page.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_sort_at_every_width(
    browser: Browser, suite_report: SuiteReport, tmp_path: Path, width: int
) -> None:
    page = _open(browser, tmp_path / "page.html", suite_report, width, "light")
    last = "table.board tbody tr:not(.minor) td:last-child"
    values = f"() => [...document.querySelectorAll('{last}')].map((c) => Number(c.dataset.value))"
    before = page.evaluate(values)
    select = page.locator(".sorter select:visible")
    for descending in (True, False):
        if width < 640:
            board = page.locator(".scroll:has(table.board)").locator("xpath=preceding::select[1]")
            board.select_option("")
            board.select_option(index=board.locator("option").count() - 1)
        else:
            assert select.count() == 0
            page.locator("table.board thead th button").last.click()
        found = page.evaluate(values)
        assert found == sorted(before, reverse=descending)
    page.close()


def test_print_shows_every_metric_on_white(
    browser: Browser, suite_report: SuiteReport, tmp_path: Path
) -> None:
    page = _open(browser, tmp_path / "page.html", suite_report, 700, "dark")
    page.emulate_media(media="print", color_scheme="dark")
    background = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(255, 255, 255)"
    assert page.locator("tr.minor").first.is_visible()
    assert not page.locator("nav").is_visible()
    assert _too_wide(page) == []
    page.close()


def test_the_verdict_follows_the_numbers(tmp_path: Path) -> None:
    """One system is clearly better: it leads, whichever system is the baseline."""
    out, _ = write_results(tmp_path)
    results = load_results(out)
    best = max(results, key=lambda result: result.averages["all"])
    other = next(result for result in results if result is not best)
    for baseline in (best.system, other.system):
        made = make_suite_report(
            out, Options(resamples=100, baseline=baseline), lambda message: None
        )
        assert made.verdict is not None
        lead, against, *_ = made.verdict.sentences
        assert lead.startswith(f"{best.system} has the highest average")
        gap = 100 * (best.averages["all"] - other.averages["all"])
        assert f"{gap:.2f}" in lead
        if baseline == best.system:
            assert against == f"No system beats the baseline, {baseline}, on average."
        else:
            assert against.startswith(f"Compared with {baseline}, it gains {gap:+.2f}")
        (estimate,) = made.verdict.pictures[0].estimates
        sign = -1 if baseline == best.system else 1
        assert 100 * estimate.difference == pytest.approx(sign * gap)
        assert made.verdict.pictures[0].position(estimate.low) >= 0
        assert made.verdict.pictures[0].position(estimate.high) <= 100


def test_an_average_is_over_the_sets_that_every_system_has(tmp_path: Path) -> None:
    out, _ = write_results(tmp_path)
    whole, part = load_results(out)
    save_result(whole.model_copy(update={"system": "third"}), out)
    shutil.copytree(out / whole.system / "per_query", out / "third" / "per_query")
    fewer = dict(list(part.sets.items())[1:])
    save_result(part.model_copy(update={"sets": fewer}), out)
    made = make_suite_report(out, Options(resamples=100), lambda message: None)
    assert made.verdict is not None
    assert f" over {len(fewer)} sets" in made.verdict.sentences[0]


def test_a_system_far_from_the_others_is_beyond_the_scale() -> None:
    """On one scale, 15 points long, the others would be indistinguishable within 2 points."""
    near = [
        Estimate(f"s{n}", 0.5, n / 1000, n / 1000 - 0.005, n / 1000 + 0.005, "") for n in range(3)
    ]
    far = Estimate("far", 0.4, -0.14, -0.15, -0.13, "worse")
    left, right = scale_of([(one.low, one.high) for one in [*near, far]])
    assert -0.01 < left < -0.005
    assert 0.007 < right < 0.01
    picture = Picture("all", "base", left, right, [*near, far])
    assert [picture.beyond(one) for one in picture.estimates] == ["", "", "", "◂"]
    assert 5 < picture.position(near[0].difference) < picture.position(near[2].difference) < 95
    above = replace(far, low=0.13, high=0.15)
    assert picture.beyond(above) == "▸"
    assert scale_of([(one.low, one.high) for one in [near[0], far]])[0] < -0.15, "two are drawn"


def test_one_system_has_no_verdict(tmp_path: Path) -> None:
    out, _ = write_results(tmp_path)
    kept = load_results(out)[0]
    alone = tmp_path / "alone"
    save_result(kept, alone)
    shutil.copytree(out / kept.system / "per_query", alone / kept.system / "per_query")
    made = make_suite_report(alone, Options(resamples=100), lambda message: None)
    assert made.verdict is None
    assert "In short" not in to_html([made], provenance())
