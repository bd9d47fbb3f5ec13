"""Tables with a header line, split at tabs or commas: the form of citations and judgments."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from scimult.data.lines import Record, Rejects, empty_file, read_lines

FIELD_LIMIT = 1 << 24
"""Longest value, in characters. The csv module has one limit for the whole process, too low."""


def read_table(path: Path | str, columns: Sequence[str], rejects: Rejects) -> Iterator[Record]:
    """Yield the rows of a table with a header line; every value is a string.

    ``.csv`` is split at commas (double quotes protect a comma), anything else at tabs without
    quoting; ``.gz`` is decompressed and blank lines are skipped.

    Parameters
    ----------
    path : path
        The table.
    columns : sequence of str
        Columns that must be there; ``"a|b"`` accepts either name and files it under ``a``.
        Others are kept under their own name.
    rejects : Rejects
        Takes the bad rows.

    Raises
    ------
    DataError
        If the file does not exist or the header lacks one of ``columns``; and, through
        ``rejects``, if it is empty or cut off, or a row has another number of values.
    """
    path = Path(path)
    header = read_header(path, columns)
    first, names, separator = header or (0, [], _separator(path))
    for number, line in read_lines(path, rejects):
        try:
            values = _split(line, separator)
        except csv.Error as error:
            fix = "quote it, or make it shorter"
            problem = f"line is not CSV: {error}"
            rejects.refuse(problem, path, number, value=line, fix=fix)
            continue
        if number <= first:
            continue
        if len(values) != len(names):
            fix = f"write {len(names)} values ({', '.join(names)}); the file may be cut off"
            rejects.refuse("wrong number of values", path, number, value=line, fix=fix)
            continue
        yield Record(path, number, dict(zip(names, values, strict=True)))
    if header is None:
        rejects.reject(empty_file(path))


def read_header(path: Path, columns: Sequence[str]) -> tuple[int, list[str], str] | None:
    """Return line and names of a table's header, and what splits its rows; see ``read_table``.

    ``None`` for a file without a line that can be read.

    Raises
    ------
    DataError
        If the file does not exist or the header lacks one of ``columns``.
    """
    csv.field_size_limit(FIELD_LIMIT)
    separator = _separator(path)
    for number, line in read_lines(path, Rejects(skip_bad=True)):
        with suppress(csv.Error):
            values = _split(line, separator)
            return number, _header(Record(path, number, {}), values, columns), separator
    return None


def _separator(path: Path) -> str:
    return "," if path.name.removesuffix(".gz").endswith(".csv") else "\t"


def _split(line: str, separator: str) -> list[str]:
    return next(csv.reader([line])) if separator == "," else line.split(separator)


def _header(place: Record, names: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Return the header with accepted alternatives renamed; raise if a column is missing."""
    header = [name.strip() for name in names]
    for column in columns:
        hits = [name for name in column.split("|") if name in header]
        if not hits:
            wanted = ", ".join(column.replace("|", " or ") for column in columns)
            raise place.error(
                f"header lacks {column.replace('|', ' or ')}",
                value=header,
                fix=f"start the file with a header line that has {wanted}",
            )
        header[header.index(hits[0])] = column.split("|")[0]
    return header
