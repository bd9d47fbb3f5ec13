"""Read bibliographies of tagged lines: RIS, .nbib (PubMed), .enw (EndNote) and Web of Science.

A line starts with a tag, or continues the one before. One reader reads every format; a ``Layout``
says how its tags look and what they mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

from scimult.data.importers.doi import linked_doi, short_doi
from scimult.data.importers.markup import known_text
from scimult.data.importers.names import first_name_first
from scimult.data.importers.values import first, keywords_in, year_in
from scimult.data.lines import empty_file, read_lines
from scimult.data.records import Record, Rejects
from scimult.errors import DataError


class Layout(NamedTuple):
    """A format of tagged lines.

    Parameters
    ----------
    what : str
        What a record is called in messages.
    line : pattern
        A line that starts with a tag: the tag and its text.
    first : str
        Tag that a record starts with.
    fields : mapping
        Our fields and their tags: the first that has a text counts, and those after a comma too;
        those joined by a plus are one. ``groups`` are authors that are no persons, ``link`` an
        address that may be that of a DOI.
    last : str
        Tag that a record ends with; without it, it ends where the next one starts.
    lists : set of str
        Tags whose further lines are values of their own.
    loose : pattern, optional
        What also starts with a tag, in records whose first line does not match ``line``.
    outside : set of str
        Tags outside records.
    noise : mapping
        What is no part of a tag's texts.
    comma : bool
        Whether commas separate keywords that are all on one line.
    """

    what: str
    line: re.Pattern[str]
    first: str
    fields: Mapping[str, str]
    last: str = ""
    lists: Set[str] = frozenset()
    loose: re.Pattern[str] | None = None
    outside: Set[str] = frozenset()
    noise: Mapping[str, re.Pattern[str]] = {}
    comma: bool = False


# "*Mice": databases mark what a paper is mainly about. Not "*-algebras".
_MAIN = re.compile(r"^\*(?!-)")
# In all three specifications.
_RIS_TAGS = (
    r"(A[1-4BDNUV]|BT|C[1-8ANPTY]|D[ABOP]|E[DPT]|I[DS]|J[12AFO]|KW|L[1-4AB]|M[1-3]|N[12V]|OP|P[BY]|"
    r"R[INP]|S[ENPT]|T[1-3AITY]|U[1-5R]|V[LO]|Y[12])"
)
LAYOUTS: Mapping[str, Layout] = {
    # Tags have two spaces before the dash, so that text may be broken before "UV - visible". Some
    # exports have one or none: then known tags count. The end has nothing after it.
    "ris": Layout(
        "RIS reference",
        re.compile(r"(?=..  -(?:\s|$)|ER\s?-\s*$)([A-Z][A-Z0-9])\s{0,2}-(.*)"),
        "TY",
        {
            "id": "ID AN",
            "title": "TI, T1, TT, BT, CT, ST",
            "abstract": "AB N2",
            "authors": "AU+A1 A2 ED",
            # JF is a journal's full name; JO, J2, JA and J1 may be abbreviations. Zotero writes the
            # title of proceedings as C3.
            "venue": "JF T2 JO J2 JA J1 C3 BT",
            "year": "PY, Y1, DA",
            "doi": "DO, M3",
            "link": "UR",
            "labels": "KW",
        },
        last="ER",
        lists={"A1", "A2", "A3", "A4", "AU", "ED", "KW"},
        noise={"KW": _MAIN},
        comma=True,
        loose=re.compile(rf"{_RIS_TAGS}\s{{0,2}}-(?:\s(.*)|$)"),
        # Ovid ends an export, or each record, with "C1  - Database: Embase" and the search.
        outside={"C1"},
    ),
    # https://www.nlm.nih.gov/bsd/mms/medlineelements.html. ERIC's records have an OID, no PMID.
    "nbib": Layout(
        "PubMed record",
        # Some write "PMID-123"; nothing else may miss the space.
        re.compile(r"(PMID(?=\s{0,2}-\d)|[A-Z]{2,4}(?=\s{0,2}-(?:\s|$)))\s{0,2}-\s?(.*)"),
        "PMID",
        {
            "id": "PMID OID",
            "title": "TI, TT, BTI",
            "abstract": "AB OAB",
            "authors": "FAU AU FED ED",
            "groups": "CN",
            "venue": "JT TA BTI",
            "year": "DP",
            "doi": "LID, AID",
            "labels": "MH, OT",
        },
        # "*Mice/genetics/*metabolism"
        noise={"MH": re.compile(r"^\*|/.*"), "OT": _MAIN},
    ),
    # Not the label %F: in HAL's exports it is the kind of work.
    "enw": Layout(
        "EndNote reference",
        re.compile(r"(%[^\s%])(?:\s(.*)|$)"),
        "%0",
        {
            "id": "%M",
            "title": "%T",
            "abstract": "%X",
            "authors": "%A %E",
            "venue": "%J %B",
            "year": "%D, %8",
            "doi": "%R",
            "link": "%U",
            "labels": "%K",
        },
        lists={"%K"},
        noise={"%K": _MAIN},
        comma=True,
    ),
    # Also the columns of its tab-delimited export.
    "wos": Layout(
        "Web of Science record",
        re.compile(r"([A-Z][A-Z0-9])(?:\s(.*)|$)"),
        "PT",
        {
            "id": "UT",
            "title": "TI",
            "abstract": "AB",
            "authors": "AF AU BF BA",
            "groups": "CA",
            "venue": "SO",
            "year": "PY, EY, EA",
            "doi": "DI",
            "labels": "DE ID",
            "references": "CR",
        },
        last="ER",
        lists={"AF", "AU", "BA", "BF", "CR"},
        outside={"FN", "VR", "EF"},
    ),
}


@dataclass
class _Open:
    """A record that is being read: where it starts, and the lines of its texts by tag."""

    line: int
    start: str
    first: str
    is_strict: bool
    rejected: int
    texts: dict[str, list[list[str]]] = field(default_factory=dict)
    tag: str = ""

    def add(self, tag: str, text: str, lists: Set[str]) -> None:
        """Add a line: a tag with its text, or more text of the tag before."""
        self.tag = tag or self.tag
        texts = self.texts.setdefault(self.tag, [])
        if tag or self.tag in lists:
            texts.append([text])
        else:
            texts[-1].append(text)

    def fields(self, layout: Layout) -> dict[str, Any]:
        """Return the texts by tag: a list where there may be several."""
        fields: dict[str, Any] = {}
        for tag, lines in self.texts.items():
            texts, noise = list(map(" ".join, lines)), layout.noise.get(tag)
            if noise:
                texts = [noise.sub("", text) for text in texts]
            texts = [text for text in map(str.strip, texts) if text]
            fields[tag] = texts if len(texts) != 1 or tag in layout.lists else texts[0]
        return fields


def read_tagged(path: Path, rejects: Rejects, layout: Layout) -> Iterator[Record]:
    """Yield the records of a file, with their texts by tag.

    A record that does not start with the layout's first tag, where none need end with a tag, is
    what blank lines separate. One of which a line is no UTF-8 is left out as a whole.

    Raises
    ------
    DataError
        Through ``rejects``: a record without an end, or a line outside a record.
    """
    record: _Open | None = None
    has_records = False
    is_after_blank = True
    for number, line in read_lines(path, rejects, keep_blank=True):
        if not line.strip():
            is_after_blank = True
            continue
        tag, text, is_strict = _split(line, layout, record)
        starts = _starts(tag, layout, record, is_after_blank)
        is_after_blank = False
        if starts:
            if record:
                yield from _closed(path, record, layout, rejects)
            has_records = True
            record = _Open(number, line, tag, is_strict, _count(rejects))
        elif record is None:
            # Lines without a tag are numbers, or the exporter's name.
            if tag and tag not in layout.outside:
                rejects.reject(_error(path, number, line, "line is outside a record", layout))
            continue
        record.add(tag, text, layout.lists)
        if tag and tag == layout.last:
            yield from _closed(path, record, layout, rejects)
            record = None
    if record:
        yield from _closed(path, record, layout, rejects)
    if not has_records:
        rejects.reject(empty_file(path, layout.what))


def _split(line: str, layout: Layout, record: _Open | None) -> tuple[str, str, bool]:
    """Return a line's tag, empty if it goes on with the one before; its text; if it is strict."""
    match = layout.line.match(line)
    is_strict = match is not None
    if layout.loose is not None and not is_strict and not (record and record.is_strict):
        match = layout.loose.match(line)
    return (match[1], (match[2] or "").strip(), is_strict) if match else ("", line.strip(), False)


def _starts(tag: str, layout: Layout, record: _Open | None, is_after_blank: bool) -> bool:
    """Return whether a line starts a record; blank lines are part of one with a first tag.

    Repositories write "%0" second, after the title: there it belongs to the record.
    """
    is_inside = record is not None and record.first == layout.first
    if tag == layout.first:
        is_second = record is not None and tag not in record.texts and not is_after_blank
        return bool(layout.last) or not is_second
    return tag != "" and not layout.last and is_after_blank and not is_inside


def _closed(path: Path, record: _Open, layout: Layout, rejects: Rejects) -> Iterator[Record]:
    """Yield a record unless it has no end, or reading its lines has rejected one."""
    if layout.last and record.tag != layout.last:
        problem = f"{layout.what} has no end"
        rejects.reject(_error(path, record.line, record.start, problem, layout))
    elif record.rejected == _count(rejects):
        yield Record(path, record.line, record.fields(layout))


def _count(rejects: Rejects) -> int:
    return sum(rejects.counts.values())


def _error(path: Path, number: int, line: str, problem: str, layout: Layout) -> DataError:
    fix = f"start every record with {layout.first}"
    fix += f" and end it with {layout.last}; the file may be cut off" if layout.last else ""
    return DataError(problem, path=path, line=number, value=line, fix=fix)


def paper_of(layout: Layout, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Convert texts by tag, or a row whose columns are tags, to our fields."""

    def texts(name: str) -> list[str]:
        values = (_first(fields, tags) for tags in layout.fields.get(name, "").split(","))
        lists = (value if isinstance(value, list) else [value] for value in values if value)
        return [text for texts in lists for text in texts]

    def several(name: str, end: str = ";") -> list[str]:
        # Tables write them in one text.
        return [part for text in texts(name) for part in re.split(end, unescape(text))]

    def doi(name: str, doi_in: Callable[[str], str]) -> str:
        return next(filter(None, map(doi_in, texts(name))), "")

    labels = several("labels")
    if layout.comma and len(labels) == 1:
        labels = keywords_in(labels[0])
    paper = {
        **{name: next(iter(texts(name)), "") for name in ("id", "venue")},
        "abstract": " ".join(texts("abstract")),
        "title": next(filter(known_text, texts("title")), ""),
        "authors": [*map(first_name_first, several("authors")), *several("groups")],
        "year": next(filter(None, map(year_in, texts("year"))), None),
        "doi": doi("doi", short_doi) or doi("link", linked_doi),
        "labels": labels,
    }
    if "references" in layout.fields:
        # Only their DOI says what they are, so it is also the papers' id. The text ends in
        # "DOI 10.1000/1", or "DOI [arXiv:2311.1, 10.1000/1]".
        # DOIs may hold a semicolon, but no space after it.
        works = several("references", r";\s+")
        cited = filter(None, (short_doi(text.rstrip("]")) for text in works))
        paper |= {"references": list(cited), "id": paper["doi"] or paper["id"]}
    return paper


def _first(fields: Mapping[str, Any], names: str) -> Any:
    """Return the text or texts of the first of these tags, see ``Layout``, that has one."""
    for name in names.split():
        tags = name.split("+")
        texts = first(fields, name)
        if len(tags) > 1:
            texts = []
            for tag in fields:  # in the order of the file; some write all texts under each tag
                if tag in tags:
                    texts += [text for text in fields[tag] if text not in texts]
        if texts:
            return texts
    return None
