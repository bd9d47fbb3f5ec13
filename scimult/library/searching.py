"""Answer requests: filter rows, form the query vector, rank, and cut out a page.

Shape legend: N rows, D width, Q queries, K results.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from scimult.errors import ConfigError, DataError, one_of
from scimult.library.approximate import ApproximateSearch, IndexFacts
from scimult.library.exact import ExactSearch, RowScores
from scimult.library.fusing import FUSED, RULES, continued, fused, reranked
from scimult.library.manifest import INDEXES, Share
from scimult.library.request import Request
from scimult.library.results import SCORES, Hit, Hits
from scimult.library.state import State
from scimult.progress import warn
from scimult.types import BoolArray, FloatArray, IntArray, Text

if TYPE_CHECKING:
    from scimult.library.opened import Opened

_SAMPLE = 10_000
# Up to this many papers, exact search is faster than an index of the same quality.
_FEW = 20_000


class Searcher:
    """Searches the vectors of a task.

    Raises
    ------
    UnknownNameError
        If the library has no vectors for the task.
    DataError
        If the task does not search for papers.
    """

    def __init__(self, state: State, task: str) -> None:
        one_of("task of this library", task, state.manifest.sides)
        if state.manifest.sides[task] != "candidate":
            fix = "use tag, which ranks labels for papers"
            raise DataError("this task does not search for papers", value=task, fix=fix)
        self._state, self._task = state, task
        self._shards = state.shards(task)
        longest = state.manifest.longest.get(task, 0.0)
        self.exact = ExactSearch(self._shards, longest, state.papers.ids_of)

    def search(self, request: Request, opened: Opened) -> Hits:
        """Return the papers that answer a request, with the models and words of ``opened``."""
        seeds, ids_of = self._state.rows_of(request.ids), self._state.papers.ids_of
        allowed_N = self._allowed(request, seeds)
        query_D = self._query(request, seeds, opened)
        score = SCORES[self._shards.space.similarity]
        exact = True
        if request.min_score is not None:
            hits = self.exact.above(query_D[None], request.min_score, allowed_N)[0]
        else:
            first = max(request.first, FUSED if request.words is not None else 0)
            hits, exact = self._best(query_D, first, request.depth, allowed_N, request.method)
        if request.words is not None:
            share = self._share(request)
            words = opened.words.best(request.text, FUSED, allowed_N)
            hits = hits if exact else self.completed(query_D, hits, words)
            hits = fused(hits, words, share, ids_of)
            score = "reciprocal ranks" if share == "rank" else f"{score} and BM25, 0 to 1"
        if request.rerank is not None:
            top = hits[0][: request.first], hits[1][: request.first]
            texts = self._state.papers.texts_of(top[0])
            if texts:
                scorer = opened.cross_encoder(request.rerank)
                hits = reranked(top, request.text, texts, scorer, ids_of)
            score = "cross-encoder"
        page = hits[0][request.page], hits[1][request.page]
        return self._hits(page, request, query_D, score, exact)

    def _share(self, request: Request) -> Share:
        """Return the BM25 share, as requested or as tuned."""
        if request.words != "tuned":
            assert request.words is not None
            return request.words
        return self._tuned

    @cached_property
    def _tuned(self) -> Share:
        manifest = self._state.manifest
        if self._task not in manifest.words:
            fix = "tune it with scimult library tune, or pass a share such as 0.3"
            raise ConfigError("no BM25 share has been tuned", value=self._task, fix=fix)
        if manifest.words_rules.get(self._task) != RULES:
            warn(
                f"{self._state.folder}: the BM25 share of {self._task} was tuned by an earlier "
                "version, which fused otherwise; tune it again with scimult library tune"
            )
        return manifest.words[self._task]

    def _best(
        self, query_D: FloatArray, first: int, depth: int, allowed_N: BoolArray, method: str
    ) -> tuple[RowScores, bool]:
        """Return at least the best ``depth`` rows, and whether every allowed row was compared.

        An approximate index that is asked for more also finds other rows for the top, so pages cut
        from lists of their own lengths would repeat some papers and skip others. A list therefore
        begins with the best ``first``, and longer ones only continue it.
        """
        index = self._index(allowed_N, method)
        if index is None:
            return self.exact.best(query_D[None], max(first, depth), allowed_N)[0], True
        (hits,) = index.best(query_D[None], first, allowed_N)
        while first < min(depth, len(allowed_N)):
            first *= 2
            (longer,) = index.best(query_D[None], first, allowed_N)
            hits = continued(hits, longer, first)
        return hits, False

    def vectors(
        self, queries_QD: FloatArray, k: int, allowed_N: BoolArray
    ) -> tuple[list[RowScores], bool]:
        """Return the best rows of every query, and whether every allowed row was compared."""
        index = self._index(allowed_N, "auto")
        return (index or self.exact).best(queries_QD, k, allowed_N), index is None

    def completed(self, query_D: FloatArray, hits: RowScores, words: RowScores) -> RowScores:
        """Return an index's results with the papers of ``words`` that it missed.

        An index finds nearly all of the best 10, but fewer of the 1,000 that are fused; a paper
        that it missed would count as one that the vectors rank behind them.
        """
        rows = np.union1d(hits[0][:FUSED], words[0])
        first = self.exact.ranked(query_D, rows, FUSED)
        return continued(first, hits, len(rows) + len(hits[0]))

    def _index(self, allowed_N: BoolArray, method: str) -> ApproximateSearch | None:
        """Return the approximate index, or None to search exactly."""
        index = self.approximate
        # One whose rows are renumbered is built anew; until then, search is exact.
        if method == "approximate" and self._task not in self._state.manifest.indexes:
            fix = "build one with scimult library index, or search exactly"
            raise ConfigError("the library has no approximate index", value=self._task, fix=fix)
        few = allowed_N[: index.facts.rows].sum() < _FEW if index else True
        return None if method == "exact" or (few and method == "auto") else index

    @cached_property
    def approximate(self) -> ApproximateSearch | None:
        """The approximate index, or None."""
        facts = self._state.manifest.indexes.get(self._task)
        if facts is None or not facts["file"]:
            return None
        index = IndexFacts(**facts)
        path = self._state.folder / INDEXES / index.file
        ids_of = self._state.papers.ids_of
        return ApproximateSearch(path, index, self._shards, self.exact, ids_of)

    def _allowed(self, request: Request, seeds: IntArray) -> BoolArray:
        """Return a mask of the rows that may be results."""
        papers = self._state.papers
        allowed_N: BoolArray = self._state.live_N.copy()
        if request.where is not None:
            allowed_N &= papers.where(request.where)
        if request.only is not None:
            named_N = np.zeros_like(allowed_N)
            named_N[papers.rows_of(request.only)] = True
            allowed_N &= named_N
        allowed_N[seeds] = False
        if len(request.exclude):
            allowed_N[papers.rows_of(request.exclude)] = False
        return allowed_N

    def _query(self, request: Request, seeds: IntArray, opened: Opened) -> FloatArray:
        """Return the vector to search with, shape ``(D,)``."""
        if request.vector is not None:
            if request.space is not None:
                ours = self._shards.space
                made_by = {**request.space.made_by, "role": ours.made_by["role"]}
                other = replace(request.space, made_by=made_by, dtype=ours.dtype)
                ours.check_same(other, self._state.folder)
            own_D: FloatArray = self.exact.checked(np.asarray(request.vector)[None])[0]
            return own_D
        parts = [self._seed_vectors(seeds, opened)]
        if request.text.strip():
            parts.append(opened.queries(self._task, [request.text]))
        vectors_QD = np.concatenate(parts)
        if self._shards.space.similarity == "cosine":
            lengths = np.linalg.norm(vectors_QD, axis=1, keepdims=True)
            vectors_QD = np.divide(vectors_QD, np.where(lengths > 0, lengths, 1), dtype=np.float32)
        mean_D: FloatArray = vectors_QD.mean(axis=0, dtype=np.float64).astype(np.float32)
        return mean_D

    def _seed_vectors(self, seeds: IntArray, opened: Opened) -> FloatArray:
        """Return papers as query vectors, encoded again only if the task's two sides differ."""
        stored_QD = self._shards.rows(seeds)
        if not len(seeds) or self._task in self._state.manifest.shared:
            return stored_QD
        if opened.encoder.kind(self._task, "query") != "paper":
            return stored_QD
        return opened.queries(self._task, self._state.papers.texts_of(seeds))

    def _hits(
        self, page: RowScores, request: Request, query_D: FloatArray, score: str, exact: bool
    ) -> Hits:
        rows, scores = page
        table = self._state.papers.table(rows).to_pylist()
        shares = self._percentiles(query_D, rows) if request.percentile else [None] * len(rows)
        types = self._state.manifest.columns
        hits = [
            Hit(
                rank=rank,
                score=float(value),
                id=paper["id"],
                text=Text("paper", paper["title"], paper["abstract"]),
                columns={name: paper[name] for name in types},
                percentile=share,
            )
            for rank, (paper, value, share) in enumerate(
                zip(table, scores, shares, strict=True), start=request.offset + 1
            )
        ]
        return Hits(hits, score, exact)

    def _percentiles(self, query_D: FloatArray, rows: IntArray) -> list[float | None]:
        """Return the percentage of the library that scores lower than each row."""
        sample = np.sort(self.exact.scores(query_D, self._sample))
        scores = self.exact.scores(query_D, rows)
        return [float(x) for x in 100 * np.searchsorted(sample, scores) / max(1, len(sample))]

    @cached_property
    def _sample(self) -> IntArray:
        live = self._state.live_rows()
        generator = np.random.default_rng(0)
        few = len(live) <= _SAMPLE
        return live if few else np.sort(generator.choice(live, _SAMPLE, replace=False))
