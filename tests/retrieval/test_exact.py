"""Shape legend: Q queries, C candidates, D width, K results, P listed pairs."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import scimult.products
from scimult.data.ragged import Ragged
from scimult.errors import DataError, UnknownNameError
from scimult.products import multiplies_bytes, products
from scimult.retrieval import block_scores
from scimult.retrieval.bm25 import BM25Index
from scimult.retrieval.exact import ExactIndex, FirstPass
from scimult.retrieval.runs import Ranking
from scimult.types import FloatArray, IntArray, Similarity


def _ids(count: int, rng: np.random.Generator) -> list[str]:
    """Return distinct ids whose alphabetical order is not their row order."""
    return [f"d{number}" for number in rng.permutation(count)]


def _literal(
    queries_QD: FloatArray, candidates_CD: FloatArray, ids: list[str], k: int, left_out: IntArray
) -> list[list[int]]:
    """Sort one whole matrix product in Python: higher score, then descending id."""
    scores_QC = queries_QD @ candidates_CD.T
    lists = []
    for query, scores_C in enumerate(scores_QC):
        rows = [row for row in range(len(ids)) if row != left_out[query]]
        rows.sort(key=lambda row: ids[row], reverse=True)
        rows.sort(key=lambda row: -scores_C[row])
        lists.append(rows[:k])
    return lists


FIRST_PASSES: list[FirstPass] = ["float32", "bfloat16", *(["int8"] if multiplies_bytes() else [])]


def _lists(ranking: Ranking) -> list[list[int]]:
    return [[int(row) for row in rows if row >= 0] for rows in ranking.rows_QK]


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    n_queries=st.integers(1, 7),
    n_candidates=st.integers(1, 40),
    width=st.integers(1, 4),
    spread=st.integers(0, 2),
    k=st.integers(1, 45),
    query_rows=st.integers(1, 8),
    block_rows=st.none() | st.integers(1, 50),
    first_pass=st.sampled_from(FIRST_PASSES),
)
def test_search_is_one_matrix_product_ties_included(
    seed: int,
    n_queries: int,
    n_candidates: int,
    width: int,
    spread: int,
    k: int,
    query_rows: int,
    block_rows: int | None,
    first_pass: FirstPass,
) -> None:
    """Small integers make products exact, so equal scores are equal however blocks are cut."""
    rng = np.random.default_rng(seed)
    queries_QD = rng.integers(-spread, spread + 1, (n_queries, width)).astype(np.float32)
    candidates_CD = rng.integers(-spread, spread + 1, (n_candidates, width)).astype(np.float32)
    left_out_Q = rng.integers(-1, n_candidates, n_queries)
    ids = _ids(n_candidates, rng)
    index = ExactIndex(
        ids,
        candidates_CD,
        "dot",
        first_pass=first_pass,
        query_rows=query_rows,
        block_rows=block_rows,
    )
    ranking = index.search(queries_QD, k, exclude_Q=left_out_Q)
    assert _lists(ranking) == _literal(queries_QD, candidates_CD, ids, k, left_out_Q)
    filled_QK = ranking.rows_QK >= 0
    assert np.array_equal(filled_QK, np.isfinite(ranking.scores_QK))
    products_QK = np.take_along_axis(queries_QD @ candidates_CD.T, ranking.rows_QK, axis=1)
    assert np.array_equal(ranking.scores_QK[filled_QK], products_QK[filled_QK])


@pytest.mark.parametrize("similarity", ["cosine", "l2"])
def test_other_similarities_equal_their_direct_form(similarity: str) -> None:
    rng = np.random.default_rng(0)
    queries_QD = rng.normal(size=(20, 16)).astype(np.float32)
    candidates_CD = (rng.normal(size=(300, 16)) * rng.uniform(0.2, 4, (300, 1))).astype(np.float32)
    if similarity == "cosine":
        norms = np.linalg.norm(queries_QD, axis=1)[:, None] * np.linalg.norm(candidates_CD, axis=1)
        direct_QC = queries_QD @ candidates_CD.T / norms
    else:
        direct_QC = -np.linalg.norm(queries_QD[:, None] - candidates_CD[None], axis=2)
    index = ExactIndex(_ids(300, rng), candidates_CD, similarity, block_rows=70)  # type: ignore[arg-type]
    ranking = index.search(queries_QD, 50)
    assert np.array_equal(ranking.rows_QK, np.argsort(-direct_QC, axis=1)[:, :50])
    if similarity == "cosine":
        wanted_QK = np.take_along_axis(direct_QC, ranking.rows_QK, axis=1)
        np.testing.assert_allclose(ranking.scores_QK, wanted_QK, atol=1e-6)


@pytest.mark.parametrize("offset", [0, 5, 50, 500])
def test_l2_keeps_its_order_under_a_common_offset(offset: float) -> None:
    """Embeddings that share most of their length, against float64 distances."""
    rng = np.random.default_rng(3)
    queries_QD = (rng.normal(size=(20, 64)) + offset).astype(np.float32)
    candidates_CD = (rng.normal(size=(400, 64)) + offset).astype(np.float32)
    ids = _ids(400, rng)
    apart_QCD = queries_QD[:, None].astype(np.float64) - candidates_CD[None]
    distances_QC = np.square(apart_QCD).sum(axis=2)
    index = ExactIndex(ids, candidates_CD, "l2", block_rows=90)
    everything = Ragged.from_lists([list(range(400))] * 20)
    for ranking in (index.search(queries_QD, 400), index.rank_listed(queries_QD, everything)):
        found_QK = np.take_along_axis(distances_QC, np.array(_lists(ranking)), axis=1)
        # Squares of about 130: sums of 64 float32 products, each rounded to 2**-24 of its size.
        # Ranks may differ only where distances are closer than that.
        assert np.diff(found_QK, axis=1).min() >= -64 * 130 * 2.0**-24


def test_listed_candidates_are_ranked_as_in_the_whole_list() -> None:
    rng = np.random.default_rng(1)
    queries_QD = rng.integers(-2, 3, (9, 3)).astype(np.float32)
    candidates_CD = rng.integers(-2, 3, (40, 3)).astype(np.float32)
    ids = _ids(40, rng)
    listed = [rng.choice(40, size, replace=False).tolist() for size in (3, 0, 40, 1, 7, 7, 2, 5, 0)]
    index = ExactIndex(ids, candidates_CD, "dot")
    everything = _lists(index.search(queries_QD, 40))
    wanted = [
        [row for row in rows if row in chosen]
        for rows, chosen in zip(everything, listed, strict=True)
    ]
    assert _lists(index.rank_listed(queries_QD, Ragged.from_lists(listed))) == wanted


def test_a_zero_vector_has_cosine_zero() -> None:
    index = ExactIndex(["a", "b"], np.array([[0.0, 0.0], [-1.0, 0.0]], np.float32), "cosine")
    ranking = index.search(np.array([[2.0, 0.0]], np.float32), 2)
    assert ranking.scores_QK.tolist() == [[0.0, -1.0]]


@pytest.mark.parametrize("first_pass", FIRST_PASSES)
@pytest.mark.parametrize("similarity", ["dot", "cosine", "l2"])
def test_settings_of_torch_around_a_search_change_no_score(
    similarity: Similarity, first_pass: FirstPass, monkeypatch: pytest.MonkeyPatch
) -> None:
    for probe in (
        "multiplies_by_onednn",
        "multiplies_few_by_onednn",
    ):  # autocast leaves oneDNN's products alone
        monkeypatch.setattr(scimult.products, probe, lambda: False)
    rng = np.random.default_rng(0)
    queries_QD, x_CD = (rng.normal(size=(n, 64)).astype(np.float32) for n in (9, 300))
    ids, lists = _ids(300, rng), Ragged(np.arange(9), np.arange(10))

    def found() -> list[Ranking]:
        index = ExactIndex(ids, x_CD, similarity, first_pass=first_pass, block_rows=64)
        few = ExactIndex(ids, x_CD, similarity).search(queries_QD, 5)
        return [index.search(queries_QD, 5), few, index.rank_listed(queries_QD, lists)]

    expected = found()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rankings = found()
    for dtype in (torch.float64, torch.float16):
        torch.set_default_dtype(dtype)
        try:
            rankings += found()
        finally:
            torch.set_default_dtype(torch.float32)
    for wanted, ranking in zip(3 * expected, rankings, strict=True):
        np.testing.assert_array_equal(ranking.rows_QK, wanted.rows_QK)
        np.testing.assert_array_equal(ranking.scores_QK, wanted.scores_QK)


def test_half_precision_candidates_are_multiplied_in_float32() -> None:
    rng = np.random.default_rng(2)
    candidates_CD = rng.normal(size=(30, 8)).astype(np.float16)
    queries_QD = rng.normal(size=(4, 8)).astype(np.float32)
    half = ExactIndex(_ids(30, rng), candidates_CD, "dot")  # type: ignore[arg-type]
    whole_QC = queries_QD @ candidates_CD.astype(np.float32).T
    ranking = half.search(queries_QD, 30)
    assert np.array_equal(ranking.rows_QK, np.argsort(-whole_QC, axis=1))


@pytest.mark.parametrize("dtype", [">f4", "<f4", ">f8", "g"])
def test_numbers_of_any_machine_are_ranked(dtype: str) -> None:
    rng = np.random.default_rng(0)
    candidates_CD = rng.integers(-4, 5, (30, 8)).astype(np.float32)
    queries_QD, ids = candidates_CD[:3] + 1, _ids(30, rng)
    wanted = ExactIndex(ids, candidates_CD, "dot").search(queries_QD, 5)
    found = ExactIndex(ids, candidates_CD.astype(dtype), "dot").search(queries_QD.astype(dtype), 5)
    np.testing.assert_array_equal(found.rows_QK, wanted.rows_QK)
    np.testing.assert_array_equal(found.scores_QK, wanted.scores_QK)


@pytest.mark.parametrize("width", [1, 4])
def test_a_row_or_a_column_seen_backwards_is_ranked(width: int) -> None:
    """numpy calls such a view contiguous; torch refuses its negative stride."""
    column = np.arange(5, dtype=np.float32).reshape(5, 1)
    row = np.arange(width, dtype=np.float32).reshape(1, width)
    for backwards, queries_QD in ((column[:, ::-1], column[:1, ::-1]), (row[::-1], row[::-1])):
        ids = list("abcde"[: len(backwards)])
        found = ExactIndex(ids, backwards, "dot").search(queries_QD, 1)
        assert found.scores_QK == (queries_QD @ backwards.T).max()


def test_what_would_be_read_as_another_search_is_refused() -> None:
    candidates_CD = np.eye(3, dtype=np.float32)
    with pytest.raises(UnknownNameError, match=r"unknown similarity .value: 'cos'.*'cosine'"):
        ExactIndex(list("abc"), candidates_CD, "cos")  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="unknown first pass"):
        ExactIndex(list("abc"), candidates_CD, "dot", first_pass="fp8")  # type: ignore[arg-type]
    index, words = ExactIndex(list("abc"), candidates_CD, "dot"), BM25Index(list("ab"), ["xx"] * 2)
    for excluded in (np.array([1]), np.zeros((2, 1), np.int64)):
        with pytest.raises(DataError, match="excluded rows of shape .* for 2 queries"):
            index.search(candidates_CD[:2], 1, exclude_Q=excluded)
        with pytest.raises(DataError, match="excluded rows of shape .* for 2 queries"):
            words.search(["xx", "xx"], 1, exclude_Q=excluded)


def test_memory_is_one_block_of_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    sizes: list[int] = []
    most = 0

    def noted(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        nonlocal most
        found = products(left, right)
        alive.add(found)
        sizes.append(found.untyped_storage().nbytes())
        most = max(most, len(alive))
        return found

    monkeypatch.setattr(block_scores, "products", noted)
    candidates_CD = np.ones((1000, 2), np.float32)
    index = ExactIndex(
        [str(row) for row in range(1000)], candidates_CD, "dot", query_rows=16, block_rows=64
    )
    index.search(np.ones((100, 2), np.float32), 5)
    assert len(sizes) == 7 * 16
    assert max(sizes) == 16 * 64 * 4
    assert most <= 2


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("queries", "candidates", "message"),
    [
        ([[1.0, NAN]], [[1.0, 1.0]], "a query embedding is not finite in 1 of 2 numbers"),
        ([[1.0, 1.0]], [[1.0, INF]], "a candidate embedding is not finite in 1 of 2 numbers"),
        ([[1e30, 1.0]], [[1e30, 1.0]], "a score is not finite"),
        ([[1.0]], [[1.0, 1.0]], "of shape (1, 1) against candidates of width 2"),
    ],
)
def test_embeddings_that_cannot_be_ranked(
    queries: list[list[float]], candidates: list[list[float]], message: str
) -> None:
    index = ExactIndex(["a"], np.array(candidates, np.float32), "dot")
    with pytest.raises(DataError) as caught:
        index.search(np.array(queries, np.float32), 1)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("ids", "shape", "message"),
    [
        (["a", "b", "a"], (3, 2), "have the same id (value: 'a')"),
        (["a", "b"], (3, 2), "2 candidate ids for embeddings of shape (3, 2)"),
        (["a", "b"], (2,), "2 candidate ids for embeddings of shape (2,)"),
        ([], (0, 2), "0 candidate ids"),
    ],
)
def test_candidates_that_cannot_be_indexed(
    ids: list[str], shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(DataError) as caught:
        ExactIndex(ids, np.zeros(shape, np.float32), "dot")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (np.ndarray.tolist, r"of type list. Fix: pass numpy.asarray\(x, dtype='float32'\)"),
        (torch.from_numpy, r"of type Tensor. Fix: pass x.numpy\(force=True\)"),
        (lambda _: None, "of type NoneType"),
    ],
)
def test_what_is_no_array_is_refused(
    make: Callable[[FloatArray], FloatArray], message: str
) -> None:
    """They ended in an AttributeError."""
    eye = np.eye(2, dtype=np.float32)
    with pytest.raises(DataError, match=f"candidate embeddings are not .*, but {message}"):
        ExactIndex(["a", "b"], make(eye), "dot")
    index = ExactIndex(["a", "b"], eye, "dot")
    with pytest.raises(DataError, match=f"query embeddings are not .*, but {message}"):
        index.search(make(eye), 1)
    with pytest.raises(DataError, match=f"query embeddings are not .*, but {message}"):
        index.rank_listed(make(eye), Ragged.from_lists([[0], [1]]))


def test_a_list_of_negative_length_is_refused() -> None:
    index = ExactIndex(["a", "b"], np.eye(2, dtype=np.float32), "dot")
    with pytest.raises(DataError, match="length of a list is negative .value: -1"):
        index.search(np.eye(2, dtype=np.float32), -1)
    with pytest.raises(DataError, match="length of a list is negative"):
        BM25Index(["a", "b"], ["graphs", "trees"]).search(["graphs"], -1)
    assert index.search(np.eye(2, dtype=np.float32), 0).rows_QK.shape == (2, 0)


@pytest.mark.parametrize("first_pass", FIRST_PASSES)
@pytest.mark.parametrize("similarity", ["dot", "l2"])
def test_queries_whose_squared_length_overflows(
    first_pass: FirstPass, similarity: Similarity
) -> None:
    """Their products are numbers, also next to candidates that rounding leaves as they are."""
    rng = np.random.default_rng(8)
    queries_QD = 1e20 * rng.normal(size=(6, 64)).astype(np.float32)
    for candidates_CD in (rng.normal(size=(901, 64)), rng.choice([-1.0, 1.0], (901, 64))):
        x_CD, left_out = candidates_CD.astype(np.float32), np.arange(6)
        index = ExactIndex(_ids(901, rng), x_CD, similarity, first_pass=first_pass)
        found = index.search(queries_QD, 5, exclude_Q=left_out)
        wanted_QC = queries_QD.astype(np.float64) @ x_CD.T
        wanted_QC[left_out, left_out] = -np.inf
        wanted_QK = -np.sort(-wanted_QC, axis=1)[:, :5]
        np.testing.assert_allclose(found.scores_QK, wanted_QK, rtol=1e-5)
