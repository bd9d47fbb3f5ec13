"""Runs of several seeds on one suite or several: means, and differences to a baseline.

A *run* is a way of training, its members are the systems that were trained so, one for each seed;
a system as it is, such as BM25, is a run with one member and no seed. The test is that of
:mod:`scimult.evaluation.seeds`: it takes the chance of queries and that of training into account.
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
    places_of,
)
from scimult.evaluation.report import set_order
from scimult.evaluation.resampling import holm
from scimult.evaluation.results import Result, require_results
from scimult.evaluation.seeds import SeedVariance, compare_means, seed_variance

SUITES = "all suites"


@dataclass(frozen=True)
class Runs:
    """Which systems are runs of one kind, and how they are compared.

    Attributes
    ----------
    members : mapping
        Run to its systems.
    baseline : str
        The run that others are compared with.
    seeded : frozenset of str
        Runs that a seed moved.
    confidence : float
        Of intervals; tests use 1 minus this.
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
        """Group systems by name; one that no pattern names is a run of its own, without a seed.

        Parameters
        ----------
        systems : sequence of str
            Names of all systems.
        patterns : mapping
            Run to names or patterns, such as ``experts-*``, of its systems.
        baseline, confidence
            As above.

        Raises
        ------
        ConfigError
            If a system is in two runs, or a run has the name of a system that is in none.
        UnknownNameError
            If a pattern names no system, or the baseline no run.
        """
        members: dict[str, list[str]] = {}
        for run, wanted in patterns.items():
            for pattern in wanted:
                matched = [name for name in systems if fnmatchcase(name, pattern)]
                if not matched:
                    raise UnknownNameError(f"system of run {run}", pattern, systems)
                members.setdefault(run, []).extend(matched)
            members[run] = list(dict.fromkeys(members[run]))
        taken = [name for keys in members.values() for name in keys]
        twice = next((name for name in taken if taken.count(name) > 1), None)
        if twice is not None:
            raise ConfigError("system is in two runs", value=twice, fix="name it in one of them")
        alone = [name for name in systems if name not in taken]
        same = next((name for name in alone if name in members), None)
        if same is not None:
            fix = "give the run another name, or name the system in it"
            raise ConfigError(
                "a run has the name of a system that is not in it", value=same, fix=fix
            )
        members |= {name: [name] for name in alone}
        one_of("run", baseline, members)
        return cls(members, baseline, frozenset(patterns), confidence)


@dataclass(frozen=True)
class Score:
    """Scores of a run on a set, or the average of sets (of a task, or ``all``).

    Attributes
    ----------
    run, task, name, metric : str
        What was scored; averages have the name ``average`` and the metric ``main``.
    scores : list of float
        By seed, in [0, 1].
    mean, sd : float
        Over seeds; no sd of one.
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
    """Mean of a run minus that of the baseline; see :mod:`scimult.evaluation.seeds`.

    ``low``, ``high``, ``p`` and ``p_holm`` are None where a set has no scores per query.
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
    """What runs did on one suite.

    Attributes
    ----------
    suite, description : str
        Of the suite.
    baseline : str
        The run that others are compared with.
    confidence : float
        Of the intervals.
    seeds : dict
        Run to how many seeds it has; None for a system as it is.
    scores, differences : list
        Averages first, then sets in the suite's order, runs in the order given.
    notes : list of str
        What the numbers are, and what is missing.
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
    """Compare the runs in every column; ``notes`` come after those on what the numbers are."""
    known = {key for column in columns for key in column.keys}
    present = {run: [key for key in keys if key in known] for run, keys in runs.members.items()}
    differences = [row for column in columns for row in _differences(runs, column, present)]
    return SuiteFindings(
        suite=suite,
        description=description,
        baseline=runs.baseline,
        confidence=runs.confidence,
        seeds={
            run: len(keys) if run in runs.seeded else None for run, keys in runs.members.items()
        },
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
    """Compare runs in folders of results, one for each suite, and with several across them.

    Parameters
    ----------
    folders : sequence of Path
        Folders that ``scimult evaluate`` wrote.
    patterns, baseline, confidence
        See :class:`Runs`.
    systems : sequence of str
        Only these runs beside the baseline; all if empty.

    Raises
    ------
    ConfigError, UnknownNameError
        See :class:`Runs`; or if nothing is left to compare, or two folders have one suite.
    DataError
        If a folder has no results, or they do not belong together.
    """
    read = {folder: require_results(folder) for folder in folders}
    every = list(dict.fromkeys(r.system for results in read.values() for r in results))
    runs = Runs.of_patterns(every, patterns, baseline, confidence)
    runs = _chosen(runs, systems)
    by_suite: dict[str, SuiteFindings] = {}
    averages: dict[str, Column] = {}
    for folder, results in read.items():
        suite = results[-1].suite["name"]
        if suite in by_suite:
            fix = "name one folder per suite"
            raise ConfigError("two folders have results of one suite", value=suite, fix=fix)
        by_suite[suite], average = _one_suite(folder, results, runs)
        if average is not None:
            averages[suite] = average
    columns = across_suites(averages) if len(averages) > 1 else []
    if not columns:
        return list(by_suite.values())
    told = "mean of the suites' averages, over the models that all of them have"
    return [findings(SUITES, told, columns, runs, _in_two(read.values())), *by_suite.values()]


def _one_suite(
    folder: Path, results: Sequence[Result], runs: Runs
) -> tuple[SuiteFindings, Column | None]:
    """Compare runs in one folder; return its average over sets too, if there is one."""
    wanted = {key for keys in runs.members.values() for key in keys}
    by_system = {result.system: result for result in results if result.system in wanted}
    if not by_system:
        problem = f"no result of {', '.join(sorted(wanted))}"
        raise DataError(problem, path=folder, fix="evaluate them, or leave the folder out")
    columns = columns_of(folder, by_system, set_order(list(by_system.values())))
    lacking = sorted(wanted - by_system.keys())
    notes = [f"No result of {', '.join(lacking)}."] if lacking else []
    suite = results[-1].suite
    first = columns[0] if (columns[0].name, columns[0].task) == (AVERAGE, EVERYTHING) else None
    return findings(suite["name"], suite["description"], columns, runs, notes), first


def _in_two(folders: Iterable[Sequence[Result]]) -> list[str]:
    """Name the sets of which two suites have a file: their queries are not independent."""
    first: dict[str, str] = {}
    notes: dict[str, None] = {}
    for results in folders:
        suite = results[-1].suite["name"]
        for name, entry in [item for result in results for item in result.sets.items()]:
            if any(first.setdefault(digest, suite) != suite for digest in entry.files.values()):
                notes[f"{name} is in two suites: the intervals across suites are too narrow."] = (
                    None
                )
    return list(notes)


def _chosen(runs: Runs, names: Sequence[str]) -> Runs:
    """Return the baseline and the runs that are asked for, none for all."""
    for name in names:
        one_of("run", name, runs.members)
    others = list(names) or [name for name in runs.members if name != runs.baseline]
    if not others or runs.baseline in others:
        fix = "name another run"
        raise ConfigError("a baseline is compared with others", value=runs.baseline, fix=fix)
    order = [name for name in runs.members if name in (runs.baseline, *others)]
    return replace(
        runs,
        members={name: runs.members[name] for name in order},
        seeded=runs.seeded & set(order),
    )


def _scores(column: Column, runs: Mapping[str, Sequence[str]]) -> list[Score]:
    rows = []
    for run, keys in runs.items():
        scores_J = column.scores_N[places_of(column, keys)]
        if len(scores_J):
            sd = float(scores_J.std(ddof=1)) if len(scores_J) > 1 else None
            where = (run, column.task, column.name, column.metric)
            rows.append(Score(*where, scores_J.tolist(), float(scores_J.mean()), sd))
    return rows


def _differences(
    runs: Runs, column: Column, present: Mapping[str, Sequence[str]]
) -> list[Difference]:
    of_baseline = places_of(column, present[runs.baseline])
    variance = _seed_variance(runs, column, present)
    rows = []
    for run, keys in present.items():
        places = places_of(column, keys)
        if run == runs.baseline or not (places and of_baseline):
            continue
        scores_J, baseline_K = column.scores_N[places], column.scores_N[of_baseline]
        where = (run, column.task, column.name, column.metric, (len(places), len(of_baseline)))
        if column.covariance_NN is None:
            rows.append(Difference(*where, float(scores_J.mean() - baseline_K.mean())))
            continue
        both = [*places, *of_baseline]
        estimate = compare_means(
            scores_J,
            baseline_K,
            column.covariance_NN[np.ix_(both, both)],
            variance,
            trained=run in runs.seeded,
            baseline_trained=runs.baseline in runs.seeded,
            confidence=runs.confidence,
        )
        told = (estimate.difference, estimate.low, estimate.high, estimate.p)
        # JSON has no infinity.
        degrees = estimate.degrees if np.isfinite(estimate.degrees) else None
        rows.append(Difference(*where, *told, degrees=degrees))
    return rows


def _seed_variance(
    runs: Runs, column: Column, present: Mapping[str, Sequence[str]]
) -> SeedVariance | None:
    seeded = [places_of(column, keys) for run, keys in present.items() if run in runs.seeded]
    return seed_variance([column.scores_N[places].tolist() for places in seeded])


def _corrected(rows: Sequence[Difference]) -> list[Difference]:
    """Correct for all comparisons of a kind: sets, averages of tasks, averages of all."""
    corrected_p: dict[int, float] = {}
    kinds = [(row.name == AVERAGE, row.name == AVERAGE and row.task == EVERYTHING) for row in rows]
    for kind in dict.fromkeys(kinds):
        places = [i for i, row in enumerate(rows) if kinds[i] == kind and row.p is not None]
        corrected = holm([p for i in places if (p := rows[i].p) is not None])
        corrected_p |= dict(zip(places, corrected, strict=True))
    return [replace(row, p_holm=corrected_p.get(place)) for place, row in enumerate(rows)]


def _notes(runs: Runs, columns: Sequence[Column]) -> list[str]:
    sets = [column for column in columns if column.name != AVERAGE]
    every = {key for column in columns for key in column.keys}
    shared = sum(len(column.keys) == len(every) for column in sets)
    means = (
        f"averages are means of main metrics over {shared} of {len(sets)} sets, those that every "
        "model has."
        if sets
        else "of the suites' averages, each suite counting the same."
    )
    notes = [
        f"Scores × 100: mean ± standard deviation over seeds; {means}",
        f"Differences are to {runs.baseline}. Interval ({100 * runs.confidence:g}%) and p: t of "
        "Obuchowski and Rockette with Hillis' degrees of freedom, over queries and seeds; the "
        "variance between seeds is pooled over the runs. p (Holm): corrected for all comparisons "
        "of sets, or of averages, in this table; ▲ and ▼ are at most "
        f"{1 - runs.confidence:.3g} by it.",
    ]
    if runs.seeded and not any(len(runs.members[run]) > 1 for run in runs.seeded):
        notes.append("One seed a run: the chance of training is in no interval.")
    notes += [
        f"{column.name}: {column.metric} is not a mean over queries, and is not tested."
        for column in sets
        if column.covariance_NN is None
    ]
    if any(column.covariance_NN is None for column in sets):
        notes.append("Averages that have such a set are not tested.")
    return notes
