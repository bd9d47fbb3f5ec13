"""Where plans run: DuckDB inside this process by default."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import duckdb
import numpy as np
import pyarrow as pa

from scimult.data.importers.engine import opened
from scimult.preparation.mining.hashing import SQL_FUNCTIONS
from scimult.types import IntArray

_FILE_NAME = "mining.duckdb"


@dataclass(frozen=True)
class Limits:
    """What an engine may take of this machine; what it finds does not depend on it.

    Parameters
    ----------
    memory : str, optional
        Such as ``4GB``. What is beyond it is written to disk. ``mine`` takes it for what its
        process may hold; ``open_duckdb`` for what DuckDB may allocate, by default four fifths of
        the machine's.
    threads : int, optional
        Default: one per core.
    """

    memory: str | None = None
    threads: int | None = None


class Engine(Protocol):
    """Runs SELECTs in DuckDB's dialect over tables it has been given."""

    def load(self, name: str, parts: Iterable[pa.Table]) -> None:
        """Make a table of what is handed over part by part."""

    def create(self, name: str, select: str, *, lasting: bool = False) -> None:
        """Make a table of a result, in the place of one of that name; lasting: of many blocks."""

    def fetch(self, select: str) -> Mapping[str, IntArray]:
        """Return the columns of a result."""


class DuckDBEngine:
    """DuckDB over a database file of its own: tables may be larger than memory.

    Parameters
    ----------
    connection : DuckDBPyConnection
        See ``open_duckdb``.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        for name, body in SQL_FUNCTIONS.items():
            connection.execute(f"CREATE MACRO {name}(x) AS {body}")

    def load(self, name: str, parts: Iterable[pa.Table]) -> None:
        """Make a table of what is handed over part by part."""
        made = False
        for part in parts:
            self._connection.register("handed_over", part)
            verb = f"INSERT INTO {name}" if made else f"CREATE OR REPLACE TABLE {name} AS"
            self._connection.execute(f"{verb} SELECT * FROM handed_over")
            self._connection.unregister("handed_over")
            made = True
        assert made, name

    def create(self, name: str, select: str, *, lasting: bool = False) -> None:
        """Make a table of a result, in the place of one of that name; lasting: of many blocks."""
        kind = "TABLE" if lasting else "TEMP TABLE"
        self._connection.execute(f"CREATE OR REPLACE {kind} {name} AS {select}")

    def fetch(self, select: str) -> Mapping[str, IntArray]:
        """Return the columns of a result."""
        columns = self._connection.execute(select).fetchnumpy()
        return {name: np.asarray(column, dtype=np.int64) for name, column in columns.items()}


@contextmanager
def open_duckdb(folder: Path, limits: Limits | None = None) -> Iterator[DuckDBEngine]:
    """Open a database in ``folder``, which also takes what does not fit into memory.

    Raises
    ------
    ConfigError
        If DuckDB does not understand a limit.
    """
    limits = limits or Limits()
    connection = opened(
        limits.memory,
        limits.threads,
        str(folder / _FILE_NAME),
        temp_directory=str(folder / "spilled"),
        preserve_insertion_order="false",
    )
    with closing(connection):
        yield DuckDBEngine(connection)
