"""RIS and PubMed XML: what looks like a tag and is text, names, deleted citations."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import rispy

from scimult.data.importers import bibliographies, read_papers
from scimult.data.importers.bibliographies import read_pubmed_files
from scimult.data.lines import Rejects
from tests.data.importers.written import read, written

WRAPPED = """TY  - JOUR
TI  - Spectra of
ER - positive cells
AB  - First line.
UV - visible spectroscopy is used.
AB - blood groups.
Second line - with a dash
TY - the unit
AU  - Smith, John, Jr.
AU  - Lee, Ann
AU  - Consortium
KW  - spectra
ER  - \n"""
ABSTRACT = (
    "First line. UV - visible spectroscopy is used. AB - blood groups. "
    "Second line - with a dash TY - the unit"
)


def test_an_abbreviated_journal_is_the_venue_if_there_is_no_other(tmp_path: Path) -> None:
    text = "TY  - JOUR\nT1  - A\nJA  - J. Abbr.\nER  - \n"
    text += "TY  - JOUR\nT1  - B\nJA  - J. Abbr.\nJF  - Journal\nER  - \n"
    venues = [paper.venue for paper in read(written(tmp_path, "a.ris", text))]
    assert venues == ["J. Abbr.", "Journal"]


def test_wrapped_text_that_looks_like_a_tag_stays(tmp_path: Path) -> None:
    """As in rispy, whose tags have two spaces."""
    (paper,) = read(written(tmp_path, "a.ris", WRAPPED))
    (reference,) = rispy.loads(WRAPPED)
    assert (paper.title, paper.abstract) == (reference["title"], reference["abstract"])
    assert (paper.title, paper.abstract) == ("Spectra of ER - positive cells", ABSTRACT)
    assert paper.authors == ["John Smith Jr.", "Ann Lee", "Consortium"]


@pytest.mark.parametrize("dash", [" - ", "- "])
def test_the_loose_form_of_known_tags_is_read_where_a_reference_uses_it(
    tmp_path: Path, dash: str
) -> None:
    text = WRAPPED.replace("AB - blood groups.\n", "").replace("TY - the unit\n", "")
    loose = text.replace("  - ", dash).replace(f"KW{dash}", f"U1{dash}\nKW{dash}")
    (paper,) = read(written(tmp_path, "a.ris", loose))
    assert paper.title == "Spectra of ER - positive cells"
    assert paper.abstract == ABSTRACT.replace("AB - blood groups. ", "").removesuffix(
        " TY - the unit"
    )
    assert (paper.authors[0], paper.labels) == ("John Smith Jr.", ["spectra"])


def test_references_of_both_forms_in_one_file(tmp_path: Path) -> None:
    strict = "TY  - JOUR\nTI  - A\nER -\n"
    loose = "TY - JOUR\nTI - B\nER - \n"
    papers = read(written(tmp_path, "a.ris", strict + loose + strict.replace("A", "C")))
    assert [paper.title for paper in papers] == ["A", "B", "C"]


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
    monkeypatch.setattr(bibliographies, "_BLOCK", block)
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
