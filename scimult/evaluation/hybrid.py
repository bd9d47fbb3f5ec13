"""Combined systems: several fused into one list, or one reranked by a cross-encoder.

Shape legend: Q queries, K listed results, P (query, candidate) pairs, S shares.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from scimult.data.ragged import Ragged
from scimult.data.records import Rejects
from scimult.errors import DataError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.datasets import read_dataset
from scimult.evaluation.metrics import Scores, compute, judge
from scimult.evaluation.protocols import PROTOCOLS
from scimult.evaluation.results import CostKind
from scimult.evaluation.systems import Ranker, System
from scimult.evaluation.task_data import Dataset, TaskData
from scimult.files import checksums_below, sha256
from scimult.progress import note
from scimult.retrieval.cross_encoder import load_cross_encoder
from scimult.retrieval.fusion import Points, fuse, reciprocal_ranks, scaled_scores
from scimult.retrieval.runs import Ranking, id_order, places_of, ranking_of_pairs
from scimult.types import FloatArray, IntArray

DEPTH = 1000
"""Number of each member's results that are fused."""
_SHARES = np.linspace(0, 1, 21)


class FusedSystem(System):
    """Fuses the lists of several systems.

    ``by="rank"``: sums of reciprocal ranks (Cormack et al., 2009), without parameters.
    ``by="weights"``: weighted sums of the scores of two systems, each list's scaled to [0, 1]. The
    weight is the one with the best nDCG@10 on the set's dev set or, without one, on the other half
    of the queries: halves by the SHA-256 of their ids, so no query is scored with a weight chosen
    on it. ``split`` is that of the dev sets.
    """

    def __init__(
        self,
        name: str,
        members: Sequence[System],
        by: Literal["rank", "weights"] = "rank",
        dev: Mapping[str, DevSet] | None = None,
        split: str = "dev",
    ) -> None:
        self.name, self.members, self.by = name, list(members), by
        self.dev, self.split = dev, split
        self.costs: dict[str, dict[CostKind, float]] = {}

    def describe(self) -> dict[str, Any]:
        """Return the fusion rule and the members' settings."""
        members = {member.name: member.describe() for member in self.members}
        return {"kind": "fused", "by": self.by, **self._chosen_on, "members": members}

    @cached_property
    def _chosen_on(self) -> dict[str, Any]:
        """The dev sets and their files' digests: other judgments may choose another weight."""
        if self.dev is None:
            return {}
        digests = {
            name: {path.name: sha256(path) for path in dev.dataset.files}
            for name, dev in self.dev.items()
        }
        return {"dev": self.split, "sha256": digests}

    def task_for(self, task: str, fallback: str) -> str | None:
        """Return a task that all members know: the fallback unless each chooses ``task``."""
        tasks = {member.task_for(task, fallback) for member in self.members} - {None}
        return fallback if fallback in tasks else next(iter(tasks), None)

    def ranker(self, dataset: Dataset) -> Ranker:
        """Prepare the rankers of all members."""
        share = None if self.dev is None else self._best_share(self.dev[dataset.name])
        rankers = [member.ranker(dataset) for member in self.members]
        costs = [member.costs.get(dataset.name, {}) for member in self.members]
        kinds = {kind for cost in costs for kind in cost}
        self.costs[dataset.name] = {
            kind: sum(cost.get(kind, 0) for cost in costs) for kind in kinds
        }
        return _FusedRanker(rankers, dataset, self.by, share)

    def _best_share(self, dev: DevSet) -> float:
        """Return the first member's share that scores best on the dev set."""
        rankings = [dev.rank(member.ranker(dev.dataset), DEPTH) for member in self.members]
        points = [scaled_scores(ranking) for ranking in rankings]
        scores_SQ = _scores_of_shares(rankings, points, dev.dataset)
        share = float(_SHARES[scores_SQ.mean(axis=1).argmax()])
        note(f"{self.name}: {dev.dataset.name}: weight of {self.members[0].name} is {share:.2f}")
        return share


class _FusedRanker:
    def __init__(
        self, rankers: Sequence[Ranker], dataset: Dataset, by: str, share: float | None
    ) -> None:
        self._rankers, self._dataset, self._by, self._share = rankers, dataset, by, share
        self._place_C = places_of(id_order(dataset.candidate_ids))

    def search(self, k: int, exclude_Q: IntArray | None = None) -> Ranking:
        depth = max(k, DEPTH)
        return self._fused([ranker.search(depth, exclude_Q) for ranker in self._rankers], k)

    def rank_listed(self, lists: Ragged) -> Ranking:
        return self._fused([ranker.rank_listed(lists) for ranker in self._rankers], None)

    def _fused(self, rankings: list[Ranking], k: int | None) -> Ranking:
        if self._by == "rank":
            points = [reciprocal_ranks(ranking) for ranking in rankings]
            return fuse(rankings, points, [1.0] * len(rankings), self._place_C, k)
        points = [scaled_scores(ranking) for ranking in rankings]
        if self._share is None:
            shares_Q = self._chosen_shares(rankings, points)
        else:
            shares_Q = np.full(len(rankings[0]), self._share)
        return fuse(rankings, points, [shares_Q, 1 - shares_Q], self._place_C, k)

    def _chosen_shares(self, rankings: Sequence[Ranking], points: Sequence[Points]) -> FloatArray:
        """Return the first list's share for each query: the best on the other half."""
        half_Q = halves(self._dataset.query_ids)
        scores_SQ = _scores_of_shares(rankings, points, self._dataset)
        best = [_SHARES[scores_SQ[:, half_Q != half].mean(axis=1).argmax()] for half in (0, 1)]
        shares_Q: FloatArray = np.array(best)[half_Q]
        return shares_Q


def _scores_of_shares(
    rankings: Sequence[Ranking], points: Sequence[Points], dataset: Dataset
) -> Scores:
    """Return nDCG@10 of every query for each share of the first list, shape ``(S, Q)``.

    Raises
    ------
    DataError
        If reviewers are judged, not the papers that are ranked.
    """
    if dataset.reviewers is not None:
        problem = f"no weight can be chosen on {dataset.name}, which judges reviewers, not papers"
        raise DataError(problem, fix="fuse by rank, or leave the set out")
    place_C = places_of(id_order(dataset.candidate_ids))
    columns = [
        compute("ndcg@10", judge(fuse(rankings, points, [s, 1 - s], place_C, 10), dataset.qrels))
        for s in _SHARES
    ]
    return np.array(columns)


def halves(ids: Sequence[str]) -> IntArray:
    """Return 0 or 1 for each query: the half of its id's SHA-256 in sorted order.

    Raises
    ------
    DataError
        If there are fewer than two queries.
    """
    if len(ids) < 2:
        fix = "fuse by rank, which has no weight to choose"
        raise DataError("choosing weights needs at least two queries", fix=fix)
    digests = np.array([hashlib.sha256(name.encode()).hexdigest() for name in ids])
    order = np.argsort(digests, kind="stable")
    half_Q = np.zeros(len(ids), dtype=np.int64)
    half_Q[order[len(ids) // 2 :]] = 1
    return half_Q


class RerankedSystem(System):
    """Reorders a system's ``top`` results by a cross-encoder; later results keep their order.

    ``model`` is a sentence-transformers cross-encoder with one score per pair.
    """

    def __init__(
        self,
        name: str,
        first: System,
        model: str | Path,
        *,
        top: int = 100,
        device: str | None = None,
    ) -> None:
        self.name, self.first, self.model, self.top = name, first, str(model), top
        self.costs: dict[str, dict[CostKind, float]] = {}
        self._score = load_cross_encoder(self.model, device)

    def describe(self) -> dict[str, Any]:
        """Return the model with its files' digests, how many results it reranks, and the first."""
        digests, first = checksums_below(Path(self.model)), {self.first.name: self.first.describe()}
        content = {"sha256": digests} if digests else {}  # the hub's models have a name alone
        return {"kind": "reranked", "model": self.model, "top": self.top, **content, "first": first}

    def task_for(self, task: str, fallback: str) -> str | None:
        """Return the first system's task."""
        return self.first.task_for(task, fallback)

    def ranker(self, dataset: Dataset) -> Ranker:
        """Prepare the first system's ranker."""
        ranker = self.first.ranker(dataset)
        self.costs[dataset.name] = dict(self.first.costs.get(dataset.name, {}))
        return _RerankedRanker(self, ranker, dataset)

    def scores(self, dataset: Dataset, query_P: IntArray, row_P: IntArray) -> FloatArray:
        """Return the cross-encoder's score of each pair, shape ``(P,)``.

        Raises
        ------
        DataError
            If a score is not finite.
        """
        start = time.perf_counter()
        pairs = [
            (dataset.queries[query].joined, dataset.candidates[row].joined)
            for query, row in zip(query_P, row_P, strict=True)
        ]
        scores_P = self._score(pairs)
        cost = self.costs[dataset.name]
        cost["encode_seconds"] = round(
            cost.get("encode_seconds", 0) + time.perf_counter() - start, 3
        )
        return scores_P


class _RerankedRanker:
    def __init__(self, system: RerankedSystem, first: Ranker, dataset: Dataset) -> None:
        self._system, self._first, self._dataset = system, first, dataset
        self._place_C = places_of(id_order(dataset.candidate_ids))

    def search(self, k: int, exclude_Q: IntArray | None = None) -> Ranking:
        first = self._first.search(max(k, self._system.top), exclude_Q)
        ranking = self._reranked(first)
        return Ranking(ranking.rows_QK[:, :k], ranking.scores_QK[:, :k])

    def rank_listed(self, lists: Ragged) -> Ranking:
        most = int(lists.lengths.max(initial=0))
        if self._dataset.reviewers is not None and most > self._system.top:
            problem = f"{self._dataset.name} averages scores of papers, up to {most} of a query"
            fix = f"rerank them all with top={most}, or leave the set out"
            raise DataError(problem, value=f"top={self._system.top}", fix=fix)
        return self._reranked(self._first.rank_listed(lists))

    def _reranked(self, ranking: Ranking) -> Ranking:
        """Reorder the first ``top`` of every list by the cross-encoder, ahead of the rest."""
        top, rows_QK = self._system.top, ranking.rows_QK
        query_P, column_P = np.nonzero(rows_QK[:, :top] >= 0)
        row_P = rows_QK[query_P, column_P]
        scores_P = self._system.scores(self._dataset, query_P, row_P)
        width, rest_QK = rows_QK[:, :top].shape[1], rows_QK[:, top:]
        best = ranking_of_pairs(query_P, row_P, scores_P, len(ranking), self._place_C, width)
        # Below the lowest score of their query, in their previous order.
        lowest_Q1 = np.where(best.rows_QK >= 0, best.scores_QK, np.inf).min(axis=1, initial=0.0)
        ranks_K = np.arange(1, rest_QK.shape[1] + 1, dtype=np.float32)
        below_QK = np.where(rest_QK >= 0, lowest_Q1[:, None] - ranks_K, -np.inf)
        return Ranking(
            np.concatenate([best.rows_QK, rest_QK], axis=1),
            np.concatenate([best.scores_QK, below_QK.astype(np.float32)], axis=1),
        )


@dataclass(frozen=True)
class DevSet:
    """Queries for choosing weights, and whether query papers are left out of their own lists."""

    dataset: Dataset
    leaves_out: bool

    def rank(self, ranker: Ranker, depth: int) -> Ranking:
        """Rank by the benchmark's protocol."""
        if self.dataset.lists is not None:
            return ranker.rank_listed(self.dataset.lists)
        return ranker.search(depth, self.dataset.own_rows if self.leaves_out else None)


def check_apart(dev: DevSet, scored: TaskData) -> None:
    """Refuse a dev set with relevant pairs that are scored, such as one of a layout without splits.

    Raises
    ------
    DataError
        Naming a pair.
    """
    assert isinstance(scored, Dataset), "rankers rank data sets"
    both = _relevant_pairs(dev.dataset) & _relevant_pairs(scored)
    if both:
        problem = f"{dev.dataset.name} has judgments of {scored.name}, which is scored"
        fix = "name a split with judgments of its own, or fuse without dev="
        raise DataError(problem, path=dev.dataset.files[0], value=min(both), fix=fix)


def _relevant_pairs(dataset: Dataset) -> set[tuple[str, str]]:
    judged, relevant_P = dataset.qrels.rows, dataset.qrels.grades.values > 0
    rows = zip(judged.owners[relevant_P].tolist(), judged.values[relevant_P].tolist(), strict=True)
    return {(dataset.query_ids[query], dataset.candidate_ids[row]) for query, row in rows}


def read_dev_sets(
    benchmarks: Mapping[str, Benchmark], root: Path, split: str, *, skip_bad: bool = False
) -> dict[str, DevSet]:
    """Read one split of every benchmark that ranks texts, under the name ``SET.SPLIT``.

    Raises
    ------
    DataError
        If a benchmark has no files for this split, or they are bad.
    """
    dev_sets = {}
    for name, benchmark in benchmarks.items():
        if not PROTOCOLS[benchmark.protocol].ranks:
            continue
        other = benchmark.model_copy(update={"split": split, "expected": None})
        how = f"write the judgments of split {split!r}, or fuse without dev="
        dataset = read_dataset(f"{name}.{split}", other, root, how, Rejects(skip_bad))
        assert isinstance(dataset, Dataset), "rankers rank data sets"
        linked = benchmark.protocol == "link_retrieval" and benchmark.mode != "paper"
        dev_sets[name] = DevSet(dataset, linked or benchmark.mode == "beir")
    return dev_sets
