"""Run DuckDB for SQL columns, with bounded memory and errors that name the file."""

from __future__ import annotations

import errno
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import duckdb

from scimult.data.lines import Record
from scimult.errors import ConfigError, DataError

MEMORY = "4GB"
PYTHON_ONLY = (".bz2", ".xz")
"""Compressed files that DuckDB does not read."""
_FETCH_ROWS = 1000
_DISK_FULL = "No space left"
# Types that DuckDB infers from strings: an expression should see the same in JSON as in CSV.
_TEMPORAL = re.compile(r'(?<!["\w])(?:DATE|TIMESTAMP(?:_\w+| WITH TIME ZONE)?|TIME|UUID)(?!["\w])')
_READERS = {
    "json": "read_json({files}, sample_size=20480, maximum_object_size=67108864{more})",
    "csv": "read_csv({files}, all_varchar=true, header=true, max_line_size=16777216{more})",
    "tsv": "read_csv({files}, all_varchar=true, header=true, delim='\\t'{more})",
    "parquet": "read_parquet({files}{more})",
}


def select(
    files: Sequence[Path],
    container: str,
    expressions: Iterable[str],
    columns: Sequence[str] | None = None,
) -> Iterator[Record]:
    """Yield the rows of files: each expression, named by its own text, and ``columns`` or all.

    ``Record.line`` is the number of the result row, as ``unnest`` turns one row into several.

    Raises
    ------
    DataError
        With DuckDB's message, if an expression does not fit the files or a file is damaged.
    """
    terms = ["*"] if columns is None else [quoted(name) for name in columns]
    terms += [f"({sql}) AS {quoted(sql)}" for sql in dict.fromkeys(expressions)]
    with connected() as engine:
        types = _json_types(engine, files) if container == "json" else ""
        for file in files:
            reader = _READERS[container].format(files=file_list([file]), more=types)
            cursor = run(engine, f"SELECT {', '.join(terms)} FROM {reader}", file, terms)
            names = [name for name, *_ in cursor.description or ()]
            for number, row in enumerate(rows_of(cursor, file), start=1):
                yield Record(file, number, dict(zip(names, row, strict=True)))


def column_names(files: Sequence[Path], container: str) -> list[str]:
    """Return the names of the columns of all files combined."""
    with connected() as engine:
        return [str(name) for name, *_ in _described(engine, files, container)]


def _described(
    engine: duckdb.DuckDBPyConnection, files: Sequence[Path], container: str
) -> Iterator[tuple[Any, ...]]:
    """Yield name and type of the columns of all files combined."""
    reader = _READERS[container].format(files=file_list(files), more=", union_by_name=true")
    return rows_of(run(engine, f"DESCRIBE SELECT * FROM {reader}", files[0]), files[0])


def _json_types(engine: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> str:
    """Return the columns of all files combined: one file may lack a field that another has."""
    columns = (
        f"{literal(name)}: {literal(_TEMPORAL.sub('VARCHAR', kind))}"
        for name, kind, *_ in _described(engine, files, "json")
    )
    return f", columns={{{', '.join(columns)}}}"


@contextmanager
def connected(
    parent: Path | None = None, memory: str | None = None, threads: int | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield an engine that uses at most ``memory`` (``MEMORY``) and spills to a temporary folder.

    The folder is created in ``parent``, by default the system's temporary folder (``$TMPDIR``). A
    memory limit that is not valid or too low is a ConfigError, a full disk an OSError.
    """
    with (
        tempfile.TemporaryDirectory(prefix="scimult-", dir=parent) as folder,
        closing(opened(memory or MEMORY, threads, temp_directory=folder)) as engine,
    ):
        try:
            yield engine
        except duckdb.OutOfMemoryException as error:
            problem, fix = str(error).splitlines()[0], "raise --memory, or leave it out"
            raise ConfigError(problem, value=memory or MEMORY, fix=fix) from None
        except duckdb.IOException as error:
            if _DISK_FULL in str(error):
                raise OSError(errno.ENOSPC, "No space left on device") from error
            raise


def opened(
    memory: str | None, threads: int | None, database: str = ":memory:", **settings: str
) -> duckdb.DuckDBPyConnection:
    """Open an engine with limits, by default DuckDB's own; an invalid one is a ConfigError."""
    config: dict[str, Any] = dict(settings)
    if memory is not None:
        config["memory_limit"] = memory
    if threads is not None:
        config["threads"] = threads
    try:
        return duckdb.connect(database, config=config)
    except (duckdb.ParserException, duckdb.InvalidInputException) as error:
        problem, fix = f"not a valid memory limit: {error}", "write it as 4GB"
        raise ConfigError(problem, value=memory, fix=fix) from None


def run(
    engine: duckdb.DuckDBPyConnection, sql: str, file: Path, columns: Sequence[str] = ()
) -> duckdb.DuckDBPyConnection:
    """Start a query that reads ``file``, which a DataError names if it fails.

    ``columns`` are the user's expressions, for errors.
    """
    with _naming(file, columns):
        return engine.execute(sql)


def rows_of(cursor: duckdb.DuckDBPyConnection, file: Path) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query, fetching a thousand at a time; see ``run`` for errors."""
    while True:
        with _naming(file):
            rows = cursor.fetchmany(_FETCH_ROWS)
        if not rows:
            return
        yield from rows


@contextmanager
def _naming(file: Path, columns: Sequence[str] = ()) -> Iterator[None]:
    """Add the file to DuckDB's errors, except for a lack of memory or disk; see `connected`."""
    try:
        yield
    except duckdb.Error as error:
        if isinstance(error, duckdb.OutOfMemoryException) or _DISK_FULL in str(error):
            raise
        message = " ".join(str(error).split("\n\n")[0].split())
        if columns:
            problem, fix = f"columns do not fit the file: {message}", "correct the expression"
            raise DataError(problem, path=file, value=", ".join(columns), fix=fix) from error
        fix = "repair the file, or read it without SQL expressions, which names the line"
        raise DataError(f"file cannot be read: {message}", path=file, fix=fix) from error


def file_list(files: Sequence[Path]) -> str:
    """Return files as an SQL list; those that the engine cannot unpack are a DataError."""
    for file in files:
        if file.suffix in PYTHON_ONLY:
            fix = "compress it as .gz or .zst, or leave out SQL expressions"
            raise DataError(f"SQL does not read {file.suffix} files", path=file, fix=fix)
    return f"[{', '.join(literal(str(file)) for file in files)}]"


def literal(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
