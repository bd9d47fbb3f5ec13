"""Exact search against a naive float64 search, and faiss with a selector."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scimult.errors import DataError
from scimult.library.exact import ExactSearch
from scimult.retrieval.shards import Shards, publish, write_shard
from scimult.retrieval.space import Space
from scimult.types import BoolArray, FloatArray, IntArray, Similarity


def _ids(rows: IntArray) -> list[str]:
    return [f"i{row * 7 % 101:03d}" for row in rows]


def _id(row: int) -> str:
    return _ids(np.array([row]))[0]


def _stored(folder: Path, vectors_ND: FloatArray, sizes: list[int], space: Space) -> Shards:
    shards, first = [], 0
    for number, size in enumerate(sizes):
        part = np.arange(first, first + size)
        shards.append(write_shard(folder, number, space, _ids(part), vectors_ND[part]))
        first += size
    publish(folder, space, shards)
    return Shards(folder)


def _naive(
    query_D: FloatArray, vectors_ND: FloatArray, similarity: Similarity, allowed_N: BoolArray
) -> list[tuple[int, np.float32]]:
    """Score every allowed row by definition and sort by descending score, then id."""
    found = []
    for row in np.flatnonzero(allowed_N):
        x, q = vectors_ND[row].astype(np.float64), query_D.astype(np.float64)
        if similarity == "l2":
            score = -np.sqrt(((x - q) ** 2).sum())
        else:
            score = (x * q).sum()
            if similarity == "cosine":
                lengths = np.sqrt((x * x).sum()) * np.sqrt((q * q).sum())
                score = score / lengths if lengths > 0 else 0.0
        found.append((int(row), np.float32(score)))
    by_id = sorted(found, key=lambda pair: _id(pair[0]), reverse=True)
    return sorted(by_id, key=lambda pair: -pair[1])


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    width=st.integers(1, 9),
    similarity=st.sampled_from(["dot", "cosine", "l2"]),
    dtype=st.sampled_from(["float32", "float16"]),
    k=st.integers(1, 40),
    whole=st.booleans(),
    few_values=st.booleans(),
    seed=st.integers(0, 999),
)
def test_finds_what_a_naive_search_finds(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    width: int,
    similarity: Similarity,
    dtype: str,
    k: int,
    whole: bool,
    few_values: bool,
    seed: int,
) -> None:
    generator = np.random.default_rng(seed)
    shape = (sum(sizes), width)
    # With few values many rows, or their scores, are equal.
    vectors_ND = (
        generator.integers(-1, 2, shape) if few_values else generator.standard_normal(shape)
    ).astype(np.float32)
    queries_QD = generator.standard_normal((3, width)).astype(np.float32)
    queries_QD[2] = vectors_ND[0]
    space = Space(width, similarity, dtype)  # type: ignore[arg-type]
    shards = _stored(tmp_path_factory.mktemp("space"), vectors_ND, sizes, space)
    vectors_ND = vectors_ND.astype(dtype).astype(np.float32)
    allowed_N = np.ones(shape[0], bool) if whole else generator.random(shape[0]) < 0.4
    longest = float(np.linalg.norm(vectors_ND, axis=1).max()) * 1.00001
    search = ExactSearch(shards, longest, _ids)
    together = search.best(queries_QD, k, allowed_N)
    for query_D, (rows, scores) in zip(queries_QD, together, strict=True):
        wanted = _naive(query_D, vectors_ND, similarity, allowed_N)
        assert list(zip(rows.tolist(), scores, strict=True)) == wanted[:k]
        # A single query is multiplied by numpy, not torch.
        ((rows, scores),) = search.best(query_D[None], k, allowed_N)
        assert list(zip(rows.tolist(), scores, strict=True)) == wanted[:k]
        if wanted:
            least = wanted[len(wanted) // 2][1]
            ((rows, scores),) = search.above(query_D[None], float(least), allowed_N)
            above = [pair for pair in wanted if pair[1] >= least]
            assert list(zip(rows.tolist(), scores, strict=True)) == above


@pytest.mark.parametrize(("similarity", "metric"), [("dot", 0), ("l2", 1)])
def test_finds_what_faiss_finds_among_chosen_rows(
    tmp_path: Path, similarity: Similarity, metric: int
) -> None:
    generator = np.random.default_rng(0)
    vectors_ND = generator.standard_normal((20_000, 48)).astype(np.float32)
    queries_QD = generator.standard_normal((20, 48)).astype(np.float32)
    shards = _stored(tmp_path, vectors_ND, [9000, 11_000], Space(48, similarity))
    search = ExactSearch(shards, float(np.linalg.norm(vectors_ND, axis=1).max()) * 1.00001, _ids)
    flat = faiss.IndexFlatIP(48) if metric == 0 else faiss.IndexFlatL2(48)
    flat.add(vectors_ND)
    for share in (1.0, 0.3, 0.001):
        allowed_N = generator.random(len(vectors_ND)) < share
        chosen = faiss.IDSelectorBitmap(np.packbits(allowed_N, bitorder="little"))
        scores_QK, rows_QK = flat.search(queries_QD, 10, params=faiss.SearchParameters(sel=chosen))
        for query, (rows, scores) in enumerate(search.best(queries_QD, 10, allowed_N)):
            wanted = scores_QK[query] if metric == 0 else -np.sqrt(scores_QK[query])
            assert rows.tolist() == rows_QK[query].tolist()
            # Rounding of float32 sums of 48 products, each up to 10.
            assert np.allclose(scores, wanted, atol=1e-4)


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("size", [1e-42, 1e-25, 1e-15, 1e20, 1e37])
def test_the_cosine_of_very_short_and_very_long_vectors_is_found(
    tmp_path: Path, size: float, queries: int
) -> None:
    """Their squares are zero or infinite in float32."""
    rng = np.random.default_rng(0)
    x_ND = rng.normal(size=(300, 24)).astype(np.float32)
    x_ND[::3] *= np.float32(size)
    queries_QD = rng.normal(size=(queries, 24)).astype(np.float32) * np.float32(size)
    search = ExactSearch(_stored(tmp_path, x_ND, [100, 200], Space(24, "cosine")), 0.0, _ids)
    everything = np.ones(300, bool)
    for query_D, (rows, scores) in zip(
        queries_QD, search.best(queries_QD, 20, everything), strict=True
    ):
        wanted = _naive(query_D, x_ND, "cosine", everything)[:20]
        assert rows.tolist() == [row for row, _ in wanted]
        assert np.array_equal(scores, [score for _, score in wanted])


def test_vectors_of_another_width_or_without_a_value_are_refused(tmp_path: Path) -> None:
    vectors_ND = np.eye(4, dtype=np.float32)
    search = ExactSearch(_stored(tmp_path, vectors_ND, [4], Space(4, "dot")), 1.0, _ids)
    everything = np.ones(4, bool)
    with pytest.raises(DataError, match=r"shape \(1, 3\) for a library of width 4"):
        search.best(np.ones((1, 3), np.float32), 1, everything)
    for queries in (1, 2):
        with pytest.raises(DataError, match="length of a list is negative"):
            search.best(np.ones((queries, 4), np.float32), -1, everything)
        assert all(len(rows) == 0 for rows, _ in search.best(np.ones((queries, 4)), 0, everything))
    with pytest.raises(DataError, match="not finite"):
        search.best(np.full((1, 4), np.nan, np.float32), 1, everything)


@pytest.mark.parametrize("queries", [1, 2])
def test_numbers_of_a_damaged_file_are_refused(tmp_path: Path, queries: int) -> None:
    shards = _stored(tmp_path, np.eye(4, dtype=np.float32), [4], Space(4, "dot"))
    path = tmp_path / "000000.npy"
    bad_ND = np.eye(4, dtype=np.float32)
    bad_ND[2, 1] = np.nan
    np.save(path, bad_ND)
    search = ExactSearch(Shards(tmp_path), 1.0, _ids)
    with pytest.raises(DataError, match="score is not finite"):
        search.best(np.ones((queries, 4), np.float32), 2, np.ones(len(shards), bool))
    with pytest.raises(DataError, match="score is not finite"):
        search.above(np.ones((queries, 4), np.float32), 0.5, np.ones(len(shards), bool))
    # Rows that are not asked for do no harm.
    found = search.above(np.ones((queries, 4), np.float32), 0.5, np.arange(4) != 2)
    wanted = sorted([0, 1, 3], key=_id, reverse=True)
    assert [rows.tolist() for rows, _ in found] == [wanted] * queries
