"""Columns by name, by path and by SQL; joined tables."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scimult.data.importers import engine
from scimult.errors import ConfigError, DataError
from tests.data.importers import layouts
from tests.data.importers.written import lines, read, written


def test_split_tables_are_joined_by_corpusid(tmp_path: Path) -> None:
    third = {**layouts.S2AG_PAPERS[1], "corpusid": 12}
    written(tmp_path, "papers-0.gz", lines(*layouts.S2AG_PAPERS))
    written(tmp_path, "papers-1.gz", lines(third))
    written(tmp_path, "abstracts-0.gz", lines(*layouts.S2AG_ABSTRACTS))
    written(tmp_path, "citations-0.gz", lines(*layouts.S2AG_CITATIONS))
    first, second, last = read(tmp_path / "*.gz")
    assert (last.id, last.location.file.name, last.location.line) == ("12", "papers-1.gz", 1)
    assert (first.id, first.abstract, first.doi) == ("10", "In another table.", "10.1234/abc.1")
    assert (first.references, first.labels) == (["11", "12"], ["Biology"])
    assert (second.id, second.abstract, second.references) == ("11", "", [])
    assert (second.location.file.name, second.location.line) == ("papers-0.gz", 2)


def test_columns_of_any_name_and_paths_into_records(tmp_path: Path) -> None:
    row = {
        "key": 7,
        "headline": "A",
        "meta": {"when": "May 2012", "people": [{"n": "Ana"}, {"n": "Bo"}]},
        "cites": [8, 9],
        "abstract": "wrong",
        "text of it": "B",
        "count": 3,
    }
    path = written(tmp_path, "mine.jsonl", lines(row))
    columns = {
        "title": "headline",
        "year": "meta.when",
        "authors": "meta.people.n",
        "references": "cites",
        "abstract": "text of it",
        "cited_by": "count",
    }
    (paper,) = read(path, columns=columns)
    assert (paper.id, paper.title, paper.abstract, paper.year) == ("7", "A", "B", 2012)
    assert (paper.authors, paper.references) == (["Ana", "Bo"], ["8", "9"])
    assert paper.extra == {"cited_by": 3}
    assert read(path, columns={**columns, "abstract": None})[0].abstract == ""


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_columns_as_expressions_are_duckdbs(tmp_path: Path, kind: str) -> None:
    rows = [
        {"id": "1", "title": "a", "published": "2012-05-01", "cites": "2|3"},
        {"id": "2", "title": "b", "published": "2013-05-01", "cites": ""},
    ]
    path = tmp_path / f"t.{kind}"
    if kind == "jsonl":
        path.write_text(lines(*rows))
    elif kind == "csv":
        pd.DataFrame(rows).to_csv(path, index=False)
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    columns = {
        "title": "upper(title)",
        "year": "published[:4]",
        "references": "string_split(nullif(cites, ''), '|')",
        "number": "CAST(id AS INTEGER) + 1",
    }
    papers = read(path, columns=columns)
    assert [paper.title for paper in papers] == ["A", "B"]
    assert [paper.year for paper in papers] == [2012, 2013]
    assert [paper.references for paper in papers] == [["2", "3"], []]
    assert [paper.extra["number"] for paper in papers] == [2, 3]
    header = kind == "csv"
    assert [paper.location.line for paper in papers] == [1 + header, 2 + header]


def test_a_column_may_be_missing_from_some_files(tmp_path: Path) -> None:
    written(tmp_path, "0.jsonl", lines({"id": "1", "title": "A"}))
    written(tmp_path, "1.jsonl", lines({"id": "2", "title": "B", "people": [{"n": "Ana"}]}))
    papers = read(tmp_path / "*.jsonl", columns={"authors": "people.n"})
    assert [paper.authors for paper in papers] == [[], ["Ana"]]


def test_expressions_see_the_fields_of_all_files(tmp_path: Path) -> None:
    written(tmp_path, "0.jsonl.gz", lines({"id": "1", "title": "A"}))
    written(tmp_path, "1.jsonl.gz", lines({"id": "2", "title": "B", "people": [{"n": "Ana"}]}))
    names = "list_transform(people, lambda p: p.n)"
    papers = read(tmp_path / "*.jsonl.gz", columns={"authors": names})
    assert [paper.authors for paper in papers] == [[], ["Ana"]]
    assert [paper.location.file.name for paper in papers] == ["0.jsonl.gz", "1.jsonl.gz"]


@pytest.mark.parametrize(
    ("problem", "wanted"),
    [
        (duckdb.IOException("No space left on device"), OSError),
        (duckdb.OutOfMemoryException("could not allocate block"), ConfigError),
        (duckdb.IOException("Malformed JSON"), DataError),
    ],
)
def test_a_lack_of_memory_or_disk_is_no_fault_of_the_file(
    problem: duckdb.Error, wanted: type[Exception]
) -> None:
    class Cursor:
        def fetchmany(self, count: int) -> None:
            raise problem

    with pytest.raises(wanted), engine.connected():
        list(engine.rows_of(Cursor(), Path("a.jsonl")))  # type: ignore[arg-type]
