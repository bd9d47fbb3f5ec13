"""Exact search on a CUDA device, and by its path without one, against the CPU.

Legend: Q queries, C candidates, D width.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from scimult.data.ragged import Ragged
from scimult.retrieval import selection, vectors
from scimult.retrieval.exact import ExactIndex, FirstPass
from scimult.types import FloatArray, Similarity
from tests.far_device import FAR, FarDevice

_WIDTH, _K = 96, 50


@dataclass(frozen=True)
class Elsewhere:
    """A device, what makes its tensors, and what to search on it."""

    device: torch.device
    at_work: AbstractContextManager[object]
    candidates: int
    queries: int


@pytest.fixture(autouse=True)
def room_on_the_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates fit on the stand-in for a device; torch tells only for CUDA."""
    free = vectors.free_memory
    monkeypatch.setattr(vectors, "free_memory", lambda device: free(device) or 1 << 40)


@pytest.fixture(
    params=[
        "far",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
            ],
        ),
    ]
)
def elsewhere(request: pytest.FixtureRequest) -> Elsewhere:
    if request.param == "far":
        return Elsewhere(FAR, FarDevice(), 12_000, 300)
    return Elsewhere(torch.device("cuda"), nullcontext(), 30_000, 1100)


def _embeddings(kind: str, count: int, queries: int) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(0)
    candidates_CD = rng.normal(size=(count, _WIDTH))
    if kind == "with copies":
        candidates_CD = candidates_CD[rng.integers(0, count // 3, count)]
    if kind == "close together":
        candidates_CD = rng.normal(size=(1, _WIDTH)) + 0.003 * candidates_CD
    queries_QD = candidates_CD[:queries] + rng.normal(size=(queries, _WIDTH)) * 0.1
    queries_QD[-3:] = 0  # all candidates have one score
    return queries_QD.astype(np.float32), candidates_CD.astype(np.float32)


@pytest.mark.long
@pytest.mark.parametrize("first_pass", ["bfloat16", "float32"])
@pytest.mark.parametrize("similarity", ["dot", "cosine", "l2"])
@pytest.mark.parametrize("kind", ["plain", "with copies", "close together"])
def test_lists_are_those_of_the_cpu(
    kind: str,
    similarity: Similarity,
    first_pass: FirstPass,
    elsewhere: Elsewhere,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Places may differ where scores are closer than float32 sums of 96 products can tell."""
    if kind != "plain":
        # As with many scores, of which groups are compared first.
        monkeypatch.setattr(selection, "_FEW_SCORES", 0)
    count = elsewhere.candidates
    queries_QD, candidates_CD = _embeddings(kind, count, elsewhere.queries)
    ids = [f"{row:05}" for row in np.random.default_rng(1).permutation(count)]
    exclude_Q = np.arange(len(queries_QD)) - 1
    on_cpu = ExactIndex(ids, candidates_CD, similarity, first_pass="float32")
    there = ExactIndex(
        ids, candidates_CD, similarity, first_pass=first_pass, device=elsewhere.device
    )
    # The host orders the lists of a few queries, the device those of many.
    for some in (slice(0, 1), slice(0, 40), slice(0, None)):
        wanted = on_cpu.search(queries_QD[some], _K, exclude_Q=exclude_Q[some])
        with elsewhere.at_work:
            found = there.search(queries_QD[some], _K, exclude_Q=exclude_Q[some])
        lengths_Q1 = np.linalg.norm(queries_QD[some], axis=1, keepdims=True)
        longest = float(np.linalg.norm(candidates_CD, axis=1).max())
        unit_Q1 = 1 if similarity == "cosine" else lengths_Q1 * longest + 0.5 * longest**2
        off_QK = np.abs(found.scores_QK - wanted.scores_QK)
        assert (off_QK <= 4 * _WIDTH * 2.0**-24 * unit_Q1).all()
        assert all(len(set(rows)) == _K for rows in found.rows_QK.tolist())
    # Among equal scores the order of ids counts on both.
    assert np.array_equal(found.rows_QK[-3:], wanted.rows_QK[-3:]) or similarity == "l2"
    if kind == "plain":
        assert (found.rows_QK == wanted.rows_QK).mean() > 0.999


@pytest.mark.parametrize("similarity", ["dot", "cosine", "l2"])
def test_listed_candidates_get_the_scores_of_the_cpu(
    similarity: Similarity, elsewhere: Elsewhere
) -> None:
    count = elsewhere.candidates
    queries_QD, candidates_CD = _embeddings("plain", count, elsewhere.queries)
    rng = np.random.default_rng(2)
    lists = Ragged.from_lists([rng.permutation(count)[: 3 + 7 * (row % 5)] for row in range(200)])
    ids = [f"{row:05}" for row in range(count)]
    here, there = (
        ExactIndex(ids, candidates_CD, similarity, device=device)
        for device in ("cpu", elsewhere.device)
    )
    wanted = here.rank_listed(queries_QD[:200], lists)
    with elsewhere.at_work:
        found = there.rank_listed(queries_QD[:200], lists)
    assert (found.rows_QK == wanted.rows_QK).mean() > 0.999
    assert np.allclose(found.scores_QK, wanted.scores_QK, rtol=1e-4, atol=1e-3)
