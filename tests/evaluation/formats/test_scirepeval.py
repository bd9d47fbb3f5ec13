"""SciRepEval's local layout and its training files: what is read, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scimult.data.records import Rejects
from scimult.errors import DataError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.datasets import missing_files, read_dataset
from scimult.evaluation.rankings import rerank
from scimult.evaluation.systems import DenseSystem
from scimult.evaluation.task_data import Dataset, PaperSet
from scimult.types import Text
from tests.benchmark_sets import WordEncoder, write_jsonl, write_rows
from tests.evaluation.formats.made_up import made_benchmark, read, write_documents

PROBE = {"costs": [1.0], "target": "label"}


def _benchmark(protocol: str, metrics: list[str], **options: Any) -> Benchmark:
    task = "classification" if "linear" in protocol else "link_prediction"
    return made_benchmark("scirepeval", protocol, metrics, **{"task": task, **options})


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    write_documents(tmp_path)
    header = ("paper_id", "label")
    write_rows(tmp_path / "set/train.csv", [header, ("p2", 1), ("p0", 0), ("p5", 1)], ",")
    write_rows(tmp_path / "set/test.csv", [header, ("p1", 0), ("p4", 1)], ",")
    return tmp_path


def test_targets_in_another_order_than_texts(labelled: Path) -> None:
    data = read(_benchmark("classification_linear", ["f1"], probe=PROBE), labelled)
    assert isinstance(data, PaperSet)
    assert data.ids == ["p2", "p0", "p5", "p1", "p4"]
    assert [text.title for text in data.texts[:2]] == ["About water", "About graphs"]
    assert data.labels == [["1"], ["0"], ["1"], ["0"], ["1"]]
    assert data.query_ids == ["p1", "p4"]
    assert data.counts == {"queries": 2, "candidates": 2, "relevant": 2, "train": 3}


def test_a_paper_of_both_splits_is_counted(labelled: Path) -> None:
    benchmark = _benchmark("classification_linear", ["f1"], probe=PROBE)
    assert not read(benchmark, labelled).remarks
    path = labelled / "set/test.csv"
    path.write_text(path.read_text() + "p2,1\n")
    data = read(benchmark, labelled)
    assert data.query_ids == ["p1", "p4", "p2"]
    assert list(data.remarks.values()) == [1]


def test_several_tables_and_qrels_are_one_set(labelled: Path, ranked: Path) -> None:
    write_rows(labelled / "set/dev.csv", [("paper_id", "label"), ("p6", 1)], ",")
    options = {"probe": PROBE, "split": "dev+test"}
    benchmark = _benchmark("classification_linear", ["f1"], **options)
    assert read(benchmark, labelled).query_ids == ["p6", "p1", "p4"]
    rows = [{"query_id": "p1", "cand_id": "p2", "score": 1}]
    write_jsonl(ranked / "set/dev_qrel.jsonl", rows)
    data = read(_benchmark("rerank", ["map"], split="dev+test"), ranked)
    assert data.query_ids == ["p1", "p0", "p3"]


def test_numbers_and_lists_of_labels(labelled: Path) -> None:
    data = read(_benchmark("regression_linear", ["kendall_tau"], probe=PROBE), labelled)
    assert isinstance(data, PaperSet)
    assert data.values_N.tolist() == [1, 0, 1, 0, 1]
    for name in ("train", "test"):
        rows = [{"paper_id": f"p{row}", "label": [0, 1, 1]} for row in range(2)]
        write_jsonl(labelled / f"set/{name}.jsonl", rows)
    several = {**PROBE, "multi_label": True}
    with pytest.raises(DataError, match="paper has several labels"):
        read(_benchmark("classification_linear", ["macro_f1"], probe=PROBE), labelled)
    data = read(_benchmark("classification_linear", ["macro_f1"], probe=several), labelled)
    assert isinstance(data, PaperSet)
    assert data.labels[0] == ["1", "2"]
    for label, message in (
        (["x", None], "field 'label' is null"),
        (["x", " "], "field 'label' is empty"),
        ([0, 1, 0, 1], "label has no 0 or 1 for each of the 3 labels"),
    ):
        write_jsonl(labelled / "set/test.jsonl", [{"paper_id": "p0", "label": label}])
        with pytest.raises(DataError, match=f"test.jsonl:1: {message}"):
            read(_benchmark("classification_linear", ["macro_f1"], probe=several), labelled)


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        ([[0, 1, 0], [1, 0, 1], [0, 0, 0], [0, 0, 1]], [["1"], ["0", "2"], [], ["2"]]),
        ([[0, 1], [2], [1], []], [["0", "1"], ["2"], ["1"], []]),
        ([[0, 1], [1], [0], [1, 0]], [["0", "1"], ["1"], ["0"], ["1", "0"]]),
    ],
)
def test_zeros_and_ones_are_flags_or_labels_in_all_lines_alike(
    labelled: Path, given: list[list[int]], labels: list[list[str]]
) -> None:
    for name, rows in (("train", (0, 1)), ("test", (2, 3))):
        lines = [{"paper_id": f"p{row}", "label": given[row]} for row in rows]
        write_jsonl(labelled / f"set/{name}.jsonl", lines)
    probe = {**PROBE, "multi_label": True}
    data = read(_benchmark("classification_linear", ["macro_f1"], probe=probe), labelled)
    assert isinstance(data, PaperSet)
    assert data.labels == labels


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("p9,1", "paper has no text (value: 'p9')"),
        ("p2,0", "duplicate paper"),
        ("p3,", "field 'label' is empty"),
    ],
)
def test_bad_targets_are_loud_or_counted(labelled: Path, line: str, message: str) -> None:
    path = labelled / "set/train.csv"
    path.write_text(path.read_text() + line + "\n")
    benchmark = _benchmark("classification_linear", ["f1"], probe=PROBE)
    with pytest.raises(DataError) as caught:
        read(benchmark, labelled)
    assert message in str(caught.value)
    assert f"{path}:5" in str(caught.value)
    rejects = Rejects(skip_bad=True)
    assert read(benchmark, labelled, rejects).counts["train"] == 3
    assert sum(rejects.counts.values()) == 1


@pytest.fixture
def ranked(tmp_path: Path) -> Path:
    write_documents(tmp_path)
    pairs = [("p0", "p1", 1), ("p0", "p2", 0), ("p3", "p4", 0), ("p3", "p0", 2), ("p3", "p5", 1)]
    qrel = [{"query_id": q, "cand_id": c, "score": s} for q, c, s in pairs]
    write_jsonl(tmp_path / "set/test_qrel.jsonl", qrel)
    return tmp_path


def test_judged_candidates_are_ranked_by_distance(ranked: Path) -> None:
    """Only judged candidates, by descending −‖q − d‖, whatever the encoder's own similarity is."""
    benchmark = _benchmark("rerank", ["map", "ndcg"], similarity="l2")
    data = read(benchmark, ranked)
    assert isinstance(data, Dataset)
    encoder = WordEncoder("dot")
    outcome = rerank(benchmark, data, DenseSystem(encoder).ranker(data))
    embedded = encoder.encode(data.candidates, task="search", role="query")
    embed = dict(zip(data.candidate_ids, embedded, strict=True))
    for row, (query, wanted) in enumerate({"p0": ["p1", "p2"], "p3": ["p4", "p0", "p5"]}.items()):
        near = sorted(wanted, key=lambda name, q=query: np.linalg.norm(embed[q] - embed[name]))
        listed = outcome.rankings[""].rows_QK[row]
        assert [data.candidate_ids[place] for place in listed if place >= 0] == near


def test_records_of_queries_with_candidates_and_fields(tmp_path: Path) -> None:
    candidate = {"doc_id": "c1", "title": "T", "abstract": "A", "venue": "V", "year": 1964.0}
    undated = {"doc_id": "c2", "venue": None, "year": 0}
    records = [
        {"doc_id": "q1", "query": "water", "candidates": [candidate, {**candidate, **undated}]},
        {"doc_id": "q2", "query": "stars", "candidates": [candidate]},
    ]
    write_jsonl(tmp_path / "set/meta.jsonl", records)
    qrel = [{"query_id": q, "cand_id": "c1", "score": 1} for q in ("q1", "q2")]
    write_jsonl(tmp_path / "set/test_qrel.jsonl", qrel)
    fields = ["title", "abstract", "venue", "year"]
    data = read(_benchmark("rerank", ["ndcg"], task="search", fields=fields), tmp_path)
    assert isinstance(data, Dataset)
    bodies = ["A [SEP] V [SEP] 1964", "A"]
    assert data.candidates == [Text("paper", "T", body) for body in bodies]
    assert data.queries == [Text("query", "water"), Text("query", "stars")]
    records[1]["candidates"] = [{**candidate, "title": "Another"}]
    write_jsonl(tmp_path / "set/meta.jsonl", records)
    with pytest.raises(DataError, match="id has two texts"):
        read(_benchmark("rerank", ["ndcg"], task="search", fields=fields), tmp_path)


@pytest.mark.parametrize(
    ("query", "candidate", "score", "message"),
    [
        ("p9", "p1", 1, "query of a pair has no text"),
        ("p0", "p9", 1, "judged paper has no text"),
        ("p0", "p1", 1, "duplicate pair"),
        ("p0", "p6", 0.5, "field 'score' is not whole"),
        ("p6", "p7", 0, "nothing is relevant"),
    ],
)
def test_bad_judgments_are_loud_or_counted(
    ranked: Path, query: str, candidate: str, score: float, message: str
) -> None:
    path = ranked / "set/test_qrel.jsonl"
    row = {"query_id": query, "cand_id": candidate, "score": score}
    path.write_text(path.read_text() + json.dumps(row) + "\n")
    benchmark = _benchmark("rerank", ["map"])
    with pytest.raises(DataError, match=message):
        read(benchmark, ranked)
    rejects = Rejects(skip_bad=True)
    assert read(benchmark, ranked, rejects).counts["queries"] == 2
    assert sum(rejects.counts.values()) == 1


def test_missing_files_are_named_with_a_way_to_get_them(tmp_path: Path) -> None:
    source = {"repo": "them/data", "split": "test"}
    benchmark = _benchmark("rerank", ["map"], hub={"meta.jsonl": source})
    assert [path.name for path in missing_files(benchmark, tmp_path)] == [
        "test_qrel.jsonl",
        "meta.jsonl",
    ]
    with pytest.raises(DataError, match=r"is missing: .*; or scimult evaluate --download"):
        read(benchmark, tmp_path)
    how = "scimult evaluate --suite x --data DIR --download"
    with pytest.raises(DataError, match=r"is missing: .*\. Fix: scimult .* --download$"):
        read_dataset("toy", benchmark, tmp_path, how, Rejects())


def _training(folder: Path, rows: list[Any], name: str = "rows.json") -> None:
    (folder / "set").mkdir(exist_ok=True)
    (folder / "set" / name).write_text(json.dumps(rows))


def test_rows_of_training_files(tmp_path: Path) -> None:
    paper = {"title": "T", "abstract": ""}
    triplet = {
        "query": {**paper, "corpus_id": 1},
        "pos": {**paper, "corpus_id": 2},
        "neg": {**paper, "corpus_id": 3},
    }
    _training(tmp_path, [triplet])
    options: dict[str, Any] = {"format": "scirepeval_training", "texts": "rows.json"}
    data = read(_benchmark("rerank", ["map"], **options), tmp_path)
    assert isinstance(data, Dataset)
    assert data.candidate_ids == ["2", "3"]
    assert data.qrels.grades[0].tolist() == [1, 0]
    _training(tmp_path, [{**paper, "corpus_id": row, "kind": "ab"[row % 2]} for row in range(10)])
    probe = {"costs": [1], "target": "kind", "held_out": 0.3}
    labelled = _benchmark("classification_linear", ["macro_f1"], probe=probe, **options)
    first, again = read(labelled, tmp_path), read(labelled, tmp_path)
    assert isinstance(first, PaperSet)
    assert first.counts["train"] == 7
    assert first.query_ids == again.query_ids
    _training(tmp_path, [{**triplet, "pos": triplet["neg"]}])
    with pytest.raises(DataError, match="candidate has two grades"):
        read(_benchmark("rerank", ["map"], **options), tmp_path)


def test_a_text_without_its_query_is_skipped(ranked: Path) -> None:
    path = ranked / "set/meta.jsonl"
    line = json.dumps({"query": None, "candidates": [{"doc_id": "new", "title": "New"}, "old"]})
    path.write_text(path.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    rejects = Rejects(skip_bad=True)
    data = read(_benchmark("rerank", ["map"]), ranked, rejects)
    assert isinstance(data, Dataset)
    assert "new" in data.candidate_ids
    assert rejects.counts == {"record has no query": 1, "a candidate is not an object": 1}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"candidates": [{"doc_id": "c", "title": "", "score": 0}]},
            "title, abstract are all empty",
        ),
        ({"candidates": [{"title": "C", "score": 0}]}, "missing field 'corpus_id'"),
        ({"candidates": [{"doc_id": "c", "title": "C"}]}, "missing field 'score'"),
        ({"candidates": ["C"]}, "a candidate is not an object"),
        ({"query": None}, "record has no query"),
    ],
)
def test_bad_training_rows_are_skipped(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    good = {
        "query": "graphs",
        "candidates": [
            {"doc_id": "a", "title": "A", "score": 1},
            {"doc_id": "b", "title": "B", "score": 0},
        ],
    }
    more = {key: [*good[key], *value] if value else value for key, value in change.items()}
    _training(tmp_path, [good, {**good, **more}])
    ranked = _benchmark("rerank", ["map"], format="scirepeval_training", texts="rows.json")
    rejects = Rejects(skip_bad=True)
    data = read(ranked, tmp_path, rejects)
    assert isinstance(data, Dataset)
    assert data.candidate_ids == ["a", "b"]
    assert rejects.counts == {reason: 1}
    with pytest.raises(DataError, match=reason):
        read(ranked, tmp_path)
