"""A library's ``library.json``: its model, spaces, columns and which rows are papers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from scimult import __version__
from scimult.arrays import load_array, save_array
from scimult.checkpoints.config import ModelSettings
from scimult.config import StrictConfig, validate
from scimult.errors import DataError
from scimult.files import read_json, write_json
from scimult.library.segments import ARROW_TYPES, Segment
from scimult.types import BoolArray, Role

FORMAT, VERSION = "scimult-library", 1
FILE = "library.json"
PAPERS, VECTORS, INDEXES = "papers", "vectors", "indexes"
# A copy next to the vectors it belongs to; opens without transformers.
TOKENIZER = "tokenizer"

# Of files and folders in the library; a name such as "../other" could remove those of another.
_NAME = re.compile(r"\w[\w.-]{,199}")

Share = float | Literal["rank"]
"""Weight of BM25 next to vectors; or both by their ranks."""


class _Model(StrictConfig):
    settings: ModelSettings


@dataclass(frozen=True)
class Manifest:
    """The state of a library; a change takes effect when its file is replaced.

    Attributes
    ----------
    model : mapping
        How to reopen the model: path, dtype and overridden settings.
    vectors : str
        Folder of the current spaces, named by the fingerprint of their origin.
    sides : mapping of task to role
        Tasks that papers are encoded for, one space each.
    shared : tuple of str
        Tasks whose two sides are papers and take the same route through the model.
    columns : mapping of str to str
        Type of every column beyond those that all libraries have.
    segments : tuple of Segment
        Segments in row order.
    removed : str
        File that marks the rows of removed papers; empty if there are none.
    longest : mapping of task to float
        Upper bound on the length of the space's vectors.
    content : str
        Fingerprint of all papers, whatever their order of arrival.
    indexes : mapping of task to mapping
        Facts of each space's approximate index.
    adapter : mapping
        Facts of the map from a newer model's queries.
    words : mapping of task to float or "rank"
        BM25 share tuned on queries.
    words_rules : mapping of task to int
        `scimult.library.fusing.RULES` of the tuning; those of earlier versions have none.
    creating : bool
        Whether its creation has not ended: papers are missing.
    generation : int
        Grows by one with every change.
    """

    model: Mapping[str, Any]
    vectors: str
    sides: Mapping[str, Role]
    shared: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    segments: tuple[Segment, ...] = ()
    removed: str = ""
    longest: Mapping[str, float] = field(default_factory=dict)
    content: str = "0" * 32
    indexes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    adapter: Mapping[str, Any] = field(default_factory=dict)
    words: Mapping[str, Share] = field(default_factory=dict)
    words_rules: Mapping[str, int] = field(default_factory=dict)
    creating: bool = False
    generation: int = 0

    @property
    def rows(self) -> int:
        """Number of rows on disk, removed papers included."""
        return sum(part.rows for part in self.segments)

    def changed(self, **values: Any) -> Manifest:
        """Return the next generation, with these values."""
        return replace(self, generation=self.generation + 1, **values)


def read_manifest(folder: Path) -> Manifest:
    """Read ``library.json``.

    Raises
    ------
    DataError
        If the folder is not a library, or of another version.
    """
    path = folder / FILE
    if not path.is_file():
        fix = "name the folder of a library; scimult library create makes one"
        raise DataError("not a library", path=folder, fix=fix)
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError("not a library manifest", path=path, fix="name the folder of a library")
    if content.get("version") != VERSION:
        fix = "use the scimult that made it, or create the library again"
        value = content.get("version")
        raise DataError("library of another version", path=path, value=value, fix=fix)
    values = {name: content[name] for name in Manifest.__dataclass_fields__ if name in content}
    try:
        values["segments"] = tuple(Segment(**part) for part in values["segments"])
        values["shared"] = tuple(values["shared"])
        manifest = Manifest(**values)
        _check(manifest)
        return manifest
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"damaged: {error}", path=path, fix="create the library again") from error


def _check(manifest: Manifest) -> None:
    """Check the names and types in a manifest, which others may have written.

    Raises
    ------
    KeyError, TypeError, AttributeError, ValueError
        If one is missing or wrong.
    """
    files = (manifest.removed, manifest.adapter.get("file"))
    indexes = (facts["file"] for facts in manifest.indexes.values())
    sides = (f"{task}.{role}" for task, role in manifest.sides.items())
    segments = (part.name for part in manifest.segments)
    for name in (manifest.vectors, *sides, *segments, *filter(None, (*files, *indexes))):
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name of its files")
    for kind in manifest.columns.values():
        if kind not in ARROW_TYPES:
            raise ValueError(f"{kind!r} is not a type of columns")
    _check_values(manifest)


def _check_values(manifest: Manifest) -> None:
    for number in (number for part in manifest.segments for number in (part.rows, part.bytes)):
        if type(number) is not int or number < 0:
            raise ValueError(f"{number!r} is not a number of rows or bytes")
    if missing := {"path", "name", "dtype", "settings"} - manifest.model.keys():
        raise ValueError(f"its model has no {', '.join(sorted(missing))}")
    for key in ("path", "name", "dtype"):
        if not isinstance(manifest.model[key], str):
            raise ValueError(f"its model's {key} is not a text")
    if not all(isinstance(length, (int, float)) for length in manifest.longest.values()):
        raise ValueError(f"{manifest.longest!r} are not lengths")
    for key in ("spaces", "fitted") if manifest.adapter else ():
        if not isinstance(manifest.adapter.get(key), dict):
            raise ValueError(f"its adapter has no {key}")
    validate(_Model, {"settings": manifest.model["settings"]})


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``library.json``, atomically.

    Raises
    ------
    StorageError
        If it cannot be written.
    """
    head = {"format": FORMAT, "version": VERSION, "scimult": __version__}
    values = asdict(manifest)
    if not manifest.creating:
        del values["creating"]
    write_json(folder / FILE, {**head, **values})


def read_removed(folder: Path, manifest: Manifest) -> BoolArray:
    """Return a mask of the rows of removed papers, shape ``(N,)``.

    Raises
    ------
    DataError
        If the file is damaged.
    """
    if not manifest.removed:
        return np.zeros(manifest.rows, dtype=bool)
    path = folder / manifest.removed
    try:
        bits = load_array(path)
        return np.unpackbits(bits, count=manifest.rows).astype(bool)
    except (OSError, ValueError, EOFError) as error:
        fix = "restore the file, or create the library again"
        raise DataError(f"cannot read removed rows: {error}", path=path, fix=fix) from error


def write_removed(folder: Path, generation: int, removed_N: BoolArray) -> str:
    """Write the mask of removed rows atomically; return the file's name."""
    if not removed_N.any():
        return ""
    name = f"removed.{generation:06d}.npy"
    save_array(folder / name, np.packbits(removed_N))
    return name


def content_of(before: str, added: Iterable[str], removed: Iterable[str]) -> str:
    """Return the fingerprint of papers after adding and removing some, given by hash."""
    total = int(before, 16) + sum(int(name, 16) for name in added)
    total -= sum(int(name, 16) for name in removed)
    return f"{total % (1 << 128):032x}"
