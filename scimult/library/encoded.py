"""Vectors that ``scimult encode`` made before, on whatever machines: a library takes them over.

A paper is known by the hash of its text, so ids and order may be others.

Shape legend: N stored vectors, B texts asked for, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scimult.errors import DataError
from scimult.retrieval.shards import MANIFEST, Shards, Space, read_ids
from scimult.types import BoolArray, FloatArray, IntArray

_HASH_DIGITS = 32


class EncodedBefore:
    """Finds vectors of texts in folders of shards.

    Parameters
    ----------
    folder : Path
        What ``scimult encode`` wrote: of one task, or with a folder for each.
    spaces : mapping of str to Space
        What the vectors of each task have to be made by.

    Raises
    ------
    DataError
        If a task is not there, or its vectors were made by something else, which is named.
    """

    def __init__(self, folder: Path, spaces: Mapping[str, Space]) -> None:
        by_task = {shards.space.made_by.get("task"): shards for shards in _all_shards(folder)}
        missing = [task for task in spaces if task not in by_task]
        if missing:
            fix = "scimult encode --task all makes those of every task; or make the library --task"
            raise DataError(f"no vectors for {', '.join(missing)}", path=folder, fix=fix)
        self._shards = {task: by_task[task] for task in spaces}
        for task, space in spaces.items():
            space.check_same(self._shards[task].space, self._shards[task].path)
        self._keys = {task: _Keys(shards) for task, shards in self._shards.items()}

    def find(self, hashes: Sequence[str]) -> tuple[BoolArray, dict[str, FloatArray]]:
        """Return which texts all tasks have vectors of, shape ``(B,)``, and those vectors."""
        asked_B2 = _numbers(hashes)
        rows = {task: keys.rows(asked_B2) for task, keys in self._keys.items()}
        there_B = np.all([rows_B >= 0 for rows_B in rows.values()], axis=0)
        return there_B, {
            task: self._shards[task].rows(rows_B[there_B]) for task, rows_B in rows.items()
        }


class _Keys:
    """The hashes of all rows, sorted; 16 bytes and a row number each."""

    def __init__(self, shards: Shards) -> None:
        usable = [shard for shard in shards.shards if shard.name not in shards.damaged]
        starts = dict(zip((s.name for s in shards.shards), shards.starts.tolist(), strict=False))
        keys, rows = [np.empty((0, 2), dtype=np.uint64)], [np.empty(0, dtype=np.int64)]
        for shard in usable:
            hashes = read_ids(shards.path, int(shard.name))["hash"].to_pylist()
            if any(len(text) != _HASH_DIGITS for text in hashes):
                fix = "encode with scimult encode, which writes the hash of every text"
                raise DataError("vectors of unknown texts", path=shards.path, fix=fix)
            keys.append(_numbers(hashes))
            rows.append(np.arange(len(hashes)) + starts[shard.name])
        keys_N2 = np.concatenate(keys)
        order_N = np.lexsort((keys_N2[:, 1], keys_N2[:, 0]))
        self._keys_N2, self._rows_N = keys_N2[order_N], np.concatenate(rows)[order_N]

    def rows(self, asked_B2: NDArray[np.uint64]) -> IntArray:
        """Return the row of each key, -1 for one that is not there."""
        places_B = np.searchsorted(self._keys_N2[:, 0], asked_B2[:, 0])
        rows_B = np.full(len(asked_B2), -1, dtype=np.int64)
        # Two texts with the same first half: one in 10^5 libraries of ten million has any.
        inside_B = places_B < len(self._keys_N2)
        same_B = inside_B.copy()
        same_B[inside_B] = (self._keys_N2[places_B[inside_B]] == asked_B2[inside_B]).all(axis=1)
        rows_B[same_B] = self._rows_N[places_B[same_B]]
        return rows_B


def _numbers(hashes: Sequence[str]) -> NDArray[np.uint64]:
    """Return hashes as pairs of numbers, shape ``(B, 2)``."""
    return np.frombuffer(bytes.fromhex("".join(hashes)), dtype=">u8").reshape(-1, 2).astype("u8")


def _all_shards(folder: Path) -> list[Shards]:
    if (folder / MANIFEST).is_file():
        return [Shards(folder)]
    shards = [Shards(path.parent) for path in sorted(folder.glob(f"*/{MANIFEST}"))]
    if not shards:
        fix = "name a folder that scimult encode has finished"
        raise DataError("no vectors here", path=folder, fix=fix)
    return shards
