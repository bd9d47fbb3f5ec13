"""User tables with a column mapping, and every kind of file."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scimult.data.importers import read_papers
from scimult.data.records import Rejects
from scimult.data.rows import read_rows
from scimult.data.text_store import TextStore
from scimult.errors import ConfigError, DataError
from tests.public import Content, run, table, write_files

COLUMNS = {"id": "PMID", "title": "Title", "abstract": "Abstract", "labels": "Terms"}
CSV = """\
PMID,Title,Abstract,authors,year,Terms
1,"On mice, and
men",Text.,Ann; Bo,2001,cell;mouse
2,Gene,,,,cell
"""
FILES: dict[str, Content] = {
    "library.csv": CSV,
    "edges.tsv": table(("from", "cited"), (1, 2)),
    "log.parquet": [
        {"query-id": "q", "doc": "1", "score": 2.0},
        {"query-id": "q", "doc": "2", "score": 0.0},
        {"query-id": "r", "doc": "2", "score": 0.0},
    ],
    "questions.jsonl": [{"id": "q", "text": "of mice"}, {"id": "r", "text": "of genes"}],
}
OPTIONS: dict[str, Any] = {
    "name": "library",
    "papers": {"file": "library.csv", "columns": COLUMNS},
    "citations": {"file": "edges.tsv", "columns": {"citing": "from"}},
    "queries": {"file": "questions.jsonl"},
    "judgments": {"file": "log.parquet", "columns": {"paper-id": "doc"}},
}


@pytest.mark.long
def test_a_library_in_four_kinds_of_files(tmp_path: Path) -> None:
    found = run(tmp_path, "table", FILES, **OPTIONS)
    assert found.rows("library", "papers") == [
        {
            "id": "1",
            "title": "On mice, and men",
            "abstract": "Text.",
            "authors": ["Ann", "Bo"],
            "year": 2001,
            "labels": ["cell", "mouse"],
        },
        {"id": "2", "title": "Gene", "abstract": "", "labels": ["cell"]},
    ]
    assert [row["name"] for row in found.rows("library", "labels")] == ["cell", "mouse"]
    assert found.pairs("library", "citations") == [("1", "2")]
    assert found.pairs("library", "judgments") == [("q", "1", "2"), ("q", "2", "0")]
    data = found.prepare(tmp_path / "out")
    pairs = {file.task: len(file.positives.values) for file in data.pairs("train")}
    assert pairs == {"classification": 3, "link_prediction": 1, "search": 1}


LONG = """\
id,title,abstract,labels,authors,year
1,Enzymes,Text.,Biology,Ann,2001
2,Acids,Text.,Chemistry,Bo,2002
1,Enzymes,Text.,Chemistry,Cy,2001
3,Stars,Text.,Physics,Bo,2003
"""


def test_no_label_of_a_repeated_paper_becomes_its_negative(tmp_path: Path) -> None:
    edges = table(("citing", "cited"), (1, 2), (1, 3))
    options = {"papers": {"file": "long.csv"}, "references": {"file": "edges.tsv"}}
    found = run(tmp_path, "table", {"long.csv": LONG, "edges.tsv": edges}, **options)
    paper = found.rows("table", "papers")[0]
    assert (paper["labels"], paper["authors"]) == (["Biology", "Chemistry"], ["Ann", "Cy"])
    counts = found.counts("table")
    assert counts["labels added by repeated papers"] == 1
    assert counts["authors added by repeated papers"] == 1
    (file,) = found.prepare(tmp_path / "out").pairs("train")
    (place,) = (file.queries == file.queries.min()).nonzero()[0]
    ids = TextStore.open(tmp_path / "out").ids
    positives, negatives = (
        {ids[row] for row in rows[place]} for rows in (file.positives, file.negatives)
    )
    # Paper 1 cites papers of chemistry and physics, and is of chemistry itself.
    assert ids[int(file.queries[place])] == "table:1"
    assert positives == {"table/label:Biology", "table/label:Chemistry"}
    assert negatives == {"table/label:Physics"}


MISNAMED: list[tuple[dict[str, Any], str, str]] = [
    (
        {"papers": {"file": "x.jsonl"}},
        "no row has the column 'abstract'; columns not read: keywords, text",
        "papers.columns.abstract=null",
    ),
    (
        {"papers": {"file": "x.csv"}},
        "no row has the column 'abstract'; columns not read: keywords, text",
        "papers.columns.abstract=...",
    ),
    (
        {
            "papers": {"file": "x.csv", "columns": {"abstract": "text"}},
            "links": {"file": "links.tsv"},
        },
        "no row has the column 'score'; columns not read: relevance",
        "links.columns.score=null",
    ),
    (
        {
            "papers": {"file": "x.csv", "columns": {"abstract": "text"}},
            "labels": {"file": "labels.csv"},
        },
        "no row has the column 'definition'; columns not read: scope",
        "labels.columns.definition=null",
    ),
]
MISNAMED_FILES: dict[str, Content] = {
    "x.jsonl": [
        {"id": "1", "title": "A", "text": "Words.", "keywords": "x"},
        {"id": "2", "title": "B", "text": "Words."},
    ],
    "x.csv": "id,title,text,keywords\n1,A,Words.,x\n2,B,Words.,y\n",
    "links.tsv": table(("query-id", "paper-id", "relevance"), (1, 2, 0)),
    "labels.csv": "id,name,scope\nx,X,About x.\n",
}


@pytest.mark.parametrize(("options", "problem", "fix"), MISNAMED)
def test_a_telling_column_that_no_row_has_must_be_confirmed_absent(
    tmp_path: Path, options: dict[str, Any], problem: str, fix: str
) -> None:
    with pytest.raises(DataError) as caught:
        run(tmp_path, "table", MISNAMED_FILES, **options)
    assert problem in str(caught.value)
    assert fix in str(caught.value).partition("Fix: ")[2]


def test_columns_that_are_not_read_are_named_and_any_can_be_left_out(tmp_path: Path) -> None:
    columns = {"abstract": None, "labels": None, "venue": "text"}
    files = {"x.csv": "id,title,text,labels\n1,A,V,x\n2,B,,y\n"}
    found = run(tmp_path, "table", files, papers={"file": "x.csv", "columns": columns})
    assert found.rows("table", "papers") == [
        {"id": "1", "title": "A", "abstract": "", "venue": "V"},
        {"id": "2", "title": "B", "abstract": ""},
    ]
    assert found.conversion.notes == [
        "table: x.csv: columns not read: labels",
        "table: every abstract is empty: models see only titles",
    ]


def test_a_column_is_unread_only_if_no_table_of_its_file_reads_it(tmp_path: Path) -> None:
    rows = ",id,title,abstract,cites,isbn\n0,1,A,T.,2|3,9\n1,2,B,T.,,9\n2,3,C,T.,1,9\n"
    files: dict[str, Content] = {"x.csv": rows}  # with an index, as pandas writes it
    edges = {"citing": "id", "cited": "unnest(string_split(nullif(CITES, ''), '|'))"}
    options = {"papers": {"file": "x.csv"}, "citations": {"file": "*.csv", "columns": edges}}
    found = run(tmp_path, "table", files, **options)
    assert found.pairs("table", "citations") == [("1", "2"), ("1", "3"), ("3", "1")]
    assert found.conversion.notes == [
        "table: x.csv: columns not read: isbn",
        "table: *.csv: columns not read: isbn",
    ]
    # A column that another table reads is no candidate for the abstract.
    files["x.csv"] = "id,title,cites\n1,A,2\n2,B,1\n"
    found = run(tmp_path, "table", files, **options)
    assert found.conversion.notes == ["table: every abstract is empty: models see only titles"]


def test_what_a_format_reads_of_a_shared_file_is_not_called_unread(tmp_path: Path) -> None:
    works = [{"id": f"W{i}", "title": "A", "abstract": "T.", "edges": ["W1"]} for i in range(3)]
    edges = {"citing": "id", "cited": "unnest(edges)"}
    citations = {"file": "w.jsonl", "columns": edges}
    papers = {"file": "w.jsonl", "format": "openalex"}
    found = run(tmp_path, "table", {"w.jsonl": works}, papers=papers, citations=citations)
    assert found.conversion.notes == []


def test_own_tables_are_read_as_libraries_are(tmp_path: Path) -> None:
    rows = [
        {
            "id": 1,
            "title": "H<sub>2</sub>O",
            "abstract": "Two\nlines &amp; more.",
            "authors": [{"name": "Ann"}, {"given": "Bo", "family": "Li"}, None],
            "labels": ["x", None],
        },
        {"id": 1, "title": "", "labels": ["y"]},
    ]
    found = run(tmp_path, "table", {"x.jsonl": rows}, papers={"file": "x.jsonl"})
    (paper,) = found.rows("table", "papers")
    assert (paper["title"], paper["abstract"]) == ("H2O", "Two lines & more.")
    assert (paper["authors"], paper["labels"]) == (["Ann", "Bo Li"], ["x", "y"])
    (same,) = read_papers([tmp_path / "download" / "x.jsonl"], rejects=Rejects(skip_bad=True))
    assert (same.title, same.abstract, same.authors) == (
        paper["title"],
        paper["abstract"],
        paper["authors"],
    )


def test_titles_alone_need_no_word_and_dois_arrive(tmp_path: Path) -> None:
    titles = run(tmp_path, "table", {"x.csv": "id,title\n1,A\n"}, papers={"file": "x.csv"})
    assert titles.counts("table") == {"papers": 1, "papers with empty abstract": 1}
    rows = "id,title,abstract,DOI,labels\n1,A,Words.,10.1/x,y\n2,B,Words.,,y\n3,A,Words.,10.1/X,y\n"
    papers = {"file": "x.csv", "columns": {"doi": "DOI"}}
    found = run(tmp_path, "table", {"x.csv": rows}, papers=papers)
    assert [row.get("doi") for row in found.rows("table", "papers")] == ["10.1/x", None, "10.1/x"]
    hygiene = {"duplicates": "merge", "keys": ["doi"]}
    data = found.prepare(tmp_path / "out", hygiene=hygiene)
    assert data.manifest.hygiene.duplicates["duplicates by doi"] == 1
    assert "table:3" not in data.texts.ids


@pytest.mark.long
def test_a_library_keeps_all_pairs_of_a_label_unless_told(tmp_path: Path) -> None:
    rows = "".join(f"{i},Paper {i},Words.,one\n" for i in range(130))
    files = {"x.csv": f"id,title,abstract,labels\n{rows}"}
    found = run(tmp_path, "table", files, papers={"file": "x.csv"})
    (file,) = found.prepare(tmp_path / "all").pairs("train")
    assert len(file.positives.values) == 130
    found = run(tmp_path, "table", files, papers={"file": "x.csv"}, max_pairs_per_label=7)
    (file,) = found.prepare(tmp_path / "capped").pairs("train")
    assert len(file.positives.values) == 7
    with pytest.raises(ConfigError, match="has no effect: every source with labels sets its own"):
        found.prepare(tmp_path / "both", max_pairs_per_label=3)


def test_citations_that_leave_the_set_are_counted_on_request(tmp_path: Path) -> None:
    papers = {"file": "p.csv"}
    files = {
        "p.csv": "id,title,abstract\n1,A,T.\n2,B,T.\n",
        "c.csv": "citing,cited\n1,2\n1,77\n88,2\n99,77\n,2\n",
    }
    options = {"papers": papers, "citations": {"file": "c.csv"}}
    files["c.csv"] = files["c.csv"].removesuffix(",2\n")
    with pytest.raises(DataError) as caught:
        run(tmp_path, "table", files, **options)
    message = str(caught.value)
    assert "c.csv:3: citations that name a paper or query without a text: 3 of 4" in message
    assert message.count("Fix: ") == 1
    assert "dangling.citations=drop" in message
    found = run(tmp_path, "table", files, **options, dangling={"citations": "drop"})
    assert found.pairs("table", "citations") == [("1", "2")]
    assert found.counts("table")["citations without a text"] == 3
    assert not (found.folder / "rejects.jsonl").exists()
    # A defective row is still an error.
    files["c.csv"] += ",2\n"
    with pytest.raises(DataError, match="field 'citing' is empty"):
        run(tmp_path, "table", files, **options, dangling={"citations": "drop"})


def test_a_rejected_paper_leaves_no_label(tmp_path: Path) -> None:
    rows = "id,title,abstract,labels,year\n1,A,B,kept,2001\n2,,,lost,2001\n3,A,B,gone,soon\n"
    papers = {"file": "papers.csv"}
    found = run(tmp_path, "table", {"papers.csv": rows}, papers=papers, skip_bad=True)
    assert [label["id"] for label in found.rows("table", "labels")] == ["kept"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"papers": {"file": "no.csv"}}, "file does not exist"),
        ({"papers": {"file": "library.csv"}}, "file lacks the column id, title"),
        (
            {"papers": {"file": "library.csv"}},
            "columns of the file, papers.columns.id=... papers.columns.title=..., or start the",
        ),
        (
            {"papers": {"file": "library.csv", "columns": COLUMNS | {"venue": "Journal"}}},
            "file lacks the column Journal",
        ),
        ({"citations": {"file": "edges.tsv"}}, "file lacks the column citing"),
        ({"queries": {"file": "library.docx"}}, "unknown file type"),
        (
            {"queries": {"file": "questions.jsonl", "columns": {"text": "txet"}}},
            "missing field 'txet'",
        ),
        (
            {"papers": {"file": "capitals.jsonl"}},
            "name the field that holds it, papers.columns.id=... (did you mean 'Id'?), or leave",
        ),
        (
            {"papers": {"file": "questions.jsonl", "columns": {"title": "text", "year": "yaer"}}},
            "no row has the column 'yaer'. Fix: correct papers.columns.year",
        ),
    ],
)
def test_bad_tables(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    capitals = [{"Id": "1", "title": "A", "abstract": "B"}]
    files = FILES | {"library.docx": "x", "capitals.jsonl": capitals}
    with pytest.raises(DataError) as caught:
        run(tmp_path, "table", files, **(OPTIONS | changes))
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"judgments": None}, "queries and judgments need each other"),
        ({"links": {"file": "links.tsv"}}, "train the same task; convert them under two names"),
        ({"papers": {"file": "x", "columns": {"titel": "T"}}}, "titel: unknown column (did you"),
        ({"paper": {"file": "x.csv"}}, "did you mean 'papers'"),
        ({"papers": {"file": "x.csv", "columns": {"title": None}}}, "title is null, but papers"),
        ({"dangling": {"citation": "drop"}}, "dangling.citation"),
    ],
)
def test_contradictions_fail_before_anything_is_read(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        run(tmp_path, "table", {}, **(OPTIONS | changes))
    assert problem in str(caught.value)


ROWS = [{"id": "1", "note": "a, b"}, {"id": "2", "note": 'say "x"'}]
KINDS: dict[str, Content] = {
    "rows.jsonl": ROWS,
    "rows.ndjson": ROWS,
    "rows.json": ROWS,
    "rows.csv": '\ufeffid,note\r\n1,"a, b"\r\n\r\n2,"say ""x"""\r\n',
    "rows.tsv": 'id\tnote\n1\ta, b\n2\t"say ""x"""\n',
    "rows.parquet": ROWS,
    "ROWS.TXT": 'id\tnote\n1\ta, b\n2\tsay "x"\n',
}


@pytest.mark.parametrize("name", list(KINDS))
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    write_files(tmp_path, {name: KINDS[name]})
    assert [record.fields for record in read_rows(tmp_path / name, Rejects())] == ROWS


@pytest.mark.parametrize("name", [name for name in KINDS if name != "rows.parquet"])
def test_gzip_is_read_as_what_it_holds(tmp_path: Path, name: str) -> None:
    write_files(tmp_path, {name: KINDS[name]})
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    assert [record.fields for record in read_rows(packed, Rejects())] == ROWS


# Carriage returns are normalised with line ends; NUL is not text.
TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\x00"))


@given(st.lists(st.tuples(TEXTS, TEXTS)), st.sampled_from(["rows.csv", "rows.tsv", "rows.json"]))
def test_texts_survive_any_kind_of_file(
    tmp_path_factory: pytest.TempPathFactory, texts: list[tuple[str, str]], name: str
) -> None:
    path = tmp_path_factory.mktemp("texts") / name
    rows = [{"id": str(i), "title": a, "abstract": b} for i, (a, b) in enumerate(texts)]
    if name == "rows.json":
        path.write_text(json.dumps(rows))
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            delimiter = "," if name == "rows.csv" else "\t"
            writer = csv.DictWriter(file, ["id", "title", "abstract"], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
    rejects = Rejects(skip_bad=True)
    assert [record.fields for record in read_rows(path, rejects)] == rows
    assert set(rejects.counts) <= {"file is empty"}


@pytest.mark.parametrize("name", list(KINDS))
def test_empty_files_are_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"")
    with pytest.raises(DataError) as caught:
        list(read_rows(path, Rejects()))
    assert str(path) in str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.json.gz", "rows.csv.gz"])
def test_what_can_be_read_before_a_cut_is_kept(tmp_path: Path, name: str) -> None:
    lines = [{"id": str(i), "note": f"{i * 7919 % 1000}" * 5} for i in range(30_000)]
    text = "id,note\n" + "".join(f"{row['id']},{row['note']}\n" for row in lines)
    write_files(tmp_path, {name: text if ".csv" in name else lines})
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    rejects = Rejects(skip_bad=True)
    read = [record.fields for record in read_rows(tmp_path / name, rejects)]
    assert 0 < len(read) < len(lines)
    assert read == lines[: len(read)]
    assert sum(rejects.counts.values()) == 1
    with pytest.raises(DataError, match="cut off or damaged"):
        list(read_rows(tmp_path / name, Rejects()))
