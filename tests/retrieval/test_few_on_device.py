"""A few queries on a device that is not the host, by the stand-in of `tests.far_device`.

`test_search_on_gpu.py` compares its lists with the CPU's. Legend: Q queries, C candidates, D width.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scimult.errors import DataError
from scimult.retrieval import few_on_device, vectors
from scimult.retrieval.exact import ExactIndex
from scimult.retrieval.few_on_device import FewOnDevice
from scimult.types import FloatArray
from tests.far_device import FAR, FarDevice

_COUNT, _WIDTH, _K = 10_000, 16, 10


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each search was answered without the blocks of the general one."""
    answers: list[bool] = []
    search = FewOnDevice.search

    def spy(*args: object, **kwargs: object) -> object:
        found = search(*args, **kwargs)  # type: ignore[arg-type]
        answers.append(found is not None)
        return found

    monkeypatch.setattr(FewOnDevice, "search", spy)
    monkeypatch.setattr(vectors, "free_memory", lambda device: 1 << 40)
    return answers


def _made(seed: int, rows: int) -> FloatArray:
    return np.random.default_rng(seed).normal(size=(rows, _WIDTH)).astype(np.float32)


def _indices(candidates_CD: FloatArray) -> tuple[ExactIndex, ExactIndex]:
    ids = [f"{row:05}" for row in np.random.default_rng(5).permutation(len(candidates_CD))]
    there = ExactIndex(ids, candidates_CD, "dot", device=FAR)
    return there, ExactIndex(ids, candidates_CD, "dot", first_pass="float32")


@pytest.mark.parametrize(("queries", "k"), [(1, 1), (5, _K), (64, 128), (1, _COUNT)])
def test_one_product_answers_a_few_queries(answered: list[bool], queries: int, k: int) -> None:
    """Scores may differ by what the order of 16 float32 sums changes."""
    queries_QD, excluded_Q = _made(1, queries), np.arange(queries) - 1
    there, here = _indices(_made(0, _COUNT))
    wanted = here.search(queries_QD, k, exclude_Q=excluded_Q)
    with FarDevice():
        found = there.search(queries_QD, k, exclude_Q=excluded_Q)
    assert answered == [k <= 1 << 13]
    assert (found.rows_QK == wanted.rows_QK).mean() > 0.999
    tolerance = 2 * _WIDTH * 2.0**-24 * 8 * np.linalg.norm(queries_QD, axis=1).max()
    assert np.allclose(found.scores_QK, wanted.scores_QK, rtol=0, atol=tolerance)


def test_more_equal_scores_than_are_kept_need_the_general_search(answered: list[bool]) -> None:
    """Integers, so that sums are exact and the lists those of the CPU."""
    candidates_CD = np.random.default_rng(0).integers(-1, 2, (_COUNT, _WIDTH)).astype(np.float32)
    queries_QD = np.random.default_rng(1).integers(-1, 2, (3, _WIDTH)).astype(np.float32)
    there, here = _indices(candidates_CD)
    wanted = here.search(queries_QD, 200)
    with FarDevice():
        found = there.search(queries_QD, 200)
    assert answered == [False]
    assert np.array_equal(found.rows_QK, wanted.rows_QK)
    assert np.array_equal(found.scores_QK, wanted.scores_QK)


@pytest.mark.parametrize("limit", ["_QUERIES", "FEW_RESULTS", "_SCORES"])
def test_many_queries_results_or_scores_are_left_to_the_general_search(
    answered: list[bool], limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few_on_device, limit, 1)
    there, here = _indices(_made(0, _COUNT))
    with FarDevice():
        found = there.search(_made(1, 2), _K)
    assert answered == [False]
    assert np.array_equal(found.rows_QK, here.search(_made(1, 2), _K).rows_QK)


def test_candidates_that_do_not_fit_are_multiplied_in_blocks(
    answered: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "free_memory", lambda device: 0)
    there, here = _indices(_made(0, _COUNT))
    with FarDevice():
        found = there.search(_made(1, 2), _K)
    assert answered == []
    assert np.array_equal(found.rows_QK, here.search(_made(1, 2), _K).rows_QK)


def test_scores_that_overflow_are_refused(answered: list[bool]) -> None:
    candidates_CD = _made(0, _COUNT)
    candidates_CD[7] = 3e38
    there, _ = _indices(candidates_CD)
    queries_QD = np.full((2, _WIDTH), 2.0, np.float32)
    with FarDevice(), pytest.raises(DataError, match="a score is not finite"):
        there.search(queries_QD, _K)
    with FarDevice(), pytest.raises(DataError, match="a score is not finite"):
        there.search(-queries_QD, _COUNT)


def test_no_queries_and_no_results_are_empty_lists(answered: list[bool]) -> None:
    there, _ = _indices(_made(0, _COUNT))
    with FarDevice():
        assert there.search(_made(1, 0), _K).rows_QK.shape == (0, _K)
        assert there.search(_made(1, 2), 0).rows_QK.shape == (2, 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel works here")
def test_where_triton_cannot_compile_torch_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    works = vectors._multiplies_pairs.__wrapped__
    assert not works(torch.device("meta"), _WIDTH)
    monkeypatch.setattr(vectors, "may_compile_kernels", lambda device: True)
    assert not works(torch.device("cuda"), _WIDTH)
    assert not works(torch.device("cuda"), 1 << 14)


def test_a_product_depends_on_its_two_vectors_alone() -> None:
    """The kernel of listed pairs, in Triton's interpreter, against float64."""
    pytest.importorskip("triton.runtime.interpreter")
    from scimult.retrieval.pair_kernel import products_of_pairs

    width = 24
    rng = np.random.default_rng(0)
    x_CD, q_QD = (
        torch.from_numpy(rng.normal(size=(rows, width)).astype(np.float32)) for rows in (40, 7)
    )
    bias_C = torch.from_numpy(rng.normal(size=40).astype(np.float32))
    rows_P, query_P = (torch.from_numpy(rng.integers(0, top, 60)) for top in (40, 7))
    for bias in (None, bias_C):
        found_P = products_of_pairs(x_CD, bias, q_QD, query_P, rows_P)
        wanted_P = (x_CD[rows_P].double() * q_QD[query_P].double()).sum(dim=1)
        wanted_P += 0.0 if bias is None else bias[rows_P].double()
        # 24 sums of products of a few units each.
        assert float((found_P - wanted_P).abs().max()) < 24 * 2.0**-24 * 30
        some_P = products_of_pairs(x_CD, bias, q_QD, query_P[3:9], rows_P[3:9].int())
        assert torch.equal(some_P, found_P[3:9])
    assert not len(products_of_pairs(x_CD, None, q_QD, query_P[:0], rows_P[:0]))
