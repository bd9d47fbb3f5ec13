"""Tables of runs of several seeds: scores and differences, also as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from scimult.evaluation.columns import AVERAGE, EVERYTHING
from scimult.evaluation.repeated import SUITES, Difference, Score, SuiteFindings
from scimult.table import ABSENT, Cell, Mark, Table, label, number, p_value, texts

Column = tuple[str, str, str]
"""Task, name and metric."""


def tables_of(findings: SuiteFindings) -> list[Table]:
    """Return the scores, and the differences if a run can be compared with the baseline."""
    scores = score_table(findings)
    return [scores, difference_table(findings)] if findings.differences else [scores]


def score_table(findings: SuiteFindings) -> Table:
    """Return one row per run, and one column per average and set."""
    level = _level(findings)
    columns = list(dict.fromkeys((row.task, row.name, row.metric) for row in findings.scores))
    scores = {(row.run, row.task, row.name): row for row in findings.scores}
    differences = {(row.run, row.task, row.name): row for row in findings.differences}
    best = {column: _best(findings.scores, column) for column in columns}
    rows = []
    for run, count in findings.seeds.items():
        cells = []
        for task, name, metric in columns:
            row = scores.get((run, task, name))
            change = differences.get((run, task, name))
            cells.append(_cell(row, change, best[task, name, metric], level))
        rows.append([label(run), label(ABSENT if count is None else str(count)), *cells])
    headings = ["run", "seeds", *map(_heading, columns)]
    title = findings.suite if findings.suite == SUITES else f"Suite {findings.suite}"
    return Table(f"{title}: {findings.description}", headings, 1, rows, findings.notes)


def _heading(column: Column) -> str:
    task, name, metric = column
    if name != AVERAGE:
        return f"{name} {metric}"
    return AVERAGE if task == EVERYTHING else f"{AVERAGE} {task}"


def _best(scores: Sequence[Score], column: Column) -> str:
    """Return the highest mean as displayed."""
    task, name, _ = column
    means = [row.mean for row in scores if (row.task, row.name) == (task, name)]
    return f"{100 * max(means):.2f}"


def _cell(row: Score | None, change: Difference | None, best: str, level: float) -> Cell:
    if row is None:
        return Cell(ABSENT)
    mean = f"{100 * row.mean:.2f}"
    text = mean if row.sd is None else f"{mean} ± {100 * row.sd:.2f}"
    mark: Mark = ""
    if change is not None and change.p_holm is not None and change.p_holm <= level:
        mark = "better" if change.difference > 0 else "worse"
    note = ""
    if change is not None and change.low is not None and change.high is not None:
        note = f"{100 * change.difference:+.2f} [{100 * change.low:+.2f}, {100 * change.high:+.2f}]"
    return Cell(text, row.mean, bold=mean == best, mark=mark, note=note)


def _level(findings: SuiteFindings) -> float:
    return round(1 - findings.confidence, 12)


def difference_table(findings: SuiteFindings) -> Table:
    """Return one row per run and set, averages first."""
    rows = []
    ordered = [row for run in findings.seeds for row in findings.differences if row.run == run]
    for row in ordered:
        interval = ABSENT
        if row.low is not None and row.high is not None:
            interval = f"[{100 * row.low:+.2f}, {100 * row.high:+.2f}]"
        rows.append(
            [
                *texts(row.run, row.task, row.name, row.metric, f"{row.seeds[0]}, {row.seeds[1]}"),
                number(row.difference, "{:+.2f}", 100),
                label(interval),
                p_value(row.p, _level(findings)),
                p_value(row.p_holm, _level(findings)),
            ]
        )
    names = ["run", "task", "set", "metric", "seeds"]
    numbers = ["difference", f"{100 * findings.confidence:g}% interval", "p", "p (Holm)"]
    title = findings.suite if findings.suite == SUITES else f"Suite {findings.suite}"
    title = f"{title}: differences to {findings.baseline}"
    return Table(title, [*names, *numbers], len(names), rows, group=1)


def to_csv(every: Sequence[SuiteFindings]) -> str:
    """Return one line per run and column in full precision, scores in [0, 1].

    ``scores`` lists the seeds' scores, separated by semicolons. Missing values are empty cells.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ["suite", "run", "task", "set", "metric", "seeds", "mean", "sd", "scores"]
    tested = ["difference", "low", "high", "p", "p_holm"]
    writer.writerow([*head, "baseline", *tested])
    for finds in every:
        differences = {(row.run, row.task, row.name): row for row in finds.differences}
        for row in finds.scores:
            by_seed = ";".join(map(str, row.scores))
            seeds = None if finds.seeds[row.run] is None else len(row.scores)
            cells = [finds.suite, row.run, row.task, row.name, row.metric, seeds]
            change = differences.get((row.run, row.task, row.name))
            values = [getattr(change, name, None) for name in tested]
            writer.writerow([*cells, row.mean, row.sd, by_seed, finds.baseline, *values])
    return text.getvalue()
