"""Ranking metrics as numpy functions over all queries at once, and macro F1.

Definitions are trec_eval's: binary metrics take grades of 1 and above as relevant, nDCG has
linear gain and an ideal list over all judgments of the query (Järvelin and Kekäläinen 2002), and
a query without results or without a relevant judgment scores zero. Recall@k is hits divided by
all gold labels (SciMult, section 4.3). The order, ties included, is decided beforehand: see
`scimult.retrieval.runs`.

A metric is written ``NAME``, ``NAME@10`` or, for candidate lists, ``NAME%20``: the first 20
percent of each query's list. ``NAME(rel=2)`` takes grades of 2 and above as relevant, and
``NAME(rel=max)`` only the query's highest grade.

Shape legend: Q queries, K listed results, I judgments in the ideal list, N predictions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from scimult.errors import ConfigError
from scimult.evaluation.protocols import OWN_METRICS
from scimult.registry import Registry
from scimult.retrieval.runs import Qrels, Ranking
from scimult.types import BoolArray, IntArray

Scores = NDArray[np.float64]

FULL_DEPTH = 1000
"""List length for metrics without a cut-off, the usual one of trec_eval runs."""


@dataclass(frozen=True)
class Judged:
    """Grades of ranked lists and the ideal lists, as metrics need them.

    ``grades_QK`` is 0 where a candidate is unjudged or padding, ``listed_Q`` the length of each
    list, ``ideal_QI`` each query's positive grades, descending, padded with 0.
    """

    grades_QK: IntArray
    listed_Q: IntArray
    ideal_QI: IntArray
    relevant_Q: IntArray

    def with_relevance(self, least: int | Literal["max"]) -> Judged:
        """Return the same lists with grades below ``least`` set to 0."""
        best_Q = self.ideal_QI.max(axis=1, initial=1)
        least_Q1 = (best_Q if least == "max" else np.full_like(best_Q, least))[:, None]
        ideal_QI = np.where(self.ideal_QI >= least_Q1, self.ideal_QI, 0)
        grades_QK = np.where(self.grades_QK >= least_Q1, self.grades_QK, 0)
        return Judged(grades_QK, self.listed_Q, ideal_QI, (ideal_QI > 0).sum(axis=1))


@dataclass(frozen=True)
class Measure:
    """A parsed metric name: a key of ``METRICS`` or a protocol's own metric, and how it is cut.

    The cut-off is ``k`` or ``percent`` of each list, or none; ``relevance`` is the lowest relevant
    grade.
    """

    metric: str
    k: int | None = None
    percent: int | None = None
    relevance: int | Literal["max"] = 1

    def cut_Q(self, judged: Judged) -> IntArray:
        """Return each query's cut-off."""
        if self.percent is not None:
            return judged.listed_Q * self.percent // 100
        return np.full(len(judged.listed_Q), self.k or _WHOLE, dtype=np.int64)


class Metric(Protocol):
    """A function of judged lists and each query's cut-off."""

    def __call__(self, judged: Judged, cut_Q: IntArray) -> Scores:
        """Return one score per query, shape ``(Q,)``."""


METRICS: Registry[Metric] = Registry("metric")
_WHOLE = np.iinfo(np.int64).max
GRADED = ("ndcg", "ndcg_csfcube", "ndcg_doris_mae")
_NAME = re.compile(r"(\w+)(?:\(rel=([^)]*)\))?(?:([@%])(.*))?", re.DOTALL)
_GRADE = re.compile(r"max|\d*[1-9]\d*")


def judge(ranking: Ranking, qrels: Qrels) -> Judged:
    """Look up the grades of ranked lists, and build the ideal lists."""
    owners, grades = qrels.rows.owners, np.maximum(qrels.grades.values, 0)
    order = np.lexsort((-grades, owners))
    columns = np.arange(len(grades)) - np.repeat(qrels.rows.offsets[:-1], qrels.rows.lengths)
    ideal_QI = np.zeros((len(qrels), int(qrels.rows.lengths.max(initial=0))), dtype=np.int64)
    ideal_QI[owners[order], columns] = grades[order]
    grades_QK = np.maximum(qrels.grades_of(ranking.rows_QK), 0)
    return Judged(grades_QK, (ranking.rows_QK >= 0).sum(axis=1), ideal_QI, qrels.relevant_Q)


def compute(name: str, judged: Judged) -> Scores:
    """Return the score of every query under a metric such as ``recall@20`` or ``ndcg``.

    Raises
    ------
    ConfigError
        If the name has a malformed cut-off or grade.
    UnknownNameError
        If there is no such metric.
    """
    measure = parse(name)
    if measure.relevance != 1:
        judged = judged.with_relevance(measure.relevance)
    return METRICS[measure.metric](judged, measure.cut_Q(judged))


def parse(name: str) -> Measure:
    """Parse a metric name such as ``precision(rel=2)@20``.

    Raises
    ------
    ConfigError
        If the cut-off or the grade is malformed, or the metric takes no grade.
    UnknownNameError
        If there is no such metric.
    """
    if name in OWN_METRICS:
        return Measure(name)
    match = _NAME.fullmatch(name)
    if match is None:
        raise ConfigError("not a metric name", value=name, fix="write recall(rel=2)@20")
    metric, grade, sign, cut = match.groups()
    METRICS[metric]
    if sign and not (cut.isdecimal() and 0 < int(cut) <= (100 if sign == "%" else math.inf)):
        fix = "write recall@20, or recall%20 for the first 20 percent of a candidate list"
        raise ConfigError("a cut-off must be a positive integer", value=name, fix=fix)
    if grade is not None and (metric in GRADED or not _GRADE.fullmatch(grade)):
        fix = f"write recall(rel=2) or recall(rel=max); {', '.join(GRADED)} use all grades"
        problem = "the grade of a binary metric must be a positive integer"
        raise ConfigError(problem, value=name, fix=fix)
    return Measure(
        metric,
        k=int(cut) if sign == "@" else None,
        percent=int(cut) if sign == "%" else None,
        relevance="max" if grade == "max" else int(grade or 1),
    )


def depth(names: Sequence[str]) -> int:
    """Return the list length these metrics need."""
    return max(parse(name).k or FULL_DEPTH for name in names)


@METRICS.register("recall")
def recall(judged: Judged, cut_Q: IntArray) -> Scores:
    """Return the share of relevant candidates that are among the first results."""
    return _hits(judged, cut_Q) / np.maximum(judged.relevant_Q, 1)


@METRICS.register("precision")
def precision(judged: Judged, cut_Q: IntArray) -> Scores:
    """Return hits among the first ``k`` results divided by ``k``, or by the whole list's length."""
    return _hits(judged, cut_Q) / _sizes(judged, cut_Q)


@METRICS.register("f1")
def f1(judged: Judged, cut_Q: IntArray) -> Scores:
    """Return the harmonic mean of precision and recall at the cut-off."""
    return 2 * _hits(judged, cut_Q) / (_sizes(judged, cut_Q) + judged.relevant_Q)


@METRICS.register("success")
def success(judged: Judged, cut_Q: IntArray) -> Scores:
    """Return 1 where a relevant candidate is among the first results, else 0."""
    return (_hits(judged, cut_Q) > 0).astype(np.float64)


@METRICS.register("r_precision")
def r_precision(judged: Judged, cut_Q: IntArray) -> Scores:
    """Return the precision at R, the number of relevant candidates."""
    cut_Q = np.minimum(cut_Q, judged.relevant_Q)
    return _hits(judged, cut_Q) / np.maximum(judged.relevant_Q, 1)


@METRICS.register("precision_at_last")
def precision_at_last(judged: Judged, cut_Q: IntArray) -> Scores:
    """Return the precision at the last relevant result (CSFCube's ``r_precision``)."""
    relevant_QK = _first(judged.grades_QK, cut_Q) > 0
    last_Q = (relevant_QK * _ranks(relevant_QK)).max(axis=1, initial=1)
    shares_Q: Scores = relevant_QK.sum(axis=1) / last_Q
    return shares_Q


@METRICS.register("map")
def average_precision(judged: Judged, cut_Q: IntArray) -> Scores:
    """Return the mean, over relevant candidates, of the precision at their rank."""
    relevant_QK = _first(judged.grades_QK, cut_Q) > 0
    precisions_QK = relevant_QK.cumsum(axis=1) / _ranks(relevant_QK)
    sums_Q: Scores = (precisions_QK * relevant_QK).sum(axis=1)
    return sums_Q / np.maximum(judged.relevant_Q, 1)


@METRICS.register("mrr")
def reciprocal_rank(judged: Judged, cut_Q: IntArray) -> Scores:
    """Return 1 / rank of the first relevant result, 0 if none is listed."""
    relevant_QK = _first(judged.grades_QK, cut_Q) > 0
    best_Q: Scores = (relevant_QK / _ranks(relevant_QK)).max(axis=1, initial=0.0)
    return best_Q


@METRICS.register("ndcg")
def ndcg(judged: Judged, cut_Q: IntArray) -> Scores:
    """Return the discounted gain ``Σ grade / log2(rank + 1)`` over the ideal order's."""
    return _share_of_ideal(judged, cut_Q, lambda ranks_K: np.log2(ranks_K + 1))


@METRICS.register("ndcg_csfcube")
def ndcg_csfcube(judged: Judged, cut_Q: IntArray) -> Scores:
    """Return nDCG as in CSFCube's scripts: ``Σ grade / max(1, log2 rank)``."""
    return _share_of_ideal(judged, cut_Q, lambda ranks_K: np.maximum(1, np.log2(ranks_K)))


@METRICS.register("ndcg_doris_mae")
def ndcg_doris_mae(judged: Judged, cut_Q: IntArray) -> Scores:
    """Return nDCG as in DORIS-MAE's ``ndcg_exp``: gain ``2**grade``, so 1 for grade 0."""
    longest = min(int(cut_Q.max(initial=0)), judged.grades_QK.shape[1])
    within_QK = np.arange(longest) < np.minimum(cut_Q, judged.listed_Q)[:, None]
    discounts_K = np.log2(np.arange(longest) + 2)
    gains: list[Scores] = []
    for grades_QK in (judged.grades_QK, judged.ideal_QI):
        padded_QK = np.zeros((len(cut_Q), longest))
        top_QK = grades_QK[:, :longest]
        padded_QK[:, : top_QK.shape[1]] = top_QK
        gains.append((2.0**padded_QK / discounts_K * within_QK).sum(axis=1))
    gain_Q, ideal_Q = gains
    return np.divide(gain_Q, ideal_Q, out=np.zeros_like(gain_Q), where=ideal_Q > 0)


def _first(values_QK: IntArray, cut_Q: IntArray) -> IntArray:
    """Return the first ``cut_Q`` values of each row, padded with 0."""
    values_QK = values_QK[:, : int(cut_Q.max(initial=0))]
    if (cut_Q >= values_QK.shape[1]).all():
        return values_QK
    return np.where(np.arange(values_QK.shape[1]) < cut_Q[:, None], values_QK, 0)


def _sizes(judged: Judged, cut_Q: IntArray) -> IntArray:
    """Return the denominators of precision: the cut-off, however short the list is."""
    return np.maximum(np.where(cut_Q == _WHOLE, judged.listed_Q, cut_Q), 1)


def _hits(judged: Judged, cut_Q: IntArray) -> Scores:
    hits_Q: Scores = (_first(judged.grades_QK, cut_Q) > 0).sum(axis=1).astype(np.float64)
    return hits_Q


def _ranks(values_QK: BoolArray | IntArray) -> IntArray:
    return np.arange(1, values_QK.shape[1] + 1)


def _share_of_ideal(
    judged: Judged, cut_Q: IntArray, discount: Callable[[IntArray], Scores]
) -> Scores:
    """Return the discounted gain of each list over the ideal order's."""

    def gain(grades_QK: IntArray) -> Scores:
        top_QK = _first(grades_QK, cut_Q)
        return top_QK.astype(np.float64) @ (1.0 / discount(_ranks(top_QK)))

    gain_Q, ideal_Q = gain(judged.grades_QK), gain(judged.ideal_QI)
    return np.divide(gain_Q, ideal_Q, out=np.zeros_like(gain_Q), where=ideal_Q > 0)


def macro_f1(gold_N: IntArray, predicted_N: IntArray) -> float:
    """Return the unweighted mean of per-class F1, over classes that occur in either array.

    A prediction of -1 (no class) counts against the gold class and is not a class itself.
    """
    classes = int(max(gold_N.max(initial=-1), predicted_N.max(initial=-1))) + 1
    hits = np.bincount(gold_N[gold_N == predicted_N], minlength=classes)
    gold = np.bincount(gold_N, minlength=classes)
    predicted = np.bincount(predicted_N[predicted_N >= 0], minlength=classes)
    occurs = gold + predicted > 0
    return float((2 * hits[occurs] / (gold + predicted)[occurs]).mean()) if occurs.any() else 0.0
