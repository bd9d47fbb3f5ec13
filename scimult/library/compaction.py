"""Rewriting a library: many small segments into one, and rows that are no papers any more left out.

New files stand beside the old ones until ``library.json`` names them, so a kill costs the work and
nothing else.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from scimult.library.manifest import INDEXES, PAPERS, write_manifest
from scimult.library.segments import Segment, write_segment
from scimult.library.state import State
from scimult.library.writing import SEGMENT_ROWS, next_number, tidy
from scimult.retrieval.shards import Shard, publish, shard_name, write_shard
from scimult.types import IntArray

MOST_SMALL = 32
"""Segments of less than half the usual rows at the end of a library before they become one."""


def compact(state: State, *, everything: bool = False) -> State:
    """Rewrite what is worth it, and return the library as it is then; the caller holds its lock.

    Rows that are no papers any more are left out once they are more than half, or if
    ``everything`` is asked for: rows then have other numbers, and approximate indexes are
    dropped. While papers cannot be read, all stays as it is: their files may be restored.
    """
    if not np.array_equal(state.live_N, ~state.removed_N):
        return state
    rows, dead = state.manifest.rows, int(state.removed_N.sum())
    # What is damaged now holds no paper.
    if dead and (everything or 2 * dead > rows or state.damage()):
        return _rewritten(state, 0, state.live_rows())
    small = _small_at_the_end(state.manifest.segments)
    if small > MOST_SMALL or (everything and small > 1):
        count = len(state.manifest.segments) - small
        return _rewritten(state, count, np.arange(state.papers.starts[count], rows))
    return state


def _small_at_the_end(segments: Sequence[Segment]) -> int:
    count = 0
    for part in reversed(segments):
        if part.rows >= SEGMENT_ROWS // 2:
            break
        count += 1
    return count


def _rewritten(state: State, count: int, rows: IntArray) -> State:
    """Keep the first segments as they are, and write ``rows`` behind them."""
    manifest, number = state.manifest, next_number(state.manifest)
    segments = list(manifest.segments[:count])
    listed = {task: list(state.shards(task).shards) for task in manifest.sides}
    fresh: dict[str, list[Shard]] = {task: [] for task in manifest.sides}
    first = int(state.papers.starts[count])
    for part in _parts(rows):
        table = state.papers.table(part)
        numbers = pa.array(np.arange(first, first + len(part)))
        table = table.set_column(table.column_names.index("row"), "row", numbers)
        ids, hashes = (table[name].to_pylist() for name in ("id", "text_hash"))
        for task in manifest.sides:
            shards, folder = state.shards(task), state.space_folder(task)
            vectors_ND = shards.rows(part)
            fresh[task].append(write_shard(folder, number, shards.space, ids, vectors_ND, hashes))
        segments.append(write_segment(state.folder / PAPERS, shard_name(number), table))
        first, number = first + len(part), number + 1
    for task in manifest.sides:
        space = state.shards(task).space
        publish(state.space_folder(task), space, [*listed[task], *fresh[task]])
    renumbered: dict[str, Any] = {"removed": "", "indexes": {}}
    values = {} if len(rows) == manifest.rows - state.papers.starts[count] else renumbered
    write_manifest(state.folder, manifest.changed(segments=tuple(segments), **values))
    after = State(state.folder)
    for task in manifest.sides:
        publish(after.space_folder(task), after.shards(task).space, after.shards(task).shards)
    tidy(after)
    if values:
        shutil.rmtree(state.folder / INDEXES, ignore_errors=True)
    return after


def _parts(rows: IntArray) -> Iterator[IntArray]:
    for start in range(0, len(rows), SEGMENT_ROWS):
        yield rows[start : start + SEGMENT_ROWS]
