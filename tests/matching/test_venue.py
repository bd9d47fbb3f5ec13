"""OpenReview's folder and tables: what is read, merged and refused."""

from __future__ import annotations

import csv
import gzip
import json
import unicodedata
from pathlib import Path

import pytest

from scimult.data.records import Rejects
from scimult.errors import DataError
from scimult.matching.openreview import read_openreview
from scimult.matching.venue import read_conflicts, read_tables
from tests.matching.made_up import note, write_venue
from tests.raw_corpus import write_jsonl


def test_a_folder_of_openreview(tmp_path: Path) -> None:
    venue = read_openreview(write_venue(tmp_path), Rejects())
    assert list(venue.submissions) == ["s1", "s2", "s3"]
    assert venue.authors == {"s1": ["~Bob_M1"]}
    assert venue.reviewers == {
        "~Ada_L1": ["x1", "a1"],
        "~Bob_M1": ["b1"],
        "~Cyd_N2": ["c1", "x1"],
        "~Idle_O1": [],
    }
    # Of two copies of a paper, the one with an abstract is kept.
    assert venue.publications["x1"].text.body == "We observe dwarf galaxies."
    a1 = venue.publications["a1"]
    assert (a1.text.title, a1.year, a1.venue) == ("Galaxies", 2020, "AAS 2020")


def test_dates_that_pandas_wrote_as_floats_have_years(tmp_path: Path) -> None:
    """A column with gaps is one of floats; its papers passed as those without a year."""
    folder = write_venue(tmp_path)
    dated = {**note("b1", "Old"), "pdate": None, "cdate": 1.3e12}
    (folder / "archives" / "~Bob_M1.jsonl").write_text(json.dumps(dated) + "\n")
    assert read_openreview(folder, Rejects()).publications["b1"].year == 2011


def test_only_a_field_of_a_value_is_unwrapped(tmp_path: Path) -> None:
    folder = write_venue(tmp_path)
    found = note("s9", "The value of a value", keywords={"values": ["graphs"]})
    (folder / "submissions.jsonl").write_text(json.dumps(found) + "\n")
    assert read_openreview(folder, Rejects()).submissions["s9"].title == "The value of a value"


def test_submissions_in_three_forms(tmp_path: Path) -> None:
    whole = read_openreview(write_venue(tmp_path / "lines"), Rejects()).submissions
    notes = [json.loads(line) for line in (tmp_path / "lines" / "submissions.jsonl").open()]
    for form in ("json", "folder"):
        folder = write_venue(tmp_path / form)
        (folder / "submissions.jsonl").unlink()
        if form == "json":
            # On several lines, as openreview-expertise writes it.
            text = json.dumps({found["id"]: found for found in notes}, indent=2)
            (folder / "submissions.json").write_text(text, encoding="utf-8")
        else:
            (folder / "submissions").mkdir()
            for found in notes:
                path = folder / "submissions" / f"{found['id']}.jsonl"
                path.write_text(json.dumps(found) + "\n", encoding="utf-8")
        assert read_openreview(folder, Rejects()).submissions == whole
    lines = json.dumps({"id": "s9", "title": "Not inside content"}) + "\n"
    (tmp_path / "lines" / "submissions.jsonl").write_text(lines)
    with pytest.raises(DataError, match="note has no content"):
        read_openreview(tmp_path / "lines", Rejects())


def test_authors_in_a_table_may_be_separated_by_commas(tmp_path: Path) -> None:
    rows = ['s1,Graphs,"ada, bob"', 's2,Trees,"Lovelace, Ada; bob"', "s3,Nets,eve"]
    (tmp_path / "papers.csv").write_text("\n".join(["id,title,authors", *rows]) + "\n")
    lines = [
        {"reviewer": name, "id": f"p{number}", "title": "Nodes"}
        for number, name in enumerate(["ada", "bob", "Lovelace, Ada"])
    ]
    write_jsonl(tmp_path / "publications.jsonl", lines)
    venue = read_tables(tmp_path / "papers.csv", tmp_path / "publications.jsonl", Rejects())
    assert venue.authors == {"s1": ["ada", "bob"], "s2": ["Lovelace, Ada", "bob"], "s3": ["eve"]}


def test_tables_of_any_format(tmp_path: Path) -> None:
    (tmp_path / "papers.csv").write_text("id,title,abstract\ns1,Graphs,Of nodes.\n")
    lines = [
        {"reviewer": "ada", "id": "p1", "title": "Nodes", "year": 2020, "venue": "ACL 2020"},
        {"reviewer": "bob", "id": "p1", "title": "Nodes", "abstract": "And edges."},
    ]
    write_jsonl(tmp_path / "publications.jsonl", lines)
    venue = read_tables(tmp_path / "papers.csv", tmp_path / "publications.jsonl", Rejects())
    assert venue.submissions["s1"].body == "Of nodes."
    assert venue.reviewers == {"ada": ["p1"], "bob": ["p1"]}
    assert venue.publications["p1"].text.body == "And edges."


@pytest.mark.parametrize(
    ("where", "line", "message"),
    [
        ("archives/~Bob_M1.jsonl", '{"id": "b2"}', "note has no content"),
        (
            "archives/~Bob_M1.jsonl",
            json.dumps(note("b2", " ")),
            "title and abstract are both empty",
        ),
        (
            "archives/~Bob_M1.jsonl",
            json.dumps({**note("b2", "In microseconds"), "pdate": 1_600_000_000_000_000_000}),
            "not a date",
        ),
        (
            "archives/~Bob_M1.jsonl",
            json.dumps({**note("b2", "Of no time"), "pdate": 1e20}),
            "not a date",
        ),
        ("submissions.jsonl", json.dumps(note("s1", "Again")), "duplicate submission"),
        (
            "submissions.jsonl",
            json.dumps(note("s9", "By one", authorids="~Ada_L1")),
            "field 'authorids' is not a list of strings",
        ),
        ("submissions.jsonl", json.dumps(note("", "No id")), "field 'id' is empty"),
    ],
)
def test_a_bad_note_has_its_place(tmp_path: Path, where: str, line: str, message: str) -> None:
    path = write_venue(tmp_path) / where
    known = path.read_text(encoding="utf-8")
    path.write_text(known + line + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=message) as refused:
        read_openreview(tmp_path, Rejects())
    assert (refused.value.path, refused.value.line) == (path, known.count("\n") + 1)
    rejects = Rejects(skip_bad=True)
    assert len(read_openreview(tmp_path, rejects).submissions) == 3
    assert sum(rejects.counts.values()) == 1


def test_authors_are_recognised_by_decomposed_and_spaced_names(tmp_path: Path) -> None:
    """File systems decompose accents, hands leave spaces, address books marks without width."""
    jose = "~Jos\u00e9_M1"
    folder = write_venue(tmp_path)
    line = json.dumps(note("j1", "Graphs")) + "\n"
    (folder / "archives" / f"{unicodedata.normalize('NFD', jose)}.jsonl").write_text(line)
    with (folder / "submissions.jsonl").open("a", encoding="utf-8") as file:
        people = [jose, "\u202a~Ada_L1\u202c "]
        file.write(json.dumps(note("s4", "More graphs", authorids=people)) + "\n")
    venue = read_openreview(folder, Rejects())
    assert venue.authors["s4"] == [jose, "~Ada_L1"]
    assert {jose, "~Ada_L1"} <= venue.reviewers.keys()
    path = tmp_path / "conflicts.csv"
    path.write_text(unicodedata.normalize("NFD", f"s1,{jose}\n"), encoding="utf-8")
    assert read_conflicts(path, venue, Rejects()) == {("s1", jose)}
    (folder / "archives" / f"{jose}.jsonl").write_text(line)
    with pytest.raises(DataError, match="second archive of a reviewer"):
        read_openreview(folder, Rejects())


def test_names_in_tables_are_compared_composed(tmp_path: Path) -> None:
    table = unicodedata.normalize("NFD", "id,title,authors\ns1,Graphs,Jos\u00e9  Mart\u00edn\n")
    (tmp_path / "papers.csv").write_text(table, encoding="utf-8")
    line = {"reviewer": "Jos\u00e9 Mart\u00edn", "id": "p1", "title": "Nodes"}
    (tmp_path / "written.jsonl").write_text(json.dumps(line) + "\n")
    venue = read_tables(tmp_path / "papers.csv", tmp_path / "written.jsonl", Rejects())
    assert venue.authors == {"s1": [line["reviewer"]]}
    assert venue.reviewers == {line["reviewer"]: ["p1"]}


def test_publications_numbered_anew_for_each_reviewer_are_refused(tmp_path: Path) -> None:
    (tmp_path / "papers.csv").write_text("id,title\ns1,Graphs\n")
    path = tmp_path / "written.csv"
    path.write_text(
        "reviewer,id,title\nada,1,Nodes: a study\nbob,1,NODES - A Study.\nbob,2,Edges\n"
    )
    read_tables(tmp_path / "papers.csv", path, Rejects())
    path.write_text("reviewer,id,title\nada,1,Nodes\nbob,2,Trees\nbob,1,Edges\n")
    with pytest.raises(DataError, match="two publications have the id '1'") as refused:
        read_tables(tmp_path / "papers.csv", path, Rejects())
    assert refused.value.line == 4
    archive = write_venue(tmp_path) / "archives" / "~Bob_M1.jsonl"
    archive.write_text(json.dumps(note("x1", "Another paper")) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="two publications have the id 'x1'"):
        read_openreview(tmp_path, Rejects())


def test_submissions_and_publications_numbered_apart_are_refused(tmp_path: Path) -> None:
    """The reviewer who wrote publication 1 would be taken for an author of submission 1."""
    (tmp_path / "papers.csv").write_text("id,title\n1,Graphs\n2,Edges\n")
    path = tmp_path / "written.csv"
    path.write_text("reviewer,id,title\nada,2,EDGES.\nbob,3,Nodes\n")
    read_tables(tmp_path / "papers.csv", path, Rejects())
    path.write_text("reviewer,id,title\nada,2,Edges\nbob,1,Nodes\n")
    with pytest.raises(DataError, match="a submission and a publication have the id '1'") as found:
        # Without the publication, a conflict of interest might be gone.
        read_tables(tmp_path / "papers.csv", path, Rejects(skip_bad=True))
    assert found.value.line == 3


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("written.jsonl", '{"id": "1", "title": "Edges", "author": "Ada"}\n'),
        ("written.bib", "@misc{1, title={Edges}, author={Ada}}"),
        ("written.csv", "id,title,author\n1,Edges,Ada\n"),
    ],
)
def test_publications_without_a_column_reviewer_are_told_so(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / "papers.csv").write_text("id,title\ns,Nodes\n")
    (tmp_path / name).write_text(text)
    told = rf"{name}: no record has the column 'reviewer'; there are .*title, .*Fix: add the column"
    with pytest.raises(DataError, match=told):
        read_tables(tmp_path / "papers.csv", tmp_path / name, Rejects())


@pytest.mark.parametrize("filled", [0, 1, 2, None])
def test_rows_without_a_reviewer_are_named(tmp_path: Path, filled: int | None) -> None:
    """As in a file where the others have one, or all are blank."""
    reviewers = ["ada" if number == filled else " " for number in range(3)]
    rows = [{"id": f"{n}", "title": f"T {n}", "reviewer": r} for n, r in enumerate(reviewers)]
    path = tmp_path / "written.jsonl"
    write_jsonl(path, rows)
    (tmp_path / "papers.csv").write_text("id,title\ns,Nodes\n")
    with pytest.raises(DataError, match="column 'reviewer' is empty") as found:
        read_tables(tmp_path / "papers.csv", path, Rejects())
    assert found.value.line == reviewers.index(" ") + 1
    rejects = Rejects(skip_bad=True)
    if filled is not None:
        venue = read_tables(tmp_path / "papers.csv", path, rejects)
        assert venue.reviewers == {"ada": [str(filled)]}
        assert sum(rejects.counts.values()) == 2


def test_an_empty_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "papers.csv").write_text("id,title\n")
    (tmp_path / "written.csv").write_text("reviewer,id,title\nada,1,Edges\n")
    with pytest.raises(DataError, match="no submission is left") as found:
        read_tables(tmp_path / "papers.csv", tmp_path / "written.csv", Rejects())
    assert found.value.path == tmp_path / "papers.csv"
    assert found.value.fix == "check that it is the right file"
    (tmp_path / "papers.csv").write_text("id,title\n1,\n")
    with pytest.raises(DataError, match="no submission is left") as found:
        read_tables(tmp_path / "papers.csv", tmp_path / "written.csv", Rejects(skip_bad=True))
    assert "without --skip-bad" in str(found.value.fix)


def test_folders_without_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no archives/\*.jsonl"):
        read_openreview(tmp_path, Rejects())
    (write_venue(tmp_path) / "submissions.jsonl").unlink()
    with pytest.raises(DataError, match="no submissions"):
        read_openreview(tmp_path, Rejects())


def test_conflicts_in_two_and_three_columns(tmp_path: Path) -> None:
    venue = read_openreview(write_venue(tmp_path), Rejects())
    path = tmp_path / "conflicts.csv"
    path.write_text("s1,~Ada_L1\ns2,~Cyd_N2\n")
    expected = {("s1", "~Ada_L1"), ("s2", "~Cyd_N2")}
    assert read_conflicts(path, venue, Rejects()) == expected
    path.write_text("s1,~Ada_L1,-1\ns2,~Cyd_N2,-1\ns3,~Ada_L1,0\n")
    assert read_conflicts(path, venue, Rejects()) == expected
    packed = path.with_name("conflicts.csv.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_conflicts(packed, venue, Rejects()) == expected


def test_conflicts_with_a_comma_in_a_name(tmp_path: Path) -> None:
    """The table as the csv module writes it, which quotes such names."""
    venue = read_openreview(write_venue(tmp_path), Rejects())
    venue.reviewers["Lovelace, Ada"] = []
    for more in ([], [-1]):
        with (tmp_path / "conflicts.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["s1", "Lovelace, Ada", *more]])
        found = read_conflicts(tmp_path / "conflicts.csv", venue, Rejects())
        assert found == {("s1", "Lovelace, Ada")}


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("s1,~Ada_L1\ns9,~Ada_L1\n", "unknown submission", 2),
        ("submission,reviewer\n", "unknown submission.*Fix: leave out a header", 1),
        ("s1,~Nobody1\n", "unknown reviewer", 1),
        ("s1,~Ada_L1,1\n", "neither -1 nor 0", 1),
        ("s1\n", "conflict table has 1 columns", 1),
        ("s1,~Ada_L1\ns2,~Andr\xe9_L1\n", "not UTF-8", 2),
    ],
)
def test_bad_conflicts(tmp_path: Path, text: str, message: str, line: int) -> None:
    venue = read_openreview(write_venue(tmp_path), Rejects())
    path = tmp_path / "conflicts.csv"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=message) as refused:
        read_conflicts(path, venue, Rejects())
    assert refused.value.line == line


def test_a_reviewer_may_be_a_number_but_not_a_list(tmp_path: Path) -> None:
    (tmp_path / "papers.csv").write_text("id,title\ns1,Graphs\n")
    path = tmp_path / "written.jsonl"
    path.write_text(json.dumps({"id": "p1", "title": "Nodes", "reviewer": 0}) + "\n")
    venue = read_tables(tmp_path / "papers.csv", path, Rejects())
    assert venue.reviewers == {"0": ["p1"]}
    path.write_text(json.dumps({"id": "p1", "title": "Nodes", "reviewer": ["ada", "bob"]}) + "\n")
    with pytest.raises(DataError, match="not a reviewer's id.*a row for each"):
        read_tables(tmp_path / "papers.csv", path, Rejects())


def test_a_conflict_table_may_begin_with_an_empty_line(tmp_path: Path) -> None:
    venue = read_openreview(write_venue(tmp_path), Rejects())
    path = tmp_path / "conflicts.csv"
    path.write_text("\ns1,~Ada_L1\n")
    assert read_conflicts(path, venue, Rejects()) == {("s1", "~Ada_L1")}
    path.write_text("\n")
    with pytest.raises(DataError, match="conflict table is empty"):
        read_conflicts(path, venue, Rejects())


def test_reviewers_are_found_where_a_reader_puts_given_names_first(tmp_path: Path) -> None:
    """As in tables of Zotero, whose authors are family names first."""
    table = 'id,title,item type,authors\ns1,Graphs,book,"Lovelace, Ada; Doe, Bo"\n'
    (tmp_path / "papers.csv").write_text(table)
    path = tmp_path / "publications.jsonl"
    path.write_text(json.dumps({"reviewer": "Lovelace, Ada", "id": "p", "title": "Nodes"}) + "\n")
    venue = read_tables(tmp_path / "papers.csv", path, Rejects())
    assert venue.authors == {"s1": ["Lovelace, Ada", "Bo Doe"]}
