"""Rewrite a library: merge small segments, and drop the rows of removed papers.

New files stay next to the old ones until ``library.json`` names them, so a kill costs only the
work.
"""

from __future__ import annotations

import shutil
from itertools import takewhile
from typing import Any

import numpy as np
import pyarrow as pa

from scimult.library.manifest import INDEXES, PAPERS, write_manifest
from scimult.library.segments import write_segment
from scimult.library.state import State, check_complete
from scimult.library.writing import SEGMENT_ROWS, next_number, tidy
from scimult.retrieval.shards import publish, shard_name, write_shard
from scimult.types import IntArray

MOST_SMALL = 32
"""Most segments of less than half the usual rows at the end of a library before they are merged."""


def compact(state: State, *, everything: bool = False) -> State:
    """Rewrite what is worth it and return the resulting state; the caller holds the lock.

    Rows of removed papers are dropped once they are the majority, or with ``everything``: rows are
    then renumbered, and approximate indexes keep their settings but no file: `indexing.keep_up`
    rebuilds them, after a kill at the next change. While papers are unreadable nothing changes,
    since their files may be restored.
    """
    check_complete(state)
    if not state.is_whole:
        return state
    rows, dead = state.manifest.rows, int(state.removed_N.sum())
    # All live papers are readable, so damaged files hold only removed ones.
    if dead and (everything or 2 * dead > rows or state.damage()):
        return _rewritten(state, 0, state.live_rows())
    segments = state.manifest.segments
    small = sum(1 for _ in takewhile(lambda part: part.rows < SEGMENT_ROWS // 2, segments[::-1]))
    if small > MOST_SMALL or (everything and small > 1):
        count = len(segments) - small
        return _rewritten(state, count, np.arange(state.papers.starts[count], rows))
    if everything:
        tidy(state)  # a killed attempt may have left files
    return state


def _rewritten(state: State, count: int, rows: IntArray) -> State:
    """Keep the first ``count`` segments, and write ``rows`` after them."""
    manifest, number = state.manifest, next_number(state.manifest)
    segments = list(manifest.segments[:count])
    listed = {task: list(state.shards(task).shards) for task in manifest.sides}
    first = int(state.papers.starts[count])
    for start in range(0, len(rows), SEGMENT_ROWS):
        part = rows[start : start + SEGMENT_ROWS]
        table = state.papers.table(part)
        numbers = pa.array(np.arange(first, first + len(part)))
        table = table.set_column(table.column_names.index("row"), "row", numbers)
        ids, hashes = (table[name].to_pylist() for name in ("id", "text_hash"))
        for task in manifest.sides:
            shards, folder = state.shards(task), state.space_folder(task)
            vectors_ND = shards.rows(part)
            listed[task].append(write_shard(folder, number, shards.space, ids, vectors_ND, hashes))
        segments.append(write_segment(state.folder / PAPERS, shard_name(number), table))
        first, number = first + len(part), number + 1
    for task in manifest.sides:
        space = state.shards(task).space
        publish(state.space_folder(task), space, listed[task])
    same_rows = len(rows) == manifest.rows - state.papers.starts[count]
    unbuilt = {name: {**facts, "file": ""} for name, facts in manifest.indexes.items()}
    values: dict[str, Any] = {} if same_rows else {"removed": "", "indexes": unbuilt}
    write_manifest(state.folder, manifest.changed(segments=tuple(segments), **values))
    after = State(state.folder)
    for task in manifest.sides:
        publish(after.space_folder(task), after.shards(task).space, after.shards(task).shards)
    tidy(after)
    if values:
        shutil.rmtree(state.folder / INDEXES, ignore_errors=True)
    return after
