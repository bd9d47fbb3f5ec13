"""Tables and CSV of runs of several seeds, made by hand."""

from __future__ import annotations

import csv
import io

import pytest

from scimult.evaluation.repeated import SUITES, Difference, Score, SuiteFindings
from scimult.evaluation.reporting.repeated import (
    difference_table,
    score_table,
    tables_of,
    to_csv,
)

# Runs by place: the average of all, that of a task, a set.
PLACES = [("all", "average", "main"), ("search", "average", "main"), ("search", "cisi", "ndcg@10")]


@pytest.fixture
def found() -> SuiteFindings:
    """Three seeds of one run, two of another, and a system without, which lacks the set."""
    scores = {
        "vanilla": [([0.5, 0.5, 0.5], 0.0), ([0.25, 0.5, 0.75], 0.25), ([0.1, 0.2, 0.3], 0.1)],
        "good": [([0.625, 0.625], 0.0), ([0.5, 0.5], 0.0), ([0.3, 0.5], 0.125)],
        "BM25": [([0.375], None), ([0.375], None)],
    }
    rows = [
        Score(run, *place, by_seed, sum(by_seed) / len(by_seed), sd)
        for run, given in scores.items()
        for place, (by_seed, sd) in zip(PLACES, given, strict=False)
    ]
    tested = {"low": 0.0625, "high": 0.1875, "p": 0.001, "p_holm": 0.002}
    worse = {"low": -0.25, "high": -0.0625, "p": 0.01, "p_holm": 0.05}
    unsure = {"low": -0.125, "high": 0.125, "p": 0.9, "p_holm": 0.9}
    differences = [
        # In the tables, runs are in the order of the study.
        Difference("BM25", *PLACES[0], (1, 3), -0.125, **worse),
        Difference("good", *PLACES[0], (2, 3), 0.125, **tested),
        Difference("good", *PLACES[1], (2, 3), 0.0, **unsure),
        Difference("good", *PLACES[2], (2, 3), 0.2),
    ]
    seeds = {"vanilla": 3, "good": 2, "BM25": None}
    return SuiteFindings("own", "Mine", "vanilla", 0.95, seeds, rows, differences, ["A note."])


def test_a_score_has_its_spread_and_the_mark_of_its_corrected_test(found: SuiteFindings) -> None:
    table = score_table(found)
    assert table.title == "Suite own: Mine"
    assert table.headings == ["run", "seeds", "average", "average search", "cisi ndcg@10"]
    assert (table.labels, table.notes) == (1, ["A note."])
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["vanilla", "3", "50.00 ± 0.00", "50.00 ± 25.00", "20.00 ± 10.00"],
        ["good", "2", "62.50 ± 0.00", "50.00 ± 0.00", "40.00 ± 12.50"],
        ["BM25", "–", "37.50", "37.50", "–"],
    ]
    # The best as displayed, in each column: here twice in the second.
    bold = [[cell.bold for cell in row[2:]] for row in table.rows]
    assert bold == [[False, True, False], [True, True, True], [False, False, False]]
    marks = [[cell.mark for cell in row[2:]] for row in table.rows]
    assert marks == [["", "", ""], ["better", "", ""], ["worse", "", ""]]
    assert [cell.note for cell in table.rows[1]] == [
        "", "", "+12.50 [+6.25, +18.75]", "+0.00 [-12.50, +12.50]", "",
    ]  # fmt: skip


def test_differences_are_listed_by_run_with_what_is_known(found: SuiteFindings) -> None:
    table = difference_table(found)
    assert table.title == "Suite own: differences to vanilla"
    assert table.headings[-3:] == ["95% interval", "p", "p (Holm)"]
    rows = [[cell.text for cell in row] for row in table.rows]
    places = [["good", *place, "2, 3"] for place in PLACES] + [["BM25", *PLACES[0], "1, 3"]]
    assert [row[:5] for row in rows] == places
    assert [row[5:] for row in rows] == [
        ["+12.50", "[+6.25, +18.75]", "0.0010", "0.0020"],
        ["+0.00", "[-12.50, +12.50]", "0.9000", "0.9000"],
        ["+20.00", "–", "–", "–"],
        ["-12.50", "[-25.00, -6.25]", "0.0100", "0.0500"],
    ]


def test_suites_together_are_not_a_suite_and_nothing_compared_has_no_table() -> None:
    score = Score("vanilla", *PLACES[0], [0.5], 0.5, None)
    alone = SuiteFindings(SUITES, "all", "vanilla", 0.9, {"vanilla": 1}, [score], [], [])
    (table,) = tables_of(alone)
    assert table.title == "all suites: all"
    change = Difference("good", *PLACES[0], (1, 1), 0.5)
    both = SuiteFindings(
        SUITES, "all", "vanilla", 0.9, {"vanilla": 1, "good": 1}, [score], [change], []
    )
    assert [table.title for table in tables_of(both)] == [
        "all suites: all",
        "all suites: differences to vanilla",
    ]
    assert difference_table(both).headings[-3] == "90% interval"


def test_csv_keeps_every_number_and_leaves_the_unknown_empty(found: SuiteFindings) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv([found, found]))))
    assert len(rows) == 2 * len(found.scores)
    known = {(row["run"], row["task"], row["set"]): row for row in rows}
    best = known["good", "all", "average"]
    assert [float(score) for score in best["scores"].split(";")] == [0.625, 0.625]
    assert {name: best[name] for name in ("suite", "metric", "seeds", "baseline")} == {
        "suite": "own", "metric": "main", "seeds": "2", "baseline": "vanilla",
    }  # fmt: skip
    numbers = ["mean", "sd", "difference", "low", "high", "p", "p_holm"]
    assert [float(best[name]) for name in numbers] == [
        0.625, 0.0, 0.125, 0.0625, 0.1875, 0.001, 0.002,
    ]  # fmt: skip
    bm25 = known["BM25", "search", "average"]
    assert [bm25[name] for name in ("seeds", "mean", "sd", "difference", "p")] == [
        "", "0.375", "", "", "",
    ]  # fmt: skip
