"""Exact search for several queries on a CPU, among candidates copied in oneDNN's layout.

One float32 product scores all candidates; of those that its rounding cannot rule out, each gets a
product of its own, which depends on nothing else that is searched.

Shape legend: Q queries, C candidates, D width, K results per query, W candidates kept of a query.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from scimult.products import FEW, linear_by_onednn, packed, packs_for_few
from scimult.retrieval.few_candidates import best_columns, checked_scores
from scimult.retrieval.few_on_device import settled
from scimult.retrieval.rounded import SingleVectors, lengths_of
from scimult.retrieval.runs import Ranking
from scimult.retrieval.vectors import Block, Vectors
from scimult.types import FloatArray, IntArray

FASTER_THAN_BYTES = 8
"""As many queries are faster in one float32 product even where a first pass would be in int8."""

# More queries are as fast in blocks, and more scores leave the cache.
_QUERIES, _SCORES = 40, 1 << 20
# Numbers of candidates that are copied: 64 MiB.
_NUMBERS = 1 << 24
# Kept beyond K, so that scores near a list's end rarely need another search.
_SPARE = 16


class SeveralQueries:
    """A copy of all candidates.

    Parameters
    ----------
    vectors : Vectors
        The candidates, on a CPU, in memory.
    place_C : IntArray
        Positions of candidates among equal scores.
    """

    def __init__(self, vectors: Vectors, place_C: IntArray) -> None:
        self._vectors, self._place_C = vectors, place_C
        block = vectors.block(0, len(place_C))
        self._single = SingleVectors(vectors, float(lengths_of(block.scaled_BD).max()))
        self._packed = Block(packed(block.vectors_BD), block.bias_B, block.scale_B)

    @staticmethod
    def may_copy(vectors: Vectors) -> bool:
        """Return whether a copy is small and of use."""
        count, width = vectors.shape
        few = vectors.in_memory and count * width <= _NUMBERS
        return few and vectors.device.type == "cpu" and packs_for_few()

    @staticmethod
    def suits(queries: int, candidates: int) -> bool:
        """Return whether this is the fastest search for as many queries."""
        return FEW < queries <= _QUERIES and queries * candidates <= _SCORES

    def search(self, queries_QD: Tensor, k: int, exclude_Q: IntArray | None) -> Ranking | None:
        """Search like `ExactIndex.search`; queries are `Vectors.queries`, ``k`` is at most C.

        None if more candidates are too close to the last result to tell apart than are kept.
        """
        if not k:
            return None
        scores_QC = checked_scores(self._scores(queries_QD))
        if exclude_Q is not None:
            left_out = np.flatnonzero(exclude_Q >= 0)
            scores_QC[left_out, exclude_Q[left_out]] = -np.inf
        rows_QW, rough_QW = best_columns(scores_QC, min(k + _SPARE, scores_QC.shape[1]))
        queries, width = rows_QW.shape
        pairs = np.repeat(np.arange(queries), width), rows_QW.reshape(-1)
        exact_P = self._vectors.products_of(queries_QD, *map(torch.from_numpy, pairs))
        exact_QW = exact_P.view(queries, width).numpy()
        error_Q = self._single.error_of(queries_QD).numpy()
        return settled(rough_QW, exact_QW, rows_QW, error_Q, self._place_C, k, exclude_Q)

    def _scores(self, queries_QD: Tensor) -> FloatArray:
        candidates = self._packed
        scores_QC = linear_by_onednn(queries_QD, candidates.vectors_BD, candidates.bias_B)
        if candidates.scale_B is not None:
            scores_QC *= candidates.scale_B
        return scores_QC.numpy()
