"""What matching a venue costs: scores of all reviewers, and the assignment, of made-up vectors.

Submissions and reviewers have topics: vectors are a topic's plus noise, so that popular reviewers
are wanted by many, as at a conference.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scimult.data.ragged import Ragged, offsets_of
from scimult.hardware import keep_freed_memory, peak_memory
from scimult.matching.affinity import Rule, affinities
from scimult.matching.assignment import Loads, assign
from scimult.progress import bar
from scimult.retrieval.embeddings import unit_rows
from scimult.types import FloatArray, IntArray

_TOPICS, _NOISE = 200, 1.0


@dataclass(frozen=True)
class MatchingCost:
    """Sizes, seconds of wall time and of this process, rounds of the programme, peak memory.

    Attributes
    ----------
    submissions, reviewers, publications, width : int
        What was matched; publications with their repetitions among reviewers.
    score_seconds, score_cpu : float
        Scores of all pairs.
    assign_seconds, assign_cpu : float
        The assignment.
    rounds : int
        How often the programme was solved.
    peak_megabytes : float
        Of the process; pages of the matrix on disk count while the system keeps them.
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

    def as_json(self) -> dict[str, Any]:
        """Return all figures."""
        return asdict(self)


def measure_matching(
    submissions: int, reviewers: int, each: int, width: int, needed: int, most: int
) -> MatchingCost:
    """Match a made-up venue whose reviewers have ``each`` publications on average."""
    keep_freed_memory()
    rng = np.random.default_rng(0)
    topics_TD = unit_rows(rng.normal(size=(_TOPICS, width)).astype(np.float32))
    counts = rng.geometric(1 / each, size=reviewers)
    written = Ragged(np.arange(counts.sum(), dtype=np.int64), offsets_of(counts))
    interests = rng.integers(0, _TOPICS, size=reviewers)
    submissions_SD = _around(topics_TD, rng.integers(0, _TOPICS, size=submissions), rng)
    publications_PD = _around(topics_TD, interests[written.owners], rng)
    with tempfile.TemporaryDirectory() as folder:
        shape = (submissions, reviewers)
        scores_SR = np.lib.format.open_memmap(Path(folder) / "s.npy", "w+", np.float32, shape)
        begun, cpu = time.perf_counter(), time.process_time()
        with bar("scoring", total=submissions) as shown:
            for start, block in affinities(submissions_SD, publications_PD, written, Rule()):
                scores_SR[start : start + len(block)] = block
                shown.update(len(block))
        scored = time.perf_counter() - begun, time.process_time() - cpu
        begun, cpu = time.perf_counter(), time.process_time()
        loads = Loads(
            np.full(submissions, needed), np.full(reviewers, most), np.zeros(reviewers, np.int64)
        )
        found = assign(scores_SR, loads)
        assigned = time.perf_counter() - begun, time.process_time() - cpu
        del scores_SR
    peak = peak_memory() / 2**20
    sizes = submissions, reviewers, len(written.values), width
    return MatchingCost(*sizes, *scored, *assigned, found.rounds, peak)


def _around(topics_TD: FloatArray, chosen: IntArray, rng: np.random.Generator) -> FloatArray:
    """Return unit vectors around the chosen topics."""
    noise = rng.standard_normal(size=(len(chosen), topics_TD.shape[1]), dtype=np.float32)
    noise *= _NOISE / np.sqrt(topics_TD.shape[1])
    return unit_rows(topics_TD[chosen] + noise)
