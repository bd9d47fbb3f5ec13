"""Table columns: systems' scores on a set, averaged over sets or suites, with their covariance.

Shape legend: N systems, S sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from scimult.evaluation.comparison import paired_samples
from scimult.evaluation.metrics import Scores
from scimult.evaluation.report import check_comparable
from scimult.evaluation.results import Result
from scimult.evaluation.seeds import query_covariance

AVERAGE, EVERYTHING = "average", "all"


@dataclass(frozen=True)
class Column:
    """Scores by system, and each set's share of their covariance over its queries.

    ``covariance_SNN`` is None where it is unknown, ``queries_S`` are the sets' numbers of queries.
    """

    task: str
    name: str
    metric: str
    keys: list[str]
    scores_N: Scores
    covariance_SNN: Scores | None
    queries_S: list[int]

    def of(self, keys: Sequence[str]) -> Column:
        """Return the column of the given systems only."""
        indices = indices_of(self, keys)
        covariance_SNN = self.covariance_SNN
        if covariance_SNN is not None:
            covariance_SNN = covariance_SNN[:, indices][:, :, indices]
        return replace(
            self, keys=list(keys), scores_N=self.scores_N[indices], covariance_SNN=covariance_SNN
        )


def columns_of(out: Path, results: Mapping[str, Result], names: Sequence[str]) -> list[Column]:
    """Read the columns of a folder of results: averages first, then the sets in the given order.

    Raises
    ------
    DataError
        If results are damaged, of other data, or lack per-query scores.
    """
    first = next(iter(results.values()))
    check_comparable(results.values(), first.suite["name"], {})
    columns = [
        _column(out, name, {key: r for key, r in results.items() if name in r.sets})
        for name in names
        if any(name in result.sets for result in results.values())
    ]
    return [*_averages([c for c in columns if len(c.keys) == len(results)]), *columns]


def across_suites(averages: Mapping[str, Column]) -> list[Column]:
    """Return the mean of the suites' averages, each suite counting the same, and each average.

    Only systems that every suite has enter. Queries of different suites count as independent.
    """
    keys = [
        key
        for key in next(iter(averages.values())).keys
        if all(key in column.keys for column in averages.values())
    ]
    if not keys:
        return []
    columns = [
        replace(column.of(keys), task=suite, name=AVERAGE) for suite, column in averages.items()
    ]
    return [_mean_of(columns, EVERYTHING), *columns]


def _column(out: Path, name: str, results: Mapping[str, Result]) -> Column:
    entries = [result.sets[name] for result in results.values()]
    metric = entries[0].main_metric
    covariance_1NN = None
    queries = entries[0].counts["queries"]
    if queries > 1 and all(entry.has_samples for entry in entries):
        samples = paired_samples(out, list(results.values()), name, [metric])
        covariance_1NN = query_covariance(samples)[None]
    scores_N = np.array([entry.scores[metric] for entry in entries])
    where = (entries[0].task, name, metric, list(results))
    return Column(*where, scores_N, covariance_1NN, [queries])


def _averages(columns: Sequence[Column]) -> list[Column]:
    """Return the mean of all sets, and of each task with several but not all of them."""
    groups = {EVERYTHING: list(columns)} if columns else {}
    for task in dict.fromkeys(column.task for column in columns):
        members = [column for column in columns if column.task == task]
        if 1 < len(members) < len(columns):
            groups[task] = members
    return [_mean_of(members, task) for task, members in groups.items()]


def _mean_of(columns: Sequence[Column], task: str) -> Column:
    known = [c.covariance_SNN for c in columns if c.covariance_SNN is not None]
    covariance_SNN = (
        np.concatenate(known) / len(columns) ** 2 if len(known) == len(columns) else None
    )
    queries_S = [queries for column in columns for queries in column.queries_S]
    scores_N = np.mean([column.scores_N for column in columns], axis=0)
    return Column(task, AVERAGE, "main", columns[0].keys, scores_N, covariance_SNN, queries_S)


def indices_of(column: Column, keys: Sequence[str]) -> list[int]:
    """Return the column's indices of the systems that it has."""
    return [column.keys.index(key) for key in keys if key in column.keys]
