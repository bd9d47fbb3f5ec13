"""PubMed's XML: deleted citations, labels."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from scimult.data.importers import pubmed, read_papers
from scimult.data.importers.pubmed import read_pubmed_files
from scimult.data.records import Rejects
from tests.data.importers import layouts
from tests.data.importers.written import read, written


def _articles(*pmids: int, deleted: tuple[int, ...] = ()) -> str:
    articles = "".join(
        f'<PubmedArticle><MedlineCitation><PMID Version="1">{pmid}</PMID><Article><ArticleTitle>'
        f"Paper {pmid} on &lt;DeleteCitation&gt;</ArticleTitle><AuthorList><Author><LastName>Lee"
        "</LastName><Initials>A</Initials><Suffix>Jr</Suffix></Author></AuthorList></Article>"
        "</MedlineCitation></PubmedArticle>"
        for pmid in pmids
    )
    gone = "".join(f'<PMID Version="1">{pmid}</PMID>\n' for pmid in deleted)
    gone = f"<DeleteCitation>\n{gone}</DeleteCitation>" if gone else ""
    return f"<?xml version='1.0'?>\n<PubmedArticleSet>{articles}{gone}</PubmedArticleSet>"


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_deleted_citations_are_left_out_of_all_files(
    tmp_path: Path,
    block: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(pubmed, "_BLOCK", block)
    caplog.set_level(logging.INFO, "scimult")
    files = [
        written(tmp_path, "pubmed26n0001.xml.gz", _articles(1, 2, 3, 23)),
        written(tmp_path, "pubmed26n1300.xml", _articles(4, 5, deleted=(2, 5, 99))),
        written(tmp_path, "pubmed26n1301.xml", _articles(deleted=(3,))),
        written(tmp_path, "pubmed26n1302.xml", _articles(3, 6)),
    ]
    papers = list(read_papers(files, rejects=Rejects()))
    assert [paper.id for paper in papers] == ["1", "23", "4", "6"]
    assert [paper.location.line for paper in papers] == [1, 4, 1, 2]
    assert "because PubMed has deleted them (DeleteCitation): 4" in caplog.text
    assert papers[0].authors == ["A Lee Jr"]


def test_a_file_leaves_out_what_it_deletes(tmp_path: Path) -> None:
    papers = read(written(tmp_path, "a.xml", _articles(1, 2, deleted=(2,))))
    assert [paper.id for paper in papers] == ["1"]


def test_a_file_cut_off_is_reported_once(tmp_path: Path) -> None:
    whole = written(tmp_path, "a.xml.gz", _articles(*range(1000), deleted=(2,)))
    whole.write_bytes(whole.read_bytes()[:-40])
    rejects = Rejects(skip_bad=True)
    records = list(read_pubmed_files([whole], rejects))
    assert dict(rejects.counts) == {"XML file is cut off or damaged": 1}
    assert len(records) > 900


def test_mesh_or_keywords_alone_can_be_the_labels(tmp_path: Path) -> None:
    path = written(tmp_path, "a.xml", layouts.PUBMED)
    for column, labels in {"mesh": ["Mice"], "keywords": ["carbon dioxide"]}.items():
        assert read(path, columns={"labels": column})[0].labels == labels


def test_books_among_pubmed_articles_are_read(tmp_path: Path) -> None:
    book = """<PubmedBookArticle><BookDocument><PMID>3</PMID>
    <ArticleIdList><ArticleId IdType="doi">10.1234/ABC.3</ArticleId></ArticleIdList>
    <Book><BookTitle>Pearls</BookTitle><PubDate><Year>2020</Year></PubDate></Book>{}
    <AuthorList><Author><LastName>Li</LastName><ForeName>Bo</ForeName></Author></AuthorList>
    <Abstract><AbstractText>Of mice.</AbstractText></Abstract>
    </BookDocument></PubmedBookArticle>"""
    chapter = "<ArticleTitle>A chapter</ArticleTitle>"
    end = "</PubmedArticleSet>"
    xml = layouts.PUBMED.replace(end, book.format(chapter) + book.format("") + end)
    papers = read(written(tmp_path, "a.xml", xml))
    assert [paper.title for paper in papers[2:]] == ["A chapter", "Pearls"]
    assert (papers[2].id, papers[2].abstract, papers[2].authors) == ("3", "Of mice.", ["Bo Li"])
    assert (papers[2].venue, papers[2].year, papers[2].doi) == ("Pearls", 2020, "10.1234/abc.3")


def test_another_s_abstract_stands_in(tmp_path: Path) -> None:
    other = """<OtherAbstract Type="PIP"><AbstractText Label="AIM">Of mice.</AbstractText>
    <AbstractText>Fin.</AbstractText></OtherAbstract>
    <OtherAbstract Type="Publisher"><AbstractText>De ratones.</AbstractText></OtherAbstract>"""
    xml = layouts.PUBMED.replace("</MedlineCitation>", f"{other}</MedlineCitation>")
    papers = read(written(tmp_path, "a.xml", xml))
    own = "BACKGROUND: Mice breathe. RESULTS: They do."
    assert [paper.abstract for paper in papers] == [own, "AIM: Of mice. Fin."]


def test_a_doi_that_is_not_valid_is_none(tmp_path: Path) -> None:
    wrong = '<ELocationID EIdType="doi" ValidYN="N">10.1234/wrong</ELocationID>'
    for xml, doi in {
        layouts.PUBMED.replace("<ELocationID", f"{wrong}<ELocationID"): "10.1234/abc.1",
        layouts.PUBMED.replace('ValidYN="Y"', 'ValidYN="N"'): "",
    }.items():
        assert read(written(tmp_path, "a.xml", xml))[0].doi == doi


def test_what_says_that_there_is_an_abstract_elsewhere_is_none(tmp_path: Path) -> None:
    """The phrase is in NLM's announcement of the element, of September 2012."""
    phrase = "Abstract available from the publisher."
    other = "".join(
        f'<OtherAbstract Type="Publisher" Language="{language}">'
        f"<AbstractText>{phrase}</AbstractText></OtherAbstract>"
        for language in ("fre", "spa")
    )
    xml = layouts.PUBMED.replace("</MedlineCitation>", f"{other}</MedlineCitation>")
    assert read(written(tmp_path, "a.xml", xml))[1].abstract == ""
    text = f"PMID- 1\nTI  - A\nOAB - Publisher: {phrase}\nOABL- fre\n"
    for lines in (text, text + f"OAB - Publisher: {phrase}\nOABL- spa\n"):
        (paper,) = read(written(tmp_path, "a.nbib", lines))
        assert (paper.title, paper.abstract) == ("A", "")


def test_a_part_without_a_label_has_none(tmp_path: Path) -> None:
    """NLM labels what precedes the labelled parts; Zotero and PubMed's page leave that out."""
    xml = layouts.PUBMED.replace('Label="BACKGROUND"', 'Label="UNLABELLED"')
    assert read(written(tmp_path, "a.xml", xml))[0].abstract == "Mice breathe. RESULTS: They do."


def test_a_corrected_author_is_one(tmp_path: Path) -> None:
    """NLM's own example, in its descriptions of the XML's elements."""
    persons = """<Author ValidYN="Y"><LastName>Whitley</LastName><ForeName>R J</ForeName></Author>
    <Author ValidYN="N"><LastName>Whitely</LastName><ForeName>R J</ForeName></Author>"""
    xml = layouts.PUBMED.replace("<Author>", f"{persons}<Author>", 1)
    authors = read(written(tmp_path, "a.xml", xml))[0].authors
    assert authors == ["R J Whitley", "Ana Núñez", "The Group"]


def test_a_whole_book_has_the_book_s_authors_and_doi(tmp_path: Path) -> None:
    book = """<PubmedBookArticle><BookDocument><PMID>4</PMID><Book><BookTitle>Pearls</BookTitle>
    <AuthorList Type="editors"><Author><LastName>Li</LastName><ForeName>Bo</ForeName></Author>
    </AuthorList></Book></BookDocument><PubmedBookData><ArticleIdList>
    <ArticleId IdType="doi">10.1234/ABC.4</ArticleId></ArticleIdList></PubmedBookData>
    </PubmedBookArticle>"""
    xml = layouts.PUBMED.replace("</PubmedArticleSet>", f"{book}</PubmedArticleSet>")
    paper = read(written(tmp_path, "a.xml", xml))[2]
    assert (paper.title, paper.authors, paper.doi) == ("Pearls", ["Bo Li"], "10.1234/abc.4")
