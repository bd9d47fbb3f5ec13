"""Read the Atom feeds of arXiv's API (https://info.arxiv.org/help/api/user-manual.html)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from scimult.data.importers.values import year_in
from scimult.data.packed import open_binary
from scimult.data.records import Record, Rejects

_ATOM, _ARXIV = "{http://www.w3.org/2005/Atom}", "{http://arxiv.org/schemas/atom}"
_ADDRESS = re.compile(r"https?://arxiv\.org/abs/(.+?)(?:v\d+)?$")


def read_atom(path: Path, rejects: Rejects) -> Iterator[Record]:
    """Yield the papers of a feed; the "line" is the number of the entry.

    Raises
    ------
    DataError
        Through ``rejects``, if a file is cut off or has no paper, or an entry is none of arXiv's.
    """
    number = 0
    try:
        with open_binary(path) as file:
            for _, entry in ElementTree.iterparse(file):
                if entry.tag != f"{_ATOM}entry":
                    continue
                number += 1
                address = entry.findtext(f"{_ATOM}id", "").strip()
                if match := _ADDRESS.match(address):
                    yield Record(path, number, {"id": match[1], **_paper(entry)})
                else:  # its errors are entries, too
                    problem, fix = "entry is no paper of arXiv", "correct the query"
                    value = entry.findtext(f"{_ATOM}summary") or address
                    rejects.refuse(problem, path, number, value=value, fix=fix)
                entry.clear()
    except (ElementTree.ParseError, EOFError) as error:
        problem, fix = "XML file is cut off or damaged", "download the file again"
        rejects.refuse(problem, path, number + 1, value=str(error), fix=fix)
        return
    if not number:
        rejects.refuse("feed has no entries", path, fix="correct the query, or leave the file out")


def _paper(entry: ElementTree.Element) -> dict[str, Any]:
    names = [author.findtext(f"{_ATOM}name", "") for author in entry.iterfind(f"{_ATOM}author")]
    return {
        "title": entry.findtext(f"{_ATOM}title"),
        "abstract": entry.findtext(f"{_ATOM}summary"),
        "authors": names,
        "venue": entry.findtext(f"{_ARXIV}journal_ref"),
        "year": year_in(entry.findtext(f"{_ATOM}published")),
        "doi": entry.findtext(f"{_ARXIV}doi"),
        "labels": [one.get("term") for one in entry.iterfind(f"{_ATOM}category")],
    }
