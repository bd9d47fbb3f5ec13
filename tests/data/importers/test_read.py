"""Paper files in every supported layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.dom import minidom

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scimult.preparation.dataset import build_dataset
from tests.data.importers import layouts
from tests.data.importers.written import lines, read, written
from tests.raw_corpus import CITATIONS, LABELS, PAPERS, raw_config, write_raw

# File name, content, and what its first paper is; the format is guessed.
WOS_FIRST = {
    "id": "10.1234/abc.1",
    "title": "Graphs of papers",
    "abstract": "We draw graphs.",
    "authors": ["Ana Núñez", "Bo Li", "The Group"],
    "venue": "JOURNAL OF GRAPHS",
    "year": 2012,
    "doi": "10.1234/abc.1",
    "references": ["10.1234/old", "10.1002/(sici)1<1::aid-x>3.0.co;2-z"],
    "labels": ["graphs", "citation analysis"],
}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "openalex": (
        "part_000.gz",
        lines(*layouts.OPENALEX),
        {
            "id": "W10",
            "title": "Graphs of papers & people",
            "abstract": "We draw graphs. We win.",
            "authors": ["Ana Núñez", "Bo Li"],
            "venue": "JMLR",
            "year": 2012,
            "doi": "10.1234/abc.1",
            "references": ["W11", "W99"],
            "labels": ["Citation Analysis"],
        },
    ),
    "openalex page": (
        "page.json",
        json.dumps({"meta": {"count": 2}, "results": layouts.OPENALEX, "group_by": []}),
        {"id": "W10", "references": ["W11", "W99"], "abstract": "We draw graphs. We win."},
    ),
    "openalex table": (
        "table.csv",
        layouts.OPENALEX_TABLE,
        {
            "id": "W10",
            "title": "Graphs of papers",
            "abstract": "We draw graphs.",
            "authors": ["Ana Núñez", "Bo Li"],
            "venue": "JMLR",
            "year": 2012,
            "doi": "10.1234/abc.1",
            "references": ["W11", "W99"],
            "labels": ["Citation Analysis", "Graphs, drawn"],
        },
    ),
    "s2orc": (
        "metadata_0.jsonl",
        lines(layouts.S2ORC),
        {
            "id": "77",
            "abstract": "AIM Text.",
            "authors": ["Ana B. Núñez"],
            "venue": "ACL",
            "references": ["78"],
            "labels": ["Computer Science"],
        },
    ),
    "s2 api": (
        "papers.json",
        json.dumps([layouts.S2_API]),
        {
            "id": "649def34f8be52c8b66281af98ae884c09aef38b",
            "venue": "Nature",
            "year": 2012,
            "doi": "10.1234/abc.1",
            "references": ["abc"],
            "labels": ["Biology"],
            "authors": ["Ana Núñez"],
        },
    ),
    "aminer v12": (
        "dblp.v12.json",
        layouts.AMINER_V12,
        {
            "id": "1091",
            "abstract": "A network A",
            "venue": "HCI",
            "references": ["2005687710", "2018037215"],
            "labels": ["Telecommunications"],
            "authors": ["Makoto Satoh"],
        },
    ),
    "aminer v13": (
        "dblpv13.json",
        layouts.AMINER_V13,
        {
            "id": "53e99784b7602d9701f3e3f5",
            "venue": "International Conference",
            "year": 2011,
            "references": ["53e99785"],
            "labels": ["buses", "serial"],
        },
    ),
    "aminer v10": (
        "dblp-ref-0.json",
        lines(layouts.AMINER_V10),
        {"id": "00127ee2", "authors": ["Ana Núñez", "Bo Li"], "references": ["01c54de7"]},
    ),
    "crossref": (
        "0.json.gz",
        json.dumps({"items": [layouts.CROSSREF]}),
        {
            "id": "10.1234/abc.1",
            "title": "Graphs of papers & people",
            "abstract": "We draw graphs.",
            "authors": ["Ana Núñez", "The Consortium"],
            "venue": "Journal of Graphs",
            "year": 2012,
            "references": ["10.5555/old"],
            "labels": ["Software"],
        },
    ),
    "crossref answer": (
        "works.json",
        json.dumps(
            {
                "status": "ok",
                "message-type": "work-list",
                "message": {"facets": {}, "total-results": 1, "items": [layouts.CROSSREF]},
            }
        ),
        {"id": "10.1234/abc.1", "year": 2012},
    ),
    "crossref work": (
        "work.json",
        json.dumps({"status": "ok", "message-type": "work", "message": layouts.CROSSREF}),
        {"id": "10.1234/abc.1", "authors": ["Ana Núñez", "The Consortium"]},
    ),
    "csl": (
        "zotero.json",
        json.dumps([layouts.CSL]),
        {"id": "nunez2012", "authors": ["Ana Núñez"], "year": 2012, "doi": "10.1234/abc.1"},
    ),
    "arxiv": (
        "arxiv-metadata-oai-snapshot.json",
        lines(layouts.ARXIV),
        {
            "id": "0704.0001",
            "title": "Calculation of prompt diphoton production",
            "abstract": "A fully differential calculation.",
            "authors": ["C. Balázs", "E. L. Berger"],
            "year": 2007,
            "labels": ["hep-ph", "cs.CL"],
        },
    ),
    "pubmed": (
        "pubmed25n0001.xml.gz",
        layouts.PUBMED,
        {
            "id": "12345",
            "title": "Effects of CO2 on mice.",
            "abstract": "BACKGROUND: Mice breathe. RESULTS: They do.",
            "authors": ["Ana Núñez", "The Group"],
            "venue": "The Lancet",
            "year": 1998,
            "doi": "10.1234/abc.1",
            "references": ["999"],
            "labels": ["Mice", "carbon dioxide"],
        },
    ),
    "nbib": (
        "pubmed-mice-set.txt",
        layouts.NBIB,
        {
            "id": "12345",
            "title": "Effects of CO2 on mice.",
            "abstract": "BACKGROUND: Mice breathe. RESULTS: They do.",
            "authors": ["Ana Núñez", "The Group"],
            "venue": "The Lancet",
            "year": 1998,
            "doi": "10.1234/abc.1",
            "labels": ["Mice", "carbon dioxide"],
        },
    ),
    "enw": (
        "scholar.enw",
        layouts.ENW,
        {
            "id": "10.1234/abc.1",
            "title": "Graphs of papers",
            "abstract": "We draw graphs, in two lines.",
            "authors": ["Ana Núñez", "Bo Li"],
            "venue": "Journal of Graphs",
            "year": 2012,
            "doi": "10.1234/abc.1",
            "labels": ["graphs", "Models, Theoretical"],
        },
    ),
    "wos": ("savedrecs.txt", layouts.WOS, WOS_FIRST),
    "wos table": ("savedrecs.txt", layouts.WOS_TABLE, WOS_FIRST),
    "bibtex": (
        "library.bib",
        layouts.BIBTEX,
        {
            "id": "nunez2012",
            "title": "Graphs of papers & écoles in $O(n^2)$",
            "abstract": "We draw graphs, in 50% of cases.",
            "authors": ["Ana Núñez", "Jane van der Berg", "World Health Organization"],
            "venue": "Journal of Graphs",
            "year": 2012,
            "doi": "10.1234/abc.1",
            "labels": ["graphs", "citation analysis"],
        },
    ),
    "ris": (
        "library.ris",
        layouts.RIS,
        {
            "id": "nunez2012",
            "title": "Graphs of papers",
            "abstract": "We draw graphs, in two lines.",
            "authors": ["Ana Núñez", "Bo Li"],
            "venue": "Journal of Graphs",
            "year": 2012,
            "doi": "10.1234/abc.1",
            "labels": ["graphs", "citation analysis"],
        },
    ),
    "zotero": (
        "library.csv",
        layouts.ZOTERO,
        {
            "id": "K1",
            "abstract": "We draw graphs.",
            "authors": ["Ana Núñez", "Bo Li"],
            "venue": "Journal of Graphs",
            "year": 2012,
            "labels": ["graphs", "citation analysis"],
        },
    ),
    "dimensions": (
        "Dimensions-Publication.csv",
        layouts.DIMENSIONS,
        {
            "id": "pub.1",
            "title": "Graphs of papers",
            "abstract": "We draw graphs.",
            "authors": ["Ana Núñez", "Bo Li"],
            "venue": "Graphs 2012",
            "year": 2012,
            "doi": "10.1234/abc.1",
        },
    ),
    "semicolons": (
        "table.csv",
        "ID;Title;Abstract\n1;A;B, c\n",
        {"id": "1", "title": "A", "abstract": "B, c"},
    ),
    "no name": ("papers", "id\ttitle\n1\tA\n", {"id": "1", "title": "A"}),
}


@pytest.mark.parametrize("case", CASES)
def test_layout_is_guessed_and_read(tmp_path: Path, case: str) -> None:
    name, content, expected = CASES[case]
    papers = read(written(tmp_path, name, content))
    first = papers[0]
    assert {field: getattr(first, field) for field in expected} == expected
    assert first.location.file.name == name
    lines_before = {"bibtex": 3, "zotero": 1, "dimensions": 2, "nbib": 1, "wos": 2, "wos table": 1}
    assert first.location.line == 1 + lines_before.get(case, int(name in _HEADED))


def test_maps_of_arrow_are_inverted_indexes(tmp_path: Path) -> None:
    kind = pa.map_(pa.string(), pa.list_(pa.int32()))
    index = pa.array([[("of", [1]), ("Maps", [0, 2])]], kind)
    work = {"id": ["https://openalex.org/W1"], "title": ["T"], "abstract_inverted_index": index}
    pq.write_table(pa.table(work), tmp_path / "works.parquet")
    (paper,) = read(tmp_path / "works.parquet")
    assert (paper.id, paper.abstract) == ("W1", "Maps of Maps")


_HEADED = ("table.csv", "papers")


@pytest.mark.parametrize(
    ("case", "count", "last"),
    [
        ("openalex", 2, {"id": "W11", "venue": "", "references": [], "doi": ""}),
        ("aminer v12", 2, {"id": "1388", "abstract": "", "venue": ""}),
        ("aminer v13", 2, {"id": "53e99785", "year": 2010}),
        ("pubmed", 2, {"id": "12346", "title": "Second.", "year": None}),
        ("bibtex", 2, {"id": "li2021", "year": 2021, "venue": "Proceedings", "authors": []}),
        ("ris", 2, {"title": "Only a title", "year": 2021, "id_from": "text"}),
        ("nbib", 2, {"id": "12346", "title": "Second.", "year": None}),
        ("enw", 2, {"venue": "Proceedings", "labels": ["graphs", "citation analysis"]}),
        ("wos", 3, {"id": "WOS:000000000000003", "authors": ["[Anonymous]"], "doi": ""}),
        ("wos table", 3, {"id": "WOS:000000000000003", "authors": ["[Anonymous]"]}),
    ],
)
def test_the_bare_paper_of_each_layout(
    tmp_path: Path, case: str, count: int, last: dict[str, Any]
) -> None:
    papers = read(written(tmp_path, *CASES[case][:2]))
    assert len(papers) == count
    assert {field: getattr(papers[-1], field) for field in last} == last


@pytest.mark.parametrize(
    "named",
    ["openalex", "s2ag", "aminer", "crossref", "pubmed", "bibtex", "ris", "nbib", "enw", "wos"],
)
def test_a_named_format_reads_as_the_guessed_one(tmp_path: Path, named: str) -> None:
    case = {"s2ag": "s2orc", "aminer": "aminer v12"}.get(named, named)
    path = written(tmp_path, *CASES[case][:2])
    assert read(path, format=named) == read(path)


def test_bibliographies_as_they_are(tmp_path: Path) -> None:
    text = '@misc{k, title={A}, year={forthcoming}, author={M{\\"{u}}ller, J and others}}\n'
    (paper,) = read(written(tmp_path, "a.bib", text))
    assert (paper.year, paper.authors) == (None, ["J Müller"])
    row = {"id": 1, "title": "A", "authors": [{"name": "X"}, {"first": "B", "last": "Y"}, "Z"]}
    (paper,) = read(written(tmp_path, "a.jsonl", lines(row)))
    assert paper.authors == ["X", "B Y", "Z"]


def test_a_percent_sign_ends_no_text_of_bibtex(tmp_path: Path) -> None:
    text = "@misc{k, title={5% of $n$ or 6\\% more}, abstract={One~in 10% of\nall.}}\n"
    (paper,) = read(written(tmp_path, "a.bib", text))
    assert (paper.title, paper.abstract) == ("5% of $n$ or 6% more", "One in 10% of all.")


def test_ids_come_from_a_doi_or_the_text_where_there_is_none(tmp_path: Path) -> None:
    rows = [{"title": "A", "doi": "doi:10.1234/ABC."}, {"title": "A"}, {"title": "B"}]
    first, second, third = read(written(tmp_path, "a.jsonl", lines(*rows)))
    assert (first.id, first.id_from) == ("10.1234/abc", "doi")
    assert second.id_from == third.id_from == "text"
    assert second.id != third.id
    assert second.id == read(written(tmp_path, "b.jsonl", lines(rows[1])))[0].id


def test_values_equal_those_of_other_readers(tmp_path: Path) -> None:
    works = written(tmp_path, "w.jsonl", lines(*layouts.OPENALEX))
    sql = (
        "SELECT title, list_transform(authorships, lambda a: a.author.display_name),"
        f" primary_location.source.display_name FROM '{works}'"
    )
    engine = duckdb.sql(sql).fetchall()
    papers = read(works)
    assert [paper.authors for paper in papers] == [names for _, names, _ in engine]
    assert [paper.venue or None for paper in papers] == [venue for *_, venue in engine]
    table = written(tmp_path, "z.csv", layouts.ZOTERO)
    frame = pd.read_csv(table)
    assert [paper.title for paper in read(table)] == frame["Title"].tolist()
    xml = minidom.parseString(layouts.PUBMED)
    pmids = [node.firstChild.data for node in xml.getElementsByTagName("PMID")]  # type: ignore[union-attr]
    path = written(tmp_path, "p.xml", layouts.PUBMED)
    assert [paper.id for paper in read(path)] == pmids


@pytest.mark.long
def test_a_prepared_folder_gives_back_what_went_in(tmp_path: Path) -> None:
    out = tmp_path / "prepared"
    build_dataset(raw_config(write_raw(tmp_path / "raw")), out)
    papers = read(out)
    names = {label["id"]: label["name"] for label in LABELS}
    assert len(papers) == len(PAPERS)
    for paper, row in zip(papers, PAPERS, strict=True):
        assert paper.id.rpartition(":")[2] == row["id"]
        assert (paper.title, paper.abstract) == (row["title"], row["abstract"])
        assert (set(paper.authors), paper.venue) == (set(row["authors"]), row["venue"])
        assert paper.year == row["year"]
        assert set(paper.labels) == {names[label] for label in row["labels"]}
        cited = {cited for citing, cited in CITATIONS if citing == row["id"]}
        assert {name.rpartition(":")[2] for name in paper.references} == cited


@pytest.mark.long
@pytest.mark.data
def test_real_papers_are_those_that_pandas_reads(scimult_data: Path) -> None:
    for name in ("acl", "scitldr", "vis"):
        file = scimult_data / "train" / name / "papers.jsonl.gz"
        frame = pd.read_json(file, lines=True, dtype=False)
        papers = read(file)
        assert [paper.id for paper in papers] == frame["id"].astype(str).tolist()
        assert [paper.title for paper in papers] == frame["title"].tolist()
