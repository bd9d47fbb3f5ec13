"""Exact search for a few queries on a GPU, where the host's operations would take the longest.

One float32 product scores all candidates; of those that its rounding cannot rule out, each gets a
product of its own. All that the host needs to decide comes back in one copy.

Shape legend: Q queries, C candidates, D width, K results per query, W candidates kept of a query.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from scimult.hardware import full_precision_products
from scimult.retrieval.block_scores import BlockScores, whole_groups
from scimult.retrieval.rounded import SingleVectors, lengths_of
from scimult.retrieval.runs import Ranking
from scimult.retrieval.selection import best_of_groups, check_finite, check_listed, leave_out
from scimult.retrieval.vectors import Vectors
from scimult.types import FloatArray, IntArray

FEW_RESULTS = 1 << 13
"""The host orders as many before a device has started all operations."""

# More queries are multiplied faster in bfloat16.
_QUERIES = 64
# A quarter of a gigabyte of scores.
_SCORES = 1 << 26
# Kept beyond K, so that equal scores at the end of a list rarely need another search.
_SPARE = 60


class FewOnDevice:
    """Candidates that a GPU keeps, in float32.

    Parameters
    ----------
    vectors : Vectors
        The candidates.
    place_C : IntArray
        Positions of candidates among equal scores.
    """

    def __init__(self, vectors: Vectors, place_C: IntArray) -> None:
        self._vectors, self._place_C = vectors, place_C

    def search(self, queries_QD: Tensor, k: int, exclude_Q: IntArray | None) -> Ranking | None:
        """Search like `ExactIndex.search`; queries are `Vectors.queries`, ``k`` is at most C.

        None if there are too many queries, results or scores, or if more candidates are too close
        to the last result to tell apart than are kept.
        """
        queries, count = len(queries_QD), len(self._place_C)
        many = queries > _QUERIES or queries * k > FEW_RESULTS or queries * count > _SCORES
        if many or not queries or not k:
            return None
        rough_QW, exact_QW, rows_QW, lengths_Q = self._scored(queries_QD, k, exclude_Q)
        check_finite(torch.from_numpy(rough_QW[:, 0][~np.isneginf(rough_QW[:, 0])]), "a score")
        error_Q = self._single.error_at(torch.from_numpy(lengths_Q)).numpy()
        return settled(rough_QW, exact_QW, rows_QW, error_Q, self._place_C, k, exclude_Q)

    @cached_property
    def _single(self) -> SingleVectors:
        vectors_CD = self._vectors.block(0, len(self._place_C)).vectors_BD
        return SingleVectors(self._vectors, float(lengths_of(vectors_CD).max()))

    def _scored(
        self, queries_QD: Tensor, k: int, exclude_Q: IntArray | None
    ) -> tuple[FloatArray, FloatArray, IntArray, FloatArray]:
        """Return scores of one product and of each pair's own, rows, and lengths of queries."""
        queries, count, device = len(queries_QD), len(self._place_C), self._vectors.device
        with full_precision_products(device):
            scores = BlockScores(queries * whole_groups(count), device, on_host=False)
            scores_QC = scores.of(queries_QD, self._vectors.block(0, count))
        if exclude_Q is not None:
            leave_out(scores_QC, exclude_Q)
        rough_QW, rows_QW = best_of_groups(scores_QC, min(k + _SPARE, count))
        width = rough_QW.shape[1]
        # Columns beyond the last candidate hold -inf.
        rows_P = rows_QW.clamp_(max=count - 1).flatten()
        query_P = torch.arange(queries * width, device=device) // width
        exact_P = self._vectors.products_of(queries_QD, query_P, rows_P)
        bits_QW = rows_QW.to(torch.int32).view(torch.float32)
        parts = rough_QW, exact_P.view(queries, width), bits_QW, lengths_of(queries_QD)[:, None]
        columns = torch.cat(parts, dim=1).cpu().numpy()
        rough, exact, rows, lengths = np.split(columns, [width, 2 * width, 3 * width], axis=1)
        return rough, exact, np.ascontiguousarray(rows).view(np.int32), lengths[:, 0]


def settled(
    rough_QW: FloatArray,
    exact_QW: FloatArray,
    rows_QW: IntArray,
    error_Q: FloatArray,
    place_C: IntArray,
    k: int,
    exclude_Q: IntArray | None,
) -> Ranking | None:
    """Return the best ``k`` by exact scores of those that are best by rough scores.

    None if a candidate that was not kept may be among them, or a rough score is off beyond
    ``error_Q``. Left out candidates have a rough score of -inf. ``exact_QW`` is overwritten.

    Raises
    ------
    DataError
        If a score that would be listed is not finite.
    """
    queries, count = len(rows_QW), len(place_C)
    exact_QW[np.isneginf(rough_QW)] = -np.inf
    order_QK = np.lexsort((place_C[rows_QW], -exact_QW), axis=1)[:, :k]
    scores_QK = np.take_along_axis(exact_QW, order_QK, axis=1) + 0.0
    # Queries that overflow have an infinite error.
    with np.errstate(invalid="ignore"):
        off_QW = np.abs(rough_QW - exact_QW) > error_Q[:, None]
        near_Q = rough_QW[:, -1] + error_Q >= scores_QK[:, -1]
    if off_QW.any() or (near_Q.any() and rough_QW.shape[1] < count):
        return None
    rows_QK = np.take_along_axis(rows_QW, order_QK, axis=1).astype(np.int64)
    rows_QK[np.isneginf(scores_QK)] = -1
    check_listed(rows_QK, count, np.full(queries, -1) if exclude_Q is None else exclude_Q)
    return Ranking(rows_QK, scores_QK)
