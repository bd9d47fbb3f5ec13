"""Drift adapters: search an old model's vectors with a new model's queries.

A map from new vectors to old ones is fitted on papers that both models encoded (Vejendla, 2025,
Drift-Adapter, arXiv:2509.23471). It is orthogonal (Procrustes; Schönemann, 1966), about the origin
or about the two means, or a ridge regression, full or of low rank (Izenman, 1975): whichever finds
most of the new model's results on held-out papers. About the means, a share of the old mean is
added back; all of it would rank papers that are near everything too high.

Shape legend: N papers, M, D new and old width, K results.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scimult.errors import DataError
from scimult.retrieval.embeddings import unit_rows
from scimult.types import FloatArray, Similarity

LEAST = 50
"""Fewest papers that both models must encode."""
_K = 10
_SHRINKAGE = (1e-3, 1e-1)
_RANKS = (64, 128, 256)
_MEANS = (0.25, 0.5, 0.75, 1.0)
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Adapter:
    """A map from new vectors to old ones.

    Attributes
    ----------
    kind : str
        How it was fitted.
    matrix_MD, offset_D : array
        float32.
    recall : float
        Share of the new model's best 10 that adapted vectors find, on held-out papers, among all
        that both models encoded.
    on_sphere : bool
        Whether vectors are first scaled to length 1, as for cosines.
    """

    kind: str
    matrix_MD: FloatArray
    offset_D: FloatArray
    recall: float = 0.0
    on_sphere: bool = False

    def __call__(self, vectors_NM: FloatArray) -> FloatArray:
        """Map vectors of the new model to those of the old, shape ``(N, D)``.

        Raises
        ------
        DataError
            If the width differs.
        """
        if vectors_NM.shape[1] != len(self.matrix_MD):
            problem = f"vectors of shape {vectors_NM.shape} for an adapter of {len(self.matrix_MD)}"
            raise DataError(problem, fix="use the model that the adapter was fitted for")
        if self.on_sphere:
            vectors_NM = unit_rows(vectors_NM)
        adapted: FloatArray = vectors_NM @ self.matrix_MD + self.offset_D
        return adapted


def fit_adapter(new_NM: FloatArray, old_ND: FloatArray, similarity: Similarity) -> Adapter:
    """Return the best of several kinds of maps from papers' new vectors to their old ones.

    A fifth of the papers is held out for the choice.

    Raises
    ------
    DataError
        If there are too few papers.
    """
    if len(new_NM) < LEAST:
        fix = f"use at least {LEAST}"
        raise DataError("too few papers to fit an adapter", value=len(new_NM), fix=fix)
    if similarity == "cosine":
        new_NM, old_ND = unit_rows(new_NM), unit_rows(old_ND)
    is_held_out_N = np.arange(len(new_NM)) % 5 == 0
    fitted = [
        Adapter(
            kind,
            matrix_MD.astype(np.float32),
            offset_D.astype(np.float32),
            on_sphere=similarity == "cosine",
        )
        for kind, matrix_MD, offset_D in _maps(new_NM[~is_held_out_N], old_ND[~is_held_out_N])
    ]
    scored = [_scored(adapter, new_NM, old_ND, is_held_out_N, similarity) for adapter in fitted]
    return max(scored, key=lambda adapter: adapter.recall)


def procrustes(new_NM: FloatArray | Matrix, old_ND: FloatArray | Matrix) -> Matrix:
    """Return the matrix of orthonormal rows or columns that maps new vectors closest to old."""
    product_MD = new_NM.astype(np.float64).T @ old_ND.astype(np.float64)
    left, _, right = np.linalg.svd(product_MD, full_matrices=False)
    rotation_MD: Matrix = left @ right
    return rotation_MD


def ridge(new_NM: FloatArray, old_ND: FloatArray, shrinkage: float) -> Matrix:
    """Return the least-squares map, with ``shrinkage`` times the mean square as the penalty."""
    x, y = new_NM.astype(np.float64), old_ND.astype(np.float64)
    gram_MM = x.T @ x
    gram_MM += shrinkage * np.trace(gram_MM) / len(gram_MM) * np.eye(len(gram_MM))
    return np.linalg.solve(gram_MM, x.T @ y).astype(np.float64, copy=False)


def of_rank(matrix_MD: Matrix, new_NM: FloatArray, rank: int) -> Matrix:
    """Return the map of this rank closest to ``matrix_MD`` on the vectors."""
    _, _, right = np.linalg.svd(new_NM.astype(np.float64) @ matrix_MD, full_matrices=False)
    reduced_MD: Matrix = matrix_MD @ right[:rank].T @ right[:rank]
    return reduced_MD


def best_rows(
    queries_QD: FloatArray, vectors_ND: FloatArray, similarity: Similarity, own_Q: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the best 10 rows of each query except its own, shape ``(Q, K)``; for small samples."""
    if similarity == "cosine":
        queries_QD, vectors_ND = unit_rows(queries_QD), unit_rows(vectors_ND)
    scores_QN = queries_QD @ vectors_ND.T
    if similarity == "l2":
        scores_QN = scores_QN - 0.5 * (vectors_ND**2).sum(axis=1)
    scores_QN[np.arange(len(own_Q)), own_Q] = -np.inf
    rows_QK: NDArray[np.int64] = np.argpartition(-scores_QN, _K, axis=1)[:, :_K]
    return rows_QK


def _maps(
    new_NM: FloatArray, old_ND: FloatArray
) -> Iterator[tuple[str, Matrix, NDArray[np.float64]]]:
    """Yield the kind, matrix and offset of each map."""
    none_D = np.zeros(old_ND.shape[1])
    yield "procrustes", procrustes(new_NM, old_ND), none_D
    new_M, old_D = (x.mean(axis=0, dtype=np.float64) for x in (new_NM, old_ND))
    about_MD = procrustes(new_NM - new_M, old_ND - old_D)
    for share in _MEANS:
        yield f"procrustes and {share:g} of the mean", about_MD, share * old_D - new_M @ about_MD
    for shrinkage in _SHRINKAGE:
        whole_MD = ridge(new_NM, old_ND, shrinkage)
        yield f"ridge {shrinkage:g}", whole_MD, none_D
        for rank in _RANKS:
            if rank < min(whole_MD.shape):
                yield f"ridge {shrinkage:g} of rank {rank}", of_rank(whole_MD, new_NM, rank), none_D


def _scored(
    adapter: Adapter,
    new_NM: FloatArray,
    old_ND: FloatArray,
    is_held_out_N: NDArray[np.bool_],
    similarity: Similarity,
) -> Adapter:
    own_Q = np.flatnonzero(is_held_out_N)
    wanted = best_rows(new_NM[is_held_out_N], new_NM, similarity, own_Q)
    rows_QK = best_rows(adapter(new_NM[is_held_out_N]), old_ND, similarity, own_Q)
    shares = [len(np.intersect1d(a, b)) / _K for a, b in zip(rows_QK, wanted, strict=True)]
    return replace(adapter, recall=float(np.mean(shares)))
