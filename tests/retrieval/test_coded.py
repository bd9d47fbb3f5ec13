"""Search through codes: all lists equal exact search and faiss; some lists reach a recall."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest

from scimult.data.ragged import Ragged
from scimult.errors import DataError
from scimult.retrieval.coded import CodedIndex, Effort, write_codes
from scimult.retrieval.exact import ExactIndex
from scimult.types import FloatArray, Similarity

N, WIDTH = 3000, 24
SIMILARITIES: tuple[Similarity, ...] = ("dot", "cosine", "l2")


def clustered(seed: int, count: int = N) -> FloatArray:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((30, WIDTH))
    points = centres[rng.integers(0, 30, count)] + 0.7 * rng.standard_normal((count, WIDTH))
    return points.astype(np.float32)


def flat(vectors: FloatArray, similarity: Similarity) -> faiss.Index:
    """Return faiss' exact index."""
    index = faiss.IndexFlatL2(WIDTH) if similarity == "l2" else faiss.IndexFlatIP(WIDTH)
    index.add(unit(vectors, similarity))
    return index


def unit(vectors: FloatArray, similarity: Similarity) -> FloatArray:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / lengths if similarity == "cosine" else vectors


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_scanning_all_lists_is_exact_search(tmp_path: Path, similarity: Similarity) -> None:
    vectors = clustered(0)
    exact = ExactIndex([f"{row:04}" for row in range(N)], vectors, similarity)
    write_codes(tmp_path / "codes", vectors, similarity, lists=16)
    index = CodedIndex(tmp_path / "codes", exact, Effort(16, 1, N))
    asked = np.arange(0, N, 97)
    found = index.search(vectors[asked], 40, exclude_Q=asked)
    expected = exact.search(vectors[asked], 40, exclude_Q=asked)
    assert found.rows_QK.tolist() == expected.rows_QK.tolist()
    np.testing.assert_allclose(found.scores_QK, expected.scores_QK, rtol=1e-5, atol=1e-5)
    peer = flat(vectors, similarity).search(unit(vectors[asked], similarity), 60)[1]
    for row, rows in zip(asked, peer, strict=True):
        ours = found.rows_QK[np.searchsorted(asked, row)]
        assert len(np.intersect1d(ours, rows[rows != row][:40])) >= 39  # float32 ties at the cut
    lists = Ragged.from_lists([[5, 7]] * len(asked))
    listed = index.rank_listed(vectors[asked], lists)
    assert listed.rows_QK.tolist() == exact.rank_listed(vectors[asked], lists).rows_QK.tolist()


@pytest.mark.parametrize(
    ("similarity", "common", "least"),
    [*((s, 0, 0.95) for s in SIMILARITIES), ("cosine", 9, 0.95), ("dot", 9, 0.8)],
)
def test_some_lists_find_nearly_all(
    tmp_path: Path, similarity: Similarity, common: int, least: float
) -> None:
    """What all vectors share spread the best products over all lists: 0.37 in these twelve."""
    vectors = clustered(1) + np.float32(common)
    exact = ExactIndex([f"{row:04}" for row in range(N)], vectors, similarity)
    write_codes(tmp_path / "codes", vectors, similarity)
    asked = np.arange(0, N, 31)
    truth = flat(vectors, similarity).search(unit(vectors[asked], similarity), 101)[1]

    def recall(probes: int) -> float:
        index = CodedIndex(tmp_path / "codes", exact, Effort(probes, 4, 0))
        found = index.search(vectors[asked], 100, exclude_Q=asked).rows_QK
        shares = [
            np.isin(rows[rows != row][:100], ours).mean()
            for row, rows, ours in zip(asked, truth, found, strict=True)
        ]
        return float(np.mean(shares))

    assert recall(2) < recall(12)
    assert recall(12) > least


def test_lists_that_hold_too_few_end_early(tmp_path: Path) -> None:
    vectors = clustered(2)
    exact = ExactIndex([f"{row:04}" for row in range(N)], vectors, "dot")
    write_codes(tmp_path / "codes", vectors, "dot", lists=30)
    found = CodedIndex(tmp_path / "codes", exact, Effort(1, 2, 10)).search(vectors[:5], 2000)
    assert found.rows_QK.shape == (5, 2000)
    assert (found.rows_QK[:, 0] >= 0).all()
    assert (found.rows_QK[:, -1] == -1).all()


def test_a_damaged_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "codes").write_bytes(b"IwPQ nothing")
    exact = ExactIndex(["a"], np.ones((1, 4), np.float32), "dot")
    with pytest.raises(DataError, match="damaged index"):
        CodedIndex(tmp_path / "codes", exact)
