"""Read rows of JSON lines, CSV, TSV, Parquet and big JSON objects in bounded memory."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from scimult.data.formats import HEAD_BYTES
from scimult.data.lines import (
    CUT_OFF,
    Record,
    Rejects,
    empty_file,
    open_binary,
    read_jsonl,
    read_lines,
)
from scimult.data.tables import FIELD_LIMIT, refuse_repeated
from scimult.errors import DataError

T = TypeVar("T")
PARQUET_BATCH = 1024
# Excel's own first line, which tells the delimiter.
_EXCEL = re.compile(r'"?sep=([,;\t|])"?', re.IGNORECASE)
KINDS = (".jsonl", ".json", ".csv", ".tsv", ".txt", ".parquet")


def read_rows(
    path: Path, rejects: Rejects, *, columns: Sequence[str] = (), header: Sequence[str] = ()
) -> Iterator[Record]:
    """Yield the rows of a file, whose kind depends on its name; ``.gz`` is decompressed.

    ``.jsonl``, ``.json``: an object per line, or one array of objects. ``.csv`` (commas, semicolons
    or tabs), ``.tsv`` and ``.txt`` (tabs): a table whose first line names the columns unless
    ``header`` does; double quotes protect separators and line breaks. ``.parquet``: a table.
    ``Record.line`` is the line, or the number of the element or row.

    Parameters
    ----------
    path : path
        The file.
    rejects : Rejects
        Collects bad rows.
    columns : sequence of str
        Required columns of a table; ignored for JSON, whose records check their own fields.
    header : sequence of str
        Column names of a table without a header line.

    Raises
    ------
    DataError
        If the file does not exist, is of no known kind or lacks a column; and, through
        ``rejects``, if it is empty, damaged or has a bad row.
    """
    kind = Path(path.name.removesuffix(".gz")).suffix
    if kind in (".jsonl", ".json"):
        yield from read_jsonl(path, rejects)
    elif kind == ".parquet":
        yield from read_parquet(path, columns, rejects)
    elif kind in KINDS:
        delimiter = delimiter_of(path) if kind == ".csv" else "\t"
        yield from read_delimited(path, delimiter, rejects, columns=columns, header=header)
    else:
        fix = f"use a file that ends in {', '.join(KINDS)} (all but .parquet also with .gz)"
        raise DataError("unknown file type", path=path, fix=fix)


def delimiter_of(path: Path) -> str:
    """Return the delimiter of a ``.csv`` file: comma, semicolon or tab."""
    first = next((line for _, line in read_lines(path, Rejects(skip_bad=True))), "")
    if (told := _EXCEL.fullmatch(first)) is not None:
        return told[1]
    try:
        counts = {mark: len(next(csv.reader([first], delimiter=mark), [])) for mark in ",;\t"}
    except csv.Error:
        return ","  # reading it reports the problem
    return max(counts, key=lambda mark: counts[mark])


def read_delimited(
    path: Path,
    delimiter: str | None,
    rejects: Rejects,
    *,
    columns: Sequence[str] = (),
    header: Sequence[str] = (),
    quoted: bool = True,
) -> Iterator[Record]:
    """Yield the rows of a delimited table; see ``read_rows``.

    ``quoted=False`` treats double quotes as text, as in files joined with tabs. Without a
    delimiter, values are separated by any spaces.
    """
    csv.field_size_limit(FIELD_LIMIT)
    lines = read_lines(path, rejects, keep_blank=True)
    names = list(header)
    number = 0
    for number, values in _split(path, lines, delimiter, quoted):
        text = (delimiter or " ").join(values)
        if not names and _EXCEL.fullmatch(text):
            continue
        if not names:
            names = [name.strip() for name in values]
            _check_columns(path, names, columns, number)
            continue
        if len(values) != len(names):
            fix = f"write {len(names)} values ({', '.join(names)}); the file may be cut off"
            rejects.refuse("wrong number of values", path, number, value=text, fix=fix)
            continue
        yield Record(path, number, dict(zip(names, values, strict=True)))
    if not number:
        rejects.reject(empty_file(path))


def _split(
    path: Path, lines: Iterable[tuple[int, str]], delimiter: str | None, quoted: bool
) -> Iterator[tuple[int, list[str]]]:
    """Yield the last line number and the values of each row that is not blank."""
    number = 0

    def text() -> Iterator[str]:
        nonlocal number
        for at, line in lines:
            number = at
            yield line + "\n"

    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    try:
        rows: Iterable[list[str]] = map(str.split, text())
        if delimiter is not None:
            rows = csv.reader(text(), delimiter=delimiter, quoting=quoting)
        for values in rows:
            if any(value.strip() for value in values):
                yield number, values
    except csv.Error as error:
        fix = "look for an unclosed quote, or shorten the value"
        raise DataError(f"not a table: {error}", path=path, line=number, fix=fix) from error


def _check_columns(
    path: Path, names: Sequence[str], columns: Sequence[str], line: int | None = None
) -> None:
    refuse_repeated(path, line, names)
    missing = [column for column in columns if column not in names]
    if missing:
        raise DataError(
            f"file lacks the column {', '.join(missing)}",
            path=path,
            line=line,
            value=list(names),
            fix="name the columns as the documentation of the source says",
        )


def read_parquet(path: Path, columns: Sequence[str], rejects: Rejects) -> Iterator[Record]:
    """Yield the rows of a Parquet file with at least ``columns``; see ``read_rows``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise DataError("file does not exist", path=path, fix="check the path")

    def rows() -> Iterator[dict[str, Any]]:
        with pq.ParquetFile(path) as file:
            _check_columns(path, file.schema_arrow.names, columns)
            for batch in file.iter_batches(PARQUET_BATCH):
                yield from batch.to_pylist()

    errors = (pa.ArrowException, OSError)
    for number, row in enumerate(_undamaged(rows(), path, rejects, "Parquet file", errors), 1):
        yield Record(path, number, row)


def read_members(path: Path, rejects: Rejects) -> Iterator[tuple[str, Record]]:
    """Yield name and value of every member of one big JSON object of objects.

    Raises
    ------
    DataError
        If the file does not exist; and, through ``rejects``, if it is not such an object.
    """
    import ijson

    fix = 'write {"id": {...}, ...}'
    with open_binary(path) as file, suppress(*CUT_OFF):
        start = file.read(HEAD_BYTES).strip()
        if start and not start.startswith(b"{"):
            value = start[:60].decode(errors="replace")
            rejects.refuse("file is not one JSON object", path, value=value, fix=fix)
            return

    def members() -> Iterator[tuple[str, Any]]:
        with open_binary(path) as file:
            yield from ijson.kvitems(file, "", use_float=True)

    errors = (ijson.JSONError, UnicodeDecodeError)
    read = _undamaged(members(), path, rejects, "JSON file", errors)
    for number, (name, value) in enumerate(read, start=1):
        if isinstance(value, dict):
            yield name, Record(path, number, value)
        else:
            rejects.refuse("member is not an object", path, number, value=name, fix=fix)


def _undamaged(
    records: Iterable[T],
    path: Path,
    rejects: Rejects,
    what: str,
    errors: tuple[type[Exception], ...],
) -> Iterator[T]:
    """Yield the records of a file; reject it if it is cut off, damaged or empty."""
    is_empty = True
    caught: tuple[type[Exception], ...] = (*errors, *CUT_OFF)
    try:
        for record in records:
            is_empty = False
            yield record
    except DataError:
        raise
    except caught as error:
        problem, fix = f"{what} is cut off or damaged", "copy or download the file again"
        rejects.refuse(problem, path, value=str(error), fix=fix)
        return
    if is_empty:
        rejects.reject(empty_file(path))
