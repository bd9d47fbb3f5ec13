"""Approximate indexes: train, fill, fill by several processes, extend.

An index is trained on a sample and filled with rows in order. Several processes, on any machines
that see the library's folder, may fill parts of it: the first trains, each fills its share of the
rows, the last to finish merges them, and the result equals that of a single process.

Shape legend: N rows, B rows of a block, D width.
"""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scimult.errors import ConfigError, DataError, StorageError
from scimult.files import atomic_file, only_writer
from scimult.library.approximate import IndexFacts, Kind, faiss_library
from scimult.progress import note
from scimult.retrieval.faiss_indexes import for_faiss, new_index, write_index
from scimult.retrieval.shards import Shards
from scimult.types import BoolArray

if TYPE_CHECKING:
    import faiss

    from scimult.inference.bulk import Part

FACTORIES = {
    "rabitq": "RR{width},IVF{lists},RaBitQ",
    "pq": "IVF{lists},PQ{parts}x4fs",
    "hnsw": "IDMap2,HNSW32_SQ8",
}
_BLOCK = 1 << 16
_TRAINED_ON = 40  # vectors per list, about what k-means expects
_ROUNDS = 5
_WAIT_SECONDS = 0.5


def build(
    path: Path, kind: Kind, shards: Shards, live_N: BoolArray, lists: int | None = None
) -> IndexFacts:
    """Build an index of the live rows, and write it atomically.

    ``lists`` is the number of inverted lists, by default four times the square root of that of
    papers.
    """
    index = _trained(kind, shards, live_N, lists)
    _fill(index, shards, live_N)
    _write(index, path)
    return IndexFacts(kind, path.name, len(live_N), int(live_N.sum()))


def extend(
    path: Path, old: Path, facts: IndexFacts, shards: Shards, live_N: BoolArray
) -> IndexFacts:
    """Write the index ``old`` extended by newer live rows, and return its facts.

    Raises
    ------
    DataError
        If the old index cannot be read.
    """
    late_N = live_N.copy()
    late_N[: facts.rows] = False
    index = _read(old, "rebuild it with scimult library index")
    _fill(index, shards, late_N)
    _write(index, path)
    papers = facts.papers + int(late_N.sum())
    return replace(facts, file=path.name, rows=len(live_N), papers=papers)


class Parts:
    """The parts of an index that several processes fill, in a folder of their own.

    Raises
    ------
    ConfigError
        If this kind cannot be built in parts.
    """

    def __init__(
        self, folder: Path, kind: Kind, shards: Shards, live_N: BoolArray, count: int
    ) -> None:
        if kind == "hnsw":
            fix = "use pq or rabitq, or leave --part out"
            raise ConfigError("graphs cannot be merged", value=kind, fix=fix)
        self._folder, self._kind, self._count = folder, kind, count
        self._shards, self._live_N = shards, live_N
        self._start = folder / "trained.faiss"

    def fill(self, part: Part) -> bool:
        """Fill one part unless it exists; return whether all parts exist now.

        Raises
        ------
        DataError
            If the trained index, with which other parts were filled, is damaged. All are removed.
        """
        path = self._path(part.index)
        if not path.is_file():
            self._train()
            edges = np.linspace(0, len(self._live_N), self._count + 1).astype(int)
            mine_N = np.zeros_like(self._live_N)
            mine_N[edges[part.index] : edges[part.index + 1]] = True
            try:
                index = _read(self._start, "run every part again")
            except DataError:
                self.remove()
                raise
            _fill(index, self._shards, self._live_N & mine_N)
            _write(index, path)
        return not self.missing()

    def missing(self) -> list[int]:
        """Return the numbers of the missing parts."""
        return [number for number in range(self._count) if not self._path(number).is_file()]

    def merge(self, path: Path) -> IndexFacts:
        """Write all parts as one index.

        Raises
        ------
        DataError
            If a part is damaged. It is removed, so that it is filled again.
        """
        library = faiss_library()
        index = self._read_part(0)
        for number in range(1, self._count):
            part = self._read_part(number)  # owns its lists
            lists, more = map(library.extract_index_ivf, (index, part))
            _move_full_blocks(lists, more)
            lists.merge_from(more, 0)
            index.ntotal = lists.ntotal
        _write(index, path)
        return IndexFacts(self._kind, path.name, len(self._live_N), int(self._live_N.sum()))

    def remove(self) -> None:
        """Remove all parts."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _train(self) -> None:
        """Train the index if nobody has; wait while another process does."""
        while not self._start.is_file():
            try:
                with only_writer(self._folder):
                    if not self._start.is_file():
                        _write(_trained(self._kind, self._shards, self._live_N), self._start)
            except StorageError as error:
                if error.__cause__ is not None:
                    raise  # not locked: the disk is full, or the folder is not writable
                note("another process is training the index")
                time.sleep(_WAIT_SECONDS)

    def _read_part(self, number: int) -> faiss.Index:
        path = self._path(number)
        try:
            return _read(path, f"run the same command with --part {number}/{self._count}")
        except DataError:
            path.unlink(missing_ok=True)
            raise

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:04d}.faiss"


def _trained(
    kind: Kind, shards: Shards, live_N: BoolArray, lists: int | None = None
) -> faiss.Index:
    library, width = faiss_library(), shards.space.width
    rows = np.flatnonzero(live_N)
    count = lists or max(1, min(4 * round(math.sqrt(len(rows))), len(rows) // _TRAINED_ON))
    parts = max(part for part in range(1, width // 4 + 1) if width % part == 0)
    text = FACTORIES[kind].format(width=width, lists=count, parts=parts)
    index = new_index(width, text, shards.space.similarity)
    if kind != "hnsw":
        clusters = library.extract_index_ivf(index).cp
        clusters.niter, clusters.max_points_per_centroid = _ROUNDS, _TRAINED_ON
    sample = np.random.default_rng(0).permutation(rows)[: max(_TRAINED_ON * count, 1 << 12)]
    index.train(for_faiss(shards.rows(np.sort(sample)), shards.space.similarity))
    return index


def _fill(index: faiss.Index, shards: Shards, live_N: BoolArray) -> None:
    """Add the live rows in order."""
    for first, stored_BD in shards.blocks(_BLOCK):
        columns = np.flatnonzero(live_N[first : first + len(stored_BD)])
        if len(columns):
            vectors_BD = np.asarray(stored_BD[columns], dtype=np.float32)
            index.add_with_ids(for_faiss(vectors_BD, shards.space.similarity), columns + first)


def _move_full_blocks(index: faiss.IndexIVF, part: faiss.IndexIVF) -> None:
    """Append a part's list wherever that of the index ends with its last block of codes.

    For such lists ``merge_from`` of faiss 1.15 writes beyond the end of its memory.
    """
    library = faiss_library()
    into, more = (library.downcast_InvertedLists(one.invlists) for one in (index, part))
    if not isinstance(into, library.BlockInvertedLists):
        return
    bytes_each = into.block_size // into.n_per_block
    for number in range(index.nlist):
        start, added = into.list_size(number), more.list_size(number)
        if start % into.n_per_block or not start or not added:
            continue
        into.resize(number, start + added)
        ids_N = library.rev_swig_ptr(into.get_ids(number), start + added)
        ids_N[start:] = library.rev_swig_ptr(more.get_ids(number), added)
        blocks = math.ceil(added / into.n_per_block) * into.block_size
        codes = library.rev_swig_ptr(into.get_codes(number), start * bytes_each + blocks)
        codes[start * bytes_each :] = library.rev_swig_ptr(more.get_codes(number), blocks)
        more.resize(number, 0)


def _read(path: Path, fix: str) -> faiss.Index:
    try:
        index: faiss.Index = faiss_library().read_index(str(path))
        return index
    except RuntimeError as error:
        raise DataError("damaged approximate index", path=path, fix=fix) from error


def _write(index: Any, path: Path) -> None:
    with atomic_file(path) as temporary:
        write_index(index, temporary)
