"""Embeddings on disk, and the cache that spares encoding the same collection twice.

A folder holds ``embeddings.npy`` (float32, one row per text), ``ids.txt`` (one id per line,
same order) and ``meta.json`` (format, version, and what made them).

Shape legend: N texts, D width.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scimult import __version__
from scimult.errors import DataError
from scimult.files import atomic_folder, read_json, write_json, write_text
from scimult.inference.collection import Collection
from scimult.inference.encoder import SciMult
from scimult.types import FloatArray, Role

FORMAT, VERSION = "scimult-embeddings", 1


@dataclass(frozen=True)
class Provenance:
    """What made the embeddings; two equal ones mean equal embeddings.

    Attributes
    ----------
    model, texts : str
        Fingerprints of the model and of the texts with their ids.
    task, role : str
        What the texts were encoded for.
    """

    model: str
    texts: str
    task: str
    role: Role

    @property
    def key(self) -> str:
        """Hash of all fields, usable as a file name."""
        return hashlib.sha256(repr(asdict(self)).encode()).hexdigest()[:16]


def provenance(model: SciMult, collection: Collection, task: str, role: Role) -> Provenance:
    """Describe the embeddings of ``collection`` by ``model`` for one side of ``task``."""
    digest = hashlib.sha256()
    for name, text in zip(collection.ids, collection.texts, strict=True):
        for part in (name, text.kind, text.title, text.body):
            digest.update(f"{len(part)} {part}".encode())
    return Provenance(model.fingerprint, digest.hexdigest()[:16], task, role)


def encode_collection(
    model: SciMult, collection: Collection, *, task: str, role: Role, cache: Path | None
) -> FloatArray:
    """Encode a collection, or read its embeddings from the cache.

    Parameters
    ----------
    model : SciMult
        The encoder.
    collection : Collection
        N papers or labels.
    task, role : str
        What they are encoded for.
    cache : Path, optional
        Folder that holds one embedding folder per model, texts, task and role; None: no cache.

    Returns
    -------
    array
        float32, shape ``(N, D)``.

    Raises
    ------
    UnknownNameError
        If the model does not know ``task``.
    """
    kind = model.kind(task, role)
    if kind != collection.texts[0].kind:
        raise DataError(
            f"the {role} of task {task!r} is a {kind}, not a {collection.texts[0].kind}",
            path=collection.path,
            fix="choose another task or role",
        )
    if cache is None:
        return model.encode(collection.texts, task=task, role=role, show_progress=True)
    made_by = provenance(model, collection, task, role)
    folder = cache / made_by.key
    if not folder.is_dir():
        embeddings_ND = model.encode(collection.texts, task=task, role=role, show_progress=True)
        save_embeddings(folder, collection, embeddings_ND, made_by, model)
    return load_embeddings(folder)[1]


def save_embeddings(
    folder: Path,
    collection: Collection,
    embeddings_ND: FloatArray,
    made_by: Provenance,
    model: SciMult,
) -> None:
    """Write an embedding folder, atomically.

    Raises
    ------
    StorageError
        If the folder cannot be written.
    """
    meta = {
        "format": FORMAT,
        "version": VERSION,
        "rows": len(collection),
        "width": embeddings_ND.shape[1],
        "model_name": model.name,
        "similarity": model.similarity,
        "source": collection.path.name,
        "scimult": __version__,
        **asdict(made_by),
    }
    with atomic_folder(folder) as temporary:
        np.save(temporary / "embeddings.npy", embeddings_ND)
        write_text(temporary / "ids.txt", "".join(f"{name}\n" for name in collection.ids))
        write_json(temporary / "meta.json", meta)


def load_embeddings(folder: Path | str) -> tuple[list[str], FloatArray, dict[str, Any]]:
    """Read an embedding folder; the array is memory-mapped.

    Returns
    -------
    ids, embeddings, meta
        N ids, float32 of shape ``(N, D)``, and the content of ``meta.json``.

    Raises
    ------
    DataError
        If a file is absent or damaged, or the counts disagree.
    """
    folder = Path(folder)
    meta = read_json(folder / "meta.json")
    if not isinstance(meta, dict) or (meta.get("format"), meta.get("version")) != (FORMAT, VERSION):
        fix = "make it again with scimult encode"
        raise DataError(f"not an embedding folder of version {VERSION}", path=folder, fix=fix)
    try:
        ids = (folder / "ids.txt").read_text(encoding="utf-8").split("\n")[:-1]
        embeddings_ND = np.load(folder / "embeddings.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        fix = "delete the folder; it is made again"
        raise DataError(f"damaged embedding folder: {error}", path=folder, fix=fix) from error
    if embeddings_ND.shape != (len(ids), meta["width"]) or embeddings_ND.dtype != np.float32:
        fix = "delete the folder; it is made again"
        raise DataError(f"{len(ids)} ids for {embeddings_ND.shape} numbers", path=folder, fix=fix)
    return ids, embeddings_ND, meta


def default_cache() -> Path:
    """Return the folder of cached embeddings: below ``$XDG_CACHE_HOME``, else ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "scimult" / "embeddings"
