"""The main table: every score with its interval and the mark of its test against the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scimult.evaluation.comparison import (
    Comparison,
    Difference,
    Settings,
    compare,
    paired_samples,
    set_seed,
)
from scimult.evaluation.report import Row, make_report
from scimult.evaluation.resampling import bootstrap, interval
from scimult.evaluation.results import Result
from scimult.table import (
    SIGNS,
    Cell,
    Mark,
    Table,
    change,
    label,
    number,
    p_value,
    percent,
    percents,
    texts,
)
from scimult.terminal import counted

Interval = tuple[float, float]
Intervals = dict[tuple[str, str, str], Interval]
"""Set, metric and system to the ends of the interval; main metrics only."""


@dataclass(frozen=True)
class Tested:
    """Intervals of main metrics; tests, unless nothing can be compared with the baseline."""

    settings: Settings
    intervals: Intervals
    comparison: Comparison | None

    def mark(self, name: str, metric: str, system: str) -> Mark:
        """Return the mark of one score's corrected test."""
        for row in self.comparison.rows if self.comparison else ():
            if (row.name, row.metric, row.system) == (name, metric, system):
                return mark_of(row, self.settings.level)
        return ""


def mark_of(row: Difference, level: float) -> Mark:
    """Return ``better`` or ``worse`` if the corrected p-value is at most ``level``."""
    if row.p_holm is None or row.p_holm > level or row.difference == 0:
        return ""
    return "better" if row.difference > 0 else "worse"


def significance(out: Path, results: Sequence[Result], settings: Settings) -> Tested:
    """Compute intervals of all main metrics, and compare every system with the baseline.

    Raises
    ------
    DataError
        If per-query scores are damaged or for other queries.
    """
    intervals: Intervals = {}
    for name in dict.fromkeys(name for result in results for name in result.sets):
        present = [result for result in results if name in result.sets]
        if not all(result.sets[name].has_samples for result in present):
            continue
        metric = present[0].sets[name].main_metric
        samples = paired_samples(out, present, name, [metric])
        scores_SRM = bootstrap(samples, settings.resamples, set_seed(settings.seed, name))
        for result, scores_RM in zip(present, scores_SRM, strict=True):
            intervals[name, metric, result.system] = interval(scores_RM[:, 0], settings.confidence)
    baseline = next(result for result in results if result.system == settings.baseline)
    others = [result for result in results if result is not baseline]
    sampled = {name for name, _, _ in intervals} & baseline.sets.keys()
    comparable = any(sampled & result.sets.keys() for result in others)
    return Tested(settings, intervals, compare(out, settings) if comparable else None)


def leaderboard(results: Sequence[Result], tested: Tested | None) -> Table:
    """Return all scores, systems as columns, each set's main metric first."""
    report = make_report(results)
    rows = [_row(row, report.systems, tested) for row in report.rows]
    notes = list(report.notes)
    if tested:
        notes += _notes(tested, len(results))
    main = {name: entry.main_metric for result in results for name, entry in result.sets.items()}
    minor = [
        index
        for index, row in enumerate(report.rows)
        if row.name in main and row.metric != main[row.name]
    ]
    headings = ["task", "set", "metric", *report.systems]
    averages = sum(row.name not in main for row in report.rows)
    return Table("Leaderboard", headings, 3, rows, notes, minor, averages)


def differences(comparison: Comparison) -> Table:
    """Return every difference to the baseline, significant ones in bold."""
    settings = comparison.settings
    ends = f"{100 * settings.confidence:g}% interval"
    numbers = [settings.baseline, "score", "difference", "relative", ends, "p", "p (Holm)"]
    return Table(
        f"Suite {comparison.suite}: compared with {settings.baseline}",
        ["set", "metric", "system", *numbers],
        3,
        [_difference(row, settings) for row in (*comparison.rows, *comparison.averages)],
        comparison.notes,
        group=1,
    )


def relative_changes(comparison: Comparison) -> Table:
    """Return the relative change of average scores per task (SciMult, Table 9)."""
    tasks = dict.fromkeys(row.task for row in comparison.averages)
    changes = {(row.task, row.system): row.relative_change for row in comparison.averages}
    baseline = comparison.settings.baseline
    return Table(
        f"Relative change of average scores, compared with {baseline}",
        ["task", *comparison.systems],
        1,
        [
            [label(task), *(change(changes[task, system]) for system in comparison.systems)]
            for task in tasks
        ],
        [
            f"(average of the system − average of {baseline}) / average of {baseline}, where "
            "averages are of main metrics over the sets that every system has."
        ],
    )


def standing(comparison: Comparison) -> Table:
    """Count the data sets on which each system is better or worse than the baseline."""
    level = comparison.settings.level
    averages = {row.system: row for row in comparison.averages if row.task == "all"}
    main = main_rows(comparison)
    rows = []
    for system in comparison.systems:
        marks = [mark_of(row, level) for row in main if row.system == system]
        average = averages.get(system)
        cells = [percent(average.score if average else None)]
        cells += [percent(average.baseline_score if average else None)]
        counts = [marks.count("better"), marks.count("worse"), marks.count("")]
        cells += [Cell(str(count), count) for count in counts]
        rows.append([label(system), *cells])
    baseline = comparison.settings.baseline
    headings = ["system", "average", f"average of {baseline}", "better", "worse", "undecided"]
    notes = [
        f"Number of data sets on which a system is better or worse than {baseline} by the "
        f"corrected test (p ≤ {level:g}); on the others, the difference could be chance.",
        *(note for note in comparison.notes if note.startswith("Too few resamples")),
    ]
    return Table(f"Compared with {baseline}", headings, 1, rows, notes)


def _difference(row: Difference, settings: Settings) -> list[Cell]:
    passes = row.p_holm is not None and row.p_holm <= settings.level
    name = f"average ({row.task})" if row.name == "average" else row.name
    cells = [
        percent(row.baseline_score),
        percent(row.score),
        number(row.difference, "{:+.2f}", 100),
        change(row.relative_change),
        Cell(f"{100 * row.low:+.2f} to {100 * row.high:+.2f}"),
        p_value(row.p, settings.level),
        p_value(row.p_holm, settings.level, "*" if passes else ""),
    ]
    return [*texts(name, row.metric, row.system), *(replace(cell, bold=passes) for cell in cells)]


def main_rows(comparison: Comparison) -> list[Difference]:
    """Return one row per set and system: a set's first metric is its main one."""
    first: dict[str, str] = {}
    for row in comparison.rows:
        first.setdefault(row.name, row.metric)
    return [row for row in comparison.rows if row.metric == first[row.name]]


def _row(row: Row, systems: Sequence[str], tested: Tested | None) -> list[Cell]:
    cells = []
    for system, cell in zip(systems, percents(row.scores), strict=True):
        mark: Mark = tested.mark(row.name, row.metric, system) if tested else ""
        ends = tested.intervals.get((row.name, row.metric, system)) if tested else None
        cells.append(replace(cell, mark=mark, note=_ends(ends)))
    name = f"average ({row.task})" if row.name == "average" else row.name
    return [label(row.task), label(name), label(row.metric), *cells]


def _ends(ends: Interval | None) -> str:
    return "" if ends is None else f"{100 * ends[0]:.1f} to {100 * ends[1]:.1f}"


def _notes(tested: Tested, systems: int) -> list[str]:
    settings, comparison = tested.settings, tested.comparison
    notes = []
    if comparison is not None:
        better, worse = SIGNS["better"], SIGNS["worse"]
        notes.append(
            f"{better} better and {worse} worse than {settings.baseline}: paired randomisation "
            f"test on the main metric, {settings.resamples:,} draws, corrected for "
            f"{counted(len(comparison.rows), 'comparison')} (Holm), p ≤ {settings.level:g}."
        )
    elif systems == 1:
        notes.append("Only one system, so nothing is tested.")
    else:
        notes.append(f"No other system can be compared with {settings.baseline} query by query.")
    if tested.intervals:
        notes.append(
            f"Small numbers on the page: {100 * settings.confidence:g}% bootstrap interval over "
            f"queries, seed {settings.seed}. "
            f"{'Neither accounts' if comparison else 'They do not account'} for "
            "variance between training runs."
        )
    return notes
