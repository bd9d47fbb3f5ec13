"""Approximate windows of a ranking: codes in inverted lists choose candidates, vectors score them.

Each four numbers of a vector are kept as four bits, in lists of neighbours (product quantisation;
Jégou et al., 2011; faiss' fast scan). A search looks into the lists nearest to a query, and what
the codes favour is scored and ordered as an exact search would. So scores and the order of what is
found are exact, and what may be missing is a candidate: then all behind it move up a rank.

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
from scimult.retrieval.embeddings import unit_rows
from scimult.retrieval.exact import ExactIndex
from scimult.retrieval.runs import Ranking
from scimult.retrieval.selection import check_length
from scimult.types import FloatArray, IntArray, Similarity

_BLOCK = 1 << 16
_QUERIES = 256
# Vectors of each list that k-means sees, about what it asks for, and its rounds.
_TRAINED_ON, _ROUNDS = 40, 10
# Of codes of four bits there are sixteen, each the mean of so many.
_LEAST_TRAINED = 1 << 12


@dataclass(frozen=True)
class Effort:
    """What one query may take.

    Parameters
    ----------
    probes : int
        Lists that are looked into.
    overfetch, spare : int
        For ``k`` results ``overfetch * k + spare`` candidates are scored exactly.
    """

    probes: int = 128
    overfetch: int = 2
    spare: int = 1_000


def write_codes(
    path: Path, vectors_CD: FloatArray, similarity: Similarity, *, lists: int | None = None
) -> None:
    """Write an index of vectors, which are read in blocks.

    Parameters
    ----------
    path : Path
        The file.
    vectors_CD : FloatArray
        Shape ``(C, D)``; may be memory-mapped.
    similarity : {"dot", "cosine", "l2"}
        Whose ranking is wanted.
    lists : int, optional
        Inverted lists; by default the square root of the number of candidates.
    """
    import faiss  # the rest of mining never needs it

    count, width = vectors_CD.shape
    lists = min(lists or round(math.sqrt(count)), max(1, count // _TRAINED_ON))
    parts = max(part for part in range(1, max(1, width // 4) + 1) if width % part == 0)
    metric = faiss.METRIC_L2 if similarity == "l2" else faiss.METRIC_INNER_PRODUCT
    index = faiss.index_factory(width, f"IVF{lists},PQ{parts}x4fs", metric)
    clusters = faiss.extract_index_ivf(index).cp
    clusters.niter, clusters.max_points_per_centroid = _ROUNDS, _TRAINED_ON
    some = np.random.default_rng(0).permutation(count)[: max(_TRAINED_ON * lists, _LEAST_TRAINED)]
    index.train(_prepared(vectors_CD[np.sort(some)], similarity))
    for start in progress(range(0, count, _BLOCK), "index", unit="block"):
        index.add(_prepared(vectors_CD[start : start + _BLOCK], similarity))
    faiss.write_index(index, str(path))


class CodedIndex:
    """An index that ``write_codes`` wrote, beside the vectors themselves.

    Parameters
    ----------
    path : Path
        The file.
    exact : ExactIndex
        Of the same candidates.
    effort : Effort
        What a query may take.

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
        self._index.nprobe = min(self._effort.probes, self._index.nlist)

    def search(
        self, queries_QD: FloatArray, k: int, *, exclude_Q: IntArray | None = None
    ) -> Ranking:
        """Return about the best ``k`` candidates of each query.

        Parameters
        ----------
        queries_QD : FloatArray
            Shape ``(Q, D)``.
        k : int
            Length of the lists.
        exclude_Q : IntArray, optional
            One candidate row per query to leave out of its list; -1 for none.
        """
        k = min(check_length(k), self._index.ntotal)
        count = min(self._effort.overfetch * k + self._effort.spare, self._index.ntotal)
        rows_QK = np.full((len(queries_QD), k), -1, dtype=np.int64)
        scores_QK = np.full((len(queries_QD), k), -np.inf, dtype=np.float32)
        for start in range(0, len(queries_QD), _QUERIES):
            some = slice(start, start + _QUERIES)
            queries_BD = queries_QD[some]
            near_BR = self._index.search(_prepared(queries_BD, self._exact.similarity), count)[1]
            met_BR = near_BR >= 0
            if exclude_Q is not None:
                met_BR &= near_BR != exclude_Q[some, None]
            lists = Ragged(near_BR[met_BR], offsets_of(met_BR.sum(axis=1)))
            ranking = self._exact.rank_listed(queries_BD, lists)
            width = min(k, ranking.rows_QK.shape[1])
            rows_QK[some, :width] = ranking.rows_QK[:, :width]
            scores_QK[some, :width] = ranking.scores_QK[:, :width]
        return Ranking(rows_QK, scores_QK)

    def rank_listed(self, queries_QD: FloatArray, lists: Ragged) -> Ranking:
        """Rank, for each query, the candidates that ``lists`` gives it; exactly."""
        return self._exact.rank_listed(queries_QD, lists)


def _prepared(vectors_ND: FloatArray, similarity: Similarity) -> FloatArray:
    """Return vectors as faiss takes them: of length 1 where the similarity is cosine."""
    plain = np.ascontiguousarray(vectors_ND, dtype=np.float32)
    return unit_rows(plain) if similarity == "cosine" else plain
