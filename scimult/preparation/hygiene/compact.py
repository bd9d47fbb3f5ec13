"""Rewrite a corpus without some of its texts; references to merged texts become their keepers'.

Shape legend: N texts before, M after.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from scimult.data.prepared import ALIASES_FILE
from scimult.data.ragged import Ragged
from scimult.data.text_store import FILE_NAME as TEXTS_FILE
from scimult.data.text_store import (
    METADATA_FILE,
    SCHEMA,
    TextStore,
    list_array,
    open_arrow,
    open_metadata,
    write_arrow,
)
from scimult.errors import DataError
from scimult.preparation.collected import Collected, unique_rows
from scimult.preparation.pair_columns import Columns, transformed, unique_pairs
from scimult.preparation.targets import moved
from scimult.types import BoolArray, IntArray


@dataclass(frozen=True)
class RowMap:
    """Map from the rows of N texts to their rows after compaction.

    Labels always keep themselves; removing one of a group of texts with the same keeper removes the
    whole group.
    """

    keeper_N: IntArray
    removed_N: BoolArray

    @property
    def is_kept_N(self) -> BoolArray:
        """Which texts stay in the store."""
        gone = np.zeros(len(self.keeper_N), dtype=np.bool_)
        gone[self.keeper_N[self.removed_N]] = True
        return np.asarray((self.keeper_N == np.arange(len(gone))) & ~gone, dtype=np.bool_)

    @property
    def new_rows_N(self) -> IntArray:
        """Row of each text's keeper after compaction; -1 if the group was removed."""
        is_kept_N = self.is_kept_N
        position_N = np.where(is_kept_N, np.cumsum(is_kept_N) - 1, -1)
        return np.asarray(position_N[self.keeper_N], dtype=np.int64)


def compact_texts(source: Path, target: Path, rows: RowMap) -> None:
    """Copy the remaining texts of ``texts.arrow``, and write ``aliases.arrow``.

    Aliases map the id of every merged text to the row of its keeper.
    """
    is_kept_N = rows.is_kept_N
    table = open_arrow(source / TEXTS_FILE, "texts")
    start = 0
    with pa.ipc.new_file(str(target / TEXTS_FILE), SCHEMA) as writer:
        for batch in table.to_batches():
            stop = start + batch.num_rows
            part = batch.filter(pa.array(is_kept_N[start:stop]))
            if part.num_rows:
                writer.write_batch(part)
            start = stop
    new_N = rows.new_rows_N
    merged = np.flatnonzero((rows.keeper_N != np.arange(len(is_kept_N))) & (new_N >= 0))
    ids = TextStore(table, source / TEXTS_FILE).ids_at(merged)
    columns = {"id": pa.array(ids, pa.string()), "row": pa.array(new_N[merged])}
    write_arrow(target / ALIASES_FILE, "aliases", columns)


def compact_metadata(source: Path, target: Path, rows: RowMap) -> None:
    """Copy ``metadata.arrow``; keepers get all labels of their group, and fields they lack."""
    table = open_metadata(source)
    old = table.column("row").to_numpy()
    new = rows.new_rows_N[old]
    is_kept = rows.is_kept_N[old]
    count = int(is_kept.sum())
    if len(old) and not count:
        fix = "name other evaluation sets, or remove fewer roles with hygiene.decontaminate"
        raise DataError("cleaning removes every paper", fix=fix)
    positions = np.where(new >= 0, new - new[is_kept].min(initial=len(rows.keeper_N)), -1)
    columns = {"row": pa.array(new[is_kept])}
    for name in table.column_names[1:]:
        column = table.column(name).combine_chunks()
        if name == "labels":
            columns[name] = _merged_labels(column, positions, count)
        else:
            columns[name] = column.take(pa.array(_first_filled(column, positions, is_kept, count)))
    write_arrow(target / METADATA_FILE, "metadata", columns)


def compact_pairs(
    collected: Collected, rows: RowMap, scratch: Path
) -> tuple[Collected, Counter[str]]:
    """Return the pairs between remaining texts, and counts of the dropped ones.

    Large columns are mapped from files in ``scratch``.
    """
    new_N = rows.new_rows_N
    counts: Counter[str] = Counter()
    parts = []
    for part in collected.parts:
        pairs, dropped = _move((part.queries, part.positives), new_N, scratch)
        counts.update({f"{part.task}: {reason}": number for reason, number in dropped.items()})
        parts.append(replace(part, queries=pairs[0], positives=pairs[1]))
    triples = new_N[collected.triples]
    triples = unique_rows([triples[(triples >= 0).all(axis=1)]])
    teacher = collected.teacher
    if teacher is not None:
        teacher, dropped = teacher.moved(new_N)
        counts.update(dropped)
    targets = moved(collected.targets, new_N, rows.is_kept_N)
    counts["targets removed or merged with a text"] = sum(
        len(before) - len(after) for before, after in zip(collected.targets, targets, strict=True)
    )
    remaining = replace(
        collected,
        parts=parts,
        citations=_move(collected.citations, new_N, scratch)[0],
        shown=_move(collected.shown, new_N, scratch)[0],
        triples=triples,
        teacher=teacher,
        # All papers of a source may have merged into those of another.
        targets=[file for file in targets if len(file)],
    )
    return remaining, counts


def _move(columns: Columns, new_N: IntArray, scratch: Path) -> tuple[Columns, Counter[str]]:
    counts: Counter[str] = Counter()

    def renumber(_: slice, first: IntArray, second: IntArray) -> Columns:
        first, second = new_N[first], new_N[second]
        removed = (first < 0) | (second < 0)
        itself = ~removed & (first == second)
        counts["pairs removed with a text"] += int(removed.sum())
        counts["pairs of a text with its own duplicate"] += int(itself.sum())
        return first[~removed & ~itself], second[~removed & ~itself]

    remaining = transformed(columns, renumber, scratch)
    unique = unique_pairs([remaining], scratch)
    counts["pairs that became the same"] = len(remaining[0]) - len(unique[0])
    return unique, counts


def _merged_labels(labels: pa.LargeListArray, positions: IntArray, count: int) -> pa.LargeListArray:
    """Return the labels of each group; labels come first in the store, so their rows stay."""
    lists = Ragged(labels.values.to_numpy(), labels.offsets.to_numpy())
    owners = positions[lists.owners]
    return list_array(Ragged.from_pairs(owners[owners >= 0], lists.values[owners >= 0], count))


def _first_filled(
    column: pa.Array, positions: IntArray, is_kept: BoolArray, count: int
) -> IntArray:
    """Return the member whose value each group takes: the keeper's if filled, else the first."""
    if isinstance(column, pa.LargeListArray):
        filled = np.diff(column.offsets.to_numpy()) > 0
    else:
        filled = column.is_valid().to_numpy(zero_copy_only=False)
    # Sort by group; within a group, filled values first, then the keeper's, then the earliest.
    order = np.lexsort((np.arange(len(positions)), ~is_kept, ~filled, positions))
    order = order[positions[order] >= 0]
    starts = np.r_[True, np.diff(positions[order]) != 0][: len(order)]
    assert int(starts.sum()) == count, "a group has no keeper"
    return np.asarray(order[starts], dtype=np.int64)
