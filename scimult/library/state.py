"""A snapshot of a library on disk, and its description."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from scimult.errors import DataError, suggest
from scimult.files import folder_bytes
from scimult.library.filters import Where
from scimult.library.manifest import PAPERS, VECTORS, read_manifest, read_removed, write_manifest
from scimult.library.papers import PaperTable, as_ids
from scimult.retrieval.shards import Shards
from scimult.retrieval.space import Space
from scimult.terminal import counted
from scimult.types import BoolArray, IntArray

_SUGGESTED = 1000


class State:
    """Opens a library without reading its vectors.

    ``papers`` has all rows, of which current papers are the live ones; ``removed_N`` marks the
    rows of removed papers. All files are of one moment, also while another process rewrites them.

    Raises
    ------
    DataError
        If there is no library, or its manifest is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, former = folder, None
        while True:
            self.manifest = read_manifest(folder)
            # What is missing may have been rewritten since the manifest was read.
            is_current, former = self.manifest == former, self.manifest
            try:
                self._open()
            except DataError:
                if is_current:
                    raise
                continue
            if is_current or not self.damage():
                return

    def _open(self) -> None:
        folder, manifest = self.folder, self.manifest
        names = [part.name for part in manifest.segments]
        self._shards = {task: Shards(self.space_folder(task), names) for task in manifest.sides}
        for shards in self._shards.values():
            if [shard.rows for shard in shards.shards] != [part.rows for part in manifest.segments]:
                problem, fix = "papers and vectors differ in rows", "restore the library"
                raise DataError(problem, path=shards.path, fix=fix)
        self.removed_N = read_removed(folder, manifest)
        rows = manifest.segments, manifest.columns, self.removed_N
        self.papers = PaperTable(folder / PAPERS, *rows)

    def space_folder(self, task: str) -> Path:
        """Return the folder of a task's vectors."""
        role = self.manifest.sides[task]
        return self.folder / VECTORS / self.manifest.vectors / f"{task}.{role}"

    def shards(self, task: str) -> Shards:
        """Return the vectors of a task, one shard per segment."""
        return self._shards[task]

    @property
    def spaces(self) -> dict[str, Space]:
        """The space of each task's vectors."""
        return {task: shards.space for task, shards in self._shards.items()}

    @cached_property
    def live_N(self) -> BoolArray:
        """Mask of the rows that are papers of the library and readable, shape ``(N,)``."""
        usable_N = self.papers.usable() & ~self.removed_N
        for shards in self._shards.values():
            usable_N &= shards.usable()
        return usable_N

    @property
    def is_whole(self) -> bool:
        """Whether every paper is readable."""
        return np.array_equal(self.live_N, ~self.removed_N)

    @cached_property
    def numbering(self) -> str:
        """Fingerprint of the current papers and their rows, which a rewrite may exchange."""
        digest = hashlib.sha256(np.packbits(self.live_N).tobytes())
        for part in self.manifest.segments:
            digest.update(part.sha256.encode())
        return digest.hexdigest()[:32]

    def damage(self) -> list[DataError]:
        """Return the damage that is evident without reading everything."""
        errors = list(self.papers.damaged.values())
        for shards in self._shards.values():
            errors += shards.damaged.values()
        return errors

    def check(self) -> list[DataError]:
        """Read everything and return all damage."""
        check_complete(self)
        errors = list(self.papers.check().values())
        for shards in self._shards.values():
            errors += shards.check().values()
        return errors

    def live_rows(self, where: Where | None = None, ids: Sequence[str] | None = None) -> IntArray:
        """Return the rows of current papers: of all, of those that pass a filter, or of ids.

        Raises
        ------
        ConfigError, UnknownNameError
            If the filter is invalid.
        DataError
            If an id is not in the library, or its creation was interrupted.
        """
        check_complete(self)
        rows = np.flatnonzero(
            self.live_N if where is None else self.live_N & self.papers.where(where)
        )
        return rows if ids is None else np.intersect1d(rows, self.rows_of(ids))

    def rows_of(self, given: Iterable[object]) -> IntArray:
        """Return the rows of current papers, in the order of their ids.

        Raises
        ------
        DataError
            If an id is not in the library; see also `as_ids`.
        """
        ids = as_ids(given)
        if not ids:
            return np.empty(0, np.int64)
        rows = self.papers.rows_of(ids)
        rows = rows[self.live_N[rows]]
        row_of = dict(zip(self.papers.ids_of(rows), rows.tolist(), strict=True))
        missing = [name for name in ids if name not in row_of]
        if missing:
            known = self.papers.ids_of(self.live_rows()[:_SUGGESTED])
            fix = f"use ids of the library{suggest(missing[0], known)}"
            raise DataError("no paper has this id", value=missing[0], fix=fix)
        return np.array([row_of[name] for name in ids], dtype=np.int64)


def check_complete(state: State) -> None:
    """Check that the creation of a library has ended.

    Raises
    ------
    DataError
        If it was interrupted, so that papers are missing.
    """
    if state.manifest.creating:
        fix = f"complete it with scimult library sync {state.folder} and the same papers"
        problem = "papers are missing: its creation was interrupted, or is still running"
        raise DataError(problem, path=state.folder, fix=fix)


def finish_creation(state: State) -> State:
    """Record that all papers were added; the caller holds the lock."""
    if not state.manifest.creating:
        return state
    write_manifest(state.folder, state.manifest.changed(creating=False))
    return State(state.folder)


def check_whole(state: State) -> None:
    """Check that every paper is there and readable.

    Raises
    ------
    DataError
        If not.
    """
    check_complete(state)
    if not state.is_whole:
        fix = "repair it first: scimult library check names the files, sync encodes them again"
        raise DataError("the library is damaged", path=state.folder, fix=fix)


def summary(state: State) -> str:
    """Describe a library in one line."""
    manifest, tasks = state.manifest, ", ".join(state.manifest.sides)
    space = next(iter(state.spaces.values()))
    columns = f"; columns {', '.join(manifest.columns)}" if manifest.columns else ""
    return (
        f"{counted(int(state.live_N.sum()), 'paper')} by {manifest.model['name']!r}; "
        f"{tasks}; width {space.width}, {space.similarity}, {space.dtype}{columns}"
    )


def facts_of(state: State) -> dict[str, Any]:
    """Return facts about a library and its model, by name."""
    check_complete(state)
    manifest = state.manifest
    space = next(iter(state.spaces.values()))
    made_by = {name: v for name, v in space.made_by.items() if name not in ("task", "role")}
    return {
        "papers": int(state.live_N.sum()),
        "rows of removed papers": int(state.removed_N.sum()),
        "damaged files": [str(problem.path) for problem in state.damage()],
        "columns": dict(manifest.columns),
        "model": manifest.model["name"],
        "model's folder": manifest.model["path"],
        "made by": made_by,
        "tasks": {task: f"papers are the {role}" for task, role in manifest.sides.items()},
        "vectors": f"width {space.width}, {space.similarity}, {space.dtype}",
        "approximate indexes": {
            task: f"{facts['kind']}: recall {facts['recall']:.3f} of the best 10 on "
            f"{facts['queries']} queries, of {facts['papers']:,} papers"
            + ("" if facts["file"] else "; not built: the next change of the library builds it")
            for task, facts in manifest.indexes.items()
        },
        "segments": len(manifest.segments),
        "bytes": folder_bytes(state.folder),
        "generation": manifest.generation,
        "content": manifest.content,
    }
