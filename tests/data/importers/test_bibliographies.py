"""RIS and PubMed XML: what looks like a tag and is text, names, deleted citations."""

from __future__ import annotations

from pathlib import Path

import pytest
import rispy

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
