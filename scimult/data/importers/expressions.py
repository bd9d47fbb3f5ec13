"""Evaluate SQL expressions over records that our own readers have read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from scimult.data.importers.engine import connected, naming, reason
from scimult.data.importers.kinds import TEXT, joined, kind_of, sql_type
from scimult.data.records import Record, Rejects
from scimult.data.sql import literal, quoted
from scimult.terminal import listed

Reader = Callable[[Path, Rejects], Iterator[Record]]
_ROWS = 1000
_NUMBER = "number_of_the_record"
# Functions that see other rows need all of them at once.
_WINDOW = re.compile(r"\bover\s*\(", re.IGNORECASE)
# Errors of a value, rather than of an expression that no row fits.
_OF_A_ROW = (
    duckdb.ConversionException,
    duckdb.InvalidInputException,
    duckdb.OutOfRangeException,
    UnicodeEncodeError,
)


def evaluated(
    paths: Sequence[Path],
    container: str,
    read: Reader,
    expressions: Iterable[str],
    rejects: Rejects,
) -> Iterator[Record]:
    """Yield the records of files, with the value of each expression, named by its own text.

    An expression sees strings in CSV, Parquet's types, and in JSON one type for a field of all
    files, which are therefore read twice. ``unnest`` turns one record into several, at the same
    line. Window functions see one file, which is then held in memory; else a block of records is.

    Raises
    ------
    DataError
        With DuckDB's message, if an expression does not fit the files; and, through ``rejects``,
        for a bad record, or one that an expression does not fit.
    """
    sql = list(dict.fromkeys(expressions))
    text = "\n".join(sql).casefold().replace('""', '"')
    # Converting what no expression names would take most of the time; a name too many is harmless.
    is_named = cache(lambda name: name != "" and name.casefold() in text)
    size = None if _WINDOW.search(text) else _ROWS
    kinds = {} if container == "parquet" else _kinds(paths, container, read, is_named)
    with connected() as engine:
        for path in paths:
            if container == "parquet":
                kinds = _parquet_kinds(path)
            columns = {name: kind for name, kind in kinds.items() if is_named(name)}
            fix = f"correct the expression; there are {listed(list(kinds))}"
            records = read(path, rejects)
            while block := list(islice(records, size)):
                with naming(path, sql, fix):
                    yield from _results(engine, block, columns, sql, rejects, whole=size is None)


def _kinds(
    paths: Sequence[Path], container: str, read: Reader, is_named: Callable[[str], bool]
) -> dict[str, Any]:
    """Return the columns of all files; only those that are named need their kind."""
    kinds: dict[str, Any] = {}
    first_row = None if container == "json" else 1  # which has all columns of a table
    for path in paths:
        for record in islice(read(path, Rejects(skip_bad=True)), first_row):
            for name, value in record.fields.items():
                kind = kind_of(value) if is_named(name) else None
                kinds[name] = joined(kinds.get(name), kind)
    return kinds


def _parquet_kinds(path: Path) -> dict[str, Any]:
    """Return the columns of a Parquet file; none if it is damaged, as reading it reports that."""
    with suppress(pa.ArrowException, OSError):
        schema = pq.read_schema(path)
        return dict(zip(schema.names, schema.types, strict=True))
    return {}


def _results(
    engine: duckdb.DuckDBPyConnection,
    block: Sequence[Record],
    columns: Mapping[str, Any],
    sql: Sequence[str],
    rejects: Rejects,
    *,
    whole: bool,
) -> Iterator[Record]:
    """Yield records with the values of expressions; reject those that they do not fit."""
    try:
        rows = _evaluate(engine, block, columns, sql)
    except _OF_A_ROW as error:
        if whole:
            raise
        if len(block) > 1:
            middle = len(block) // 2
            for half in (block[:middle], block[middle:]):
                yield from _results(engine, half, columns, sql, rejects, whole=False)
            return
        problem = "record does not fit an SQL expression"
        fix = f"correct the expression, or leave the record out with --skip-bad ({reason(error)})"
        rejects.reject(block[0].error(problem, value=", ".join(sql), fix=fix))
        return
    for number, *values in rows:
        record = block[number]
        fields = {**record.fields, **dict(zip(sql, values, strict=True))}
        yield Record(record.path, record.line, fields)


def _evaluate(
    engine: duckdb.DuckDBPyConnection,
    block: Sequence[Record],
    columns: Mapping[str, Any],
    sql: Sequence[str],
) -> list[tuple[Any, ...]]:
    """Return, for every row of the result, the number of its record and the expressions' values."""
    arrays: dict[str, Any] = {_NUMBER: pa.array(range(len(block)), pa.int64())}
    terms = [_NUMBER]
    for name, kind in columns.items():
        arrays[name], term = _column([record.fields.get(name) for record in block], name, kind)
        terms.append(f"{term} AS {quoted(name)}")
    engine.register("records", pa.table(arrays))
    expressions = ", ".join(f"({expression})" for expression in sql)
    query = f"SELECT {_NUMBER}, {expressions} FROM (SELECT {', '.join(terms)} FROM records)"
    rows = engine.execute(query).fetchall()
    return sorted(rows, key=lambda row: row[0])  # a window function may reorder them


def _column(values: Sequence[Any], name: str, kind: Any) -> tuple[pa.Array, str]:
    """Return values for the engine and the SQL that gives them their type."""
    if isinstance(kind, pa.DataType):
        return pa.array(values, kind), quoted(name)
    is_text = kind is None or kind == TEXT
    texts = [
        value if value is None or (is_text and isinstance(value, str)) else json.dumps(value)
        for value in values
    ]
    json_type = literal(json.dumps(sql_type(kind)))
    term = quoted(name) if is_text else f"from_json({quoted(name)}, {json_type})"
    return pa.array(texts, pa.string()), term
