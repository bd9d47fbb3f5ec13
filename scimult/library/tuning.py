"""Tune the share of BM25 next to vectors on queries whose papers are known.

Shape legend: Q queries, K listed papers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scimult.data.ragged import Ragged
from scimult.errors import DataError
from scimult.evaluation.metrics import compute, judge
from scimult.files import only_writer
from scimult.library.fusing import FUSED, RULES, fused
from scimult.library.manifest import Share, write_manifest
from scimult.library.opened import Opened
from scimult.library.state import State
from scimult.retrieval.runs import Qrels, Ranking
from scimult.types import IntArray

LEAST = 10
"""Fewest queries for a choice."""
_K = 10
_SHARES: tuple[Share, ...] = (*(round(0.1 * tenths, 1) for tenths in range(11)), "rank")


class Question(NamedTuple):
    """Words, and the ids of the papers that answer them."""

    words: str
    ids: Sequence[str]


class Tuned(NamedTuple):
    """The chosen share, nDCG@10 of every share tried, and numbers of queries.

    ``left_out`` are those without words, or without a paper of the library.
    """

    share: Share
    scores: Mapping[Share, float]
    queries: int
    left_out: int


def tune_words(state: State, opened: Opened, task: str, questions: Iterable[Question]) -> Tuned:
    """Choose the BM25 share with the best nDCG@10, and store it in the library.

    Among equally good shares the smallest wins, and reciprocal ranks, which have nothing to tune,
    only win if they are better. Papers that are not in the library count as missed.

    Raises
    ------
    DataError
        If too few queries have a paper in the library, or it was migrated to another model since.
    StorageError
        If another process is writing.
    """
    with only_writer(state.folder):  # a second one is refused before it has worked for nothing
        manifest = State(state.folder).manifest
        if manifest.vectors != state.manifest.vectors:
            fix = "open the library again, or refresh it, and repeat"
            raise DataError("the library has another model now", path=state.folder, fix=fix)
        tuned = _tuned(state, opened, task, questions)
        shares, rules = {**manifest.words, task: tuned.share}, {**manifest.words_rules, task: RULES}
        write_manifest(state.folder, manifest.changed(words=shares, words_rules=rules))
    return tuned


def _tuned(state: State, opened: Opened, task: str, questions: Iterable[Question]) -> Tuned:
    given = [(one.words, _rows(state, one.ids), len(set(one.ids))) for one in questions]
    known = [one for one in given if len(one[1]) and one[0].strip()]
    if len(known) < LEAST:
        fix = f"give at least {LEAST}, with ids of papers in the library"
        problem = f"too few queries: {len(known)} of {len(given)} have papers of the library"
        raise DataError(problem, fix=fix)
    queries_QD = opened.queries(task, [words for words, _, _ in known])
    searcher = opened.searcher(task)
    vectors, exact = searcher.vectors(queries_QD, FUSED, state.live_N)
    words = [opened.words.best(text, FUSED, state.live_N) for text, _, _ in known]
    if not exact:
        vectors = list(map(searcher.completed, queries_QD, vectors, words))
    # Papers that are not here get row numbers that no search returns.
    answers = [
        np.append(rows, state.manifest.rows + np.arange(count - len(rows)))
        for _, rows, count in known
    ]
    listed = Ragged.from_lists(answers)
    most = state.manifest.rows + max(count for _, _, count in known)
    qrels = Qrels(listed, Ragged(np.ones_like(listed.values), listed.offsets), most)
    scores: dict[Share, float] = {}
    for share in _SHARES:
        lists = [
            fused(dense, sparse, share, state.papers.ids_of)[0][:_K]
            for dense, sparse in zip(vectors, words, strict=True)
        ]
        scores[share] = float(compute(f"ndcg@{_K}", judge(_ranking(lists), qrels)).mean())
    best = max(scores, key=lambda share: scores[share])
    return Tuned(best, scores, len(known), len(given) - len(known))


def _rows(state: State, ids: Sequence[str]) -> IntArray:
    rows: IntArray = np.unique(state.papers.rows_of(list(ids)))
    return rows[state.live_N[rows]]


def _ranking(lists: Sequence[IntArray]) -> Ranking:
    rows_QK = np.full((len(lists), _K), -1, dtype=np.int64)
    for query, rows in enumerate(lists):
        rows_QK[query, : len(rows)] = rows
    return Ranking(rows_QK, np.zeros(rows_QK.shape, dtype=np.float32))
