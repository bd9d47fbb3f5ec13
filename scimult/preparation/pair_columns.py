"""Columns of pairs, memory-mapped from unnamed files if they are large, and their groups.

Shape legend: P pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from scimult.data.ragged import Ragged, rank_in_runs
from scimult.types import BoolArray, IntArray

Columns = tuple[IntArray, IntArray]
# Pairs processed at a time: 8 MB per column.
_BLOCK = 1 << 20
_NONE = np.empty(0, np.int64), np.empty(0, np.int64)


def blocks(count: int) -> Iterator[slice]:
    """Yield the slices of blocks of ``count`` pairs; one empty slice if there are none."""
    for start in range(0, max(count, 1), _BLOCK):
        yield slice(start, min(start + _BLOCK, count))


def mapped(parts: Iterable[tuple[NDArray[Any], ...]], folder: Path) -> tuple[NDArray[Any], ...]:
    """Write columns part by part and map them; a single part stays in memory.

    The first of the parts decides the columns' types. ``folder`` holds a file per column, which
    disappears once nothing maps it.
    """
    remaining = iter(parts)
    first, *second = next(remaining), *islice(remaining, 1)
    if not second:
        return first
    with ExitStack() as opened:
        files = [(opened.enter_context(TemporaryFile(dir=folder)), one.dtype) for one in first]
        for part in chain([first], second, remaining):
            for (file, dtype), column in zip(files, part, strict=True):
                file.write(np.ascontiguousarray(column, dtype=dtype).data)
        return tuple(_map(file, dtype) for file, dtype in files)


def _map(file: IO[bytes], dtype: np.dtype[Any]) -> NDArray[Any]:
    file.flush()
    if not file.tell():
        return np.empty(0, dtype)
    return np.asarray(np.memmap(file, dtype, "r+"))


def selected(connection: duckdb.DuckDBPyConnection, select: str, folder: Path) -> Columns:
    """Map the two integer columns of a SELECT, without nulls."""
    reader = pa.RecordBatchReader.from_stream(connection.sql(select))
    batches = ((batch.column(0).to_numpy(), batch.column(1).to_numpy()) for batch in reader)
    first, second = mapped(chain([next(batches, _NONE)], batches), folder)
    return first, second


def masked(columns: Columns, mask_P: BoolArray, folder: Path) -> Columns:
    """Map the pairs selected by a mask."""
    return transformed(
        columns, lambda at, first, second: (first[mask_P[at]], second[mask_P[at]]), folder
    )


def transformed(
    columns: Columns, transform: Callable[[slice, IntArray, IntArray], Columns], folder: Path
) -> Columns:
    """Apply a function to each block of pairs and map the result."""
    parts = (transform(at, columns[0][at], columns[1][at]) for at in blocks(len(columns[0])))
    first, second = mapped(parts, folder)
    return first, second


def unique_pairs(columns: Sequence[Columns], folder: Path) -> Columns:
    """Concatenate column pairs, sort them and drop duplicates; the result may be mapped."""
    columns = [pair for pair in columns if len(pair[0])]
    if not columns:
        return _NONE
    if len(columns) == 1 and _are_unique(*columns[0]):
        return columns[0]
    # Sorting one combined key is several times faster than sorting by two columns.
    span = 1 + max(int(second.max()) for _, second in columns)
    count = 1 + max(int(first.max()) for first, _ in columns)
    assert count * span < 1 << 63, "combined key would overflow"
    (keys_P,) = mapped(
        (
            (first[at] * span + second[at],)
            for first, second in columns
            for at in blocks(len(first))
        ),
        folder,
    )
    keys_P.sort()
    first, second = mapped(_unique(keys_P, span), folder)
    return first, second


def _unique(keys_P: IntArray, span: int) -> Iterator[Columns]:
    """Yield the distinct pairs of sorted keys."""
    for at in blocks(len(keys_P)):
        before = keys_P[at.start - 1] if at.start else -1
        keys = keys_P[at][np.diff(keys_P[at], prepend=before) > 0]
        owners = keys // span
        yield owners, keys - owners * span


def _are_unique(first: IntArray, second: IntArray) -> bool:
    """Return whether the pairs are strictly ascending."""
    for at in blocks(len(first)):
        here = slice(max(at.start - 1, 0), at.stop)
        step = np.diff(first[here])
        if not np.all((step > 0) | (step == 0) & (np.diff(second[here]) > 0)):
            return False
    return True


def group_by_pair(
    columns: Columns, mask_P: BoolArray, folder: Path
) -> tuple[IntArray, Ragged, Ragged]:
    """Return queries, positives and unsampled of one group per kept pair.

    The pairs are sorted by query, then positive, and distinct. A query's first group has its other
    positives as ``unsampled``.
    """
    others, positives = columns[0][~mask_P], columns[1][~mask_P]
    if len(others):
        columns = masked(columns, mask_P, folder)
    count = len(columns[0])
    first, end = (np.searchsorted(columns[0], others, side) for side in ("left", "right"))
    unsampled = Ragged.from_pairs(first[first < end], positives[first < end], count)
    counting = ((np.arange(at.start, at.stop, dtype=np.int64),) for at in blocks(count + 1))
    (offsets,) = mapped(counting, folder)
    return columns[0], Ragged(columns[1], offsets), unsampled


def group_by_query(
    queries: IntArray, positives: IntArray, mask_P: BoolArray
) -> tuple[IntArray, Ragged, Ragged]:
    """Return queries, kept positives and others of one group per query that keeps a positive.

    Queries, and the positives of each, are ascending.
    """
    unique, group = np.unique(queries, return_inverse=True)
    group = group.astype(np.int64)
    inside = Ragged.from_pairs(group[mask_P], positives[mask_P], len(unique))
    outside = Ragged.from_pairs(group[~mask_P], positives[~mask_P], len(unique))
    filled = np.flatnonzero(inside.lengths > 0)
    return unique[filled], inside.take(filled), outside.take(filled)


def sample_per_value(values: IntArray, limit: int, seed: int) -> BoolArray:
    """Choose at most ``limit`` positions of each value, uniformly (SciMult, appendix A.1).

    The values are, for example, the label of each (paper, label) pair. The mask is True where the
    position is kept.
    """
    order = np.lexsort((np.random.default_rng(seed).random(len(values)), values))
    mask = np.zeros(len(values), dtype=np.bool_)
    mask[order] = rank_in_runs(values[order]) < limit
    return mask
