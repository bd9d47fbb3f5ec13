"""Errors of unreadable paper files have location, value and fix."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scimult.cli.checks import check_inputs
from scimult.data.importers import FORMATS, ImportedPaper, read_papers
from scimult.data.lines import read_jsonl
from scimult.data.records import Rejects
from scimult.errors import DataError, UnknownNameError
from tests.data.importers import layouts
from tests.data.importers.written import lines, read, written


def test_a_dash_is_no_file_and_says_why() -> None:
    """It was a file that does not exist."""
    ways: list[Callable[[], Any]] = [
        lambda: list(read_papers("-")),
        lambda: list(read_jsonl("-", Rejects())),
        lambda: check_inputs([Path("-")]),
    ]
    for way in ways:
        with pytest.raises(DataError, match="-: standard input is not read.*Fix: write what it"):
            way()


def test_split_tables_without_papers_are_refused(tmp_path: Path) -> None:
    written(tmp_path, "abstracts-0.gz", lines(*layouts.S2AG_ABSTRACTS))
    written(tmp_path, "citations-0.gz", lines(*layouts.S2AG_CITATIONS))
    with pytest.raises(DataError, match="no file has papers, with a title"):
        read(tmp_path / "*.gz")


@pytest.mark.parametrize(
    ("name", "content", "choices", "message"),
    [
        (
            "a.jsonl",
            '{"id": 1, "title": "A"}\n{"id": 2\n',
            {},
            r"a.jsonl:2: line is not valid",
        ),
        ("a.jsonl", '{"id": 1, "title": ""}\n', {}, r"a.jsonl:1: title and abstract are both"),
        ("a.jsonl", '{"id": 1, "title": 5}\n', {}, r"a.jsonl:1: field 'title' is not a string"),
        ("a.jsonl", '{"id": 1, "title": "A", "year": "soon"}\n', {}, r"a.jsonl:1: no year in"),
        ("a.csv", "id,title\n1\n", {}, r"a.csv:2: wrong number of values"),
        (
            "a.csv",
            "id,title\n1,A\n",
            {"columns": {"abstract": "body"}},
            r"no record has the",
        ),
        ("a.bib", "@misc{a, title={A}}\n@misc{a, title={B}}\n", {}, r"a.bib:2: key occurs twice"),
        ("a.bib", "\n@misc{a, title={A\n", {}, r"a.bib:2: entry is not valid BibTeX"),
        ("a.ris", "TY  - JOUR\nTI  - A\n", {}, r"a.ris:1: RIS reference has no end"),
        ("a.ris", "TI  - A\n", {"format": "ris"}, r"a.ris:1: line is outside a record"),
        ("part", "", {}, r"part: file is empty"),
        ("a.bib", "", {}, r"a.bib: file is empty"),
        ("a.bib", "TY  - JOUR\n", {}, r"a.bib: file has no BibTeX entry\. Fix: check"),
        ("a.ris", "FN Clarivate\nPT J\n", {}, r"a.ris: file has no RIS reference\. Fix: check"),
        ("a.xml", "<PubmedArticleSet><PubmedArticle>", {}, r"a.xml:1: XML file is cut off"),
        ("a.xml", "<html/>", {}, r"a.xml: XML file has no PubMed article"),
        ("a.jsonl", '{"id": 1, "title": "A"}\n', {"columns": {"title": "nope("}}, r"do not fit"),
        ("a.csv", "id,title,title\n1,A,B\n", {}, r"a.csv:1: two columns.*\(value: 'title'\)"),
        ("a.csv", "sep=;\nid;title;id\n1;A;2\n", {}, r"a.csv:2: two columns.*\(value: 'id'\)"),
        ("a.csv", "1,My title\n2,Other\n", {}, r"a.csv: no column is called title or abstract"),
        (
            "a.bib",
            "@misc{a, title={A}}\n@misc{a, title={B}}\n",
            {},
            r"leave it out with --skip-bad",
        ),
        ("a.tsv", "id;title\n1;A\n", {}, r"value: \['id;title'\].*separated by semicolons"),
        ("a.csv", "id|title\n1|A\n", {}, r"its values are separated by bars"),
        (
            "a.json",
            '{"papers": [{"title": "A"}]}',
            {},
            r"a.json:1: title and abstract are both empty .value: \['papers'\].*one paper per line",
        ),
        ("a.csv", "Titel,Jahr\nA,2012\n", {}, r"--column title=NAME"),
        ("a.csv", "title,year\nA,soon\n", {}, r"none \(--column year=;"),
        ("a.bin", "\x00\x01", {}, r"unknown file format"),
        ("a.xlsx", "PK\x03\x04[Content_Types]", {}, r"not text but ZIP, as spreadsheets are"),
    ],
)
def test_bad_files_are_named_with_place_and_fix(
    tmp_path: Path, name: str, content: str, choices: dict[str, Any], message: str
) -> None:
    path = written(tmp_path, name, content)
    with pytest.raises(DataError, match=message) as raised:
        read(path, **choices)
    assert str(raised.value).count("Fix:") == 1


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("told", ["sep={}", '"sep={}"', "SEP={}"])
def test_the_line_in_which_excel_tells_the_delimiter(tmp_path: Path, mark: str, told: str) -> None:
    """pandas reads the same table once that line is gone; columns without a name may repeat."""
    table = "id;title;;\n1;A, b;;\n2;C;;\n".replace(", ", " ").replace(";", mark)
    papers = read(written(tmp_path, "a.csv", told.format(mark) + "\n" + table))
    frame = pd.read_csv(StringIO(table), sep=mark, dtype=str)
    assert [(paper.id, paper.title) for paper in papers] == list(
        zip(frame["id"], frame["title"], strict=True)
    )


@pytest.mark.parametrize(
    "year",
    [
        *("n.d.", "N. D.", "In press", "forthcoming", "n/a", "NA", "", " "),
        # A missing year after pandas' astype(str), as a number of either kind and as a date.
        *pd.Series([np.nan]).astype(str),
        *pd.Series([None], dtype="Int64").astype(str),
        *pd.Series([pd.NaT]).astype(str),
    ],
)
def test_a_year_that_is_not_known_is_none(tmp_path: Path, year: str) -> None:
    (paper,) = read(written(tmp_path, "a.csv", f"title,year\nA,{year}\n"))
    assert paper.year is None


@pytest.mark.parametrize(
    ("content", "command"),
    [
        ("id;title\n1;Café\n".encode("cp1252"), "iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW"),
        ("id;title\n1;Café\n".encode("utf-16"), "iconv -f UTF-16 -t UTF-8 FILE > NEW"),
    ],
)
def test_tables_of_other_encodings_say_how_to_convert_them(
    tmp_path: Path, content: bytes, command: str
) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(DataError, match=command):
        read(tmp_path / "a.csv")


def test_bad_records_are_left_out_when_they_may_be(tmp_path: Path) -> None:
    text = lines({"id": 1, "title": "A"}, {"id": 2}, {"id": 3, "title": "C", "year": "x"})
    rejects = Rejects(skip_bad=True)
    papers = list(read_papers([written(tmp_path, "a.jsonl", text)], rejects=rejects))
    assert [paper.id for paper in papers] == ["1"]
    assert sum(rejects.counts.values()) == 2


def test_records_of_another_form_than_the_format_say_so(tmp_path: Path) -> None:
    work = {"id": "https://openalex.org/W1", "title": "A", "referenced_works": [{"id": 3}]}
    with pytest.raises(DataError, match=r"a.jsonl:1: record does not fit its format"):
        read(written(tmp_path, "a.jsonl", lines(work)))


def test_unknown_formats_and_missing_files(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", lines({"id": 1, "title": "A"}))
    with pytest.raises(UnknownNameError, match="bibtex"):
        read(path, format="bibtx")
    with pytest.raises(DataError, match="no file matches"):
        read(tmp_path / "*.nope")
    with pytest.raises(DataError, match="does not exist"):
        read(tmp_path / "nope.jsonl")
    assert set(FORMATS) >= {"jsonl", "csv", "bibtex", "ris", "zotero", "openalex", "prepared"}


@pytest.mark.parametrize("table", ["papers", "abstracts", "citations"])
@pytest.mark.parametrize("bad", ['{"corpusid": 1', '{"corpusid": "x", "citingcorpusid": "x"}'])
def test_a_bad_record_of_a_split_table_is_named_or_left_out(
    tmp_path: Path, table: str, bad: str
) -> None:
    tables = {
        "papers": lines(*layouts.S2AG_PAPERS),
        "abstracts": lines(*layouts.S2AG_ABSTRACTS),
        "citations": lines(*layouts.S2AG_CITATIONS),
    }

    def fields(paper: ImportedPaper) -> dict[str, Any]:
        return {name: value for name, value in asdict(paper).items() if name != "location"}

    for name, text in tables.items():
        written(tmp_path, f"{name}-0.gz", text)
    good = read(tmp_path / "*.gz")
    first, _, rest = tables[table].partition("\n")
    written(tmp_path, f"{table}-0.gz", f"{first}\n{bad}\n{rest}")
    with pytest.raises(DataError, match=rf"{table}-0.gz:2: ") as raised:
        read(tmp_path / "*.gz")
    assert str(raised.value).count("Fix:") == 1
    rejects = Rejects(skip_bad=True)
    kept = list(read_papers([tmp_path / "*.gz"], rejects=rejects))
    assert sum(rejects.counts.values()) == 1
    assert [paper.location.line for paper in kept] == [1, 3 if table == "papers" else 2]
    assert [fields(paper) for paper in kept] == [fields(paper) for paper in good]


def test_a_damaged_file_without_a_known_suffix_is_named(tmp_path: Path) -> None:
    packed = gzip.compress(b"title\tabstract\n" * 9)
    (tmp_path / "papers.gz").write_bytes(packed[:10] + b"\xff" * 9 + packed[19:])
    with pytest.raises(DataError, match=r"papers.gz: compressed file is cut off or damaged"):
        read(tmp_path / "papers.gz")


def test_entities_that_explode_are_refused(tmp_path: Path) -> None:
    entities = '<!ENTITY a0 "aaaaaaaaaa">' + "".join(
        f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12)
    )
    text = f"<!DOCTYPE x [{entities}]><x>&a11;</x>"
    with pytest.raises(DataError, match="cut off or damaged"):
        read(written(tmp_path, "a.xml", text))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.bib", "@misc{a,\n title={A},\n author={\xe9},\n year=2001}\n@misc{b,\n title={B}}\n"),
        ("a.ris", "TY  - JOUR\nTI  - A\nAU  - \xe9\n\nER  - \n\nTY  - JOUR\nTI  - B\nER  - \n"),
        ("a.csv", 'id,title\n1,"A\n\xe9\nof it"\n2,B\n'),
        ("a.tsv", 'id\ttitle\n1\t"A\n\xe9\nof it"\n2\tB\n'),
    ],
)
def test_a_record_with_a_line_that_is_no_utf8_is_left_out_as_a_whole(
    tmp_path: Path, name: str, text: str
) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode("latin-1"))
    rejects = Rejects(skip_bad=True)
    assert [paper.title for paper in read_papers([path], rejects=rejects)] == ["B"]
    assert rejects.counts == {"line is not UTF-8": 1}
    path.write_text(text, encoding="utf-8")
    assert [paper.title[0] for paper in read(path)] == ["A", "B"]


def test_a_row_whose_quotes_are_text_stays_beside_a_line_that_is_no_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b'id\ttitle\n1\tA 5" disk\n2\t"B\n3\t\xe9\n4\tD\n')
    papers = read_papers([tmp_path / "a.tsv"], rejects=Rejects(skip_bad=True))
    assert [paper.title for paper in papers] == ['A 5" disk', '"B', "D"]


def test_a_parquet_row_that_python_cannot_hold_costs_no_other(tmp_path: Path) -> None:
    """Dates after the year 9999, and text that is not UTF-8, in any column."""
    texts = pa.array([b"A", b"B", b"C", b"D\xff"], pa.binary())
    days = pa.array([0, 10**7, 1, 2], pa.int32()).cast(pa.date32())
    title = pa.Array.from_buffers(pa.string(), 4, texts.buffers())
    pq.write_table(
        pa.table({"id": [1, 2, 3, 4], "title": title, "on": days}), tmp_path / "a.parquet"
    )
    rejects = Rejects(skip_bad=True)
    papers = list(read_papers(tmp_path / "a.parquet", rejects=rejects))
    assert [(paper.title, paper.location.line) for paper in papers] == [("A", 1), ("C", 3)]
    assert rejects.counts == {"row has an invalid value": 2}
    with pytest.raises(DataError, match=r"a.parquet:2: row has .*date value out of range"):
        read(tmp_path / "a.parquet")


def _strings(*values: bytes) -> pa.StringArray:
    """Return bytes as Arrow's strings, which it does not check."""
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    buffers = pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"".join(values))
    return pa.StringArray.from_buffers(len(values), *buffers)


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("title", _strings(b"Graphs", b"na\xefve", b"Trees"), "title: 'utf-8' codec"),
        ("note", _strings(b"a", b"\xff", b"b"), "note: 'utf-8' codec"),
        ("year", pa.array([0, 1 << 60, 0], pa.timestamp("us")), "year: date value out of range"),
        ("seen", pa.array([0, -(1 << 31), 0], pa.date32()), "seen: days=-2147483648"),
    ],
)
def test_values_of_parquet_that_python_cannot_hold(
    tmp_path: Path, column: str, value: pa.Array, problem: str
) -> None:
    """Arrow writes bytes in another encoding as strings, and databases infinity as a date."""
    path = tmp_path / "papers.parquet"
    pq.write_table(pa.table({"id": ["a", "b", "c"], "title": ["A", "B", "C"], column: value}), path)
    with pytest.raises(DataError, match=f"parquet:2: row has an invalid value.*{problem}"):
        list(read_papers(path))
    rejects = Rejects(skip_bad=True)
    kept = [(paper.id, paper.location.line) for paper in read_papers(path, rejects=rejects)]
    assert kept == [("a", 1), ("c", 3)]
    assert rejects.counts == {"row has an invalid value": 1}
