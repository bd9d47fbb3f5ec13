"""Exact search by faiss, for a few queries where nothing but products decides.

Products then cost less than anything around them. Scores and lists are those of
`scimult.retrieval.few_candidates`, bit by bit.

Shape legend: Q queries, C candidates, D width, K results per query.
"""

from __future__ import annotations

import numpy as np
import torch

from scimult.listed_products import largest_products
from scimult.products import FEW
from scimult.retrieval.runs import Ranking
from scimult.types import FloatArray, IntArray

MOST_QUERIES = 64
"""More are multiplied faster as a matrix."""

# Numbers read in all. Beyond, what a matrix product saves, or for a few queries reading each
# candidate once, is more than what surrounds it costs.
_MOST_NUMBERS, _MOST_FOR_FEW = 3 << 20, 1 << 23
_LARGEST = float(np.finfo(np.float32).max)


class Nearest:
    """Candidates on a CPU.

    Parameters
    ----------
    candidates_CD : FloatArray
        float32, contiguous, finite.
    place_C : IntArray
        Position of each row among equal scores.
    order_C : IntArray, optional
        Row of each candidate, if they are not in the order of rows.
    """

    def __init__(
        self, candidates_CD: FloatArray, place_C: IntArray, order_C: IntArray | None = None
    ) -> None:
        self._candidates_CD, self._place_C, self._order_C = candidates_CD, place_C, order_C
        least, most = torch.aminmax(torch.from_numpy(candidates_CD))
        # No sum of products overflows for queries of smaller numbers.
        self._limit = _LARGEST / (max(-least.item(), most.item(), 1) * candidates_CD.shape[1])

    def suits(self, queries: int) -> bool:
        """Return whether faiss is fast: it reads all candidates for each query, with one thread."""
        once = queries == 1 and torch.get_num_threads() == 1
        most = _MOST_FOR_FEW if queries <= FEW else _MOST_NUMBERS
        return once or 0 < queries * self._candidates_CD.size <= most

    def search(self, queries_QD: FloatArray, k: int) -> Ranking | None:
        """Return the lists; None where equal scores end one or a product might overflow.

        Queries are float32 and contiguous; ``k`` is at least 1 and at most C.
        """
        if not np.abs(queries_QD).max() < self._limit:
            return None
        more = min(k + 1, len(self._candidates_CD))
        scores_QK, rows_QK = largest_products(self._candidates_CD, queries_QD, more)
        if self._order_C is not None:
            rows_QK = self._order_C[rows_QK]
        equal_QK = scores_QK[:, 1:] == scores_QK[:, :-1]
        if equal_QK.any():
            if k < more and equal_QK[:, -1].any():
                return None
            order_QK = np.lexsort((self._place_C[rows_QK], -scores_QK))
            rows_QK = np.take_along_axis(rows_QK, order_QK, axis=1)
        return Ranking(rows_QK[:, :k], scores_QK[:, :k])
