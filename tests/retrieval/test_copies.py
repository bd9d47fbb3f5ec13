"""Copies of a vector rank by id. Legend: Q queries, C candidates, D width, K results."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scimult.retrieval import copies
from scimult.retrieval.copies import equal_rows
from scimult.retrieval.exact import ExactIndex
from scimult.retrieval.vectors import Vectors
from scimult.types import FloatArray, Similarity

_WIDTH = 384


def _vectors(rows: int, seed: int) -> FloatArray:
    return np.random.default_rng(seed).normal(size=(rows, _WIDTH)).astype(np.float32)


@pytest.mark.long
@pytest.mark.parametrize("similarity", ["dot", "cosine", "l2"])
@pytest.mark.parametrize("queries", [1, 2, 5, 32])
@pytest.mark.parametrize("block_rows", [None, 4])
def test_copies_of_one_vector_are_listed_by_descending_id(
    similarity: Similarity, queries: int, block_rows: int | None
) -> None:
    """A product of one row, or of a matrix's last rows, is rounded otherwise than the rest."""
    queries_QD = _vectors(queries, 1)
    for count in (*range(2, 20), 37, 101):
        ids = [f"{row:04}" for row in range(count)]
        index = ExactIndex(
            ids, np.tile(_vectors(1, 0), (count, 1)), similarity, block_rows=block_rows
        )
        ranking = index.search(queries_QD, count)
        assert (ranking.rows_QK == np.arange(count)[::-1]).all()
        assert (ranking.scores_QK == ranking.scores_QK[:, :1]).all()


@pytest.mark.long
@pytest.mark.parametrize("k", [3, 10, 40])
@pytest.mark.parametrize(("count", "block_rows"), [(1001, None), (1001, 1000), (9001, None)])
def test_copies_among_others_are_those_that_a_stable_sort_of_float64_lists(
    count: int, block_rows: int | None, k: int
) -> None:
    """Also where copies are cut off by the end of the list, or one is left out."""
    rng = np.random.default_rng(2)
    candidates_CD, queries_QD = 0.1 * _vectors(count, 3), _vectors(9, 4)
    for seed in (5, 6):
        at = np.append(rng.choice(count - 1, 12, replace=False), count - 1)
        candidates_CD[at] = _vectors(1, seed) + queries_QD.mean(axis=0)
    ids = [f"{row:05}" for row in rng.permutation(count)]
    exclude_Q = np.where(np.arange(9) % 2, at[0], -1)
    index = ExactIndex(
        ids, candidates_CD, "dot", first_pass="float32", block_rows=block_rows, query_rows=4
    )
    found = index.search(queries_QD, k, exclude_Q=exclude_Q)
    candidates_CD, queries_QD = candidates_CD.astype(np.float64), queries_QD.astype(np.float64)
    scores_QC = np.array([[float(q_D @ d_D) for d_D in candidates_CD] for q_D in queries_QD])
    by_id = np.argsort(ids)[::-1]
    for query, rows_K in enumerate(found.rows_QK):
        wanted = by_id[np.argsort(-scores_QC[query, by_id], kind="stable")]
        assert rows_K.tolist() == wanted[wanted != exclude_Q[query]][:k].tolist()


def test_equal_rows_are_found_among_rows_of_one_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero is equal to minus zero; a hash of zero for all leaves the work to the comparison."""
    x_CD = np.random.default_rng(7).integers(-1, 2, (300, 3)).astype(np.float16)
    x_CD[x_CD == 0] *= np.random.default_rng(8).choice([-1, 1], (x_CD == 0).sum())
    _, kinds = np.unique(x_CD + 0, axis=0, return_inverse=True)
    wanted = {tuple(np.flatnonzero(kinds == kind)) for kind in set(kinds.tolist())}
    vectors = Vectors(x_CD, "dot", torch.device("cpu"))  # type: ignore[arg-type]
    assert {tuple(rows) for rows in equal_rows(vectors)} == wanted
    monkeypatch.setattr(copies, "_BLOCK", 7)
    monkeypatch.setattr(copies, "_directions", lambda width: torch.zeros(2, width))
    assert {tuple(rows) for rows in equal_rows(vectors)} == wanted
