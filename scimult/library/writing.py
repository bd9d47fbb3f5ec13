"""Change a library: add, update and remove papers, encoding only new texts.

Rows are appended in segments. A segment's vectors and papers are written first, ``library.json``
last: a killed writer leaves files that nothing names, and the next one removes them. A changed
paper is a new row and a removed one; if its text is unchanged its vectors are copied.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scimult.errors import DataError
from scimult.library.encoded import PrecomputedVectors
from scimult.library.encoding import encode_papers, spaces_of
from scimult.library.manifest import (
    INDEXES,
    PAPERS,
    Manifest,
    content_of,
    write_manifest,
    write_removed,
)
from scimult.library.papers import as_ids
from scimult.library.records import Paper, as_table, column_types
from scimult.library.segments import write_segment
from scimult.library.state import State, check_complete
from scimult.locks import remove_leftovers_in
from scimult.progress import bar
from scimult.retrieval.shards import publish, shard_name, write_shard
from scimult.terminal import counted
from scimult.types import BoolArray, FloatArray

if TYPE_CHECKING:
    from scimult.inference import SciMult
    from scimult.inference.query_encoder import QueryEncoder

SEGMENT_ROWS = 8192
"""Papers per segment: the most that a kill can lose."""
_NUMBER = re.compile(r"\d{6,}")


@dataclass
class Changes:
    """Counts of a change.

    Attributes
    ----------
    added, changed, unchanged, removed : int
        Papers; changed ones have another text or other columns.
    kept : int
        Papers that were not given but are to be kept.
    texts_encoded, tokens_encoded : int
        The model's work.
    """

    added: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0
    kept: int = 0
    texts_encoded: int = 0
    tokens_encoded: int = 0

    def __str__(self) -> str:
        counts = {name: count for name, count in vars(self).items() if "_" not in name}
        words = [f"{count:,} {name}" for name, count in counts.items() if count or name != "kept"]
        return f"{', '.join(words)}; {counted(self.texts_encoded, 'text')} encoded"


@dataclass(frozen=True)
class _Known:
    row: int
    text_hash: str
    paper_hash: str


class Writer:
    """Changes a library; the caller holds its lock. Removing needs no model.

    Raises
    ------
    DataError
        If the model or one of its settings is not the library's, the message says what differs;
        or without a model, if the library's creation was interrupted.
    """

    def __init__(
        self,
        state: State,
        model: SciMult | None = None,
        encoded: PrecomputedVectors | None = None,
    ) -> None:
        self.changes = Changes()
        self._folder, self._state, self._model = state.folder, state, model
        self._encoded = encoded
        self._manifest = state.manifest
        self._removed_N = state.removed_N.copy()
        self._spaces = state.spaces
        if model is None:
            check_complete(state)
        else:
            check_model(state, model)
        self._listed = {task: list(state.shards(task).shards) for task in self._spaces}
        tidy(state)
        table = state.papers.all_hashes()
        columns = [table[name].to_pylist() for name in table.column_names]
        self._known = {
            name: _Known(row, *hashes)
            for row, name, *hashes in zip(*columns, strict=True)
            if state.live_N[row]
        }
        self._lost = _lost(state)
        if self._lost:
            # Unreadable papers do not count towards the content.
            hashes = [known.paper_hash for known in self._known.values()]
            self._manifest = replace(self._manifest, content=content_of("0", hashes, []))

    def put(
        self, papers: Iterable[Paper], *, resumes: bool = False, show_progress: bool = False
    ) -> set[str]:
        """Add and update papers; unchanged ones cost nothing.

        Unless they are all papers, so that this ``resumes`` an interrupted creation, one that has
        written some is refused.

        Returns
        -------
        set of str
            All ids given.

        Raises
        ------
        DataError
            If an id repeats, or a value does not fit its column. Segments written before stay.
            Also if the creation was interrupted.
        """
        if self._manifest.segments and not resumes:
            check_complete(self._state)
        seen: set[str] = set()
        with bar("papers", total=None, unit="paper", show=show_progress) as meter:
            for waiting in self._new(papers, seen, meter.update):
                self._append(waiting)
        return seen

    def remove(self, ids: Iterable[str]) -> None:
        """Remove papers; ignore unknown ids.

        Raises
        ------
        ConfigError, DataError
            If they are not ids; see `as_ids`.
        """
        names = set(as_ids(ids))
        lost = [row for row, name in self._lost.items() if name in names]
        stored = [self._known.pop(name) for name in names if name in self._known]
        if not lost and not stored:
            return
        self._removed_N[[known.row for known in stored] + lost] = True
        self.changes.removed += len(stored)
        self._commit([known.paper_hash for known in stored], [], {})

    def remove_others(self, ids: Set[str], keep: Set[str | None]) -> None:
        """Remove all papers but these, unreadable ones included; all are kept if None is."""
        others = [name for name in (*self._known, *self._lost.values()) if name not in ids]
        keep_ids = set(others if None in keep else as_ids(keep))
        gone = [name for name in others if name not in keep_ids]
        self.changes.kept += len(others) - len(gone)
        self.remove(gone)

    def _new(
        self, papers: Iterable[Paper], seen: set[str], advance: Callable[[int], object]
    ) -> Iterator[list[Paper]]:
        """Yield new and changed papers, a segment at a time."""
        waiting: list[Paper] = []
        for paper in papers:
            advance(1)
            if paper.id in seen:
                fix = "give every paper its own id, or remove the repetition"
                raise DataError("id is given twice", value=paper.id, fix=fix)
            seen.add(paper.id)
            known = self._known.get(paper.id)
            if known is not None and known.paper_hash == paper.paper_hash:
                self.changes.unchanged += 1
                continue
            waiting.append(paper)
            if len(waiting) == SEGMENT_ROWS:
                yield waiting
                waiting = []
        if waiting:
            yield waiting

    def _append(self, papers: Sequence[Paper]) -> None:
        """Write one segment and add it to the library."""
        columns = column_types(papers, self._manifest.columns)
        table = as_table(papers, self._manifest.rows, columns)
        vectors = self._vectors(papers)
        before = [self._known.get(paper.id) for paper in papers]
        former = [known for known in before if known is not None]
        number, first = next_number(self._manifest), self._manifest.rows
        ids, hashes = [paper.id for paper in papers], [paper.text_hash for paper in papers]
        for task, space in self._spaces.items():
            folder = self._state.space_folder(task)
            shard = write_shard(folder, number, space, ids, vectors[task], hashes)
            self._listed[task].append(shard)
        segment = write_segment(self._folder / PAPERS, shard_name(number), table)
        self._removed_N = np.append(self._removed_N, np.zeros(len(papers), dtype=bool))
        self._removed_N[[known.row for known in former]] = True
        new = set(ids)
        self._removed_N[[row for row, name in self._lost.items() if name in new]] = True
        for row, paper in enumerate(papers, start=first):
            self._known[paper.id] = _Known(row, paper.text_hash, paper.paper_hash)
        self.changes.changed += len(former)
        self.changes.added += len(papers) - len(former)
        added = [paper.paper_hash for paper in papers]
        values = {"columns": columns, "segments": (*self._manifest.segments, segment)}
        longest = {
            task: max(self._manifest.longest.get(task, 0.0), longest_of(vectors[task]))
            for task in self._spaces
        }
        self._commit([k.paper_hash for k in former], added, {**values, "longest": longest})

    def _vectors(self, papers: Sequence[Paper]) -> dict[str, FloatArray]:
        """Encode new texts, and copy the vectors of papers with unchanged text."""
        same = {
            index: known.row
            for index, paper in enumerate(papers)
            if (known := self._known.get(paper.id)) and known.text_hash == paper.text_hash
        }
        fresh = self._fresh([paper for index, paper in enumerate(papers) if index not in same])
        is_same_N: BoolArray = np.isin(np.arange(len(papers)), list(same))
        rows = np.array(list(same.values()), dtype=np.int64)
        copied = {task: self._state.shards(task).rows(rows) for task in self._spaces}
        return _joined(is_same_N, copied, fresh)

    def _fresh(self, papers: Sequence[Paper]) -> dict[str, FloatArray]:
        """Return vectors of texts that are new to the library: reused or encoded now."""
        assert self._model is not None
        is_stored_N: BoolArray = np.zeros(len(papers), dtype=bool)
        before: dict[str, FloatArray] = {}
        if self._encoded is not None:
            is_stored_N, before = self._encoded.find([paper.text_hash for paper in papers])
        texts = [
            paper.text for paper, stored in zip(papers, is_stored_N, strict=True) if not stored
        ]
        tokens = self._model.tokens_encoded
        encoded = encode_papers(self._model, texts, self._manifest.sides)
        self.changes.texts_encoded += len(texts)
        self.changes.tokens_encoded += self._model.tokens_encoded - tokens
        return _joined(is_stored_N, before, encoded) if before else encoded

    def _commit(
        self, removed: Sequence[str], added: Sequence[str], values: dict[str, object]
    ) -> None:
        """Make the change effective: spaces and removed rows first, the manifest last."""
        for task, space in self._spaces.items():
            publish(self._state.space_folder(task), space, self._listed[task])
        before = self._manifest
        name = write_removed(self._folder, before.generation + 1, self._removed_N)
        content = content_of(before.content, added, removed)
        self._manifest = before.changed(removed=name, content=content, **values)
        write_manifest(self._folder, self._manifest)
        if before.removed and before.removed != name:
            (self._folder / before.removed).unlink(missing_ok=True)


def _joined(
    first_N: BoolArray, first: Mapping[str, FloatArray], others: Mapping[str, FloatArray]
) -> dict[str, FloatArray]:
    """Return vectors in order, by task: ``first`` where ``first_N`` is true, else ``others``."""
    vectors = {}
    for task, first_FD in first.items():
        vectors[task] = np.empty((len(first_N), first_FD.shape[1]), dtype=np.float32)
        vectors[task][first_N], vectors[task][~first_N] = first_FD, others[task]
    return vectors


def check_model(state: State, model: SciMult | QueryEncoder) -> None:
    """Check that a model makes the library's vectors.

    Raises
    ------
    DataError
        If it does not; the message says what differs.
    """
    for task, role in state.manifest.sides.items():
        space = state.shards(task).space
        (other,) = spaces_of(model, {task: role}, space.dtype).values()
        space.check_same(other, state.folder, "go over to the other: scimult library migrate")


def longest_of(vectors_ND: FloatArray) -> float:
    """Return the length of the longest vector, rounded up; 0 if there are none."""
    return float(np.linalg.norm(vectors_ND, axis=1).max(initial=0.0)) * (1 + 1e-5)


def _lost(state: State) -> dict[int, str]:
    """Return the rows of unreadable papers, with their ids as far as known."""
    rows = np.flatnonzero(~state.removed_N & ~state.live_N)
    names = dict.fromkeys(rows.tolist(), "")
    if not names:
        return names
    for task in state.manifest.sides:
        ids = state.shards(task).ids
        names.update({row: ids[row] for row in names if ids[row]})
    table = state.papers.all_hashes()
    named = zip(table["row"].to_pylist(), table["id"].to_pylist(), strict=True)
    names.update({row: name for row, name in named if row in names})
    return names


def next_number(manifest: Manifest) -> int:
    """Return the number of the next segment."""
    return 1 + max((int(part.name) for part in manifest.segments), default=-1)


def tidy(state: State) -> None:
    """Remove what killed writers left: files of segments that the manifest does not list."""
    named = {part.name for part in state.manifest.segments}
    folders = [state.folder / PAPERS, *map(state.space_folder, state.manifest.sides)]
    unnamed: list[Path] = []
    for folder in folders:
        remove_leftovers_in(folder)
        for path in folder.iterdir() if folder.is_dir() else ():
            if _NUMBER.fullmatch(path.stem) and path.stem not in named:
                unnamed.append(path)
    # After a kill between two manifests of spaces, one may still list what is removed here.
    for task in state.manifest.sides if unnamed else ():
        shards = state.shards(task)
        publish(shards.path, shards.space, shards.shards)
    for path in unnamed:
        path.unlink(missing_ok=True)
    remove_unlisted(state.folder, state.manifest)


def remove_unlisted(folder: Path, manifest: Manifest) -> None:
    """Remove marks of removed rows, and approximate indexes, that the manifest does not list."""
    for room in (folder, folder / INDEXES):
        remove_leftovers_in(room)
    listed = {manifest.removed, *(facts["file"] for facts in manifest.indexes.values())}
    for path in (*folder.glob("removed.*.npy"), *folder.glob(f"{INDEXES}/*.faiss")):
        if path.name not in listed:
            path.unlink(missing_ok=True)
