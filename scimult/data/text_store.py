"""All texts of a prepared folder in one memory-mapped Arrow file, addressed by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scimult.data.ragged import Ragged
from scimult.errors import DataError
from scimult.files import sha256
from scimult.progress import bar
from scimult.types import BoolArray, IntArray, Kind, Text

FILE_NAME = "texts.arrow"
METADATA_FILE = "metadata.arrow"
# Of every Arrow file of a prepared folder.
VERSION = "1"
ROWS_PER_BATCH = 65536
TEXTS_PER_CHUNK = 4096
KINDS: tuple[Kind, ...] = ("paper", "label", "query")
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("kind", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("title", pa.string(), nullable=False),
        pa.field("body", pa.string(), nullable=False),
    ],
    metadata={"scimult.format": "texts", "scimult.version": VERSION},
)


class TextStore:
    """Texts by row, memory-mapped so that processes share one copy.

    ``fingerprint`` is the SHA-256 of the file at ``path``, if known.
    """

    def __init__(self, table: pa.Table, path: Path, fingerprint: str | None = None) -> None:
        self._table = table
        self._path = path
        self._fingerprint = fingerprint

    @classmethod
    def open(cls, folder: Path | str, fingerprint: str | None = None) -> TextStore:
        """Memory-map ``texts.arrow`` in ``folder``.

        Raises
        ------
        DataError
            If the file is missing, damaged or of another format version.
        """
        path = Path(folder) / FILE_NAME
        return cls(open_arrow(path, "texts"), path, fingerprint)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @property
    def folder(self) -> Path:
        """Folder of the file."""
        return self._path.parent

    def text(self, row: int) -> Text:
        """Return the text at ``row``."""
        try:
            kind, title, body = (self._table.column(i)[row].as_py() for i in (1, 2, 3))
        except UnicodeDecodeError as error:
            raise self._damaged(error) from error
        return Text(cast(Kind, kind), title, body)

    def texts(self, rows: Sequence[int] | IntArray) -> list[Text]:
        """Return the texts at ``rows``, in that order."""
        return [self.text(int(row)) for row in rows]

    def slice(self, start: int, stop: int) -> list[Text]:
        """Return the texts of a range of rows, faster than `texts`."""
        part = self._table.slice(start, stop - start)
        kinds, titles, bodies = (self._values(part.column(i)) for i in (1, 2, 3))
        return [Text(*fields) for fields in zip(kinds, titles, bodies, strict=True)]

    def chunks(self, label: str) -> Iterator[tuple[int, list[Text]]]:
        """Yield all texts in chunks, with each chunk's first row, and show progress."""
        with bar(label, total=len(self), unit="text") as meter:
            for start in range(0, len(self), TEXTS_PER_CHUNK):
                texts = self.slice(start, start + TEXTS_PER_CHUNK)
                yield start, texts
                meter.update(len(texts))

    @cached_property
    def ids(self) -> list[str]:
        """Unique id of every text, in row order."""
        return self._values(self._table.column("id"))

    def ids_at(self, rows: IntArray) -> list[str]:
        """Return the ids of some rows without loading the others."""
        return taken(self._table.column("id"), rows)

    def rows_with_prefix(self, prefix: str) -> IntArray:
        """Return the rows whose id starts with ``prefix``, ascending."""
        mask = pc.starts_with(self._table.column("id"), pattern=prefix)
        return np.flatnonzero(mask.to_numpy())

    @cached_property
    def kinds(self) -> list[Kind]:
        """Kind of every text, in row order."""
        return cast(list[Kind], self._table.column("kind").to_pylist())

    def drawn_papers(self, share: float, seed: int) -> BoolArray:
        """Return a mask of a share of the papers, drawn one by one with the seed."""
        is_paper_N = pc.equal(self._table.column("kind").cast(pa.string()), "paper").to_numpy()
        mask_N: BoolArray = is_paper_N & (np.random.default_rng(seed).random(len(self)) < share)
        return mask_N

    def _values(self, column: pa.ChunkedArray) -> list[Any]:
        try:
            return cast(list[Any], column.to_pylist())
        except UnicodeDecodeError as error:
            raise self._damaged(error) from error

    def _damaged(self, error: UnicodeDecodeError) -> DataError:
        # Opening the file does not read its texts.
        problem = f"a text is not UTF-8, so the file is damaged ({error.reason})"
        return DataError(problem, path=self._path, fix="run scimult prepare again")

    def row(self, identifier: str) -> int:
        """Return the row of the text with this id.

        Raises
        ------
        DataError
            If there is none.
        """
        row = self._rows.get(identifier)
        if row is None:
            fix = "list the ids with TextStore.ids; they look like 'namespace:id'"
            raise DataError("unknown text id", path=self._path, value=identifier, fix=fix)
        return row

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {identifier: row for row, identifier in enumerate(self.ids)}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the file, which a token store built from it records."""
        return self._fingerprint or sha256(self._path)


class TextStoreWriter:
    """Writes ``texts.arrow`` in batches and assigns rows; a context manager.

    If the body raises, an unfinished file stays: write into ``files.atomic_folder``.
    """

    def __init__(self, folder: Path) -> None:
        self._writer = pa.ipc.new_file(str(folder / FILE_NAME), SCHEMA)
        self._pending: list[pa.RecordBatch] = []
        self._waiting = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, identifier: str, text: Text) -> int:
        """Append a text with a new id; return its row."""
        self.write(text.kind, *(pa.array([value]) for value in (identifier, text.title, text.body)))
        return self._count - 1

    def write(self, kind: Kind, ids: pa.Array, titles: pa.Array, bodies: pa.Array) -> None:
        """Append texts of one kind with new ids."""
        codes = pa.array(np.full(len(ids), KINDS.index(kind), dtype=np.int8))
        kinds = pa.DictionaryArray.from_arrays(codes, pa.array(KINDS))
        batch = pa.record_batch([ids, kinds, titles, bodies], schema=SCHEMA)
        self._count += len(batch)
        while len(batch):
            part = batch.slice(0, ROWS_PER_BATCH - self._waiting)
            self._pending.append(part)
            self._waiting += len(part)
            if self._waiting == ROWS_PER_BATCH:
                self._flush()
            batch = batch.slice(len(part))

    def __enter__(self) -> TextStoreWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            if exception[0] is None and self._pending:
                self._flush()
        finally:
            self._writer.close()

    def _flush(self) -> None:
        # Combining with an empty batch forces a copy: slices would write their whole buffers.
        empty = self._pending[0].slice(0, 0)
        table = pa.Table.from_batches([*self._pending, empty]).combine_chunks()
        self._writer.write_table(table)
        self._pending.clear()
        self._waiting = 0


def write_arrow(
    path: Path,
    what: str,
    columns: Mapping[str, pa.Array],
    facts: Mapping[str, str] | None = None,
) -> None:
    """Write columns as an Arrow IPC file that `open_arrow` reads; creates its folder if needed.

    ``what`` names its format, ``facts`` are further metadata. Call it inside
    ``files.atomic_folder``.
    """
    described = {"scimult.format": what, "scimult.version": VERSION, **(facts or {})}
    table = pa.table(dict(columns)).replace_schema_metadata(described)
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def taken(column: pa.ChunkedArray, rows: IntArray) -> list[Any]:
    """Return the values at some rows of a column.

    Arrow's own ``take`` copies all chunks into one first: slow, and impossible beyond 2 GB of text.
    """
    ends = np.cumsum([len(chunk) for chunk in column.chunks])
    chunk_R = np.searchsorted(ends, rows, side="right")
    values_R = np.empty(len(rows), dtype=object)
    for number in np.unique(chunk_R):
        at, chunk = np.flatnonzero(chunk_R == number), column.chunk(int(number))
        inside = pa.array(rows[at] - ends[number] + len(chunk))
        values_R[at] = np.array(chunk.take(inside).to_pylist(), dtype=object)
    values: list[Any] = values_R.tolist()
    return values


def list_array(lists: Ragged, values: pa.Array | None = None) -> pa.LargeListArray:
    """Return lists as an Arrow array; ``values`` replaces their own values."""
    flat = pa.array(lists.values, pa.int64()) if values is None else values
    return pa.LargeListArray.from_arrays(pa.array(lists.offsets, pa.int64()), flat)


def ragged(column: pa.ChunkedArray) -> Ragged:
    """Return the lists of a column with at most one chunk."""
    if column.num_chunks == 0:
        return Ragged.empty(0)
    chunk = column.chunk(0)
    return Ragged(numbers(chunk.values), numbers(chunk.offsets))


def numbers(column: pa.Array | pa.ChunkedArray) -> Any:
    """Return a numpy view of a column of numbers without nulls; several chunks are copied.

    Arrow's ``to_numpy`` would import pandas.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return np.from_dlpack(column)


def open_arrow(path: Path, what: str) -> pa.Table:
    """Memory-map an Arrow IPC file and check its format name and version.

    Raises
    ------
    DataError
        If the file is missing, damaged, or of another format or version.
    """
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        metadata = {key: value.decode() for key, value in (table.schema.metadata or {}).items()}
    except FileNotFoundError:
        raise DataError("file does not exist", path=path, fix="run scimult prepare") from None
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        fix = "run scimult prepare again"
        raise DataError(f"not a readable Arrow file: {error}", path=path, fix=fix) from None
    header = tuple(metadata.get(key, "") for key in (b"scimult.format", b"scimult.version"))
    if header != (what, VERSION):
        raise DataError(
            f"expected a {what} file of version {VERSION}",
            path=path,
            value=header,
            fix="run scimult prepare again with this version of scimult",
        )
    return table


def open_metadata(folder: Path) -> pa.Table:
    """Memory-map the metadata of a folder's papers; see `open_arrow`."""
    return open_arrow(folder / METADATA_FILE, "metadata")
