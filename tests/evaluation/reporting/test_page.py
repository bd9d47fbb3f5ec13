"""The page: no text becomes markup, nothing is loaded, and colours have enough contrast."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from scimult.errors import UnknownNameError
from scimult.evaluation.comparison import Settings, compare
from scimult.evaluation.mteb_suite import NAME as MTEB
from scimult.evaluation.per_query import write_per_query
from scimult.evaluation.reporting.costs import costs, missing_costs
from scimult.evaluation.reporting.gaps import without_samples
from scimult.evaluation.reporting.page import to_html, write_page
from scimult.evaluation.reporting.parts import Options
from scimult.evaluation.reporting.suite_report import SuiteReport, make_suite_report
from scimult.evaluation.resampling import tau_pseudo_values
from scimult.evaluation.results import load_results, provenance, save_result
from tests.evaluation.reporting.scored import write_results

HOSTILE = (
    "</title></script><script>document.title='owned'</script><img src=x onerror=alert(1)> & \"'"
)


class Tags(HTMLParser):
    """Collects the tags of a page, their attributes, and all text outside script and style."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def _read(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    return tags


def _suite_report(out: Path, options: Options) -> SuiteReport:
    return make_suite_report(out, options, lambda message: None)


def _with_texts(root: Path) -> SuiteReport:
    return _suite_report(root / "results", Options(data=[root / "data"], resamples=100))


@pytest.fixture(scope="module")
def suite_report(tmp_path_factory: pytest.TempPathFactory) -> SuiteReport:
    """Return a report with texts but without lists."""
    root = tmp_path_factory.mktemp("shown")
    write_results(root, save_runs=False)
    return _with_texts(root)


def test_texts_of_users_are_text(tmp_path: Path) -> None:
    write_results(tmp_path)
    suite_report = _with_texts(tmp_path)
    one = next(one for one in suite_report.wins if one.won or one.lost)
    examples = [replace(entry, title=HOSTILE, body=HOSTILE) for entry in [*one.won, *one.lost]]
    hostile = replace(
        suite_report,
        description=HOSTILE,
        wins=[replace(one, name=HOSTILE, won=examples)],
        missing=[replace(gap, why=HOSTILE) for gap in suite_report.missing],
    )
    tags = _read(to_html([hostile], provenance()))
    assert [tag for tag, _ in tags.tags].count("script") == 1
    assert "img" not in {tag for tag, _ in tags.tags}
    assert tags.text.count(HOSTILE) >= 3


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    write_results(tmp_path)
    page = to_html([_with_texts(tmp_path)], provenance())
    tags = _read(page).tags
    loading = [
        value
        for tag, attributes in tags
        for key, value in attributes.items()
        if key in ("src", "href", "srcset", "data", "action", "poster")
    ]
    assert loading
    assert all(value and value.startswith("#") for value in loading)
    assert "@import" not in page
    assert "url(" not in page
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {value.removeprefix("#") for value in loading if value} <= set(ids)


@pytest.mark.long
def test_what_cannot_be_shown_is_named(tmp_path: Path) -> None:
    out, _ = write_results(tmp_path, save_runs=False)
    suite_report = _suite_report(out, Options(resamples=100))
    gaps = {gap.section: gap for gap in suite_report.missing}
    assert {
        "Texts of won and lost queries",
        "Label frequency",
        "What each system ranked first",
        "Recall curves",
        "Map of papers",
    } <= gaps.keys()
    # Without data it is unknown whether lists were saved.
    lists = gaps["What each system ranked first"]
    assert (lists.why, lists.fix) == (
        "no data for ranked lists: fields, rerank, links, search",
        "pass --data FOLDER, the folder that scimult evaluate read (with --save-runs)",
    )
    text = _read(to_html([suite_report], provenance())).text
    assert all(gap.why in text and gap.fix in text for gap in suite_report.missing)
    given = {gap.section: gap.fix for gap in _with_texts(tmp_path).missing}
    assert given["What each system ranked first"] == "evaluate with --save-runs"
    write_results(tmp_path / "again")
    complete = {gap.section for gap in _with_texts(tmp_path / "again").missing}
    assert complete - {"Cost"} == {"Map of papers"}


def test_shares_in_a_correlation_are_tested_but_not_won(tmp_path: Path) -> None:
    out, _ = write_results(tmp_path)
    gold_Q = np.arange(30.0)
    for shift, result in enumerate(load_results(out), start=3):
        predicted_Q = np.roll(gold_Q, shift)
        shares_Q = tau_pseudo_values(gold_Q, predicted_Q)
        columns = {"kendall_tau": shares_Q, "gold": gold_Q, "predicted": predicted_Q}
        ids = [f"p{row}" for row in range(30)]
        as_lists = {name: values.tolist() for name, values in columns.items()}
        write_per_query(out, result.system, "links", ids, as_lists)
        changes = {
            "protocol": "regression_linear",
            "main_metric": "kendall_tau",
            "scores": {"kendall_tau": float(shares_Q.mean())},
            "resampled": ["kendall_tau"],
            "counts": {"queries": 30},
        }
        links = result.sets["links"].model_copy(update=changes)
        save_result(result.model_copy(update={"sets": {**result.sets, "links": links}}), out)
    found = _suite_report(out, Options(resamples=100))
    (gap,) = (gap for gap in found.missing if gap.section == "Wins and losses")
    assert gap.why == "papers have no score of their own: links"
    assert {one.name for one in found.wins} == {"fields", "coarse", "rerank", "search"}
    # Lists and texts are not asked of a linear model.
    others = [one.why for one in found.missing if one.section != "Wins and losses"]
    assert not any("links" in why for why in others)
    assert "links" in {row.name for row in compare(out, Settings(baseline="BM25")).rows}


def test_costs_that_a_system_never_has_are_not_missing(tmp_path: Path) -> None:
    out, _ = write_results(tmp_path, save_runs=False)
    words, bm25 = (next(r for r in load_results(out) if r.system == s) for s in ("words", "BM25"))
    lexical = {"kind": "fused", "members": dict.fromkeys(("a", "b"), bm25.settings)}
    first = {"BM25": bm25.settings}
    linear = {"linear": words.sets["links"].model_copy(update={"protocol": "regression_linear"})}
    for result, settings, lacking in (
        (bm25, lexical, ""),
        (bm25, {"kind": "reranked", "first": first}, "encode_seconds"),
        (bm25, {"kind": "stored"}, "index_bytes"),
        (bm25, {"kind": "fused", "members": {"x": {"kind": "stored"}, **first}}, "index_bytes"),
        (words, words.settings, "tokens"),
        (bm25, words.settings, "encode_seconds, tokens, index_bytes"),
    ):
        missing = missing_costs([result.model_copy(update={"settings": settings})])
        assert [gap.why.partition(" lacks ")[2] for gap in missing] == (
            [lacking] if lacking else []
        )
    linear["linear"].cost.pop("index_bytes")
    (gap,) = missing_costs([words.model_copy(update={"sets": linear})])
    assert gap.why.endswith("lacks tokens")


def test_costs_are_sums_over_sets_where_all_have_them(tmp_path: Path) -> None:
    out, _ = write_results(tmp_path, save_runs=False)
    words = next(result for result in load_results(out) if result.system == "words")
    cost = {"encode_seconds": 0.5, "texts": 100, "tokens": 4000, "index_bytes": 2_000_000}
    sets = {
        name: entry.model_copy(update={"seconds": 1.5, "cost": dict(cost)})
        for name, entry in words.sets.items()
    }
    count = len(sets)
    assert count > 1
    (row,) = costs([words.model_copy(update={"sets": sets})]).rows
    whole = ["words", str(count), f"{1.5 * count:.1f}", f"{0.5 * count:.1f}", "200", "8,000"]
    assert [cell.text for cell in row] == [*whole, f"{2.0 * count:.1f}"]
    # A part says nothing of the whole.
    del sets["links"].cost["tokens"]
    (row,) = costs([words.model_copy(update={"sets": sets})]).rows
    assert [cell.text for cell in row] == [*whole[:-1], "–", f"{2.0 * count:.1f}"]


def test_one_thread_is_not_several(tmp_path: Path) -> None:
    out, _ = write_results(tmp_path, save_runs=False)
    words = next(result for result in load_results(out) if result.system == "words")
    for threads, gpus, said in (
        (1, [], "1 thread, no GPU"),
        (8, [], "8 threads, no GPU"),
        (8, ["H200", "H200"], "P, 8 threads, H200, H200"),
    ):
        machine = {"processor": "P", "threads": threads, "gpus": gpus}
        provenance = {**words.provenance, "hardware": machine}
        table = costs([words.model_copy(update={"provenance": provenance})])
        assert table.notes[-1].endswith(f"{said}.")


def test_results_without_scores_per_query_still_have_a_leaderboard(tmp_path: Path) -> None:
    out, _ = write_results(tmp_path, save_runs=False)
    (out / "words/per_query/links.tsv.gz").unlink()
    suite_report = _suite_report(out, Options())
    assert [table.title for table in suite_report.tables] == ["Leaderboard", "Cost"]
    assert "words on links" in suite_report.missing[0].why


def test_the_days_and_the_code_of_the_results_are_named(tmp_path: Path) -> None:
    out, _ = write_results(tmp_path, save_runs=False)
    shutil.rmtree(out / "BM25/per_query")  # not what is read here
    git = {"commit": "0123456789abcdef", "modified": True}
    for result, facts in zip(
        load_results(out),
        ({"date": "2026-01-02T23:59:00", "git": git}, {"date": "2025-12-31T00:01:00"}),
        strict=True,
    ):
        save_result(result.model_copy(update={"provenance": facts}), out)
    report = _suite_report(out, Options())
    assert report.dates == ("2025-12-31", "2026-01-02")
    assert sorted(report.commits) == ["0123456789 and changes", "unknown"]
    text = " ".join(_read(to_html([report], provenance())).text.split())
    assert "evaluated 2025-12-31 to 2026-01-02; code" in text


def test_sets_that_cannot_be_resampled_are_named_by_who_scored_them() -> None:
    protocols = {"authors": "clustering", "SciFact": MTEB, "links": "search"}
    both = without_samples(["authors", "SciFact"], protocols)
    assert [gap.why for gap in both] == [
        "not every system has the main metric per query: authors",
        "MTEB keeps no per-query scores",
    ]
    assert [without_samples([name], protocols) for name in ("authors", "SciFact")] == [
        [gap] for gap in both
    ]
    assert without_samples([], protocols) == []


def test_one_system_is_not_compared(tmp_path: Path) -> None:
    out, _ = write_results(tmp_path, save_runs=False)
    only = load_results(out)[0]
    save_result(only, tmp_path / "one")
    (out / "BM25/per_query").rename(tmp_path / "one/BM25/per_query")
    suite_report = _suite_report(tmp_path / "one", Options(resamples=100))
    assert not suite_report.wins
    assert "Significance marks, wins and losses" in {gap.section for gap in suite_report.missing}
    board = next(table for table in suite_report.tables if table.title == "Leaderboard")
    assert "Only one system, so nothing is tested." in board.notes
    assert any(cell.note for row in board.rows for cell in row)
    assert board.notes[-1].startswith(
        "Small numbers on the page: 95% bootstrap interval over queries, seed 0."
    )


def test_systems_without_a_common_set_are_not_called_one(tmp_path: Path) -> None:
    out, _ = write_results(tmp_path, save_runs=False)
    for result, kept in zip(load_results(out), ({"fields", "coarse"}, {"links"}), strict=True):
        sets = {name: entry for name, entry in result.sets.items() if name in kept}
        save_result(result.model_copy(update={"sets": sets}), out)
    (board, _) = _suite_report(out, Options(resamples=100)).tables
    assert "No other system can be compared with BM25 query by query." in board.notes
    assert not any("one system" in note for note in board.notes)


def test_unknown_baselines_are_named(tmp_path: Path) -> None:
    out, _ = write_results(tmp_path, save_runs=False)
    with pytest.raises(UnknownNameError, match="BM25"):
        _suite_report(out, Options(baseline="BM52"))


def test_all_files_say_the_same(tmp_path: Path) -> None:
    write_results(tmp_path)
    suite_report = _with_texts(tmp_path)
    path = write_page([suite_report], tmp_path / "report")
    tree = json.loads((path.parent / "report.json").read_text())
    board = next(table for table in tree["suites"][0]["tables"] if table["title"] == "Leaderboard")
    texts = [path.with_suffix(end).read_text() for end in (".md", ".tex", ".html")]
    for row in board["rows"]:
        for cell in row[3:]:
            assert all(cell["text"] in text for text in texts)
    for result in load_results(tmp_path / "results"):
        column = board["headings"].index(result.system)
        for name, entry in result.sets.items():
            values = {
                row[2]["text"]: row[column]["value"]
                for row in board["rows"]
                if row[1]["text"] == name
            }
            assert values == entry.scores


def _luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    channels = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_colours_have_the_contrast_that_wcag_asks_for(mode: int) -> None:
    """At least 4.5 for text and 3 for marks and lines (WCAG 2.1, 1.4.3 and 1.4.11)."""
    templates = resources.files("scimult.evaluation.reporting") / "templates"
    css = (templates / "report.css").read_text(encoding="utf-8")
    colours = dict(re.findall(r"--([\w]+): (#\w{6})", css.split("prefers-color-scheme")[mode]))
    text = product(("text", "quiet", "accent", "good", "bad"), ("bg", "panel"), (4.5,))
    marks = product((f"c{index}" for index in range(9)), ("bg", "panel"), (3.0,))
    for front, back, least in (*text, *marks):
        light, dark = sorted((_luminance(colours[front]), _luminance(colours[back])))[::-1]
        assert (light + 0.05) / (dark + 0.05) >= least, (front, back)


def test_a_bar_is_as_long_as_its_score_and_none_is_below_zero(suite_report: SuiteReport) -> None:
    """CSS ignores a negative width: the bar of a negative correlation was of full length."""
    group = replace(suite_report.groups[0], scores=[-0.125, 0.25])
    tags = _read(to_html([replace(suite_report, groups=[group])], provenance()))
    bars = [a["style"] for _, a in tags.tags if (a.get("class") or "").startswith("bar ")]
    assert bars == ["width:0.00%", "width:25.00%"]
    assert "-12.50" in tags.text


def test_queries_without_examples_say_why(suite_report: SuiteReport) -> None:
    """Ties lack no texts: "Not shown" had nothing on them."""
    one = replace(suite_report.wins[0], won=[], lost=[])
    tied, told = "Both systems answer every query equally well.", "No texts to show"
    for wins, losses, said in ((0, 0, tied), (2, 0, told), (0, 1, told)):
        changed = replace(suite_report, wins=[replace(one, wins=wins, losses=losses)])
        text = _read(to_html([changed], provenance())).text
        assert [tied in text, told in text] == [said == tied, said == told]


def test_a_page_without_examples_says_who_asked_for_none(tmp_path: Path) -> None:
    """It named "Not shown", which had nothing on them."""
    out, data = write_results(tmp_path)
    report = make_suite_report(out, Options(data=[data], examples=0, resamples=100), print)
    text = _read(to_html([report], provenance())).text
    assert "No texts to show; see “Not shown”" in text
    assert "Texts of won and lost queries--examples 0 asks for none" in text


def test_two_suites_are_on_one_page(tmp_path: Path) -> None:
    write_results(tmp_path)
    suite_report = _with_texts(tmp_path)
    tags = _read(to_html([suite_report, suite_report], provenance()))
    ids = [attributes["id"] for _, attributes in tags.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {"suite1", "suite2"} <= set(ids)
