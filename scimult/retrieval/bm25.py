"""BM25 over short texts (bm25s), with the selection and tie rule of the dense search.

Defaults are those of common Lucene baselines, ``k1 = 0.9`` and ``b = 0.4``, on lower-case tokens of
two or more word characters without stop words or stemming (`scimult.retrieval.analysis`).

Shape legend: Q queries, C candidates, K results per query, B queries of one block.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from scimult.data.ragged import Ragged
from scimult.errors import DataError
from scimult.progress import progress
from scimult.retrieval.analysis import WORDS, Analyser
from scimult.retrieval.runs import Ranking, id_order, places_of, ranking_of_pairs
from scimult.retrieval.selection import ThresholdBest, check_excluded, check_length, lists_of
from scimult.types import FloatArray, IntArray

K1, B = 0.9, 0.4
_QUERY_ROWS = 256
# Scores of one block of queries, whatever the number of candidates: 64 MiB.
_MOST_SCORES = 1 << 24


class BM25Index:
    """An inverted index over candidates.

    Parameters
    ----------
    ids : sequence of str
        One distinct id per candidate; they break ties.
    texts : sequence of str
        One text per candidate.
    analyser : Analyser
        Turns candidates and queries into tokens.
    k1, b : float
        How fast repeated tokens saturate, and how much the length of a text counts.

    Raises
    ------
    DataError
        If ids repeat, counts of ids and texts differ, ``texts`` is a single text, or no text has a
        token.
    """

    def __init__(
        self,
        ids: Sequence[str],
        texts: Sequence[str],
        analyser: Analyser = WORDS,
        *,
        k1: float = K1,
        b: float = B,
    ) -> None:
        _check_list(texts)
        if len(ids) != len(texts):
            raise DataError(f"{len(ids)} candidate ids for {len(texts)} texts")
        self.ids, self.order_C = ids, id_order(ids)
        self.place_C = places_of(self.order_C)
        self._analyser = analyser
        tokens = analyser([texts[row] for row in self.order_C])
        if not any(tokens):
            kind = "of two word characters" if analyser == WORDS else "that the analyser keeps"
            raise DataError(f"no candidate has a token {kind}", fix="add texts")
        import bm25s  # loads scipy, which a dense search does not need

        self._model = bm25s.BM25(method="lucene", k1=k1, b=b)
        self._model.index(tokens, show_progress=False)

    def search(
        self,
        queries: Sequence[str],
        k: int,
        *,
        exclude_Q: IntArray | None = None,
        show_progress: bool = False,
    ) -> Ranking:
        """Return the best ``k`` candidates that share a token with the query.

        Parameters
        ----------
        queries : sequence of str
            Q texts.
        k : int
            Length of the lists.
        exclude_Q : IntArray, optional
            One candidate row per query to leave out of its list; -1 for none.

        Raises
        ------
        DataError
            If ``queries`` is a single text, ``k`` is negative, or ``exclude_Q`` has no number per
            query.
        """
        _check_list(queries)
        k = min(check_length(k), len(self.ids))
        check_excluded(exclude_Q, len(queries))
        ranking = Ranking.empty(len(queries), k)
        places_C = torch.arange(len(self.ids))
        query_rows = max(1, min(_QUERY_ROWS, _MOST_SCORES // len(self.ids)))
        starts = range(0, len(queries), query_rows)
        for start in progress(starts, "BM25", unit="block", show=show_progress):
            scores_BC = self._scores(queries[start : start + query_rows])
            scores_BC[scores_BC <= 0] = -np.inf
            if exclude_Q is not None:
                excluded_B = exclude_Q[start : start + len(scores_BC)]
                rows = np.flatnonzero(excluded_B >= 0)
                scores_BC[rows, self.place_C[excluded_B[rows]]] = -np.inf
            best = ThresholdBest(len(scores_BC), k)
            best.add(torch.from_numpy(scores_BC), places_C)
            keys_QW = best.keys()
            scores, places = (x.numpy() for x in lists_of(keys_QW, k))
            rows = np.where(places < 0, -1, self.order_C[places])
            ranking.fill(slice(start, start + query_rows), Ranking(rows, scores))
        return ranking

    def rank_listed(self, queries: Sequence[str], lists: Ragged) -> Ranking:
        """Rank all candidate rows that ``lists`` gives each query."""
        scores = [np.empty(0, dtype=np.float32)]
        for query, rows in zip(queries, lists, strict=True):
            if len(rows):
                scores.append(self._scores([query])[0, self.place_C[rows]])
        return ranking_of_pairs(
            lists.owners, lists.values, np.concatenate(scores), len(lists), self.place_C
        )

    def _scores(self, queries: Sequence[str]) -> FloatArray:
        """Return float32 scores, shape ``(len(queries), C)``, columns by descending id."""
        scores_BC = np.zeros((len(queries), len(self.ids)), dtype=np.float32)
        for row, tokens in enumerate(self._analyser(queries)):
            if tokens:
                scores_BC[row] = self._model.get_scores(tokens)
        return scores_BC


def _check_list(texts: object) -> None:
    if isinstance(texts, str):
        raise DataError("texts is a single text", value=texts, fix="pass a list of texts")
