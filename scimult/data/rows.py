"""Read rows of JSON lines, CSV, TSV, Parquet and big JSON objects in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from scimult.data.formats import HEAD_BYTES
from scimult.data.lines import empty_file, read_jsonl
from scimult.data.packed import UNPACK, no_file, open_binary, unpacked_name
from scimult.data.records import Record, Rejects
from scimult.data.tables import check_columns, delimiter_of, read_delimited
from scimult.errors import DataError

T = TypeVar("T")
PARQUET_BATCH = 1024
KINDS = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "json"),
    **{".csv": "csv", ".tsv": "tsv", ".txt": "tsv", ".parquet": "parquet"},
}
"""Kinds of files with rows, by the suffixes of their names."""


def read_rows(
    path: Path,
    rejects: Rejects,
    kind: str | None = None,
    *,
    columns: Sequence[str] = (),
    header: Sequence[str] = (),
) -> Iterator[Record]:
    """Yield the rows of a file; its name tells a ``kind`` that is not given; see also ``packed``.

    ``json``: an object per line, or one array of objects. ``csv`` (commas, semicolons or tabs) and
    ``tsv``: a table whose first line names the columns unless ``header`` does; see
    ``tables.read_delimited``. ``parquet``: a table. ``Record.line`` is the line, the first one of a
    row, or the number of the element or row.

    ``columns`` are required of a table, but not of JSON, whose records check their own fields;
    ``header`` names the columns of a table without a header line.

    Raises
    ------
    DataError
        If the file does not exist, is of no known kind or lacks a column; and, through
        ``rejects``, if it is empty, damaged or has a bad row.
    """
    kind = kind or KINDS.get(Path(unpacked_name(path)).suffix.lower())
    if kind == "json":
        return read_jsonl(path, rejects)
    if kind == "parquet":
        return read_parquet(path, columns, rejects)
    if kind is not None:
        delimiter = delimiter_of(path) if kind == "csv" else "\t"
        return read_delimited(path, delimiter, rejects, columns=columns, header=header)
    fix = f"use a file that ends in {', '.join(KINDS)} (all but .parquet also with "
    fix += f"{', '.join(UNPACK)})"
    raise DataError("unknown file type", path=path, fix=fix)


def read_parquet(path: Path, columns: Sequence[str], rejects: Rejects) -> Iterator[Record]:
    """Yield the rows of a Parquet file with at least ``columns``; see ``read_rows``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise no_file(path)

    def rows() -> Iterator[dict[str, Any] | str]:
        with pq.ParquetFile(path) as file:
            check_columns(path, None, file.schema_arrow.names, columns)
            for batch in file.iter_batches(PARQUET_BATCH):
                yield from _values(batch)

    errors = (pa.ArrowException, OSError)
    for number, row in enumerate(_undamaged(rows(), path, rejects, "Parquet file", errors), 1):
        if not isinstance(row, str):
            yield Record(path, number, row)
            continue
        fix = "write text as UTF-8, and dates of the years 1 to 9999"
        rejects.refuse("row has an invalid value", path, number, value=row, fix=fix)


def _values(batch: Any) -> list[dict[str, Any] | str]:
    """Return a batch's rows; in place of one that Python cannot hold, its column and the problem.

    Arrow checks neither the encoding of strings nor the range of dates.
    """
    try:
        values: list[dict[str, Any] | str] = batch.to_pylist()
    except (OverflowError, ValueError):
        if len(batch) > 1:
            return [row for at in range(len(batch)) for row in _values(batch.slice(at, 1))]
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                column.to_pylist()
            except (OverflowError, ValueError) as error:
                return [f"{name}: {error}"]
        raise
    return values


def read_members(path: Path, rejects: Rejects) -> Iterator[tuple[str, Record]]:
    """Yield name and value of every member of one big JSON object of objects.

    Raises
    ------
    DataError
        If the file does not exist; and, through ``rejects``, if it is not such an object.
    """
    import ijson

    fix = 'write {"id": {...}, ...}'
    with open_binary(path) as file, suppress(EOFError):
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
    caught: tuple[type[Exception], ...] = (*errors, EOFError)
    try:
        for record in records:
            is_empty = False
            yield record
    except caught as error:
        problem, fix = f"{what} is cut off or damaged", "copy or download the file again"
        rejects.refuse(problem, path, value=str(error), fix=fix)
        return
    if is_empty:
        rejects.reject(empty_file(path))
