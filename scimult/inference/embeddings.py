"""Embeddings of a collection, and the cache that spares encoding it twice.

Shape legend: N texts, D width.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from scimult import __version__
from scimult.errors import DataError
from scimult.inference.collection import Collection
from scimult.inference.encoder import SciMult
from scimult.retrieval.embeddings import read_embeddings, write_embeddings
from scimult.types import FloatArray, Role


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


def encode_into(
    folder: Path, model: SciMult, collection: Collection, *, task: str, role: Role
) -> None:
    """Encode a collection and write its embedding folder, atomically.

    Raises
    ------
    UnknownNameError
        If the model does not know ``task``.
    StorageError
        If the folder cannot be written.
    """
    embeddings_ND = model.encode(collection.texts, task=task, role=role, show_progress=True)
    meta = {
        "model_name": model.name,
        "similarity": model.similarity,
        "source": collection.path.name,
        "scimult": __version__,
        **asdict(provenance(model, collection, task, role)),
    }
    write_embeddings(folder, collection.ids, embeddings_ND, meta)


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
    DataError
        If the collection's kind is not the one on this side of the task, or its folder in the
        cache is damaged.
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
    folder = cache / provenance(model, collection, task, role).key
    if not folder.is_dir():
        encode_into(folder, model, collection, task=task, role=role)
    return read_embeddings(folder).embeddings_ND


def default_cache() -> Path:
    """Return the folder of cached embeddings: below ``$XDG_CACHE_HOME``, else ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "scimult" / "embeddings"
