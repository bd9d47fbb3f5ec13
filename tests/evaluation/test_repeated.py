"""Runs of several seeds in folders of results: averages across suites, groups, mistakes."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from scimult.errors import ConfigError, DataError, UnknownNameError
from scimult.evaluation.per_query import write_per_query
from scimult.evaluation.repeated import Difference, Runs, SuiteFindings, compare_runs
from scimult.evaluation.reporting.repeated import difference_table, tables_of, to_csv
from scimult.evaluation.results import load_result, save_result
from tests.made_results import set_result, write_result

QUERIES = {"cisi": 40, "cacm": 60, "links": 50, "one": 1, "five": 5}
SUITES = {"first": ["cisi", "cacm"], "second": ["links"]}
SYSTEMS = ["old-0", "old-1", "new-0", "new-1", "new-2", "BM25"]
RNG = np.random.default_rng(2)
SCORES = {
    (system, name): RNG.random(count) * 0.5 + 0.2 * system.startswith("new")
    for system in SYSTEMS
    for name, count in QUERIES.items()
}
FEW = {"few": ["one", "five"]}


def _write(folder: Path, suite: str, systems: list[str], file: str = "") -> Path:
    """Write results of a suite; ``file`` is the digest of all its data."""
    for place, system in enumerate(systems):
        sets = {}
        for name in (SUITES | FEW)[suite]:
            scores = SCORES[system, name]
            ids = [f"q{row}" for row in range(len(scores))]
            write_per_query(folder, system, name, ids, {"ndcg@10": scores.tolist()})
            sets[name] = set_result(
                "ndcg@10",
                {"ndcg@10": float(scores.mean())},
                counts={"queries": len(scores)},
                files={f"{name}.tsv": file or name},
            )
        write_result(folder, system, sets, suite=suite, date=str(place))
    return folder


def test_sets_that_the_first_system_lacks_need_the_same_data(tmp_path: Path) -> None:
    folder = _write(tmp_path, "first", SYSTEMS)
    for system, change in {"old-0": None, "new-1": {"cacm.tsv": "other"}}.items():
        result = load_result(folder / system / "result.json")
        sets = {"cisi": result.sets["cisi"]}
        if change:
            sets["cacm"] = result.sets["cacm"].model_copy(update={"files": change})
        save_result(result.model_copy(update={"sets": sets}), folder)
    with pytest.raises(DataError, match="result of new-1 on cacm differs in files"):
        compare_runs([folder], {"old": ["old-*"], "new": ["new-*"]}, "old")


def _value(found: SuiteFindings, run: str, task: str) -> float:
    return next(r.mean for r in found.scores if (r.run, r.task, r.name) == (run, task, "average"))


def test_across_suites_each_suite_counts_the_same(tmp_path: Path) -> None:
    folders = [_write(tmp_path / suite, suite, SYSTEMS) for suite in SUITES]
    patterns = {"old": ["old-*"], "new": ["new-0", "new-1", "new-2"]}
    every, first, second = compare_runs(folders, patterns, "old")
    assert every.suite == "all suites"
    for run, keys in {"old": SYSTEMS[:2], "new": SYSTEMS[2:5], "BM25": ["BM25"]}.items():
        means = {
            suite: np.mean([[SCORES[key, name].mean() for name in names] for key in keys])
            for suite, names in SUITES.items()
        }
        assert _value(every, run, "all") == pytest.approx(np.mean(list(means.values())), rel=1e-12)
        assert _value(every, run, "first") == pytest.approx(means["first"], rel=1e-12)
        assert _value(first, run, "all") == pytest.approx(means["first"], rel=1e-12)
        assert _value(second, run, "all") == pytest.approx(means["second"], rel=1e-12)
    assert every.seeds == {"old": 2, "new": 3, "BM25": None}


def test_without_seeds_it_is_the_paired_t_test_of_independent_sets(tmp_path: Path) -> None:
    """Recomputed with scipy: variances of mean differences add up (relative 1e-9).

    Degrees of freedom are Welch's.
    """
    folders = [_write(tmp_path / suite, suite, ["old-0", "BM25"]) for suite in SUITES]
    every, *_ = compare_runs(folders, {}, "BM25")
    variances, differences, squares = [], [], 0.0
    for names in SUITES.values():
        changes = [SCORES["old-0", name] - SCORES["BM25", name] for name in names]
        differences.append(np.mean([change.mean() for change in changes]))
        of_sets = [stats.sem(change) ** 2 for change in changes]
        variances.append(sum(of_sets) / len(names) ** 2)
        of_average = [variance / (len(names) * len(SUITES)) ** 2 for variance in of_sets]
        squares += sum(v**2 / (len(c) - 1) for v, c in zip(of_average, changes, strict=True))
    error = np.sqrt(sum(variances)) / len(SUITES)
    row = next(row for row in every.differences if row.task == "all")
    assert row.difference == pytest.approx(np.mean(differences), rel=1e-9)
    wanted = stats.t(error**4 / squares, row.difference, error)
    assert row.p == pytest.approx(2 * min(wanted.cdf(0), wanted.sf(0)), rel=1e-9)
    low, high = wanted.interval(0.95)
    assert (row.low, row.high) == pytest.approx((low, high), rel=1e-9)


def test_what_makes_intervals_too_narrow_or_is_missing_is_noted(tmp_path: Path) -> None:
    folders = [_write(tmp_path / suite, suite, SYSTEMS[:4], file="same") for suite in SUITES]
    _write(tmp_path / "second", "second", ["BM25"], file="same")
    every, first, _ = compare_runs(folders, {}, "old-0")
    assert any("links is in two suites" in note for note in every.notes)
    assert "No result of BM25." in first.notes
    assert "BM25" not in {row.run for row in every.scores}


def test_seeds_are_those_with_results(tmp_path: Path) -> None:
    """In the second suite, and so across suites, every run has one: no interval knows training."""
    first, second = (tmp_path / suite for suite in SUITES)
    folders = [
        _write(first, "first", SYSTEMS[:4]),
        _write(second, "second", ["old-0", "new-0"]),
    ]
    found = compare_runs(folders, {"old": ["old-*"], "new": ["new-*"]}, "old")
    assert [one.seeds for one in found] == [{"old": n, "new": n} for n in (1, 2, 1)]
    single = "One seed per run: no interval includes the variance of training."
    assert [single in one.notes for one in found] == [True, False, True]
    rows = csv.DictReader(io.StringIO(to_csv(found)))
    assert all(int(row["seeds"]) == len(row["scores"].split(";")) for row in rows)


def test_a_set_with_one_seed_per_run_is_noted(tmp_path: Path) -> None:
    folder = _write(tmp_path, "first", SYSTEMS[:4])
    for system in ("old-1", "new-1"):
        result = load_result(folder / system / "result.json")
        del result.sets["cacm"]
        save_result(result, folder)
    (found,) = compare_runs([folder], {"old": ["old-*"], "new": ["new-*"]}, "old")
    assert "cacm: one seed per run, so its interval lacks the variance of training." in found.notes


def test_a_single_query_shows_no_difference(tmp_path: Path) -> None:
    """Its scores differ, but nothing tells how much queries vary."""
    (found,) = compare_runs([_write(tmp_path / "few", "few", ["old-0", "BM25"])], {}, "BM25")
    tested = {row.name: row.p is not None for row in found.differences}
    assert tested == {"average": False, "one": False, "five": True}
    assert (
        "one: not every model has ndcg@10 for several queries, so it cannot be tested."
        in found.notes
    )
    assert "five: only 5 queries, so the interval is rough." in found.notes


def test_csv_has_every_score_in_full_precision(tmp_path: Path) -> None:
    folder = _write(tmp_path / "first", "first", SYSTEMS)
    found = compare_runs([folder], {"old": ["old-*"]}, "BM25", ["old"])
    rows = list(csv.DictReader(io.StringIO(to_csv(found))))
    assert {row["run"] for row in rows} == {"old", "BM25"}
    row = next(row for row in rows if (row["run"], row["set"]) == ("old", "cacm"))
    scores = [float(score) for score in row["scores"].split(";")]
    assert scores == [SCORES[key, "cacm"].mean() for key in SYSTEMS[:2]]
    assert float(row["sd"]) == pytest.approx(np.std(scores, ddof=1), rel=1e-12)
    assert row["p"]


@pytest.mark.parametrize(
    ("patterns", "baseline", "error", "message"),
    [
        ({"old": ["odl-*"]}, "old", UnknownNameError, "unknown system of run old"),
        ({"a": ["old-*"], "b": ["old-0"]}, "a", ConfigError, "in two runs"),
        ({"BM25": ["old-*"]}, "BM25", ConfigError, "name of a system outside it"),
        ({"old": ["old-*"]}, "old-0", UnknownNameError, "unknown run"),
    ],
)
def test_groups_that_make_no_sense(
    patterns: dict[str, list[str]], baseline: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Runs.of_patterns(SYSTEMS, patterns, baseline)


def test_folders_that_do_not_fit(tmp_path: Path) -> None:
    one, two = (_write(tmp_path / name, "first", SYSTEMS) for name in ("one", "two"))
    with pytest.raises(ConfigError, match="two folders have results of the same suite"):
        compare_runs([one, two], {}, "BM25")
    with pytest.raises(DataError, match="no results in this folder"):
        compare_runs([tmp_path / "none"], {}, "BM25")
    with pytest.raises(ConfigError, match="compared with another run"):
        compare_runs([one], {}, "BM25", ["BM25"])


def test_a_suite_with_the_baseline_only_has_no_table_of_differences(tmp_path: Path) -> None:
    folders = [_write(tmp_path / "first", "first", SYSTEMS[:3])]
    folders.append(_write(tmp_path / "second", "second", ["old-0"]))
    _, first, second = compare_runs(folders, {}, "old-0")
    assert [len(tables_of(first)), len(tables_of(second))] == [2, 1]
    assert "No result of new-0, old-1." in second.notes
    with pytest.raises(ConfigError, match="old-0 and the other runs share no set"):
        compare_runs([folders[1], _write(tmp_path / "third", "first", ["BM25"])], {}, "old-0")


def test_a_small_p_value_is_not_shown_as_zero() -> None:
    """It was 0.0000, which no t distribution gives."""
    row = Difference("runs", "search", "cisi", "ndcg@10", (3, 3), 0.1, 0.05, 0.15, 1e-9, 4e-9)
    found = SuiteFindings("own", "", "base", 0.95, {"runs": 3, "base": 3}, [], [row], [])
    assert [cell.text for cell in difference_table(found).rows[0]][-2:] == ["<0.0001"] * 2


def test_a_p_value_just_above_the_level_is_not_shown_as_the_level() -> None:
    """0.05004 was 0.0500, which reads as significant at 5 %."""
    row = Difference("runs", "search", "cisi", "ndcg@10", (3, 3), 0.1, 0, 0.15, 0.04996, 0.05004)
    found = SuiteFindings("own", "", "base", 0.95, {"runs": 3, "base": 3}, [], [row], [])
    assert [cell.text for cell in difference_table(found).rows[0]][-2:] == ["0.0500", "0.05004"]
