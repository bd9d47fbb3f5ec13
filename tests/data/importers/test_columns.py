"""Columns by name, by path and by SQL; joined tables."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scimult.data.importers import engine, read_papers
from scimult.data.importers.columns import Columns
from scimult.data.records import Rejects
from scimult.errors import ConfigError, DataError, UnknownNameError
from tests.data.importers import layouts
from tests.data.importers.written import lines, read, written


def test_split_tables_are_joined_by_corpusid(tmp_path: Path) -> None:
    third = {**layouts.S2AG_PAPERS[1], "corpusid": 12}
    # Added columns without a value hide nothing.
    papers = [{**paper, "abstract": None} for paper in layouts.S2AG_PAPERS]
    written(tmp_path, "papers-0.gz", lines(*papers))
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
    with pytest.raises(UnknownNameError, match="unknown field of papers.*did you mean .abstract"):
        read(path, columns={**columns, "abstrct": None})


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


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_column_that_looks_like_sql_is_a_column(tmp_path: Path, suffix: str) -> None:
    """Scopus has "Author(s) ID"; tables of one source may have an expression beside it."""
    row = {"Title (en)": "A", "id": "1", "n": 3}
    path = tmp_path / f"x.{suffix}"
    if suffix == "csv":
        pd.DataFrame([row]).to_csv(path, index=False)
    elif suffix == "jsonl":
        path.write_text(lines(row))
    else:
        pq.write_table(pa.Table.from_pylist([row]), path)
    for more in ({}, {"year": "2000 + n::INT"}):
        wanted = {"title": "Title (en)", **more}
        (paper,) = read(path, columns=wanted)
        assert (paper.title, paper.year) == ("A", 2003 if more else None)
        table = Columns([path], {**wanted, "id": "id"}, [])
        (record,) = table.read(Rejects())
        assert (record.fields["title"], record.fields["id"]) == ("A", "1")
        assert record.fields.get("year") == (2003 if more else None)


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


def test_columns_of_ieee_lens_and_covidence_are_known(tmp_path: Path) -> None:
    text = '"Document Title",Author/s,"Published Year",Abstract\nA,"Lee, Ann; Roe, J",2020,Of it\n'
    (paper,) = read(written(tmp_path, "a.csv", text))
    assert (paper.title, paper.authors, paper.year) == ("A", ["Lee, Ann", "Roe, J"], 2020)


def test_columns_of_springerlink_are_known(tmp_path: Path) -> None:
    """NLeSC/litstudy#55 has their names."""
    text = "Item Title,Publication Title,Item DOI,Authors,Publication Year\nA,J,10.1007/a,X,2020\n"
    (paper,) = read(written(tmp_path, "a.csv", text))
    assert (paper.title, paper.venue, paper.year) == ("A", "J", 2020)
    assert paper.id == paper.doi == "10.1007/a"


@pytest.mark.parametrize(
    "names",
    [
        ["Ana Núñez"],
        ["Ana Núñez", "Bo Li", "Jürgen van Damme", "X. (Lu) Zhang", "Álvaro Öz"],
        ["Yann LeCun", "Ann McDonald", "Bo MacKay Smith", "Ed DeVito", "J. FitzGerald"],
        ["Thi Le", "Ann Lee", "Jo Van", "La Na", "DeAnn Smith"],
        ["LaToya Jones", "Bo Li", "McKenzie Roe", "LaToya Jones", "Mac Ford"],
    ],
)
def test_authors_of_springerlink_run_together(tmp_path: Path, names: list[str]) -> None:
    """So they are in its files, one of which is in r0light/cna-quality-model."""
    text = f"Item Title,Item DOI,Authors\nA,10.1007/a,{''.join(names)}\n"
    (paper,) = read(written(tmp_path, "a.csv", text))
    assert paper.authors == names


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "id,title,Kurz\n1,A,Of it\n"),
        ("a.jsonl", '{"id": 1, "title": "A", "Kurz": "B"}\n'),
    ],
)
def test_papers_whose_abstracts_nothing_reads_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: str
) -> None:
    path = written(tmp_path, name, content)
    assert read(path)[0].abstract == ""
    (message,) = caplog.messages
    assert message.endswith(
        f"{name}: papers have no abstract, as no column is called so; if one "
        "holds it, give abstract=NAME (Kurz)"
    )
    for columns in ({"abstract": "Kurz"}, {"abstract": None}):
        read(path, columns=columns)
    assert len(caplog.messages) == 1


def test_a_named_column_that_a_table_lacks_is_refused_before_its_papers(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "key,title,abstract\n1,A,B\n")
    papers = read_papers(path, columns={"id": "Key"})
    with pytest.raises(DataError, match="no record has the column 'Key'; there are key, title"):
        next(iter(papers))


def test_a_table_without_titles_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path, "a.csv", "id,Titel,Abstract\n1,A,Of it\n")
    (paper,) = read(path)
    assert (paper.title, paper.abstract) == ("", "Of it")
    (message,) = caplog.messages
    assert "a.csv: papers have no title" in message
    assert message.endswith("give title=NAME (Titel)")
    for columns in ({"title": "Titel"}, {"title": None}):
        (paper,) = read(path, columns=columns)
    assert len(caplog.messages) == 1


def test_a_title_without_visible_characters_is_none(tmp_path: Path) -> None:
    """Such a paper was encoded as if it had a text."""
    path = written(tmp_path, "a.csv", "id,title,abstract\n1,\u200b \ufeff,Of it\n")
    (paper,) = read(path)
    assert (paper.title, paper.abstract) == ("", "Of it")
    path = written(tmp_path, "b.csv", "id,title,abstract\n1,\u200b,\xad\n")
    with pytest.raises(DataError, match=r"b.csv:2: title and abstract are both empty"):
        read(path)


def test_scopus_and_pubmed_say_what_they_do_not_have(tmp_path: Path) -> None:
    text = "EID,Title,Abstract\n1,A,[No abstract available]\n2,B,[No abstract available] here\n"
    scopus = read(written(tmp_path, "scopus.csv", text))
    assert [paper.abstract for paper in scopus] == ["", "[No abstract available] here"]
    title = "<ArticleTitle>[Not Available].</ArticleTitle><VernacularTitle>Das</VernacularTitle>"
    article = f"<MedlineCitation><PMID>1</PMID><Article>{title}</Article></MedlineCitation>"
    xml = f"<PubmedArticleSet><PubmedArticle>{article}</PubmedArticle></PubmedArticleSet>"
    assert [paper.title for paper in read(written(tmp_path, "a.xml", xml))] == ["Das"]


def test_authors_of_pubmeds_tables_are_several(tmp_path: Path) -> None:
    text = 'PMID,Title,Authors,Journal/Book\n1,A,"Doe J, van Roe K.",Nature\n2,B,,Nature\n'
    papers = read(written(tmp_path, "pubmed.csv", text))
    assert [paper.authors for paper in papers] == [["Doe J", "van Roe K"], []]


@pytest.mark.parametrize(
    ("columns", "cell", "authors"),
    [
        ("authors", "Doe, Jane; Bo Li", ["Doe, Jane", "Bo Li"]),
        ("authors", "ada, bob", ["ada, bob"]),  # of two authors
        (
            "item type,author",
            "book,Doe, Jane; van Roe, Karl, Jr.",
            ["Jane Doe", "Karl van Roe Jr."],
        ),
        ("item type,author", "book,García Pérez, Ana María", ["Ana María García Pérez"]),
        ("authors,author full names", "Doe J.,Doe, Jane (57200001122)", ["Jane Doe"]),
    ],
)
def test_authors_in_one_text_of_known_exporters_have_their_given_names_first(
    tmp_path: Path, columns: str, cell: str, authors: list[str]
) -> None:
    first, _, last = ("", "", cell) if "," not in columns else cell.partition(",")
    text = f'title,{columns}\nA,{first}{"," * bool(first)}"{last}"\n'
    (paper,) = read(written(tmp_path, "a.csv", text))
    assert paper.authors == authors


def test_rows_may_end_with_a_tab_and_lines_in_carriage_returns(tmp_path: Path) -> None:
    """Excel for the old Mac also writes line feeds, within values."""
    text = 'id,title,abstract\r1,A,"Of\nit",\r2,B,,\r'
    papers = read(written(tmp_path, "a.tsv", text.replace(",", "\t")))
    assert [(paper.id, paper.abstract, paper.location.line) for paper in papers] == [
        ("1", "Of it", 2),
        ("2", "", 4),
    ]


def test_a_comma_at_the_end_of_a_row_hides_no_comma_of_a_title(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "id,title,abstract\n1,Cats, dogs,\n")
    with pytest.raises(DataError, match=r"a\.csv:2: wrong number of values"):
        read(path)


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_whole_numbers_of_a_frame_with_gaps_are_ids_and_years(tmp_path: Path, ending: str) -> None:
    """Where one is missing, pandas holds all as floats: 7.0 and 2012.0."""
    frame = pd.DataFrame({"id": [7.0, 8.0, 9.0], "title": ["A", "B", "C"]})
    frame["year"] = [2012, None, 1999]
    assert frame["year"].dtype == "float64"
    file = tmp_path / f"papers.{ending}"
    if ending == "parquet":
        frame.to_parquet(file)
    else:
        frame.to_json(file, orient="records", lines=True)
    found = [(paper.id, paper.year) for paper in read_papers([file])]
    assert found == [("7", 2012), ("8", None), ("9", 1999)]


@pytest.mark.parametrize("header", ["id\ttitle", "id\ttitle\tyear, if known", "id\ttitle, short"])
def test_a_table_whose_name_tells_nothing_is_split_at_its_tabs(tmp_path: Path, header: str) -> None:
    """Not at a comma within a heading, of which there may be as many."""
    file = tmp_path / "papers.dat"
    row = "\t".join(["1", "A, B", "2000"][: header.count("\t") + 1])
    file.write_text(f"{header}\n{row}\n", encoding="utf-8")
    (paper,) = read_papers([file], columns={"title": header.split("\t")[1]})
    assert (paper.id, paper.title) == ("1", "A, B")
