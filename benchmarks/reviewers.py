"""Cost of matching a venue, scores and assignment, on generated vectors.

Submissions and reviewers have topics: vectors are a topic's plus noise, so that popular reviewers
suit many submissions, as at a conference.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scimult.data.ragged import Ragged, offsets_of
from scimult.hardware import peak_memory
from scimult.heap import keep_freed_memory
from scimult.matching.affinity import Rule, affinities
from scimult.matching.assignment import Loads, assign
from scimult.progress import bar
from scimult.retrieval.embeddings import unit_rows
from scimult.types import FloatArray, IntArray

_TOPICS, _NOISE = 200, 1.0


@dataclass(frozen=True)
class MatchingCost:
    """Sizes, wall and CPU seconds, rounds of the linear programme, and peak memory.

    Attributes
    ----------
    submissions, reviewers, publications, width : int
        Sizes; publications are counted once per reviewer.
    score_seconds, score_cpu : float
        Scoring of all pairs.
    assign_seconds, assign_cpu : float
        The assignment.
    rounds : int
        How often the programme was solved.
    peak_megabytes : float
        Of the process, including pages of the matrix on disk that the system caches.
    """

    submissions: int
    reviewers: int
    publications: int
    width: int
    score_seconds: float
    score_cpu: float
    assign_seconds: float
    assign_cpu: float
    rounds: int
    peak_megabytes: float


def measure_matching(
    submissions: int, reviewers: int, each: int, width: int, needed: int, most: int
) -> MatchingCost:
    """Match a generated venue whose reviewers have ``each`` publications on average."""
    keep_freed_memory()
    rng = np.random.default_rng(0)
    topics_TD = unit_rows(rng.normal(size=(_TOPICS, width)).astype(np.float32))
    counts = rng.geometric(1 / each, size=reviewers)
    owned = Ragged(np.arange(counts.sum(), dtype=np.int64), offsets_of(counts))
    interests = rng.integers(0, _TOPICS, size=reviewers)
    submissions_SD = _around(topics_TD, rng.integers(0, _TOPICS, size=submissions), rng)
    publications_PD = _around(topics_TD, interests[owned.owners], rng)
    with tempfile.TemporaryDirectory() as folder:
        shape = (submissions, reviewers)
        scores_SR = np.lib.format.open_memmap(Path(folder) / "s.npy", "w+", np.float32, shape)
        wall, cpu = time.perf_counter(), time.process_time()
        with bar("scoring", total=submissions) as scoring:
            for start, block in affinities(submissions_SD, publications_PD, owned, Rule()):
                scores_SR[start : start + len(block)] = block
                scoring.update(len(block))
        scored = time.perf_counter() - wall, time.process_time() - cpu
        wall, cpu = time.perf_counter(), time.process_time()
        loads = Loads(
            np.full(submissions, needed), np.full(reviewers, most), np.zeros(reviewers, np.int64)
        )
        assignment = assign(scores_SR, loads)
        assigned = time.perf_counter() - wall, time.process_time() - cpu
        del scores_SR
    peak = peak_memory() / 2**20
    sizes = submissions, reviewers, len(owned.values), width
    return MatchingCost(*sizes, *scored, *assigned, assignment.rounds, peak)


def _around(topics_TD: FloatArray, rows: IntArray, rng: np.random.Generator) -> FloatArray:
    """Return unit vectors around the topics at ``rows``."""
    noise = rng.standard_normal(size=(len(rows), topics_TD.shape[1]), dtype=np.float32)
    noise *= _NOISE / np.sqrt(topics_TD.shape[1])
    return unit_rows(topics_TD[rows] + noise)
