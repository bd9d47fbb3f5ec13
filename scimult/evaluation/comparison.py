"""Compare systems on the same queries: differences with intervals and significance tests.

Shape legend: R resamples, M metrics, S systems (the baseline first).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from scimult.config import StrictConfig
from scimult.errors import ConfigError, DataError, one_of
from scimult.evaluation.metrics import Scores
from scimult.evaluation.per_query import AGAIN, read_per_query
from scimult.evaluation.protocols import MACRO_F1
from scimult.evaluation.report import check_comparable, different_options, set_order
from scimult.evaluation.resampling import (
    ROUNDING,
    Sample,
    Seed,
    bootstrap,
    holm,
    interval,
    macro_f1_samples,
    mean_sample,
    randomisation_test,
)
from scimult.evaluation.results import Result, folder_of, provenance, require_results
from scimult.files import sha256, write_json
from scimult.terminal import counted

FEW = 30
"""With fewer queries, a note warns that the interval is too narrow."""


class Settings(StrictConfig):
    """Settings of a comparison with the system ``baseline``.

    ``resamples`` and ``seed`` are those of the bootstrap and of the randomisation test;
    ``1 - confidence`` is the level of tests.
    """

    baseline: str
    metric: Literal["main", "all"] = "main"
    resamples: int = 10_000
    seed: int = 0
    confidence: float = 0.95

    @property
    def level(self) -> float:
        """The largest corrected p-value that is marked as significant."""
        return round(1 - self.confidence, 12)  # 1 - 0.95 is a little more than 0.05


class Difference(StrictConfig):
    """A system's score minus the baseline's, with its bootstrap interval.

    An average has the name ``average``, the metric ``main``, and no p-values. ``relative_change``
    is None unless the baseline's score is above 0 (correlations can be below, where the ratio would
    have the wrong sign); ``exact`` tells whether all swaps were tried.
    """

    task: str
    name: str
    metric: str
    system: str
    queries: int
    baseline_score: float
    score: float
    difference: float
    relative_change: float | None
    low: float
    high: float
    p: float | None = None
    p_holm: float | None = None
    exact: bool = False


class Comparison(StrictConfig):
    """All differences of one comparison, and everything needed to reproduce them.

    ``results`` holds the SHA-256 of every system's ``result.json``.
    """

    format: Literal["scimult-comparison/1"] = "scimult-comparison/1"
    suite: str
    systems: list[str]
    settings: Settings
    rows: list[Difference]
    averages: list[Difference]
    notes: list[str]
    results: dict[str, str]
    provenance: dict[str, Any]


@dataclass(frozen=True)
class _Resampled:
    """A difference and its resamples, from which averages get their interval."""

    row: Difference
    differences_R: Scores


def compare(out: Path, settings: Settings, systems: Sequence[str] = ()) -> Comparison:
    """Compare systems (none named: all) with a baseline on every data set that both have.

    Raises
    ------
    ConfigError
        If there is nothing to compare.
    DataError
        If results are of other data or queries, or lack per-query scores.
    UnknownNameError
        If a system has no result below ``out``.
    """
    results = _select(require_results(out), settings.baseline, systems)
    baseline, *others = results
    check_comparable(others, baseline.suite["name"], baseline.facts)
    compared: list[_Resampled] = []
    names = set_order(results)
    for name in names:
        present = [result for result in results if name in result.sets]
        if baseline in present and len(present) > 1:
            compared += _compare_set(out, present, name, settings)
    if not compared:
        raise ConfigError(
            f"{settings.baseline} and the other systems share no set with per-query scores",
            fix="evaluate both on the same sets",
        )
    corrected = holm([entry.row.p for entry in compared if entry.row.p is not None])
    rows = [
        entry.row.model_copy(update={"p_holm": p})
        for entry, p in zip(compared, corrected, strict=True)
    ]
    tested = {row.name for row in rows if row.metric == baseline.sets[row.name].main_metric}
    shared = [
        name for name in names if name in tested and all(name in result.sets for result in results)
    ]
    return Comparison(
        suite=baseline.suite["name"],
        systems=[result.system for result in others],
        settings=settings,
        rows=rows,
        averages=_averages(baseline, compared, shared, settings.confidence),
        notes=[*_notes(results, names, rows, len(shared), settings), *different_options(results)],
        results={
            result.system: sha256(folder_of(out, result.system) / "result.json")
            for result in results
        },
        provenance={**provenance(), "seed": settings.seed},
    )


def paired_samples(
    out: Path, results: Sequence[Result], name: str, metrics: Sequence[str]
) -> list[Sample]:
    """Read the systems' outputs on the queries of a set, in the same order.

    Raises
    ------
    DataError
        If per-query scores are missing, for other queries, or not those of the result.
    """
    tables = [read_per_query(out, result.system, name) for result in results]
    tables = [table.in_order_of(tables[0].query_ids) for table in tables]
    if MACRO_F1 in metrics and MACRO_F1 not in tables[0].columns:
        gold = tables[0].column("gold")
        for result, table in zip(results, tables, strict=True):
            if table.column("gold") != gold:
                raise DataError(
                    f"gold labels of {results[0].system} and {result.system} on {name} differ",
                    path=table.path,
                    fix="evaluate both systems again on the same data",
                )
        samples = macro_f1_samples(gold, [table.column("predicted") for table in tables])
    else:
        plain = [table for table in tables if table.weights is None]
        if 0 < len(plain) < len(tables):  # recommendation by earlier versions
            problem = f"only some systems have the weights of the queries of {name}"
            raise DataError(problem, path=plain[0].path, fix=AGAIN)
        samples = [mean_sample(table.scores(metrics), table.weights) for table in tables]
    for result, table, sample in zip(results, tables, samples, strict=True):
        entry = result.sets[name]
        wanted_M = np.array([entry.scores[metric] for metric in metrics])
        # The table may be from another run than this result.json, after a kill or manual edits.
        same = len(sample) == entry.counts["queries"]
        if not (same and np.allclose(sample.scores_M, wanted_M, rtol=0, atol=1e-9)):
            raise DataError(
                f"per-query scores of {result.system} on {name} do not match its result",
                path=table.path,
                fix=AGAIN,
            )
    return samples


def save_comparison(comparison: Comparison, out: Path) -> Path:
    """Write ``compare_<baseline>.json``, atomically; return its path."""
    path = out / f"compare_{comparison.settings.baseline}.json"
    write_json(path, comparison.model_dump(mode="json"))
    return path


def set_seed(seed: int, name: str) -> Seed:
    """Return the seed of a data set's draws: different sets have independent draws."""
    return [seed, zlib.crc32(name.encode())]


def _select(results: Iterable[Result], baseline: str, systems: Sequence[str]) -> list[Result]:
    """Return the results of the baseline and of the others, in the requested order."""
    known = {result.system: result for result in results}
    others = list(dict.fromkeys(systems)) or [name for name in known if name != baseline]
    for name in (baseline, *others):
        one_of("system", name, known)
    if not others or baseline in others:
        problem = "the baseline must be compared with another system"
        raise ConfigError(problem, value=baseline, fix="name another system")
    return [known[name] for name in (baseline, *others)]


def _shared_metrics(results: Sequence[Result], name: str, choice: str) -> list[str]:
    """Return the main metric, or all that every system has, the main one first.

    Metrics without per-query scores (B³ of clusters, accuracy) cannot be tested.
    """
    entry = results[0].sets[name]
    every = [result.sets[name].resampled_metrics for result in results]
    wanted = [entry.main_metric] if choice == "main" else entry.scores
    return [metric for metric in wanted if all(metric in known for known in every)]


def _compare_set(
    out: Path, results: Sequence[Result], name: str, settings: Settings
) -> list[_Resampled]:
    """Compare systems with the first one on one data set."""
    metrics = _shared_metrics(results, name, settings.metric)
    if not metrics:
        return []
    samples = paired_samples(out, results, name, metrics)
    seed = set_seed(settings.seed, name)
    scores_SRM = bootstrap(samples, settings.resamples, seed)
    task, queries = results[0].sets[name].task, len(samples[0])
    compared = []
    for column, metric in enumerate(metrics):
        scores = [result.sets[name].scores[metric] for result in results]
        # One by one: which queries are swapped depends on where systems differ.
        first, *others = [sample.under(column) for sample in samples]
        for system, other in enumerate(others, start=1):
            [p], exact = randomisation_test(other, first, settings.resamples, seed)
            differences_R = scores_SRM[system, :, column] - scores_SRM[0, :, column]
            row = _difference(
                scores[0],
                scores[system],
                interval(differences_R, settings.confidence),
                task=task,
                name=name,
                metric=metric,
                system=results[system].system,
                queries=queries,
                p=float(p),
                exact=exact,
            )
            compared.append(_Resampled(row, differences_R))
    return compared


def _difference(
    baseline: float, score: float, ends: tuple[float, float], **others: Any
) -> Difference:
    return Difference(
        baseline_score=baseline,
        score=score,
        difference=score - baseline,
        relative_change=(score - baseline) / baseline if baseline > ROUNDING else None,
        low=ends[0],
        high=ends[1],
        **others,
    )


def _averages(
    baseline: Result, entries: Sequence[_Resampled], shared: Sequence[str], confidence: float
) -> list[Difference]:
    """Average main metrics per task and over all sets that every system has (Table 9)."""
    main = [
        entry
        for entry in entries
        if entry.row.name in shared
        and entry.row.metric == baseline.sets[entry.row.name].main_metric
    ]
    rows = []
    for task in dict.fromkeys([*(entry.row.task for entry in main), "all"]):
        for system in dict.fromkeys(entry.row.system for entry in main):
            group = [
                entry
                for entry in main
                if entry.row.system == system and task in (entry.row.task, "all")
            ]
            # Sets are resampled independently, so means of draws are draws of means.
            differences_R = np.mean([entry.differences_R for entry in group], axis=0)
            row = _difference(
                float(np.mean([entry.row.baseline_score for entry in group])),
                float(np.mean([entry.row.score for entry in group])),
                interval(differences_R, confidence),
                task=task,
                name="average",
                metric="main",
                system=system,
                queries=sum(entry.row.queries for entry in group),
            )
            rows.append(row)
    return rows


def _too_few(rows: Sequence[Difference], settings: Settings) -> list[str]:
    """Warn if no sampled p-value can be significant even at its smallest, once corrected."""
    smallest = 1 / (1 + settings.resamples)
    corrected = holm([row.p if row.exact and row.p is not None else smallest for row in rows])
    not_exact = [p for row, p in zip(rows, corrected, strict=True) if not row.exact]
    if not not_exact or min(not_exact) <= settings.level:
        return []
    enough = math.ceil(len(rows) / settings.level)
    tried = counted(len(rows), "comparison")
    return [
        f"Too few resamples: with {settings.resamples:,} and {tried}, no sampled p (Holm) can be "
        f"below {min(not_exact):.4f} and get a *. Pass --resamples {enough}."
    ]


def _notes(
    results: Sequence[Result],
    names: Sequence[str],
    rows: Sequence[Difference],
    shared: int,
    settings: Settings,
) -> list[str]:
    """Explain the numbers, and list everything that was not compared."""
    percent, level = f"{100 * settings.confidence:g}%", f"{settings.level:g}"
    notes = [
        f"Scores × 100. Difference: score minus that of {settings.baseline}; relative: difference "
        f"divided by the score of {settings.baseline}.",
        f"Interval: {percent} percentile interval of the difference, paired bootstrap over "
        f"queries, {settings.resamples:,} resamples, seed {settings.seed}.",
        f"p: two-sided paired randomisation test, {settings.resamples:,} swaps, or all of them "
        f"where few queries differ. p (Holm): corrected for {counted(len(rows), 'comparison')}, "
        f"those of this table; *: at most {level}.",
        f"Averages: mean main metric over the {shared} of {len(names)} sets that every system "
        "has, with an interval over queries but no test.",
        *_too_few(rows, settings),
    ]
    for name in names:
        present = [result for result in results if name in result.sets]
        missing = [result.system for result in results if result not in present]
        if missing:
            notes.append(f"{name}: no result of {', '.join(missing)}.")
        if not all(result.sets[name].has_samples for result in present):
            metric = present[0].sets[name].main_metric
            notes.append(f"{name}: not every system has {metric} by query, so it cannot be tested.")
        if settings.metric == "all":
            tested = _shared_metrics(present, name, "all")
            every = dict.fromkeys(key for result in present for key in result.sets[name].scores)
            untested = [metric for metric in every if metric not in tested]
            notes += [f"{name}: not tested: {', '.join(untested)}."] if untested else []
        count = present[0].sets[name].counts["queries"]
        if count < FEW:
            notes.append(f"{name}: only {count} queries, so the interval is too narrow.")
    return notes
