"""Vectors of one space in shards: a folder that grows, is memory-mapped and never rewritten.

``manifest.json`` says what made the vectors and lists the shards. Shard ``000007`` is
``000007.npy``, shape ``(N, D)``, and ``000007.arrow`` with the columns ``id`` and ``hash`` (of what
was encoded; may be empty). The Arrow file is written last and holds the SHA-256 of the vectors and
the fingerprint of the space, so a shard is there as a whole or not at all, work that was killed
goes on after the last whole one, and several processes may write shards of one folder.

Rows are numbered over the shards of the manifest, in its order.

Shape legend: N rows, D width, B rows of one block, P listed rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from scimult.errors import DataError
from scimult.files import atomic_file, read_json, sha256, write_json
from scimult.retrieval.embeddings import check_finite
from scimult.types import FloatArray, IntArray, Similarity

FORMAT, VERSION = "scimult-shards", 1
MANIFEST = "manifest.json"
Precision = Literal["float32", "float16"]
_SPACE, _VECTORS = b"space", b"vectors_sha256"
_SCHEMA = pa.schema([("id", pa.string()), ("hash", pa.string())])


@dataclass(frozen=True)
class Space:
    """What made vectors and how they are compared; only vectors of equal spaces may meet.

    Attributes
    ----------
    width : int
        Numbers of a vector.
    similarity : {"dot", "cosine", "l2"}
        How two vectors are compared.
    dtype : {"float32", "float16"}
        Type of the numbers on disk.
    made_by : mapping of str to str, int or bool
        Everything else that the vectors depend on, by name: fingerprints of model and tokenizer,
        settings, task and role.
    model : str
        What people call the model; spaces of equal models under two names are equal.
    """

    width: int
    similarity: Similarity
    dtype: Precision = "float32"
    made_by: Mapping[str, str | int | bool] = field(default_factory=dict)
    model: str = field(default="", compare=False)

    @property
    def fingerprint(self) -> str:
        """Hash of all that vectors depend on."""
        text = json.dumps(_flat(self), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def check_same(self, other: Space, path: Path) -> None:
        """Check that vectors of ``other`` may stand among those of this space, at ``path``.

        Raises
        ------
        DataError
            With everything that differs, by name.
        """
        ours, theirs = _flat(self), _flat(other)
        names = [name for name in (*ours, *theirs) if ours.get(name) != theirs.get(name)]
        if not names:
            return
        told = [f"{name} {_told(theirs, name)}, here {_told(ours, name)}" for name in names]
        called = f" of {other.model!r}, here of {self.model!r}" if other.model else ""
        raise DataError(
            f"vectors{called} differ in {'; '.join(dict.fromkeys(told))}",
            path=path,
            fix="use the model and settings that made the vectors here, or another folder",
        )


@dataclass(frozen=True)
class Shard:
    """One shard as the manifest lists it: its name, rows, and the SHA-256 of its two files."""

    name: str
    rows: int
    vectors_sha256: str
    ids_sha256: str


def shard_name(number: int) -> str:
    """Return the name of the shard with this number."""
    return f"{number:06d}"


def write_shard(
    folder: Path,
    number: int,
    space: Space,
    ids: Sequence[str],
    vectors_ND: FloatArray,
    hashes: Sequence[str] | None = None,
) -> Shard:
    """Write one shard as a whole; the manifest does not know it yet.

    Parameters
    ----------
    folder : Path
        Of the space; made if it is not there.
    number : int
        Of the shard. What has this number is replaced.
    space : Space
        What made the vectors.
    ids : sequence of str
        N ids.
    vectors_ND : array
        Shape ``(N, D)``; rounded to the type of the space.
    hashes : sequence of str, optional
        Of what was encoded, one per id.

    Raises
    ------
    DataError
        If the shape does not fit, or a number is not finite in the type of the space.
    StorageError
        If a file cannot be written.
    """
    if vectors_ND.shape != (len(ids), space.width):
        fix = "write vectors of the model that the space names, one row per id"
        problem = f"{len(ids)} ids and vectors of shape {vectors_ND.shape}"
        raise DataError(f"{problem} for a space of width {space.width}", path=folder, fix=fix)
    name = shard_name(number)
    with np.errstate(over="ignore"):
        stored_ND = np.ascontiguousarray(vectors_ND, dtype=space.dtype)
    check_finite(stored_ND, f"{space.model or 'their model'} in {space.dtype}")
    ids_path, path = folder / f"{name}.arrow", folder / f"{name}.npy"
    ids_path.unlink(missing_ok=True)
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        np.save(file, stored_ND)
    facts = {_SPACE: space.fingerprint.encode(), _VECTORS: sha256(path).encode()}
    table = pa.table([list(ids), list(hashes or [""] * len(ids))], schema=_SCHEMA)
    table = table.replace_schema_metadata(facts)
    with atomic_file(ids_path) as temporary, pa.ipc.new_file(temporary, table.schema) as writer:
        writer.write_table(table)
    return Shard(name, len(ids), facts[_VECTORS].decode(), sha256(ids_path))


def find_shard(
    folder: Path, number: int, space: Space, hashes: Sequence[str] | None = None
) -> Shard | None:
    """Return the shard with this number if it was written as a whole for this space.

    And of these ``hashes``, if they are given. The ids are read, the vectors are not:
    :meth:`Shards.check` reads them.
    """
    name = shard_name(number)
    ids_path, path = folder / f"{name}.arrow", folder / f"{name}.npy"
    try:
        table = _read_ids(ids_path)
        facts = table.schema.metadata or {}
        mapped_ND = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, pa.ArrowException):
        return None
    if facts.get(_SPACE) != space.fingerprint.encode() or len(mapped_ND) != len(table):
        return None
    if hashes is not None and table["hash"].to_pylist() != list(hashes):
        return None
    return Shard(name, len(table), facts[_VECTORS].decode(), sha256(ids_path))


def read_ids(folder: Path, number: int) -> pa.Table:
    """Return the columns ``id`` and ``hash`` of a shard that `find_shard` found."""
    return _read_ids(folder / f"{shard_name(number)}.arrow")


def publish(folder: Path, space: Space, shards: Iterable[Shard]) -> None:
    """Write the manifest, atomically: from then on readers see these shards and no others.

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
        Holds ``manifest.json``.
    names : sequence of str, optional
        Shards to open, in the order that numbers their rows; by default all of the manifest.

    Attributes
    ----------
    path : Path
        The folder.
    space : Space
        What made the vectors.
    shards : list of Shard
        Those that were opened.
    starts : array
        Number of the first row of each shard, and of all rows; int64.
    damaged : dict of str to DataError
        Shards that cannot be used, by name. Their rows keep their numbers.

    Raises
    ------
    DataError
        If there is no manifest, it is of another format, or it does not list a name.
    """

    def __init__(self, folder: Path | str, names: Sequence[str] | None = None) -> None:
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
        """The ids of all rows; those of a damaged shard are empty."""
        return self._column("id")

    @cached_property
    def hashes(self) -> list[str]:
        """The hash of what each row was encoded from; those of a damaged shard are empty."""
        return self._column("hash")

    def rows(self, numbers_P: IntArray) -> FloatArray:
        """Return the vectors of these rows in float32, shape ``(P, D)``.

        Raises
        ------
        DataError
            If a row is in a damaged shard, which is named.
        """
        numbers_P = np.asarray(numbers_P)
        assert not len(numbers_P) or 0 <= numbers_P.min() <= numbers_P.max() < len(self)
        vectors_PD = np.empty((len(numbers_P), self.space.width), dtype=np.float32)
        order_P = np.argsort(numbers_P, kind="stable")
        edges = np.searchsorted(numbers_P[order_P], self.starts)
        for place in np.flatnonzero(np.diff(edges)):
            here = order_P[edges[place] : edges[place + 1]]
            part_ND = self._parts[place]
            if part_ND is None:
                raise self.damaged[self.shards[place].name]
            vectors_PD[here] = part_ND[numbers_P[here] - self.starts[place]]
        return vectors_PD

    def blocks(self, size: int = 1 << 14) -> Iterator[tuple[int, FloatArray]]:
        """Yield the number of the first row and the vectors of one block after the other.

        Blocks are memory-mapped, in the type of the space, of ``size`` rows or fewer, and end
        where shards end. Damaged shards are left out.
        """
        for start, part_ND in zip(self.starts, self._parts, strict=False):
            for first in range(0, 0 if part_ND is None else len(part_ND), size):
                assert part_ND is not None
                yield int(start) + first, part_ND[first : first + size]

    def usable(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return for each row whether its shard can be used, shape ``(N,)``."""
        return np.repeat(
            np.array([part is not None for part in self._parts], dtype=bool),
            np.diff(self.starts),
        )

    def check(self) -> dict[str, DataError]:
        """Read everything and compare it with the manifest; return damaged shards by name."""
        bad = dict(self.damaged)
        for shard in self.shards:
            for ending, wanted in ((".npy", shard.vectors_sha256), (".arrow", shard.ids_sha256)):
                path = self.path / (shard.name + ending)
                if shard.name not in bad and sha256(path) != wanted:
                    bad[shard.name] = _damage(path, "other bytes than were written")
        return bad

    def _open(self, shard: Shard) -> FloatArray | None:
        path = self.path / f"{shard.name}.npy"
        try:
            part_ND: FloatArray = np.load(path, mmap_mode="r", allow_pickle=False)
            layout, wanted = (part_ND.shape, part_ND.dtype), (shard.rows, self.space.width)
            if layout != (wanted, np.dtype(self.space.dtype)):
                raise ValueError(f"{layout[1]} of shape {layout[0]}, not {wanted}")
            if not (self.path / f"{shard.name}.arrow").is_file():
                raise ValueError("its file of ids is missing")
        except (OSError, ValueError, EOFError) as error:
            self.damaged[shard.name] = _damage(path, str(error))
            return None
        # Still mapped, without what numpy does for each slice of a memmap.
        return np.asarray(part_ND)

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
        fix = "name a folder that the toolkit wrote"
        raise DataError("not a manifest of shards", path=path, fix=fix)
    if manifest.get("version") != VERSION:
        fix = "use the version of scimult that wrote it, or encode again"
        raise DataError("shards of another version", path=path, value=manifest["version"], fix=fix)
    known = {part.name for part in fields(Space)}
    space = manifest.get("space")
    sound = isinstance(space, dict) and set(space) == known and space["dtype"] in _TYPES
    if not sound or not isinstance(manifest.get("shards"), list):
        raise DataError("damaged manifest of shards", path=path, fix="encode again")
    return manifest


def _read_ids(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def _damage(path: Path, problem: str) -> DataError:
    fix = "restore the file, or encode its texts again"
    return DataError(f"damaged shard: {problem}", path=path, fix=fix)


def _flat(space: Space) -> dict[str, Any]:
    own = {"width": space.width, "similarity": space.similarity, "dtype": space.dtype}
    return {**space.made_by, **own}


def _told(values: Mapping[str, Any], name: str) -> str:
    return repr(values[name]) if name in values else "unknown"


_TYPES = get_args(Precision)
