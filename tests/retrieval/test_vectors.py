"""Candidates are multiplied as they are given. Legend: Q queries, C candidates, D width."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scimult.retrieval import vectors
from scimult.retrieval.exact import ExactIndex
from scimult.retrieval.vectors import Vectors
from scimult.types import FloatArray, Similarity

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
    for name in ("_scale", "_bias"):
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
