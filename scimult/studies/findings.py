"""What a study found: scores of every run over its seeds, and differences to the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scimult.evaluation.comparison import paired_samples
from scimult.evaluation.metrics import Scores
from scimult.evaluation.report import check_comparable
from scimult.evaluation.resampling import holm
from scimult.evaluation.results import Result, folder_of, load_result
from scimult.evaluation.seeds import (
    SeedVariance,
    compare_means,
    query_covariance,
    seed_variance,
)
from scimult.studies.plan import Plan
from scimult.studies.trials import by_run

AVERAGE, EVERYTHING = "average", "all"


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
    scores, differences : list
        Averages first, then sets in the suite's order, runs in the study's.
    notes : list of str
        What the numbers are, and what is missing.
    """

    suite: str
    description: str
    scores: list[Score]
    differences: list[Difference]
    notes: list[str]


@dataclass(frozen=True)
class _Column:
    """One column of the table: scores by trial, and how they vary over queries (None: unknown)."""

    task: str
    name: str
    metric: str
    keys: list[str]
    scores_N: Scores
    covariance_NN: Scores | None


def find(plan: Plan, suite: str) -> SuiteFindings | None:
    """Compare the runs on a suite; None while there is no result.

    Raises
    ------
    DataError
        If results are damaged, of other data, or their scores per query are not there.
    """
    results = _results(plan, suite)
    if not results:
        return None
    first = next(iter(results.values()))
    check_comparable(results.values(), suite, first.facts)
    wanted = plan.suites[suite].suite.select(plan.suites[suite].section.sets)
    columns = [
        _column(plan, suite, name, {key: r for key, r in results.items() if name in r.sets})
        for name in wanted
        if any(name in result.sets for result in results.values())
    ]
    shared = [column for column in columns if len(column.keys) == len(results)]
    columns = [*_averages(shared), *columns]
    runs = {
        name: [trial.key for trial in members if trial.key in results]
        for name, members in by_run(plan.trials).items()
    }
    differences = [row for column in columns for row in _differences(plan, column, runs)]
    return SuiteFindings(
        suite=suite,
        description=plan.suites[suite].suite.description,
        scores=[row for column in columns for row in _scores(column, runs)],
        differences=_corrected(differences),
        notes=_notes(plan, columns, len(shared), results),
    )


def _results(plan: Plan, suite: str) -> dict[str, Result]:
    """Return the result of every trial that has one."""
    out = plan.results(suite)
    paths = {key: folder_of(out, key) / "result.json" for key in plan.trials}
    return {key: load_result(path) for key, path in paths.items() if path.is_file()}


def _column(plan: Plan, suite: str, name: str, results: Mapping[str, Result]) -> _Column:
    entries = [result.sets[name] for result in results.values()]
    metric = entries[0].main_metric
    covariance_NN = None
    if all(entry.has_samples for entry in entries):
        samples = paired_samples(plan.results(suite), list(results.values()), name, [metric])
        covariance_NN = query_covariance(samples)
    scores_N = np.array([entry.scores[metric] for entry in entries])
    return _Column(entries[0].task, name, metric, list(results), scores_N, covariance_NN)


def _averages(columns: Sequence[_Column]) -> list[_Column]:
    """Return the mean of all sets, and of each task that has several but not all of them."""
    groups = {EVERYTHING: list(columns)} if columns else {}
    for task in dict.fromkeys(column.task for column in columns):
        members = [column for column in columns if column.task == task]
        if 1 < len(members) < len(columns):
            groups[task] = members
    found = []
    for task, members in groups.items():
        known = [c.covariance_NN for c in members if c.covariance_NN is not None]
        # Queries of different sets are drawn independently of each other.
        covariance_NN = (
            np.sum(known, axis=0) / len(members) ** 2 if len(known) == len(members) else None
        )
        scores_N = np.mean([column.scores_N for column in members], axis=0)
        keys = members[0].keys
        found.append(_Column(task, AVERAGE, "main", keys, scores_N, covariance_NN))
    return found


def _scores(column: _Column, runs: Mapping[str, Sequence[str]]) -> list[Score]:
    rows = []
    for run, keys in runs.items():
        scores_J = column.scores_N[_places(column, keys)]
        if len(scores_J):
            sd = float(scores_J.std(ddof=1)) if len(scores_J) > 1 else None
            where = (run, column.task, column.name, column.metric)
            rows.append(Score(*where, scores_J.tolist(), float(scores_J.mean()), sd))
    return rows


def _differences(
    plan: Plan, column: _Column, runs: Mapping[str, Sequence[str]]
) -> list[Difference]:
    baseline = plan.study.baseline
    of_baseline = _places(column, runs[baseline])
    variance = _seed_variance(plan, column, runs)
    rows = []
    for run, keys in runs.items():
        places = _places(column, keys)
        if run == baseline or not (places and of_baseline):
            continue
        scores_J, baseline_K = column.scores_N[places], column.scores_N[of_baseline]
        where = (run, column.task, column.name, column.metric, (len(places), len(of_baseline)))
        if column.covariance_NN is None:
            rows.append(Difference(*where, float(scores_J.mean() - baseline_K.mean())))
            continue
        both = [*places, *of_baseline]
        found = compare_means(
            scores_J,
            baseline_K,
            column.covariance_NN[np.ix_(both, both)],
            variance,
            trained=_has_seeds(plan, keys),
            baseline_trained=_has_seeds(plan, runs[baseline]),
            confidence=plan.study.confidence,
        )
        told = (found.difference, found.low, found.high, found.p)
        # JSON has no infinity.
        degrees = found.degrees if np.isfinite(found.degrees) else None
        rows.append(Difference(*where, *told, degrees=degrees))
    return rows


def _seed_variance(
    plan: Plan, column: _Column, runs: Mapping[str, Sequence[str]]
) -> SeedVariance | None:
    seeded = [_places(column, keys) for keys in runs.values() if _has_seeds(plan, keys)]
    return seed_variance([column.scores_N[places].tolist() for places in seeded])


def _has_seeds(plan: Plan, keys: Sequence[str]) -> bool:
    return any(plan.trials[key].seed is not None for key in keys)


def _places(column: _Column, keys: Sequence[str]) -> list[int]:
    return [column.keys.index(key) for key in keys if key in column.keys]


def _corrected(rows: Sequence[Difference]) -> list[Difference]:
    """Correct for all comparisons of a kind: sets, averages of tasks, averages of all."""
    found: dict[int, float] = {}
    kinds = [(row.name == AVERAGE, row.name == AVERAGE and row.task == EVERYTHING) for row in rows]
    for kind in dict.fromkeys(kinds):
        places = [i for i, row in enumerate(rows) if kinds[i] == kind and row.p is not None]
        corrected = holm([p for i in places if (p := rows[i].p) is not None])
        found |= dict(zip(places, corrected, strict=True))
    return [
        Difference(**{**vars(row), "p_holm": found.get(place)}) for place, row in enumerate(rows)
    ]


def _notes(
    plan: Plan, columns: Sequence[_Column], shared: int, results: Mapping[str, Result]
) -> list[str]:
    study = plan.study
    sets = [column for column in columns if column.name != AVERAGE]
    notes = [
        "Scores × 100: mean ± standard deviation over seeds; averages are means of main metrics "
        f"over {shared} of {len(sets)} sets, those that every model has.",
        f"Differences are to {study.baseline}. Interval ({100 * study.confidence:g}%) and p: t of "
        "Obuchowski and Rockette with Hillis' degrees of freedom, over queries and seeds; the "
        "variance between seeds is pooled over the runs. p (Holm): corrected for all comparisons "
        "of sets, or of averages, in this table; ▲ and ▼ are at most "
        f"{1 - study.confidence:.3g} by it.",
    ]
    seeded = [members for members in by_run(plan.trials).values() if members[0].seed is not None]
    if not any(len(members) > 1 for members in seeded):
        notes.append("One seed a run: the chance of training is in no interval.")
    notes += [
        f"{column.name}: {column.metric} is not a mean over queries, and is not tested."
        for column in sets
        if column.covariance_NN is None
    ]
    if any(column.covariance_NN is None for column in sets):
        notes.append("Averages that have such a set are not tested.")
    lacking = [key for key in plan.trials if key not in results]
    if lacking:
        notes.append(f"No result yet of {', '.join(lacking)}.")
    for column in sets:
        without = [key for key in results if key not in column.keys]
        if without:
            notes.append(f"{column.name}: no score yet of {', '.join(without)}.")
    return notes
