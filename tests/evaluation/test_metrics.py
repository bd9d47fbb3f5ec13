"""Metrics against pytrec_eval and scikit-learn, on random runs with ties."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from sklearn.metrics import f1_score

from scimult.data.ragged import Ragged
from scimult.errors import ConfigError, UnknownNameError
from scimult.evaluation.metrics import compute, depth, judge, macro_f1, parse
from scimult.retrieval.runs import (
    Qrels,
    Ranking,
    id_order,
    places_of,
    ranking_of_pairs,
    read_run,
    write_run,
)

TREC = {
    "recall@1": "recall_1",
    "recall@5": "recall_5",
    "recall@100": "recall_100",
    "precision@5": "P_5",
    "precision@10": "P_10",
    "map": "map",
    "mrr": "recip_rank",
    "ndcg": "ndcg",
    "ndcg@5": "ndcg_cut_5",
    "ndcg@10": "ndcg_cut_10",
}
MEASURES = {"recall.1,5,100", "P.5,10", "map", "recip_rank", "ndcg", "ndcg_cut.5,10"}
QUERIES = [f"q{number}" for number in range(40)]
DOCUMENTS = [f"d{number}" for number in range(60)]


def _random_case(seed: int) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    """Return judgments with grades -1 to 3 and a run with few distinct scores.

    Some queries are not in the run; some have nothing relevant; lists differ in length.
    """
    rng = np.random.default_rng(seed)
    judgments, run = {}, {}
    for query in QUERIES:
        judged = rng.choice(DOCUMENTS, rng.integers(1, 25), replace=False)
        top = rng.choice([0, 1, 3])
        judgments[query] = {name: int(rng.integers(-1, top + 1)) for name in judged}
        if rng.random() < 0.8:
            listed = rng.choice(DOCUMENTS, rng.integers(1, 60), replace=False)
            scores = rng.integers(0, 6, len(listed)) / 7
            run[query] = dict(zip(map(str, listed), scores.tolist(), strict=True))
    return judgments, run


def _as_arrays(
    judgments: dict[str, dict[str, int]], run: dict[str, dict[str, float]]
) -> tuple[Qrels, Ranking]:
    rows = {name: row for row, name in enumerate(DOCUMENTS)}
    qrels = Qrels(
        Ragged.from_lists([rows[name] for name in judgments[query]] for query in QUERIES),
        Ragged.from_lists(judgments[query].values() for query in QUERIES),
        len(DOCUMENTS),
    )
    pairs = [
        (number, rows[name], score)
        for number, query in enumerate(QUERIES)
        for name, score in run.get(query, {}).items()
    ]
    query_P, row_P, score_P = map(np.array, zip(*pairs, strict=True))
    places_C = places_of(id_order(DOCUMENTS))
    scores_P = score_P.astype(np.float32)
    return qrels, ranking_of_pairs(query_P, row_P, scores_P, len(QUERIES), places_C)


@pytest.mark.parametrize("seed", range(8))
def test_every_metric_equals_trec_evals(seed: int) -> None:
    """Absolute tolerance 1e-12; a query that the run does not name scores zero."""
    judgments, run = _random_case(seed)
    assert len(run) < len(QUERIES)
    wanted = pytrec_eval.RelevanceEvaluator(judgments, MEASURES).evaluate(run)
    qrels, ranking = _as_arrays(judgments, run)
    judged = judge(ranking, qrels)
    for ours, theirs in TREC.items():
        expected = [wanted[query][theirs] if query in run else 0.0 for query in QUERIES]
        np.testing.assert_allclose(compute(ours, judged), expected, rtol=0, atol=1e-12)
        assert sum(expected) > 0


def test_a_written_run_scores_the_same_in_trec_eval(tmp_path: Path) -> None:
    judgments, run = _random_case(99)
    qrels, ranking = _as_arrays(judgments, run)
    write_run(tmp_path / "a.run", ranking, QUERIES, DOCUMENTS, "ours")
    with open(tmp_path / "a.run", encoding="utf-8") as file:
        written = pytrec_eval.parse_run(file)
    wanted = pytrec_eval.RelevanceEvaluator(judgments, {"ndcg_cut.10"}).evaluate(written)
    ours = compute("ndcg@10", judge(read_run(tmp_path / "a.run", QUERIES, DOCUMENTS), qrels))
    expected = [wanted.get(query, {"ndcg_cut_10": 0.0})["ndcg_cut_10"] for query in QUERIES]
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12)


def test_recall_is_hits_over_all_gold_labels() -> None:
    qrels = Qrels(Ragged.from_lists([[0, 1, 2, 3]]), Ragged.from_lists([[1, 1, 1, 1]]), 9)
    ranking = Ranking(np.array([[5, 2, 0]]), np.zeros((1, 3), np.float32))
    assert compute("recall@2", judge(ranking, qrels)).tolist() == [0.25]
    assert compute("recall@20", judge(ranking, qrels)).tolist() == [0.5]


@pytest.mark.parametrize("seed", range(20))
def test_macro_f1_equals_scikit_learns(seed: int) -> None:
    """Absolute tolerance 1e-12, with classes that occur on one side only."""
    rng = np.random.default_rng(seed)
    gold_N = rng.integers(0, 6, 30)
    predicted_N = rng.choice([0, 1, 2, 4, 7], 30)
    assert macro_f1(gold_N, predicted_N) == pytest.approx(
        f1_score(gold_N, predicted_N, average="macro", zero_division=0), abs=1e-12
    )


def test_no_prediction_counts_against_the_gold_class_only() -> None:
    gold_N = np.array([0, 0, 1])
    expected = f1_score(gold_N, [0, 9, 1], labels=[0, 1], average="macro")
    assert macro_f1(gold_N, np.array([0, -1, 1])) == pytest.approx(expected, abs=1e-12)
    assert macro_f1(gold_N, np.array([-1, -1, -1])) == 0.0


def test_names_of_metrics() -> None:
    assert parse("recall@20") == ("recall", 20)
    assert parse("map") == ("map", None)
    assert depth(["ndcg@10", "recall@100"]) == 100
    assert depth(["ndcg@10", "map"]) == 1000
    with pytest.raises(UnknownNameError, match="did you mean 'recall'"):
        parse("recal@20")
    for name in ("recall@", "recall@0", "recall@-1", "recall@x"):
        with pytest.raises(ConfigError, match="cut-off is a positive integer"):
            parse(name)
