"""Candidates are multiplied as they are given. Legend: Q queries, C candidates, D width."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from scimult.data.ragged import Ragged
from scimult.products import multiplies_bytes
from scimult.retrieval import vectors
from scimult.retrieval.embeddings import unit_rows
from scimult.retrieval.exact import ExactIndex, FirstPass
from scimult.retrieval.unit import unit_vectors
from scimult.retrieval.vectors import Vectors
from scimult.types import FloatArray, Similarity

FIRST_PASSES: list[FirstPass] = ["float32", "bfloat16"]
FIRST_PASSES += ["int8"] if multiplies_bytes() else []
_COUNT, _WIDTH = 9000, 64


def _made(offset: float) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(0)
    candidates_CD = rng.normal(size=(_COUNT, _WIDTH)) * rng.uniform(0.5, 2, (_COUNT, 1)) + offset
    queries_QD = rng.normal(size=(8, _WIDTH)) + offset
    return queries_QD.astype(np.float32), candidates_CD.astype(np.float32)


@pytest.mark.parametrize("similarity", ["dot", "cosine", "l2"])
def test_no_search_copies_candidates_nor_measures_them_again(
    similarity: Similarity, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []
    for name in ("unit_scales", "_bias"):
        original = getattr(vectors, name)

        def noted(x_BD: torch.Tensor, original: object = original) -> torch.Tensor:
            measured.append(len(x_BD))
            return original(x_BD)  # type: ignore[operator,no-any-return]

        monkeypatch.setattr(vectors, name, noted)
    queries_QD, candidates_CD = _made(0.3)
    ids = [f"{row:05}" for row in range(_COUNT)]
    index = ExactIndex(ids, candidates_CD, similarity, first_pass="float32")
    for count in (1, 3, 8):
        index.search(queries_QD[:count], 9)
    assert sum(measured) == (0 if similarity == "dot" else _COUNT)
    block = index._vectors.block(1000, 2000)
    assert block.vectors_BD.data_ptr() == candidates_CD[1000:].ctypes.data


@pytest.mark.parametrize("offset", [0.0, 0.3, 5.0])
@pytest.mark.parametrize("similarity", ["cosine", "l2"])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_one_pass_lists_what_float64_lists(
    similarity: Similarity, offset: float, count: int
) -> None:
    """Ranks may differ only where scores are closer than float32 products can tell.

    A sum of D products is off by D u ‖q‖‖d‖ at most (u = 2**-24), here on both sides; for the
    distance q and d are those less a point between them where they have much in common.
    """
    queries_QD, candidates_CD = _made(offset)
    ids = [f"{row:05}" for row in range(_COUNT)]
    index = ExactIndex(ids, candidates_CD, similarity, first_pass="float32")
    found = index.search(queries_QD[:count], 20)
    q_QD, d_CD = queries_QD[:count].astype(np.float64), candidates_CD.astype(np.float64)
    q_QD, d_CD = (x - offset if similarity == "l2" else x for x in (q_QD, d_CD))
    lengths_C, lengths_Q1 = np.linalg.norm(d_CD, axis=1), np.linalg.norm(q_QD, axis=1)[:, None]
    scores_QC, unit = q_QD @ d_CD.T, float((lengths_Q1 * lengths_C).max())
    if similarity == "cosine":
        scores_QC, unit = scores_QC / lengths_C / lengths_Q1, 1.0
    else:
        scores_QC, unit = scores_QC - 0.5 * lengths_C**2, unit + 0.5 * float(lengths_C.max()) ** 2
    wanted_QK = -np.sort(-scores_QC, axis=1)[:, :20]
    found_QK = np.take_along_axis(scores_QC, found.rows_QK, axis=1)
    assert (np.abs(found_QK - wanted_QK) <= 2 * _WIDTH * 2.0**-24 * unit).all()
    if similarity == "cosine":
        np.testing.assert_allclose(found.scores_QK, wanted_QK, rtol=0, atol=_WIDTH * 2.0**-24)


@pytest.mark.parametrize(("offset", "centred"), [(0.3, False), (5.0, True)])
def test_only_what_is_large_in_common_is_subtracted(offset: float, centred: bool) -> None:
    _, candidates_CD = _made(offset)
    centre_D = Vectors(candidates_CD, "l2", torch.device("cpu"))._centre_D
    assert (centre_D is not None) is centred


@pytest.mark.parametrize("first_pass", FIRST_PASSES)
@pytest.mark.parametrize("block_rows", [None, 100])
@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("size", [1e-42, 1e-25, 1e-15, 1e20, 1e37])
def test_the_cosine_of_very_short_and_very_long_vectors_is_found(
    size: float, count: int, block_rows: int | None, first_pass: FirstPass
) -> None:
    """Their squares are zero or infinite in float32; a third of the rows is so, and all queries."""
    rng = np.random.default_rng(1)
    candidates_CD, queries_QD = (
        rng.normal(size=(rows, _WIDTH)).astype(np.float32) for rows in (900, count)
    )
    candidates_CD[::3] *= np.float32(size)
    candidates_CD[5], queries_QD = 0, queries_QD * np.float32(size)
    q_QD, d_CD = queries_QD.astype(np.float64), candidates_CD.astype(np.float64)
    scores_QC = q_QD @ d_CD.T / np.linalg.norm(q_QD, axis=1)[:, None]
    scores_QC /= np.maximum(np.linalg.norm(d_CD, axis=1), 1e-300)
    ids = [f"{row:05}" for row in range(900)]
    index = ExactIndex(ids, candidates_CD, "cosine", first_pass=first_pass, block_rows=block_rows)
    everything = Ragged.from_lists([list(range(900))] * count)
    for found in (index.search(queries_QD, 50), index.rank_listed(queries_QD, everything)):
        found_QK = np.take_along_axis(scores_QC, found.rows_QK, axis=1)
        wanted_QK = -np.sort(-scores_QC, axis=1)[:, : found_QK.shape[1]]
        np.testing.assert_allclose(found_QK, wanted_QK, rtol=0, atol=2 * _WIDTH * 2.0**-24)
        np.testing.assert_allclose(found.scores_QK, wanted_QK, rtol=0, atol=2 * _WIDTH * 2.0**-24)


def test_zeros_among_candidates_cost_no_copy() -> None:
    _, candidates_CD = _made(0.0)
    candidates_CD[3] = 0
    found = Vectors(candidates_CD, "cosine", torch.device("cpu"))
    assert found.block(0, 9).vectors_BD.data_ptr() == candidates_CD.ctypes.data


@pytest.mark.parametrize("size", [0, 1e-42, 1e-25, 1e-12, 1, 1e20, 3e38])
def test_rows_of_any_size_are_scaled_to_length_1(size: float) -> None:
    x_ND = np.random.default_rng(2).uniform(-1, 1, (9, 5)).astype(np.float32) * np.float32(size)
    lengths_N1 = np.linalg.norm(x_ND.astype(np.float64), axis=1, keepdims=True)
    wanted_ND = x_ND / np.maximum(lengths_N1, 1e-300)
    np.testing.assert_allclose(unit_rows(x_ND), wanted_ND, atol=1e-6)
    np.testing.assert_allclose(unit_vectors(torch.from_numpy(x_ND)).numpy(), wanted_ND, atol=1e-6)


@pytest.mark.parametrize("similarity", ["cosine", "l2"])
def test_another_thread_never_multiplies_by_numbers_that_are_not_yet_there(
    similarity: Similarity, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries_QD, candidates_CD = _made(0.0)
    last, lists = _COUNT - 1, Ragged(np.array([_COUNT - 1]), np.array([0, 1]))
    index = ExactIndex([str(row) for row in range(_COUNT)], candidates_CD, similarity)
    wanted = index.rank_listed(queries_QD[:1], lists)
    index = ExactIndex(index.ids, candidates_CD, similarity)
    found: list[object] = []
    for name in ("unit_scales", "_bias"):
        original = getattr(vectors, name)

        def met(x_BD: torch.Tensor, original: object = original) -> torch.Tensor:
            if len(x_BD) > 1 and bool((x_BD[-1].numpy() == candidates_CD[last]).all()):
                with ThreadPoolExecutor(1) as thread:
                    other = thread.submit(index.rank_listed, queries_QD[:1], lists)
                    found.append(other.result().scores_QK)
            return original(x_BD)  # type: ignore[operator,no-any-return]

        monkeypatch.setattr(vectors, name, met)
    index.search(queries_QD, 5)
    assert len(found) == 1
    np.testing.assert_array_equal(found[0], wanted.scores_QK)
