"""Build an imported paper from a record with our field names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from scimult.data.importers.doi import short_doi
from scimult.data.importers.markup import known_text, plain_text
from scimult.data.importers.names import person
from scimult.data.importers.values import first, is_missing, list_in, year_of
from scimult.data.records import Record
from scimult.errors import DataError
from scimult.types import Text

FIELDS = ("id", "title", "abstract", "authors", "venue", "year", "doi", "references", "labels")
NO_TEXT = "title and abstract are both empty"


class Location(NamedTuple):
    """Location of a paper: the file, and the number of its line, row or element."""

    file: Path
    line: int


@dataclass(frozen=True, slots=True)
class ImportedPaper:
    """One paper of a user's file.

    Parameters
    ----------
    id : str
        Id in the file, or else the DOI, or else a hash of title and abstract.
    title, abstract : str
        One line each; not both empty.
    authors : list of str
        Names in the order of the paper.
    venue : str
        Empty if unknown, as ``doi``.
    year : int or None
        Year, extracted from a date if need be.
    doi : str
        Lower case, without ``https://doi.org/``.
    references : list of str
        Ids of cited papers, as in the file; unique.
    labels : list of str
        Names of subjects, keywords or tags; unique.
    extra : dict
        Other requested columns.
    location : Location
        File and line.
    id_from : str
        Where the id comes from.
    """

    id: str
    title: str
    abstract: str
    authors: list[str]
    venue: str
    year: int | None
    doi: str
    references: list[str]
    labels: list[str]
    extra: dict[str, Any]
    location: Location
    id_from: Literal["record", "doi", "text"] = "record"

    @property
    def text(self) -> Text:
        """Title and abstract, for an encoder."""
        return Text("paper", self.title, self.abstract)

    def fields(self) -> dict[str, Any]:
        """Return its fields, with the extra ones, as users write a paper; None for empty ones."""
        known = ("authors", "references", "labels", "venue", "year", "doi")
        own = {"id": self.id, "title": self.title, "abstract": self.abstract}
        return {**own, **{name: getattr(self, name) or None for name in known}, **self.extra}


def make_paper(record: Record, separator: str = ";", *, has_text: bool = True) -> ImportedPaper:
    """Return the paper of a record with our field names; other fields become ``extra``.

    Lists may be strings, split at ``separator``. Texts, authors and labels lose tags and entities;
    see ``plain_text``. Without ``has_text`` both may be empty.

    Raises
    ------
    DataError
        If a field is of the wrong type, the year is not one, or title and abstract are empty.
    """
    fields = {name: None if is_missing(value) else value for name, value in record.fields.items()}
    record = Record(record.path, record.line, fields)
    title, abstract, venue = (
        known_text(plain_text(_line(record, name))) for name in ("title", "abstract", "venue")
    )
    if has_text and not title and not abstract:
        raise record.error(
            NO_TEXT,
            value=fields.get("id"),
            fix="give it a text, name the columns that hold one, or leave it out with --skip-bad",
        )
    doi = short_doi(_line(record, "doi"))
    identifier, source = _identifier(record, doi, title, abstract)
    authors, labels = (
        [name for item in _list(record, field, separator) if (name := plain_text(item))]
        for field in ("authors", "labels")
    )
    references = _list(record, "references", separator)
    return ImportedPaper(
        identifier,
        title,
        abstract,
        authors,
        venue,
        year_of(record),
        doi,
        list(dict.fromkeys(references)),
        list(dict.fromkeys(labels)),
        {name: value for name, value in fields.items() if name not in FIELDS},
        Location(record.path, record.line),
        source,
    )


def _line(record: Record, name: str) -> str:
    """Return a string field on one line; empty if missing."""
    value = record.fields.get(name)
    if value is None:
        return ""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return " ".join(_with_value(record, name, value).text(name).split())


def _with_value(record: Record, name: str, value: Any) -> Record:
    return Record(record.path, record.line, {name: value})


def _identifier(
    record: Record, doi: str, title: str, abstract: str
) -> tuple[str, Literal["record", "doi", "text"]]:
    value = record.fields.get("id")
    if value not in (None, ""):
        return _with_value(record, "id", value).identifier("id"), "record"
    if doi:
        return doi, "doi"
    return text_id(title, abstract), "text"


def text_id(*parts: str) -> str:
    """Return the id of a text without one, such as of a title and an abstract: a hash of them."""
    return hashlib.blake2b("\x00".join(parts).encode(), digest_size=10).hexdigest()


def id_of(record: Record) -> str | None:
    """Return the id that a record gives its paper, whatever else is wrong; None if it has none."""
    try:
        identifier, source = _identifier(record, short_doi(_line(record, "doi")), "", "")
    except DataError:
        return None
    return None if source == "text" else identifier


def _list(record: Record, name: str, separator: str) -> list[str]:
    """Return a list field, or a string field's list; persons may be objects."""
    value = record.fields.get(name)
    if isinstance(value, str):
        value = list_in(value, separator)
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, list):
        # Dumps have persons whose every field is empty.
        value = [person(item) or item for item in value if not _is_void(item)]
    items = _with_value(record, name, value).identifiers(name)
    return [text for item in items if (text := " ".join(item.split()))]


def _is_void(item: Any) -> bool:
    return is_missing(item) or (isinstance(item, Mapping) and first(item, *item) is None)
