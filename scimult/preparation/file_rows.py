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
import pyarrow as pa

from scimult.data.importers.engine import PYTHON_ONLY, run
from scimult.data.packed import is_whole, open_binary
from scimult.data.records import Record, Rejects
from scimult.data.sql import table_of
from scimult.errors import DataError

# Longest line that SQL reads, which is also the buffer of each thread.
_LONGEST = 1 << 22
_RECORDS = 4096
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

    ``sql`` is a SELECT of the rows, mostly over its ``lines``; ``None`` if only Python can read the
    file. ``records`` reads it record by record, and ``parse`` returns the row of a usable
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
        if rows.sql is not None and _is_read_by_sql(rows.path):
            with suppress(DataError):  # reported when Python reads the file again
                run(self.connection, statement.format(rows=rows.sql), rows.path)
                return
        values = rejects.keep(rows.records(rejects), rows.parse)
        batches = (pa.RecordBatch.from_pylist(part, rows.schema) for part in _parts(values))
        raised: list[BaseException] = []

        def watched() -> Iterator[pa.RecordBatch]:
            try:
                yield from batches
            except BaseException as error:
                raised.append(error)
                raise

        reader = pa.RecordBatchReader.from_batches(rows.schema, watched())
        self.connection.register("records", reader)
        try:
            self.connection.execute(statement.format(rows="SELECT * FROM records"))
        except duckdb.Error:
            if raised:
                raise raised[0] from None
            raise
        finally:
            self.connection.unregister("records")


def numbered_lines(path: Path) -> str:
    """Return a SELECT of the numbered lines of a file, ``(line, text)``; empty ones are null.

    It stops at a line end other than a line feed, a long line, or bytes that are not UTF-8.
    """
    # A table of one column, whose delimiter is in no text.
    options = (
        "auto_detect=false, columns={'text': 'VARCHAR'}, header=false, delim='\x01', quote='', "
        f"escape='', new_line='\\n', max_line_size={_LONGEST}, buffer_size={_LONGEST}"
    )
    table = table_of("read_csv", [path], options)
    return f"SELECT row_number() OVER () AS line, text FROM {table}"


def _is_read_by_sql(path: Path) -> bool:
    """Return whether DuckDB reads this file, and it alone; Python reports one that is empty."""
    if path.suffix in PYTHON_ONLY or not is_whole(path):
        return False
    with suppress(EOFError, OSError), open_binary(path) as file:
        return bool(file.peek(1))
    return False


def _parts(rows: Iterator[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    while part := list(islice(rows, _RECORDS)):
        yield part
