"""SciRepEval's matching of reviewers: what is read, refused and ranked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scimult.data.records import Rejects
from scimult.errors import DataError
from scimult.evaluation.rankings import rank_reviewers, reviewer_matching
from scimult.evaluation.systems import DenseSystem
from scimult.evaluation.task_data import Dataset
from tests.benchmark_sets import WordEncoder, write_jsonl
from tests.evaluation.formats.made_up import made_benchmark, read, write_documents


@pytest.fixture
def reviewing(tmp_path: Path) -> Path:
    write_documents(tmp_path)
    reviewers = {"r1": ["p1"], "r2": ["p2", "p3", "p4", "p5"], "r3": ["p6", "p7"]}
    lines = [{"r_id": name, "papers": papers} for name, papers in reviewers.items()]
    write_jsonl(tmp_path / "set/reviewer_metadata.jsonl", lines)
    for kind, relevant in (("hard", {"r2"}), ("soft", {"r2", "r3"})):
        rows = [
            {"query_id": "p0", "cand_id": name, "score": int(name in relevant)}
            for name in reviewers
        ]
        write_jsonl(tmp_path / f"set/test_{kind}_qrel.jsonl", rows)
    return tmp_path


def test_reviewers_are_ranked_by_their_three_closest_papers(reviewing: Path) -> None:
    metrics = ["mean_precision", "precision_hard", "precision_soft"]
    benchmark = made_benchmark("scirepeval", "reviewer_matching", metrics, similarity="cosine")
    data = read(benchmark, reviewing)
    assert isinstance(data, Dataset)
    encoder = WordEncoder("dot", width=4)
    outcome = reviewer_matching(benchmark, data, DenseSystem(encoder).ranker(data))
    vectors = encoder.encode(data.candidates, task="search", role="query")
    unit = dict(
        zip(
            data.candidate_ids,
            vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
            strict=True,
        )
    )
    scores = {}
    for name, papers in {"r1": [1], "r2": [2, 3, 4, 5], "r3": [6, 7]}.items():
        cosines = sorted((float(unit["p0"] @ unit[f"p{p}"]) for p in papers), reverse=True)
        scores[name] = float(np.mean(cosines[:3]))
    order = sorted(scores, key=lambda name: scores[name], reverse=True)
    hard = np.mean([sum(name == "r2" for name in order[:k]) / k for k in (5, 10)])
    soft = np.mean([sum(name != "r1" for name in order[:k]) / k for k in (5, 10)])
    assert outcome.scores["precision_hard"] == pytest.approx(hard)
    assert outcome.scores["precision_soft"] == pytest.approx(soft)
    assert outcome.scores["mean_precision"] == pytest.approx((hard + soft) / 2)
    at_cutoffs = {f"precision_{kind}@{cutoff}" for kind in ("hard", "soft") for cutoff in (5, 10)}
    assert outcome.details.keys() == at_cutoffs
    assert data.counts == {"queries": 1, "candidates": 8, "relevant": 2}


def test_reviewers_order_by_the_mean_of_the_best_three(reviewing: Path) -> None:
    """The ranked reviewers, against the same rule written as loops."""
    benchmark = made_benchmark(
        "scirepeval", "reviewer_matching", ["mean_precision"], similarity="cosine"
    )
    data = read(benchmark, reviewing)
    assert isinstance(data, Dataset)
    assert data.lists is not None
    ranker = DenseSystem(WordEncoder(width=4)).ranker(data)
    papers = ranker.rank_listed(data.lists)
    score_of = dict(zip(papers.rows_QK[0].tolist(), papers.scores_QK[0].tolist(), strict=True))
    wanted = {
        reviewer: np.mean(sorted((score_of[row] for row in rows), reverse=True)[:3])
        for reviewer, rows in enumerate([[1], [2, 3, 4, 5], [6, 7]])
    }
    ranking = rank_reviewers(data, papers)
    assert ranking.rows_QK[0].tolist() == sorted(wanted, key=lambda row: -wanted[row])


def test_a_paper_listed_twice_counts_twice(reviewing: Path) -> None:
    """The mean of r3's best three, where one paper counts twice."""
    path = reviewing / "set/reviewer_metadata.jsonl"
    path.write_text(path.read_text().replace('["p6", "p7"]', '["p6", "p7", "p6"]'))
    data = read(
        made_benchmark("scirepeval", "reviewer_matching", ["mean_precision"], similarity="l2"),
        reviewing,
    )
    assert isinstance(data, Dataset)
    assert data.lists is not None
    papers = DenseSystem(WordEncoder(width=4)).ranker(data).rank_listed(data.lists)
    ranking = rank_reviewers(data, papers)
    score_of = dict(zip(papers.rows_QK[0].tolist(), papers.scores_QK[0].tolist(), strict=True))
    place = ranking.rows_QK[0].tolist().index(2)
    wanted = np.mean([score_of[6], score_of[7], score_of[6]])
    assert ranking.scores_QK[0][place] == pytest.approx(wanted, rel=1e-6)


def test_reviewers_of_one_file_are_ranked_and_counted(reviewing: Path) -> None:
    """r2 is judged, and relevant, only in the hard file: in the soft sense it is not relevant."""
    path = reviewing / "set/test_soft_qrel.jsonl"
    rows = [line for line in path.read_text().splitlines() if '"r2"' not in line]
    path.write_text("\n".join(rows) + "\n")
    metrics = ["mean_precision", "precision_hard", "precision_soft"]
    benchmark = made_benchmark("scirepeval", "reviewer_matching", metrics, similarity="cosine")
    data = read(benchmark, reviewing)
    assert isinstance(data, Dataset)
    outcome = reviewer_matching(benchmark, data, DenseSystem(WordEncoder()).ranker(data))
    assert outcome.scores["precision_hard"] == pytest.approx((1 / 5 + 1 / 10) / 2)
    assert outcome.scores["precision_soft"] == pytest.approx((1 / 5 + 1 / 10) / 2)
    (remark,) = data.remarks
    assert remark == "reviewer is judged in the hard file only, such as r2 for p0, and is ranked"
    assert data.remarks[remark] == 1
    path.write_text(rows[0].replace('"p0"', '"p1"') + "\n")
    with pytest.raises(DataError, match="query is in only one of the hard and soft .*'p0'"):
        read(benchmark, reviewing)


def test_a_reviewer_without_texts_is_loud_or_counted(reviewing: Path) -> None:
    path = reviewing / "set/reviewer_metadata.jsonl"
    path.write_text(path.read_text().replace('"p1"', '"p99"'))
    benchmark = made_benchmark("scirepeval", "reviewer_matching", ["mean_precision"])
    with pytest.raises(DataError, match="reviewer's paper has no text"):
        read(benchmark, reviewing)
    rejects = Rejects(skip_bad=True)
    read(benchmark, reviewing, rejects)
    assert rejects.counts["reviewer's paper has no text"] == 1
    assert rejects.counts["judged reviewer has no papers"] == 2
