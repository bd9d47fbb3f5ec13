"""Tables with a header line, split at tabs or commas."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from scimult.data.lines import Record, Rejects, empty_file, read_lines
from scimult.errors import DataError

FIELD_LIMIT = 1 << 24
"""Longest value, in characters; the csv module's process-wide default is too low."""


def read_table(path: Path | str, columns: Sequence[str], rejects: Rejects) -> Iterator[Record]:
    """Yield the rows of a table with a header line; every value is a string.

    ``.csv`` is split at commas (double quotes protect a comma), anything else at tabs without
    quoting; ``.gz`` is decompressed and blank lines are skipped.

    Parameters
    ----------
    path : path
        The table.
    columns : sequence of str
        Required columns; ``"a|b"`` accepts either name and calls it ``a``. Other columns keep
        their names.
    rejects : Rejects
        Collects bad rows.

    Raises
    ------
    DataError
        If the file does not exist or lacks one of ``columns``; and, through ``rejects``, if it is
        empty or cut off, or a row has the wrong number of values.
    """
    path = Path(path)
    header = read_header(path, columns)
    first, names, separator = header or (0, [], _separator(path))
    for number, line in read_lines(path, rejects):
        try:
            values = _split(line, separator)
        except csv.Error as error:
            fix = "quote the value or shorten it"
            rejects.refuse(f"line is not CSV: {error}", path, number, value=line, fix=fix)
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
    """Return a table's header line number, column names and separator; see ``read_table``.

    ``None`` if the file has no readable line.

    Raises
    ------
    DataError
        If the file does not exist or lacks one of ``columns``.
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


def _header(location: Record, names: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Return the header with accepted alternatives renamed; raise if a column is missing."""
    header = [name.strip() for name in names]
    refuse_repeated(location.path, location.line, header)
    for column in columns:
        hits = [name for name in column.split("|") if name in header]
        if not hits:
            wanted = ", ".join(column.replace("|", " or ") for column in columns)
            raise location.error(
                f"header lacks {column.replace('|', ' or ')}",
                value=header,
                fix=f"start the file with a header line with {wanted}",
            )
        header[header.index(hits[0])] = column.split("|")[0]
    return header


def refuse_repeated(path: Path, line: int | None, names: Sequence[str]) -> None:
    """Raise if two columns have the same name; several may have none."""
    repeated = [name for name, count in Counter(names).items() if name and count > 1]
    if repeated:
        problem, fix = "two columns have the same name", "rename or remove one of them"
        raise DataError(problem, path=path, line=line, value=repeated[0], fix=fix)
