"""Reuse vectors that ``scimult encode`` wrote earlier, on any machine.

Papers are matched by the hash of their text, so ids and order may differ.

Shape legend: N stored vectors, B requested texts, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scimult.errors import DataError
from scimult.retrieval.shards import MANIFEST, Shards, read_ids
from scimult.retrieval.space import Space
from scimult.types import BoolArray, FloatArray, IntArray

_HASH_DIGITS = 32


class PrecomputedVectors:
    """Looks up vectors of texts in a folder of ``scimult encode``: one task, or a folder per task.

    Raises
    ------
    DataError
        If a task is missing or not completely encoded, or the origin of its vectors differs; the
        message says how.
    """

    def __init__(self, folder: Path, spaces: Mapping[str, Space]) -> None:
        by_task = {shards.space.made_by.get("task"): shards for shards in _all_shards(folder)}
        missing = [task for task in spaces if task not in by_task]
        if missing:
            fix = "scimult encode --task all encodes for all; or create a library of fewer: --task"
            raise DataError(f"no vectors for {', '.join(missing)}", path=folder, fix=fix)
        self._shards = {task: by_task[task] for task in spaces}
        for task, space in spaces.items():
            shards = self._shards[task]
            if replace(shards.space, dtype=space.dtype) == space != shards.space:
                raise _other_precision(shards, space)
            space.check_same(shards.space, shards.path)
            if not shards.shards:
                fix = "repeat scimult encode; with --part, the part of each missing shard"
                raise DataError("embeddings are not complete", path=shards.path, fix=fix)
        self._keys = {task: _Keys(shards) for task, shards in self._shards.items()}

    def find(self, hashes: Sequence[str]) -> tuple[BoolArray, dict[str, FloatArray]]:
        """Return which texts have vectors for all tasks, shape ``(B,)``, and these vectors."""
        keys_B2 = _numbers(hashes)
        rows = {task: keys.rows(keys_B2) for task, keys in self._keys.items()}
        is_stored_B = np.all([rows_B >= 0 for rows_B in rows.values()], axis=0)
        vectors = {
            task: self._shards[task].rows(rows_B[is_stored_B]) for task, rows_B in rows.items()
        }
        return is_stored_B, vectors


def _other_precision(shards: Shards, space: Space) -> DataError:
    theirs, ours = shards.space.dtype, space.dtype
    problem = f"vectors are stored as {theirs}, those of the library as {ours}"
    fix = f"create the library with --precision {theirs}, or encode with --precision {ours}"
    return DataError(problem, path=shards.path, fix=fix)


class _Keys:
    """The hashes of all rows, sorted; 16 bytes and a row number each."""

    def __init__(self, shards: Shards) -> None:
        keys, rows = [np.empty((0, 2), dtype=np.uint64)], [np.empty(0, dtype=np.int64)]
        for shard, start in zip(shards.shards, shards.starts.tolist(), strict=False):
            if shard.name in shards.damaged:
                continue
            hashes = read_ids(shards.path, int(shard.name))["hash"].to_pylist()
            if any(len(text) != _HASH_DIGITS for text in hashes):
                fix = "encode with scimult encode, which writes the hash of every text"
                raise DataError("vectors of unknown texts", path=shards.path, fix=fix)
            keys.append(_numbers(hashes))
            rows.append(np.arange(len(hashes)) + start)
        keys_N2 = np.concatenate(keys)
        order_N = np.lexsort((keys_N2[:, 1], keys_N2[:, 0]))
        self._keys_N2, self._rows_N = keys_N2[order_N], np.concatenate(rows)[order_N]

    def rows(self, keys_B2: NDArray[np.uint64]) -> IntArray:
        """Return the row of each key, -1 for missing ones."""
        index_B = np.searchsorted(self._keys_N2[:, 0], keys_B2[:, 0])
        rows_B = np.full(len(keys_B2), -1, dtype=np.int64)
        # Misses texts that share their first half: one in 10^5 libraries of ten million has any.
        inside_B = index_B < len(self._keys_N2)
        same_B = inside_B.copy()
        same_B[inside_B] = (self._keys_N2[index_B[inside_B]] == keys_B2[inside_B]).all(axis=1)
        rows_B[same_B] = self._rows_N[index_B[same_B]]
        return rows_B


def _numbers(hashes: Sequence[str]) -> NDArray[np.uint64]:
    """Return hashes as pairs of numbers, shape ``(B, 2)``."""
    return np.frombuffer(bytes.fromhex("".join(hashes)), dtype=">u8").reshape(-1, 2).astype("u8")


def _all_shards(folder: Path) -> list[Shards]:
    if (folder / MANIFEST).is_file():
        return [Shards(folder)]
    shards = [Shards(path.parent) for path in sorted(folder.glob(f"*/{MANIFEST}"))]
    if not shards:
        fix = "name a folder that scimult encode has completed"
        raise DataError("no vectors here", path=folder, fix=fix)
    return shards
