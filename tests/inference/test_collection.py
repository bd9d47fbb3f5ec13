from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from scimult.data.importers import read_papers
from scimult.data.records import Rejects
from scimult.errors import DataError
from scimult.inference.collection import read_collection
from scimult.inference.texts import as_texts
from scimult.types import Text


def _write(path: Path, records: list[dict[str, Any]]) -> Path:
    text = "".join(json.dumps(record) + "\n" for record in records)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["papers.jsonl", "papers.jsonl.gz", "corpus.jsonl.gz"])
def test_papers_of_a_folder(tmp_path: Path, name: str) -> None:
    _write(tmp_path / name, [{"id": "a", "title": "T", "abstract": "A"}, {"id": 2, "title": " U "}])
    papers = read_collection(tmp_path, "paper", Rejects())
    assert papers.ids == ["a", "2"]
    assert papers.texts == [Text("paper", "T", "A"), Text("paper", "U")]
    assert papers.row("2") == 1
    assert len(papers) == 2


BIBTEX = "@article{a, title={Graph {D}rawing}, abstract={We draw.}}\n@misc{b, title={Trees}}\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [("own.bib", BIBTEX), ("own.csv", "Key,Title,Abstract\na,Graph Drawing,We draw.\nb,Trees,\n")],
)
def test_papers_in_the_formats_of_a_library(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    papers = read_collection(tmp_path / name, "paper", Rejects())
    assert papers.texts == [Text("paper", "Graph Drawing", "We draw."), Text("paper", "Trees")]
    assert papers.path == tmp_path / name
    if name == "own.bib":
        assert papers.ids == ["a", "b"]
        (tmp_path / name).write_text(text + "@misc{b, title={Again}}\n", encoding="utf-8")
        with pytest.raises(DataError, match="key occurs twice"):
            read_collection(tmp_path / name, "paper", Rejects())


def test_beir_fields_labels_and_queries(tmp_path: Path) -> None:
    file = _write(tmp_path / "x.jsonl", [{"_id": "a", "title": "T", "text": "A"}])
    assert read_collection(file, "paper", Rejects()).texts == [Text("paper", "T", "A")]
    file = _write(tmp_path / "l.jsonl", [{"id": "a", "name": "N", "definition": "D"}])
    assert read_collection(file, "label", Rejects()).texts == [Text("label", "N", "D")]
    _write(tmp_path / "queries.jsonl", [{"_id": "a", "text": "how do graphs grow"}])
    queries = read_collection(tmp_path, "query", Rejects())
    assert queries.texts == [Text("query", "how do graphs grow")]


def test_of_an_id_that_repeats_the_first_text_is_kept(tmp_path: Path) -> None:
    rows = [{"id": "a", "title": "One"}, {"id": "b", "title": "Two"}, {"id": "a", "title": "Three"}]
    file, rejects = _write(tmp_path / "papers.jsonl", rows), Rejects(True)
    found = read_collection(file, "paper", rejects)
    assert (found.ids, [text.title for text in found.texts]) == (["a", "b"], ["One", "Two"])
    assert rejects.counts == {"id is given twice": 1}
    with pytest.raises(DataError, match=r"papers\.jsonl:3: id is given twice"):
        read_collection(file, "paper", Rejects())


def test_a_label_has_a_name(tmp_path: Path) -> None:
    file = _write(tmp_path / "l.jsonl", [{"id": "a", "name": " ", "definition": "D"}])
    with pytest.raises(DataError, match=r"l.jsonl:1: label has no name \(value: 'a'\)"):
        read_collection(file, "label", Rejects())


@pytest.mark.parametrize("empty", [None, ""])
def test_a_body_under_its_second_name_is_read_where_the_first_is_empty(
    tmp_path: Path, empty: str | None
) -> None:
    record = {"id": "a", "title": "T", "abstract": empty, "text": "A"}
    file, wanted = _write(tmp_path / "x.jsonl", [record]), [Text("paper", "T", "A")]
    assert read_collection(file, "paper", Rejects()).texts == wanted
    assert as_texts([record], "paper") == wanted
    assert [paper.abstract for paper in read_papers([file])] == ["A"]


def test_titles_are_found_whatever_their_case(tmp_path: Path) -> None:
    records = [{"id": str(number), "title": title} for number, title in enumerate("aAb")]
    papers = read_collection(_write(tmp_path / "p.jsonl", records), "paper", Rejects())
    assert papers.titled(" A ") == [0, 1]
    assert papers.titled("c") == []


def test_an_unknown_id_suggests(tmp_path: Path) -> None:
    file = _write(tmp_path / "p.jsonl", [{"id": "P12-1001", "title": "T"}])
    papers = read_collection(file, "paper", Rejects())
    with pytest.raises(DataError, match=r"p\.jsonl: no text has this id.*did you mean 'P12-1001'"):
        papers.row("P12-1010")


def test_ids_keep_the_invisible_characters_of_words(tmp_path: Path) -> None:
    ids = ["a\u00a0b", "می\u200cشود", "論\u3000文"]
    file = _write(tmp_path / "p.jsonl", [{"id": name, "title": "T"} for name in ids])
    assert list(read_collection(file, "paper", Rejects()).ids) == ids


BAD: list[tuple[dict[str, Any], str]] = [
    ({"title": "T"}, r":2: missing field 'id'"),
    ({"id": "a", "title": "U"}, r":2: id is given twice \(value: 'a'\).*--skip-bad"),
    ({"id": "b", "title": " ", "abstract": None}, r":2: paper has no text \(value: 'b'\)"),
    ({"id": "b", "title": 3}, r":2: field 'title' is not a string"),
    ({"id": "b\nc", "title": "T"}, r":2: id holds a line break"),
]


@pytest.mark.parametrize(("record", "message"), BAD)
def test_bad_records_are_errors_or_counted(
    tmp_path: Path, record: dict[str, Any], message: str
) -> None:
    file = _write(tmp_path / "p.jsonl", [{"id": "a", "title": "T"}, record])
    with pytest.raises(DataError, match=message):
        read_collection(file, "paper", Rejects())
    rejects = Rejects(skip_bad=True)
    assert read_collection(file, "paper", rejects).ids == ["a"]
    assert rejects.counts.total() == 1


def test_nothing_left_is_an_error_even_when_skipping(tmp_path: Path) -> None:
    file = _write(tmp_path / "p.jsonl", [{"id": "a"}])
    with pytest.raises(DataError, match="no paper is left"):
        read_collection(file, "paper", Rejects(skip_bad=True))


def test_which_file_must_be_clear(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds none of papers\.jsonl.*or several by a pattern"):
        read_collection(tmp_path, "paper", Rejects())
    for name in ("papers.jsonl", "corpus.jsonl"):
        _write(tmp_path / name, [{"id": "a", "title": "T"}])
    with pytest.raises(DataError, match="folder holds 2 of"):
        read_collection(tmp_path, "paper", Rejects())
    with pytest.raises(DataError, match="file does not exist"):
        read_collection(tmp_path / "none.jsonl", "paper", Rejects())


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("label", r"text under 'label'.*name it 'name'"),
        ("x", r"missing field 'name'.*call the column that holds it 'name', on the first line"),
    ],
)
def test_a_table_of_labels_without_names_says_what_to_rename(
    tmp_path: Path, column: str, message: str
) -> None:
    file = tmp_path / "vocabulary.csv"
    file.write_text(f"id,{column}\na,Optics\n", encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_collection(file, "label", Rejects())
