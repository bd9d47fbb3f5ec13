"""Stream texts from files of any size, each with a unique id."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from scimult.data.importers import guess_format
from scimult.data.lines import find_objects
from scimult.data.packed import open_binary
from scimult.data.records import Rejects
from scimult.data.text_files import is_table, raw_columns
from scimult.inference.collection import given_twice, read_located, text_files
from scimult.types import Kind, Text

_CHUNK = 4096
_BYTES = 1 << 22


def read_texts(
    files: Sequence[Path | str],
    kind: Kind,
    rejects: Rejects,
    *,
    format: str | None = None,
    columns: Mapping[str, str | None] | None = None,
) -> Iterator[tuple[str, Text]]:
    """Yield the id and text of every record, in file order, holding only a chunk in memory.

    Papers are in any format that ``read_papers`` knows, with its options ``format`` and
    ``columns``; labels and queries are JSON lines. ``rejects`` receives bad records and repeated
    ids.

    Raises
    ------
    DataError
        If a file is missing or of an unknown format; and, through ``rejects``, at a bad record.
    """
    seen = SeenIds()
    records = read_located(files, kind, rejects, format, columns)
    while chunk := list(islice(records, _CHUNK)):
        repeated = seen.add([name for name, _, _, _ in chunk])
        for (name, text, path, line), is_repeated in zip(chunk, repeated, strict=True):
            if is_repeated:
                rejects.reject(given_twice(name, text, path, line))
            else:
                yield name, text


def count_records(files: Sequence[Path | str], kind: Kind, format: str | None) -> int | None:
    """Estimate the number of records without parsing files; None if that takes parsing.

    Also counts empty and bad lines, and lines within cells; not what follows damage in a file.
    """
    total = 0
    for path in text_files(files, kind):
        if kind == "paper":
            container = guess_format(path, format).container
        elif raw_columns(path) is not None:
            container = "parquet"
        else:
            container = "csv" if is_table(path) else "json"
        if container == "parquet":
            with suppress(pa.ArrowException, OSError):
                total += pq.ParquetFile(path).metadata.num_rows
        elif container in ("csv", "tsv") or (container == "json" and find_objects(path) is None):
            total += _lines(path) - (container != "json")
        else:
            return None
    return total


class SeenIds:
    """The ids seen so far, in eight bytes each: sorted runs that are merged as they grow.

    Ids are compared by 64 bits of a hash: among ten million, the probability that any two collide
    is 3e-6.
    """

    def __init__(self) -> None:
        self._runs: list[NDArray[np.uint64]] = []

    def add(self, ids: Sequence[str]) -> list[bool]:
        """Return for each id whether it was seen before, in this call or earlier; record all."""
        digests = b"".join(hashlib.blake2b(name.encode(), digest_size=8).digest() for name in ids)
        keys = np.frombuffer(digests, dtype=np.uint64)
        distinct, first = np.unique(keys, return_index=True)
        known = np.ones(len(keys), dtype=bool)
        known[first] = False
        for run in self._runs:
            indices = np.minimum(np.searchsorted(run, keys), len(run) - 1)
            known |= run[indices] == keys
        if len(keys):
            self._runs.append(distinct)
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            self._runs[-2:] = [np.union1d(*self._runs[-2:])]
        repeated: list[bool] = known.tolist()
        return repeated


def _lines(path: Path) -> int:
    count, last = 0, b"\n"
    with open_binary(path) as file, suppress(EOFError):
        while block := file.read(_BYTES):
            count, last = count + block.count(b"\n"), block
    return count + (not last.endswith(b"\n"))
