"""Approximate top of a ranking: codes in inverted lists choose candidates, vectors score them.

Every four numbers of a vector are stored as four bits, in lists of neighbours (product
quantisation; Jégou et al., 2011; faiss' fast scan). A search scans the lists nearest to a query and
scores what the codes favour exactly. Scores and their order are therefore exact; only a candidate
can be missing, and then all behind it move up one rank.

Shape legend: Q queries, C candidates, D width, B candidates or queries of one block, K results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from scimult.data.ragged import Ragged, offsets_of
from scimult.errors import DataError
from scimult.progress import progress
from scimult.retrieval.exact import ExactIndex
from scimult.retrieval.faiss_indexes import for_faiss, new_index, queries_for, write_index
from scimult.retrieval.runs import Ranking
from scimult.retrieval.selection import check_length
from scimult.types import FloatArray, IntArray, Similarity

LEAST = 16
"""Four-bit codes have as many centroids, so fewer vectors have none."""

_BLOCK = 1 << 16
_QUERIES = 256
# Vectors per list that k-means sees, about what it expects, and its iterations.
_TRAINED_ON, _ROUNDS = 40, 10
# Fewest training vectors, for the sixteen centroids of four-bit codes.
_LEAST_TRAINED = 1 << 12


@dataclass(frozen=True)
class Effort:
    """The budget of one query.

    Parameters
    ----------
    probes : int
        Lists to scan.
    overfetch, spare : int
        ``k`` results come from ``overfetch * k + spare`` candidates scored exactly.
    """

    probes: int = 128
    overfetch: int = 2
    spare: int = 1_000


def write_codes(
    path: Path, vectors_CD: FloatArray, similarity: Similarity, *, lists: int | None = None
) -> None:
    """Write an index of vectors, reading them in blocks.

    There are at least ``LEAST`` vectors. ``lists`` is the number of inverted lists, by default the
    square root of that of candidates.
    """
    import faiss  # other mining does not need it

    count, width = vectors_CD.shape
    lists = min(lists or round(math.sqrt(count)), max(1, count // _TRAINED_ON))
    parts = max(part for part in range(1, max(1, width // 4) + 1) if width % part == 0)
    index = new_index(width, f"IVF{lists},PQ{parts}x4fs", similarity)
    clusters = faiss.extract_index_ivf(index).cp
    clusters.niter, clusters.max_points_per_centroid = _ROUNDS, _TRAINED_ON
    some = np.random.default_rng(0).permutation(count)[: max(_TRAINED_ON * lists, _LEAST_TRAINED)]
    index.train(for_faiss(vectors_CD[np.sort(some)], similarity))
    for start in progress(range(0, count, _BLOCK), "index", unit="block"):
        index.add(for_faiss(vectors_CD[start : start + _BLOCK], similarity))
    write_index(index, path)


class CodedIndex:
    """An index written by ``write_codes``, with the exact index of the same candidates.

    Raises
    ------
    DataError
        If the file cannot be read.
    """

    def __init__(self, path: Path, exact: ExactIndex, effort: Effort | None = None) -> None:
        import faiss

        self._exact, self._effort = exact, effort or Effort()
        try:
            self._index = cast(Any, faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC))
        except RuntimeError as error:
            raise DataError("damaged index", path=path, fix="delete it") from error
        lists = faiss.extract_index_ivf(self._index)
        lists.nprobe = min(self._effort.probes, lists.nlist)

    def search(
        self, queries_QD: FloatArray, k: int, *, exclude_Q: IntArray | None = None
    ) -> Ranking:
        """Return approximately the best ``k`` candidates of each query; see `ExactIndex.search`."""
        k = min(check_length(k), self._index.ntotal)
        count = min(self._effort.overfetch * k + self._effort.spare, self._index.ntotal)
        ranking = Ranking.empty(len(queries_QD), k)
        for start in range(0, len(queries_QD), _QUERIES):
            some = slice(start, start + _QUERIES)
            queries_BD = queries_QD[some]
            asked_BD = queries_for(self._index, queries_BD, self._exact.similarity)
            near_BR = self._index.search(asked_BD, count)[1]
            valid_BR = near_BR >= 0
            if exclude_Q is not None:
                valid_BR &= near_BR != exclude_Q[some, None]
            lists = Ragged(near_BR[valid_BR], offsets_of(valid_BR.sum(axis=1)))
            ranking.fill(some, self._exact.rank_listed(queries_BD, lists))
        return ranking

    def rank_listed(self, queries_QD: FloatArray, lists: Ragged) -> Ranking:
        """Rank exactly the candidates that ``lists`` gives each query."""
        return self._exact.rank_listed(queries_QD, lists)
