"""Run files, and agreement with trec_eval's order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import pytrec_eval

from scimult.data.ragged import Ragged
from scimult.errors import DataError
from scimult.retrieval.runs import (
    Qrels,
    Ranking,
    id_order,
    places_of,
    ranking_of_pairs,
    read_run,
    write_run,
)

IDS = ["b", "é", "a", "ab", "Z", "10", "9"]


def test_equal_scores_come_by_descending_id_as_in_trec_eval() -> None:
    """The reciprocal rank of each document alone tells its rank in trec_eval."""
    order = [IDS[row] for row in id_order(IDS)]
    tied = {"q": dict.fromkeys(IDS, 1.0)}
    ranks = {}
    for name in IDS:
        evaluator = pytrec_eval.RelevanceEvaluator({"q": {name: 1}}, {"recip_rank"})
        ranks[name] = round(1 / evaluator.evaluate(tied)["q"]["recip_rank"])
    assert order == sorted(IDS, key=ranks.__getitem__)


def test_a_run_file_gives_back_the_same_lists(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    candidates = [*(f"doc {number}%" for number in range(20)), "tab\tbed"]
    queries = ["q 1", "q2", "q3"]
    pairs = [(0, row) for row in range(21)] + [(2, 4), (2, 9)]
    query_P, row_P = np.array(pairs).T
    scores_P = rng.choice([0.1, 1 / 3, -2.5e-7, 1e20], len(pairs)).astype(np.float32)
    ranking = ranking_of_pairs(query_P, row_P, scores_P, 3, places_of(id_order(candidates)))
    write_run(tmp_path / "a.run", ranking, queries, candidates, "my system")
    found = read_run(tmp_path / "a.run", queries, candidates)
    assert np.array_equal(found.rows_QK, ranking.rows_QK)
    assert np.array_equal(found.scores_QK, ranking.scores_QK)
    assert (tmp_path / "a.run").read_text().count("\n") == len(pairs)


def test_a_run_is_ordered_by_score_not_by_its_rank_column(tmp_path: Path) -> None:
    path = tmp_path / "a.run"
    path.write_text("q Q0 a 1 0.5 t\nq Q0 c 2 0.5 t\nq Q0 b 3 0.75 t\n")
    assert read_run(path, ["q"], ["a", "b", "c"]).rows_QK.tolist() == [[1, 2, 0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q Q0 a 1 0.5\n", ":1: expected 6 columns"),
        ("q Q0 a 1 0.5 t\nx Q0 a 1 0.5 t\n", ":2: unknown query (value: 'x')"),
        ("q Q0 x 1 0.5 t\n", ":1: unknown document (value: 'x')"),
        ("q Q0 a 1 nan t\n", ":1: score is not a finite number (value: 'nan')"),
        ("q Q0 a 1 high t\n", ":1: score is not a finite number (value: 'high')"),
        ("q Q0 a 1 1 t\nq Q0 a 2 1 t\n", ":2: document 'a' is listed twice for query 'q'"),
    ],
)
def test_bad_runs(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.run"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_run(path, ["q"], ["a", "b"])
    assert str(caught.value).startswith(f"{path}{message}")


def test_a_missing_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read the run"):
        read_run(tmp_path / "none.run", ["q"], ["a"])


def test_grades_of_unjudged_and_padded_results_are_zero() -> None:
    qrels = Qrels(Ragged.from_lists([[3, 1], [], [0]]), Ragged.from_lists([[2, -1], [], [1]]), 4)
    rows_QK = np.array([[1, 3, 0], [3, 1, -1], [-1, -1, -1]])
    assert qrels.grades_of(rows_QK).tolist() == [[-1, 2, 0], [0, 0, 0], [0, 0, 0]]
    assert qrels.relevant_Q.tolist() == [1, 0, 1]
    assert len(Ranking(rows_QK, rows_QK.astype(np.float32))) == 3
