"""Exact search for so few queries, or among so few candidates, that one product scores all.

Products then cost less than the machinery of `scimult.retrieval.exact`, so this takes one
product, one cutoff and one sort.

Shape legend: Q queries, C candidates, D width, K results per query, G columns of a group,
N groups of columns, S survivors: (query, column) pairs that may be listed, W survivors of a query.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from scimult.products import (
    FEW,
    FEW_FOR_AVX2,
    linear_by_onednn,
    packed,
    packs,
    packs_for_few,
    products,
)
from scimult.retrieval.block_scores import BlockScores
from scimult.retrieval.copies import equal_rows
from scimult.retrieval.runs import Ranking
from scimult.retrieval.selection import GROUP, check_finite, check_listed
from scimult.retrieval.vectors import Vectors
from scimult.types import FloatArray, IntArray

MOST_CANDIDATES = 1 << 13
"""Beyond this, blocks are faster for more than a few queries, and a first pass may be."""

MOST_PACKED = 1 << 14
"""The same with candidates laid out for oneDNN."""

# Numbers of more than `MOST_CANDIDATES`: 128 MiB, twice.
_MOST_NUMBERS = 1 << 25
# Scores computed at once, and the most that are compared without groups.
_SCORES, _WITHOUT_GROUPS = 1 << 21, 1 << 12
# The most scores of a few queries: 32 MiB, and a copy in order.
_MOST_SCORES = 1 << 23
_NONE = np.empty(0, dtype=np.int64)


class OneProduct(ABC):
    """Candidates in the order that a stable sort keeps for equal scores."""

    def __init__(self, order_C: IntArray, place_C: IntArray) -> None:
        self._order_C, self._place_C = order_C, place_C

    def search(self, queries_QD: Tensor, k: int, exclude_Q: IntArray | None) -> Ranking:
        """Search like `ExactIndex.search`; queries are `Vectors.queries`, ``k`` is at most C."""
        ranking = Ranking.empty(len(queries_QD), k)
        rows_QK, scores_QK = ranking.rows_QK, ranking.scores_QK
        step = max(FEW, _SCORES // len(self._order_C))
        for first in range(0, len(queries_QD) if k else 0, step):
            some = slice(first, first + step)
            with np.errstate(all="ignore"):
                scores_QC = self._scores(queries_QD[some])
            scores_QC = checked_scores(scores_QC)
            if exclude_Q is not None:
                left_out = np.flatnonzero(exclude_Q[some] >= 0)
                scores_QC[left_out, self._place_C[exclude_Q[some][left_out]]] = -np.inf
            columns_QK, scores_QK[some] = best_columns(scores_QC, k)
            rows_QK[some] = self._order_C[columns_QK]
        if len(rows_QK) and k and scores_QK[:, -1].min() == -np.inf:
            rows_QK[np.isneginf(scores_QK)] = -1
            excluded_Q = np.full(len(rows_QK), -1) if exclude_Q is None else exclude_Q
            check_listed(rows_QK, len(self._order_C), excluded_Q)
        return ranking

    @abstractmethod
    def _scores(self, queries_QD: Tensor) -> FloatArray:
        """Return scores of candidates in order, shape ``(Q, C)``, contiguous."""


class FewCandidates(OneProduct):
    """A copy of candidates on a CPU, for any number of queries.

    Attributes
    ----------
    vectors_CD, bias_C : FloatArray
        The vectors in order, and what is added to their products; None for nothing.
    """

    def __init__(self, vectors: Vectors, order_C: IntArray, place_C: IntArray) -> None:
        super().__init__(order_C, place_C)
        block = vectors.block(0, len(order_C))
        self.vectors_CD: FloatArray = block.scaled_BD.numpy()[order_C]
        self.bias_C = None if block.bias_B is None else block.bias_B.numpy()[order_C]
        copies = [self._place_C[rows] for rows in equal_rows(vectors)]
        # Columns of copies, and of what each is a copy of.
        self._copies = np.concatenate([_NONE, *(columns[1:] for columns in copies)])
        self._originals = np.repeat(
            np.array([columns[0] for columns in copies], dtype=np.int64),
            [len(columns) - 1 for columns in copies],
        )

    @staticmethod
    def suits(vectors: Vectors) -> bool:
        """Return whether these are few candidates."""
        count, width = vectors.shape
        # As they are here: in float32 on a CPU.
        more = packs(torch.empty(0)) and count * width <= _MOST_NUMBERS
        return bool(count <= (MOST_PACKED if more else MOST_CANDIDATES))

    @cached_property
    def packed_CD(self) -> Tensor | None:
        """The vectors laid out for oneDNN, for more than a few queries; None where it is slower."""
        candidates_CD = torch.from_numpy(self.vectors_CD)
        return packed(candidates_CD) if packs_for_few() else None

    def _scores(self, queries_QD: Tensor) -> FloatArray:
        scores_QC = self._products(queries_QD)
        if self.bias_C is not None:
            scores_QC += self.bias_C
        if len(self._copies):
            scores_QC[:, self._copies] = scores_QC[:, self._originals]
        return scores_QC

    def _products(self, queries_QD: Tensor) -> FloatArray:
        """Multiply by what is fastest for this number of queries."""
        if len(queries_QD) <= FEW:
            few_CQ = products(torch.from_numpy(self.vectors_CD), queries_QD).numpy()
            return np.ascontiguousarray(few_CQ.T)
        fast = packs(queries_QD) or len(queries_QD) <= FEW_FOR_AVX2
        if fast and self.packed_CD is not None:
            many_QC: FloatArray = linear_by_onednn(queries_QD, self.packed_CD).numpy()
            return many_QC
        usual_QC: FloatArray = queries_QD.numpy() @ self.vectors_CD.T
        return usual_QC


class FewQueries(OneProduct):
    """Any number of candidates on a CPU, without a copy, for up to ``FEW`` queries."""

    def __init__(
        self, vectors: Vectors, order_C: IntArray, place_C: IntArray, block_rows: int
    ) -> None:
        super().__init__(order_C, place_C)
        self._vectors, self._block_rows = vectors, block_rows

    @staticmethod
    def suits(queries: int, candidates: int) -> bool:
        """Return whether these are few queries, whose scores take little memory."""
        return queries <= FEW and queries * candidates <= _MOST_SCORES

    def _scores(self, queries_QD: Tensor) -> FloatArray:
        scores_QC = np.empty((len(queries_QD), len(self._order_C)), dtype=np.float32)
        buffers = BlockScores(0, queries_QD.device)
        for first in range(0, scores_QC.shape[1], self._block_rows):
            last = min(first + self._block_rows, scores_QC.shape[1])
            block_QB = buffers.of(queries_QD, self._vectors.block(first, last))
            scores_QC[:, first:last] = block_QB[:, : last - first].numpy()
        return scores_QC.take(self._order_C, axis=1)


def checked_scores(scores_QC: FloatArray) -> FloatArray:
    """Return the scores; refuse overflows, but for -inf, which is refused where it is listed."""
    with np.errstate(all="ignore"):
        if not np.isfinite(scores_QC.sum()):
            check_finite(torch.from_numpy(scores_QC[~np.isneginf(scores_QC)]), "a score")
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
