"""Vectors of one space in shards: a folder that grows, is memory-mapped and never rewritten.

``manifest.json`` describes the space and lists the shards. Shard ``000007`` is ``000007.npy``,
shape ``(N, D)``, and ``000007.arrow`` with the columns ``id`` and ``hash`` (of the encoded text;
may be empty). The Arrow file is written last and holds the SHA-256 of the vectors and the
fingerprint of the space: a shard is complete or absent, killed work resumes after the last complete
one, and several processes may write shards of one folder.

Rows are numbered across the manifest's shards, in its order.

Shape legend: N rows, D width, B rows of one block, P listed rows.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from scimult.arrays import load_array
from scimult.errors import DataError
from scimult.files import allow_many_files, atomic_file, read_json, sha256, write_json
from scimult.retrieval.embeddings import check_finite
from scimult.retrieval.space import Precision, Space
from scimult.types import FloatArray, IntArray, Similarity

FORMAT, VERSION = "scimult-shards", 1
MANIFEST = "manifest.json"
# Rows that no shard has: ids of a damaged one are lists of so many.
_TOO_MANY = 1 << 30
_SPACE, _VECTORS = b"space", b"vectors_sha256"
_SCHEMA = pa.schema([("id", pa.string()), ("hash", pa.string())])


@dataclass(frozen=True)
class Shard:
    """A shard's manifest entry: its name, rows, and the SHA-256 of its two files."""

    name: str
    rows: int
    vectors_sha256: str
    ids_sha256: str


def shard_name(number: int) -> str:
    """Return the name of shard ``number``."""
    return f"{number:06d}"


def write_shard(
    folder: Path,
    number: int,
    space: Space,
    ids: Sequence[str],
    vectors_ND: FloatArray,
    hashes: Sequence[str] | None = None,
) -> Shard:
    """Write one complete shard, without listing it in the manifest.

    Parameters
    ----------
    folder : Path
        Folder of the space; created if missing.
    number : int
        Number of the shard, which is replaced if it exists.
    space : Space
        Origin of the vectors.
    ids : sequence of str
        N ids.
    vectors_ND : array
        Shape ``(N, D)``; rounded to the space's type.
    hashes : sequence of str, optional
        Hashes of the encoded texts, one per id.

    Raises
    ------
    DataError
        If the shape does not fit, or a number is not finite in the space's type.
    StorageError
        If a file cannot be written.
    """
    if vectors_ND.shape != (len(ids), space.width):
        fix = "write vectors of the space's model, one row per id"
        problem = f"{len(ids)} ids and vectors of shape {vectors_ND.shape}"
        raise DataError(f"{problem} for a space of width {space.width}", path=folder, fix=fix)
    name = shard_name(number)
    with np.errstate(over="ignore"):
        stored_ND = np.ascontiguousarray(vectors_ND, dtype=space.dtype)
    check_finite(stored_ND, f"{space.model or 'their model'} in {space.dtype}")
    ids_path, path = folder / f"{name}.arrow", folder / f"{name}.npy"
    ids_path.unlink(missing_ok=True)
    # Hashed before they have their names: another process may replace the same shard.
    with atomic_file(path) as temporary:
        with temporary.open("wb") as file:
            np.save(file, stored_ND)
        vectors = sha256(temporary)
    facts = {_SPACE: space.fingerprint.encode(), _VECTORS: vectors.encode()}
    table = pa.table([list(ids), list(hashes or [""] * len(ids))], schema=_SCHEMA)
    table = table.replace_schema_metadata(facts)
    with atomic_file(ids_path) as temporary:
        with pa.ipc.new_file(temporary, table.schema) as writer:
            writer.write_table(table)
        return Shard(name, len(ids), vectors, sha256(temporary))


def fingerprint_of_texts(ids: Sequence[str], hashes: Sequence[str]) -> str:
    """Hash the ids and texts that belong into a shard."""
    return hashlib.sha256(json.dumps([ids, hashes]).encode()).hexdigest()


def find_shard(folder: Path, number: int, space: Space, texts: str | None = None) -> Shard | None:
    """Return shard ``number`` if it is complete, of this space and of these ``texts``, if given.

    ``texts`` is a `fingerprint_of_texts`. Reads ids, not vectors; `Shards.check` reads both.
    """
    name = shard_name(number)
    ids_path, path = folder / f"{name}.arrow", folder / f"{name}.npy"
    try:
        table = _read_ids(ids_path)
        facts = table.schema.metadata or {}
        mapped_ND = load_array(path, mapped=True)
        ids_sha256 = sha256(ids_path)
    except (OSError, ValueError, EOFError, pa.ArrowException):
        return None
    if facts.get(_SPACE) != space.fingerprint.encode() or len(mapped_ND) != len(table):
        return None
    columns = (table[column].to_pylist() for column in ("id", "hash"))
    if texts is not None and texts != fingerprint_of_texts(*columns):
        return None
    return Shard(name, len(table), facts[_VECTORS].decode(), ids_sha256)


def read_ids(folder: Path, number: int) -> pa.Table:
    """Return the columns ``id`` and ``hash`` of a shard that passed `find_shard`."""
    return _read_ids(folder / f"{shard_name(number)}.arrow")


def publish(folder: Path, space: Space, shards: Iterable[Shard]) -> None:
    """Write the manifest atomically: readers now see exactly these shards.

    Raises
    ------
    StorageError
        If it cannot be written.
    """
    head = {"format": FORMAT, "version": VERSION}
    listed = [asdict(shard) for shard in shards]
    write_json(folder / MANIFEST, {**head, "space": asdict(space), "shards": listed})


class Shards:
    """The vectors of a space, opened without reading them.

    Parameters
    ----------
    folder : path
        Contains ``manifest.json``.
    names : sequence of str, optional
        Shards to open; their order numbers the rows. Default: all in the manifest.

    Attributes
    ----------
    path : Path
        The folder.
    space : Space
        Origin of the vectors.
    shards : list of Shard
        The opened shards.
    starts : array
        Number of the first row of each shard, then the number of all rows; int64.
    damaged : dict of str to DataError
        Unusable shards by name. Their rows keep their numbers.

    Raises
    ------
    DataError
        If the manifest is missing, of another format, or does not list a name.
    """

    def __init__(self, folder: Path | str, names: Sequence[str] | None = None) -> None:
        allow_many_files()
        self.path = Path(folder)
        manifest = _read_manifest(self.path)
        self.space = Space(**manifest["space"])
        listed = {shard["name"]: Shard(**shard) for shard in manifest["shards"]}
        missing = [name for name in names or () if name not in listed]
        if missing:
            fix = "restore the folder, or encode again"
            raise DataError("shards are missing", path=self.path, value=missing[:3], fix=fix)
        self.shards = [listed[name] for name in (listed if names is None else names)]
        self.starts: IntArray = np.cumsum([0, *(shard.rows for shard in self.shards)], dtype=int)
        self.damaged: dict[str, DataError] = {}
        self._parts = [self._open(shard) for shard in self.shards]

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __repr__(self) -> str:
        bad = f", {len(self.damaged)} damaged" if self.damaged else ""
        space = f"width {self.space.width}, {self.space.similarity}, {self.space.dtype}"
        return f"Shards({str(self.path)!r}: {len(self):,} rows in {len(self.shards)}{bad}; {space})"

    @cached_property
    def ids(self) -> list[str]:
        """The ids of all rows; empty for those of a damaged shard."""
        return self._column("id")

    @cached_property
    def hashes(self) -> list[str]:
        """The hash of each row's text; empty for those of a damaged shard."""
        return self._column("hash")

    def rows(self, numbers_P: IntArray) -> FloatArray:
        """Return the vectors of numbered rows in float32, shape ``(P, D)``.

        Raises
        ------
        DataError
            If a row is in a damaged shard; the message names it.
        """
        numbers_P = np.asarray(numbers_P)
        assert not len(numbers_P) or 0 <= numbers_P.min() <= numbers_P.max() < len(self)
        vectors_PD = np.empty((len(numbers_P), self.space.width), dtype=np.float32)
        order_P = np.argsort(numbers_P, kind="stable")
        edges = np.searchsorted(numbers_P[order_P], self.starts)
        for index in np.flatnonzero(np.diff(edges)):
            here = order_P[edges[index] : edges[index + 1]]
            part_ND = self._parts[index]
            if part_ND is None:
                raise self.damaged[self.shards[index].name]
            vectors_PD[here] = part_ND[numbers_P[here] - self.starts[index]]
        return vectors_PD

    def blocks(self, size: int = 1 << 14) -> Iterator[tuple[int, FloatArray]]:
        """Yield the first row's number and the vectors of one block at a time.

        Blocks are memory-mapped, in the space's type, have up to ``size`` rows and do not cross
        shards. Skips damaged shards.
        """
        for start, part_ND in zip(self.starts, self._parts, strict=False):
            for first in range(0, 0 if part_ND is None else len(part_ND), size):
                assert part_ND is not None
                yield int(start) + first, part_ND[first : first + size]

    def usable(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for each row whether its shard is usable, shape ``(N,)``."""
        usable = np.array([part is not None for part in self._parts], dtype=bool)
        return np.repeat(usable, np.diff(self.starts))

    def check(self) -> dict[str, DataError]:
        """Read everything, compare it with the manifest and return damaged shards by name."""
        bad = dict(self.damaged)
        for shard in self.shards:
            for ending, wanted in ((".npy", shard.vectors_sha256), (".arrow", shard.ids_sha256)):
                path = self.path / (shard.name + ending)
                if shard.name not in bad and sha256(path) != wanted:
                    bad[shard.name] = _damage(path, "its contents have changed")
        return bad

    def _open(self, shard: Shard) -> FloatArray | None:
        path = self.path / f"{shard.name}.npy"
        try:
            part_ND: FloatArray = load_array(path, mapped=True)
            layout, wanted = (part_ND.shape, part_ND.dtype), (shard.rows, self.space.width)
            if layout != (wanted, np.dtype(self.space.dtype)):
                raise ValueError(f"{layout[1]} of shape {layout[0]}, not {wanted}")
            if not (self.path / f"{shard.name}.arrow").is_file():
                raise ValueError("its file of ids is missing")
        except (OSError, ValueError, EOFError) as error:
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # no damage, and rows must not be missing
            self.damaged[shard.name] = _damage(path, str(error))
            return None
        return np.asarray(part_ND)  # still mapped, but without a memmap's cost per slice

    def _column(self, name: str) -> list[str]:
        column: list[str] = []
        for shard in self.shards:
            path = self.path / f"{shard.name}.arrow"
            try:
                values = [] if shard.name in self.damaged else _read_ids(path)[name].to_pylist()
                problem = f"{len(values)} ids for {shard.rows} rows"
            except (OSError, KeyError, pa.ArrowException) as error:
                values, problem = [], str(error)
            if len(values) != shard.rows:
                self.damaged.setdefault(shard.name, _damage(path, problem))
                self._parts[self.shards.index(shard)] = None
                values = [""] * shard.rows
            column += values
        return column


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError("not a manifest of shards", path=path, fix="name a folder made by scimult")
    if (version := manifest.get("version")) != VERSION:
        fix = "use the version of scimult that wrote it, or encode again"
        raise DataError("shards of another version", path=path, value=version, fix=fix)
    space, shards = manifest.get("space", {}), manifest.get("shards")
    known = _kinds(space) == _SPACE_KINDS and space["dtype"] in get_args(Precision)
    known = known and space["similarity"] in get_args(Similarity)
    items = shards if isinstance(shards, list) else [{}]
    fit = (
        _kinds(one) == _KINDS and one["name"].isdigit() and 0 <= one["rows"] < _TOO_MANY
        for one in items
    )
    if not (known and all(fit)):
        raise DataError("damaged manifest of shards", path=path, fix="encode again")
    return manifest


def _kinds(tree: Any) -> dict[str, type]:
    return {name: type(value) for name, value in tree.items()} if isinstance(tree, dict) else {}


def _read_ids(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def _damage(path: Path, problem: str) -> DataError:
    fix = "restore the file, or encode its texts again"
    return DataError(f"damaged shard: {problem}", path=path, fix=fix)


_SPACE_KINDS = {"width": int, "similarity": str, "dtype": str, "made_by": dict, "model": str}
_KINDS = {"name": str, "rows": int, "vectors_sha256": str, "ids_sha256": str}
