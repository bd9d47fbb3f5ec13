"""The report on one suite's results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scimult.errors import one_of
from scimult.evaluation.comparison import Settings
from scimult.evaluation.report import audit_table, set_order
from scimult.evaluation.reporting.costs import costs
from scimult.evaluation.reporting.curves import RecallCurves
from scimult.evaluation.reporting.gaps import missing_sections, without_queries, without_samples
from scimult.evaluation.reporting.leaderboard import (
    Tested,
    leaderboard,
    relative_changes,
    significance,
    standing,
)
from scimult.evaluation.reporting.maps import PaperMap
from scimult.evaluation.reporting.parts import Options, SetPart, make_part
from scimult.evaluation.reporting.published import beside_ours, publications
from scimult.evaluation.reporting.sources import Missing
from scimult.evaluation.reporting.verdict import Verdict, verdict
from scimult.evaluation.reporting.wins import PairwiseWins, counts
from scimult.evaluation.results import MACRO, Result, averages, require_results
from scimult.evaluation.routes import cross_tables
from scimult.table import Table


@dataclass(frozen=True)
class Group:
    """Average scores of one task or group of sets, one per system, in the report's order."""

    task: str
    sets: list[str]
    scores: list[float]


@dataclass(frozen=True)
class SuiteReport:
    """The sections of one folder of results."""

    suite: str
    description: str
    folder: str
    systems: list[str]
    baseline: str
    sets: int
    queries: int
    dates: tuple[str, str]
    commits: list[str]
    verdict: Verdict | None
    groups: list[Group]
    tables: list[Table]
    curves: list[RecallCurves]
    frequencies: list[Table]
    wins: list[PairwiseWins]
    maps: list[PaperMap]
    missing: list[Missing]


def make_suite_report(out: Path, options: Options, tell: Callable[[str], None]) -> SuiteReport:
    """Read a folder that ``scimult evaluate`` wrote and build its sections.

    Raises
    ------
    DataError
        If there are no results, or files are damaged or cannot be compared.
    UnknownNameError
        If the baseline has no result.
    """
    results = require_results(out)
    names = [result.system for result in results]
    baseline = one_of("system", options.baseline or names[0], names, path=out)
    # Refuses results that cannot be compared, before anything else is read.
    plain = leaderboard(results, None)
    order = set_order(results)
    lacking = without_queries(out, results, order)
    settings = Settings(
        baseline=baseline,
        resamples=options.resamples,
        seed=options.seed,
        confidence=options.confidence,
    )
    tell(f"{out}: intervals and tests")
    tested = None if lacking else significance(out, results, settings)
    ranked = [
        name
        for name in order
        if all(result.sets[name].has_samples for result in results if name in result.sets)
    ]
    protocols = {name: e.protocol for result in results for name, e in result.sets.items()}
    parts = []
    for name in [] if lacking else ranked:
        tell(f"{out}: {name}")
        parts.append(make_part(out, results, name, baseline, options))
    groups = _groups(results, order)
    return SuiteReport(
        suite=results[-1].suite["name"],
        description=results[-1].suite.get("description", ""),
        folder=out.name,
        systems=names,
        baseline=baseline,
        sets=len(order),
        queries=_queries(results, order),
        dates=_dates(results),
        commits=_commits(results),
        verdict=_verdict(out, tested, groups, results),
        groups=groups,
        tables=_tables(results, plain, tested, parts),
        curves=[part.curves for part in parts if part.curves],
        frequencies=[part.frequency for part in parts if part.frequency],
        wins=[one for part in parts for one in part.wins],
        maps=[entry for part in parts for entry in part.maps],
        missing=[
            *lacking,
            *without_samples([name for name in order if name not in ranked], protocols),
            *missing_sections(results, tested, parts, options),
        ],
    )


def _tables(
    results: Sequence[Result], plain: Table, tested: Tested | None, parts: Sequence[SetPart]
) -> list[Table]:
    tables = [leaderboard(results, tested) if tested else plain]
    if tested and tested.comparison:
        tables.insert(0, standing(tested.comparison))
        tables.append(relative_changes(tested.comparison))
    wins = [one for part in parts for one in part.wins]
    if wins:
        tables.append(counts(wins))
    audited = audit_table(results)
    if audited:
        tables.append(audited)
    crossed = cross_tables(results)
    return [*tables, *crossed, *beside_ours(results, publications()), costs(results)]


def _verdict(
    out: Path, tested: Tested | None, groups: Sequence[Group], results: Sequence[Result]
) -> Verdict | None:
    if tested is None or tested.comparison is None:
        return None
    systems = [result.system for result in results]
    tasks = {entry.task for result in results for entry in result.sets.values()} | {"all"}
    by_task = {
        group.task: dict(zip(systems, group.scores, strict=True))
        for group in groups
        if group.task in tasks
    }
    return verdict(out, tested.comparison, by_task)


def _groups(results: Sequence[Result], order: Sequence[str]) -> list[Group]:
    """Return averages over the sets that every system has; empty if they share none."""
    shared = [name for name in order if all(name in result.sets for result in results)]
    if not shared:
        return []
    facts = {name: results[0].sets[name] for name in shared}
    means = [averages({name: result.sets[name] for name in shared}) for result in results]
    return [
        Group(
            task,
            [
                name
                for name in shared
                if task in (facts[name].task, facts[name].group, "all", MACRO)
            ],
            [mean[task] for mean in means],
        )
        for task in means[0]
    ]


def _queries(results: Sequence[Result], order: Sequence[str]) -> int:
    return sum(
        next(result.sets[name].counts["queries"] for result in results if name in result.sets)
        for name in order
    )


def _dates(results: Sequence[Result]) -> tuple[str, str]:
    days = sorted(str(result.provenance.get("date", ""))[:10] for result in results)
    return days[0], days[-1]


def _commits(results: Sequence[Result]) -> list[str]:
    """Return the commits that wrote the results, marked where tracked files were modified."""
    commits = []
    for result in results:
        git = result.provenance.get("git")
        modified = " and changes" if git and git["modified"] else ""
        commits.append(f"{git['commit'][:10]}{modified}" if git else "unknown")
    return list(dict.fromkeys(commits))
