"""Embeddings of a collection, found again in a cache.

Shape legend: N texts, D width.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

from scimult import __version__
from scimult.errors import DataError
from scimult.inference.cache import EmbeddingCache
from scimult.inference.collection import Collection
from scimult.inference.encoder import SciMult
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


def _meta(model: SciMult, collection: Collection, origin: Provenance) -> dict[str, Any]:
    return {
        "model_name": model.name,
        "similarity": model.similarity,
        "unit_vectors": model.unit_vectors,
        "dtype": model.dtype,
        "source": collection.path.name,
        "scimult": __version__,
        **asdict(origin),
    }


def encode_collection(
    model: SciMult,
    collection: Collection,
    *,
    task: str,
    role: Role,
    cache: EmbeddingCache | None,
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
    cache : EmbeddingCache, optional
        Where they are found again, by model, texts, task and role; None: nowhere.

    Returns
    -------
    array
        float32, shape ``(N, D)``.

    Raises
    ------
    UnknownNameError
        If the model does not know ``task``.
    DataError
        If the collection's kind is not the one on this side of the task.
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
    origin = provenance(model, collection, task, role)
    cached_ND = cache.read(origin.key, collection.ids, model.width)
    if cached_ND is not None:
        return cached_ND
    embeddings_ND = model.encode(collection.texts, task=task, role=role, show_progress=True)
    cache.keep(origin.key, collection.ids, embeddings_ND, _meta(model, collection, origin))
    return embeddings_ND
