"""Compare runs of several seeds with a baseline, on one or several suites.

A *run* is a way of training; its members are the systems trained that way, one per seed. A system
without seeds, such as BM25, is a run with one member. The test of `scimult.evaluation.seeds`
accounts for the variance over queries and over seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from scimult.errors import ConfigError, DataError, UnknownNameError, one_of
from scimult.evaluation.columns import (
    AVERAGE,
    EVERYTHING,
    Column,
    across_suites,
    columns_of,
    indices_of,
)
from scimult.evaluation.comparison import FEW
from scimult.evaluation.report import set_order
from scimult.evaluation.resampling import holm
from scimult.evaluation.results import Result, require_results
from scimult.evaluation.seeds import SeedVariance, compare_means, seed_variance

SUITES = "all suites"


@dataclass(frozen=True)
class Runs:
    """Which systems are seeds of the same run, and how runs are compared.

    ``members`` maps a run to its systems, which in ``seeded`` runs differ by seed. Tests use 1
    minus ``confidence`` as their level.
    """

    members: Mapping[str, Sequence[str]]
    baseline: str
    seeded: frozenset[str]
    confidence: float = 0.95

    @classmethod
    def of_patterns(
        cls,
        systems: Sequence[str],
        patterns: Mapping[str, Sequence[str]],
        baseline: str,
        confidence: float = 0.95,
    ) -> Runs:
        """Group systems by name; one that matches no pattern is a run of its own, without seed.

        ``patterns`` maps a run to the names or patterns, such as ``experts-*``, of its systems.

        Raises
        ------
        ConfigError
            If a system is in two runs, or a run has the name of a system outside all runs.
        UnknownNameError
            If a pattern matches no system, or there is no run ``baseline``.
        """
        members: dict[str, list[str]] = {}
        for run, wanted in patterns.items():
            for pattern in wanted:
                matched = [name for name in systems if fnmatchcase(name, pattern)]
                if not matched:
                    raise UnknownNameError(f"system of run {run}", pattern, systems)
                members.setdefault(run, []).extend(matched)
            members[run] = list(dict.fromkeys(members[run]))
        assigned = [name for keys in members.values() for name in keys]
        twice = next((name for name in assigned if assigned.count(name) > 1), None)
        if twice is not None:
            raise ConfigError("system is in two runs", value=twice, fix="keep it in one of them")
        alone = [name for name in systems if name not in assigned]
        same = next((name for name in alone if name in members), None)
        if same is not None:
            problem = "a run has the name of a system outside it"
            raise ConfigError(problem, value=same, fix="rename the run, or add the system to it")
        members |= {name: [name] for name in alone}
        one_of("run", baseline, members)
        return cls(members, baseline, frozenset(patterns), confidence)


@dataclass(frozen=True)
class Score:
    """Scores of a run on a set, or its average over sets (of a task, or ``all``).

    Averages have the name ``average`` and the metric ``main``. ``scores`` are by seed, in [0, 1],
    ``mean`` and ``sd`` over seeds.
    """

    run: str
    task: str
    name: str
    metric: str
    scores: list[float]
    mean: float
    sd: float | None


@dataclass(frozen=True)
class Difference:
    """A run's mean minus the baseline's; see `scimult.evaluation.seeds`.

    ``low``, ``high``, ``p`` and ``p_holm`` are None where a set has no per-query scores.
    """

    run: str
    task: str
    name: str
    metric: str
    seeds: tuple[int, int]
    difference: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    degrees: float | None = None


@dataclass(frozen=True)
class SuiteFindings:
    """Comparison of runs on one suite.

    ``seeds`` are the numbers of seeds with results, None for a system without. ``scores`` and
    ``differences`` list averages first, then sets in the suite's order.
    """

    suite: str
    description: str
    baseline: str
    confidence: float
    seeds: dict[str, int | None]
    scores: list[Score]
    differences: list[Difference]
    notes: list[str]


def findings(
    suite: str, description: str, columns: Sequence[Column], runs: Runs, notes: Sequence[str] = ()
) -> SuiteFindings:
    """Compare the runs in every column; ``notes`` are added to the explanations."""
    known = {key for column in columns for key in column.keys}
    present = {run: [key for key in keys if key in known] for run, keys in runs.members.items()}
    runs = replace(runs, members=present)
    differences = [row for column in columns for row in _differences(runs, column)]
    return SuiteFindings(
        suite=suite,
        description=description,
        baseline=runs.baseline,
        confidence=runs.confidence,
        seeds={run: len(keys) if run in runs.seeded else None for run, keys in present.items()},
        scores=[row for column in columns for row in _scores(column, present)],
        differences=_corrected(differences),
        notes=[*_notes(runs, columns), *notes],
    )


def compare_runs(
    folders: Sequence[Path],
    patterns: Mapping[str, Sequence[str]],
    baseline: str,
    systems: Sequence[str] = (),
    confidence: float = 0.95,
) -> list[SuiteFindings]:
    """Compare runs in folders of results, one per suite; with several folders, also across them.

    ``systems`` are the runs to compare, empty: all. For the others see `Runs`.

    Raises
    ------
    ConfigError, UnknownNameError
        See `Runs`; or if nothing is left to compare, or two folders have the same suite.
    DataError
        If a folder has no results, or they cannot be compared.
    """
    results_of = {folder: require_results(folder) for folder in folders}
    systems_read = list(dict.fromkeys(r.system for results in results_of.values() for r in results))
    runs = Runs.of_patterns(systems_read, patterns, baseline, confidence)
    runs = _select(runs, systems)
    by_suite: dict[str, SuiteFindings] = {}
    averages: dict[str, Column] = {}
    for folder, results in results_of.items():
        suite = results[-1].suite["name"]
        if suite in by_suite:
            fix = "name one folder per suite"
            raise ConfigError("two folders have results of the same suite", value=suite, fix=fix)
        by_suite[suite], average = _one_suite(folder, results, runs)
        if average is not None:
            averages[suite] = average
    if not any(one.differences for one in by_suite.values()):
        problem = f"{baseline} and the other runs share no set"
        raise ConfigError(problem, fix="evaluate them on the same sets")
    columns = across_suites(averages) if len(averages) > 1 else []
    if not columns:
        return list(by_suite.values())
    title = "mean of the suites' averages, over the models that all suites have"
    notes = _shared_sets(results_of.values())
    return [findings(SUITES, title, columns, runs, notes), *by_suite.values()]


def _one_suite(
    folder: Path, results: Sequence[Result], runs: Runs
) -> tuple[SuiteFindings, Column | None]:
    """Compare runs in one folder; also return their average over sets, if there is one."""
    wanted = {key for keys in runs.members.values() for key in keys}
    by_system = {result.system: result for result in results if result.system in wanted}
    if not by_system:
        problem = f"no result of {', '.join(sorted(wanted))}"
        raise DataError(problem, path=folder, fix="evaluate them, or omit the folder")
    columns = columns_of(folder, by_system, set_order(list(by_system.values())))
    missing = sorted(wanted - by_system.keys())
    notes = [f"No result of {', '.join(missing)}."] if missing else []
    suite = results[-1].suite
    first = columns[0] if (columns[0].name, columns[0].task) == (AVERAGE, EVERYTHING) else None
    return findings(suite["name"], suite.get("description", ""), columns, runs, notes), first


def _shared_sets(folders: Iterable[Sequence[Result]]) -> list[str]:
    """Return a note per set that shares a file with another suite: queries not independent."""
    first: dict[str, str] = {}
    notes: dict[str, None] = {}
    for results in folders:
        suite = results[-1].suite["name"]
        for name, entry in [item for result in results for item in result.sets.items()]:
            if any(first.setdefault(digest, suite) != suite for digest in entry.files.values()):
                note = f"{name} is in two suites: the intervals across suites are too narrow."
                notes[note] = None
    return list(notes)


def _select(runs: Runs, names: Sequence[str]) -> Runs:
    """Return the baseline and the named runs (none named: all)."""
    for name in names:
        one_of("run", name, runs.members)
    others = list(names) or [name for name in runs.members if name != runs.baseline]
    if not others or runs.baseline in others:
        problem = "the baseline must be compared with another run"
        raise ConfigError(problem, value=runs.baseline, fix="name another run")
    order = [name for name in runs.members if name in (runs.baseline, *others)]
    return replace(
        runs, members={name: runs.members[name] for name in order}, seeded=runs.seeded & set(order)
    )


def _scores(column: Column, runs: Mapping[str, Sequence[str]]) -> list[Score]:
    rows = []
    for run, keys in runs.items():
        scores_J = column.scores_N[indices_of(column, keys)]
        if len(scores_J):
            sd = float(scores_J.std(ddof=1)) if len(scores_J) > 1 else None
            where = (run, column.task, column.name, column.metric)
            rows.append(Score(*where, scores_J.tolist(), float(scores_J.mean()), sd))
    return rows


def _differences(runs: Runs, column: Column) -> list[Difference]:
    baseline_rows = indices_of(column, runs.members[runs.baseline])
    variance = _seed_variance(runs, column)
    rows = []
    for run, keys in runs.members.items():
        rows_of_run = indices_of(column, keys)
        if run == runs.baseline or not (rows_of_run and baseline_rows):
            continue
        scores_J, baseline_K = column.scores_N[rows_of_run], column.scores_N[baseline_rows]
        seeds = (len(rows_of_run), len(baseline_rows))
        where = (run, column.task, column.name, column.metric, seeds)
        if column.covariance_SNN is None:
            rows.append(Difference(*where, float(scores_J.mean() - baseline_K.mean())))
            continue
        both = [*rows_of_run, *baseline_rows]
        estimate = compare_means(
            scores_J,
            baseline_K,
            column.covariance_SNN[:, both][:, :, both],
            column.queries_S,
            variance,
            trained=run in runs.seeded,
            baseline_trained=runs.baseline in runs.seeded,
            confidence=runs.confidence,
        )
        values = (estimate.difference, estimate.low, estimate.high, estimate.p)
        # JSON has no infinity.
        degrees = estimate.degrees if np.isfinite(estimate.degrees) else None
        rows.append(Difference(*where, *values, degrees=degrees))
    return rows


def _seed_variance(runs: Runs, column: Column) -> SeedVariance | None:
    seeded = [indices_of(column, keys) for run, keys in runs.members.items() if run in runs.seeded]
    return seed_variance([column.scores_N[indices].tolist() for indices in seeded])


def _corrected(rows: Sequence[Difference]) -> list[Difference]:
    """Correct for all comparisons of a kind: sets, averages of tasks, averages of all."""
    corrected_p: dict[int, float] = {}
    kinds = [(row.name == AVERAGE, row.name == AVERAGE and row.task == EVERYTHING) for row in rows]
    for kind in dict.fromkeys(kinds):
        indices = [i for i, row in enumerate(rows) if kinds[i] == kind and row.p is not None]
        corrected = holm([p for i in indices if (p := rows[i].p) is not None])
        corrected_p |= dict(zip(indices, corrected, strict=True))
    return [replace(row, p_holm=corrected_p.get(index)) for index, row in enumerate(rows)]


def _notes(runs: Runs, columns: Sequence[Column]) -> list[str]:
    sets = [column for column in columns if column.name != AVERAGE]
    every = {key for column in columns for key in column.keys}
    shared = sum(len(column.keys) == len(every) for column in sets)
    averages = (
        f"averages: mean main metric over the {shared} of {len(sets)} sets that every model has."
        if sets
        else "averages: mean of the suites' averages, each suite counting the same."
    )
    notes = [
        f"Scores × 100: mean ± standard deviation over seeds; {averages}",
        f"Differences are to {runs.baseline}. Interval ({100 * runs.confidence:g}%) and p: "
        "Obuchowski and Rockette's t with Satterthwaite's degrees of freedom, over queries and "
        "seeds; the variance between seeds is pooled over the runs. p (Holm): corrected for all "
        "comparisons of sets, of averages of tasks or suites, or of the average of all; ▲ and ▼: "
        f"at most {1 - runs.confidence:.3g}.",
    ]
    tested = [c for c in columns if runs.seeded and c.covariance_SNN is not None]
    single = [column.name for column in tested if _seed_variance(runs, column) is None]
    if single and len(single) == len(tested):
        notes.append("One seed per run: no interval includes the variance of training.")
    else:
        notes += [
            f"{name}: one seed per run, so its interval lacks the variance of training."
            for name in single
        ]
    notes += [
        f"{column.name}: not every model has {column.metric} for several queries, so it cannot be "
        "tested."
        for column in sets
        if column.covariance_SNN is None
    ]
    notes += [
        f"{column.name}: only {column.queries_S[0]} queries, so the interval is rough."
        for column in sets
        if column.covariance_SNN is not None and column.queries_S[0] < FEW
    ]
    if any(column.covariance_SNN is None for column in sets):
        notes.append("Averages over such a set are not tested.")
    return notes
