"""Exact search among so few candidates that a query's scores fit in a processor's cache.

Products then cost less than the machinery of `scimult.retrieval.exact`, so this takes one
product, one cutoff and one sort.

Shape legend: Q queries, C candidates, D width, K results per query, G columns of a group,
N groups of columns, S survivors: (query, column) pairs that may be listed, W survivors of a query.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from scimult.products import FEW, multiplies_by_onednn, products
from scimult.progress import progress
from scimult.retrieval.copies import equal_rows
from scimult.retrieval.runs import Ranking, places_of
from scimult.retrieval.selection import GROUP, check_finite
from scimult.retrieval.vectors import Vectors
from scimult.types import FloatArray, IntArray

MOST_CANDIDATES = 1 << 13
"""Beyond this, blocks are faster, and a first pass in bytes or bfloat16 may be."""

# Scores computed at once, and the most that are compared without groups.
_SCORES, _WITHOUT_GROUPS = 1 << 20, 1 << 14
_NONE = np.empty(0, dtype=np.int64)


class FewCandidates:
    """A copy of candidates on a CPU, in the order that a stable sort keeps for equal scores."""

    def __init__(self, vectors: Vectors, order_C: IntArray) -> None:
        block = vectors.block(0, len(order_C))
        self._order_C, self._place_C = order_C, places_of(order_C)
        self._vectors_CD: FloatArray = block.scaled_BD.numpy()[order_C]
        self._bias_C = None if block.bias_B is None else block.bias_B.numpy()[order_C]
        copies = [self._place_C[rows] for rows in equal_rows(vectors)]
        # Columns of copies, and of what each is a copy of.
        self._copies = np.concatenate([_NONE, *(columns[1:] for columns in copies)])
        self._originals = np.repeat(
            np.array([columns[0] for columns in copies], dtype=np.int64),
            [len(columns) - 1 for columns in copies],
        )

    def search(
        self, queries_QD: Tensor, k: int, exclude_Q: IntArray | None, *, show_progress: bool
    ) -> Ranking:
        """Search like `ExactIndex.search`; queries are `Vectors.queries`, ``k`` is at most C."""
        rows_QK = np.full((len(queries_QD), k), -1, dtype=np.int64)
        scores_QK = np.full((len(queries_QD), k), -np.inf, dtype=np.float32)
        step = max(1, _SCORES // len(self._order_C))
        starts = range(0, len(queries_QD) if k else 0, step)
        show = show_progress and len(starts) > 1
        for first in progress(starts, "search", unit="block", show=show):
            some = slice(first, first + step)
            scores_QC = self._scores(queries_QD[some])
            if exclude_Q is not None:
                left_out = np.flatnonzero(exclude_Q[some] >= 0)
                scores_QC[left_out, self._place_C[exclude_Q[some][left_out]]] = -np.inf
            columns_QK, scores_QK[some] = best_columns(scores_QC, k)
            rows_QK[some] = self._order_C[columns_QK]
        rows_QK[np.isneginf(scores_QK)] = -1
        return Ranking(rows_QK, scores_QK)

    def _scores(self, queries_QD: Tensor) -> FloatArray:
        # check_finite reports overflows.
        with np.errstate(all="ignore"):
            # numpy's BLAS is as fast as MKL, but for few queries half as fast as oneDNN.
            scores_QC: FloatArray = (
                products(queries_QD, torch.from_numpy(self._vectors_CD)).numpy()
                if multiplies_by_onednn() and len(queries_QD) > FEW
                else queries_QD.numpy() @ self._vectors_CD.T
            )
        if self._bias_C is not None:
            scores_QC += self._bias_C
        if len(self._copies):
            scores_QC[:, self._copies] = scores_QC[:, self._originals]
        check_finite(torch.from_numpy(scores_QC), "a score")
        return scores_QC


def best_columns(scores_QC: FloatArray, k: int) -> tuple[IntArray, FloatArray]:
    """Return columns and scores of the best ``k`` of each row, best first, each ``(Q, K)``.

    Equal scores come in the order of their columns. ``k`` is at least 1 and at most C.
    """
    at_S = np.flatnonzero(scores_QC >= _cutoffs(scores_QC, k)[:, None])
    columns_QW, scores_QW = _by_row(at_S, scores_QC, k)
    best_QK = np.argsort(-scores_QW, axis=1, kind="stable")[:, :k]
    best_QK += np.arange(0, scores_QW.size, scores_QW.shape[1])[:, None]
    return columns_QW.reshape(-1)[best_QK], scores_QW.reshape(-1)[best_QK]


def _by_row(at_S: IntArray, scores_QC: FloatArray, k: int) -> tuple[IntArray, FloatArray]:
    """Return columns and scores of each row's survivors, padded with -inf, each ``(Q, W)``.

    Each row has at least ``k`` survivors.
    """
    queries, count = scores_QC.shape
    scores_S = scores_QC.reshape(-1)[at_S]
    if len(at_S) == queries * k:
        return (at_S % count).reshape(queries, k), scores_S.reshape(queries, k)
    rows_S, columns_S = np.divmod(at_S, count)
    widths_Q = np.bincount(rows_S, minlength=queries)
    shape = queries, int(widths_Q.max())
    at_S = (
        np.arange(len(at_S))
        + (shape[1] * np.arange(queries) - widths_Q.cumsum() + widths_Q)[rows_S]
    )
    columns_QW, scores_QW = np.zeros(shape, np.int64), np.full(shape, -np.inf, np.float32)
    columns_QW.reshape(-1)[at_S], scores_QW.reshape(-1)[at_S] = columns_S, scores_S
    return columns_QW, scores_QW


def _cutoffs(scores_QC: FloatArray, k: int) -> FloatArray:
    """Return scores that at least ``k`` numbers of a row reach, and not many more.

    If ``k`` groups reach the K-th largest peak, so do ``k`` scores.
    """
    queries, count = scores_QC.shape
    group = GROUP if queries * count > _WITHOUT_GROUPS else 1
    while group > 1 and count < 2 * k * group:
        group //= 2
    groups = count // group
    peaks_QN = scores_QC
    if group > 1:
        peaks_QN = scores_QC[:, : group * groups].reshape(queries, group, groups).max(axis=1)
    cutoff_Q: FloatArray = np.partition(peaks_QN, groups - k, axis=1)[:, groups - k]
    return cutoff_Q
