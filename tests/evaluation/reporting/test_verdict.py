"""The opening of a report: its sentences and pictures against comparisons made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from scimult.evaluation.comparison import Comparison, Difference, Settings
from scimult.evaluation.reporting import verdict as module
from scimult.evaluation.reporting.leaderboard import differences, standing
from scimult.evaluation.reporting.parts import Options
from scimult.evaluation.reporting.suite_report import make_suite_report
from scimult.evaluation.reporting.verdict import scale_of, verdict
from scimult.evaluation.results import load_results
from tests.benchmark_sets import write_fields, write_links
from tests.evaluation.reporting.scored import row_of, score_all


def _comparison(
    baseline: str, systems: list[str], rows: list[Difference], averages: list[Difference]
) -> Comparison:
    return Comparison(
        suite="own",
        systems=systems,
        settings=Settings(baseline=baseline),
        rows=rows,
        averages=averages,
        notes=[],
        results={},
        provenance={},
    )


def _first_sentence(below: dict[str, tuple[float, float, float]]) -> str:
    """Return what a verdict says of 50.00 against averages so far below, with their intervals."""
    rows = [
        row_of(system, difference, task=task, name=name, low=low, high=high)
        for task, name in (("search", "cisi"), ("all", "average"))
        for system, (difference, low, high) in below.items()
    ]
    comparison = _comparison("best", list(below), rows[: len(below)], rows[len(below) :])
    scores = {"best": 0.5} | {system: 0.5 + found[0] for system, found in below.items()}
    found = verdict(Path(), comparison, {"all": scores})
    assert found is not None
    return found.sentences[0]


def test_the_lead_that_could_be_chance_is_over_the_system_whose_interval_holds_zero() -> None:
    """The runner-up is surely worse; a system further down, with a wide interval, is not."""
    near = {"next": (-0.005, -0.008, -0.002), "wide": (-0.01, -0.022, 0.002)}
    start = "best has the highest average, 50.00 over 1 set"
    assert _first_sentence(near) == (
        f"{start}, but its lead of 1.00 over wide could be chance (−0.20 to +2.20)."
    )
    # In the order of their averages, not of the comparison.
    more = {"last": (-0.03, -0.07, 0.01), **near, "wider": (-0.02, -0.05, 0.01)}
    assert _first_sentence(more) == (
        f"{start}, but its lead of 1.00 over wide could be chance (−0.20 to +2.20), as could its "
        "lead over wider and last."
    )
    sure = {"third": (-0.02, -0.03, -0.01), "next": near["next"]}
    assert _first_sentence(sure) == (
        f"{start}: 0.50 above next, the runner-up (+0.20 to +0.80), a lead that the choice of "
        "queries does not explain."
    )


def test_the_lead_is_one_of_main_metrics(tmp_path: Path) -> None:
    """Also where other columns enter the averages, by which here the other system is ahead."""
    columns = {"links": "recall@3", "fields": "recall@2"}
    made = [
        write(tmp_path / "data").model_copy(update={"columns": {name: [column]}})
        for write, (name, column) in zip((write_links, write_fields), columns.items(), strict=True)
    ]
    out = score_all(tmp_path, made)
    bm25, words = (result.averages["all"] for result in load_results(out))
    assert bm25 < words
    report = make_suite_report(out, Options(), lambda line: None)
    assert report.verdict is not None
    assert report.verdict.sentences[0].startswith(
        "BM25 has the highest average, 66.67 over 2 sets, but its lead of 25.00 over words could"
    )
    assert "links: enters averages as links (recall@3)." in report.tables[1].notes


def test_the_verdict_names_the_best_by_task_not_by_group(tmp_path: Path) -> None:
    """Groups of sets and the mean over them were listed among the tasks."""
    made = [write(tmp_path / "data") for write in (write_fields, write_links)]
    grouped = [
        benchmark.model_copy(update={"group": group})
        for benchmark, group in zip(made, ("seen", "unseen"), strict=True)
    ]
    out = score_all(tmp_path, grouped)
    report = make_suite_report(out, Options(resamples=100), lambda line: None)
    assert {"seen", "unseen", "macro"} < {group.task for group in report.groups}
    assert report.verdict is not None
    last = report.verdict.sentences[-1]
    assert "classification" in last
    assert "link_prediction" in last
    assert not [name for name in ("seen", "macro") if name in last]


def test_the_best_system_is_compared_with_the_baseline_set_by_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By corrected tests of main metrics; another system's rows do not count."""
    tested = {"one": (0.1, 0.01), "two": (-0.05, 0.04), "three": (0.1, 0.06), "four": (0.2, 0.05)}
    rows = [
        row_of(system, change if system == "best" else -change, name=name, metric=metric, p_holm=p)
        for name, (change, p) in tested.items()
        for metric, p in (("main", p), ("other", 0.001))
        for system in ("best", "third")
    ]
    averages = [row_of("third", -0.02), row_of("best", 0.0875, low=0.0125, high=0.1625)]
    comparison = _comparison("base", ["best", "third"], rows, averages)
    against_best = [row_of("base", -0.0875), row_of("third", -0.1075)]
    shared = [row_of(system, -0.1, name=name) for name in tested for system in ("base", "third")]
    monkeypatch.setattr(
        module,
        "compare",
        lambda out, settings: _comparison(
            settings.baseline, ["base", "third"], shared, against_best
        ),
    )
    scores = {"base": 0.5, "best": 0.5875, "third": 0.48}
    by_task = {"all": scores, "search": scores, "tags": scores}
    found = verdict(Path(), comparison, by_task)
    assert found is not None
    assert found.sentences == [
        "best has the highest average, 58.75 over 4 sets: 8.75 above base, the runner-up "
        "(+7.75 to +9.75), a lead that the choice of queries does not explain.",
        "Compared with base, it gains +8.75 (+1.25 to +16.25): of 4 sets, better on 2, worse on 1 "
        "(two), undecided on 1, by tests corrected for multiple comparisons (p ≤ 0.05).",
        "It has the best average in every task: search and tags.",
    ]
    other = {**by_task, "tags": {**scores, "third": 0.6}}
    found = verdict(Path(), comparison, other)
    assert found is not None
    assert found.sentences[-1] == "Best by task: search: best (58.75); tags: third (60.00)."


def test_standing_and_differences_are_those_of_the_corrected_test() -> None:
    """A corrected p-value at the level passes; only main metrics count as sets."""
    tested = {"one": (0.1, 0.01), "two": (-0.05, 0.05), "three": (0.1, 0.06)}
    rows = [
        row_of("best", change, name=name, metric=metric, p_holm=p, p=p / 2)
        for name, (change, p_main) in tested.items()
        for metric, p in (("main", p_main), ("other", 0.9))
    ]
    comparison = _comparison("base", ["best", "alone"], rows, [row_of("best", 0.05, p_holm=None)])
    found = [[cell.text for cell in row] for row in standing(comparison).rows]
    assert found == [
        ["best", "55.00", "50.00", "1", "1", "1"],
        ["alone", "–", "–", "0", "0", "0"],
    ]
    table = differences(comparison)
    shown = {tuple(cell.text for cell in row[:2]): row for row in table.rows}
    assert shown.keys() == {
        *((name, metric) for name in tested for metric in ("main", "other")),
        ("average (all)", "main"),
    }
    in_bold = {key for key, row in shown.items() if all(cell.bold for cell in row[3:])}
    assert in_bold == {("one", "main"), ("two", "main")}
    numbers = [cell.text for cell in shown["two", "main"][3:]]
    assert numbers == ["50.00", "45.00", "-5.00", "–", "-6.00 to -4.00", "0.0250", "0.0500*"]


def test_a_picture_marks_what_its_interval_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interval that ends at 0 shows neither."""
    ends = {"up": (0.01, 0.03), "down": (-0.03, -0.01), "from": (0.0, 0.02), "to": (-0.02, 0.0)}
    averages = [
        row_of(system, (low + high) / 2, low=low, high=high) for system, (low, high) in ends.items()
    ]
    comparison = _comparison("base", list(ends), averages, averages)
    against_best = _comparison("up", ["base"], [], [row_of("base", -0.02)])
    monkeypatch.setattr(module, "compare", lambda out, settings: against_best)
    found = verdict(Path(), comparison, {"all": dict.fromkeys(["base", *ends], 0.5)})
    assert found is not None
    (picture,) = found.pictures
    assert [(one.system, one.mark) for one in picture.estimates] == [
        ("up", "better"),
        ("from", ""),
        ("to", ""),
        ("down", "worse"),
    ]
    # From -3 to 3, and 4 per cent of that on each side.
    assert (picture.left, picture.right) == pytest.approx((-0.0324, 0.0324))
    positions = [picture.position(at) for at in (-0.05, -0.0324, 0.0, 0.0162, 0.0324, 0.05)]
    assert positions == pytest.approx([0, 0, 50, 75, 100, 100])
    assert not any(picture.beyond(one) for one in picture.estimates)
    assert "off the scale" not in found.note


@pytest.mark.parametrize(
    ("intervals", "ends"),
    [
        ([(0.1, 0.2)], (0, 0.2)),
        ([(-0.2, -0.1)], (-0.2, 0)),
        ([(0.1, 0.2), (-0.3, 0.1)], (-0.3, 0.2)),
        # Of two, neither can be far from the others.
        ([(0.1, 0.2), (9, 10)], (0, 10)),
        ([(0.1, 0.2), (-0.1, 0.1), (9, 10)], (-0.1, 0.2)),
        ([(-10, -9), (0.1, 0.2), (-0.1, 0.1)], (-0.1, 0.2)),
        # Beyond the others by more than twice their scale's length of 0.25, or not.
        ([(0.125, 0.25), (0.75, 1), (0, 0.125)], (0, 1)),
        ([(0.125, 0.25), (0.751, 1), (0, 0.125)], (0, 0.25)),
        ([(0, 0), (0, 0), (1, 2)], (0, 2)),
    ],
)
def test_a_scale_holds_zero_and_all_but_far_intervals(
    intervals: list[tuple[float, float]], ends: tuple[float, float]
) -> None:
    margin = 0.04 * (ends[1] - ends[0])
    wanted = (ends[0] - margin, ends[1] + margin)
    assert scale_of(intervals) == pytest.approx(wanted, abs=1e-12)


def test_a_scale_of_nothing_has_some_length() -> None:
    low, high = scale_of([(0.0, 0.0)])
    assert low < 0 < high
