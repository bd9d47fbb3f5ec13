"""Read PubMed's XML: articles and books, without what its updates delete."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from scimult.data.importers.markup import known_text
from scimult.data.importers.values import year_in
from scimult.data.packed import open_binary
from scimult.data.records import Record, Rejects
from scimult.progress import note

# Of DeleteCitation and, for books, DeleteDocument.
_DELETE = b"<Delete"
_PMID = re.compile(rb"<PMID\b[^<>]*>\s*(\d+)")
_BLOCK = 1 << 20


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
        fix = "use PubMed's XML, whose articles are <PubmedArticle>; export others as RIS or BibTeX"
        rejects.refuse("XML file has no PubMed article", path, fix=fix)


def _pubmed_paper(element: ElementTree.Element) -> dict[str, Any]:
    citation = _child(element, "MedlineCitation", "BookDocument")
    article = _child(citation, "Article")
    titles = ("ArticleTitle", "VernacularTitle", "Book/BookTitle")
    issue = "Journal/JournalIssue/PubDate"
    years = (f"{issue}/Year", f"{issue}/MedlineDate", "Book/PubDate/Year")
    dois = [
        *(
            item
            for item in article.iterfind("ELocationID")
            if item.get("EIdType") == "doi" and item.get("ValidYN") != "N"
        ),
        *(
            item
            for part in ("PubmedData", "BookDocument", "PubmedBookData")
            for item in element.iterfind(f"{part}/ArticleIdList/ArticleId")
            if item.get("IdType") == "doi"
        ),
    ]
    # Those of a whole book, or the editors, are within the book.
    authors = article.findall("AuthorList/Author") or citation.findall("Book/AuthorList/Author")
    cited = element.iterfind("PubmedData/ReferenceList//Reference/ArticleIdList/ArticleId")
    descriptors = citation.iterfind("MeshHeadingList/MeshHeading/DescriptorName")
    mesh = [_text(item) for item in descriptors]
    words = (_text(item) for item in citation.iterfind("KeywordList/Keyword"))
    keywords = [part for word in words for part in unescape(word).split(";")]
    return {
        "id": citation.findtext("PMID"),
        "title": next(filter(known_text, (_text(article.find(name)) for name in titles)), ""),
        # Of some papers there is only a database's abstract, or one in another language.
        "abstract": _abstract(article, "Abstract") or _abstract(citation, "OtherAbstract"),
        # A name that an erratum corrects is there twice.
        "authors": [_name(item) for item in authors if item.get("ValidYN") != "N"],
        "venue": _text(article.find("Journal/Title")) or _text(article.find("Book/BookTitle")),
        "year": next(filter(None, (year_in(article.findtext(name)) for name in years)), None),
        "doi": _text(dois[0]) if dois else None,
        "references": [_text(item) for item in cited if item.get("IdType") == "pubmed"],
        "labels": mesh + keywords,
        # One of them can be chosen as labels.
        "mesh": mesh,
        "keywords": keywords,
    }


def _child(element: ElementTree.Element, *names: str) -> ElementTree.Element:
    """Return the first of these children that there is, else the element itself."""
    children = (child for name in names if (child := element.find(name)) is not None)
    return next(children, element)


def _abstract(element: ElementTree.Element, name: str) -> str:
    """Return the parts of the first child of this name, with their labels."""
    parts = _child(element, name).iterfind("AbstractText")
    texts = ((part.get("Label"), _text(part)) for part in parts)
    return " ".join(
        f"{label}: {text}" if label not in (None, "", "UNLABELLED") else text
        for label, text in texts
        if text
    )


def _name(author: ElementTree.Element) -> str:
    whole = author.findtext("CollectiveName")
    given = author.findtext("ForeName") or author.findtext("Initials")
    parts = (given, author.findtext("LastName"), author.findtext("Suffix"))
    return whole or " ".join(part for part in parts if part)


def _text(element: ElementTree.Element | None) -> str:
    """Return all text of an element and its children, on one line."""
    return "" if element is None else " ".join("".join(element.itertext()).split())
