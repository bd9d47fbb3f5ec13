"""Recall as a function of the list length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scimult.evaluation.metrics import Measure, compute, depth, judge, parse
from scimult.evaluation.protocols import MACRO_F1
from scimult.evaluation.reporting.sources import ScoredSet
from scimult.evaluation.results import Result

DEPTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


@dataclass(frozen=True)
class Curve:
    """Recall of one system at each list length."""

    system: str
    recalls: list[float]


@dataclass(frozen=True)
class RecallCurves:
    """Curves of all systems on one data set, at the same list lengths."""

    name: str
    depths: list[int]
    curves: list[Curve]
    source: str


def recall_curves(scored: ScoredSet, results: Sequence[Result]) -> RecallCurves | None:
    """Return curves from ranked lists if every system has them, else from recorded scores.

    None if there are neither lists nor recall at two cut-offs.
    """
    sets = {result.system: result.sets[scored.name] for result in results}
    shared = set.intersection(*(set(entry.scores) for entry in sets.values()))
    if scored.runs.keys() == scored.tables.keys() and MACRO_F1 not in shared:
        return _from_runs(scored, depth([name.partition("+")[0] for name in shared]))
    depths = sorted(k for name, k in map(_recall, shared) if name and k)
    if len(depths) < 2:
        return None
    curves = [
        Curve(system, [entry.scores[f"recall@{k}"] for k in depths])
        for system, entry in sets.items()
    ]
    return RecallCurves(scored.name, depths, curves, "scores at the cut-offs of the suite")


def _from_runs(scored: ScoredSet, cut: int) -> RecallCurves | None:
    """Return curves up to ``cut``, the length of the lists, or a shorter list's end."""
    assert scored.dataset is not None, "lists are read with the data"
    longest = min(cut, max(run.rows_QK.shape[1] for run in scored.runs.values()))
    depths = [k for k in DEPTHS if k <= longest]
    if len(depths) < 2:
        return None
    judged = {system: judge(run, scored.dataset.qrels) for system, run in scored.runs.items()}
    weights_Q = scored.weights_Q
    curves = [
        Curve(system, [float(np.mean(weights_Q * compute(f"recall@{k}", lists))) for k in depths])
        for system, lists in judged.items()
    ]
    return RecallCurves(scored.name, depths, curves, "ranked lists")


def _recall(name: str) -> tuple[bool, int | None]:
    """Return whether a metric is recall on the plain list, and its cut-off."""
    if "+" in name:
        return False, None
    measure = parse(name)
    return measure == Measure("recall", k=measure.k), measure.k
