"""Tags of a paper's nearest tagged papers.

Shape legend: B papers, M tagged papers, C concepts, D width, T terms, K neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from scimult.retrieval.exact import ExactIndex
from scimult.types import FloatArray, IntArray, Similarity

NEAREST = 30
_SHARPNESS = 10.0
_BLOCK = 512


def shares(rows_BK: IntArray, scores_BK: FloatArray, tags_MC: Any) -> Any:
    """Return the share of each paper's neighbours that have each concept, sparse.

    Neighbours come best first. The n-th has weight ``exp(10 (s_n - s_1))``, divided by the sum of
    all weights; rows below 0 are ignored. The shape is ``(B, C)``.
    """
    import scipy.sparse as sparse

    known_BK = rows_BK >= 0
    scores_BK = np.where(known_BK, scores_BK, 0)
    weights_BK = np.exp(_SHARPNESS * (scores_BK - scores_BK[:, :1])) * known_BK
    weights_BK /= np.maximum(weights_BK.sum(axis=1, keepdims=True), 1e-30)
    size, k = rows_BK.shape
    parts = (weights_BK.ravel(), np.where(known_BK, rows_BK, 0).ravel(), np.arange(size + 1) * k)
    return sparse.csr_array(parts, shape=(size, tags_MC.shape[0])) @ tags_MC


class NearVectors:
    """Neighbours by embedding."""

    def __init__(self, vectors_MD: FloatArray, similarity: Similarity) -> None:
        names = [f"{row:09d}" for row in range(len(vectors_MD))]
        self._index = ExactIndex(names, vectors_MD, similarity)

    def search(
        self, vectors_BD: FloatArray, k: int = NEAREST, own_B: IntArray | None = None
    ) -> tuple[IntArray, FloatArray]:
        """Return rows and similarities of the nearest, best first, except ``own_B``."""
        ranking = self._index.search(vectors_BD, k, exclude_Q=own_B)
        return ranking.rows_QK, ranking.scores_QK


class NearWords:
    """Neighbours by the cosine of weighted words, at least one of which they share."""

    def __init__(self, words_MT: Any) -> None:
        self._words_TM = words_MT.T.tocsr()

    def search(self, words_BT: Any, k: int = NEAREST) -> tuple[IntArray, FloatArray]:
        """Return rows and similarities of the nearest, best first; -1 where there is none."""
        k = min(k, self._words_TM.shape[1])
        rows, scores = [], []
        for start in range(0, words_BT.shape[0], _BLOCK):
            scores_BM = (words_BT[start : start + _BLOCK] @ self._words_TM).toarray()
            rows_BK = np.argpartition(-scores_BM, k - 1, axis=1)[:, :k]
            scores_BK = np.take_along_axis(scores_BM, rows_BK, axis=1)
            order_BK = np.lexsort((rows_BK, -scores_BK), axis=1)
            rows.append(np.take_along_axis(rows_BK, order_BK, axis=1))
            scores.append(np.take_along_axis(scores_BK, order_BK, axis=1))
        similarities = np.concatenate(scores)
        return np.where(similarities > 0, np.concatenate(rows), -1), similarities
