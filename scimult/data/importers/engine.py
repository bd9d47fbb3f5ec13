"""DuckDB under our rules: columns that are SQL expressions, bounded memory, errors with a file."""

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
_FETCHED = 1000
# Types that DuckDB sees in strings: an expression should find the same in JSON as in CSV.
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
    """Yield the rows of files: each expression under its own text, and ``columns`` or all.

    ``Record.line`` is the number of the row that the expressions give, for ``unnest`` makes
    several of one.

    Raises
    ------
    DataError
        If an expression does not fit the files, or a file is damaged: the message is DuckDB's.
    """
    stated = ["*"] if columns is None else [quoted(name) for name in columns]
    terms = [*stated, *(f"({sql}) AS {quoted(sql)}" for sql in dict.fromkeys(expressions))]
    with connected() as engine:
        types = _json_types(engine, files) if container == "json" else ""
        for file in files:
            reader = _READERS[container].format(files=literal(str(file)), more=types)
            cursor = run(engine, f"SELECT {', '.join(terms)} FROM {reader}", file, terms)
            names = [name for name, *_ in cursor.description or ()]
            for number, row in enumerate(rows_of(cursor, file), start=1):
                yield Record(file, number, dict(zip(names, row, strict=True)))


def column_names(files: Sequence[Path], container: str) -> list[str]:
    """Return the names of the columns of all files together."""
    with connected() as engine:
        return [str(name) for name, *_ in _described(engine, files, container)]


def _described(
    engine: duckdb.DuckDBPyConnection, files: Sequence[Path], container: str
) -> Iterator[tuple[Any, ...]]:
    """Yield name and type of the columns of all files together."""
    named = ", ".join(literal(str(file)) for file in files)
    reader = _READERS[container].format(files=f"[{named}]", more=", union_by_name=true")
    return rows_of(run(engine, f"DESCRIBE SELECT * FROM {reader}", files[0]), files[0])


def _json_types(engine: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> str:
    """Return the columns of all files together: one file may lack a field that another has."""
    columns = (
        f"{literal(name)}: {literal(_TEMPORAL.sub('VARCHAR', kind))}"
        for name, kind, *_ in _described(engine, files, "json")
    )
    return f", columns={{{', '.join(columns)}}}"


@contextmanager
def connected(
    place: Path | None = None, memory: str | None = None, threads: int | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield an engine that holds ``MEMORY`` at most, or ``memory``, and spills into a folder.

    The folder is made in ``place``, by default the system's for temporary ones, which ``$TMPDIR``
    may name.

    Raises
    ------
    ConfigError
        If the engine does not understand the limit, or does not get by with it.
    OSError
        If the disk is full.
    """
    with (
        tempfile.TemporaryDirectory(prefix="scimult-", dir=place) as folder,
        closing(opened(memory or MEMORY, threads, temp_directory=folder)) as engine,
    ):
        try:
            yield engine
        except duckdb.OutOfMemoryException as error:
            problem, fix = str(error).splitlines()[0], "raise --memory, or leave it out"
            raise ConfigError(problem, value=memory or MEMORY, fix=fix) from None
        except duckdb.IOException as error:
            if "No space left" in str(error):
                raise OSError(errno.ENOSPC, "No space left on device") from error
            raise


def opened(
    memory: str | None, threads: int | None, database: str = ":memory:", **settings: str
) -> duckdb.DuckDBPyConnection:
    """Open an engine within limits; DuckDB's own where there are none.

    Raises
    ------
    ConfigError
        If it does not understand the limit of memory.
    """
    limits = {"memory_limit": memory, "threads": threads}
    given = {name: limit for name, limit in limits.items() if limit is not None}
    try:
        return duckdb.connect(database, config={**settings, **given})
    except (duckdb.ParserException, duckdb.InvalidInputException) as error:
        problem, fix = f"not a limit of memory: {error}", "write it as 4GB"
        raise ConfigError(problem, value=memory, fix=fix) from None


def run(
    engine: duckdb.DuckDBPyConnection, sql: str, file: Path, columns: Sequence[str] = ()
) -> duckdb.DuckDBPyConnection:
    """Start a query that reads ``file``, whose ``columns`` are the user's.

    Raises
    ------
    DataError
        If it fails.
    """
    try:
        return engine.execute(sql)
    except duckdb.OutOfMemoryException:
        raise
    except duckdb.Error as error:
        raise _failed(error, file, columns) from error


def rows_of(found: duckdb.DuckDBPyConnection, file: Path) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that a query finds, a thousand at a time.

    Raises
    ------
    DataError
        If it fails.
    """
    while True:
        try:
            rows = found.fetchmany(_FETCHED)
        except duckdb.Error as error:
            raise _failed(error, file, ()) from error
        if not rows:
            return
        yield from rows


def _failed(error: duckdb.Error, file: Path, columns: Sequence[str]) -> DataError:
    """Return DuckDB's error with the file; its first lines say what and where."""
    message = " ".join(str(error).split("\n\n")[0].split())
    if columns:
        problem, fix = f"columns do not fit the file: {message}", "correct the expression"
        return DataError(problem, path=file, value=", ".join(columns), fix=fix)
    fix = "mend the file, or read it without SQL expressions, which names the line"
    return DataError(f"file cannot be read: {message}", path=file, fix=fix)


def literal(text: str) -> str:
    """Return a text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'
