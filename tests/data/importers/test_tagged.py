"""Tagged lines: what looks like a tag and is text, where records end, names, keywords."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import rispy

from scimult.data.importers import read_papers
from scimult.data.records import Rejects
from tests.data.importers import layouts
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
    """As Zotero reads it: JF is the full name, JO may be short."""
    journals = [
        "JA  - J. Abbr.",
        "J1  - J. Abbr.",
        "JO  - J. Abbr.\nJF  - Journal",
        "JO  - J. Abbr.\nT2  - Journal",
    ]
    text = "".join(f"TY  - JOUR\nT1  - A\n{journal}\nER  - \n" for journal in journals)
    venues = [paper.venue for paper in read(written(tmp_path, "a.ris", text))]
    assert venues == ["J. Abbr.", "J. Abbr.", "Journal", "Journal"]


def test_editors_stand_in_for_authors(tmp_path: Path) -> None:
    """The specification of 2001 has two tags for them, ``A2`` and ``ED``."""
    for tag in ("A2", "ED"):
        text = f"TY  - BOOK\nT1  - A\n{tag}  - Doe, Jane\n{tag}  - Roe, Karl\nER  - \n"
        (paper,) = read(written(tmp_path, "a.ris", text))
        assert paper.authors == ["Jane Doe", "Karl Roe"]


@pytest.mark.parametrize(
    ("lines", "authors"),
    [
        ("A1  - Doe, J\nAU  - Roe, K\nA2  - An, Editor", ["J Doe", "K Roe"]),
        ("AU  - Roe, K\nAU  - Lee, A\nA1  - Doe, J", ["K Roe", "A Lee", "J Doe"]),
        # All authors under either tag; and two persons of one name.
        ("A1  - Doe, J\nA1  - Doe, J\nAU  - Doe, J\nAU  - Doe, J", ["J Doe", "J Doe"]),
        ("A1  - \nAU  - \nA2  - Doe, J", ["J Doe"]),
    ],
)
def test_both_tags_of_authors_count(tmp_path: Path, lines: str, authors: list[str]) -> None:
    """As in Zotero: ``A1`` and ``AU`` mean the same, and some write the first author as ``A1``."""
    (paper,) = read(written(tmp_path, "a.ris", f"TY  - JOUR\nTI  - A\n{lines}\nER  - \n"))
    assert paper.authors == authors


@pytest.mark.parametrize(
    ("lines", "doi"),
    [
        ("UR  - https://doi.org/10.1000/A1", "10.1000/a1"),
        ("UR  - http://example.org/1\nUR  - http://dx.doi.org/10.1000/a%2F1", "10.1000/a/1"),
        ("UR  - https://doi.org/10.1000/1\nDO  - 10.1000/2", "10.1000/2"),
        # What follows the DOI in a publisher's address is no part of it.
        ("UR  - https://example.org/doi/10.1002/abc.1/full", ""),
    ],
)
def test_an_address_of_the_resolver_holds_the_doi(tmp_path: Path, lines: str, doi: str) -> None:
    ris = f"TY  - JOUR\nTI  - A\n{lines}\nER  - \n"
    enw = f"%0 Journal Article\n%T A\n{lines}\n".replace("UR  -", "%U").replace("DO  -", "%R")
    for name, text in (("a.ris", ris), ("a.enw", enw)):
        (paper,) = read(written(tmp_path, name, text))
        assert paper.doi == doi


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


def test_numbered_references_of_ris_are_read(tmp_path: Path) -> None:
    numbered = "Exported today\n1.\n" + layouts.RIS.replace("TY  - CONF", "2.\nTY  - CONF")
    plain = read(written(tmp_path, "a.ris", layouts.RIS))
    found = read(written(tmp_path, "b.ris", numbered))
    assert [paper.title for paper in found] == [paper.title for paper in plain]
    assert [paper.location.line for paper in found] == [3, 18]


def test_what_ovid_writes_between_references_is_no_part_of_them(tmp_path: Path) -> None:
    """MrTango/rispy#61: the database and the search after a reference, its number before one."""
    between = "\nLink to the Ovid Full Text: http://ovid\n\nC1  - Database: Embase\n\n1 exp cat/\n"
    plain = read(written(tmp_path, "a.ris", layouts.RIS))
    text = layouts.RIS.replace("TY  - CONF", f"{between}\n2. \nTY  - CONF") + between
    found = read(written(tmp_path, "b.ris", text))
    assert [paper.fields() for paper in found] == [paper.fields() for paper in plain]


def test_references_of_both_forms_in_one_file(tmp_path: Path) -> None:
    strict = "TY  - JOUR\nTI  - A\nER -\n"
    loose = "TY - JOUR\nTI - B\nER - \n"
    papers = read(written(tmp_path, "a.ris", strict + loose + strict.replace("A", "C")))
    assert [paper.title for paper in papers] == ["A", "B", "C"]


def test_web_of_science_is_read_as_rispy_reads_it(tmp_path: Path) -> None:
    papers = read(written(tmp_path, "a.txt", layouts.WOS))
    records = rispy.loads(layouts.WOS.lstrip("\ufeff"), implementation=rispy.WokParser)
    assert [paper.title for paper in papers] == [record["document_title"] for record in records]
    assert papers[0].abstract == records[0]["abstract"]


def test_both_exports_of_web_of_science_are_one(tmp_path: Path) -> None:
    tagged = read(written(tmp_path, "a.ciw", layouts.WOS))
    table = read(written(tmp_path, "a.tsv", layouts.WOS_TABLE))
    assert [replace(paper, location=tagged[0].location) for paper in table] == [
        replace(paper, location=tagged[0].location) for paper in tagged
    ]
    assert [paper.year for paper in tagged] == [2012, 1999, None]
    assert tagged[1].id in tagged[0].references
    assert tagged[1].labels == ["NETWORKS"]
    (tmp_path / "a.txt").write_bytes((tmp_path / "a.ciw").read_bytes())
    assert read(tmp_path / "a.txt", columns={"labels": "ID"})[0].labels == ["NETWORKS"]


def test_the_export_of_an_article_says_what_its_xml_does(tmp_path: Path) -> None:
    (exported, *_), (article, *_) = (
        read(written(tmp_path, name, text))
        for name, text in {"a.nbib": layouts.NBIB, "a.xml": layouts.PUBMED}.items()
    )
    assert replace(exported, location=article.location, references=["999"]) == article


@pytest.mark.parametrize(
    ("full", "name"),
    [("Doe, Jane A", "Jane A Doe"), ("Doe, John A Jr", "John A Doe Jr"), ("Doe, IV", "IV Doe")],
)
def test_names_of_medline(tmp_path: Path, full: str, name: str) -> None:
    text = f"PMID- 1\nTI  - [Not Available].\nTT  - Le titre\nFAU - {full}\nCN  - Group, A\n"
    (paper,) = read(written(tmp_path, "a.nbib", text))
    assert (paper.title, paper.authors) == ("Le titre", [name, "Group, A"])


def test_another_s_abstract_stands_in(tmp_path: Path) -> None:
    text = "PMID- 1\nTI  - A\nOAB - PIP: of\n      mice.\n\nPMID- 2\nTI  - B\nOAB - C\nAB  - Own.\n"
    papers = read(written(tmp_path, "a.nbib", text))
    assert [paper.abstract for paper in papers] == ["PIP: of mice.", "Own."]


def test_records_without_a_first_tag_end_at_blank_lines(tmp_path: Path) -> None:
    """ERIC's .nbib has no PMID; refer has no type. In a record with a first tag, they are text."""
    eric = "OWN - ERIC\nTI  - A\nAU  - Doe, Jane\nOID - EJ1\n\nOWN - ERIC\nTI  - B\nOID - EJ2\n"
    papers = read(written(tmp_path, "a.nbib", eric))
    assert [(paper.id, paper.title) for paper in papers] == [("EJ1", "A"), ("EJ2", "B")]
    refer = "%T A\n%A Jane Doe\n\n%T B\n\n%0 Book\n%T C\n%X One.\n\nTwo.\n\n%D 2001\n"
    papers = read(written(tmp_path, "a.enw", refer))
    assert [(paper.title, paper.abstract, paper.year) for paper in papers] == [
        ("A", "", None),
        ("B", "", None),
        ("C", "One. Two.", 2001),
    ]
    assert [paper.location.line for paper in papers] == [1, 4, 6]


def test_the_type_may_come_second(tmp_path: Path) -> None:
    """As Digital Commons writes it, the software of many repositories."""
    text = "%T A\n%0 Journal Article\n%A Doe, Jane\n%D 2001\n%X One.\n\nTwo.\n\n\n"
    text += "%T B\n%D 2002\n\n\n%T C\n%0 Thesis\n%A Roe, Karl\n%0 Book\n%T D\n"
    papers = read(written(tmp_path, "a.enw", text))
    assert [(paper.title, paper.authors, paper.year, paper.abstract) for paper in papers] == [
        ("A", ["Jane Doe"], 2001, "One. Two."),
        ("B", [], 2002, ""),
        ("C", ["Karl Roe"], None, ""),
        ("D", [], None, ""),
    ]


def test_a_semicolon_separates_with_or_without_a_space(tmp_path: Path) -> None:
    text = (
        "TY  - JOUR\nTI  - A\nAU  - Doe, J.;Roe, K.;\nKW  - 深度学习;图神经网络; graphs\nER  - \n"
    )
    (paper,) = read(written(tmp_path, "a.ris", text))
    assert paper.authors == ["J. Doe", "K. Roe"]
    assert paper.labels == ["深度学习", "图神经网络", "graphs"]


def test_tags_of_ris_that_few_exports_use(tmp_path: Path) -> None:
    text = "TY  - CONF\nTI  - A\nAB  - One.\nAB  - Two.\nC3  - Proc. X\nM3  - doi: 10.1/A\nER  - \n"
    text += "TY  - BOOK\nBT  - B\nM3  - Article\nER  - \n"
    first, second = read(written(tmp_path, "a.ris", text))
    assert (first.abstract, first.venue, first.doi) == ("One. Two.", "Proc. X", "10.1/a")
    assert (second.title, second.doi) == ("B", "")


def test_unknown_tags_are_columns(tmp_path: Path) -> None:
    text = layouts.ENW.replace("%D 2012", "%D 2012\n%! Graphs\n%9 a\n%9 b")
    paper = read(written(tmp_path, "a.enw", text), columns={"short": "%!", "kinds": "%9"})[0]
    assert paper.extra == {"short": "Graphs", "kinds": ["a", "b"]}
    assert paper.title == "Graphs of papers"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.ris", "TY  - JOUR\nTI  - A\nKW  - *Mice\n*[3H]-DNA\n*-algebras\nER  - \n"),
        ("a.nbib", "PMID- 1\nTI  - A\nOT  - *Mice\nOT  - *[3H]-DNA\nOT  - *-algebras\n"),
        ("a.enw", "%0 Book\n%T A\n%K *Mice\n*[3H]-DNA\n*-algebras\n"),
    ],
)
def test_main_keywords_are_the_same_labels_as_others(tmp_path: Path, name: str, text: str) -> None:
    (paper,) = read(written(tmp_path, name, text))
    assert paper.labels == ["Mice", "[3H]-DNA", "*-algebras"]


@pytest.mark.parametrize("name", ["a.ris", "a.ciw", "a.nbib", "a.enw"])
def test_lines_may_end_in_carriage_returns(tmp_path: Path, name: str) -> None:
    text = {
        "a.ris": layouts.RIS,
        "a.ciw": layouts.WOS,
        "a.nbib": layouts.NBIB.lstrip(),
        "a.enw": layouts.ENW,
    }[name]
    papers = [
        read(written(tmp_path, name, text.replace("\n", end))) for end in ("\n", "\r\n", "\r")
    ]
    assert len(papers[0]) > 1
    assert papers[0] == papers[1] == papers[2]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("a.ris", "TY  - JOUR\nTI  - {}\nER  - \n", "TY  - JOUR\nTI  - Cut\n"),
        ("a.ciw", "FN X\nVR 1.0\nPT J\nTI {}\nER\n", "PT J\nTI Cut\n"),
        ("a.nbib", "PMID- 1\nTI  - {}\n\n", "PMID- 2\nAB  - \n\n"),
        ("a.enw", "%0 Book\n%T {}\n\n", "%0 Book\n%A Doe, Jane\n\n"),
        ("a.ris", "TY  - JOUR\nTI  - {}\nER  - \n", "AU  - Doe, Jane\n"),
        ("a.ciw", "PT J\nTI {}\nER\n", "PT J\nTI Nu\xf1ez\nER\n"),
        ("a.nbib", "PMID- 1\nTI  - {}\n\n", "PMID- 2\nTI  - C\nAB  - Nu\xf1ez\n\n"),
        ("a.enw", "%0 Book\n%T {}\n\n", "%0 Book\n%T C\n%X Nu\xf1ez\n\n"),
    ],
)
def test_a_bad_record_alone_is_left_out(tmp_path: Path, name: str, good: str, bad: str) -> None:
    (tmp_path / name).write_bytes((good.format("A") + bad + good.format("B")).encode("latin-1"))
    rejects = Rejects(skip_bad=True)
    papers = list(read_papers([tmp_path / name], rejects=rejects))
    assert [paper.title for paper in papers] == ["A", "B"]
    assert sum(rejects.counts.values()) == 1
    assert f"{name}:" in rejects.summary()
    assert "Fix: " in rejects.summary()
    # Also where the file ends with it.
    (tmp_path / name).write_bytes((good.format("A") + bad).encode("latin-1"))
    papers = list(read_papers([tmp_path / name], rejects=Rejects(skip_bad=True)))
    assert [paper.title for paper in papers] == ["A"]


def test_keywords_on_one_line_and_short_titles_are_read_as_in_zotero(tmp_path: Path) -> None:
    """Its RIS translator splits a lone keyword at commas, and falls back on CT and ST."""
    form = "TY  - JOUR\n{}\nER  - \n"
    for fields, title, labels in (
        ("TI  - A\nKW  - deep learning, graphs,  trees", "A", ["deep learning", "graphs", "trees"]),
        (
            "TI  - A\nKW  - Neoplasms, Experimental\nKW  - mice",
            "A",
            ["Neoplasms, Experimental", "mice"],
        ),
        ("CT  - Caption\nST  - Short", "Caption", []),
        ("ST  - Short\nTI  - Long", "Long", []),
        ("ST  - Short", "Short", []),
    ):
        (paper,) = read(written(tmp_path, "a.ris", form.format(fields)))
        assert (paper.title, paper.labels) == (title, labels)


def test_a_pmid_without_a_space_starts_a_record(tmp_path: Path) -> None:
    """As in JabRef's own test files; the two were one paper. Text may have such words."""
    text = (
        "PMID-1\nTI  - A of\n      UV-visible\nAB  - Of\nPMIDs and\nUV-visible\n\nPMID-2\nTI  - B\n"
    )
    first, second = read(written(tmp_path, "a.nbib", text))
    assert (first.id, first.title, first.abstract) == (
        "1",
        "A of UV-visible",
        "Of PMIDs and UV-visible",
    )
    assert (second.id, second.title) == ("2", "B")
