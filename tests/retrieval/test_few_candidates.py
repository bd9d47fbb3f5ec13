"""Shape legend: Q queries, C candidates, D width, K results."""

from __future__ import annotations

import faiss
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scimult.errors import DataError
from scimult.products import FEW
from scimult.retrieval import few_candidates
from scimult.retrieval.exact import ExactIndex, FirstPass
from scimult.retrieval.few_candidates import (
    MOST_CANDIDATES,
    MOST_PACKED,
    FewCandidates,
    best_columns,
)
from scimult.retrieval.vectors import Vectors
from scimult.types import FloatArray, Similarity


def _made(seed: int, rows: int, width: int) -> FloatArray:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    queries=st.integers(1, 60),
    count=st.integers(1, 600),
    distinct=st.sampled_from([1, 3, 50, 10**6]),
    share=st.floats(0, 1),
)
def test_best_columns_are_a_stable_sort(
    seed: int, queries: int, count: int, distinct: int, share: float
) -> None:
    """With few distinct scores most are equal; from 4,096 scores on groups are compared first."""
    rng = np.random.default_rng(seed)
    scores_QC = rng.integers(-distinct, distinct + 1, (queries, count)).astype(np.float32)
    k = max(1, int(share * count))
    columns_QK, found_QK = best_columns(scores_QC, k)
    wanted_QK = np.array(
        [sorted(range(count), key=lambda column: -row[column])[:k] for row in scores_QC]
    )
    assert np.array_equal(columns_QK, wanted_QK)
    assert np.array_equal(found_QK, np.take_along_axis(scores_QC, wanted_QK, axis=1))


@pytest.mark.long
@pytest.mark.parametrize("similarity", ["dot", "cosine", "l2"])
@pytest.mark.parametrize(
    ("count", "queries", "k"),
    [
        *[(3000, 1, 1), (3000, 1, 10), (3000, 40, 7), (3000, 500, 100), (3000, 3, 3000)],
        *[(9000, 1, 10), (9000, FEW, 20), (9000, FEW + 1, 20), (9000, 32, 100), (9000, 6, 9000)],
    ],
)
def test_it_lists_what_blocks_list_and_faiss(
    similarity: Similarity, count: int, queries: int, k: int
) -> None:
    """Scores may differ by what the order of 24 float32 sums changes, 24 roundings of 2**-24.

    Distances have exact sums, of multiples of 2**-16: faiss subtracts, and we do not, so that how
    many close neighbours change places would depend on the processor.
    """
    candidates_CD, queries_QD = _made(0, count, 24), _made(1, queries, 24)
    if similarity == "l2":
        candidates_CD, queries_QD = (np.round(256 * x) / 256 for x in (candidates_CD, queries_QD))
    ids = [f"d{number}" for number in np.random.default_rng(2).permutation(count)]
    index = ExactIndex(ids, candidates_CD, similarity)
    assert index._at_once(queries, k) is not None
    ours = index.search(queries_QD, k)
    blocks = ExactIndex(ids, candidates_CD, similarity, block_rows=300).search(queries_QD, k)
    tolerance = 24 * 2.0**-24 * np.abs(blocks.scores_QK).max()
    np.testing.assert_allclose(ours.scores_QK, blocks.scores_QK, rtol=0, atol=tolerance)
    assert (ours.rows_QK == blocks.rows_QK).mean() > 0.999
    if similarity == "cosine":
        candidates_CD = candidates_CD / np.linalg.norm(candidates_CD, axis=1, keepdims=True)
        queries_QD = queries_QD / np.linalg.norm(queries_QD, axis=1, keepdims=True)
    peer = faiss.IndexFlatL2(24) if similarity == "l2" else faiss.IndexFlatIP(24)
    peer.add(candidates_CD)
    peer_scores_QK, peer_rows_QK = peer.search(queries_QD, k)
    if similarity == "l2":
        of_ours_QK = ((queries_QD[:, None] - candidates_CD[ours.rows_QK]) ** 2).sum(axis=2)
        assert np.array_equal(of_ours_QK, peer_scores_QK)
    else:
        assert (ours.rows_QK == peer_rows_QK).mean() > 0.999
        np.testing.assert_allclose(ours.scores_QK, peer_scores_QK, rtol=0, atol=tolerance)


def test_a_candidate_left_out_is_not_listed_and_lists_may_be_short() -> None:
    candidates_CD, queries_QD = _made(3, 5, 4), _made(4, 3, 4)
    left_out_Q = np.array([2, -1, 0])
    ranking = ExactIndex(list("abcde"), candidates_CD, "dot").search(
        queries_QD, 5, exclude_Q=left_out_Q
    )
    assert (ranking.rows_QK == left_out_Q[:, None])[[0, 2]].sum() == 0
    assert ranking.rows_QK[[0, 2], -1].tolist() == [-1, -1]
    assert np.isneginf(ranking.scores_QK[[0, 2], -1]).all()
    assert sorted(ranking.rows_QK[1]) == [0, 1, 2, 3, 4]


def test_many_queries_are_taken_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers make every product exact, however blocks are cut."""
    rng = np.random.default_rng(5)
    candidates_CD = rng.integers(-9, 10, (40, 8)).astype(np.float32)
    queries_QD = rng.integers(-9, 10, (70, 8)).astype(np.float32)
    ids = [f"d{number}" for number in rng.permutation(40)]
    whole = ExactIndex(ids, candidates_CD, "dot").search(queries_QD, 9)
    monkeypatch.setattr(few_candidates, "_SCORES", 99)
    parts = ExactIndex(ids, candidates_CD, "dot").search(queries_QD, 9, show_progress=True)
    assert np.array_equal(whole.rows_QK, parts.rows_QK)
    assert np.array_equal(whole.scores_QK, parts.scores_QK)


def test_more_candidates_are_few_where_onednn_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    def few(count: int, width: int) -> bool:
        vectors = Vectors(np.zeros((count, width), np.float32), "dot", torch.device("cpu"))
        return FewCandidates.suits(vectors)

    monkeypatch.setattr(few_candidates, "_MOST_NUMBERS", 3 * MOST_PACKED)
    for packs in (True, False):
        monkeypatch.setattr(few_candidates, "packs", lambda _, packs=packs: packs)
        assert few(MOST_CANDIDATES, 8)
        assert few(MOST_CANDIDATES + 1, 3) == few(MOST_PACKED, 3) == packs
        assert not few(MOST_PACKED + 1, 2)
        assert not few(MOST_PACKED, 4)


def test_many_queries_among_few_candidates_take_two_passes_where_these_pay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scimult.retrieval.exact.multiplies_bytes", lambda: False)
    monkeypatch.setattr("scimult.retrieval.exact.multiplies_bfloat16", lambda device: True)
    queries_QD = _made(9, 256, 64)

    def in_passes(count: int, queries: int, k: int, first_pass: FirstPass = "auto") -> bool:
        ids = [f"{row:05}" for row in range(count)]
        index = ExactIndex(ids, _made(8, count, 64), "dot", first_pass=first_pass)
        whole = ExactIndex(ids, _made(8, count, 64), "dot", first_pass="float32")
        found = index.search(queries_QD[:queries], k)
        wanted = whole.search(queries_QD[:queries], k)
        np.testing.assert_allclose(found.scores_QK, wanted.scores_QK, rtol=1e-5)
        return "_in_bfloat16" in vars(index)

    assert in_passes(4096, 256, 4)
    assert not in_passes(4096, 255, 4)
    assert not in_passes(4095, 256, 3)
    assert not in_passes(4096, 256, 5)
    assert not in_passes(4096, 256, 4, "float32")


@pytest.mark.parametrize("count", [MOST_CANDIDATES, MOST_CANDIDATES + 1, MOST_PACKED + 1])
def test_a_product_that_overflows_is_refused_on_both_sides_of_the_limit(count: int) -> None:
    candidates_CD = np.ones((count, 2), np.float32)
    candidates_CD[7] = 3e38
    index = ExactIndex([str(row) for row in range(count)], candidates_CD, "dot")
    with pytest.raises(DataError, match="a score is not finite"):
        index.search(np.full((5, 2), 3.0, np.float32), 2)


@pytest.mark.parametrize("block_rows", [None, 2])
@pytest.mark.parametrize("on_host", [True, False])
def test_a_product_that_overflows_downwards_is_refused_where_it_would_be_listed(
    block_rows: int | None, on_host: bool
) -> None:
    candidates_CD = np.ones((3, 4), np.float32)
    candidates_CD[1] = -1e20
    queries_QD = np.array([[1e20] * 4, [1] * 4], np.float32)
    index = ExactIndex(list("abc"), candidates_CD, "dot", block_rows=block_rows)
    index._on_host = on_host
    with pytest.raises(DataError, match="a score is not finite"):
        index.search(queries_QD, 3)
    assert index.search(queries_QD[1:], 3).rows_QK.tolist() == [[2, 0, 1]]
    # Left out, or beyond the end of the list, it does no harm.
    left_out = index.search(queries_QD, 3, exclude_Q=np.array([1, 2]))
    assert left_out.rows_QK.tolist() == [[2, 0, -1], [0, 1, -1]]
    assert index.search(queries_QD, 2).rows_QK.tolist() == [[2, 0]] * 2


def test_no_query_and_no_result_give_empty_lists() -> None:
    index = ExactIndex(["a", "b"], np.eye(2, dtype=np.float32), "dot")
    assert index.search(np.empty((0, 2), np.float32), 1).rows_QK.shape == (0, 1)
    assert index.search(np.eye(2, dtype=np.float32), 0).rows_QK.shape == (2, 0)
