"""Metrics against pytrec_eval and scikit-learn, on random runs with ties."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from sklearn.metrics import f1_score

from scimult.data.ragged import Ragged
from scimult.errors import ConfigError, UnknownNameError
from scimult.evaluation.metrics import (
    METRICS,
    Judged,
    Measure,
    compute,
    depth,
    judge,
    macro_f1,
    parse,
)
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
    "map@10": "map_cut_10",
    "r_precision": "Rprec",
    "success@1": "success_1",
    "success@5": "success_5",
}
MEASURES = {"recall.1,5,100", "P.5,10", "map", "map_cut.10", "recip_rank", "ndcg", "ndcg_cut.5,10"}
MEASURES |= {"Rprec", "success.1,5"}
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
    """Absolute tolerance 1e-12; a query that is missing in the run scores zero."""
    judgments, run = _random_case(seed)
    assert len(run) < len(QUERIES)
    wanted = pytrec_eval.RelevanceEvaluator(judgments, MEASURES).evaluate(run)
    qrels, ranking = _as_arrays(judgments, run)
    judged = judge(ranking, qrels)
    for ours, theirs in TREC.items():
        expected = [wanted[query][theirs] if query in run else 0.0 for query in QUERIES]
        np.testing.assert_allclose(compute(ours, judged), expected, rtol=0, atol=1e-12)
        assert sum(expected) > 0


@pytest.mark.parametrize("least", [2, 3])
def test_grades_that_are_relevant_equal_trec_evals(least: int) -> None:
    """Like its option -l; the absolute tolerance is 1e-12."""
    judgments, run = _random_case(17)
    binary = {ours: theirs for ours, theirs in TREC.items() if "ndcg" not in ours}
    evaluator = pytrec_eval.RelevanceEvaluator(judgments, MEASURES, relevance_level=least)
    wanted = evaluator.evaluate(run)
    qrels, ranking = _as_arrays(judgments, run)
    for ours, theirs in binary.items():
        name, at, cut = ours.partition("@")
        found = compute(f"{name}(rel={least}){at}{cut}", judge(ranking, qrels))
        expected = [wanted[query][theirs] if query in run else 0.0 for query in QUERIES]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def _pool(seed: int) -> tuple[Judged, list[list[int]]]:
    """Return pools of candidates that are all judged, and their grades in ranked order."""
    rng = np.random.default_rng(seed)
    grades = [rng.integers(0, 4, rng.integers(25, 60)).tolist() for _ in range(30)]
    rows = [list(range(len(pool))) for pool in grades]
    qrels = Qrels(Ragged.from_lists(rows), Ragged.from_lists(grades), 60)
    rows_QK = np.full((30, max(map(len, rows))), -1)
    for query, pool in enumerate(rows):
        rows_QK[query, : len(pool)] = pool
    return judge(Ranking(rows_QK, np.zeros(rows_QK.shape, np.float32)), qrels), grades


def test_f1_is_the_harmonic_mean_of_precision_and_recall() -> None:
    judged, _ = _pool(3)
    precision, recall = compute("precision@7", judged), compute("recall@7", judged)
    expected = 2 * precision * recall / np.maximum(precision + recall, 1e-9)
    np.testing.assert_allclose(compute("f1@7", judged), expected, rtol=0, atol=1e-12)


def test_f1_is_scikit_learns_of_relevant_against_listed() -> None:
    judged, pools = _pool(4)
    expected = [
        f1_score(np.array(pool) > 0, np.arange(len(pool)) < 9, zero_division=0) for pool in pools
    ]
    np.testing.assert_allclose(compute("f1@9", judged), expected, rtol=0, atol=1e-12)


def test_measures_of_csfcube() -> None:
    """Its ranking_eval.py and the rank_metrics.py that it imports, written out."""

    def dcg(grades: list[int], k: int) -> float:
        return grades[0] + sum(g / math.log2(i) for i, g in enumerate(grades[1:k], start=2))

    def ndcg(grades: list[int], k: int) -> float:
        ideal = dcg(sorted(grades, reverse=True), k)
        return dcg(grades, k) / ideal if ideal else 0.0

    judged, pools = _pool(5)
    for name, expected in {
        "ndcg_csfcube": [ndcg(pool, len(pool)) for pool in pools],
        "ndcg_csfcube@20": [ndcg(pool, 20) for pool in pools],
        "ndcg_csfcube%20": [ndcg(pool, int(0.20 * len(pool))) for pool in pools],
        "precision_at_last(rel=2)": [
            np.mean([g >= 2 for g in pool[: np.flatnonzero(np.array(pool) >= 2)[-1] + 1]])
            for pool in pools
        ],
        "recall(rel=2)@20": [
            sum(g >= 2 for g in pool[:20]) / sum(g >= 2 for g in pool) for pool in pools
        ],
    }.items():
        np.testing.assert_allclose(compute(name, judged), expected, rtol=0, atol=1e-12)


def test_measures_of_doris_mae() -> None:
    """Its rank_performance_util.py, written out."""

    def ndcg_exp(grades: list[int], p: float) -> float:
        k, ideal = int(p * len(grades)), sorted(grades, reverse=True)
        gain = sum(2**g / math.log2(i + 2) for i, g in enumerate(grades[:k]))
        return gain / sum(2**g / math.log2(i + 2) for i, g in enumerate(ideal[:k]))

    judged, pools = _pool(6)
    best = [pool.index(max(pool)) for pool in pools]
    for name, expected in {
        "ndcg_doris_mae%10": [ndcg_exp(pool, 0.1) for pool in pools],
        "mrr(rel=max)@10": [1 / (place + 1) if place < 10 else 0.0 for place in best],
        "r_precision(rel=3)": [
            sum(g == 3 for g in pool[: pool.count(3)]) / max(pool.count(3), 1) for pool in pools
        ],
    }.items():
        np.testing.assert_allclose(compute(name, judged), expected, rtol=0, atol=1e-12)


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
    """Absolute tolerance 1e-12, with classes that occur only in one of the arrays."""
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
    assert parse("recall@20") == Measure("recall", k=20)
    assert parse("map") == Measure("map")
    assert parse("f1(rel=2)%20") == Measure("f1", percent=20, relevance=2)
    assert parse("mrr(rel=max)@10") == Measure("mrr", k=10, relevance="max")
    assert depth(["ndcg@10", "recall@100"]) == 100
    assert depth(["ndcg@10", "map"]) == 1000
    with pytest.raises(UnknownNameError, match="did you mean 'recall'"):
        parse("recal@20")
    for name in ("recall@", "recall@0", "recall@-1", "recall@x"):
        with pytest.raises(ConfigError, match="cut-off must be a positive integer"):
            parse(name)
    for name in ("recall%0", "recall%101", "recall%"):
        with pytest.raises(ConfigError, match="first 20 percent"):
            parse(name)
    for name in ("ndcg(rel=2)@10", "recall(rel=0)@10", "recall(rel=)", "recall(rel=high)"):
        with pytest.raises(ConfigError, match="the grade of a binary metric"):
            parse(name)
    for name in ("", "recall(2)@20", "recall @20"):
        with pytest.raises(ConfigError, match="not a metric name"):
            parse(name)


@pytest.mark.parametrize("name", METRICS)
def test_lists_without_results_score_zero(name: str) -> None:
    """Also where a share of every list is less than one result."""
    nothing, lengths = np.zeros((2, 0), dtype=np.int64), np.zeros(2, dtype=np.int64)
    ideal = np.array([[2, 1], [1, 0]])
    assert compute(name, Judged(nothing, lengths, ideal, np.array([2, 1]))).tolist() == [0, 0]
    listed = Judged(np.ones((2, 3), dtype=np.int64), lengths + 3, ideal, np.array([2, 1]))
    assert compute(f"{name}%20", listed).tolist() == [0, 0]
