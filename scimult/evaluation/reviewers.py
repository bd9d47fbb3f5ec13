"""Paper–reviewer matching: reviewers are ranked by their papers closest to the query paper.

Shape legend: Q queries, K listed papers, P judged (query, reviewer) pairs.
"""

from __future__ import annotations

import numpy as np

from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.metrics import Scores, compute, judge
from scimult.evaluation.outcome import Outcome
from scimult.evaluation.systems import Ranker
from scimult.evaluation.task_data import HARD, SOFT, Dataset
from scimult.retrieval.runs import Qrels, Ranking, id_order, places_of, ranking_of_pairs
from scimult.types import FloatArray

BEST = 3
"""A reviewer's score is the mean similarity of this many papers (SciRepEval, appendix A)."""
CUTOFFS = (5, 10)


def reviewer_matching(benchmark: Benchmark, dataset: Dataset, ranker: Ranker) -> Outcome:
    """Rank the judged reviewers; precision at 5 and 10, in the hard and in the soft sense."""
    assert dataset.lists is not None
    ranking = rank_reviewers(dataset, ranker.rank_listed(dataset.lists))
    kinds = {"hard": HARD, "soft": SOFT}
    per_query: dict[str, Scores] = {}
    for kind, part in kinds.items():
        judged = judge(ranking, _relevant_to(dataset, part))
        for cutoff in CUTOFFS:
            per_query[f"precision_{kind}@{cutoff}"] = compute(f"precision@{cutoff}", judged)
    for kind in kinds:
        columns = [per_query[f"precision_{kind}@{cutoff}"] for cutoff in CUTOFFS]
        per_query[f"precision_{kind}"] = np.mean(columns, axis=0)
    both = [per_query[f"precision_{kind}"] for kind in kinds]
    per_query["mean_precision"] = np.mean(both, axis=0)
    at_cutoffs = {name: float(column.mean()) for name, column in per_query.items() if "@" in name}
    return Outcome.of_columns(per_query, benchmark.metrics, details=at_cutoffs)


def rank_reviewers(dataset: Dataset, papers: Ranking) -> Ranking:
    """Rank each query's judged reviewers by the mean score of their best three papers.

    Parameters
    ----------
    dataset : Dataset
        Whose ``reviewers`` are ranked.
    papers : Ranking
        Scores of all papers of these reviewers, for each query.
    """
    reviewers = dataset.reviewers
    assert reviewers is not None
    scores = []
    for judged, rows_K, scores_K in zip(
        reviewers.qrels.rows, papers.rows_QK, papers.scores_QK, strict=True
    ):
        score_of = dict(zip(rows_K.tolist(), scores_K.tolist(), strict=True))
        for reviewer in judged:
            similarities = sorted(
                (score_of[row] for row in reviewers.papers[reviewer]), reverse=True
            )
            scores.append(np.mean(similarities[:BEST]))
    scores_P: FloatArray = np.array(scores, dtype=np.float32)
    places = places_of(id_order(reviewers.ids))
    judged_rows = reviewers.qrels.rows
    return ranking_of_pairs(
        judged_rows.owners, judged_rows.values, scores_P, len(judged_rows), places
    )


def _relevant_to(dataset: Dataset, part: int) -> Qrels:
    """Return binary judgments: relevant where the grade has ``part``, ``HARD`` or ``SOFT``."""
    assert dataset.reviewers is not None
    qrels = dataset.reviewers.qrels
    relevant = (qrels.grades.values & part > 0).astype(np.int64)
    grades = type(qrels.grades)(relevant, qrels.grades.offsets)
    return Qrels(qrels.rows, grades, qrels.candidates)
