"""Candidates whose vectors are equal: one score for all, and ids decide their order.

The last digits of a product depend on the kernel and on a row's place in the matrix, so copies of
one vector may get unequal scores, in any order. A search that takes its scores from whole matrices
therefore looks for copies once, and then gives them one score.

Shape legend: Q queries, C candidates, D width, K results per query, B candidates of one block,
E candidates of one hash, W candidates of a query.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch
from torch import Tensor

from scimult.products import products
from scimult.retrieval.vectors import Vectors
from scimult.types import FloatArray, IntArray

_BLOCK = 1 << 12
_SEED = 20261126


def equal_rows(vectors: Vectors) -> list[IntArray]:
    """Return the rows of each vector that occurs more than once, in one pass over all vectors."""
    count, width = vectors.shape
    blocks = [np.arange(first, min(first + _BLOCK, count)) for first in range(0, count, _BLOCK)]
    directions_2D = _directions(width)
    # A small array kept from each block would sit in the gap that the next block needs.
    hashes_C = np.empty(count, dtype=np.int64)
    for rows in blocks:
        hashes_C[rows] = _hashes(vectors.stored(rows), directions_2D)
    order_C = np.argsort(hashes_C, kind="stable")
    edges = np.flatnonzero(np.diff(hashes_C[order_C]) != 0) + 1
    starts, ends = np.append(0, edges), np.append(edges, count)
    shared = ends - starts > 1
    return [
        rows
        for start, end in zip(starts[shared], ends[shared], strict=True)
        for rows in _equal_among(vectors, order_C[start:end])
    ]


class Copies:
    """Groups of equal candidates.

    Parameters
    ----------
    groups : list of IntArray
        From `equal_rows`.
    place_C : IntArray
        Positions of candidates among equal scores.
    """

    def __init__(self, groups: list[IntArray], place_C: IntArray) -> None:
        self._place_C = place_C
        self._groups = [rows[np.argsort(place_C[rows])] for rows in groups]
        # The last entry is that of -1, which pads lists.
        self._group_C = np.full(len(place_C) + 1, -1)
        for group, rows in enumerate(self._groups):
            self._group_C[rows] = group

    def level(self, rows_QK: IntArray, scores_QK: FloatArray, excluded_Q: IntArray) -> None:
        """Give copies the best score that one of them has in a list; changes lists in place."""
        groups_QK = self._group_C[rows_QK]
        for query in np.flatnonzero((groups_QK >= 0).any(axis=1)):
            rows_K, scores_K, groups_K = rows_QK[query], scores_QK[query], groups_QK[query]
            # Of each group the first in the list, which has the best score.
            groups, first = np.unique(groups_K, return_index=True)
            groups, first = groups[groups >= 0], first[groups >= 0]
            # One may be left out, so one more than fits.
            copies = [self._groups[group][: len(rows_K) + 1] for group in groups]
            other_K = (groups_K < 0) & (rows_K >= 0)
            rows_W = np.concatenate([rows_K[other_K], *copies])
            best = np.repeat(scores_K[first], [len(rows) for rows in copies])
            scores_W = np.concatenate([scores_K[other_K], best])
            allowed_W = rows_W != excluded_Q[query]
            rows_W, scores_W = rows_W[allowed_W], scores_W[allowed_W]
            order_K = np.lexsort((self._place_C[rows_W], -scores_W))[: len(rows_K)]
            rows_K[: len(order_K)], scores_K[: len(order_K)] = rows_W[order_K], scores_W[order_K]


def _directions(width: int) -> Tensor:
    """Return two vectors whose products with finite vectors do not overflow."""
    generator = torch.Generator().manual_seed(_SEED)
    directions_2D = torch.rand(2, width, generator=generator, dtype=torch.float32)
    return directions_2D / max(1, width)


def _hashes(x_BD: Tensor, directions_2D: Tensor) -> IntArray:
    """Return a number per row, equal for equal rows."""
    # Each of so few products depends on its two rows alone; adding zero turns -0 into 0.
    hashes_B2 = products(x_BD.contiguous(), directions_2D) + 0.0
    hashes_B: IntArray = hashes_B2.numpy().view(np.int64)[:, 0]
    return hashes_B


def _equal_among(vectors: Vectors, rows_E: IntArray) -> list[IntArray]:
    rows_of: dict[bytes, list[int]] = defaultdict(list)
    for first in range(0, len(rows_E), _BLOCK):
        rows = rows_E[first : first + _BLOCK]
        numbers_ED = (vectors.stored(rows) + 0.0).numpy()
        for row, numbers_D in zip(rows.tolist(), numbers_ED, strict=True):
            rows_of[numbers_D.tobytes()].append(row)
    return [np.array(rows) for rows in rows_of.values() if len(rows) > 1]
