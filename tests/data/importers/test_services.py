"""Answers of bibliographic services as they are saved: Zotero, Europe PMC, DBLP, arXiv's API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scimult.data.importers import guess_format, read_papers
from scimult.data.records import Rejects
from scimult.errors import DataError
from tests.data.importers.written import lines, read, written

GRAPHS = {
    "title": "Graphs of papers & people",
    "abstract": "We draw graphs. We win.",
    "authors": ["Ana Núñez", "The Group"],
    "venue": "Journal of Graphs",
    "year": 2012,
    "doi": "10.1234/abc.1",
    "labels": ["graphs", "citation analysis"],
}
ITEM: dict[str, Any] = {
    "key": "ABCD2345",
    "version": 7,
    "itemType": "journalArticle",
    "title": "Graphs of <i>papers</i> &amp; people",
    "creators": [
        {"creatorType": "editor", "firstName": "Ed", "lastName": "Itor"},
        {"creatorType": "author", "firstName": "Ana", "lastName": "Núñez"},
        {"creatorType": "author", "name": "The Group"},
    ],
    "abstractNote": "We draw graphs.\nWe win.",
    "publicationTitle": "Journal of Graphs",
    "date": "2012-05-01",
    "DOI": "10.1234/ABC.1",
    "extra": "",
    "tags": [{"tag": "graphs"}, {"tag": "citation analysis"}, {"tag": "Networks", "type": 1}],
    "relations": {},
}
TALK: dict[str, Any] = {
    "key": "EFGH2345",
    "itemType": "presentation",
    "title": "A talk",
    "creators": [{"creatorType": "presenter", "firstName": "", "lastName": "Li"}],
    "extra": "Citation Key: li\nDOI: 10.5555/talk.2",
    "tags": [{"tag": "Networks", "type": 1}],
}
PDF = {"key": "IJKL2345", "itemType": "attachment", "title": "Full Text PDF", "tags": []}


def _of_api(item: dict[str, Any]) -> dict[str, Any]:
    head = {"key": item["key"], "version": 7, "library": {"type": "user", "id": 1}}
    return {**head, "links": {}, "meta": {"parsedDate": "2012"}, "data": item}


BETTER_BIBTEX = {
    "config": {
        "label": "BetterBibTeX JSON",
        "preferences": {"postscript": 'if (a) { b = "}}"', "citekeyFormat": "auth"},
        "options": {"exportNotes": True},
    },
    "version": {"zotero": "7.0", "bbt": "7.0"},
    "collections": {"A": {"items": [], "name": "Empty"}, "B": {"items": [1, 2], "name": "Full"}},
    "items": [{**ITEM, "itemID": 1, "notes": [], "attachments": [{"title": "PDF"}]}, PDF, TALK],
}
EUROPE_PMC: dict[str, Any] = {
    "id": "12345",
    "source": "MED",
    "pmid": "12345",
    "doi": "10.1234/ABC.1",
    "title": "Graphs of <i>papers</i> & people",
    "authorString": "Núñez A, The Group.",
    "authorList": {
        "author": [
            {"fullName": "Núñez A", "firstName": "Ana", "lastName": "Núñez", "initials": "A"},
            {"collectiveName": "The Group"},
        ]
    },
    "journalInfo": {"yearOfPublication": 2012, "journal": {"title": "Journal of Graphs"}},
    "pubYear": "2012",
    "abstractText": "<h4>We draw graphs.</h4>We win.",
    "meshHeadingList": {"meshHeading": [{"majorTopic_YN": "N", "descriptorName": "graphs"}]},
    "keywordList": {"keyword": ["citation analysis"]},
    "firstPublicationDate": "2012-05-01",
}
LITE = {
    "id": "PPR1",
    "source": "PPR",
    "title": "A preprint",
    "authorString": "Li B, Doe JA.",
    "journalTitle": "Graphs",
    "pubYear": "2020",
    "firstPublicationDate": "2020-01-01",
    "keywordList": {"keyword": "one"},  # as converters of XML write a list of one
}
DBLP: dict[str, Any] = {
    "@score": "4",
    "@id": "271",
    "info": {
        "authors": {
            "author": [
                {"@pid": "1/2", "text": "Ana Núñez 0001"},
                {"@pid": "3/4", "text": "The Group"},
            ]
        },
        "title": "Graphs of papers &amp; people.",
        "venue": ["Journal of Graphs", "J. Graphs"],
        "year": "2012",
        "type": "Journal Articles",
        "key": "journals/graphs/Nunez12",
        "doi": "10.1234/ABC.1",
        "ee": "https://doi.org/10.1234/ABC.1",
        "url": "https://dblp.org/rec/journals/graphs/Nunez12",
    },
    "url": "URL#271",
}
ALONE = {"@id": "272", "info": {"authors": {"author": {"@pid": "5/6", "text": "Bo Li"}}}}
ALONE["info"] |= {"title": "Alone?", "venue": "CoRR", "year": "2020", "key": "corr/1"}


def _dblp(*hits: Any) -> dict[str, Any]:
    status = {"@code": "200", "text": "OK"}
    listed = {"@total": "2", "@computed": "2", "@sent": "2", "@first": "0", "hit": list(hits)}
    return {"result": {"query": "graph*", "status": status, "hits": listed}}


FEED = """<?xml version="1.0" encoding="UTF-8"?>
<feed xmlns="http://www.w3.org/2005/Atom">
  <link href="http://arxiv.org/api/query?search_query=all:graphs" rel="self"/>
  <title type="html">ArXiv Query: search_query=all:graphs</title>
  <id>http://arxiv.org/api/abc</id>
  <entry>
    <id>http://arxiv.org/abs/1205.00001v3</id>
    <updated>2013-01-01T00:00:00Z</updated>
    <published>2012-05-01T00:00:00Z</published>
    <title>Graphs of papers &amp;
  people</title>
    <summary>  We draw graphs.
We win.
</summary>
    <author><name>Ana Núñez</name></author>
    <author><name>The Group</name></author>
    <arxiv:doi xmlns:arxiv="http://arxiv.org/schemas/atom">10.1234/ABC.1</arxiv:doi>
    <a:journal_ref xmlns:a="http://arxiv.org/schemas/atom">Journal of Graphs</a:journal_ref>
    <category term="graphs" scheme="http://arxiv.org/schemas/atom"/>
    <category term="citation analysis" scheme="http://arxiv.org/schemas/atom"/>
  </entry>
  <entry>
    <id>https://arxiv.org/abs/hep-ph/9901001</id>
    <published>1999-01-01T00:00:00Z</published>
    <title>Old</title><summary/>
  </entry>
</feed>
"""
ERROR = FEED[: FEED.index("  <entry>")] + (
    "<entry><id>http://arxiv.org/api/errors#x</id><title>Error</title>"
    "<summary>incorrect id format for x</summary></entry></feed>"
)
# A file's name and content, the id of its first paper, and what the second one is.
CASES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "zotero": (
        "items.json",
        json.dumps([_of_api(item) for item in (ITEM, PDF, TALK)], indent=1),
        "ABCD2345",
        {"id": "EFGH2345", "authors": ["Li"], "doi": "10.5555/talk.2", "labels": ["Networks"]},
    ),
    "zotero lines": ("items.jsonl", lines(ITEM, PDF, TALK), "ABCD2345", {"title": "A talk"}),
    "better bibtex": (
        "library.json",
        json.dumps(BETTER_BIBTEX, indent=2),
        "ABCD2345",
        {"title": "A talk", "year": None, "venue": ""},
    ),
    "better bibtex by name": (
        "library.json",
        json.dumps(BETTER_BIBTEX, sort_keys=True),
        "ABCD2345",
        {"title": "A talk"},
    ),
    "europe pmc": (
        "search",
        json.dumps(
            {
                "version": "6.9",
                "hitCount": 2,
                "request": {"queryString": "graphs {", "resultType": "core"},
                "resultList": {"result": [EUROPE_PMC, LITE]},
            }
        ),
        "12345",
        {"id": "PPR1", "authors": ["Li B", "Doe JA"], "venue": "Graphs", "labels": ["one"]},
    ),
    "europe pmc lines": ("a.jsonl", lines(EUROPE_PMC, LITE), "12345", {"id": "PPR1"}),
    "dblp": (
        "api.json",
        json.dumps(_dblp(DBLP, ALONE), indent=1),
        "journals/graphs/Nunez12",
        {"title": "Alone?", "authors": ["Bo Li"], "venue": "CoRR", "doi": ""},
    ),
    "arxiv": (
        "feed.xml",
        FEED,
        "1205.00001",
        {"id": "hep-ph/9901001", "year": 1999, "abstract": "", "labels": []},
    ),
    "arxiv with a mark": ("feed.atom", "\ufeff" + FEED, "1205.00001", {"title": "Old"}),
    "arxiv without a name": ("query", FEED, "1205.00001", {"title": "Old"}),
}
# DBLP has neither.
_LACKING = {"dblp": {"abstract": "", "labels": []}}


@pytest.mark.parametrize("case", CASES)
def test_an_answer_is_recognised_and_read(tmp_path: Path, case: str) -> None:
    name, content, identifier, second = CASES[case]
    papers = read(written(tmp_path, name, content))
    expected = GRAPHS | {"id": identifier} | _LACKING.get(case, {})
    assert {field: getattr(papers[0], field) for field in expected} == expected
    assert {field: getattr(papers[1], field) for field in second} == second
    assert len(papers) == 2


@pytest.mark.parametrize(
    ("named", "case"),
    [("zotero", "zotero"), ("europepmc", "europe pmc"), ("dblp", "dblp"), ("arxiv", "arxiv")],
)
def test_a_named_service_reads_as_the_guessed_one(tmp_path: Path, named: str, case: str) -> None:
    path = written(tmp_path, *CASES[case][:2])
    assert read(path, format=named) == read(path)


def test_what_is_no_work_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="scimult")
    read(written(tmp_path, *CASES["zotero"][:2]))
    assert "items.json: left out attachments, notes and annotations: 1" in caplog.text


def test_a_table_of_medline_is_not_taken_for_europe_pmcs(tmp_path: Path) -> None:
    """BioASQ's articles have an abstractText, too."""
    article = {"pmid": "1", "title": "A", "abstractText": "B", "journal": "J", "year": "2001"}
    path = written(tmp_path, "a.jsonl", lines(article))
    assert guess_format(path).shape == "plain"
    (paper,) = read(path)
    assert (paper.id, paper.abstract, paper.venue) == ("1", "B", "J")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (ERROR, "feed.xml:1: entry is no paper of arXiv .*incorrect id format.*correct the query"),
        (FEED[:900], "feed.xml:1: XML file is cut off"),
        (ERROR[: ERROR.index("<entry>")] + "</feed>", "feed.xml: feed has no entries"),
    ],
)
def test_a_feed_without_papers_is_an_error(tmp_path: Path, content: str, message: str) -> None:
    path = written(tmp_path, "feed.xml", content)
    with pytest.raises(DataError, match=message):
        read(path)
    rejects = Rejects(skip_bad=True)
    assert list(read_papers(path, rejects=rejects)) == []
    assert rejects.counts.total() == 1


def test_a_cut_answer_is_an_error(tmp_path: Path) -> None:
    for case in ("better bibtex", "europe pmc", "dblp"):
        name, content, *_ = CASES[case]
        with pytest.raises(DataError, match="JSON file is cut off or damaged"):
            read(written(tmp_path, name, content[:-3]))


def test_attachments_in_zoteros_table_are_no_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="scimult")
    rows = (
        'Key,Item Type,Title\nK1,journalArticle,Graphs\nK2,attachment,Full Text PDF\nK3,note,""\n'
    )
    path = tmp_path / "zotero.csv"
    path.write_text(rows, encoding="utf-8")
    assert [paper.id for paper in read(path)] == ["K1"]
    assert "zotero.csv: left out attachments, notes and annotations: 2" in caplog.text


def test_a_misspelt_field_of_listed_objects_is_told(tmp_path: Path) -> None:
    """The list found nothing in any record, which passed for a field of empty lists."""
    topics = [{"name": "Graphs"}, {"name": "Nets"}]
    rows = [{"id": "1", "title": "T", "topics": topics}, {"id": "2", "title": "U", "topics": []}]
    path = tmp_path / "papers.jsonl"
    path.write_text(lines(*rows), encoding="utf-8")
    found = read(path, columns={"labels": "topics.name"})
    assert [paper.labels for paper in found] == [["Graphs", "Nets"], []]
    path.write_text(lines(rows[0]), encoding="utf-8")
    with pytest.raises(DataError, match=r"no record has the column 'topics\.nmae'"):
        read(path, columns={"labels": "topics.nmae"})
