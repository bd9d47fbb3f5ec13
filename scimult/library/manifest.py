"""What a library's ``library.json`` says: its model, spaces, columns and which rows are papers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from scimult import __version__
from scimult.errors import DataError
from scimult.files import atomic_file, read_json, write_json
from scimult.library.segments import Segment
from scimult.types import BoolArray, Role

FORMAT, VERSION = "scimult-library", 1
FILE = "library.json"
PAPERS, VECTORS, INDEXES = "papers", "vectors", "indexes"
# Beside the vectors that it belongs to: a copy that opens without transformers.
TOKENIZER = "tokenizer"

Share = float | Literal["rank"]
"""Of BM25 beside vectors; or both by their ranks."""


@dataclass(frozen=True)
class Manifest:
    """The state of a library; replacing its file is what makes a change happen.

    Attributes
    ----------
    model : mapping
        How the model is opened again: path, dtype and what replaced its own settings.
    vectors : str
        Folder of today's spaces, named by the fingerprint of what made them.
    sides : mapping of task to role
        What papers are encoded for: each is a space.
    shared : tuple of str
        Tasks whose two sides are papers and take the same way through the model.
    columns : mapping of str to str
        Type of every column that not all libraries have.
    segments : tuple of Segment
        In the order that numbers the rows.
    removed : str
        File of the rows that are no papers any more; empty if all are.
    longest : mapping of task to float
        No vector of the space is longer.
    content : str
        Fingerprint of all papers; the same for the same papers, however they came in.
    indexes : mapping of task to mapping
        What is known of the approximate index of a space.
    adapter : mapping
        What is known of the map from a newer model's queries.
    words : mapping of task to float or "rank"
        Share of BM25 that was chosen on queries.
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
    generation: int = 0

    @property
    def rows(self) -> int:
        """Rows that were ever written and not rewritten."""
        return sum(part.rows for part in self.segments)

    def changed(self, **values: Any) -> Manifest:
        """Return the next generation."""
        return replace(self, generation=self.generation + 1, **values)


def read_manifest(folder: Path) -> Manifest:
    """Read ``library.json``.

    Raises
    ------
    DataError
        If the folder is no library, or one of another version.
    """
    path = folder / FILE
    if not path.is_file():
        fix = "name the folder of a library; scimult library create makes one"
        raise DataError("is no library", path=folder, fix=fix)
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError("not a library's file", path=path, fix="name the folder of a library")
    if content.get("version") != VERSION:
        fix = "use the scimult that made it, or make the library anew"
        raise DataError("library of another version", path=path, value=content["version"], fix=fix)
    values = {name: content[name] for name in Manifest.__dataclass_fields__ if name in content}
    try:
        values["segments"] = tuple(Segment(**part) for part in values["segments"])
        values["shared"] = tuple(values["shared"])
        return Manifest(**values)
    except (KeyError, TypeError) as error:
        raise DataError(f"damaged: {error}", path=path, fix="make the library anew") from error


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``library.json``, atomically.

    Raises
    ------
    StorageError
        If it cannot be written.
    """
    head = {"format": FORMAT, "version": VERSION, "scimult": __version__}
    write_json(folder / FILE, {**head, **asdict(manifest)})


def read_removed(folder: Path, manifest: Manifest) -> BoolArray:
    """Return which rows are no papers any more, shape ``(N,)``.

    Raises
    ------
    DataError
        If the file is damaged.
    """
    if not manifest.removed:
        return np.zeros(manifest.rows, dtype=bool)
    path = folder / manifest.removed
    try:
        bits = np.load(path, allow_pickle=False)
        return np.unpackbits(bits, count=manifest.rows).astype(bool)
    except (OSError, ValueError, EOFError) as error:
        fix = "restore the file, or make the library anew"
        raise DataError(f"cannot read removed rows: {error}", path=path, fix=fix) from error


def write_removed(folder: Path, generation: int, removed_N: BoolArray) -> str:
    """Write which rows are no papers any more, atomically; return the file's name."""
    if not removed_N.any():
        return ""
    name = f"removed.{generation:06d}.npy"
    with atomic_file(folder / name) as temporary, temporary.open("wb") as file:
        np.save(file, np.packbits(removed_N))
    return name


def content_of(before: str, added: Iterable[str], removed: Iterable[str]) -> str:
    """Return the fingerprint of papers after some were added and others removed, by hash."""
    total = int(before, 16) + sum(int(name, 16) for name in added)
    total -= sum(int(name, 16) for name in removed)
    return f"{total % (1 << 128):032x}"
