"""Fuse several ranked lists of the same candidates into one.

Shape legend: Q queries, C candidates, K listed results per query, P (query, candidate) pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scimult.retrieval.runs import Ranking, ranking_of_pairs
from scimult.types import FloatArray, IntArray

RANK_CONSTANT = 60
"""Constant of reciprocal rank fusion (Cormack et al., 2009)."""
Points = NDArray[np.float64]


def reciprocal_ranks(ranking: Ranking) -> Points:
    """Return ``1 / (60 + rank)`` of every listed candidate, 0 for padding; shape ``(Q, K)``."""
    ranks_K = np.arange(1, ranking.rows_QK.shape[1] + 1)
    return np.where(ranking.rows_QK >= 0, 1.0 / (RANK_CONSTANT + ranks_K), 0.0)


def scaled_scores(ranking: Ranking, lowest: float = np.inf) -> Points:
    """Scale each list's scores to 1 for its first, and 0 for ``lowest`` or its last; 0 for padding.

    ``lowest`` is the score of candidates that are not listed, if all have the same. Lists of equal
    scores get 1 throughout.
    """
    listed_QK = ranking.rows_QK >= 0
    scores_QK = ranking.scores_QK.astype(np.float64)
    lowest_Q1 = np.where(listed_QK, scores_QK, np.inf).min(axis=1, initial=lowest)[:, None]
    highest_Q1 = np.where(listed_QK, scores_QK, -np.inf).max(axis=1, initial=-np.inf)[:, None]
    with np.errstate(invalid="ignore"):
        spread_Q1 = highest_Q1 - lowest_Q1
        scaled_QK = np.where(spread_Q1 > 0, (scores_QK - lowest_Q1) / spread_Q1, 1.0)
    return np.where(listed_QK, scaled_QK, 0.0)


def fuse(
    rankings: Sequence[Ranking],
    points: Sequence[Points],
    weights_Q: Sequence[float | FloatArray],
    place_C: IntArray,
    k: int | None = None,
) -> Ranking:
    """Rank candidates by the weighted sum of their points over all lists; absent ones score 0.

    Parameters
    ----------
    rankings : sequence of Ranking
        Lists of the same queries.
    points : sequence of array
        One per ranking, shape ``(Q, K)``: `reciprocal_ranks` or `scaled_scores`.
    weights_Q : sequence of float or array
        One per ranking, for all queries or for each.
    place_C : IntArray
        Position of each candidate among equal scores (`runs.places_of`).
    k : int, optional
        Results per query; default: all candidates of any list.
    """
    least = 0 if k is None else min(k, len(place_C))
    keys, weighted = [], []
    queries = len(rankings[0])
    for ranking, points_QK, weight in zip(rankings, points, weights_Q, strict=True):
        query_P, column_P = np.nonzero(ranking.rows_QK >= 0)
        weighted_QK = points_QK * np.broadcast_to(weight, (queries,))[:, None]
        keys.append(query_P * len(place_C) + ranking.rows_QK[query_P, column_P])
        weighted.append(weighted_QK[query_P, column_P])
    keys_U, index_P = np.unique(np.concatenate(keys), return_inverse=True)
    totals_U = np.bincount(index_P, np.concatenate(weighted), minlength=len(keys_U))
    query_U, row_U = np.divmod(keys_U.astype(np.int64), len(place_C))
    scores_U = totals_U.astype(np.float32)
    fused = ranking_of_pairs(query_U, row_U, scores_U, queries, place_C, least)
    return Ranking(fused.rows_QK[:, :k], fused.scores_QK[:, :k])
