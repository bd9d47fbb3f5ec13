"""Searches by faiss list what our own products list. Legend: Q queries, C candidates, D width."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scimult.errors import DataError
from scimult.products import FEW
from scimult.retrieval import exact, nearest
from scimult.retrieval.exact import ExactIndex, FirstPass
from scimult.retrieval.few_candidates import MOST_PACKED
from scimult.retrieval.nearest import Nearest
from scimult.retrieval.runs import Ranking
from scimult.types import FloatArray, Similarity
from tests.retrieval.generated import assert_same


def _ids(count: int, seed: int = 0) -> list[str]:
    return [f"d{number}" for number in np.random.default_rng(seed).permutation(count)]


def _vectors(rows: int, width: int, distinct: int, seed: int) -> FloatArray:
    """Return integers, whose products have few values, so that many are equal."""
    numbers_ND = np.random.default_rng(seed).integers(-distinct, distinct + 1, (rows, width))
    return numbers_ND.astype(np.float32)


def _without_faiss(index: ExactIndex, queries_QD: FloatArray, k: int) -> Ranking:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExactIndex, "_by_faiss", lambda *_: None)
        return index.search(queries_QD, k)


@settings(max_examples=150, deadline=None)
@given(
    queries=st.integers(1, FEW),
    count=st.integers(1, 300),
    width=st.integers(1, 40),
    distinct=st.sampled_from([1, 4, 10**5]),
    k=st.integers(1, 320),
    similarity=st.sampled_from(["dot", "cosine"]),
)
def test_lists_are_ours_ties_included(
    queries: int, count: int, width: int, distinct: int, k: int, similarity: Similarity
) -> None:
    candidates_CD = _vectors(count, width, distinct, 1)
    queries_QD = _vectors(queries, width, distinct, 2)
    index = ExactIndex(_ids(count), candidates_CD, similarity)
    assert_same(index.search(queries_QD, k), _without_faiss(index, queries_QD, k))


@pytest.mark.parametrize("distinct", [3, 10**5])
def test_many_candidates_are_searched_as_they_are_once_they_were_checked(distinct: int) -> None:
    count = MOST_PACKED + 1
    candidates_CD, query_1D = _vectors(count, 12, distinct, 3), _vectors(1, 12, distinct, 4)
    index = ExactIndex(_ids(count), candidates_CD, "dot")
    first = index.search(query_1D, 50)
    assert index._built_nearest is None
    second = index.search(query_1D, 50)
    assert index._built_nearest is not None
    assert_same(second, first)
    assert_same(index.search(query_1D[:, :].astype(np.float64), 50), first)


def test_equal_scores_inside_a_list_are_sorted_and_at_its_end_left_to_us() -> None:
    candidates_CD = np.array([[1], [3], [2], [3], [1]], dtype=np.float32)
    # Equal scores come by descending id: row 3 before row 1.
    place_C = np.array([4, 3, 2, 1, 0])
    searched = Nearest(candidates_CD, place_C)
    query_11 = np.ones((1, 1), dtype=np.float32)
    three = searched.search(query_11, 3)
    assert three is not None
    assert three.rows_QK.tolist() == [[3, 1, 2]]
    assert searched.search(query_11, 4) is None
    assert searched.search(query_11, 1) is None
    whole = searched.search(query_11, 5)
    assert whole is not None
    assert whole.rows_QK.tolist() == [[3, 1, 2, 4, 0]]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_queries_that_cannot_be_written_are_read(similarity: Similarity) -> None:
    index, queries_QD = (
        ExactIndex(_ids(20), _vectors(20, 4, 9, 6), similarity),
        np.ones((2, 4), "f"),
    )
    writeable = index.search(queries_QD, 5)
    queries_QD.setflags(write=False)
    assert_same(index.search(queries_QD, 5), writeable)


@pytest.mark.parametrize("number", [3e38, np.inf, np.nan])
def test_products_that_might_overflow_are_left_to_us_which_refuses_them(number: float) -> None:
    """faiss lists no sum that is not a number, and says nothing."""
    candidates_CD = np.array([[3, -3], [1, 1]], dtype=np.float32)
    index = ExactIndex(["a", "b"], candidates_CD, "dot")
    assert len(index.search(np.ones((1, 2), dtype=np.float32), 1)) == 1
    with pytest.raises(DataError, match="not finite"):
        index.search(np.full((1, 2), number, dtype=np.float32), 1)


def test_candidates_that_are_not_finite_are_refused_first() -> None:
    candidates_CD = _vectors(MOST_PACKED + 1, 3, 5, 5)
    candidates_CD[-1, 1] = np.nan
    index = ExactIndex(_ids(len(candidates_CD)), candidates_CD, "dot")
    for _ in range(2):
        with pytest.raises(DataError, match="candidate embedding is not finite"):
            index.search(np.ones((1, 3), dtype=np.float32), 1)


def test_faiss_is_asked_where_it_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads all candidates for each query, and only queries share its threads."""
    small, large = (
        Nearest(np.zeros((rows, 8), dtype=np.float32), np.arange(rows)) for rows in (10, 1000)
    )
    monkeypatch.setattr(nearest, "_MOST_NUMBERS", 1000)
    monkeypatch.setattr(nearest, "_MOST_FOR_FEW", 2 * 1000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert [small.suits(queries) for queries in (0, 1, 12, 13)] == [False, True, True, False]
    medium = Nearest(np.zeros((60, 8), dtype=np.float32), np.arange(60))
    assert [medium.suits(queries) for queries in (FEW, FEW + 1)] == [True, False]
    assert not large.suits(1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert large.suits(1)
    assert not large.suits(2)


@pytest.mark.parametrize("first_pass", ["bfloat16", "float32"])
def test_a_first_pass_that_was_asked_for_is_made(first_pass: FirstPass) -> None:
    index = ExactIndex(_ids(200), _vectors(200, 70, 9, 6), "dot", first_pass=first_pass)
    for _ in range(2):
        index.search(_vectors(6, 70, 9, 7), 5)
    assert (index._built_nearest is None) == (first_pass == "bfloat16")


def test_where_two_libraries_of_openmp_would_meet_faiss_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exact, "may_use_faiss", lambda: False)
    index = ExactIndex(_ids(20), _vectors(20, 4, 9, 6), "dot")
    index.search(_vectors(1, 4, 9, 7), 5)
    assert index._built_nearest is None
