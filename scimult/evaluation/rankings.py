"""Ranking protocols, each a function of a benchmark, its data and a ranker.

Shape legend: Q queries, K listed results per query, P judged (query, reviewer) pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scimult.data.ragged import Ragged
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.metrics import Scores, compute, depth, judge, macro_f1
from scimult.evaluation.name_matching import match_names, matched_first, words
from scimult.evaluation.protocols import MACRO_F1, WITH_NAMES, Outcome
from scimult.evaluation.systems import Ranker
from scimult.evaluation.task_data import HARD, SOFT, Dataset
from scimult.retrieval.runs import Qrels, Ranking, id_order, places_of, ranking_of_pairs
from scimult.types import FloatArray


def classification_fine(benchmark: Benchmark, dataset: Dataset, ranker: Ranker) -> Outcome:
    """Rank all labels for each paper; Recall@k without and with name matching (section 4.3)."""
    rankings = {"": ranker.search(depth(benchmark.metrics))}
    if benchmark.name_matching:
        matched = ranker.rank_listed(_matches(benchmark, dataset))
        rankings[WITH_NAMES] = matched_first(rankings[""], matched)
    return _scored(benchmark, dataset, rankings)


def _matches(benchmark: Benchmark, dataset: Dataset) -> Ragged:
    """Return the labels whose names match each paper, as the data says or as found here."""
    if dataset.matched is not None:
        return dataset.matched
    normalise = words if benchmark.name_matching == "words" else str.strip
    texts = [normalise(text.joined) for text in dataset.queries]
    names = [[normalise(name) for name in synonyms] for synonyms in dataset.label_names]
    return match_names(texts, names)


def classification_coarse(benchmark: Benchmark, dataset: Dataset, ranker: Ranker) -> Outcome:
    """Assign each paper its best label; macro F1 (section 4.4). Assigning none is an error."""
    ranking = ranker.search(1)
    gold_Q, predicted_Q = dataset.qrels.rows.values, ranking.rows_QK[:, 0]
    labels = dataset.candidate_ids
    return Outcome(
        scores={MACRO_F1: macro_f1(gold_Q, predicted_Q)},
        per_query={
            "correct": (gold_Q == predicted_Q).astype(float).tolist(),
            "gold": [labels[row] for row in gold_Q],
            "predicted": [labels[row] if row >= 0 else "" for row in predicted_Q],
        },
        rankings={"": ranking},
    )


def link_retrieval(benchmark: Benchmark, dataset: Dataset, ranker: Ranker) -> Outcome:
    """Rank all papers for each query paper, itself left out except in mode ``paper``."""
    exclude_Q = None if benchmark.mode == "paper" else dataset.own_rows
    ranking = ranker.search(depth(benchmark.metrics), exclude_Q)
    return _scored(benchmark, dataset, {"": ranking})


def rerank(benchmark: Benchmark, dataset: Dataset, ranker: Ranker) -> Outcome:
    """Rank only the candidates that each query lists."""
    assert dataset.lists is not None, "readers provide lists for this protocol"
    return _scored(benchmark, dataset, {"": ranker.rank_listed(dataset.lists)})


def search(benchmark: Benchmark, dataset: Dataset, ranker: Ranker) -> Outcome:
    """Rank the whole corpus for each query; mode ``beir`` leaves out documents with its id."""
    exclude_Q = dataset.own_rows if benchmark.mode == "beir" else None
    ranking = ranker.search(depth(benchmark.metrics), exclude_Q)
    return _scored(benchmark, dataset, {"": ranking})


def recommendation(benchmark: Benchmark, dataset: Dataset, ranker: Ranker) -> Outcome:
    """Rank the papers shown; nDCG and precision at 1 of the click, weighted by propensity.

    A click at a rarely viewed position counts more: it is weighted by the inverse probability of a
    click there, whatever is shown. SciDocs fits a small model with the embeddings and further
    features to training clicks; here the papers are ranked by the embeddings alone.
    """
    assert dataset.lists is not None
    assert dataset.weights_Q is not None
    ranking = ranker.rank_listed(dataset.lists)
    clicked_QK = dataset.qrels.grades_of(ranking.rows_QK) > 0
    listed_QK = ranking.rows_QK >= 0
    clicked_Q = np.where(clicked_QK, ranking.scores_QK, -np.inf).max(axis=1)[:, None]
    above_Q = ((ranking.scores_QK > clicked_Q) & listed_QK).sum(axis=1)
    equal_Q = ((ranking.scores_QK == clicked_Q) & listed_QK).sum(axis=1) - 1
    # Ties share their ranks: each tied paper counts as half above.
    ranks_Q = above_Q + 0.5 * equal_Q
    weights_Q = dataset.weights_Q / dataset.weights_Q.mean()
    known = {
        "weighted_ndcg": 1 / np.log2(2 + ranks_Q),
        "weighted_precision@1": 1.0 * (ranks_Q == 0),
    }
    columns = {name: known[name] for name in benchmark.metrics}
    return Outcome.of_columns(columns, weights_Q, rankings={"": ranking})


def _scored(benchmark: Benchmark, dataset: Dataset, rankings: dict[str, Ranking]) -> Outcome:
    """Compute every metric of the benchmark on each kind of list."""
    columns: dict[str, Scores] = {}
    for kind, ranking in rankings.items():
        judged = judge(ranking, dataset.qrels)
        columns.update({name + kind: compute(name, judged) for name in benchmark.metrics})
    weights_Q = group_weights(dataset.groups) if benchmark.average == "groups" else None
    details = _by_group(dataset, columns)
    return Outcome.of_columns(columns, weights_Q, rankings=rankings, details=details)


def group_weights(groups: Sequence[str]) -> Scores:
    """Return query weights, 1 on average, under which every group counts the same.

    The weighted mean over queries is then the mean of the groups' means.
    """
    _, group_Q, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    weights_Q: Scores = len(groups) / (len(sizes) * sizes[group_Q])
    return weights_Q


def _by_group(dataset: Dataset, columns: dict[str, Scores]) -> dict[str, Any]:
    """Return each metric's mean per query group; empty without groups."""
    if not dataset.groups:
        return {}
    groups = np.array(dataset.groups)
    means = {
        metric: {name: float(scores_Q[groups == name].mean()) for name in sorted(set(groups))}
        for metric, scores_Q in columns.items()
    }
    return {"by_group": means}


BEST = 3
"""A reviewer's score is the mean similarity of this many papers (SciRepEval, appendix A)."""
CUTOFFS = (5, 10)


def reviewer_matching(benchmark: Benchmark, dataset: Dataset, ranker: Ranker) -> Outcome:
    """Rank the judged reviewers; hard and soft precision at 5 and 10."""
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
    wanted = {name: per_query[name] for name in benchmark.metrics}
    return Outcome.of_columns(wanted, details=at_cutoffs)


def rank_reviewers(dataset: Dataset, papers: Ranking) -> Ranking:
    """Rank each query's judged reviewers by the mean score of their best three papers.

    ``papers`` has the scores, per query, of all papers of these reviewers.
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
    positions = places_of(id_order(reviewers.ids))
    judged_rows = reviewers.qrels.rows
    return ranking_of_pairs(
        judged_rows.owners, judged_rows.values, scores_P, len(judged_rows), positions
    )


def _relevant_to(dataset: Dataset, part: int) -> Qrels:
    """Return binary judgments: relevant where the grade contains ``part`` (HARD or SOFT)."""
    assert dataset.reviewers is not None
    qrels = dataset.reviewers.qrels
    relevant = (qrels.grades.values & part > 0).astype(np.int64)
    grades = type(qrels.grades)(relevant, qrels.grades.offsets)
    return Qrels(qrels.rows, grades, qrels.candidates)
