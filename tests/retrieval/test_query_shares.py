"""Queries divided among threads: lists stay the same, and an error in one part ends the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from threading import Barrier, Event
from typing import Any

import numpy as np
import pytest
import torch

from scimult.errors import DataError
from scimult.products import multiplies_bytes
from scimult.retrieval import query_shares as sharing
from scimult.retrieval.exact import ExactIndex, FirstPass
from scimult.retrieval.query_shares import query_shares
from scimult.retrieval.runs import Ranking
from scimult.types import FloatArray, Similarity
from tests.torch_threads import torch_threads

CPU = torch.device("cpu")
WIDTH = 16
PASSES: list[FirstPass] = ["auto", "bfloat16", *(["int8"] if multiplies_bytes() else [])]


def _made(seed: int, rows: int) -> FloatArray:
    """Return vectors of integers, whose products are exact in any order."""
    return np.random.default_rng(seed).integers(-9, 10, (rows, WIDTH)).astype(np.float32)


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let few queries be divided, too."""
    monkeypatch.setattr(sharing, "_LEAST_QUERIES", 1)
    monkeypatch.setattr(sharing, "_LEAST_PRODUCTS", 1)
    with torch_threads(3):
        yield


def _begun_together(monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    """Let no part begin before all have a thread."""
    all_parts, search = Barrier(parts), ExactIndex._search

    def wait(*arguments: Any) -> Any:
        all_parts.wait(timeout=60)
        return search(*arguments)

    monkeypatch.setattr(ExactIndex, "_search", wait)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("left_out", [False, True])
@pytest.mark.parametrize("similarity", ["dot", "l2", "cosine"])
@pytest.mark.parametrize("candidates", [5, 700, 20_000])
@pytest.mark.parametrize("first_pass", PASSES)
def test_lists_are_those_of_one_thread(
    first_pass: FirstPass,
    candidates: int,
    similarity: Similarity,
    left_out: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = [f"d{number}" for number in np.random.default_rng(3).permutation(candidates)]
    vectors_CD, queries_QD = _made(1, candidates), _made(2, 31)
    exclude_Q = np.arange(31) % 5 if left_out else None
    index = ExactIndex(ids, vectors_CD, similarity, first_pass=first_pass)
    with torch_threads(1):
        alone = index.search(queries_QD, 9, exclude_Q=exclude_Q)
    with monkeypatch.context() as patched:
        _begun_together(patched, 3)
        shared = ExactIndex(ids, vectors_CD, similarity, first_pass=first_pass).search(
            queries_QD, 9, exclude_Q=exclude_Q
        )
    # A cosine is rounded, and products of a few queries add in another order than those of many.
    tolerance = 1e-6 if similarity == "cosine" else 0.0
    np.testing.assert_allclose(shared.scores_QK, alone.scores_QK, rtol=0, atol=tolerance)
    if not tolerance:
        assert np.array_equal(shared.rows_QK, alone.rows_QK)
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize(
    ("candidates", "first_pass", "made"),
    [(700, "auto", "packed_CD"), (20_000, "bfloat16", "_in_bfloat16"), (20_000, "auto", "_copies")],
)
def test_copies_are_made_once_before_threads_begin(
    candidates: int, first_pass: FirstPass, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Python 3.12 on each thread would make its own."""
    found = []

    def search(index: ExactIndex, queries_QD: FloatArray, k: int, *_: Any) -> Ranking:
        held = {**vars(index), **(vars(index._few) if index._few else {})}
        found.append(made in held)
        return Ranking.empty(len(queries_QD), k)

    monkeypatch.setattr(ExactIndex, "_search", search)
    ids = [f"{number}" for number in range(candidates)]
    ExactIndex(ids, _made(1, candidates), "dot", first_pass=first_pass).search(_made(2, 200), 9)
    assert found == [True] * 3


@pytest.mark.usefixtures("three_threads")
def test_an_error_in_one_part_is_raised_and_stops_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together, stopped = Barrier(3), [Event(), Event()]
    others = iter(stopped)

    def search(
        index: ExactIndex, queries_QD: FloatArray, *_: Any, advance: Callable[[int], object]
    ) -> None:
        together.wait(timeout=60)
        if not queries_QD.any():
            raise DataError("a part failed")
        event = next(others)
        try:
            while True:
                advance(1)
        except CancelledError:
            event.set()
            raise

    monkeypatch.setattr(
        ExactIndex, "_search", lambda self, x, k, e, advance: search(self, x, advance=advance)
    )
    queries_QD = _made(2, 3)
    queries_QD[0] = 0
    index = ExactIndex(["a", "b"], _made(1, 2), "dot")
    with pytest.raises(DataError, match="a part failed"):
        index.search(queries_QD, 1)
    assert all(event.wait(timeout=60) for event in stopped)


@pytest.mark.parametrize(
    ("threads", "queries", "candidates", "workers", "parts"),
    [
        (1, 1_000, 100_000, 1, 1),
        (4, 0, 100_000, 1, 1),
        (4, 127, 100_000, 1, 1),
        (4, 128, 100_000, 2, 2),
        (4, 1_000, 100_000, 4, 4),
        # So few products that a thread is not worth its start.
        (4, 1_000, 600, 1, 1),
        (4, 1_000, 1_000, 2, 2),
        (1, 40_000, 100_000, 1, 3),
        (4, 40_000, 100_000, 4, 10),
        (64, 40_000, 100_000, 16, 40),
    ],
)
def test_threads_get_as_many_queries_as_are_worth_one(
    threads: int,
    queries: int,
    candidates: int,
    workers: int,
    parts: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    found, count = query_shares(queries, (candidates, 384), CPU)
    assert (len(found), count) == (parts, workers)
    assert np.concatenate([np.arange(queries)[some] for some in found]).tolist() == list(
        range(queries)
    )
    assert query_shares(queries, (candidates, 384), torch.device("cuda"))[1] == 1
