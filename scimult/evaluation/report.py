"""Tables of results: one row per data set and metric, one column per system."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scimult.errors import DataError
from scimult.evaluation.contamination import contamination_table
from scimult.evaluation.results import Result, SetFacts, averages, load_results
from scimult.files import write_text
from scimult.table import Table, percents, texts, to_markdown

# Options of a set that change scores, and may suit one system alone.
_OPTIONS = ("fields", "label_text", "similarity", "name_matching", "probe")


@dataclass(frozen=True)
class Row:
    """Scores of all systems under one metric; None where missing."""

    task: str
    name: str
    metric: str
    scores: list[float | None]


@dataclass(frozen=True)
class Report:
    """Rows of a table, systems in column order, and notes for readers."""

    title: str
    systems: list[str]
    rows: list[Row]
    notes: list[str]


def check_comparable(
    results: Iterable[Result], suite: str, facts: Mapping[str, SetFacts]
) -> dict[str, SetFacts]:
    """Refuse results of another suite, or with other data or settings than ``facts``.

    Sets that ``facts`` lacks must agree among the results. Returns the facts of all sets.

    Raises
    ------
    DataError
        Naming the system, the data set and the differing fields.
    """
    known = dict(facts)
    for result in results:
        if result.suite["name"] != suite:
            raise DataError(
                f"the result of {result.system} is not from suite {suite!r}",
                value=result.suite["name"],
                fix="use one --out folder per suite",
            )
        for name, scored in result.facts.items():
            if known.setdefault(name, scored) == scored:
                continue
            ours, theirs = known[name].model_dump(), scored.model_dump()
            differing = [key for key in ours if ours[key] != theirs[key]]
            problem = f"the result of {result.system} on {name} differs in {', '.join(differing)}"
            fix = "evaluate the system again, or use a separate --out folder"
            if "rules" in differing:
                problem += ": versions of scimult score this set differently"
                fix = "evaluate all systems again in one call, or use a separate --out folder"
            raise DataError(problem, fix=fix)
    return known


def set_order(results: Sequence[Result]) -> list[str]:
    """Return the data sets of all results, in the order of the latest result's suite."""
    scored = dict.fromkeys(name for result in results for name in result.sets)
    order = [name for name in results[-1].suite["benchmarks"] if name in scored]
    return [*order, *(name for name in scored if name not in order)]


def make_report(results: Sequence[Result]) -> Report:
    """Arrange results of one suite as a table, systems in the given order.

    Averages are of main metrics over the sets that every system has.

    Raises
    ------
    DataError
        If results cannot be compared; see `check_comparable`.
    """
    suite = results[-1].suite
    facts = check_comparable(results, suite["name"], {})
    metrics: dict[str, dict[str, None]] = {}
    for result in results:
        for name, entry in result.sets.items():
            metrics.setdefault(name, {}).update(dict.fromkeys(entry.scores))
    order = set_order(results)
    rows = [
        Row(facts[name].task, name, metric, [_score(result, name, metric) for result in results])
        for name in order
        for metric in metrics[name]
    ]
    shared = [name for name in order if all(name in result.sets for result in results)]
    return Report(
        title=f"Suite {suite['name']}: {suite['description']}",
        systems=[result.system for result in results],
        rows=[*rows, *_averages(results, shared)],
        notes=[*_notes(facts, len(shared)), *different_options(results), *_failures(results)],
    )


def update_table(out: Path) -> list[Table]:
    """Write ``table.md`` from all results below ``out``; return its tables, the scores first.

    Raises
    ------
    DataError
        If a result is damaged or cannot be compared with the others.
    """
    results = load_results(out)
    scores, audited = score_table(make_report(results)), audit_table(results)
    tables = [scores, *([audited] if audited else [])]
    parts = [to_markdown(scores, level=1), *map(to_markdown, tables[1:])]
    write_text(out / "table.md", "\n".join(parts))
    return tables


def audit_table(results: Sequence[Result]) -> Table | None:
    """Return the training-data overlap that ``--audit`` found; None without audits."""
    if not results:
        return None
    return contamination_table(
        [
            (name, result.sets[name].contamination)
            for name in set_order(results)
            for result in results
            if name in result.sets
        ]
    )


def score_table(report: Report) -> Table:
    """Return the report as a table with the best scores in bold."""
    rows = [[*texts(row.task, row.name, row.metric), *percents(row.scores)] for row in report.rows]
    headings = ["task", "set", "metric", *report.systems]
    return Table(report.title, headings, 3, rows, report.notes, group=2)


def _score(result: Result, name: str, metric: str) -> float | None:
    return result.sets[name].scores.get(metric) if name in result.sets else None


def _averages(results: Sequence[Result], shared: Sequence[str]) -> list[Row]:
    if not shared:
        return []
    means = [averages({name: result.sets[name] for name in shared}) for result in results]
    return [Row(task, "average", "main", [mean[task] for mean in means]) for task in means[0]]


def different_options(results: Sequence[Result]) -> list[str]:
    """Name the sets that systems were scored on with different options, which may be meant."""
    notes = []
    for name in set_order(results):
        scored = [
            result.suite["benchmarks"].get(name) or {} for result in results if name in result.sets
        ]
        for option in _OPTIONS:
            # Older results lack some.
            values = [options[option] for options in scored if option in options]
            if any(value != values[0] for value in values):
                notes.append(f"{name}: systems were scored with different {option!r}.")
    return notes


def _failures(results: Sequence[Result]) -> list[str]:
    """Name the sets that failed last time; the table may show their earlier scores."""
    return [
        f"{result.system} failed on {name}: {reason.splitlines()[0]}"
        for result in results
        for name, reason in result.failed.items()
    ]


def _notes(facts: Mapping[str, SetFacts], shared: int) -> list[str]:
    notes = [
        "Scores × 100; the best of each row is bold. The first metric of a set is its main one.",
        f"Averages: mean main metric over the {shared} of {len(facts)} sets that every system has.",
    ]
    for name, entry in facts.items():
        if entry.mode != "default":
            notes.append(f"{name}: mode {entry.mode!r}.")
        if entry.columns:
            columns = (f"{column} ({', '.join(of)})" for column, of in entry.columns.items())
            notes.append(f"{name}: enters averages as {', '.join(columns)}.")
        if entry.average == "groups":
            notes.append(f"{name}: scores are the mean of the query groups' means.")
        notes.extend(
            f"{name}: left out {count}: {reason}." for reason, count in entry.left_out.items()
        )
        if entry.left_out:
            notes.append(f"{name}: its scores cover the remaining records only.")
        notes.extend(f"{name}: {count} times: {remark}." for remark, count in entry.remarks.items())
    return notes
