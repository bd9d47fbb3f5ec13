"""``scimult report``, as a user calls it, and its page in a real browser."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from typer.testing import Result

from scimult.retrieval.embeddings import write_embeddings
from tests.benchmark_sets import CORPUS, write_jsonl, write_links, write_search
from tests.command import invoke
from tests.evaluation.reporting.scored import score_all, write_results

NAMES = ("chromium", "chromium-browser", "google-chrome")
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def _report(*arguments: str) -> Result:
    return invoke("report", "--resamples", "100", *arguments)


def test_a_report_of_two_folders(tmp_path: Path) -> None:
    one, data = write_results(tmp_path / "one")
    two, _ = write_results(tmp_path / "two", save_runs=False)
    out = tmp_path / "report"
    found = _report(str(one), str(two), "--out", str(out), "--data", str(data))
    assert found.exit_code == 0, found.output
    assert "Leaderboard" in found.stdout
    assert "not shown: Map of papers: no embeddings were passed" in found.stdout
    assert {path.name for path in out.iterdir()} == {
        "report.html",
        "report.md",
        "report.tex",
        "report.json",
    }
    tree = json.loads((out / "report.json").read_text())
    assert [one["suite"] for one in tree["suites"]] == ["tiny", "tiny"]
    assert (out / "report.md").read_text().count("## Leaderboard") == 2


def test_the_page_is_written_if_the_reader_of_the_tables_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(table: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("scimult.cli.report.print_table", closed)
    scored, _ = write_results(tmp_path / "scored", save_runs=False)
    _report(str(scored), "--out", str(tmp_path / "report"))
    assert (tmp_path / "report" / "report.html").is_file()


def test_a_map_of_an_unknown_system_is_refused(tmp_path: Path) -> None:
    out, _ = write_results(tmp_path, save_runs=False)
    write_embeddings(tmp_path / "emb", ["p1"], np.ones((1, 2), np.float32), {})
    arguments = [str(out), "--out", str(tmp_path / "report"), "--map"]
    for spec, problem in (
        (f"wrods={tmp_path / 'emb'}", "did you mean 'words'"),
        ("words", "a map is NAME=FOLDER"),
    ):
        found = _report(*arguments, spec)
        assert found.exit_code == 1
        assert problem in found.output
    assert not (tmp_path / "report").exists()


def test_files_of_others_are_not_replaced(tmp_path: Path) -> None:
    scored, _ = write_results(tmp_path / "scored", save_runs=False)
    for name, problem in (
        ("report.json", "is not a report"),
        ("report.md", "file is not part of a report"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("{}")
        found = _report(str(scored), "--out", str(tmp_path / name))
        assert found.exit_code == 1
        assert problem in found.output
        assert [path.name for path in (tmp_path / name).iterdir()] == [name]


def test_a_file_is_no_folder_for_a_report(tmp_path: Path) -> None:
    """It was an error only after all tests and curves."""
    (tmp_path / "scored").mkdir()
    (tmp_path / "report.html").touch()
    found = _report(str(tmp_path / "scored"), "--out", str(tmp_path / "report.html"))
    assert found.exit_code == 1
    assert "report.html: exists and is not a folder. Fix: name a folder" in found.output


def test_a_layout_that_is_not_installed_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scimult.evaluation.reporting.maps.find_spec", lambda name: None)
    (tmp_path / "scored").mkdir()
    arguments = [str(tmp_path / "scored"), "--out", str(tmp_path / "report"), "--layout", "umap"]
    assert "umap-learn, which this layout needs, is not installed" in _report(*arguments).output


@pytest.fixture(scope="module")
def browser() -> str:
    """Return the path of a Chromium."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    pytest.skip("no Chromium: install the package chromium")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a report of a set whose texts contain scripts."""
    root = tmp_path_factory.mktemp("page")
    made = [write_search(root / "data"), write_links(root / "data")]
    hostile = [{**record, "title": f"{record['title']} {HOSTILE}"} for record in CORPUS]
    write_jsonl(root / "data/search/corpus.jsonl", hostile)
    score_all(root, made)
    found = _report(
        str(root / "results"), "--out", str(root / "report"), "--data", str(root / "data")
    )
    assert found.exit_code == 0, found.output
    return root / "report/report.html"


def _dom(browser: str, page: Path, width: int) -> str:
    """Return the document after its scripts ran."""
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size={width},900"]
    # Timers fire at once, so that the dump waits only for the scripts.
    flags += [f"--user-data-dir={page.parent / 'profile'}", "--virtual-time-budget=2000"]
    command = [browser, *flags, "--dump-dom", page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout


@pytest.mark.browser
def test_texts_do_not_run_and_the_page_does(browser: str, page: Path) -> None:
    """The page's script turned headings into buttons; no text of the data became a tag."""
    found = _dom(browser, page, 1200)
    assert "<title>Evaluation report: tiny</title>" in found
    assert found.count('<button type="button">') == found.count('<th scope="col"')
    assert "<img" not in found
    assert html.escape(HOSTILE, quote=False) in found


@pytest.mark.browser
def test_an_injected_script_is_blocked(browser: str, page: Path) -> None:
    stained = page.with_name("stained.html")
    intruder = "<script>document.title='owned'</script><main"
    stained.write_text(page.read_text().replace("<main", intruder))
    assert "<title>Evaluation report: tiny</title>" in _dom(browser, stained, 1200)


PROBE = """<script>
const header = [...document.querySelectorAll("table.board th")].at(-1);
const column = () => [...header.closest("table").tBodies[0].rows]
  .map((row) => Number(row.cells[header.cellIndex].dataset.value));
header.querySelector("button").click();
const down = column();
header.querySelector("button").click();
const select = document.querySelector("select.sets");
select.value = "links";
select.dispatchEvent(new Event("change"));
document.title = JSON.stringify({down, up: column(), sort: header.getAttribute("aria-sort"),
  seen: [...document.querySelectorAll("details.wins")].filter((d) => !d.hidden).length,
  page: document.documentElement.scrollWidth, window: window.innerWidth});
</script></body>"""


@pytest.mark.browser
def test_sorting_filtering_and_a_phone(browser: str, page: Path) -> None:
    """A probe presses buttons on a page without its policy, which would block it."""
    probed = page.with_name("probed.html")
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    probed.write_text(text.replace("</body>", PROBE))
    title = re.search(r"<title>(.*?)</title>", _dom(browser, probed, 390))
    assert title is not None
    found = json.loads(html.unescape(title[1]))
    assert len(found["down"]) == 4
    assert found["down"] == sorted(found["down"], reverse=True)
    assert found["up"] == sorted(found["down"])
    assert found["sort"] == "ascending"
    assert found["seen"] == 1
    assert found["page"] <= found["window"] <= 500, "the page scrolls sideways on a phone"
