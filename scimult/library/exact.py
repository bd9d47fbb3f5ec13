"""Exact search over memory-mapped shards, among any rows, for the best or for all above a score.

A first pass takes float32 products and keeps every row that their rounding cannot rule out; these
are scored in float64 from the stored vectors. Results therefore depend neither on how rows are
split into shards and blocks, so an updated library finds what a new one would, nor on what
multiplies: a single query is searched without torch, whose import takes longer than the search.

Larger is closer: the dot product, the cosine (0 with a zero vector), or minus the distance.

Shape legend: Q queries, N rows, D width, B rows of one block, P (query, row) pairs, K results.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from scimult.errors import DataError
from scimult.retrieval.embeddings import unit_rows
from scimult.retrieval.shards import Shards
from scimult.types import BoolArray, FloatArray, IntArray, Similarity

RowScores = tuple[IntArray, FloatArray]
"""Rows of one query and their float32 scores, best first; equal scores by descending id."""
IdsOf = Callable[[IntArray], list[str]]

_BLOCK = 1 << 13
_PAIRS = 1 << 13
_QUERIES = 256
_UNIT_ROUNDOFF = 2.0**-24
# Squared lengths between these lose nothing to speak of in float32.
_LEAST_SQUARE, _MOST_SQUARE = 2.0**-100, 2.0**120


class ExactSearch:
    """Searches the vectors of a space, skipping damaged shards.

    ``longest`` is an upper bound on the vectors' lengths, which bounds rounding errors; it is
    ignored for cosine. ``ids_of`` is called only for rows of equal scores.
    """

    def __init__(self, shards: Shards, longest: float, ids_of: IdsOf) -> None:
        self._shards, self._ids_of = shards, ids_of
        self._similarity: Similarity = shards.space.similarity
        self._longest = 1.0 if self._similarity == "cosine" else longest

    def best(self, queries_QD: FloatArray, k: int, allowed_N: BoolArray) -> list[RowScores]:
        """Return the best ``k`` allowed rows of every query.

        Raises
        ------
        DataError
            If the width differs, a number is not finite or ``k`` is negative.
        """
        queries_QD = self.checked(queries_QD)
        if k < 0:
            fix = "request 0 or more results"
            raise DataError("length of a list is negative", value=k, fix=fix)
        if len(queries_QD) == 1 and k:
            return [self.ranked(queries_QD[0], self._nearest(queries_QD, k, allowed_N), k)]
        return [
            hits
            for start in range(0, len(queries_QD), _QUERIES)
            for hits in self._best(queries_QD[start : start + _QUERIES], k, allowed_N)
        ]

    def above(self, queries_QD: FloatArray, least: float, allowed_N: BoolArray) -> list[RowScores]:
        """Return all allowed rows whose score, in float32, is at least ``least``.

        Raises
        ------
        DataError
            If the width differs or a number, of a stored vector too, is not finite.
        """
        queries_QD = self.checked(queries_QD)
        cutoff_Q = self._first_pass_score(queries_QD, least) - self._slack(queries_QD)
        rows: list[list[IntArray]] = [[] for _ in queries_QD]
        for rows_B, scores_BQ in self._scores(queries_QD, allowed_N):
            for query, scores_B in enumerate(scores_BQ.T):
                near_B = ~(scores_B < cutoff_Q[query])
                self._refuse_damaged(scores_B[near_B])
                rows[query].append(rows_B[near_B])
        hits = []
        for query_D, parts in zip(queries_QD, rows, strict=True):
            candidates = np.concatenate([np.empty(0, np.int64), *parts])
            rows_P, scores_P = self.ranked(query_D, candidates)
            reached = int((scores_P >= np.float32(least)).sum())
            hits.append((rows_P[:reached], scores_P[:reached]))
        return hits

    def ranked(self, query_D: FloatArray, rows_P: IntArray, k: int | None = None) -> RowScores:
        """Score listed rows and return all, or the best ``k``, best first."""
        return ranked(rows_P, self.scores(query_D, rows_P), self._ids_of, k)

    def scores(self, query_D: FloatArray, rows_P: IntArray) -> FloatArray:
        """Return the scores of listed rows, computed in float64 from the stored vectors."""
        return self.scores_of(query_D[None], np.zeros(len(rows_P), dtype=np.int64), rows_P)

    def scores_of(self, queries_QD: FloatArray, query_P: IntArray, rows_P: IntArray) -> FloatArray:
        """Return float64 scores of listed queries and rows, rounded to float32, shape ``(P,)``."""
        scores_P = np.empty(len(rows_P), dtype=np.float32)
        for start in range(0, len(rows_P), _PAIRS):
            part = slice(start, start + _PAIRS)
            vectors_PD = self._shards.rows(rows_P[part]).astype(np.float64)
            wanted_PD = queries_QD[query_P[part]].astype(np.float64)
            if self._similarity == "l2":
                scores_P[part] = 0.0 - np.sqrt(((vectors_PD - wanted_PD) ** 2).sum(axis=1))
                continue
            dots_P = (vectors_PD * wanted_PD).sum(axis=1)
            if self._similarity == "cosine":
                squares_P = (vectors_PD**2).sum(axis=1) * (wanted_PD**2).sum(axis=1)
                lengths_P = np.sqrt(squares_P)
                dots_P = np.divide(
                    dots_P, lengths_P, out=np.zeros_like(dots_P), where=lengths_P > 0
                )
            scores_P[part] = dots_P
        return scores_P

    def checked(self, queries_QD: FloatArray) -> FloatArray:
        """Return queries as float32.

        Raises
        ------
        DataError
            If the width differs, or a number is not finite.
        """
        width = self._shards.space.width
        vectors_QD: FloatArray = np.ascontiguousarray(queries_QD, dtype=np.float32)
        if vectors_QD.ndim != 2 or vectors_QD.shape[1] != width:
            fix = "encode it with the library's model"
            problem = f"vectors of shape {vectors_QD.shape} for a library of width {width}"
            raise DataError(problem, path=self._shards.path, fix=fix)
        if not np.isfinite(vectors_QD).all():
            fix = "check the model that encoded it"
            raise DataError("query vector is not finite", fix=fix)
        return vectors_QD

    def _nearest(self, query_1D: FloatArray, k: int, allowed_N: BoolArray) -> IntArray:
        """Return rows that include the best ``k`` of one query, unordered."""
        slack = 2 * self._slack(query_1D)[0]
        rows_P, scores_P = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
        least = np.float32(-np.inf)
        for rows_B, scores_B1 in self._scores(query_1D, allowed_N):
            scores_B = scores_B1[:, 0]
            # NaN, from damaged vectors, is kept and refused below.
            near = np.flatnonzero(~(scores_B < least))
            rows_P = np.concatenate([rows_P, rows_B[near]])
            scores_P = np.concatenate([scores_P, scores_B[near]])
            if k < len(scores_P):
                least = np.partition(scores_P, len(scores_P) - k)[len(scores_P) - k] - slack
                is_near_P = ~(scores_P < least)
                rows_P, scores_P = rows_P[is_near_P], scores_P[is_near_P]
        self._refuse_damaged(scores_P)
        return rows_P

    def _refuse_damaged(self, scores_P: FloatArray) -> None:
        if not np.isfinite(scores_P).all():
            fix = "run scimult library check, which names damaged files"
            raise DataError("a score is not finite", path=self._shards.path, fix=fix)

    def _best(self, queries_QD: FloatArray, k: int, allowed_N: BoolArray) -> list[RowScores]:
        import torch

        from scimult.retrieval.selection import NO_KEY, ThresholdBest, places_of_keys

        slack_Q = torch.from_numpy(2 * self._slack(queries_QD))
        best = ThresholdBest(len(queries_QD), k, slack_Q=slack_Q)
        for rows_B, scores_BQ in self._scores(queries_QD, allowed_N):
            best.add(torch.from_numpy(scores_BQ).T, torch.from_numpy(rows_B))
        keys_QW = best.keys()
        hits = []
        for query_D, keys_W in zip(queries_QD, keys_QW, strict=True):
            rows_W = places_of_keys(keys_W[keys_W != NO_KEY]).numpy()
            hits.append(self.ranked(query_D, rows_W, k))
        return hits

    def _scores(
        self, queries_QD: FloatArray, allowed_N: BoolArray
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """Yield allowed rows and their first-pass scores, shape ``(B, Q)``, by block."""
        if self._similarity == "cosine":
            queries_QD = unit_rows(queries_QD)
        for first, stored_BD in self._shards.blocks(_BLOCK):
            columns = np.flatnonzero(allowed_N[first : first + len(stored_BD)])
            if not len(columns):
                continue
            whole = len(columns) == len(stored_BD)
            x_BD = np.asarray(stored_BD if whole else stored_BD[columns], dtype=np.float32)
            yield columns + first, self._block_scores(x_BD, queries_QD)

    def _block_scores(self, x_BD: FloatArray, queries_QD: FloatArray) -> FloatArray:
        # Overflows are refused later, or scaled here.
        with np.errstate(all="ignore"):
            scores_BQ = _products(x_BD, queries_QD)
            if self._similarity == "dot":
                return scores_BQ
            squares_B = np.einsum("bd,bd->b", x_BD, x_BD)
            if self._similarity == "l2":
                scores_BQ -= 0.5 * squares_B[:, None]
                return scores_BQ
        odd_B = ~((squares_B >= _LEAST_SQUARE) & (squares_B <= _MOST_SQUARE))
        scores_BQ /= np.sqrt(np.where(odd_B, 1, squares_B))[:, None]
        if odd_B.any():
            scores_BQ[odd_B] = _products(unit_rows(x_BD[odd_B]), queries_QD)
        return scores_BQ

    def _slack(self, queries_QD: FloatArray) -> FloatArray:
        """Bound the rounding error of a first-pass score, shape ``(Q,)``."""
        lengths_Q = np.linalg.norm(queries_QD.astype(np.float64), axis=1)
        if self._similarity == "cosine":
            lengths_Q = np.ones_like(lengths_Q)
        longest = self._longest
        sizes_Q = longest * lengths_Q + (longest**2 if self._similarity == "l2" else 0.0)
        if self._similarity == "l2":
            # Final scores are rounded distances; equal ones may differ in the first pass.
            sizes_Q = sizes_Q + (longest + lengths_Q) ** 2
        slack_Q = 8 * (self._shards.space.width + 8) * _UNIT_ROUNDOFF * sizes_Q
        bound_Q: FloatArray = (slack_Q + 2.0**-120).astype(np.float32)
        return bound_Q

    def _first_pass_score(self, queries_QD: FloatArray, least: float) -> NDArray[np.float64]:
        """Return the first-pass score of a row whose score is ``least``, shape ``(Q,)``."""
        if self._similarity != "l2":
            return np.full(len(queries_QD), least, dtype=np.float64)
        squares_Q = np.square(queries_QD, dtype=np.float64).sum(axis=1)
        scores_Q: NDArray[np.float64] = 0.5 * (squares_Q - max(0.0, -least) ** 2)
        return scores_Q


def _products(x_BD: FloatArray, queries_QD: FloatArray) -> FloatArray:
    """Return the products of rows and queries, shape ``(B, Q)``."""
    if len(queries_QD) == 1:
        single_B1: FloatArray = x_BD @ queries_QD.T
        return single_B1
    import torch

    from scimult.products import products

    # Copies mapped memory: torch warns about memory it may not write.
    copied_BD = torch.from_numpy(np.require(x_BD, None, ["W"]))
    products_BQ: FloatArray = products(copied_BD, torch.from_numpy(queries_QD)).numpy()
    return products_BQ


def ranked(
    rows_P: IntArray, scores_P: FloatArray, ids_of: IdsOf, k: int | None = None
) -> RowScores:
    """Sort rows by descending score, equal ones by descending id; return all, or ``k``."""
    if k is not None and k < len(rows_P):
        least = np.partition(scores_P, len(rows_P) - k)[len(rows_P) - k] if k else np.inf
        rows_P, scores_P = rows_P[scores_P >= least], scores_P[scores_P >= least]
    order = np.argsort(-scores_P, kind="stable")
    rows_P, scores_P = rows_P[order], scores_P[order]
    edges = np.flatnonzero(np.diff(scores_P, prepend=np.nan, append=np.nan) != 0)
    for start, end in itertools.pairwise(edges):
        if end - start > 1:
            ids = ids_of(rows_P[start:end])
            by_id = sorted(range(len(ids)), key=ids.__getitem__, reverse=True)
            rows_P[start:end] = rows_P[start:end][by_id]
    return rows_P[:k], scores_P[:k]
