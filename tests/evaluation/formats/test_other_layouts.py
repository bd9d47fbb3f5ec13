"""SciDocs, released SciMult files, MDCR and S2AND: what is read, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scimult.data.lines import Rejects
from scimult.errors import DataError, SciMultError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.comparison import Settings, compare
from scimult.evaluation.datasets import read_dataset
from scimult.evaluation.harness import evaluate, load_sets
from scimult.evaluation.rankings import classification_fine, recommendation, rerank
from scimult.evaluation.reporting.curves import recall_curves
from scimult.evaluation.reporting.sources import read_scored_set
from scimult.evaluation.suites import Suite, load_suite
from scimult.evaluation.systems import BM25System, DenseSystem
from scimult.evaluation.task_data import Dataset, PaperSet, Signatures, TaskData
from scimult.types import Text
from tests.benchmark_sets import WordEncoder, write_jsonl, write_rows

PAPERS = {
    f"p{row}": {"title": f"About {word}", "abstract": None} for row, word in enumerate("abcde")
}


def _benchmark(layout: str, protocol: str, metrics: list[str], **options: Any) -> Benchmark:
    made = {
        "task": "link_prediction",
        "protocol": protocol,
        "format": layout,
        "folder": "set",
        "metrics": metrics,
        "source": "made for a test",
        "licence": "none",
    }
    return Benchmark(**{**made, **options})


def _read(benchmark: Benchmark, root: Path, rejects: Rejects | None = None) -> TaskData:
    return read_dataset("set", benchmark, root, "ask the author", rejects or Rejects())


def _write_json(path: Path, tree: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(tree))


# SciDocs


@pytest.fixture
def scidocs(tmp_path: Path) -> Path:
    _write_json(tmp_path / "set/paper_metadata.json", PAPERS)
    (tmp_path / "set/test.qrel").write_text("p0 0 p1 1\np0 0 p2 0\np3 0 p4 1\np3 0 p1 0\n")
    header = ("pid", "class_label")
    write_rows(tmp_path / "set/train.csv", [header, ("p0", 1), ("p1", 2)], ",")
    write_rows(tmp_path / "set/test.csv", [header, ("p3", 2)], ",")
    return tmp_path


def test_scidocs_links_and_labels(scidocs: Path) -> None:
    ranked = _read(_benchmark("scidocs", "rerank", ["map"]), scidocs)
    assert isinstance(ranked, Dataset)
    assert ranked.query_ids == ["p0", "p3"]
    assert ranked.candidate_ids == ["p1", "p2", "p4"]
    assert ranked.queries[1] == Text("paper", "About d")
    probe = {"costs": [1], "target": "class_label"}
    benchmark = _benchmark("scidocs", "classification_linear", ["macro_f1"], probe=probe)
    labelled = _read(benchmark, scidocs)
    assert isinstance(labelled, PaperSet)
    assert labelled.labels == [["1"], ["2"], ["2"]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("p0 0 p1", "wrong number of values"),
        ("p9 0 p1 1", "query of a pair has no text"),
        ("p0 0 p9 1", "judged paper has no text"),
        ("p0 0 p1 0", "duplicate pair"),
        ("p0 0 p4 x", "field 'score' is not an integer"),
    ],
)
def test_bad_lines_of_a_qrel(scidocs: Path, line: str, message: str) -> None:
    path = scidocs / "set/test.qrel"
    path.write_text(path.read_text() + line + "\n")
    benchmark = _benchmark("scidocs", "rerank", ["map"])
    with pytest.raises(DataError, match=message):
        _read(benchmark, scidocs)
    rejects = Rejects(skip_bad=True)
    assert _read(benchmark, scidocs, rejects).counts["relevant"] == 2
    assert sum(rejects.counts.values()) == 1


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    _write_json(tmp_path / "set/paper_metadata.json", PAPERS)
    _write_json(tmp_path / "set/propensity_scores.json", {"scores": [0.6, 0.3, 0.1]})
    lines = ["query_id,clicked_id,shown", 'p0,p2,"p1,p2,p3"', 'p0,p1,"p1,p4"', 'p4,p3,"p0,p1,p3"']
    (tmp_path / "set/test.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_clicks_weigh_by_the_inverse_propensity_of_their_place(clicks: Path) -> None:
    metrics = ["weighted_ndcg", "weighted_precision@1"]
    benchmark = _benchmark("scidocs", "recommendation", metrics, similarity="l2")
    data = _read(benchmark, clicks)
    assert isinstance(data, Dataset)
    encoder = WordEncoder()
    outcome = recommendation(benchmark, data, DenseSystem(encoder).ranker(data))
    texts = [Text("paper", fields["title"]) for fields in PAPERS.values()]
    vectors = dict(zip(PAPERS, encoder.encode(texts, task="search", role="query"), strict=True))
    shown = [
        ("p0", "p2", ["p1", "p2", "p3"]),
        ("p0", "p1", ["p1", "p4"]),
        ("p4", "p3", ["p0", "p1", "p3"]),
    ]
    total = gain = first = 0.0
    for query, clicked, papers in shown:
        distance = {name: float(np.linalg.norm(vectors[query] - vectors[name])) for name in papers}
        above = sum(distance[name] < distance[clicked] for name in papers)
        weight = 1 / [0.6, 0.3, 0.1][papers.index(clicked)]
        total += weight
        gain += weight / math.log2(2 + above)
        first += weight * (above == 0)
    found = np.array([outcome.per_query[name] for name in ("weighted_ndcg", "weight")])
    assert found.prod(axis=0).mean() == pytest.approx(gain / total)
    assert outcome.scores["weighted_ndcg"] == pytest.approx(gain / total)
    assert outcome.scores["weighted_precision@1"] == pytest.approx(first / total)
    assert len(data.query_ids) == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('p0,p4,"p1,p2"', "clicked paper was not shown"),
        ('p0,p1,"p1,p2,p3,p4"', "more papers are shown than positions have scores"),
        ('p0,p1,"p1,p1"', "a paper is shown twice"),
        ('p0,p9,"p9,p1"', "paper has no text"),
    ],
)
def test_bad_clicks(clicks: Path, line: str, message: str) -> None:
    path = clicks / "set/test.csv"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError, match=message):
        _read(_benchmark("scidocs", "recommendation", ["weighted_ndcg"]), clicks)


# Released SciMult files


@pytest.fixture
def released(tmp_path: Path) -> Path:
    labels = [
        {"label": "D1", "name": ["Graphs", "Networks"], "definition": "Nodes and edges"},
        {"label": "D2", "name": ["Water"], "definition": ""},
        {"label": "D3", "name": ["Cells"], "definition": ""},
    ]
    papers = [
        {"paper": "1", "title": "on water", "abstract": "", "label": ["D2"]},
        {"paper": "2", "title": "on nets", "abstract": "a", "label": ["D1", "D3"]},
    ]
    matched = [{"paper": "2", "candidate": ["D1"]}, {"paper": "1", "candidate": ["D2", "D3"]}]
    for name, rows in (("label", labels), ("papers_test", papers), ("matched", matched)):
        write_jsonl(tmp_path / f"set/X_{name}.json", rows)
    return tmp_path


FINE = {
    "task": "classification",
    "texts": "X_papers_test.json",
    "labels": "X_label.json",
    "matched": "X_matched.json",
    "name_matching": "file",
}


def test_released_labels_and_matches_in_another_order(released: Path) -> None:
    benchmark = _benchmark("scimult", "classification_fine", ["recall@1"], **FINE)
    data = _read(benchmark, released)
    assert isinstance(data, Dataset)
    assert data.candidates[0] == Text("label", "Graphs", "Nodes and edges")
    assert data.label_names[0] == ["Graphs", "Networks"]
    assert data.matched is not None
    assert [rows.tolist() for rows in data.matched] == [[1, 2], [0]]
    outcome = classification_fine(benchmark, data, DenseSystem(WordEncoder()).ranker(data))
    assert outcome.scores["recall@1+names"] >= outcome.scores["recall@1"]
    assert outcome.rankings["+names"].rows_QK[1, 0] == 0
    only = _benchmark("scimult", "classification_fine", ["recall@1"], label_text="name", **FINE)
    named = _read(only, released)
    assert isinstance(named, Dataset)
    assert named.candidates[0] == Text("label", "Graphs")


def test_released_coarse_labels_are_rows(released: Path) -> None:
    options = {key: FINE[key] for key in ("task", "texts", "labels")}
    benchmark = _benchmark("scimult", "classification_coarse", ["macro_f1"], **options)
    rows = [{"paper": "1", "title": "t", "label": 2}, {"paper": "2", "title": "u", "label": 0}]
    write_jsonl(released / "set/X_papers_test.json", rows)
    data = _read(benchmark, released)
    assert isinstance(data, Dataset)
    assert data.qrels.rows.values.tolist() == [2, 0]
    write_jsonl(released / "set/X_papers_test.json", [{"paper": "1", "title": "t", "label": 3}])
    with pytest.raises(DataError, match="no label has this row"):
        _read(benchmark, released)


def test_a_paper_without_a_line_of_matches(released: Path) -> None:
    write_jsonl(released / "set/X_matched.json", [{"paper": "1", "candidate": []}])
    benchmark = _benchmark("scimult", "classification_fine", ["recall@1"], **FINE)
    with pytest.raises(DataError, match="paper has no line of matches"):
        _read(benchmark, released)


def test_released_links_patients_and_lists(tmp_path: Path) -> None:
    papers = [
        {"paper": "1", "title": "a", "abstract": "", "cite": ["2"], "score": {"2": 5, "3": 1}},
        {"paper": "2", "title": "b", "abstract": "", "cite": [], "score": {}},
        {"paper": "3", "title": "c", "abstract": "", "cite": ["1", "2"], "score": {}},
    ]
    write_jsonl(tmp_path / "set/X.json", papers)
    links = _read(
        _benchmark("scimult", "link_retrieval", ["recall@1"], texts="X.json", link="cite"), tmp_path
    )
    assert isinstance(links, Dataset)
    assert links.query_ids == ["1", "3"]
    assert links.counts == {"queries": 2, "candidates": 3, "relevant": 3}
    lists = _read(_benchmark("scimult", "rerank", ["ndcg"], texts="X.json"), tmp_path)
    assert isinstance(lists, Dataset)
    assert lists.query_ids == ["1"]
    assert lists.qrels.grades[0].tolist() == [5, 1]
    patients = [{"patient": name, "title": name, "abstract": ""} for name in ("a", "b")]
    write_jsonl(tmp_path / "set/P.json", patients)
    asked = [{"query": "q", "title": "t", "abstract": "", "patient": ["b"]}]
    write_jsonl(tmp_path / "set/Q.json", asked)
    options = {"texts": "P.json", "queries": "Q.json", "link": "patient"}
    similar = _read(_benchmark("scimult", "link_retrieval", ["recall@1"], **options), tmp_path)
    assert isinstance(similar, Dataset)
    assert similar.query_ids == ["q"]
    assert similar.queries == [Text("paper", "t")]
    words = [{"query_id": "7", "query": "deep [SEP] nets", "score": {"1": 1, "3": 0}}]
    write_jsonl(tmp_path / "set/W.json", words)
    found = _read(
        _benchmark(
            "scimult", "search", ["ndcg@10"], task="search", texts="X.json", queries="W.json"
        ),
        tmp_path,
    )
    assert isinstance(found, Dataset)
    assert found.queries == [Text("query", "deep [SEP] nets")]
    assert found.lists is None


# MDCR


MDCR = {
    "Biology": {"p0": {"true": ["p1"], "bm25": ["p2", "p3"]}},
    "Law": {"p4": {"true": ["p2"], "bm25": ["p1"]}, "p3": {"true": ["p2"], "bm25": ["p0"]}},
}


def _write_mdcr(folder: Path) -> None:
    write_jsonl(
        folder / "meta.jsonl", [{"paper_id": name, **rest} for name, rest in PAPERS.items()]
    )
    _write_json(folder / "test.json", MDCR)


def test_mdcr_is_the_mean_over_fields_of_their_means(tmp_path: Path) -> None:
    """Texts have ``paper_id``; a field with one query counts as much as one with two."""
    _write_mdcr(tmp_path / "set")
    options = {"similarity": "l2", "average": "groups"}
    benchmark = _benchmark("mdcr", "rerank", ["map", "recall@1"], **options)
    data = _read(benchmark, tmp_path)
    assert isinstance(data, Dataset)
    assert data.groups == ["Biology", "Law", "Law"]
    outcome = rerank(benchmark, data, DenseSystem(WordEncoder()).ranker(data))
    found = np.array(outcome.per_query["map"], dtype=float)
    by_field = outcome.details["by_group"]["map"]
    assert by_field == pytest.approx({"Biology": found[0], "Law": found[1:].mean()})
    assert outcome.scores["map"] == pytest.approx((found[0] + found[1:].mean()) / 2, abs=1e-15)
    assert outcome.scores["map"] != pytest.approx(found.mean(), abs=1e-3)
    broken = {**MDCR, "Law": {"p0": {"true": ["p1"]}}}
    _write_json(tmp_path / "set/test.json", broken)
    with pytest.raises(DataError, match="query is in two fields"):
        _read(benchmark, tmp_path)


def test_the_mean_over_fields_is_what_intervals_and_tests_resample(tmp_path: Path) -> None:
    _write_mdcr(tmp_path / "set")
    benchmark = _benchmark("mdcr", "rerank", ["map"], average="groups")
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
    benchmark = _benchmark("mdcr", "rerank", metrics, average="groups")
    suite = Suite(name="own", description="", how_to_get="", benchmarks={"set": benchmark})
    sets, out = load_sets(suite, tmp_path), tmp_path / "out"
    result = evaluate(DenseSystem(WordEncoder()), suite, sets, out, save_runs=True)
    curves = recall_curves(read_scored_set(out, [result], "set", [tmp_path]), [result])
    assert curves is not None
    assert curves.source == "ranked lists"
    scores = [result.sets["set"].scores[metric] for metric in metrics]
    assert curves.curves[0].recalls == pytest.approx(scores, abs=1e-12)


# S2AND


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
    _write_json(folder / "set/x_papers.json", PAPERS)
    _write_json(folder / "set/x_signatures.json", signatures)
    _write_json(folder / "set/x_clusters.json", clusters)


def test_s2and_signatures_in_blocks(tmp_path: Path) -> None:
    _write_s2and(tmp_path)
    benchmark = _benchmark("s2and", "author_clustering", ["b_cubed_f1"], split="x")
    data = _read(benchmark, tmp_path)
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
    ],
)
def test_bad_s2and(tmp_path: Path, name: str, tree: Any, message: str) -> None:
    _write_s2and(tmp_path)
    _write_json(tmp_path / f"set/x_{name}.json", tree)
    benchmark = _benchmark("s2and", "author_clustering", ["b_cubed_f1"], split="x")
    with pytest.raises(SciMultError, match=message):
        _read(benchmark, tmp_path)


def test_scirepeval_averages_six_sources_of_s2and() -> None:
    grouped = {
        entry.split
        for entry in load_suite("s2and").benchmarks.values()
        if entry.group == "scirepeval"
    }
    assert grouped == {"arnetminer", "inspire", "kisti", "pubmed", "qian", "zbmath"}


# PMC-Patients


def test_leaderboard_files_as_they_are_released(tmp_path: Path) -> None:
    """The leaderboard's corpus and judgments, with SciMult's titles and abstracts of patients."""
    corpus = [{"_id": str(row), "title": f"t{row}", "text": "body"} for row in range(3)]
    write_jsonl(tmp_path / "pmc_patients/PPR/PPR_corpus.jsonl", corpus)
    judged = [("query-id", "corpus-id", "score"), ("9-1", "1", 2), ("9-2", "0", 1)]
    write_rows(tmp_path / "pmc_patients/PPR/PPR_test_qrels.tsv", judged)
    asked = [
        {"query": f"9-{row}", "title": f"case {row}", "abstract": "a man", "article": ["1"]}
        for row in (1, 2, 3)
    ]
    released = tmp_path / "link_prediction_retrieval/PMCPatientsPAR_queries_test.json"
    write_jsonl(released, asked)
    texts = [{"_id": f"9-{row}", "text": f"words {row}"} for row in (1, 2, 3)]
    write_jsonl(tmp_path / "pmc_patients/queries/test_queries.jsonl", texts)
    benchmark = load_suite("scimult").benchmarks["leaderboard_patients"]
    benchmark = benchmark.model_copy(update={"expected": None})
    data = _read(benchmark, tmp_path)
    assert isinstance(data, Dataset)
    assert data.query_ids == ["9-1", "9-2"]
    assert data.queries[0] == Text("paper", "case 1", "a man")
    assert data.qrels.grades[0].tolist() == [2]
    assert list(data.remarks.values()) == [1], "the third patient is judged for articles only"
    own = benchmark.model_copy(update={"queries": "queries/test_queries.jsonl"})
    data = _read(own, tmp_path)
    assert isinstance(data, Dataset)
    assert data.queries[0] == Text("paper", "words 1")
