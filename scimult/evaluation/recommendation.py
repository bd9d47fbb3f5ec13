"""Recommendation by clicks: where the clicked paper stands among those that were shown.

A click on a place that is rarely looked at counts more: by the inverse of how likely a click
there is whatever stands there. SciDocs fits a small model with the embeddings and further
features to training clicks; here the papers are ranked by the embeddings alone.

Shape legend: Q clicks, K papers shown.
"""

from __future__ import annotations

import numpy as np

from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.metrics import Scores
from scimult.evaluation.outcome import Outcome
from scimult.evaluation.protocols import PROTOCOLS
from scimult.evaluation.systems import Ranker
from scimult.evaluation.task_data import Dataset


@PROTOCOLS.register("recommendation")
def recommendation(benchmark: Benchmark, dataset: Dataset, ranker: Ranker) -> Outcome:
    """Rank the papers shown; nDCG and precision at 1 of the click, weighted by propensity."""
    assert dataset.lists is not None
    assert dataset.weights_Q is not None
    ranking = ranker.rank_listed(dataset.lists)
    clicked_QK = dataset.qrels.grades_of(ranking.rows_QK) > 0
    listed_QK = ranking.rows_QK >= 0
    clicked_Q = np.where(clicked_QK, ranking.scores_QK, -np.inf).max(axis=1)[:, None]
    above_Q = ((ranking.scores_QK > clicked_Q) & listed_QK).sum(axis=1)
    equal_Q = ((ranking.scores_QK == clicked_Q) & listed_QK).sum(axis=1) - 1
    # Equal scores share their places: each counts half above.
    places_Q = above_Q + 0.5 * equal_Q
    weights_Q = dataset.weights_Q / dataset.weights_Q.mean()
    columns: dict[str, Scores] = {
        "weighted_ndcg": weights_Q / np.log2(2 + places_Q),
        "weighted_precision@1": weights_Q * (places_Q == 0),
    }
    return Outcome(
        scores={name: float(columns[name].mean()) for name in benchmark.metrics},
        per_query={name: columns[name].tolist() for name in benchmark.metrics},
        rankings={"": ranking},
    )
