"""Exact search against faiss' flat index: same embeddings, in turns in one process.

Shape legend: Q queries, C candidates, D width, K results per query.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.timing import Clock, Ratio, Work, interleaved, load_average, ratio
from scimult.products import FEW
from scimult.retrieval.exact import FEW_SEARCHES, ExactIndex
from scimult.types import FloatArray, IntArray

OURS, OURS_ONE_PASS, OURS_COSINE = "ours", "ours, one pass", "ours, cosine"
FAISS, FAISS_BLAS = "faiss", "faiss, BLAS"
_CHECKED_QUERIES = 64
# Larger candidates stay in no cache.
_LARGE = 1 << 28
_CHECKED_BLOCK = 1 << 14


@dataclass(frozen=True)
class SearchComparison:
    """Times of all searches for a number of queries.

    Attributes
    ----------
    queries, candidates, width, k : int
        The work.
    seconds : dict
        Median seconds by search.
    faster : Ratio or None
        Seconds of faiss at its better setting (as it comes, or by BLAS) over ours, round by round;
        None without faiss.
    recall : float
        Share of the top K by float64 products that ours finds, over at most 64 queries.
    load : tuple of float
        The machine's load average before and after.
    """

    queries: int
    candidates: int
    width: int
    k: int
    seconds: dict[str, float]
    faster: Ratio | None
    recall: float
    load: tuple[float, float]


def search_comparisons(
    queries: list[int], candidates: int, width: int, k: int, rounds: int, clock: Clock
) -> Iterator[SearchComparison]:
    """Search generated embeddings, unit vectors around a common point, with both.

    What ours makes of candidates for a few queries at a time is made before the clock runs.
    """
    generator = np.random.default_rng(0)
    embeddings_CD = _generated(generator, candidates, width)
    ids = [f"{row:08d}" for row in range(candidates)]
    # Where they fit into a cache, each search has candidates that the others do not leave there.
    small = embeddings_CD.nbytes <= _LARGE
    one_pass_CD, cosine_CD = (embeddings_CD.copy() if small else embeddings_CD for _ in range(2))
    ours = ExactIndex(ids, embeddings_CD, "dot")
    one_pass = ExactIndex(ids, one_pass_CD, "dot", first_pass="float32")
    cosine = ExactIndex(ids, cosine_CD, "cosine")
    theirs: list[Any] = []
    if find_spec("faiss"):
        first = _faiss_index(embeddings_CD)
        theirs = [first, _faiss_index(embeddings_CD) if small else first]
    for count in queries:
        queries_QD = _generated(generator, count, width)
        works: dict[str, Work] = {
            OURS: partial(ours.search, queries_QD, k),
            OURS_ONE_PASS: partial(one_pass.search, queries_QD, k),
            OURS_COSINE: partial(cosine.search, queries_QD, k),
        }
        if theirs:
            works[FAISS] = partial(theirs[0].search, queries_QD, k)
            works[FAISS_BLAS] = partial(_by_blas, theirs[1], queries_QD, k)
        if count <= FEW:
            for _ in range(FEW_SEARCHES // count + 1):
                ours.search(queries_QD, k)
                cosine.search(queries_QD, k)
        before = load_average()
        times = interleaved(works, rounds, torch.device("cpu"), clock)
        seconds = {name: median(values) for name, values in times.items()}
        faster = None
        if theirs:
            best = min((FAISS, FAISS_BLAS), key=seconds.__getitem__)
            faster = ratio(times[best], times[OURS])
        checked_QD = queries_QD[:_CHECKED_QUERIES]
        expected_QK = _float64_best(checked_QD, embeddings_CD, k)
        recall = recall_of(ours.search(checked_QD, k).rows_QK, expected_QK)
        load = before, load_average()
        yield SearchComparison(count, candidates, width, k, seconds, faster, recall, load)


def recall_of(rows_QK: IntArray, expected_QK: IntArray) -> float:
    """Return the share of expected candidates that were found."""
    shared = [
        len(set(rows) & set(best))
        for rows, best in zip(rows_QK.tolist(), expected_QK.tolist(), strict=True)
    ]
    return sum(shared) / expected_QK.size


def _generated(generator: np.random.Generator, count: int, width: int) -> FloatArray:
    x_ND = generator.standard_normal((count, width), dtype=np.float32)
    # Embeddings of real texts have a common component, too.
    x_ND[:, 0] += 0.3 * width**0.5
    x_ND /= np.linalg.norm(x_ND, axis=1, keepdims=True)
    return x_ND


def _faiss_index(embeddings_CD: FloatArray) -> Any:
    faiss = import_module("faiss")
    faiss.omp_set_num_threads(torch.get_num_threads())
    index = faiss.IndexFlatIP(embeddings_CD.shape[1])
    index.add(embeddings_CD)
    return index


def _by_blas(index: Any, queries_QD: FloatArray, k: int) -> object:
    """Let faiss call BLAS for any number of queries.

    Older releases compare the threshold with the number of queries (20), newer ones with that times
    the width (128,000): 1 is always in both.
    """
    settings = import_module("faiss").cvar
    before = settings.distance_compute_blas_threshold
    settings.distance_compute_blas_threshold = 1
    result: object = index.search(queries_QD, k)
    settings.distance_compute_blas_threshold = before
    return result


def _float64_best(queries_QD: FloatArray, embeddings_CD: FloatArray, k: int) -> IntArray:
    """Return the top rows by float64 products, in any order."""
    scores_QC = np.concatenate(
        [
            queries_QD.astype(np.float64) @ embeddings_CD[start : start + _CHECKED_BLOCK].T
            for start in range(0, len(embeddings_CD), _CHECKED_BLOCK)
        ],
        axis=1,
    )
    best_QK: IntArray = np.argpartition(-scores_QC, min(k, scores_QC.shape[1] - 1), axis=1)[:, :k]
    return best_QK
