"""Parquet files of a library's papers: written once, then read by position."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scimult.errors import DataError
from scimult.files import atomic_file, sha256
from scimult.types import IntArray

ARROW_TYPES = {
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "VARCHAR": pa.string(),
    "VARCHAR[]": pa.list_(pa.string()),
}
"""Arrow types of columns, by their SQL names."""
# Papers that must be decompressed to read one of them.
_ROW_GROUP = 1 << 10


@dataclass(frozen=True)
class Segment:
    """Papers written together: a Parquet file, and a shard in every space."""

    name: str
    rows: int
    bytes: int
    sha256: str


def write_segment(folder: Path, name: str, table: pa.Table) -> Segment:
    """Write papers, atomically.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """
    path = folder / f"{name}.parquet"
    with atomic_file(path) as temporary:
        pq.write_table(table, temporary, row_group_size=_ROW_GROUP, compression="zstd")
    return Segment(name, len(table), path.stat().st_size, sha256(path))


class SegmentFile:
    """Reads one segment of ``size`` bytes; thread-safe: the file is open only during a call."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size

    def read(self, schema: pa.Schema, index_P: IntArray | None = None) -> pa.Table:
        """Return these columns of the rows at ascending positions, or of all rows.

        Columns that the file lacks are null. Row groups are read one at a time, and only those
        with a wanted row.

        Raises
        ------
        UnreadableError
            If the file has been changed or removed since the library was opened.
        """
        try:
            # Another library in the same folder has files of the same names.
            if self.path.stat().st_size != self.size:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            with pq.ParquetFile(self.path, metadata=self._metadata) as file:
                present = [name for name in schema.names if name in file.schema_arrow.names]
                empty = no_rows(pa.schema([file.schema_arrow.field(name) for name in present]))
                parts = [
                    _take(file.read_row_group(group, present, use_threads=False), index)
                    for group, index in self._by_group(index_P)
                ]
                table, rows = pa.concat_tables([empty, *parts]), sum(map(len, parts))
        except (OSError, pa.ArrowException) as error:
            raise unreadable(self.path, error) from error
        columns = [
            table[field.name].cast(field.type)
            if field.name in present
            else pa.nulls(rows, field.type)
            for field in schema
        ]
        return pa.table(columns, schema=schema)

    @cached_property
    def _metadata(self) -> pq.FileMetaData:
        return pq.read_metadata(self.path)

    def _by_group(self, index_P: IntArray | None) -> list[tuple[int, IntArray | None]]:
        """Return the row groups to read, with the positions in each; None for the whole group."""
        groups = range(self._metadata.num_row_groups)
        if index_P is None:
            return [(group, None) for group in groups]
        ends = np.cumsum([0, *(self._metadata.row_group(group).num_rows for group in groups)])
        edges = np.searchsorted(index_P, ends)
        return [
            (group, index_P[first:last] - ends[group])
            for group, (first, last) in enumerate(pairwise(edges.tolist()))
            if last > first
        ]


class UnreadableError(DataError):
    """Files of an opened library are gone, damaged, or were rewritten by another process."""


def unreadable(path: Path, error: Exception) -> UnreadableError:
    """Return the error for papers that can no longer be read, without paths in its problem."""
    number = getattr(error, "errno", None)
    reason = os.strerror(number) if number else type(error).__name__
    fix = (
        "open the library again if another process has rewritten it; else scimult library check "
        "names damaged files"
    )
    return UnreadableError(f"cannot read papers: {reason}", path=path, fix=fix)


def no_rows(schema: pa.Schema) -> pa.Table:
    """Return an empty table, avoiding Arrow's own, which loads pandas."""
    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)


def strings(texts: Sequence[str]) -> pa.Array:
    """Convert strings to Arrow, avoiding its own conversion, which loads pandas.

    Undecodable bytes of a command line become bytes that no stored text has.
    """
    parts = [text.encode(errors="surrogatepass") for text in texts]
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(pa.string(), len(parts), buffers)


def indices(index_P: IntArray) -> pa.Array:
    """Convert integers to Arrow, avoiding its own conversion, which loads pandas."""
    index_P = np.ascontiguousarray(index_P, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(index_P), [None, pa.py_buffer(index_P)])


def _take(table: pa.Table, index_P: IntArray | None) -> pa.Table:
    if index_P is None or len(index_P) == len(table):
        return table
    return table.take(indices(index_P))
