"""Run DuckDB with bounded memory and errors that name the file."""

from __future__ import annotations

import errno
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import duckdb

from scimult.data.sql import USE_UTC
from scimult.errors import ConfigError, DataError, quoted_in_line

MEMORY = "4GB"
PYTHON_ONLY = (".bz2", ".xz")
"""Compressed files that DuckDB does not read."""
_FETCH_ROWS = 1000
_DISK_FULL = "No space left"


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
        limited(memory or MEMORY),
    ):
        yield engine


@contextmanager
def limited(memory: str | None) -> Iterator[None]:
    """Turn a lack of memory into a ConfigError, and a full disk into an OSError."""
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        problem, fix = str(error).splitlines()[0], "raise --memory, or leave it out"
        raise ConfigError(problem, value=memory, fix=fix) from None
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
        connection = duckdb.connect(database, config=config)
    except (duckdb.ParserException, duckdb.InvalidInputException) as error:
        problem, fix = f"not a valid memory limit: {error}", "write it as 4GB"
        raise ConfigError(problem, value=memory, fix=fix) from None
    connection.execute(USE_UTC)
    return connection


def run(engine: duckdb.DuckDBPyConnection, sql: str, file: Path) -> duckdb.DuckDBPyConnection:
    """Start a query that reads ``file``, which a DataError names if it fails."""
    with naming(file):
        return engine.execute(sql)


def rows_of(cursor: duckdb.DuckDBPyConnection, file: Path) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query, fetching a thousand at a time; see ``run`` for errors."""
    while True:
        with naming(file):
            rows = cursor.fetchmany(_FETCH_ROWS)
        if not rows:
            return
        yield from rows


def reason(error: Exception) -> str:
    """Return what DuckDB says, without all functions of a name and lines of the query."""
    return quoted_in_line(re.split(r"\n\n|\s*Candidate functions:", str(error))[0])


@contextmanager
def naming(
    file: Path,
    expressions: Sequence[str] = (),
    fix: str = "repair the file, or download it again",
) -> Iterator[None]:
    """Add the file to DuckDB's errors, except for a lack of memory or disk; see `connected`.

    ``expressions`` are the user's, which the errors are then about.
    """
    try:
        yield
    except (duckdb.Error, UnicodeError) as error:  # DuckDB may cut its message inside a letter
        if isinstance(error, duckdb.OutOfMemoryException) or _DISK_FULL in str(error):
            raise
        message = reason(error)
        problem = f"columns do not fit the file: {message}"
        if not expressions:
            problem = f"file cannot be read: {message}"
        value = ", ".join(expressions) or None
        raise DataError(problem, path=file, value=value, fix=fix) from error
