"""Ranking metrics as numpy functions over all queries at once, and macro F1.

Definitions are trec_eval's: binary measures take grades of 1 and above as relevant, nDCG has
linear gain and an ideal list over all judgments of the query (Järvelin and Kekäläinen 2002),
a query without results scores zero, and so does one without a relevant judgment. Recall@k is
hits divided by all gold labels (SciMult, section 4.1). Order, ties included, is decided before:
see :mod:`scimult.retrieval.runs`.

Shape legend: Q queries, K listed results, I judgments in the ideal list, N predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scimult.errors import ConfigError
from scimult.evaluation.protocols import OWN_METRICS
from scimult.registry import Registry
from scimult.retrieval.runs import Qrels, Ranking
from scimult.types import IntArray

Scores = NDArray[np.float64]

FULL_DEPTH = 1000
"""Length of lists for metrics without a cut-off, as trec_eval runs usually have."""


@dataclass(frozen=True)
class Judged:
    """What metrics need to know about ranked lists.

    Attributes
    ----------
    grades_QK : IntArray
        Grade of each listed candidate, 0 where it is unjudged or padding.
    ideal_QI : IntArray
        Positive grades of each query's judgments, descending, padded with 0.
    relevant_Q : IntArray
        Number of relevant judgments of each query.
    """

    grades_QK: IntArray
    ideal_QI: IntArray
    relevant_Q: IntArray


class Metric(Protocol):
    """A function of judged lists and a cut-off (None for the whole list)."""

    def __call__(self, judged: Judged, k: int | None) -> Scores:
        """Return one score per query, shape ``(Q,)``."""
        ...


METRICS: Registry[Metric] = Registry("metric")


def judge(ranking: Ranking, qrels: Qrels) -> Judged:
    """Look up the grades of ranked lists and the ideal lists to compare them with."""
    owners, grades = qrels.rows.owners, np.maximum(qrels.grades.values, 0)
    order = np.lexsort((-grades, owners))
    columns = np.arange(len(grades)) - np.repeat(qrels.rows.offsets[:-1], qrels.rows.lengths)
    ideal_QI = np.zeros((len(qrels), int(qrels.rows.lengths.max(initial=0))), dtype=np.int64)
    ideal_QI[owners[order], columns] = grades[order]
    grades_QK = np.maximum(qrels.grades_of(ranking.rows_QK), 0)
    return Judged(grades_QK, ideal_QI, qrels.relevant_Q)


def compute(name: str, judged: Judged) -> Scores:
    """Return the score of every query under a metric such as ``recall@20`` or ``ndcg``.

    Raises
    ------
    ConfigError
        If the name has a malformed cut-off.
    UnknownNameError
        If there is no such metric.
    """
    metric, cutoff = parse(name)
    return METRICS[metric](judged, cutoff)


def parse(name: str) -> tuple[str, int | None]:
    """Split ``recall@20`` into ``("recall", 20)`` and ``map`` into ``("map", None)``.

    Raises
    ------
    ConfigError
        If the cut-off is not a positive integer.
    UnknownNameError
        If there is no such metric.
    """
    if name in OWN_METRICS:
        return name, None
    metric, at, cutoff = name.partition("@")
    METRICS[metric]
    if at and not (cutoff.isdecimal() and int(cutoff) > 0):
        raise ConfigError("a cut-off is a positive integer", value=name, fix="write recall@20")
    return metric, int(cutoff) if at else None


def depth(names: Sequence[str]) -> int:
    """Return how long ranked lists must be for these metrics."""
    return max(parse(name)[1] or FULL_DEPTH for name in names)


@METRICS.register("recall")
def recall(judged: Judged, k: int | None) -> Scores:
    """Return the share of a query's relevant candidates among its first ``k`` results."""
    hits_Q = (judged.grades_QK[:, :k] > 0).sum(axis=1)
    shares_Q: Scores = hits_Q / np.maximum(judged.relevant_Q, 1)
    return shares_Q


@METRICS.register("precision")
def precision(judged: Judged, k: int | None) -> Scores:
    """Return hits among the first ``k`` results divided by ``k``, however short the list."""
    hits_Q = (judged.grades_QK[:, :k] > 0).sum(axis=1)
    shares_Q: Scores = hits_Q / (k or max(judged.grades_QK.shape[1], 1))
    return shares_Q


@METRICS.register("map")
def average_precision(judged: Judged, k: int | None) -> Scores:
    """Return the mean, over relevant candidates, of the precision at their rank."""
    relevant_QK = judged.grades_QK[:, :k] > 0
    ranks_K = np.arange(1, relevant_QK.shape[1] + 1)
    precisions_QK = relevant_QK.cumsum(axis=1) / ranks_K
    sums_Q: Scores = (precisions_QK * relevant_QK).sum(axis=1)
    return sums_Q / np.maximum(judged.relevant_Q, 1)


@METRICS.register("mrr")
def reciprocal_rank(judged: Judged, k: int | None) -> Scores:
    """Return 1 / rank of the first relevant result, 0 if none is listed."""
    relevant_QK = judged.grades_QK[:, :k] > 0
    ranks_K = np.arange(1, relevant_QK.shape[1] + 1)
    best_Q: Scores = (relevant_QK / ranks_K).max(axis=1, initial=0.0)
    return best_Q


@METRICS.register("ndcg")
def ndcg(judged: Judged, k: int | None) -> Scores:
    """Return discounted gain ``Σ grade / log2(rank + 1)`` over that of the ideal order."""
    ideal_Q = _discounted_gain(judged.ideal_QI[:, :k])
    gain_Q = _discounted_gain(judged.grades_QK[:, :k])
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


def _discounted_gain(grades_QK: IntArray) -> Scores:
    discounts_K = 1.0 / np.log2(np.arange(2, grades_QK.shape[1] + 2))
    return grades_QK.astype(np.float64) @ discounts_K
