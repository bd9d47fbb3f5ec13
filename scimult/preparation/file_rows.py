"""Read files as DuckDB rows: SQL over their lines, Python for a file with an unusual row.

DuckDB parses fast, but its errors name neither file nor line. So the statement over a file stops
at the first row that is not plainly valid, and Python reads that file again, record by record:
its errors have a location, and unusual but valid rows are accepted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scimult.data.importers.engine import run
from scimult.data.lines import Record, Rejects
from scimult.data.packed import open_binary

LINES = pa.schema([("line", pa.int64()), ("text", pa.string())])
_BLOCK = 1 << 22
_LONGEST = 1 << 26
_RECORDS = 4096
_BOM = b"\xef\xbb\xbf"
_SPACES = "".join(chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace())
_UNUSUAL = "error('unusual')"
_NUMBER = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
# Functions of strings x and JSON values j. Each stops the statement at a value that it cannot judge
# for certain. Trimming all of Unicode's spaces is slow, and most strings need none.
MACROS = {
    "starts(x)": "x >= '!' AND x < chr(127)",
    "blank(x)": f"CASE WHEN starts(x) THEN false ELSE ltrim(x, '{_SPACES}') = '' END",
    "stripped(x)": "CASE WHEN starts(x) AND x[-1] BETWEEN '!' AND '~' THEN x "
    f"ELSE trim(x, '{_SPACES}') END",
    "filled(x)": f"CASE WHEN blank(x) THEN {_UNUSUAL} ELSE stripped(x) END",
    "number(x)": f"CASE WHEN regexp_full_match(x, '{_NUMBER}') AND isfinite(x::DOUBLE) "
    f"THEN x::DOUBLE ELSE {_UNUSUAL} END",
    "given(j)": "j IS NOT NULL AND j <> 'null'",
    "json_text(j)": f"CASE WHEN starts_with(j, '\"') THEN j->>'$' ELSE {_UNUSUAL} END",
    "json_optional(j)": "CASE WHEN given(j) THEN json_text(j) ELSE '' END",
    "json_id(j)": "CASE WHEN regexp_full_match(j, '-?[0-9]+') THEN j ELSE filled(json_text(j)) END",
    "json_year(j)": "CASE WHEN NOT given(j) THEN NULL WHEN regexp_full_match(j, '-?[0-9]+') "
    f"THEN j::BIGINT ELSE {_UNUSUAL} END",
    "whole(a)": f"CASE WHEN list_count(a) = len(a) THEN a ELSE {_UNUSUAL} END",
    "json_list(j, kinds)": "CASE WHEN NOT given(j) OR j = '[]' THEN []::VARCHAR[] "
    "WHEN list_contains(kinds, json_structure(j)::VARCHAR) "
    f"THEN whole(from_json(j, '[\"VARCHAR\"]')) ELSE {_UNUSUAL} END",
}


@dataclass(frozen=True)
class FileRows:
    """How to read a file as rows of a ``schema``.

    ``sql`` is a SELECT of the rows over ``lines (line, text)``, ``None`` if only Python can read
    the file. ``records`` reads it record by record, and ``parse`` returns the row of a usable
    record. A file that a conversion wrote has neither: ``sql`` is then a SELECT over the file
    itself.
    """

    path: Path
    sql: str | None
    schema: pa.Schema
    records: Callable[[Rejects], Iterable[Record]] | None = None
    parse: Callable[[Record], Mapping[str, Any]] | None = None


class FileEngine:
    """Runs statements over files, on a connection of ``importers.engine.connected``."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection
        for name, body in MACROS.items():
            connection.execute(f"CREATE MACRO {name} AS {body}")

    def read(self, statement: str, rows: FileRows, rejects: Rejects) -> None:
        """Run a repeatable statement over ``{rows}`` of a file; reject unusable records."""
        if rows.records is None or rows.parse is None:
            run(self.connection, statement.format(rows=rows.sql), rows.path)
            return
        if rows.sql is not None:
            with suppress(_UnusualRowError):
                self._stream("lines", _lines(rows.path), LINES, statement, rows.sql)
                return
        values = rejects.keep(rows.records(rejects), rows.parse)
        batches = (pa.RecordBatch.from_pylist(part, rows.schema) for part in _parts(values))
        self._stream("records", batches, rows.schema, statement, "SELECT * FROM records")

    def _stream(
        self,
        name: str,
        batches: Iterator[pa.RecordBatch],
        schema: pa.Schema,
        statement: str,
        rows: str,
    ) -> None:
        """Run a statement over a stream of batches."""
        raised: list[BaseException] = []

        def watched() -> Iterator[pa.RecordBatch]:
            try:
                yield from batches
            except BaseException as error:
                raised.append(error)
                raise

        reader = pa.RecordBatchReader.from_batches(schema, watched())
        self.connection.register(name, reader)
        try:
            self.connection.execute(statement.format(rows=rows))
        except duckdb.Error as error:
            if raised:
                raise raised[0] from None
            if isinstance(error, duckdb.InvalidInputException | duckdb.ConversionException):
                raise _UnusualRowError(str(error)) from error
            raise
        finally:
            self.connection.unregister(name)


class _UnusualRowError(Exception):
    """The file has a row that needs Python."""


def _lines(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the lines of a file with their numbers, without line ends."""
    number, rest = 1, b""
    try:
        with open_binary(path) as file:
            if file.peek(len(_BOM)).startswith(_BOM):
                file.read(len(_BOM))
            while block := file.read(_BLOCK):
                end = block.rfind(b"\n") + 1
                if end:
                    batch = _numbered(rest + block[:end], number)
                    number += len(batch)
                    yield batch
                    rest = b""
                rest += block[end:]
                if len(rest) > _LONGEST:
                    raise _UnusualRowError("line is very long")
            if rest:
                yield _numbered(rest, number)
            elif number == 1:
                raise _UnusualRowError("file is empty")
    except Exception as error:  # reported when Python reads the file again
        raise _UnusualRowError(str(error)) from error


def _numbered(text: bytes, number: int) -> pa.RecordBatch:
    """Return the lines of a block, numbered from ``number``."""
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1
    inner = ends[ends < len(text)]
    offsets = np.concatenate([[0], inner, [len(text)]]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    lines = pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)
    lines.validate(full=True)
    lines = pc.ascii_rtrim(lines, characters="\r\n")
    numbers = np.arange(number, number + len(lines), dtype=np.int64)
    return pa.record_batch([numbers, lines], schema=LINES)


def _parts(rows: Iterator[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    while part := list(islice(rows, _RECORDS)):
        yield part
