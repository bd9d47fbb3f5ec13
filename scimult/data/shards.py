"""Write Parquet files row by row, for conversions whose output ``prepare`` reads directly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from scimult.data.text_files import RAW_FORMAT

_NAMES = pa.list_(pa.string())
PAPERS = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "title", "abstract")),
        ("authors", _NAMES),
        ("venue", pa.string()),
        ("year", pa.int64()),
        ("doi", pa.string()),
        ("labels", _NAMES),
    ]
)
LABELS = pa.schema([(name, pa.string()) for name in ("id", "name", "definition")])
QUERIES = pa.schema([(name, pa.string()) for name in ("id", "text")])
# Rows are held as Python strings, then packed into columns, which are written together.
_CHARACTERS = 1 << 18
_ROWS = 4096
_BYTES = 1 << 24


class Shard:
    """Writes a Parquet file, holding some megabytes in memory; without rows, no file.

    A row may leave columns of the schema out; ``count`` is the number of rows.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.count = 0
        self._path, self._schema = path, schema.with_metadata({RAW_FORMAT: "1"})
        self._file: pq.ParquetWriter | None = None
        self._rows: list[Mapping[str, Any]] = []
        self._characters = 0
        self._batches: list[pa.RecordBatch] = []

    def add(self, row: Mapping[str, Any]) -> None:
        """Write a row."""
        self.count += 1
        self._rows.append(row)
        self._characters += sum(len(value) for value in row.values() if isinstance(value, str))
        if len(self._rows) == _ROWS or self._characters >= _CHARACTERS:
            self._pack()
            if sum(batch.nbytes for batch in self._batches) >= _BYTES:
                self._flush()

    def close(self) -> None:
        """Write the remaining rows and close the file."""
        if self._rows or self._batches:
            self._pack()
            self._flush()
        if self._file is not None:
            self._file.close()

    def _pack(self) -> None:
        self._batches.append(pa.RecordBatch.from_pylist(self._rows, self._schema))
        self._rows, self._characters = [], 0

    def _flush(self) -> None:
        if self._file is None:
            self._file = pq.ParquetWriter(self._path, self._schema, compression="zstd")
        self._file.write_table(pa.Table.from_batches(self._batches, self._schema))
        self._batches = []
