"""Time and memory of exact search at the sizes of SciMult's Table A2, with generated embeddings.

Shape legend: Q queries, C candidates, D width, K results per query.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch

from scimult.benchmarks.timing import CLOCKS, Clock
from scimult.retrieval.exact import ExactIndex
from scimult.types import FloatArray

SHAPES = {
    "cs_conference": (261_781, 15_808),
    "chemistry_mesh": (762_129, 30_194),
    "patient_to_patient": (100_327, 155_151),
    "patient_to_article": (5_959, 1_413_087),
}
"""Queries and candidates of the largest data sets."""


@dataclass(frozen=True)
class SearchCost:
    """What one shape cost.

    Attributes
    ----------
    name, queries, candidates
        The shape.
    fraction : float
        Share of the queries that were searched; all candidates were.
    seconds, bare_seconds : float
        Of the search, and of the same products followed by ``torch.topk`` of each block alone.
    whole_seconds : float
        ``seconds`` divided by ``fraction``.
    peak_bytes : int
        Largest resident size of a process that did nothing else, embeddings and ids included.
    whole_bytes : int
        The same with the embeddings and lists of the queries that were left out, computed.
    """

    name: str
    queries: int
    candidates: int
    fraction: float
    seconds: float
    bare_seconds: float
    whole_seconds: float
    peak_bytes: int
    whole_bytes: int

    @property
    def ratio(self) -> float:
        """How much longer the search takes than products and top-k alone."""
        return self.seconds / self.bare_seconds

    def as_json(self) -> dict[str, Any]:
        """Return all figures for a program."""
        return {**asdict(self), "ratio": self.ratio}


def measure_search(name: str, width: int, k: int, fraction: float, clock: Clock) -> SearchCost:
    """Measure one shape in a process of its own, whose peak memory is that of the search."""
    context = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measure, name, width, k, fraction, clock).result()


def _measure(name: str, width: int, k: int, fraction: float, clock: Clock) -> SearchCost:
    queries, candidates = SHAPES[name]
    kept = max(1, round(queries * fraction))
    generator = np.random.default_rng(0)
    embeddings_CD = generator.standard_normal((candidates, width), dtype=np.float32)
    queries_QD = generator.standard_normal((kept, width), dtype=np.float32)
    index = ExactIndex([f"{row:08d}" for row in range(candidates)], embeddings_CD, "dot")
    now = CLOCKS[clock]
    start = now()
    index.search(queries_QD, k)
    middle = now()
    peak = _peak_bytes()
    _bare(queries_QD, embeddings_CD, k, index)
    end = now()
    left_out = (queries - kept) * (width * 4 + k * 12)
    return SearchCost(
        name=name,
        queries=queries,
        candidates=candidates,
        fraction=kept / queries,
        seconds=middle - start,
        bare_seconds=end - middle,
        whole_seconds=(middle - start) * queries / kept,
        peak_bytes=peak,
        whole_bytes=peak + left_out,
    )


def _bare(queries_QD: FloatArray, embeddings_CD: FloatArray, k: int, index: ExactIndex) -> None:
    """Take the products of all blocks and the best of each, and nothing else."""
    queries, candidates = torch.from_numpy(queries_QD), torch.from_numpy(embeddings_CD)
    buffer = torch.empty(index.query_rows * index.block_rows)
    for part, block in _blocks(len(queries), len(candidates), index):
        scores = buffer[: len(queries[part]) * len(candidates[block])]
        scores_QB = scores.view(len(queries[part]), -1)
        torch.mm(queries[part], candidates[block].T, out=scores_QB)
        scores_QB.topk(min(k, scores_QB.shape[1]), dim=1)


def _blocks(queries: int, candidates: int, index: ExactIndex) -> Iterator[tuple[slice, slice]]:
    for first in range(0, candidates, index.block_rows):
        for start in range(0, queries, index.query_rows):
            yield slice(start, start + index.query_rows), slice(first, first + index.block_rows)


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
