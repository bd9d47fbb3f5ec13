"""Sets whose score is a mean over groups: the fields of MDCR, the blocks of S2AND."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scimult.data.records import Rejects
from scimult.errors import DataError, SciMultError
from scimult.evaluation.comparison import Settings, compare
from scimult.evaluation.harness import evaluate, load_sets
from scimult.evaluation.rankings import rerank
from scimult.evaluation.reporting.curves import recall_curves
from scimult.evaluation.reporting.sources import read_scored_set
from scimult.evaluation.suites import Suite, load_suite
from scimult.evaluation.systems import BM25System, DenseSystem
from scimult.evaluation.task_data import Dataset, Signatures
from tests.benchmark_sets import WordEncoder, write_jsonl
from tests.evaluation.formats.made_up import PAPERS, made_benchmark, read, write_json

MDCR = {
    "Biology": {"p0": {"true": ["p1"], "bm25": ["p2", "p3"]}},
    "Law": {"p4": {"true": ["p2"], "bm25": ["p1"]}, "p3": {"true": ["p2"], "bm25": ["p0"]}},
}


def _write_mdcr(folder: Path) -> None:
    write_jsonl(
        folder / "meta.jsonl", [{"paper_id": name, **rest} for name, rest in PAPERS.items()]
    )
    write_json(folder / "test.json", MDCR)


def test_mdcr_is_the_mean_over_fields_of_their_means(tmp_path: Path) -> None:
    """Texts have ``paper_id``; a field with one query counts as much as one with two."""
    _write_mdcr(tmp_path / "set")
    options = {"similarity": "l2", "average": "groups"}
    benchmark = made_benchmark("mdcr", "rerank", ["map", "recall@1"], **options)
    data = read(benchmark, tmp_path)
    assert isinstance(data, Dataset)
    assert data.groups == ["Biology", "Law", "Law"]
    graded = {
        query: {data.candidate_ids[row]: grade for row, grade in zip(rows, grades, strict=True)}
        for query, rows, grades in zip(
            data.query_ids, data.qrels.rows, data.qrels.grades, strict=True
        )
    }
    assert graded == {
        query: {paper: int(name == "true") for name in listed for paper in listed[name]}
        for queries in MDCR.values()
        for query, listed in queries.items()
    }
    outcome = rerank(benchmark, data, DenseSystem(WordEncoder()).ranker(data))
    found = np.array(outcome.per_query["map"], dtype=float)
    by_field = outcome.details["by_group"]["map"]
    assert by_field == pytest.approx({"Biology": found[0], "Law": found[1:].mean()})
    assert outcome.scores["map"] == pytest.approx((found[0] + found[1:].mean()) / 2, abs=1e-15)
    assert outcome.scores["map"] != pytest.approx(found.mean(), abs=1e-3)
    broken = {**MDCR, "Law": {"p0": {"true": ["p1"]}}}
    write_json(tmp_path / "set/test.json", broken)
    with pytest.raises(DataError, match="query is in two fields"):
        read(benchmark, tmp_path)


def test_the_mean_over_fields_is_what_intervals_and_tests_resample(tmp_path: Path) -> None:
    _write_mdcr(tmp_path / "set")
    benchmark = made_benchmark("mdcr", "rerank", ["map"], average="groups")
    suite = Suite(name="own", description="", how_to_get="", benchmarks={"set": benchmark})
    sets = load_sets(suite, tmp_path)
    systems = (BM25System(), DenseSystem(WordEncoder()))
    results = [evaluate(one, suite, sets, tmp_path / "out", confidence=0.9) for one in systems]
    rows = compare(tmp_path / "out", Settings(baseline="BM25", resamples=100)).rows
    scores = [result.sets["set"].scores["map"] for result in results]
    assert rows[0].difference == pytest.approx(scores[1] - scores[0], abs=1e-12)
    assert results[1].sets["set"].average == "groups"


def test_recall_curves_weigh_queries_as_the_scores_do(tmp_path: Path) -> None:
    _write_mdcr(tmp_path / "set")
    metrics = ["recall@1", "recall@2"]
    benchmark = made_benchmark("mdcr", "rerank", metrics, average="groups")
    suite = Suite(name="own", description="", how_to_get="", benchmarks={"set": benchmark})
    sets, out = load_sets(suite, tmp_path), tmp_path / "out"
    result = evaluate(DenseSystem(WordEncoder()), suite, sets, out, save_runs=True)
    curves = recall_curves(read_scored_set(out, [result], "set", [tmp_path]), [result])
    assert curves is not None
    assert curves.source == "ranked lists"
    scores = [result.sets["set"].scores[metric] for metric in metrics]
    assert curves.curves[0].recalls == pytest.approx(scores, abs=1e-12)


def _write_s2and(folder: Path) -> None:
    signatures = {
        f"s{row}": {"paper_id": f"p{row}", "author_info": {"block": f"b{row // 2}"}}
        for row in range(4)
    }
    clusters = {
        "one": {"signature_ids": ["s0", "s1"]},
        "two": {"signature_ids": ["s2"]},
        "three": {"signature_ids": ["s3"]},
    }
    write_json(folder / "set/x_papers.json", PAPERS)
    write_json(folder / "set/x_signatures.json", signatures)
    write_json(folder / "set/x_clusters.json", clusters)


@pytest.mark.parametrize("lists", [["p1"], {"true": "p1"}, {"true": ["p1"], "bm25": [["p2"]]}])
def test_lists_of_mdcr_that_are_none(tmp_path: Path, lists: Any) -> None:
    _write_mdcr(tmp_path / "set")
    write_json(tmp_path / "set/test.json", {**MDCR, "Law": {"p4": lists}})
    benchmark = made_benchmark("mdcr", "rerank", ["map"], average="groups")
    with pytest.raises(DataError, match="json:2: .*Fix"):
        read(benchmark, tmp_path)
    rejects = Rejects(skip_bad=True)
    assert read(benchmark, tmp_path, rejects).query_ids == ["p0"]
    assert sum(rejects.counts.values()) == 1


def test_s2and_signatures_in_blocks(tmp_path: Path) -> None:
    _write_s2and(tmp_path)
    benchmark = made_benchmark("s2and", "author_clustering", ["b_cubed_f1"], split="x")
    data = read(benchmark, tmp_path)
    assert isinstance(data, Signatures)
    assert data.ids == ["x/s0", "x/s1", "x/s2", "x/s3"]
    assert data.blocks == ["x/b0", "x/b0", "x/b1", "x/b1"]
    assert data.persons == ["one", "one", "two", "three"]
    assert data.counts == {"queries": 4, "candidates": 4, "relevant": 3}


@pytest.mark.parametrize(
    ("name", "tree", "message"),
    [
        ("clusters", {"one": {"signature_ids": ["s0"]}}, "signature is in no cluster"),
        ("signatures", {"s0": {"paper_id": "p0"}}, "signature has no block"),
        (
            "signatures",
            {"s0": {"paper_id": "p9", "author_info": {"block": "b"}}},
            "signature's paper has no text",
        ),
        (
            "clusters",
            {"one": {"signature_ids": ["s0"]}, "two": {"signature_ids": ["s0"]}},
            "signature is in two clusters",
        ),
        ("signatures", {"s0": {"author_info": {"block": "b"}}}, "json:1: missing field 'paper_id'"),
        (
            "signatures",
            {"s0": {"paper_id": "p0", "author_info": {"block": 7}}},
            "json:1: field 'block' is not a string",
        ),
        ("clusters", {"one": {"signature_ids": 7}}, "json:1: field 'signature_ids' is not a list"),
        ("clusters", {"one": ["s0"]}, "json:1: member is not an object"),
    ],
)
def test_bad_s2and(tmp_path: Path, name: str, tree: Any, message: str) -> None:
    _write_s2and(tmp_path)
    write_json(tmp_path / f"set/x_{name}.json", tree)
    benchmark = made_benchmark("s2and", "author_clustering", ["b_cubed_f1"], split="x")
    with pytest.raises(SciMultError, match=message):
        read(benchmark, tmp_path)


def test_scirepeval_averages_six_sources_of_s2and() -> None:
    grouped = {
        entry.split
        for entry in load_suite("s2and").benchmarks.values()
        if entry.group == "scirepeval"
    }
    assert grouped == {"arnetminer", "inspire", "kisti", "pubmed", "qian", "zbmath"}
