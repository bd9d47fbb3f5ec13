"""Read reference managers' exports: BibTeX (bibtexparser), RIS (rispy) and PubMed XML."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from scimult.data.importers.paper import first, year_in
from scimult.data.lines import Record, Rejects, empty_file, read_lines
from scimult.data.packed import open_binary
from scimult.errors import DataError

_LATEX = re.compile(r"[\\~$]|--|``|''")
_LATEX_MARK = re.compile(r"\\begin\b|\\end\b|\\.|\$\$?|[{}]")
_OPENS = {"{": 1, "}": -1, "\\begin": 1, "\\end": -1, "\\(": 1, "\\)": -1, "\\[": 1, "\\]": -1}
_COMMAND_LAST = re.compile(r"\\(?:[A-Za-z]+\*?|[^A-Za-z])$")
_PERCENT = re.compile(r"(?<!\\)%")
_BRACES = str.maketrans("", "", "{}")
_KEYWORDS = re.compile(r"\s*[;,]\s*")
_RIS_LINE = re.compile(r"([A-Z][A-Z0-9])\s{0,2}-(?:\s|$)")


def read_bibtex(path: Path, rejects: Rejects) -> Iterator[Record]:
    """Yield the entries of a BibTeX or BibLaTeX file, with accents and commands decoded.

    Raises
    ------
    DataError
        Through ``rejects``: an entry that cannot be parsed, or a repeated key.
    """
    from bibtexparser.entrypoint import parse_string
    from bibtexparser.model import (
        DuplicateBlockKeyBlock,
        DuplicateFieldKeyBlock,
        Entry,
        ParsingFailedBlock,
    )

    logging.getLogger("bibtexparser").setLevel(logging.CRITICAL)  # our rejects name the line
    lines = dict(read_lines(path, rejects, keep_blank=True))
    text = "\n".join(lines.get(number, "") for number in range(1, max(lines, default=0) + 1))
    library = parse_string(text)
    decode = _latex_decoder()
    # Properties of ``library`` search all blocks at every use.
    for block in library.blocks:
        number = (block.start_line or 0) + 1
        if isinstance(block, ParsingFailedBlock):
            if isinstance(block, DuplicateBlockKeyBlock):
                problem = "key occurs twice in one file"
                fix = "give one of them another key, or leave it out with --skip-bad"
                value: Any = block.key
            elif isinstance(block, DuplicateFieldKeyBlock):
                problem, fix = "entry has a field twice", "remove one of them"
                value = ", ".join(sorted(block.duplicate_keys))
            else:
                problem, fix = "entry is not valid BibTeX", "check its braces and commas"
                error = getattr(block, "error", None)
                value = getattr(error, "abort_reason", str(error))
            rejects.refuse(problem, path, number, value=value, fix=fix)
    for entry in library.blocks:
        if not isinstance(entry, Entry):
            continue
        number = (entry.start_line or 0) + 1
        fields = {field.key.lower(): str(field.value) for field in entry.fields}
        record = Record(path, number, {"key": entry.key, **fields})
        try:
            yield Record(path, number, {**record.fields, **_bibtex_paper(record, decode)})
        except ValueError as error:
            problem, fix = "entry cannot be decoded", "replace its LaTeX by plain letters"
            rejects.reject(record.error(problem, value=str(error), fix=fix))
    if not library.entries and not library.failed_blocks:
        rejects.reject(empty_file(path))


def _bibtex_paper(record: Record, decode: Callable[[str], str]) -> dict[str, Any]:
    from bibtexparser.middlewares.names import (
        parse_single_name_into_parts,
        split_multiple_persons_names,
    )

    fields = record.fields
    persons = split_multiple_persons_names(first(fields, "author", "editor") or "")
    parts = [parse_single_name_into_parts(person, strict=False) for person in persons]
    names = [decode(name.merge_first_name_first) for name in parts]
    keywords = decode(first(fields, "keywords", "keyword", "mendeley-tags") or "")
    return {
        "id": fields["key"],
        "title": decode(fields.get("title", "")),
        "abstract": decode(fields.get("abstract", "")),
        "authors": [name for name in names if name != "others"],
        "venue": decode(first(fields, "journal", "journaltitle", "booktitle", "school") or ""),
        "year": year_in(first(fields, "year", "date")),
        "doi": first(fields, "doi", "url"),
        "labels": [word for word in _KEYWORDS.split(keywords) if word],
    }


def _latex_decoder() -> Callable[[str], str]:
    """Return a LaTeX decoder for texts on one line.

    As decoding takes a millisecond for 200 characters, text with braces alone just loses them.
    """
    from pylatexenc.latex2text import LatexNodes2Text
    from pylatexenc.latexwalker import get_default_latex_context_db

    decoder, context = LatexNodes2Text(math_mode="verbatim"), get_default_latex_context_db()

    def decoded(piece: str) -> str:
        if not _LATEX.search(piece):
            return piece.translate(_BRACES)
        # Many exports write "5% of": to LaTeX, the rest of the line would be a comment.
        piece = _PERCENT.sub(r"\\%", piece)
        return str(decoder.latex_to_text(piece, latex_context=context))

    return lambda text: " ".join(map(decoded, _pieces(text)))


def _pieces(text: str) -> Iterator[str]:
    """Yield a text's words; those of one group, formula or environment together.

    A word that ends with a command is not the last, as that takes the next one or its space.
    """
    words: list[str] = []
    depth, in_formula = 0, False
    for word in text.split():
        words.append(word)
        for mark in _LATEX_MARK.findall(word):
            depth = max(depth + _OPENS.get(mark, 0), 0)
            in_formula ^= mark.startswith("$")
        if not depth and not in_formula and not _COMMAND_LAST.search(word):
            yield " ".join(words)
            words = []
    if words:
        yield " ".join(words)


def read_ris(path: Path, rejects: Rejects) -> Iterator[Record]:
    """Yield the references of a RIS file.

    Raises
    ------
    DataError
        Through ``rejects``: a reference without an end, or a line outside a reference.
    """
    import rispy

    reference: list[str] = []
    start = 0
    has_references = False
    for number, line in read_lines(path, rejects):
        tag = _RIS_LINE.match(line)
        if tag and tag[1] == "TY":
            has_references = True
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
            for fields in rispy.loads("\n".join(reference) + "\n"):
                yield Record(path, start, {**fields, **_ris_paper(fields)})
            reference, start = [], 0
    if reference:
        rejects.reject(_ris_error(path, start, reference[0], "reference has no end"))
    if not has_references:
        rejects.reject(empty_file(path))


def _ris_error(path: Path, number: int, line: str, problem: str) -> DataError:
    fix = "start every reference with 'TY  - ' and end it with 'ER  - '; the file may be cut off"
    return DataError(problem, path=path, line=number, value=line, fix=fix)


def _ris_paper(fields: dict[str, Any]) -> dict[str, Any]:
    names = first(fields, "authors", "first_authors", "secondary_authors") or ()
    venues = ("journal_name", "secondary_title", "alternate_title1", "alternate_title3")
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
    """Return ``Given Family`` for ``Family, Given``; other forms unchanged."""
    family, _, given = (part.strip() for part in name.partition(","))
    return f"{given.replace(',', '')} {family}".strip()


def read_pubmed(path: Path, rejects: Rejects) -> Iterator[Record]:
    """Yield the articles and books of PubMed XML; the "line" is the number of the article.

    Raises
    ------
    DataError
        Through ``rejects``, if the file is cut off, is not XML or has no article.
    """
    number = 0
    try:
        with open_binary(path) as file:
            for _, element in ElementTree.iterparse(file):
                if element.tag not in ("PubmedArticle", "PubmedBookArticle"):
                    continue
                number += 1
                yield Record(path, number, _pubmed_paper(element))
                element.clear()
    except (ElementTree.ParseError, EOFError) as error:
        problem, fix = "XML file is cut off or damaged", "download the file again"
        rejects.refuse(problem, path, number + 1, value=str(error), fix=fix)
        return
    if not number:
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
        "title": next(filter(None, (_text(article.find(name)) for name in titles)), ""),
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
    return whole or " ".join(part for part in (given, author.findtext("LastName")) if part)


def _text(element: ElementTree.Element | None) -> str:
    """Return all text of an element and its children, on one line."""
    return "" if element is None else " ".join("".join(element.itertext()).split())
