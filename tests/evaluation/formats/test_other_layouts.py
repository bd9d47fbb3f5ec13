"""SciDocs and released SciMult files: what is read, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from scimult.data.records import Rejects
from scimult.errors import DataError
from scimult.evaluation.rankings import classification_fine, recommendation
from scimult.evaluation.suites import load_suite
from scimult.evaluation.systems import DenseSystem
from scimult.evaluation.task_data import Dataset, PaperSet
from scimult.types import Text
from tests.benchmark_sets import WordEncoder, write_jsonl, write_rows
from tests.evaluation.formats.made_up import PAPERS, made_benchmark, read, write_json

# SciDocs


@pytest.fixture
def scidocs(tmp_path: Path) -> Path:
    write_json(tmp_path / "set/paper_metadata.json", PAPERS)
    (tmp_path / "set/test.qrel").write_text("p0 0 p1 1\np0 0 p2 0\np3 0 p4 1\np3 0 p1 0\n")
    header = ("pid", "class_label")
    write_rows(tmp_path / "set/train.csv", [header, ("p0", 1), ("p1", 2)], ",")
    write_rows(tmp_path / "set/test.csv", [header, ("p3", 2)], ",")
    return tmp_path


def test_scidocs_links_and_labels(scidocs: Path) -> None:
    ranked = read(made_benchmark("scidocs", "rerank", ["map"]), scidocs)
    assert isinstance(ranked, Dataset)
    assert ranked.query_ids == ["p0", "p3"]
    assert ranked.candidate_ids == ["p1", "p2", "p4"]
    assert ranked.queries[1] == Text("paper", "About d")
    probe = {"costs": [1], "target": "class_label"}
    benchmark = made_benchmark("scidocs", "classification_linear", ["macro_f1"], probe=probe)
    labelled = read(benchmark, scidocs)
    assert isinstance(labelled, PaperSet)
    assert labelled.labels == [["1"], ["2"], ["2"]]


def test_several_qrels_are_one_set(scidocs: Path) -> None:
    (scidocs / "set/val.qrel").write_text("p1 0 p2 1\np3 0 p2 1\n")
    both = made_benchmark("scidocs", "rerank", ["map"], split="val+test")
    data = read(both, scidocs)
    assert isinstance(data, Dataset)
    assert data.query_ids == ["p1", "p3", "p0"]
    assert data.counts["relevant"] == 4
    assert [path.name for path in data.files[:2]] == ["val.qrel", "test.qrel"]
    (scidocs / "set/val.qrel").write_text("p0 0 p1 1\n")
    with pytest.raises(DataError, match="test.qrel:1: duplicate pair"):
        read(both, scidocs)


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
    benchmark = made_benchmark("scidocs", "rerank", ["map"])
    with pytest.raises(DataError, match=message):
        read(benchmark, scidocs)
    rejects = Rejects(skip_bad=True)
    assert read(benchmark, scidocs, rejects).counts["relevant"] == 2
    assert sum(rejects.counts.values()) == 1


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    write_json(tmp_path / "set/paper_metadata.json", PAPERS)
    write_json(tmp_path / "set/propensity_scores.json", {"scores": [0.6, 0.3, 0.1]})
    lines = ["query_id,clicked_id,shown", 'p0,p2,"p1,p2,p3"', 'p0,p1,"p1,p4"', 'p4,p3,"p0,p1,p3"']
    (tmp_path / "set/test.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_clicks_weigh_by_the_inverse_propensity_of_their_place(clicks: Path) -> None:
    metrics = ["weighted_ndcg", "weighted_precision@1"]
    benchmark = made_benchmark("scidocs", "recommendation", metrics, similarity="l2")
    data = read(benchmark, clicks)
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
        read(made_benchmark("scidocs", "recommendation", ["weighted_ndcg"]), clicks)


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
    benchmark = made_benchmark("scimult", "classification_fine", ["recall@1"], **FINE)
    data = read(benchmark, released)
    assert isinstance(data, Dataset)
    assert data.candidates[0] == Text("label", "Graphs", "Nodes and edges")
    assert data.label_names[0] == ["Graphs", "Networks"]
    assert data.matched is not None
    assert [rows.tolist() for rows in data.matched] == [[1, 2], [0]]
    outcome = classification_fine(benchmark, data, DenseSystem(WordEncoder()).ranker(data))
    assert outcome.scores["recall@1+names"] >= outcome.scores["recall@1"]
    assert outcome.rankings["+names"].rows_QK[1, 0] == 0
    only = made_benchmark("scimult", "classification_fine", ["recall@1"], label_text="name", **FINE)
    named = read(only, released)
    assert isinstance(named, Dataset)
    assert named.candidates[0] == Text("label", "Graphs")


def test_released_coarse_labels_are_rows(released: Path) -> None:
    options = {key: FINE[key] for key in ("task", "texts", "labels")}
    benchmark = made_benchmark("scimult", "classification_coarse", ["macro_f1"], **options)
    rows = [{"paper": "1", "title": "t", "label": 2}, {"paper": "2", "title": "u", "label": 0}]
    write_jsonl(released / "set/X_papers_test.json", rows)
    data = read(benchmark, released)
    assert isinstance(data, Dataset)
    assert data.qrels.rows.values.tolist() == [2, 0]
    write_jsonl(released / "set/X_papers_test.json", [{"paper": "1", "title": "t", "label": 3}])
    with pytest.raises(DataError, match="no label has this row"):
        read(benchmark, released)


def test_a_paper_without_a_line_of_matches(released: Path) -> None:
    write_jsonl(released / "set/X_matched.json", [{"paper": "1", "candidate": []}])
    benchmark = made_benchmark("scimult", "classification_fine", ["recall@1"], **FINE)
    with pytest.raises(DataError, match="paper has no line of matches"):
        read(benchmark, released)


def test_released_links_patients_and_lists(tmp_path: Path) -> None:
    papers = [
        {"paper": "1", "title": "a", "abstract": "", "cite": ["2"], "score": {"2": 5, "3": 1.0}},
        {"paper": "2", "title": "b", "abstract": "", "cite": [], "score": {}},
        {"paper": "3", "title": "c", "abstract": "", "cite": ["1", "2"], "score": {}},
    ]
    write_jsonl(tmp_path / "set/X.json", papers)
    links = read(
        made_benchmark("scimult", "link_retrieval", ["recall@1"], texts="X.json", link="cite"),
        tmp_path,
    )
    assert isinstance(links, Dataset)
    assert links.query_ids == ["1", "3"]
    assert links.counts == {"queries": 2, "candidates": 3, "relevant": 3}
    lists = read(made_benchmark("scimult", "rerank", ["ndcg"], texts="X.json"), tmp_path)
    assert isinstance(lists, Dataset)
    assert lists.query_ids == ["1"]
    assert lists.qrels.grades[0].tolist() == [5, 1]
    patients = [{"patient": name, "title": name, "abstract": ""} for name in ("a", "b")]
    write_jsonl(tmp_path / "set/P.json", patients)
    asked = [{"query": "q", "title": "t", "abstract": "", "patient": ["b"]}]
    write_jsonl(tmp_path / "set/Q.json", asked)
    options = {"texts": "P.json", "queries": "Q.json", "link": "patient"}
    similar = read(made_benchmark("scimult", "link_retrieval", ["recall@1"], **options), tmp_path)
    assert isinstance(similar, Dataset)
    assert similar.query_ids == ["q"]
    assert similar.queries == [Text("paper", "t")]
    words = [{"query_id": "7", "query": "deep [SEP] nets", "score": {"1": 1, "3": 0}}]
    write_jsonl(tmp_path / "set/W.json", words)
    found = read(
        made_benchmark(
            "scimult", "search", ["ndcg@10"], task="search", texts="X.json", queries="W.json"
        ),
        tmp_path,
    )
    assert isinstance(found, Dataset)
    assert found.queries == [Text("query", "deep [SEP] nets")]
    assert found.lists is None


# PMC-Patients


def test_leaderboard_files_as_they_are_released(tmp_path: Path) -> None:
    """The leaderboard's corpus and judgments, with SciMult's titles and abstracts of patients."""
    corpus = [{"_id": str(row), "title": f"t{row}", "text": "body"} for row in range(3)]
    write_jsonl(tmp_path / "pmc_patients/PMCPatients/PPR/PPR_corpus.jsonl", corpus)
    judged = [("query-id", "corpus-id", "score"), ("9-1", "1", 2), ("9-2", "0", 1)]
    write_rows(tmp_path / "pmc_patients/PMCPatients/PPR/PPR_test_qrels.tsv", judged)
    asked = [
        {"query": f"9-{row}", "title": f"case {row}", "abstract": "a man", "article": ["1"]}
        for row in (1, 2, 3)
    ]
    released = tmp_path / "pmc_patients/PMCPatientsPPR_queries_test.json"
    write_jsonl(released, asked)
    texts = [{"_id": f"9-{row}", "text": f"words {row}"} for row in (1, 2, 3)]
    write_jsonl(tmp_path / "pmc_patients/PMCPatients/queries/test_queries.jsonl", texts)
    benchmark = load_suite("scimult").benchmarks["leaderboard_patients"]
    benchmark = benchmark.model_copy(update={"expected": None})
    data = read(benchmark, tmp_path)
    assert isinstance(data, Dataset)
    assert data.query_ids == ["9-1", "9-2"]
    assert data.queries[0] == Text("paper", "case 1", "a man")
    assert data.qrels.grades[0].tolist() == [2]
    assert list(data.remarks.values()) == [1], "the third patient is judged for articles only"
    own = benchmark.model_copy(update={"queries": "PMCPatients/queries/test_queries.jsonl"})
    data = read(own, tmp_path)
    assert isinstance(data, Dataset)
    assert data.queries[0] == Text("paper", "words 1")
