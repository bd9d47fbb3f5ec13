"""Papers for a library, from mappings or files: id, text to encode, columns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa

from scimult.data.importers import ImportedPaper, read_papers
from scimult.data.importers.paper import FIELDS
from scimult.data.records import Rejects
from scimult.errors import DataError
from scimult.inference.collection import given_twice
from scimult.inference.texts import paper_of, rows_of
from scimult.library.papers import OWN_TYPES
from scimult.library.segments import ARROW_TYPES
from scimult.library.values import as_text
from scimult.retrieval.store import key_of
from scimult.terminal import is_one_line
from scimult.types import Text

_TYPE_NAMES = {
    "BIGINT": "whole numbers",
    "DOUBLE": "numbers",
    "BOOLEAN": "true or false",
    "VARCHAR": "text",
    "VARCHAR[]": "lists of text",
}
# Fields that become id and text rather than columns.
_READ = ("id", "_id", "title", "abstract", "text", "body")


@dataclass(frozen=True)
class Paper:
    """One paper.

    Attributes
    ----------
    id : str
        Its id.
    text : Text
        Title and abstract.
    columns : mapping
        Everything else, by name.
    """

    id: str
    text: Text
    columns: Mapping[Any, Any] = field(default_factory=dict)

    @cached_property
    def text_hash(self) -> str:
        """Hash of the encoded text."""
        return key_of(self.text).hex()

    @cached_property
    def paper_hash(self) -> str:
        """Hash of id, text and columns."""
        known = {name: value for name, value in self.columns.items() if value is not None}
        text = json.dumps([self.id, known], sort_keys=True, ensure_ascii=True, default=str)
        return hashlib.sha256(f"{self.text_hash} {text}".encode()).hexdigest()[:32]


def as_papers(items: Iterable[object]) -> Iterator[Paper]:
    """Yield a user's items as papers; a mapping has ``id``, ``title`` and ``abstract``.

    All other fields become columns. A frame is read row by row; NaN means absent.

    Raises
    ------
    DataError
        If they are a path, or an item is not a paper: no id, no text, or text in a field that is
        not read.
    """
    if isinstance(items, (str, PurePath)):
        fix = "pass scimult.data.importers.read_papers(path)"
        raise DataError("papers are a path, not papers", value=str(items), fix=fix)
    for index, item in enumerate(rows_of(items) or items):
        if isinstance(item, Paper):
            yield item
            continue
        if isinstance(item, ImportedPaper):
            yield _of_file(item)
            continue
        fields, text = paper_of(item, index)
        name = fields["id"]
        if not all(isinstance(key, str) for key in fields):
            fix = "name every field by a string"
            raise DataError(
                f"paper {name!r}: a field's name is no string", value=[*fields], fix=fix
            )
        columns = {key: value for key, value in fields.items() if key not in _READ}
        yield Paper(name, text, columns)


def column_types(papers: Sequence[Paper], known: Mapping[str, str]) -> dict[str, str]:
    """Return the types of all columns by name: ``known`` ones, and new ones of these papers.

    Raises
    ------
    DataError
        If a new column has a name that the library uses itself or that cannot be written.
    """
    seen: dict[str, set[str]] = {}
    for paper in papers:
        for name, value in paper.columns.items():
            if name not in known and value is not None:
                seen.setdefault(name, set()).add(_type_of(value))
    lowered = {name.casefold() for name in (*OWN_TYPES, *known)}
    for name in seen:
        if name.casefold() in lowered or not is_one_line(name) or not name.strip():
            fix = "give the column another name; upper and lower case count as the same"
            raise DataError("column name is taken", value=name, fix=fix)
        lowered.add(name.casefold())
    return {**known, **{name: _common(kinds) for name, kinds in seen.items()}}


def as_table(papers: Sequence[Paper], first_row: int, types: Mapping[str, str]) -> pa.Table:
    """Return papers as a table of a library's columns, numbered from ``first_row``.

    Raises
    ------
    DataError
        If a value does not fit its column; the message names paper and column.
    """
    columns = {
        "row": pa.array(range(first_row, first_row + len(papers)), pa.int64()),
        "id": pa.array([paper.id for paper in papers], pa.string()),
        "title": pa.array([paper.text.title for paper in papers], pa.string()),
        "abstract": pa.array([paper.text.body for paper in papers], pa.string()),
        "text_hash": pa.array([paper.text_hash for paper in papers], pa.string()),
        "paper_hash": pa.array([paper.paper_hash for paper in papers], pa.string()),
    }
    for name, kind in types.items():
        values = [_converted(paper, name, kind) for paper in papers]
        try:
            columns[name] = pa.array(values, ARROW_TYPES[kind])
        except UnicodeEncodeError as error:
            problem = f"column {name!r} holds unpaired surrogates"
            fix = "decode its bytes in their encoding (UTF-8, Latin-1)"
            raise DataError(problem, value=error.object, fix=fix) from None
    return pa.table(columns)


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if abs(value) < 2**63 else "VARCHAR"
    if isinstance(value, float):
        return "DOUBLE"
    return "VARCHAR[]" if isinstance(value, (list, tuple)) else "VARCHAR"


def _common(kinds: set[str]) -> str:
    if kinds <= {"BIGINT", "DOUBLE"}:
        return "DOUBLE" if "DOUBLE" in kinds else "BIGINT"
    if "VARCHAR[]" in kinds:
        return "VARCHAR[]"
    return kinds.copy().pop() if len(kinds) == 1 else "VARCHAR"


def _converted(paper: Paper, name: str, kind: str) -> Any:
    value = paper.columns.get(name)
    if value is None:
        return None
    actual = _type_of(value)
    if actual == kind and not kind.startswith("VARCHAR"):
        return value
    if kind == "VARCHAR[]":
        items = value if actual == "VARCHAR[]" else [value]
        return [as_text(item) for item in items if item is not None]
    if kind == "VARCHAR":
        return as_text(value)
    if kind == "DOUBLE" and actual == "BIGINT":
        return float(value)
    if kind == "BIGINT" and actual == "DOUBLE" and value.is_integer() and abs(value) < 2**63:
        return int(value)
    raise DataError(
        f"paper {paper.id!r}: column {name!r} holds {_TYPE_NAMES[kind]}, this is "
        f"{_TYPE_NAMES[actual]}",
        value=value,
        fix="write it like the others, or give the column another name",
    )


def read_files(
    files: Sequence[Path | str],
    rejects: Rejects,
    *,
    format: str | None = None,
    columns: Mapping[str, str | None] | None = None,
) -> Iterator[Paper]:
    """Yield the papers of files; ``rejects`` receives bad records and repeated ids.

    Other arguments are those of `scimult.data.importers.read_papers`.

    Raises
    ------
    DataError
        If a file is missing or of an unknown format; and, through ``rejects``, at a bad record.
    """
    seen: set[str] = set()
    for paper in read_papers(files, format=format, columns=columns, rejects=rejects):
        if not is_one_line(paper.id):
            path, line = paper.location
            problem = "id holds a line break or control character"
            fix = "give it another id, or leave it out with --skip-bad"
            error = DataError(problem, path=path, line=line, value=paper.id, fix=fix)
            rejects.reject(error, paper.id)
        elif paper.id in seen:
            rejects.reject(given_twice(paper.id, paper.text, *paper.location), paper.id)
        else:
            seen.add(paper.id)
            yield _of_file(paper)


def _of_file(paper: ImportedPaper) -> Paper:
    columns = {name: value for name, value in paper.fields().items() if name not in FIELDS[:3]}
    return Paper(paper.id, paper.text, columns)
