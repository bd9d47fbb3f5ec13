"""Read bibliographies: RIS (rispy), PubMed XML, and BibTeX (see ``bibtex``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from scimult.data.importers.bibtex import read_bibtex
from scimult.data.importers.paper import first, known_text, year_in
from scimult.data.lines import Record, Rejects, empty_file, read_lines
from scimult.data.packed import open_binary
from scimult.errors import DataError
from scimult.progress import note

__all__ = ["read_bibtex", "read_pubmed_files", "read_ris"]

_RIS_LINE = re.compile(r"([A-Z][A-Z0-9])\s{0,2}-(?:\s|$)")
# Tags of the format's first specification that rispy does not name.
_MORE_RIS_TAGS = {"AV", "BT", "CP", "CT", "ED", "J1", "L3", "M2", "U1", "U2", "U3", "U4", "U5"}

# Of DeleteCitation and, for books, DeleteDocument.
_DELETE = b"<Delete"
_PMID = re.compile(rb"<PMID\b[^>]*>\s*(\d+)")
_BLOCK = 1 << 20


def read_ris(path: Path, rejects: Rejects) -> Iterator[Record]:
    """Yield the references of a RIS file.

    Raises
    ------
    DataError
        Through ``rejects``: a reference without an end, or a line outside a reference.
    """
    reference: list[str] = []
    start = 0
    has_references = is_strict = False
    for number, line, unread in _ris_lines(path, rejects):
        tag = _ris_tag(line, strict=is_strict)
        if tag and tag[1] == "TY":
            has_references, is_strict = True, _is_strict(line)
            if reference:
                rejects.reject(_ris_error(path, start, reference[0], "reference has no end"))
            reference, start = [], number
        elif not start:
            if tag:  # lines without a tag are numbers or the exporter's name
                rejects.reject(_ris_error(path, number, line, "line is outside a reference"))
            continue
        # Some exports have one space before the dash, or none after it: rispy needs two and one.
        reference.append(f"{tag[1]}  - {line[tag.end() :].strip()}" if tag else line)
        if tag and tag[1] == "ER":
            if unread < start:
                yield from _ris_records(path, start, reference)
            reference, start, is_strict = [], 0, False
    if reference:
        rejects.reject(_ris_error(path, start, reference[0], "reference has no end"))
    if not has_references:
        rejects.reject(empty_file(path, "RIS reference"))


def _ris_lines(path: Path, rejects: Rejects) -> Iterator[tuple[int, str, int]]:
    """Yield number and text of lines, and the number of the last before them that is no UTF-8."""
    last = unread = 0
    for number, line in read_lines(path, rejects, keep_blank=True):
        if number > last + 1:
            unread = number - 1
        last = number
        if line.strip():
            yield number, line, unread


def _ris_records(path: Path, start: int, reference: Sequence[str]) -> Iterator[Record]:
    import rispy

    for fields in rispy.loads("\n".join(reference) + "\n"):
        yield Record(path, start, {**fields, **_ris_paper(fields)})


def _ris_tag(line: str, *, strict: bool) -> re.Match[str] | None:
    """Return the tag that a line starts with; None if it continues the text of the line before.

    Text may be broken before "UV - visible" or "ER - positive". So where a reference starts with
    two spaces before the dash (``strict``) its other tags do, and with fewer only known tags count.
    The end of a reference has nothing after it.
    """
    from rispy.config import TAG_KEY_MAPPING

    tag = _RIS_LINE.match(line)
    if tag is None or _is_strict(line):
        return tag
    if tag[1] == "ER":
        return None if line[tag.end() :].strip() else tag
    is_known = tag[1] in TAG_KEY_MAPPING or tag[1] in _MORE_RIS_TAGS
    return tag if is_known and not strict else None


def _is_strict(line: str) -> bool:
    return line[2:5] == "  -"


def _ris_error(path: Path, number: int, line: str, problem: str) -> DataError:
    fix = "start every reference with 'TY  - ' and end it with 'ER  - '; the file may be cut off"
    return DataError(problem, path=path, line=number, value=line, fix=fix)


def _ris_paper(fields: dict[str, Any]) -> dict[str, Any]:
    names = first(fields, "authors", "first_authors", "secondary_authors") or ()
    venues = ("journal_name", "secondary_title", *(f"alternate_title{i}" for i in (1, 3, 2)))
    return {
        "id": first(fields, "id", "accession_number"),
        "title": first(fields, "title", "primary_title", "translated_title"),
        "abstract": first(fields, "abstract", "notes_abstract"),
        "authors": [_first_name_first(name) for name in names],
        "venue": first(fields, *venues),
        "year": year_in(first(fields, "year", "publication_year", "date")),
        "doi": fields.get("doi"),
        "labels": fields.get("keywords"),
    }


def _first_name_first(name: str) -> str:
    """Return ``Given Family Jr.`` for ``Family, Given, Jr.``; names without commas unchanged."""
    family, *given = (part.strip() for part in name.split(","))
    return " ".join(part for part in (*given[:1], family, *given[1:]) if part)


def read_pubmed_files(paths: Sequence[Path], rejects: Rejects) -> Iterator[Record]:
    """Yield the articles and books of PubMed XML; the "line" is the number of the article.

    Papers that one of the files deletes, as PubMed's updates do, are left out of all of them: a
    first pass looks only for what is deleted, without parsing.

    Raises
    ------
    DataError
        Through ``rejects``, if a file is cut off, is not XML or has no article.
    """
    deleted = {pmid for path in paths for pmid in _deleted_in(path)}
    left_out = 0
    for path in paths:
        for record in _read_articles(path, rejects):
            if record.fields["id"] in deleted:
                left_out += 1
            else:
                yield record
    if left_out:
        note(f"papers left out because PubMed has deleted them (DeleteCitation): {left_out:,}")


def _deleted_in(path: Path) -> list[str]:
    """Return the PMIDs in a file's ``DeleteCitation``, which is its last element."""
    text = b""
    try:
        with open_binary(path) as file:
            while block := file.read(_BLOCK):
                text += block
                start = text.find(_DELETE)
                text = text[start if start >= 0 else -len(_DELETE) :]
    except EOFError:
        return []  # reading the articles reports it
    return [pmid.decode() for pmid in _PMID.findall(text)] if text.startswith(_DELETE) else []


def _read_articles(path: Path, rejects: Rejects) -> Iterator[Record]:
    number = 0
    is_empty = True
    try:
        with open_binary(path) as file:
            for _, element in ElementTree.iterparse(file):
                if element.tag in ("DeleteCitation", "DeleteDocument"):
                    is_empty = False
                if element.tag not in ("PubmedArticle", "PubmedBookArticle"):
                    continue
                number += 1
                is_empty = False
                yield Record(path, number, _pubmed_paper(element))
                element.clear()
    except (ElementTree.ParseError, EOFError) as error:
        problem, fix = "XML file is cut off or damaged", "download the file again"
        rejects.refuse(problem, path, number + 1, value=str(error), fix=fix)
        return
    if is_empty:
        fix = "use PubMed's XML, whose articles are <PubmedArticle>"
        rejects.refuse("XML file has no PubMed article", path, fix=fix)


def _pubmed_paper(element: ElementTree.Element) -> dict[str, Any]:
    citation = _child(element, "MedlineCitation", "BookDocument")
    article = _child(citation, "Article")
    parts = [_abstract_part(part) for part in article.iterfind("Abstract/AbstractText")]
    titles = ("ArticleTitle", "VernacularTitle", "Book/BookTitle")
    issue = "Journal/JournalIssue/PubDate"
    years = (f"{issue}/Year", f"{issue}/MedlineDate", "Book/PubDate/Year")
    dois = [
        *(item for item in article.iterfind("ELocationID") if item.get("EIdType") == "doi"),
        *(
            item
            for part in ("PubmedData", "BookDocument")
            for item in element.iterfind(f"{part}/ArticleIdList/ArticleId")
            if item.get("IdType") == "doi"
        ),
    ]
    cited = element.iterfind("PubmedData/ReferenceList//Reference/ArticleIdList/ArticleId")
    return {
        "id": citation.findtext("PMID"),
        "title": next(filter(known_text, (_text(article.find(name)) for name in titles)), ""),
        "abstract": " ".join(part for part in parts if part),
        "authors": [_name(item) for item in article.iterfind("AuthorList/Author")],
        "venue": _text(article.find("Journal/Title")) or _text(article.find("Book/BookTitle")),
        "year": next(filter(None, (year_in(article.findtext(name)) for name in years)), None),
        "doi": _text(dois[0]) if dois else None,
        "references": [_text(item) for item in cited if item.get("IdType") == "pubmed"],
        "labels": [
            _text(item) for item in citation.iterfind("MeshHeadingList/MeshHeading/DescriptorName")
        ],
    }


def _child(element: ElementTree.Element, *names: str) -> ElementTree.Element:
    """Return the first of these children that there is, else the element itself."""
    found = (child for name in names if (child := element.find(name)) is not None)
    return next(found, element)


def _abstract_part(part: ElementTree.Element) -> str:
    label, text = part.get("Label"), _text(part)
    return f"{label}: {text}" if label and text else text


def _name(author: ElementTree.Element) -> str:
    whole = author.findtext("CollectiveName")
    given = author.findtext("ForeName") or author.findtext("Initials")
    parts = (given, author.findtext("LastName"), author.findtext("Suffix"))
    return whole or " ".join(part for part in parts if part)


def _text(element: ElementTree.Element | None) -> str:
    """Return all text of an element and its children, on one line."""
    return "" if element is None else " ".join("".join(element.itertext()).split())
