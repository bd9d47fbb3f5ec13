"""Time and memory of exact search at the sizes of SciMult's Table A2, on generated embeddings.

Shape legend: Q queries, C candidates, D width, K results per query.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch

from benchmarks.timing import CLOCKS, Clock
from scimult.evaluation.name_matching import match_names, matched_first, words
from scimult.hardware import peak_memory
from scimult.retrieval.exact import ExactIndex
from scimult.types import FloatArray, IntArray

SHAPES = {
    "cs_conference": (261_781, 15_808),
    "chemistry_mesh": (762_129, 30_194),
    "patient_to_patient": (100_327, 155_151),
    "patient_to_article": (5_959, 1_413_087),
}
"""Queries and candidates of the largest data sets."""

LABELLED = ("cs_conference", "chemistry_mesh")
"""Shapes whose candidates are labels, where the cost of name matching is measured too."""

_BARE_QUERIES, _BARE_CANDIDATES = 1024, 16384
_WORDS, _WORDS_OF_A_PAPER, _WORDS_OF_A_NAME = 50_000, 150, 3


@dataclass(frozen=True)
class SearchCost:
    """Cost of one shape.

    Attributes
    ----------
    name, queries, candidates
        The shape.
    fraction : float
        Share of queries searched, against all candidates.
    seconds, bare_seconds : float
        Time of the search, and of only its products and ``torch.topk`` of each block.
    names_seconds : float or None
        Time of moving labels with matching names to the front, for shapes with labels.
    whole_seconds : float
        ``seconds`` divided by ``fraction``.
    peak_bytes : int
        Peak resident size of a process that does only this, including embeddings and ids.
    whole_bytes : int
        ``peak_bytes`` plus the computed size of the other queries' embeddings and lists.
    """

    name: str
    queries: int
    candidates: int
    fraction: float
    seconds: float
    bare_seconds: float
    names_seconds: float | None
    whole_seconds: float
    peak_bytes: int
    whole_bytes: int

    @property
    def ratio(self) -> float:
        """Time relative to products and top-k alone."""
        return self.seconds / self.bare_seconds

    @property
    def ratio_with_names(self) -> float | None:
        """The same for search and name matching together."""
        if self.names_seconds is None:
            return None
        return (self.seconds + self.names_seconds) / self.bare_seconds

    def as_json(self) -> dict[str, Any]:
        """Return all figures."""
        return {**asdict(self), "ratio": self.ratio, "ratio_with_names": self.ratio_with_names}


def measure_search(name: str, width: int, k: int, fraction: float, clock: Clock) -> SearchCost:
    """Measure one shape in its own process, whose peak memory is that of the search."""
    context = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measure, name, width, k, fraction, clock).result()


def _measure(name: str, width: int, k: int, fraction: float, clock: Clock) -> SearchCost:
    queries, candidates = SHAPES[name]
    searches = max(1, round(queries * fraction))
    generator = np.random.default_rng(0)
    embeddings_CD = generator.standard_normal((candidates, width), dtype=np.float32)
    queries_QD = generator.standard_normal((searches, width), dtype=np.float32)
    index = ExactIndex([f"{row:08d}" for row in range(candidates)], embeddings_CD, "dot")
    now = CLOCKS[clock]
    start = now()
    ranking = index.search(queries_QD, k)
    seconds = now() - start
    names_seconds = None
    if name in LABELLED:
        texts = _generated_texts(generator, searches)
        names = _generated_names(generator, candidates)
        start = now()
        matches = match_names([words(text) for text in texts], names)
        matched_first(ranking, index.rank_listed(queries_QD, matches))
        names_seconds = now() - start
    peak = peak_memory()
    start = now()
    _bare(queries_QD, embeddings_CD, k)
    bare_seconds = now() - start
    left_out = (queries - searches) * (width * 4 + k * 12)
    return SearchCost(
        name=name,
        queries=queries,
        candidates=candidates,
        fraction=searches / queries,
        seconds=seconds,
        bare_seconds=bare_seconds,
        names_seconds=names_seconds,
        whole_seconds=seconds * queries / searches,
        peak_bytes=peak,
        whole_bytes=peak + left_out,
    )


def _generated_texts(generator: np.random.Generator, count: int) -> list[str]:
    """Return papers with word frequencies by Zipf's law."""
    return [
        _phrase(np.minimum(generator.zipf(1.3, _WORDS_OF_A_PAPER), _WORDS)) for _ in range(count)
    ]


def _generated_names(generator: np.random.Generator, count: int) -> list[list[str]]:
    """Return a name of one to three uniformly random words for each label."""
    lengths = generator.integers(1, _WORDS_OF_A_NAME + 1, size=count)
    return [[_phrase(generator.integers(1, _WORDS + 1, size=length))] for length in lengths]


def _phrase(numbers: IntArray) -> str:
    return " ".join(f"w{number}" for number in numbers.tolist())


def _bare(queries_QD: FloatArray, embeddings_CD: FloatArray, k: int) -> None:
    """Compute only the float32 products of all blocks and the top k of each."""
    queries, candidates = torch.from_numpy(queries_QD), torch.from_numpy(embeddings_CD)
    buffer = torch.empty(_BARE_QUERIES * _BARE_CANDIDATES)
    for block_BD in torch.split(candidates, _BARE_CANDIDATES):
        for part_QD in torch.split(queries, _BARE_QUERIES):
            scores_QB = buffer[: len(part_QD) * len(block_BD)].view(len(part_QD), -1)
            torch.mm(part_QD, block_BD.T, out=scores_QB)
            scores_QB.topk(min(k, scores_QB.shape[1]), dim=1)
