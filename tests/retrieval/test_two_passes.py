"""A first pass in bfloat16 or int8 loses no candidate. Legend: Q queries, C candidates, D width."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scimult.errors import ConfigError
from scimult.products import FEW, multiplies_bytes
from scimult.retrieval import few_candidates, rounded, vectors
from scimult.retrieval.block_scores import BlockScores
from scimult.retrieval.exact import ExactIndex, FirstPass
from scimult.retrieval.few_candidates import MOST_CANDIDATES
from scimult.retrieval.passes import Passes
from scimult.retrieval.rounded import ByteVectors, HalfVectors, Operand
from scimult.retrieval.vectors import Block, Vectors
from scimult.types import FloatArray, Similarity
from tests.retrieval.generated import embeddings

ROUNDED: list[FirstPass] = ["bfloat16", "int8"] if multiplies_bytes() else ["bfloat16"]
needs_bytes = pytest.mark.skipif(not multiplies_bytes(), reason="this CPU multiplies no bytes")


def _float64_scores(queries_QD: FloatArray, x_CD: FloatArray, similarity: Similarity) -> FloatArray:
    q_QD, d_CD = queries_QD.astype(np.float64), x_CD.astype(np.float64)
    if similarity == "dot":
        return q_QD @ d_CD.T
    if similarity == "cosine":
        lengths_QC = np.linalg.norm(q_QD, axis=1)[:, None] * np.linalg.norm(d_CD, axis=1)
        return q_QD @ d_CD.T / lengths_QC
    return q_QD @ d_CD.T - 0.5 * np.square(d_CD).sum(axis=1)


@pytest.mark.parametrize("first_pass", ROUNDED)
@pytest.mark.parametrize("similarity", ["dot", "cosine", "l2"])
@pytest.mark.parametrize("kind", ["plain", "of other lengths", "close together", "with copies"])
def test_lists_are_those_of_float64(
    kind: str, similarity: Similarity, first_pass: FirstPass
) -> None:
    """Ranks may differ only where scores are closer than float32 products can tell.

    A sum of D products is off by D u ‖q‖‖d‖ at most (u = 2**-24), here on both sides.
    """
    queries_QD = embeddings(kind, 70, 96, seed=1)
    candidates_CD = embeddings(kind, 3000, 96, seed=2)
    ids = [f"{row:05}" for row in range(3000)]
    index = ExactIndex(ids, candidates_CD, similarity, first_pass=first_pass, query_rows=32)
    ranking = index.search(queries_QD, 20)
    scores_QC = _float64_scores(queries_QD, candidates_CD, similarity)
    wanted_QK = -np.sort(-scores_QC, axis=1)[:, :20]
    found_QK = np.take_along_axis(scores_QC, ranking.rows_QK, axis=1)
    lengths_Q1 = np.linalg.norm(queries_QD, axis=1, keepdims=True)
    longest = float(np.linalg.norm(candidates_CD, axis=1).max())
    products_Q1 = lengths_Q1 * longest + 0.5 * longest**2
    unit_Q1 = np.ones_like(lengths_Q1) if similarity == "cosine" else products_Q1
    assert (np.abs(found_QK - wanted_QK) <= 2 * 96 * 2.0**-24 * unit_Q1).all()
    assert all(len(set(rows)) == 20 for rows in ranking.rows_QK.tolist())


@pytest.mark.long
@pytest.mark.parametrize("first_pass", ["bfloat16", "float32"])
@pytest.mark.parametrize("similarity", ["dot", "cosine", "l2"])
@pytest.mark.parametrize("kind", ["plain", "of other lengths", "close together", "with copies"])
def test_a_gpus_way_of_searching_finds_the_same(
    kind: str, similarity: Similarity, first_pass: FirstPass, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run on the host: `tests/retrieval/test_search_on_gpu.py` is for a device."""
    queries_QD, candidates_CD = embeddings(kind, 70, 96, seed=1), embeddings(kind, 6000, 96, 2)
    # A list of the last queries would be all candidates, whose scores are equal.
    queries_QD[-3:] = 0
    ids = [f"{row:05}" for row in np.random.default_rng(3).permutation(6000)]
    exclude_Q = np.arange(70) - 1
    expected = ExactIndex(ids, candidates_CD, similarity, first_pass=first_pass, block_rows=999)
    index = ExactIndex(
        ids, candidates_CD, similarity, first_pass=first_pass, query_rows=32, block_rows=5001
    )
    index._on_host = False
    wanted = expected.search(queries_QD, 20, exclude_Q=exclude_Q)
    selected_on_host: list[tuple[int, bool]] = []
    begun = Passes._new_best

    def noted(passes: Passes, count: int, *rest: Any) -> Any:
        selected_on_host.append((count, rest[-1] is None))
        return begun(passes, count, *rest)

    monkeypatch.setattr(Passes, "_new_best", noted)
    found = index.search(queries_QD, 20, exclude_Q=exclude_Q)
    # Where nothing else separates candidates, scores are products whose sums depend on the block.
    assert (found.rows_QK == wanted.rows_QK).mean() > 0.99
    assert np.allclose(found.scores_QK, wanted.scores_QK, rtol=1e-5, atol=1e-4)
    if first_pass == "bfloat16" and kind == "plain":
        assert np.array_equal(found.rows_QK, wanted.rows_QK)
        assert np.array_equal(found.scores_QK, wanted.scores_QK)
    # Only queries that a device cannot settle are searched again.
    assert [count for count, _ in selected_on_host[:3]] == [32, 32, 6]
    if kind == "plain" and similarity != "l2":
        assert selected_on_host[3:][-1:] == [(3, True)]


@pytest.mark.long
@pytest.mark.parametrize("first_pass", ROUNDED)
@pytest.mark.parametrize("similarity", ["dot", "cosine", "l2"])
def test_lists_do_not_depend_on_blocks_nor_on_the_other_queries(
    similarity: Similarity, first_pass: FirstPass
) -> None:
    """A few queries take one pass, to the same numbers."""
    queries_QD = embeddings("plain", 70, 64, 3)
    candidates_CD = embeddings("with copies", 6000, 64, 4)
    ids = [f"{row:05}" for row in np.random.default_rng(5).permutation(6000)]
    whole = ExactIndex(ids, candidates_CD, similarity, first_pass=first_pass).search(queries_QD, 9)
    cut = ExactIndex(
        ids, candidates_CD, similarity, first_pass=first_pass, query_rows=7, block_rows=101
    )
    again = cut.search(queries_QD, 9)
    assert np.array_equal(whole.rows_QK, again.rows_QK)
    assert np.array_equal(whole.scores_QK, again.scores_QK)
    for count in (1, 2, 3, 4):
        alone = cut.search(queries_QD[3 : 3 + count], 9)
        assert np.array_equal(alone.rows_QK, again.rows_QK[3 : 3 + count])
        assert np.array_equal(alone.scores_QK, again.scores_QK[3 : 3 + count])


@pytest.mark.parametrize("first_pass", ROUNDED)
@pytest.mark.parametrize("similarity", ["dot", "cosine", "l2"])
@pytest.mark.parametrize("spread", [0.0, 1e-6])
def test_a_model_that_makes_all_texts_alike_is_searched_too(
    spread: float, similarity: Similarity, first_pass: FirstPass, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing separates a list from the rest: few are kept, and equal ones go by id."""
    rng = np.random.default_rng(12)
    x_CD = (30 + spread * rng.normal(size=(4000, 64))).astype(np.float32)
    kept: list[int] = []
    settled = Passes._settled

    def noted(passes: Passes, queries_QD: torch.Tensor, keys: torch.Tensor, *rest: Any) -> Any:
        kept.append(keys.shape[1])
        return settled(passes, queries_QD, keys, *rest)

    monkeypatch.setattr(Passes, "_settled", noted)
    ids = [f"{row:05}" for row in range(4000)]
    index = ExactIndex(ids, x_CD, similarity, first_pass=first_pass)
    found = index.search(x_CD[:5], 10)
    if not spread:
        assert found.rows_QK.tolist() == [list(range(3999, 3989, -1))] * 5
    assert np.isfinite(found.scores_QK).all()
    assert all(count <= 4 * 10 + 4000 // 64 for count in kept)


@pytest.mark.parametrize("first_pass", ROUNDED)
@pytest.mark.parametrize("largest", [1e25, 3.395e38])
def test_numbers_too_large_for_a_rounded_copy_take_one_pass(
    largest: float, first_pass: FirstPass
) -> None:
    """Their squares overflow, and the largest in bfloat16 too; small products do not."""
    candidates_CD = embeddings("plain", 900, 64, 13)
    candidates_CD[7, 0] = largest
    queries_QD = 1e-3 * embeddings("plain", 9, 64, 14)
    ids = [f"{row:05}" for row in range(900)]
    found = ExactIndex(ids, candidates_CD, "dot", first_pass=first_pass).search(queries_QD, 5)
    scores_QC = _float64_scores(queries_QD, candidates_CD, "dot")
    assert np.array_equal(found.rows_QK, np.argsort(-scores_QC, axis=1)[:, :5])


def test_faiss_finds_the_same() -> None:
    faiss = pytest.importorskip("faiss")
    queries_QD, candidates_CD = embeddings("plain", 50, 64, 6), embeddings("plain", 9000, 64, 7)
    theirs = faiss.IndexFlatIP(64)
    theirs.add(candidates_CD)
    scores_QK, rows_QK = theirs.search(queries_QD, 10)
    ids = [f"{row:05}" for row in range(9000)]
    first_passes: list[FirstPass] = ["float32", *ROUNDED]
    for first_pass in first_passes:
        ours = ExactIndex(ids, candidates_CD, "dot", first_pass=first_pass).search(queries_QD, 10)
        np.testing.assert_allclose(ours.scores_QK, scores_QK, rtol=1e-5)
        assert (ours.rows_QK == rows_QK).mean() > 0.99


_drawn = given(
    seed=st.integers(0, 2**16),
    width=st.integers(1, 200),
    scale=st.sampled_from([1e-12, 1.0, 1e6]),
    similarity=st.sampled_from(["dot", "cosine", "l2"]),
)


def _heavy_tailed(
    seed: int, width: int, scale: float, similarity: Similarity
) -> tuple[Vectors, torch.Tensor]:
    rng = np.random.default_rng(seed)
    x_CD = (rng.standard_cauchy(size=(20, width)) * scale).astype(np.float32)
    found = Vectors(x_CD, similarity, torch.device("cpu"))
    q_QD = found.queries((rng.standard_cauchy(size=(5, width)) * scale).astype(np.float32))
    return found, q_QD


def _wanted(found: Vectors, q_QD: torch.Tensor) -> torch.Tensor:
    block = found.block(0, 20)
    wanted_QC = q_QD.double() @ block.scaled_BD.double().T
    return wanted_QC if block.bias_B is None else wanted_QC + block.bias_B


@settings(max_examples=60, deadline=None)
@_drawn
def test_rounded_products_are_within_the_bound(
    seed: int, width: int, scale: float, similarity: Similarity
) -> None:
    found, q_QD = _heavy_tailed(seed, width, scale, similarity)
    halves = HalfVectors.of(found)
    products_QC = (q_QD.bfloat16() @ halves.vectors_CD.T).float()
    if halves.bias_C is not None:
        products_QC = products_QC + halves.bias_C
    off_QC = (products_QC - _wanted(found, q_QD)).abs()
    allowed_QC = halves.error_of(q_QD)[:, None] + 2 * halves.rounding * products_QC.abs()
    assert (off_QC <= allowed_QC).all()


@pytest.mark.parametrize("size", [2.0**-70, 2.0**-80])
def test_the_bound_holds_where_squares_vanish(size: float) -> None:
    found = Vectors(size * embeddings("plain", 300, 64, 15), "dot", torch.device("cpu"))
    q_QD, halves = torch.randn(9, 64).bfloat16().float(), HalfVectors.of(found)
    lost_CD = halves.vectors_CD.double() - found.block(0, 300).vectors_BD.double()
    assert ((q_QD.double() @ lost_CD.T).abs() <= halves.error_of(q_QD)[:, None]).all()


@needs_bytes
@settings(max_examples=60, deadline=None)
@_drawn
def test_products_of_bytes_are_within_the_bound(
    seed: int, width: int, scale: float, similarity: Similarity
) -> None:
    found, q_QD = _heavy_tailed(seed, width, scale, similarity)
    coded = ByteVectors.of(found)
    scores_QC = _scores(coded, q_QD) + coded.shift_of(q_QD)[:, None]
    off_QC = (scores_QC - _wanted(found, q_QD)).abs()
    assert (off_QC <= coded.error_of(q_QD)[:, None]).all()


def _scores(coded: ByteVectors, q_QD: torch.Tensor) -> torch.Tensor:
    block = coded.block(0, len(coded.codes_CD))
    return BlockScores(0, torch.device("cpu")).of(coded.queries(q_QD), block)[
        :, : len(block.vectors_BD)
    ]


@needs_bytes
def test_errors_of_bytes_have_the_spread_that_the_bound_is_made_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over dithers, for vectors that rounding to nearest would all shift to one side.

    Of 300 draws the deviation is known to 4 % (a sigma); four of them, and what the largest step
    and the longest candidate are above these ones'.
    """
    numbers = np.full((40, 256), 0.3, dtype=np.float32)
    numbers[:, 0] = 126.5
    # Their mean is 0, so nothing is subtracted.
    numbers[1::2] *= -1
    found = Vectors(numbers, "dot", torch.device("cpu"))
    queries = np.full((2, 256), 0.3, dtype=np.float32)
    queries[:, 0], queries[1] = 126.5, -queries[1]
    q_QD = found.queries(queries)
    wanted_QC = q_QD @ torch.from_numpy(numbers).T
    off = []
    for seed in range(300):
        monkeypatch.setattr(rounded, "_DITHER", 2 * seed)
        coded = ByteVectors.of(found)
        off.append(_scores(coded, q_QD) + coded.shift_of(q_QD)[:, None] - wanted_QC)
    deviation_QC = torch.stack(off).double().std(dim=0)
    assert (torch.stack(off).double().mean(dim=0).abs() < 5 * deviation_QC / 300**0.5).all()
    allowed_Q = (coded.error_of(q_QD) / rounded.SURE).double()
    assert (deviation_QC <= 1.16 * allowed_Q[:, None]).all()
    assert float((deviation_QC / allowed_Q[:, None]).max()) > 0.5


@needs_bytes
def test_a_shared_large_dimension_costs_the_others_no_digits() -> None:
    """Like models, whose embeddings have a few numbers ten times as large as the others."""
    rng = np.random.default_rng(11)
    x_CD, q_QD = rng.normal(size=(500, 128)), rng.normal(size=(4, 128))
    errors = []
    for common in (0, 30):
        x_CD[:, 3] += common
        q_QD[:, 3] += common
        found = Vectors(x_CD.astype(np.float32), "dot", torch.device("cpu"))
        errors.append(ByteVectors.of(found).error_of(found.queries(q_QD.astype(np.float32))))
    assert (errors[1] < 1.1 * errors[0]).all()


def test_bytes_are_refused_where_they_would_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scimult.retrieval.exact.multiplies_bytes", lambda: False)
    with pytest.raises(ConfigError, match="int8"):
        ExactIndex(["a"], np.ones((1, 4), dtype=np.float32), "dot", first_pass="int8")


def test_two_passes_are_taken_where_they_pay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    candidates_CD = embeddings("plain", 9000, 64, 8)
    ids = [f"{row:05}" for row in range(9000)]
    monkeypatch.setattr(few_candidates, "MOST_PACKED", MOST_CANDIDATES)

    def types(x_CD: FloatArray, k: int, queries: int = 41) -> set[torch.dtype]:
        seen: set[torch.dtype] = set()
        product = BlockScores.of

        def noted(buffers: BlockScores, factor: Operand, block: Block) -> torch.Tensor:
            seen.add(block.vectors_BD.dtype)
            return product(buffers, factor, block)

        with monkeypatch.context() as patched:
            patched.setattr(BlockScores, "of", noted)
            ExactIndex(ids, x_CD, "dot").search(np.asarray(x_CD[:queries]), k)
        return seen

    monkeypatch.setattr("scimult.retrieval.exact.multiplies_bfloat16", lambda device: True)
    if multiplies_bytes():
        assert types(candidates_CD, 2) == {torch.uint8}
        assert types(candidates_CD, 3) == {torch.bfloat16}
    monkeypatch.setattr("scimult.retrieval.exact.multiplies_bytes", lambda: False)
    assert types(candidates_CD, 8) == {torch.bfloat16}
    assert types(candidates_CD, 9) == {torch.float32}
    wide_CD = embeddings("plain", 9000, 1024, 8)
    assert types(wide_CD, 56) == {torch.bfloat16}
    # Of 9,000 candidates at most a 64th is multiplied again.
    assert types(wide_CD, 57) == {torch.float32}
    assert types(candidates_CD, 2, queries=FEW) == {torch.float32}
    np.save(tmp_path / "x.npy", candidates_CD)
    assert types(np.load(tmp_path / "x.npy", mmap_mode="r"), 2) == {torch.float32}
    monkeypatch.setattr("scimult.retrieval.exact.multiplies_bfloat16", lambda device: False)
    assert types(candidates_CD, 2) == {torch.float32}


def test_a_gpu_that_candidates_do_not_fit_gets_no_rounded_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    candidates_CD = embeddings("plain", 9000, 64, 8)
    index = ExactIndex([f"{row:05}" for row in range(9000)], candidates_CD, "dot")
    block = index._vectors.block(0, 9000)
    monkeypatch.setattr("scimult.retrieval.exact.multiplies_bfloat16", lambda device: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * candidates_CD.nbytes, 0))
    index.device = index._vectors.device = torch.device("cuda")
    index._vectors.__dict__["_resident"] = block
    index._on_host = False
    assert index._cheapest(4) == "bfloat16"
    assert index._cheapest(5) == "float32"
    # 0.7 of the free memory is less than the candidates and their copy take.
    del index._vectors.__dict__["_resident"]
    assert index._cheapest(4) == "float32"


@pytest.mark.parametrize("first_pass", ["float32", *ROUNDED])
def test_candidates_are_checked_to_be_finite_only_once(
    first_pass: FirstPass, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(vectors, "check_finite", lambda values, what: looked.append(what))
    x_CD = embeddings("plain", 300, 8, 9)
    ids = [str(row) for row in range(300)]
    index = ExactIndex(ids, x_CD, "cosine", first_pass=first_pass, block_rows=100)
    index.search(x_CD[:2], 5)
    assert 1 <= looked.count("a candidate embedding") <= 3
    looked.clear()
    index.search(x_CD[:2], 5)
    assert looked == ["a query embedding"]
