"""A first pass that reads bytes loses no candidate. Legend: Q queries, C candidates, D width."""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scimult.errors import DataError
from scimult.listed_products import may_use_faiss
from scimult.products import FEW, multiplies_few_by_onednn
from scimult.retrieval import byte_scan, exact, rounded
from scimult.retrieval.byte_scan import ByteScan
from scimult.retrieval.exact import ExactIndex
from scimult.retrieval.few_candidates import FewCandidates
from scimult.retrieval.runs import Ranking, id_order, places_of
from scimult.retrieval.vectors import Vectors
from scimult.types import FloatArray, IntArray, Similarity
from tests.retrieval.generated import assert_same, embeddings

pytestmark = pytest.mark.skipif(
    not (may_use_faiss() and multiplies_few_by_onednn()), reason="another search is faster here"
)

WIDTH = 64
KINDS = ["plain", "of other lengths", "close together", "with copies", "with a large dimension"]


@pytest.fixture(autouse=True)
def _at_once_and_at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_NUMBERS": 0, "_CANDIDATES": 1}.items():
        monkeypatch.setattr(byte_scan, name, value)
    monkeypatch.setattr(exact, "FEW_SEARCHES", 0)
    monkeypatch.setattr(FewCandidates, "suits", lambda _: False)


def _index(candidates_CD: FloatArray, similarity: Similarity = "dot") -> ExactIndex:
    """Return an index that has looked at all candidates, as only then bytes are read."""
    rows = np.random.default_rng(9).permutation(len(candidates_CD))
    index = ExactIndex([f"{row:05}" for row in rows], candidates_CD, similarity)
    index.search(np.ones((1, candidates_CD.shape[1]), dtype=np.float32), 1)
    return index


def _without(index: ExactIndex, queries_QD: FloatArray, k: int, **options: Any) -> Ranking:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExactIndex, "_scan_for", lambda *_: None)
        return index.search(queries_QD, k, **options)


@settings(max_examples=120, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    queries=st.integers(1, FEW),
    count=st.integers(1, 700),
    k=st.integers(1, 60),
    similarity=st.sampled_from(["dot", "cosine"]),
    leaves_out=st.booleans(),
    seed=st.integers(0, 99),
)
def test_lists_are_those_of_float32_bit_by_bit(
    kind: str,
    queries: int,
    count: int,
    k: int,
    similarity: Similarity,
    leaves_out: bool,
    seed: int,
) -> None:
    index = _index(embeddings(kind, count, WIDTH, seed), similarity)
    queries_QD = embeddings(kind, queries, WIDTH, seed + 100)
    exclude_Q: IntArray | None = None
    if leaves_out:  # the best, or none
        exclude_Q = _without(index, queries_QD, 1).rows_QK[:, 0].copy()
        exclude_Q[1:] = -1
    if k < count:
        options = {"exclude_Q": exclude_Q}
        expected = _without(index, queries_QD, k, **options)
        assert_same(index.search(queries_QD, k, **options), expected)
        assert isinstance(index.__dict__["_scan"], ByteScan)


@pytest.mark.long
@pytest.mark.parametrize("width", [64, 1100])
def test_lists_are_faisss_and_settled_at_once(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are those of ``IndexFlatIP``, whose products of so few queries are ours, too."""
    monkeypatch.setattr(ExactIndex, "_in_passes", lambda *_, **__: pytest.fail("searched again"))
    candidates_CD = embeddings("plain", 20_000, width, 1)
    index, theirs = _index(candidates_CD), faiss.IndexFlatIP(width)
    theirs.add(candidates_CD)
    for seed in range(5):
        queries_QD = embeddings("plain", FEW, width, seed + 2)
        ranking = index.search(queries_QD, 50)
        scores_QK, rows_QK = theirs.search(queries_QD, 50)
        assert np.array_equal(ranking.rows_QK, rows_QK)
        assert np.array_equal(ranking.scores_QK, scores_QK)


def _shares(
    candidates_CD: FloatArray, queries_QD: FloatArray, similarity: Similarity = "dot"
) -> FloatArray:
    """Return the errors of all rough products, as shares of their bounds, shape ``(Q, C)``."""
    count = len(candidates_CD)
    vectors = Vectors(candidates_CD, similarity, torch.device("cpu"))
    scan = ByteScan(vectors, places_of(id_order([f"{row:05}" for row in range(count)])))
    q_QD = vectors.queries(queries_QD)
    steps_Q = q_QD.abs().amax(dim=1) / rounded.LARGEST
    rough_QC, rows_QC = scan._first_pass(q_QD, steps_Q, count)
    assert np.array_equal(np.sort(rows_QC, axis=1), [range(count)] * len(q_QD))
    exact_QC = q_QD.double().numpy() @ vectors.block(0, count).scaled_BD.double().numpy().T
    off_QC = rough_QC - np.take_along_axis(exact_QC, rows_QC, axis=1)
    return off_QC / scan._error_of(q_QD, steps_Q).numpy()[:, None]


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_within_the_bound_which_is_not_loose(kind: str, similarity: Similarity) -> None:
    """The bound allows for 9.6 standard deviations; the largest of 80,000 has three to six.

    Less than a fifth of one is the error's mean: dithers are subtracted.
    """
    queries_QD = embeddings(kind, FEW, WIDTH, 4)
    shares_QC = _shares(embeddings(kind, 20_000, WIDTH, 3), queries_QD, similarity)
    assert (np.abs(shares_QC) < 1).all()
    assert (np.abs(shares_QC).max(axis=1) > 0.1).all()
    assert (np.abs(shares_QC.mean(axis=1)) < 0.2 / rounded.SURE).all()


def test_numbers_that_all_round_to_one_side_stay_within_the_bound() -> None:
    """To nearest, candidates were off by 0.4 of a step in a query's direction in each dimension.

    And the query by half a step, in the direction of some candidates.
    """
    rng = np.random.default_rng(0)
    sign_D = rng.choice([-1.0, 1.0], 1024)
    candidates_CD = rng.integers(-3, 4, (512, 1024)) + 0.4 * sign_D * rng.choice([-1, 1], (512, 1))
    candidates_CD[:4] += 60 * sign_D
    candidates_CD[4:8] -= 60 * sign_D
    candidates_CD[8, 0] = rounded.LARGEST  # the step is 1
    queries_QD = np.stack([sign_D, np.where(np.arange(1024) < 512, sign_D, 0.001)])
    shares_QC = _shares(candidates_CD.astype(np.float32), queries_QD.astype(np.float32))
    assert np.abs(shares_QC).max() < 1


def test_where_bytes_cannot_tell_candidates_apart_they_are_given_up() -> None:
    candidates_CD = np.ones((900, WIDTH), dtype=np.float32)
    candidates_CD[:, 0] = 1 + np.arange(900) * 2.0**-23  # float32 tells their products apart
    index, query_1D = _index(candidates_CD), np.eye(WIDTH, dtype=np.float32)[:1] * 2
    expected = _without(index, query_1D, 5)
    assert expected.rows_QK[0].tolist() == [899, 898, 897, 896, 895]
    for attempt in range(byte_scan._MOST_MISSES + 2):
        assert index._scan.is_useful == (attempt < byte_scan._MOST_MISSES)
        assert_same(index.search(query_1D, 5), expected)


def test_a_list_that_is_settled_makes_up_for_others() -> None:
    index = _index(embeddings("plain", 900, WIDTH, 5))
    index._scan._misses = byte_scan._MOST_MISSES - 1
    index.search(embeddings("plain", 1, WIDTH, 6), 5)
    assert index._scan._misses == 0


@pytest.mark.parametrize("size", [1e-30, 1e18, 3e30])
def test_large_and_small_numbers_are_searched_or_refused_as_before(size: float) -> None:
    candidates_CD = embeddings("plain", 900, WIDTH, 7) * np.float32(size)
    index, query_1D = _index(candidates_CD), embeddings("plain", 1, WIDTH, 8)
    for factor in (1e-30, 1.0, 3e7):
        scaled_1D = query_1D * np.float32(factor)
        try:
            expected = _without(index, scaled_1D, 9)
        except DataError:
            with pytest.raises(DataError, match="is not finite"):
                index.search(scaled_1D, 9)
        else:
            assert_same(index.search(scaled_1D, 9), expected)


@pytest.mark.long
def test_bytes_are_read_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    candidates_CD = np.zeros((1 << 17, 128), dtype=np.float32)
    candidates_CD[:, 0] = 1
    ids = [f"{row}" for row in range(len(candidates_CD))]

    def is_read(
        queries: int = 1, k: int = 10, similarity: Similarity = "dot", before: int = 32, **how: Any
    ) -> bool:
        given_CD = how.pop("candidates_CD", candidates_CD)
        index = ExactIndex(ids[: len(given_CD)], given_CD, similarity, **how)
        index._vectors.block(0, len(given_CD))  # then all were looked at
        index._single_queries = before
        monkeypatch.setattr(ExactIndex, "_scan", SEEN)
        return index._scan_for(queries, k) is SEEN

    assert is_read()
    assert is_read(similarity="cosine")
    assert is_read(before=30, queries=3)
    assert not is_read(before=30)
    assert not is_read(queries=FEW + 1)
    assert not is_read(k=0)
    assert not is_read(candidates_CD=np.ones((4096, 4096), dtype=np.float32))
    assert not is_read(k=2000)
    assert not is_read(similarity="l2")
    assert not is_read(first_pass="float32")
    assert not is_read(block_rows=4096)
    assert not is_read(candidates_CD=candidates_CD.astype(np.float16))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert not is_read()
    assert is_read(queries=2)


class _Seen:
    is_useful = True


SEEN = _Seen()
