"""A library's papers: Parquet files of numbered rows, filtered through DuckDB."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from scimult.data.sql import USE_UTC, literal, quoted, table_of
from scimult.data.text_store import numbers
from scimult.errors import ConfigError, DataError
from scimult.files import sha256
from scimult.forks import never_close_in_forks
from scimult.inference.texts import id_of
from scimult.library.filters import Where, as_sql
from scimult.library.segments import (
    ARROW_TYPES,
    Segment,
    SegmentFile,
    indices,
    no_rows,
    strings,
    unreadable,
)
from scimult.types import BoolArray, IntArray, Text

if TYPE_CHECKING:
    import duckdb

OWN_TYPES = {
    "row": "BIGINT",
    "id": "VARCHAR",
    "title": "VARCHAR",
    "abstract": "VARCHAR",
    "text_hash": "VARCHAR",
    "paper_hash": "VARCHAR",
}
"""Columns that every library has."""


def as_ids(ids: Iterable[object]) -> list[str]:
    """Return ids as strings; whole numbers become their digits, as in papers.

    Raises
    ------
    ConfigError
        If ``ids`` is a single string, which would be read letter by letter.
    DataError
        If one is neither a string nor a whole number.
    """
    if isinstance(ids, str):
        raise ConfigError("ids is a string", value=ids, fix="pass a list")
    names = []
    for one in ids:
        name = id_of(one)
        if name is None:
            raise DataError("paper id is not a string", value=one, fix="pass ids as strings")
        names.append(name)
    return names


class PaperTable:
    """All rows on disk; the caller knows which of them are papers.

    ``types`` are those of columns beyond the ones that all libraries have. A filter, and a subquery
    in it, sees no row of ``removed_N``.

    Attributes
    ----------
    damaged : dict of str to DataError
        Unusable segments, by name.
    """

    def __init__(
        self,
        folder: Path,
        segments: Sequence[Segment],
        types: Mapping[str, str],
        removed_N: BoolArray,
    ) -> None:
        self.folder, self.segments, self.types = folder, list(segments), dict(types)
        self._removed_N = removed_N
        self.starts: IntArray = np.cumsum([0, *(part.rows for part in segments)], dtype=np.int64)
        self.damaged: dict[str, DataError] = {}
        self._connections: dict[int, duckdb.DuckDBPyConnection] = {}
        for part in self.segments:
            if not self._is_there(part):
                self.damaged[part.name] = _damage(self._path(part))

    def __len__(self) -> int:
        return int(self.starts[-1])

    def gone(self) -> list[Path]:
        """Return files that are gone, or of another size, since the library was opened."""
        usable = (part for part in self.segments if part.name not in self.damaged)
        return [self._path(part) for part in usable if not self._is_there(part)]

    def usable(self) -> BoolArray:
        """Return for each row whether its segment is usable."""
        usable = [part.name not in self.damaged for part in self.segments]
        return np.repeat(np.array(usable, dtype=bool), np.diff(self.starts))

    def check(self) -> dict[str, DataError]:
        """Read all files, compare them with the manifest and return damaged ones by name."""
        bad = dict(self.damaged)
        for part in self.segments:
            if part.name not in bad and sha256(self._path(part)) != part.sha256:
                bad[part.name] = _damage(self._path(part))
        return bad

    def where(self, where: Where) -> BoolArray:
        """Return a mask of the rows that pass a filter.

        Raises
        ------
        ConfigError, UnknownNameError
            If the filter is invalid; the message lists the columns.
        """
        condition, values = as_sql(where, {**self.types, "id": "VARCHAR", "title": "VARCHAR"})
        columns = ", ".join(["id", "title", "abstract", *self.types])
        query = f"SELECT row FROM papers WHERE {condition}"
        import duckdb

        try:
            if isinstance(where, str):
                duckdb.SQLExpression(where)  # one condition, which ends within our brackets
            rows = self._rows(query, values)
        except duckdb.Error as error:
            problem = str(error).split("\n")[0]
            if not isinstance(where, str):
                kinds = ", ".join(f"{name} ({self.types.get(name, 'VARCHAR')})" for name in where)
                fix = f"give values of the columns' types: {kinds}"
                raise ConfigError(f"cannot filter: {problem}", value=where, fix=fix) from None
            fix = f"write SQL, texts in single quotes, on these columns: {columns}"
            lists = [n for n, kind in self.types.items() if kind.endswith("[]") and n in where]
            if lists:
                fix += f"; test lists by list_contains({lists[0]}, 'VALUE')"
            raise ConfigError(f"cannot filter: {problem}", value=where, fix=fix) from None
        allowed_N = np.zeros(len(self), dtype=bool)
        allowed_N[rows] = True
        return allowed_N

    def rows_of(self, ids: Iterable[object]) -> IntArray:
        """Return all rows with one of these ids, current and former, in ascending order.

        Raises
        ------
        DataError
            See `as_ids`.
        """
        import pyarrow.compute as pc

        wanted = strings(as_ids(ids))
        rows = [np.empty(0, dtype=np.int64)]
        for index, start in self._usable_segments():
            column = self._file(index).read(_schema(["id"], OWN_TYPES))["id"]
            matches = pc.indices_nonzero(pc.is_in(column, wanted))
            rows.append(np.from_dlpack(matches).astype(np.int64) + start)
        return np.concatenate(rows)

    def ids_of(self, rows_P: IntArray) -> list[str]:
        """Return the ids of rows, in their order."""
        return self.values(rows_P, "id")

    def texts_of(self, rows_P: IntArray) -> list[Text]:
        """Return the texts of rows, in their order."""
        table = self.table(rows_P, ["title", "abstract"])
        parts = (table[name].to_pylist() for name in ("title", "abstract"))
        return [Text("paper", title, body) for title, body in zip(*parts, strict=True)]

    def values(self, rows_P: IntArray, column: str) -> list[Any]:
        """Return one column of rows, in their order."""
        cells: list[Any] = self.table(rows_P, [column])[column].to_pylist()
        return cells

    def table(self, rows_P: IntArray, columns: Sequence[str] | None = None) -> pa.Table:
        """Return rows as a table, in their order.

        Raises
        ------
        DataError
            If a file has been changed or removed since the library was opened, or is damaged.
        """
        types = {**OWN_TYPES, **self.types}
        schema = _schema(columns or list(types), types)
        rows_P = np.asarray(rows_P, dtype=np.int64)
        unique_U, index_P = np.unique(rows_P, return_inverse=True)
        edges = np.searchsorted(unique_U, self.starts)
        parts = [no_rows(schema)]
        for index in np.flatnonzero(np.diff(edges)).tolist():
            wanted = unique_U[edges[index] : edges[index + 1]] - self.starts[index]
            parts.append(self._file(index).read(schema, wanted))
        table = pa.concat_tables(parts)
        in_order = np.array_equal(unique_U, rows_P)
        return table if in_order else table.take(indices(index_P))

    def all_hashes(self) -> pa.Table:
        """Return row, id, text_hash and paper_hash of every readable row."""
        schema = _schema(["row", "id", "text_hash", "paper_hash"], OWN_TYPES)
        parts = [self._file(index).read(schema) for index, _ in self._usable_segments()]
        return pa.concat_tables([no_rows(schema), *parts])

    def _usable_segments(self) -> list[tuple[int, int]]:
        """Return index and first row of each readable segment."""
        return [
            (index, int(self.starts[index]))
            for index, part in enumerate(self.segments)
            if part.name not in self.damaged
        ]

    def _file(self, index: int) -> SegmentFile:
        name = self.segments[index].name
        if name in self.damaged:
            raise self.damaged[name]
        return self._files[index]

    @cached_property
    def _files(self) -> list[SegmentFile]:
        return [SegmentFile(self._path(part), part.bytes) for part in self.segments]

    def _is_there(self, part: Segment) -> bool:
        path = self._path(part)
        return path.is_file() and path.stat().st_size == part.bytes

    def _path(self, part: Segment) -> Path:
        return self.folder / f"{part.name}.parquet"

    def _rows(self, query: str, values: list[Any]) -> IntArray:
        import duckdb

        try:
            # A cursor per call: several threads may query at once.
            cursor = self._connection.cursor()
            table = cursor.sql(query, params=values or None).to_arrow_table()
            rows: IntArray = numbers(table["row"])
            return rows
        except duckdb.IOException as error:
            raise unreadable(self.folder, error) from error

    @property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        """A data base of these files alone: filters read no others and write none."""
        process = os.getpid()
        if process not in self._connections:  # one forked from another needs its own
            self._connections[process] = self._connected()
            never_close_in_forks(self._connections[process])
        return self._connections[process]

    def _connected(self) -> duckdb.DuckDBPyConnection:
        import duckdb

        connection, folder = duckdb.connect(":memory:"), str(self.folder)
        files = [self._path(part) for part in self.segments if part.name not in self.damaged]
        typed = {**OWN_TYPES, **self.types}
        empty = ", ".join(f"NULL::{kind} AS {quoted(name)}" for name, kind in typed.items())
        query = f"SELECT {empty} WHERE FALSE"
        if files:
            table = table_of("read_parquet", files, "union_by_name=true")
            query += f" UNION ALL BY NAME SELECT * FROM {table}"
        connection.execute("SET enable_progress_bar = false")
        connection.execute(USE_UTC)
        # As a path, and as the pattern that is the only one to match it.
        folders = ", ".join(literal(f"{name}/") for name in (folder, glob.escape(folder)))
        connection.execute(f"SET allowed_directories = [{folders}]")
        connection.execute("SET enable_external_access = false")
        rows = np.flatnonzero(self._removed_N)
        # Not from the array itself, for which pyarrow would import pandas.
        column = pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)])
        connection.from_arrow(pa.table({"row": column})).create("removed")
        connection.execute(f"CREATE VIEW papers AS FROM ({query}) ANTI JOIN removed USING (row)")
        connection.execute("SET lock_configuration = true")
        return connection


def _schema(names: Sequence[str], types: Mapping[str, str]) -> pa.Schema:
    return pa.schema([(name, ARROW_TYPES[types[name]]) for name in names])


def _damage(path: Path) -> DataError:
    fix = "restore the file, or run scimult library sync, which encodes its papers again"
    return DataError("damaged or missing papers", path=path, fix=fix)
