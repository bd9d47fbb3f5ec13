"""Fuse lists of papers, and rerank with a cross-encoder.

Shape legend: K results of a list, U papers of any list.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scimult.library.exact import IdsOf, RowScores, ranked
from scimult.library.manifest import Share
from scimult.retrieval.cross_encoder import PairScorer
from scimult.retrieval.fusion import fuse, reciprocal_ranks, scaled_scores
from scimult.retrieval.runs import Ranking, id_order, places_of
from scimult.types import Text

FUSED = 1000
"""Results of each list that are fused."""
RULES = 2
"""Increase it when the same lists are fused otherwise: shares tuned by earlier rules are told."""


def continued(hits: RowScores, longer: RowScores, most: int) -> RowScores:
    """Append what only the longer list has, up to ``most`` results."""
    new = ~np.isin(longer[0], hits[0])
    rows, scores = (np.concatenate([hits[i], longer[i][new]])[:most] for i in (0, 1))
    return rows, scores


def fused(vectors: RowScores, words: RowScores, share: Share, ids_of: IdsOf) -> RowScores:
    """Rank the papers of two lists by the weighted sum of their points.

    ``share`` weighs ``words`` when each list's scores are scaled to 0 to 1, and 1 lists these
    alone; "rank" adds reciprocal ranks (Cormack et al., 2009). Vectors beyond the first 1,000
    follow with 0 points: were they fused, scores would depend on how far a page reaches.
    """
    if share == 1:
        vectors = vectors[0][:0], vectors[1][:0]
    others = vectors[0][FUSED:], np.zeros_like(vectors[1][FUSED:])
    vectors = vectors[0][:FUSED], vectors[1][:FUSED]
    rows_U = np.union1d(vectors[0], words[0])
    if not len(rows_U):
        return vectors
    rankings = [
        Ranking(np.searchsorted(rows_U, rows)[None], scores[None])
        for rows, scores in (vectors, words)
    ]
    place_U = places_of(id_order(ids_of(rows_U)))
    if share == "rank":
        points, weights = [reciprocal_ranks(one) for one in rankings], [1.0, 1.0]
    else:
        # Papers without any of the words score 0; the last that has one is not like these.
        points = [scaled_scores(rankings[0]), scaled_scores(rankings[1], 0.0)]
        weights = [1.0 - share, share]
    ranking = fuse(rankings, points, weights, place_U)
    first = rows_U[ranking.rows_QK[0]], ranking.scores_QK[0]
    return continued(first, others, len(first[0]) + len(others[0]))


def reranked(
    hits: RowScores, query: str, texts: Sequence[Text], score: PairScorer, ids_of: IdsOf
) -> RowScores:
    """Rank listed papers, with their ``texts``, by the scores of a cross-encoder."""
    scores = score([(query, text.joined) for text in texts])
    return ranked(hits[0], scores, ids_of)
