"""Hard negatives and neighbours by rank: the results of a search between two ranks.

The search may be by BM25, by embeddings of a text encoder, or by those of the citation graph; each
is a ``RankWindow`` over another index.

Shape legend: G groups, Q distinct queries, C candidates, K ranks, P (group, candidate) pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np

from scimult.data.pairs import PairFile
from scimult.data.ragged import Ragged
from scimult.data.text_store import TextStore
from scimult.disk_space import create_matrix
from scimult.preparation.mining.pools import Groups
from scimult.progress import bar, progress
from scimult.retrieval.embeddings import encode
from scimult.retrieval.runs import Ranking
from scimult.types import BoolArray, FloatArray, IntArray, Role, TextEncoder

Queries = TypeVar("Queries")
_Queries = TypeVar("_Queries", contravariant=True)
TEXTS_PER_BLOCK = 4096
NEIGHBOURS_SUFFIX = "-neighbours"


class Index(Protocol[_Queries]):
    """An exact or approximate index of words or vectors."""

    def search(self, queries: _Queries, k: int, *, exclude_Q: IntArray | None = None) -> Ranking:
        """Return the best ``k`` candidates of each query, except row ``exclude_Q``."""
        ...

    def rank_listed(self, queries: _Queries, lists: Ragged) -> Ranking:
        """Rank the candidates listed for each query."""
        ...


@dataclass(frozen=True)
class RankWindow(Generic[Queries]):
    """Candidates between two ranks of a search.

    Ranks count from 0, over all candidates but the query itself. Known positives count, and are
    left out afterwards. ``represent`` maps text rows to queries of the index over the candidates
    ``rows_C``, which ascend. With a ``margin``, only candidates stay that score at most the lowest
    positive's score minus this. Rows outside ``askable``, if given, get no candidates.
    """

    index: Index[Queries]
    represent: Callable[[IntArray], Queries]
    rows_C: IntArray
    ranks: range
    margin: float | None = None
    askable: IntArray | None = None

    def candidates(self, groups: Groups) -> Ragged:
        """Return the window of each query, cut by the margin of each group."""
        numbers = np.arange(len(groups), dtype=np.int64)
        if self.askable is not None:
            numbers = np.flatnonzero(positions_in(groups.queries_G, self.askable)[1])
        if not len(numbers):
            return Ragged.empty(len(groups))
        subset = groups.take(numbers)
        distinct_Q, query_of_G = np.unique(subset.queries_G, return_inverse=True)
        own_Q, is_candidate = positions_in(distinct_Q, self.rows_C)
        ranking = self.index.search(
            self.represent(distinct_Q),
            self.ranks.stop,
            exclude_Q=np.where(is_candidate, own_Q, -1),
        )
        window_GK = ranking.rows_QK[query_of_G, self.ranks.start :]
        listed_GK = window_GK >= 0
        if self.margin is not None:
            scores_GK = ranking.scores_QK[query_of_G, self.ranks.start :]
            listed_GK &= scores_GK <= self._lowest_positive(subset)[:, None] - self.margin
        owners_P, _ = np.nonzero(listed_GK)
        return Ragged.from_pairs(numbers[owners_P], self.rows_C[window_GK[listed_GK]], len(groups))

    def _lowest_positive(self, groups: Groups) -> FloatArray:
        """Return the lowest score of a positive of each group, shape ``(G,)``."""
        positions, inside = positions_in(groups.positives.values, self.rows_C)
        owners = groups.positives.owners[inside]
        lists = Ragged.from_pairs(owners, positions[inside], len(groups))
        ranking = self.index.rank_listed(self.represent(groups.queries_G), lists)
        scores = np.where(ranking.rows_QK >= 0, ranking.scores_QK, np.inf)
        lowest_G: FloatArray = scores.min(axis=1, initial=np.inf)
        # Groups without a positive among the candidates keep none: the margin needs a positive.
        return np.where(np.isinf(lowest_G), -np.inf, lowest_G).astype(np.float32)


def neighbour_pairs(
    citations: PairFile, window: RankWindow[FloatArray], component_C: IntArray, barred: IntArray
) -> PairFile:
    """Return one group per citing paper whose positives are a window of its neighbours.

    The positives of ``citations`` are ignored, and may be among the neighbours. ``component_C`` is
    the connected component of each candidate of the window: those to which no chain of citations
    leads from the query are left out, as their order means nothing, and so are ``barred`` texts.
    The file has the source ``<source>-neighbours``, the same task and split, and no negatives yet.
    Queries without a neighbour in the window are left out.
    """
    queries = np.unique(citations.queries)
    parts = list(Groups(queries, Ragged.empty(len(queries))).parts())
    lists = [window.candidates(part) for part in progress(parts, "neighbours", unit="chunk")]
    listed = Ragged.concatenate(lists)
    own, other = (
        component_C[np.searchsorted(window.rows_C, rows)]
        for rows in (queries[listed.owners], listed.values)
    )
    stays = (own == other) & ~np.isin(listed.values, barred)
    positives = Ragged.from_pairs(listed.owners[stays], listed.values[stays], len(queries))
    filled = np.flatnonzero(positives.lengths)
    return PairFile(
        citations.source + NEIGHBOURS_SUFFIX,
        citations.task,
        citations.split,
        queries[filled],
        positives.take(filled),
        Ragged.empty(len(filled)),
        namespace=citations.namespace,
        part="neighbours",
    )


def look_up(rows_N: IntArray, vectors_ND: FloatArray) -> Callable[[IntArray], FloatArray]:
    """Return a function from text rows to their vectors; ``rows_N`` are ascending."""
    return lambda rows: np.asarray(vectors_ND[np.searchsorted(rows_N, rows)])


def encode_to_file(
    encoder: TextEncoder, task: str, role: Role, texts: TextStore, rows: IntArray, path: Path
) -> FloatArray:
    """Encode texts block by block into a memory-mapped file, shape ``(len(rows), width)``."""
    stored: FloatArray | None = None
    with bar(f"encode {role}", total=len(rows), unit="text") as meter:
        for start in range(0, len(rows), TEXTS_PER_BLOCK):
            block = texts.texts(rows[start : start + TEXTS_PER_BLOCK])
            encoded = encode(encoder, block, task=task, role=role)
            if stored is None:
                shape = len(rows), encoded.shape[1]
                stored = create_matrix(path, np.float32, shape)
            stored[start : start + len(block)] = encoded
            meter.update(len(block))
    assert stored is not None, "nothing to encode"
    return stored


def positions_in(rows: IntArray, sorted_rows: IntArray) -> tuple[IntArray, BoolArray]:
    """Return the position of each row in ``sorted_rows``, and whether it is in there."""
    positions = np.minimum(np.searchsorted(sorted_rows, rows), len(sorted_rows) - 1)
    return positions, sorted_rows[positions] == rows
