"""Engines that run plans: by default DuckDB in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import duckdb
import numpy as np
import pyarrow as pa

from scimult.data.importers.engine import limited, opened
from scimult.errors import StorageError
from scimult.preparation.mining.hashing import SQL_FUNCTIONS
from scimult.types import IntArray

_FILE_NAME = "mining.duckdb"


@dataclass(frozen=True)
class Limits:
    """Memory and threads that an engine may use; they do not change its results.

    What exceeds ``memory``, such as ``4GB``, is written to disk. ``mine`` applies it to its whole
    process, ``open_duckdb`` to DuckDB's allocations (default: four fifths of the machine's memory).
    The default of ``threads`` is one per core.
    """

    memory: str | None = None
    threads: int | None = None


class Engine(Protocol):
    """Runs SELECTs in DuckDB's dialect over the tables it has loaded."""

    def load(self, name: str, parts: Iterable[pa.Table]) -> None:
        """Create a table from parts."""

    def create(self, name: str, select: str, *, lasting: bool = False) -> None:
        """Create or replace a table from a SELECT; ``lasting`` if several blocks read it."""

    def fetch(self, select: str) -> Mapping[str, IntArray]:
        """Return the columns of a result."""


class DuckDBEngine:
    """DuckDB over its own database file, so that tables may exceed memory; see ``open_duckdb``."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        for name, body in SQL_FUNCTIONS.items():
            connection.execute(f"CREATE MACRO {name}(x) AS {body}")

    def load(self, name: str, parts: Iterable[pa.Table]) -> None:
        """Create a table from parts."""
        verb = f"CREATE OR REPLACE TABLE {name} AS"
        for part in parts:
            self._connection.register("part", part)
            self._connection.execute(f"{verb} SELECT * FROM part")
            self._connection.unregister("part")
            verb = f"INSERT INTO {name}"
        assert verb.startswith("INSERT"), f"no part of {name}"

    def create(self, name: str, select: str, *, lasting: bool = False) -> None:
        """Create or replace a table from a SELECT; ``lasting`` if several blocks read it."""
        kind = "TABLE" if lasting else "TEMP TABLE"
        self._connection.execute(f"CREATE OR REPLACE {kind} {name} AS {select}")

    def fetch(self, select: str) -> Mapping[str, IntArray]:
        """Return the columns of a result."""
        columns = self._connection.execute(select).fetchnumpy()
        return {name: np.asarray(column, dtype=np.int64) for name, column in columns.items()}


@contextmanager
def open_duckdb(folder: Path, limits: Limits) -> Iterator[DuckDBEngine]:
    """Open a database in ``folder``, which also holds what is spilled from memory.

    A memory limit that is not valid or too low is a ConfigError, a full disk an OSError, a folder
    that DuckDB cannot open a StorageError.
    """
    if "?" in str(folder.absolute()):  # what follows are options to DuckDB
        fix = "rename the folder, or write elsewhere"
        raise StorageError("a path with a question mark cannot be mined", path=folder, fix=fix)
    connection = opened(
        limits.memory,
        limits.threads,
        str(folder / _FILE_NAME),
        temp_directory=str(folder / "spilled"),
        preserve_insertion_order="false",
    )
    with closing(connection), limited(limits.memory):
        yield DuckDBEngine(connection)
