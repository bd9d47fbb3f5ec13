"""Records of public dumps that are odd."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scimult.errors import DataError
from tests.data.importers.written import lines, read, written

ODD: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("openalex", {"publication_year": 9999, "referenced_works": [None, "W2"]}, {"year": None}),
    ("s2ag", {"year": 0, "authors": [None, {"name": None}, {"name": "A"}]}, {"authors": ["A"]}),
    ("aminer", {"year": -1, "references": [1, None]}, {"year": None, "references": ["1"]}),
    ("crossref", {"title": [None, "T"], "issued": {"date-parts": [[9999]]}}, {"year": None}),
    ("arxiv", {"authors_parsed": [["B", "A"], []], "update_date": "1"}, {"authors": ["A B"]}),
    ("arxiv", {"authors_parsed": [["B", "A", "Jr", "MIT"]]}, {"authors": ["A B Jr"]}),
    ("crossref", {"keyword": "graphs, trees;nets"}, {"labels": ["graphs", "trees", "nets"]}),
    (
        "crossref",
        {"author": [{"family": "F", "given": "J", "dropping-particle": "de",
                     "non-dropping-particle": "La", "suffix": "Jr."}]},
        {"authors": ["J de La F Jr."]},
    ),
    *[
        (name, {field: "Ann Lee; Bo Li"}, {"authors": ["Ann Lee", "Bo Li"]})
        for name, field in (("s2ag", "authors"), ("aminer", "authors"), ("crossref", "author"))
    ],
    (
        "openalex",
        {"referenced_works": "https://openalex.org/W2;https://openalex.org/W3"},
        {"references": ["W2", "W3"]},
    ),
    ("arxiv", {"authors_parsed": '[["Lee", "Ann", ""]]'}, {"authors": []}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "odd", "expected"), ODD)
def test_odd_values_of_dumps_cost_no_paper(
    tmp_path: Path, name: str, odd: dict[str, Any], expected: dict[str, Any]
) -> None:
    file = written(tmp_path, "x.jsonl", lines({"id": "1", "title": "T"} | odd))
    (paper,) = read(file, format=name)
    assert {field: getattr(paper, field) for field in expected} == expected
    assert (paper.id, paper.title) == ("1", "T")


@pytest.mark.parametrize(
    ("title", "whole"),
    [
        (["Main"], "Main: What of it"),
        (["Main. What of It?"], "Main. What of It?"),
        ([], "What of it"),
    ],
)
def test_a_work_of_crossref_has_its_subtitle(tmp_path: Path, title: list[str], whole: str) -> None:
    work = {"DOI": "10.5555/a", "title": title, "subtitle": ["What of it"], "issued": {}}
    (paper,) = read(written(tmp_path, "a.jsonl", lines(work)))
    assert paper.title == whole


@pytest.mark.parametrize(
    ("given", "venue"),
    [("Graphs", "Graphs"), (["Graphs", "J. Graphs"], "Graphs"), ([], ""), (None, "")],
)
def test_a_venue_is_one_title_as_in_csl_or_the_first(
    tmp_path: Path, given: str | list[str] | None, venue: str
) -> None:
    work = {"DOI": "10.5555/a", "title": "A", "container-title": given, "issued": {}}
    (paper,) = read(written(tmp_path, "a.jsonl", lines(work)))
    assert (paper.title, paper.venue) == ("A", venue)


@pytest.mark.parametrize("parts", [[], [[]], [[None]]])
def test_a_work_of_crossref_without_a_date_has_no_year(tmp_path: Path, parts: list[Any]) -> None:
    work = {"DOI": "10.5555/a", "title": ["A"], "issued": {"date-parts": parts}}
    work["created"] = {"date-parts": [[2012, 3, 7]]}  # when its DOI was registered
    (paper,) = read(written(tmp_path, "a.jsonl", lines(work)))
    assert paper.year is None


@pytest.mark.parametrize(
    "issued", ["2001-05", "2001/2003", {"raw": "May 2001"}, {"literal": "2001"}]
)
def test_a_date_of_csl_may_be_a_text(tmp_path: Path, issued: Any) -> None:
    """CSL's schema prefers a text to "date-parts"."""
    (paper,) = read(written(tmp_path, "a.json", lines({"title": "A", "issued": issued})))
    assert paper.year == 2001


@pytest.mark.parametrize("blank", ["", " \n", "\u200b", None, float("nan")])
def test_a_blank_value_of_a_table_counts_as_none(tmp_path: Path, blank: object) -> None:
    row = {"id": blank, "key": "k", "title": blank, "display_name": "T", "abstract": blank}
    row |= {"summary": "S", "authors": blank, "author": "A", "year": blank, "date": "2020-05"}
    (paper,) = read(written(tmp_path, "a.jsonl", lines(row)))
    assert (paper.id, paper.title, paper.abstract) == ("k", "T", "S")
    assert (paper.authors, paper.year) == (["A"], 2020)


@pytest.mark.parametrize("blank", ["", " "])
def test_a_blank_abstract_does_not_hide_the_inverted_index(tmp_path: Path, blank: str) -> None:
    index = {"of": [1], "Layouts": [0], "graphs": [2]}
    work = {"id": "W1", "title": "T", "abstract": blank, "abstract_inverted_index": index}
    (paper,) = read(written(tmp_path, "a.jsonl", lines(work)))
    assert paper.abstract == "Layouts of graphs"


def test_nan_and_authors_without_a_name_cost_no_paper(tmp_path: Path) -> None:
    """As frames write a column in which everything is missing, and dumps an unknown author."""
    authors = [{"name": "A", "id": None}, {"name": None, "id": ""}, None]
    row = {"id": 1, "title": "T", "abstract": float("nan"), "authors": authors, "body": None}
    path = written(tmp_path, "a.jsonl", lines(row))
    for columns in ({}, {"abstract": "abstract", "venue": "abstract", "year": "abstract"}):
        (paper,) = read(path, columns=columns)
        assert (paper.abstract, paper.authors, paper.year) == ("", ["A"], None)


@pytest.mark.parametrize(
    "author", [{"first": [[]], "last": "Y"}, {"family": "Y", "suffix": 3}, {"middle": [1]}]
)
def test_a_name_of_other_parts_than_texts_is_named(tmp_path: Path, author: Any) -> None:
    row = {"id": 1, "title": "T", "authors": [{"name": "A"}, author]}
    path = written(tmp_path, "a.jsonl", lines(row))
    with pytest.raises(DataError, match=r"a\.jsonl:1: field 'authors' is not a list of strings"):
        read(path)


def test_columns_that_differ_in_case_alone_hide_nothing(tmp_path: Path) -> None:
    """As in two tables put together, such as one of Scopus and one of OpenAlex."""
    text = "id,Title,DOI,title,doi,abstract\n1,A,10.1/a,,,x\n2,,,B,10.1/b,y\n"
    papers = read(written(tmp_path, "a.csv", text))
    assert [(paper.title, paper.doi) for paper in papers] == [("A", "10.1/a"), ("B", "10.1/b")]


def test_fields_of_study_of_aminer_are_objects_or_names(tmp_path: Path) -> None:
    """Names in v13, whose keywords are other words."""
    first = {"id": "1", "title": "A", "n_citation": 0, "keywords": ["x"], "fos": ["Agronomy"]}
    other = {"id": "2", "title": "B", "fos": [{"name": "Moisture", "w": 0.4}], "keywords": ["x"]}
    none = {"id": "3", "title": "C", "fos": [], "keywords": ["x"]}
    papers = read(written(tmp_path, "a.json", lines(first, other, none)))
    assert [paper.labels for paper in papers] == [["Agronomy"], ["Moisture"], ["x"]]


@pytest.mark.parametrize("name", ["citedPaper", "citingPaper"])
def test_lists_of_references_and_citations_of_the_api_are_read(tmp_path: Path, name: str) -> None:
    inner = {"paperId": "p", "title": "T", "year": 2001, "authors": [{"name": "Ann Lee"}]}
    page = {"offset": 0, "next": 1, "data": [{"isInfluential": False, "contexts": [], name: inner}]}
    (paper,) = read(written(tmp_path, "a.json", json.dumps(page)))
    assert (paper.id, paper.title, paper.year, paper.authors) == ("p", "T", 2001, ["Ann Lee"])


@pytest.mark.parametrize(
    ("abstract", "plain"),
    [
        ("<jats:title>ABSTRACT</jats:title><jats:p>Of mice.</jats:p>", "Of mice."),
        (
            "<jats:sec>\n<jats:title>Summary:</jats:title><jats:p>of mice</jats:p></jats:sec>",
            "of mice",
        ),
        ("<p>Abstract</p>\n<p>Of mice.</p>", "Of mice."),
        ("<jats:p>Abstract Wiener spaces</jats:p>", "Abstract Wiener spaces"),
        ("<jats:p>We say:</jats:p><jats:p>Abstract</jats:p>", "We say: Abstract"),
        ("Summary Judgments of courts", "Summary Judgments of courts"),
    ],
)
def test_a_heading_is_no_part_of_an_abstract(tmp_path: Path, abstract: str, plain: str) -> None:
    work = {"DOI": "10.5555/a", "title": ["A"], "abstract": abstract, "issued": {}}
    (paper,) = read(written(tmp_path, "a.jsonl", lines(work)))
    assert paper.abstract == plain


def test_the_shape_is_known_though_the_first_record_does_not_tell_it(tmp_path: Path) -> None:
    """CSL JSON, whose first reference has no date and no journal."""
    report = {"id": "r", "type": "report", "title": "A", "keyword": "x, y"}
    article = {"id": "a", "type": "article", "title": "B", "issued": {"date-parts": [["2012"]]}}
    papers = read(written(tmp_path, "a.json", json.dumps([report, article])))
    assert [paper.year for paper in papers] == [None, 2012]
    assert papers[0].labels == ["x", "y"]
