"""Reading benchmarks: what is read, and the message for every kind of bad input."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scimult.data.records import Rejects
from scimult.errors import DataError
from scimult.evaluation.benchmark import Benchmark, Expected
from scimult.evaluation.datasets import missing_files, read_dataset
from scimult.evaluation.suites import load_suite
from scimult.evaluation.task_data import Dataset
from scimult.types import Text
from tests.benchmark_sets import (
    CORPUS,
    HEADER,
    LABELS,
    PAPERS,
    QUERY_PAPERS,
    REQUESTS,
    write_coarse,
    write_fields,
    write_jsonl,
    write_links,
    write_rerank,
    write_rows,
    write_search,
)


def _read(benchmark: Benchmark, root: Path, rejects: Rejects | None = None) -> Dataset:
    return read_dataset(benchmark.folder, benchmark, root, "ask the author", rejects or Rejects())


def test_search_reads_requests_and_titled_documents(tmp_path: Path) -> None:
    data = _read(write_search(tmp_path), tmp_path)
    assert data.query_ids == ["q1", "q2", "q3"]
    assert data.queries[0] == Text("query", "drawing graphs")
    assert data.candidate_ids == ["d1", "d2", "d3", "d4", "d5"]
    assert data.candidates[3] == Text("paper", "", "Drawing proteins as graphs.")
    assert data.qrels.rows[0].tolist() == [0, 3]
    assert data.qrels.grades[0].tolist() == [2, 1]
    assert data.counts == {"queries": 3, "candidates": 5, "relevant": 4}
    assert data.own_rows.tolist() == [-1, -1, -1]


def test_link_queries_are_papers_and_know_their_own_row(tmp_path: Path) -> None:
    data = _read(write_links(tmp_path), tmp_path)
    assert data.queries[0] == Text("paper", "Drawing large graphs", "Layouts of graphs.")
    assert data.queries[2] == Text("paper", "Drawing proteins as graphs.")
    assert data.own_rows.tolist() == [0, -1, 3]
    assert data.lists is None


def test_a_link_query_with_an_empty_title_is_its_text(tmp_path: Path) -> None:
    """As in the hub's copies of BEIR."""
    benchmark = write_links(tmp_path)
    changed = [*QUERY_PAPERS[:2], {"_id": "d4", "title": "", "abstract": None, "text": "Graphs."}]
    write_jsonl(tmp_path / "links/queries.jsonl", changed)
    assert _read(benchmark, tmp_path).queries[2] == Text("paper", "Graphs.")


def test_a_link_query_in_the_layout_of_a_corpus_keeps_its_text(tmp_path: Path) -> None:
    """ICLR 2022's queries: its authors join title and text."""
    benchmark = write_links(tmp_path)
    changed = [*QUERY_PAPERS[:2], {"_id": "d4", "title": "Graphs", "text": "Drawn."}]
    write_jsonl(tmp_path / "links/queries.jsonl", changed)
    assert _read(benchmark, tmp_path).queries[2] == Text("paper", "Graphs", "Drawn.")


def test_reranking_reads_the_listed_candidates(tmp_path: Path) -> None:
    data = _read(write_rerank(tmp_path), tmp_path)
    assert data.lists is not None
    assert [rows.tolist() for rows in data.lists] == [[3, 1], [2, 4, 0], [0, 1, 2]]


def test_labelled_papers_of_one_split(tmp_path: Path) -> None:
    data = _read(write_fields(tmp_path), tmp_path)
    assert data.query_ids == ["p1", "p2", "p3"]
    assert data.candidate_ids == ["l1", "l2", "l3", "l4"]
    assert data.candidates[2] == Text("label", "Sparse matrices", "Matrices with few entries")
    assert data.label_names[1] == ["Proteins", "Folding of proteins", "peptides"]
    assert [rows.tolist() for rows in data.qrels.rows] == [[0], [1, 3], [2, 0]]
    assert [path.name for path in data.files] == ["papers.jsonl", "labels.jsonl", "split.csv"]


def test_labels_without_a_file_are_the_names_that_occur(tmp_path: Path) -> None:
    data = _read(write_coarse(tmp_path), tmp_path)
    assert data.candidate_ids == ["folding", "graph", "water"]
    assert data.candidates[1] == Text("label", "graph")


def test_labelled_papers_may_be_in_a_file_of_another_name(tmp_path: Path) -> None:
    """A file under the usual name next to it is another set."""
    benchmark = write_coarse(tmp_path).model_copy(update={"texts": "mine.jsonl"})
    mine = [
        {"id": "m1", "title": "a", "labels": ["x"]},
        {"id": "m2", "title": "b", "labels": ["y"]},
    ]
    write_jsonl(tmp_path / "coarse/mine.jsonl", mine)
    assert _read(benchmark, tmp_path).query_ids == ["m1", "m2"]


def test_blank_documents_of_a_set_scored_as_beir_stay_in_the_corpus(tmp_path: Path) -> None:
    """TREC-COVID has one among its 171,332, which is the count that the suite expects."""
    benchmark = write_search(tmp_path).model_copy(update={"nothing_relevant": "zero"})
    path = tmp_path / "search/corpus.jsonl"
    write_jsonl(path, [*CORPUS, {"_id": "d6", "title": " ", "text": "", "metadata": {}}])
    data = _read(benchmark, tmp_path)
    assert data.candidates[5] == Text("paper", ".")
    assert list(data.remarks.values()) == [1]
    for text in ({"abstract": "A"}, {"text": "", "abstract": "A"}, {"contents": "A"}):
        write_jsonl(path, [*CORPUS, {"_id": "d6", **text}])
        with pytest.raises(DataError, match="corpus.jsonl:6: "):
            _read(benchmark, tmp_path)


def test_a_search_whose_queries_are_documents_names_the_mode_of_beir(tmp_path: Path) -> None:
    """As in ArguAna; without it the query itself is every list's first result."""
    benchmark = write_search(tmp_path)
    write_jsonl(tmp_path / "search/corpus.jsonl", [*CORPUS, {"_id": "q2", "text": "Another."}])
    assert not _read(benchmark, tmp_path).remarks
    same = {"_id": "q2", "title": "", "text": f" {REQUESTS[1]['text']}  "}
    write_jsonl(tmp_path / "search/corpus.jsonl", [*CORPUS, same])
    (remark,) = _read(benchmark, tmp_path).remarks
    assert "mode=beir" in remark
    assert not _read(benchmark.model_copy(update={"mode": "beir"}), tmp_path).remarks


def test_a_linear_model_needs_the_split_or_holds_papers_out(tmp_path: Path) -> None:
    """Without its file, a set is missing, and the others are scored."""
    entry = load_suite("linear").benchmarks["drsm"]
    folder = tmp_path / entry.folder
    write_jsonl(folder / "papers.jsonl", [{"id": "p1", "title": "a", "labels": ["x"]}])
    assert missing_files(entry, tmp_path) == [folder / "split.csv"]
    assert entry.probe is not None
    held_out = entry.probe.model_copy(update={"held_out": 0.3})
    assert missing_files(entry.model_copy(update={"probe": held_out}), tmp_path) == []


def test_packed_files_are_read_as_well(tmp_path: Path) -> None:
    benchmark = write_search(tmp_path)
    plain = tmp_path / "search/corpus.jsonl"
    plain.with_name("corpus.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert missing_files(benchmark, tmp_path) == []
    assert len(_read(benchmark, tmp_path).candidates) == 5


def test_missing_data_names_the_files_and_how_to_get_them(tmp_path: Path) -> None:
    benchmark = write_search(tmp_path)
    (tmp_path / "search/queries.jsonl").unlink()
    (tmp_path / "search/qrels/test.tsv").unlink()
    with pytest.raises(DataError) as caught:
        _read(benchmark, tmp_path)
    message = str(caught.value)
    assert message.startswith("data of search is missing: ")
    assert str(tmp_path / "search/queries.jsonl") in message
    assert str(tmp_path / "search/qrels/test.tsv") in message
    assert message.endswith("Fix: ask the author")


def test_another_edition_of_the_data(tmp_path: Path) -> None:
    expected = Expected(queries=3, candidates=6, relevant=4)
    benchmark = write_search(tmp_path).model_copy(update={"expected": expected})
    with pytest.raises(DataError) as caught:
        _read(benchmark, tmp_path)
    assert "another edition of the data: expected {'queries': 3, 'candidates': 6" in str(
        caught.value
    )
    assert "benchmarks.search.expected=null" in str(caught.value)


JUDGED = [("q1", "d1", 2), ("q2", "d3", 1), ("q3", "d2", 1)]
Writer = Callable[[Path], Benchmark]


def _jsonl(name: str, records: list[dict[str, Any]]) -> Callable[[Path], None]:
    return lambda folder: write_jsonl(folder / name, records)


def _rows(name: str, rows: list[tuple[Any, ...]], separator: str = "\t") -> Callable[[Path], None]:
    return lambda folder: write_rows(folder / name, rows, separator)


CASES: list[tuple[Writer, Callable[[Path], None], str, int]] = [
    (
        write_search,
        _jsonl("corpus.jsonl", [*CORPUS, CORPUS[0]]),
        "corpus.jsonl:6: duplicate id (value: 'd1')",
        3,
    ),
    (
        write_search,
        _jsonl("corpus.jsonl", [*CORPUS, {"_id": "d6", "title": " ", "text": ""}]),
        "corpus.jsonl:6: 'title' and 'text' are both empty",
        3,
    ),
    (
        write_search,
        _jsonl("corpus.jsonl", [*CORPUS, {"_id": "d6", "title": "A", "abstract": "B"}]),
        "corpus.jsonl:6: paper has text under 'abstract', which is not read here (value: 'B')",
        3,
    ),
    (
        write_search,
        _jsonl("queries.jsonl", [*REQUESTS, {"_id": "q4", "text": ""}]),
        "queries.jsonl:4: field 'text' is empty",
        3,
    ),
    (
        write_search,
        _jsonl("queries.jsonl", [*REQUESTS, {"_id": "q4", "text": "unjudged"}]),
        "test.tsv: query has no judgment (value: 'q4'). Fix: judge or remove it, or set "
        "nothing_relevant: zero, as for BEIR: queries without judgments are left out",
        3,
    ),
    (
        write_search,
        _rows("qrels/test.tsv", [HEADER, *JUDGED[:2], ("q3", "d2", 0)]),
        "nothing_relevant: zero",
        2,
    ),
    (
        write_search,
        _rows("qrels/test.tsv", [HEADER, *JUDGED, ("q9", "d1", 1)]),
        "test.tsv:5: query of a pair has no text (value: 'q9')",
        3,
    ),
    (
        write_search,
        _rows("qrels/test.tsv", [HEADER, *JUDGED, ("q1", "d9", 1)]),
        "test.tsv:5: document of a pair has no text (value: 'd9')",
        3,
    ),
    (
        write_search,
        _rows("qrels/test.tsv", [HEADER, *JUDGED, ("q1", "d1", 1)]),
        "test.tsv:5: duplicate pair (value: ('q1', 'd1'))",
        3,
    ),
    (
        write_search,
        _rows("qrels/test.tsv", [HEADER, *JUDGED, ("q1", "d2", "high")]),
        "test.tsv:5: field 'score' is not an integer (value: 'high')",
        3,
    ),
    (
        write_links,
        _jsonl("queries.jsonl", [*QUERY_PAPERS, {"_id": "x2", "title": "", "abstract": ""}]),
        "queries.jsonl:4: 'title' and 'abstract' are both empty",
        3,
    ),
    (
        write_rerank,
        _rows("candidates.tsv", [HEADER, ("d1", "d4", 1), ("d4", "d1", 1), ("d4", "d2", 1)]),
        "candidates.tsv: query has no candidates (value: 'x1')",
        2,
    ),
    (
        write_rerank,
        _rows(
            "candidates.tsv",
            [HEADER, ("d1", "d4", 1), ("x1", "d3", 1), ("x1", "d5", 1), ("d4", "d1", 1)],
        ),
        "candidates.tsv: a relevant one is not listed (value: 'd4')",
        2,
    ),
    (
        write_fields,
        _jsonl("labels.jsonl", [label for label in LABELS if label["id"] != "l4"]),
        "papers.jsonl: paper has a label that is not in the label file (value: ('p2', 'l4'))",
        3,
    ),
    (
        write_fields,
        _jsonl("labels.jsonl", [*LABELS, {"id": "l5", "name": " "}]),
        "labels.jsonl:5: field 'name' is empty",
        3,
    ),
    (
        write_fields,
        _jsonl("papers.jsonl", [*PAPERS[:2], {**PAPERS[2], "labels": "l3"}, PAPERS[3]]),
        "papers.jsonl:3: field 'labels' is not a list of strings (value: 'l3')",
        2,
    ),
    (
        write_fields,
        _jsonl("papers.jsonl", [*PAPERS[:2], {**PAPERS[2], "labels": []}, PAPERS[3]]),
        "papers.jsonl: query has no judgment (value: 'p3')",
        2,
    ),
    (
        write_fields,
        _rows("split.csv", [("id", "split"), ("p1", "test"), ("p2", "test"), ("p3", "test")], ","),
        "split.csv: paper has no split (value: 'p4')",
        3,
    ),
    (
        write_coarse,
        _jsonl(
            "papers.jsonl",
            [
                {"id": "p1", "title": "a", "labels": ["x"]},
                {"id": "p2", "title": "b", "labels": [" "]},
            ],
        ),
        "papers.jsonl:2: a label is empty (value: [' '])",
        1,
    ),
    (
        write_coarse,
        _jsonl(
            "papers.jsonl",
            [
                {"id": "p1", "title": "a", "labels": ["x"]},
                {"id": "p2", "title": "b", "labels": ["x", "y"]},
            ],
        ),
        "papers.jsonl: paper has several labels, but coarse classification takes one (value: 'p2')",
        1,
    ),
]


@pytest.mark.parametrize(("write", "damage", "message", "left"), CASES)
def test_bad_records_end_the_work_or_are_counted(
    tmp_path: Path, write: Writer, damage: Callable[[Path], None], message: str, left: int
) -> None:
    benchmark = write(tmp_path)
    damage(tmp_path / benchmark.folder)
    with pytest.raises(DataError) as caught:
        _read(benchmark, tmp_path)
    assert message in str(caught.value)
    assert ". Fix: " in str(caught.value)
    rejects = Rejects(skip_bad=True)
    assert len(_read(benchmark, tmp_path, rejects).query_ids) == left
    assert sum(rejects.counts.values()) >= 1
    assert message.split(": ", 1)[1].split(" (value")[0] in rejects.summary()


def test_a_split_that_no_paper_has(tmp_path: Path) -> None:
    benchmark = write_fields(tmp_path).model_copy(update={"split": "dev"})
    with pytest.raises(DataError, match=r"no paper has this split.*use test, train"):
        _read(benchmark, tmp_path)


def test_judgments_that_fit_no_query(tmp_path: Path) -> None:
    benchmark = write_search(tmp_path)
    write_rows(tmp_path / "search/qrels/test.tsv", [HEADER, ("Q1", "d1", 1)])
    with pytest.raises(DataError, match="no query can be scored"):
        _read(benchmark, tmp_path, Rejects(skip_bad=True))
