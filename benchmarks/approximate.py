"""Approximate against exact search: recall, CPU seconds per query, bytes per vector.

To get more vectors, real ones are repeated with noise: each copy is a vector plus a normal one of
length ``NOISE``, scaled to length 1.

Shape legend: N rows, Q queries, D width.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scimult.errors import DataError
from scimult.library.approximate import TUNED_K, ApproximateSearch, Kind, tuned
from scimult.library.building import build
from scimult.library.exact import ExactSearch
from scimult.retrieval.embeddings import unit_rows
from scimult.retrieval.exact import ExactIndex
from scimult.retrieval.shards import Shards, publish, write_shard
from scimult.retrieval.space import Space
from scimult.types import BoolArray, FloatArray, IntArray

NOISE = 0.6
_BLOCK = 1 << 16
_TUNED, _TURNS, _ALONE = 256, 3, 8


@dataclass(frozen=True)
class ApproximateCost:
    """Cost and recall of one kind of index.

    Attributes
    ----------
    kind : str
        Kind of index.
    rows, real, width, queries
        Vectors, those that are not copies, their width, and held-out queries.
    recall : float
        Share of the exact top 10 of held-out queries.
    effort, candidates : int
        Settings, tuned on other queries.
    build_seconds : float
        CPU seconds of training and adding.
    exact_ms, blocks_ms, approximate_ms : float
        CPU milliseconds per query in one batch: of the library's exact search, of ``ExactIndex``
        in memory (two passes where the machine multiplies bytes or bfloat16), and of the
        approximate search. Minimum over three turns.
    alone_exact_ms, alone_ms : float
        The same for single queries.
    bytes_per_vector : float
        Size of the index per vector.
    """

    kind: str
    rows: int
    real: int
    width: int
    queries: int
    recall: float
    effort: int
    candidates: int
    build_seconds: float
    exact_ms: float
    blocks_ms: float
    approximate_ms: float
    alone_exact_ms: float
    alone_ms: float
    bytes_per_vector: float

    def as_json(self) -> dict[str, Any]:
        """Return all figures and their ratios."""
        ratios = {
            "times_exact": self.exact_ms / self.approximate_ms,
            "times_blocks": self.blocks_ms / self.approximate_ms,
            "times_exact_alone": self.alone_exact_ms / self.alone_ms,
            "share_of_float32": self.bytes_per_vector / (4 * self.width),
        }
        return {**asdict(self), **ratios}


def measure_approximate(
    vectors: Path, rows: int, kinds: list[Kind], queries: int, target: float
) -> list[ApproximateCost]:
    """Measure indexes over the vectors of a folder of shards, repeated with noise up to ``rows``.

    Raises
    ------
    DataError
        If there are too few vectors to hold queries out.
    """
    source = Shards(vectors)
    held_out = queries + _TUNED
    if len(source) < 10 * held_out:
        raise DataError("too few vectors", path=vectors, value=len(source), fix="encode more")
    generator = np.random.default_rng(0)
    order = generator.permutation(len(source))
    queries_QD, sample_QD = np.split(source.rows(order[:held_out]), [queries])
    with tempfile.TemporaryDirectory(dir=vectors.parent) as folder:
        shards = _repeated(Path(folder), source, order[held_out:], rows, generator)
        exact = ExactSearch(shards, _longest(shards), _ids)
        everything = np.ones(len(shards), bool)
        truth = exact.best(queries_QD, TUNED_K, everything)
        sample_truth = exact.best(sample_QD, TUNED_K, everything)
        whole_ND = np.concatenate([np.asarray(block) for _, block in shards.blocks()])
        index = ExactIndex(_ids(np.arange(len(shards))), whole_ND, shards.space.similarity)
        few_QD, costs = queries_QD[:_ALONE], []
        for kind in kinds:
            path = Path(folder) / f"{kind}.faiss"
            start = time.process_time()
            facts = build(path, kind, shards, everything)
            build_seconds = time.process_time() - start
            search = ApproximateSearch(path, facts, shards, exact, _ids)
            facts = tuned(search, sample_QD, sample_truth, everything, target)
            lists = search.best(queries_QD, TUNED_K, everything)
            shares = [
                len(np.intersect1d(a[0], b[0])) / TUNED_K for a, b in zip(lists, truth, strict=True)
            ]
            times = _least(
                {
                    "exact_ms": partial(exact.best, queries_QD, TUNED_K, everything),
                    "blocks_ms": partial(index.search, queries_QD, TUNED_K),
                    "approximate_ms": partial(search.best, queries_QD, TUNED_K, everything),
                },
                len(queries_QD),
            )
            alone = _least(
                {
                    "alone_exact_ms": partial(_each, exact, few_QD, everything),
                    "alone_ms": partial(_each, search, few_QD, everything),
                },
                len(few_QD),
            )
            costs.append(
                ApproximateCost(
                    kind=kind,
                    rows=len(shards),
                    real=min(len(order) - held_out, rows),
                    width=shards.space.width,
                    queries=len(queries_QD),
                    recall=float(np.mean(shares)),
                    effort=facts.effort,
                    candidates=facts.candidates,
                    build_seconds=build_seconds,
                    **times,
                    **alone,
                    bytes_per_vector=os.path.getsize(path) / len(shards),
                )
            )
    return costs


def _least(works: Mapping[str, Callable[[], object]], queries: int) -> dict[str, float]:
    """Return each method's minimum CPU milliseconds per query over some turns."""
    times = dict.fromkeys(works, float("inf"))
    for _ in range(_TURNS):
        for name, work in works.items():
            start = time.process_time()
            work()
            times[name] = min(times[name], 1e3 * (time.process_time() - start) / queries)
    return times


def _each(
    search: ExactSearch | ApproximateSearch, queries_QD: FloatArray, allowed_N: BoolArray
) -> None:
    for query_D in queries_QD:
        search.best(query_D[None], TUNED_K, allowed_N)


def _repeated(
    folder: Path, source: Shards, originals: IntArray, rows: int, generator: np.random.Generator
) -> Shards:
    """Write the vectors of rows ``originals``, and noisy copies of them, into another folder."""
    space = Space(source.space.width, source.space.similarity)
    written = []
    for number, first in enumerate(range(0, rows, _BLOCK)):
        numbers = np.arange(first, min(first + _BLOCK, rows))
        vectors_ND = source.rows(originals[numbers % len(originals)])
        noise_ND = generator.standard_normal(vectors_ND.shape, dtype=np.float32)
        scale_N1 = np.where(numbers >= len(originals), NOISE / space.width**0.5, 0)[:, None]
        noisy_ND = unit_rows(vectors_ND + scale_N1.astype(np.float32) * noise_ND)
        written.append(write_shard(folder, number, space, _ids(numbers), noisy_ND))
    publish(folder, space, written)
    return Shards(folder)


def _longest(shards: Shards) -> float:
    return max(float(np.linalg.norm(block, axis=1).max()) for _, block in shards.blocks())


def _ids(rows: IntArray) -> list[str]:
    return [f"{row:08d}" for row in rows]
