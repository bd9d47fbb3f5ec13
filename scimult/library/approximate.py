"""Approximate search: codes of a faiss index choose candidates, stored vectors score them.

``rabitq`` stores one bit of each number (Gao and Long, 2024, arXiv:2405.12497), ``pq`` four bits
for every four numbers (Jégou et al., 2011), both in inverted lists; ``hnsw`` stores a graph and a
byte of each number (Malkov and Yashunin, 2016, arXiv:1603.09320). The index is memory-mapped. The
number of lists to scan and of candidates to score is tuned on the library's own queries for the
requested recall. Rows newer than the index are searched exactly.

Shape legend: Q queries, N rows, D width, K results, R candidates of a query.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from scimult.errors import ConfigError
from scimult.forks import survive_forks
from scimult.library.exact import ExactSearch, IdsOf, RowScores, ranked
from scimult.library.segments import UnreadableError
from scimult.retrieval.faiss_indexes import queries_for
from scimult.retrieval.shards import Shards
from scimult.types import BoolArray, FloatArray, IntArray, Similarity

if TYPE_CHECKING:
    import faiss

Kind = Literal["rabitq", "pq", "hnsw"]
_EFFORTS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
_CANDIDATES = (2, 5, 10, 20, 40)
TUNED_K = 10
# Results kept beyond k, since float64 scores may reorder those of float32.
_SPARE = 8
# Candidates whose vectors are read at once: few enough for a processor's cache.
_SCORED = 1 << 10
# Of one query with more candidates, on a page far down: few enough for memory.
_READ = 1 << 14
# Below this share of allowed papers a graph is a dead end, and search is exact.
_SPARSE = 0.5


@dataclass(frozen=True)
class IndexFacts:
    """The description and settings of an index.

    Attributes
    ----------
    kind : {"rabitq", "pq", "hnsw"}
        See the module.
    file : str
        Its file in the folder of indexes; empty while it is not built anew for new row numbers.
    rows : int
        The index covers the papers among the rows below this number.
    papers : int
        Number of these papers.
    effort : int
        Lists to scan; for ``hnsw`` the length of the queue.
    candidates : int
        Candidates to score per result.
    recall, target : float
        Share of the exact best 10 found on the sample, and the requested share.
    queries : int
        Size of the sample.
    """

    kind: Kind
    file: str
    rows: int
    papers: int
    effort: int = 1
    candidates: int = 10
    recall: float = 0.0
    target: float = 0.95
    queries: int = 0


class ApproximateSearch:
    """Searches an index and scores its candidates exactly; ``exact`` searches all other rows."""

    def __init__(
        self, path: Path, facts: IndexFacts, shards: Shards, exact: ExactSearch, ids_of: IdsOf
    ) -> None:
        self.facts, self._path, self._shards = facts, path, shards
        self._exact, self._ids_of = exact, ids_of
        self._similarity: Similarity = shards.space.similarity

    def best(self, queries_QD: FloatArray, k: int, allowed_N: BoolArray) -> list[RowScores]:
        """Return approximately the best ``k`` allowed rows of every query, scored exactly.

        The filter applies to every row visited; the fewer rows it allows, the more lists are
        scanned.

        Raises
        ------
        DataError
            If the width differs, a number is not finite, or the index cannot be read.
        """
        queries_QD = self._exact.checked(queries_QD)
        if self.facts.kind == "hnsw" and self._share(allowed_N) < _SPARSE:
            return self._exact.best(queries_QD, k, allowed_N)
        count = max(k, 64, self.facts.candidates * k)
        rows_QR = self._candidates(queries_QD, k, count, allowed_N)
        late_N = allowed_N.copy()
        late_N[: self.facts.rows] = False
        late = self._exact.best(queries_QD, k, late_N) if late_N.any() else None
        near_QM = self._near(queries_QD, rows_QR, k + _SPARE)
        query_P, column_P = np.nonzero(near_QM >= 0)
        rows_P = near_QM[query_P, column_P]
        scores_P = self._exact.scores_of(queries_QD, query_P, rows_P)
        edges = np.searchsorted(query_P, np.arange(len(queries_QD) + 1))
        hits = []
        for query, (start, end) in enumerate(itertools.pairwise(edges)):
            rows, scores = rows_P[start:end], scores_P[start:end]
            if late is not None:
                rows = np.concatenate([rows, late[query][0]])
                scores = np.concatenate([scores, late[query][1]])
            hits.append(ranked(rows, scores, self._ids_of, k))
        return hits

    def _candidates(
        self, queries_QD: FloatArray, k: int, count: int, allowed_N: BoolArray
    ) -> IntArray:
        """Return candidates, from more lists if the usual ones hold fewer than ``k`` of them."""
        covered_N, share = allowed_N[: self.facts.rows], self._share(allowed_N)
        selector = None
        if share < 1 or self.facts.papers < self.facts.rows:
            selector = faiss_library().IDSelectorBitmap(np.packbits(covered_N, bitorder="little"))
        effort = min(math.ceil(self.facts.effort / max(share, 1e-9)), self._most_effort)
        # A graph's queue is as long as the list of candidates in any case.
        most = effort if self.facts.kind == "hnsw" else self._most_effort
        wanted = min(k, int(covered_N.sum()))
        asked_QD = queries_for(self._index, queries_QD, self._similarity)
        while True:
            options = parameters(self._index, self.facts.kind, effort, selector, count)
            rows_QR: IntArray = self._index.search(asked_QD, count, params=options)[1]
            fewest = np.count_nonzero(rows_QR >= 0, axis=1).min(initial=wanted)
            if fewest >= wanted or effort >= most:
                return rows_QR
            effort = min(2 * effort, most)

    def _near(self, queries_QD: FloatArray, rows_QR: IntArray, count: int) -> IntArray:
        """Return the best ``count`` candidates by float32 scores, unordered; -1 for none."""
        if rows_QR.shape[1] <= count:
            return rows_QR
        step = max(1, _SCORED // rows_QR.shape[1])
        near = []
        for start in range(0, len(rows_QR), step):
            rows_BR, queries_BD = rows_QR[start : start + step], queries_QD[start : start + step]
            parts = np.split(rows_BR, range(_READ, rows_BR.shape[1], _READ), axis=1)
            scores_BR = np.concatenate([self._scores(x, queries_BD) for x in parts], axis=1)
            best_BM = np.argpartition(-scores_BR, count - 1, axis=1)[:, :count]
            near.append(np.take_along_axis(rows_BR, best_BM, axis=1))
        return np.concatenate(near)

    def _scores(self, rows_BR: IntArray, queries_BD: FloatArray) -> FloatArray:
        """Return float32 numbers that order the candidates of each query; -inf for none."""
        flat_PD = self._shards.rows(np.maximum(rows_BR, 0).reshape(-1))
        vectors_BRD = flat_PD.reshape(*rows_BR.shape, -1)
        scores_BR: FloatArray = np.matmul(vectors_BRD, queries_BD[:, :, None])[:, :, 0]
        if self._similarity != "dot":
            squares_BR = np.einsum("brd,brd->br", vectors_BRD, vectors_BRD)
            if self._similarity == "l2":
                scores_BR -= 0.5 * squares_BR
            else:
                scores_BR /= np.sqrt(np.where(squares_BR > 0, squares_BR, 1))
        scores_BR[rows_BR < 0] = -np.inf
        return scores_BR

    def _share(self, allowed_N: BoolArray) -> float:
        return float(allowed_N[: self.facts.rows].sum() / max(1, self.facts.papers))

    @property
    def _most_effort(self) -> int:
        if self.facts.kind == "hnsw":
            return _EFFORTS[-1]
        lists: int = faiss_library().extract_index_ivf(self._index).nlist
        return lists

    @cached_property
    def _index(self) -> faiss.Index:
        return mapped_index(self._path)


def mapped_index(path: Path) -> faiss.Index:
    """Return an index that stays on disk.

    Raises
    ------
    UnreadableError
        If it is missing or cut short.
    """
    try:
        library = faiss_library()
        index: faiss.Index = library.read_index(str(path), library.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        problem = "damaged approximate index"
        fix = "rebuild it with scimult library index, or search with --exact"
        if not path.exists():
            problem = "approximate index is missing"
            fix = f"open the library again, as another process may have replaced it; or {fix}"
        raise UnreadableError(problem, path=path, fix=fix) from error
    return index


def tuned(
    search: ApproximateSearch,
    queries_QD: FloatArray,
    truth: Sequence[RowScores],
    live_N: BoolArray,
    target: float,
) -> IndexFacts:
    """Return the facts with the fastest settings that reach the target on the queries.

    The mean recall less its standard error must reach it. If no settings do, those with the best
    recall are returned, and the facts show it.
    """
    best, quickest = search.facts, math.inf
    # All lists of a small index, too.
    efforts = sorted({min(effort, search._most_effort) for effort in _EFFORTS})
    for candidates in _CANDIDATES:
        for effort in efforts:
            facts = replace(search.facts, effort=effort, candidates=candidates)
            search.facts = facts
            start = time.process_time()
            hits = search.best(queries_QD, TUNED_K, live_N)
            seconds = time.process_time() - start
            shares = np.array([_share(a, b) for a, b in zip(hits, truth, strict=True)])
            error = shares.std() / math.sqrt(len(shares))
            facts = replace(facts, recall=float(shares.mean()), target=target, queries=len(shares))
            enough = shares.mean() - error >= target
            if (enough and seconds < quickest) or (
                quickest == math.inf and facts.recall > best.recall
            ):
                best = facts
            if enough:
                quickest = min(quickest, seconds)
                break
    search.facts = best
    return best


def parameters(index: faiss.Index, kind: Kind, effort: int, selector: Any, count: int) -> Any:
    """Return faiss's options for one search of an index."""
    library = faiss_library()
    if kind == "hnsw":
        options = library.SearchParametersHNSW(efSearch=max(effort, count))
    elif kind == "pq":
        options = library.SearchParametersIVF(nprobe=effort)
    else:
        options = library.IVFRaBitQSearchParameters()
        options.nprobe, options.qb = effort, 4
    if selector is not None:
        options.sel = selector
    while isinstance(index, library.IndexPreTransform):
        options = library.SearchParametersPreTransform(index_params=options)
        index = library.downcast_index(index.index)
    return options


def _share(hits: RowScores, truth: RowScores) -> float:
    # Of equal papers any will do: codes cannot tell which ids come first.
    good = np.count_nonzero(hits[1] >= truth[1].min(initial=np.inf))
    return good / max(1, len(truth[0]))


def faiss_library() -> Any:
    """Import faiss.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    try:
        import faiss
    except ImportError as error:
        fix = "pip install faiss-cpu, or search with --exact"
        raise ConfigError("approximate search needs faiss", fix=fix) from error
    survive_forks()
    return faiss
