"""Embeddings that a later search finds again: a cache that may fail, and never grows for ever.

Shape legend: N texts, D width.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scimult import __version__
from scimult.errors import ConfigError, DataError, StorageError
from scimult.files import sha256
from scimult.inference.collection import Collection
from scimult.inference.encoder import SciMult
from scimult.locks import remove_if_dead
from scimult.progress import warn
from scimult.retrieval.embeddings import MATRIX_FILE, META_FILE, read_embeddings, write_embeddings
from scimult.types import FloatArray, Role

FOLDER_VARIABLE, SIZE_VARIABLE = "SCIMULT_CACHE", "SCIMULT_CACHE_GB"
DEFAULT_GB = 10.0
# A folder that is being written, or was when its process was killed.
_UNFINISHED = re.compile(r"\.[0-9a-f]{16}\.[0-9a-f]+\.tmp")
_ELSEWHERE = f"${FOLDER_VARIABLE} names another folder, --no-cache keeps none"


class EmbeddingCache:
    """Embedding folders by key. What goes wrong here is noted and costs time, never a result.

    Parameters
    ----------
    folder : Path
        Holds one embedding folder per key.
    max_bytes : int
        Bound of all of them; the least recently used are removed first.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes

    @classmethod
    def of_user(cls) -> EmbeddingCache | None:
        """Return the user's cache, as the environment names and bounds it.

        ``$SCIMULT_CACHE``, else ``$XDG_CACHE_HOME/scimult``, else ``~/.cache/scimult``; and
        ``$SCIMULT_CACHE_GB``, by default 10. None for a user without a home who names no folder.

        Raises
        ------
        ConfigError
            If the bound is no number.
        """
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        named = os.environ.get(FOLDER_VARIABLE)
        if not named and base.startswith("~"):
            return None
        folder = Path(named or Path(base, "scimult"))
        given = os.environ.get(SIZE_VARIABLE) or str(DEFAULT_GB)
        try:
            gigabytes = float(given)
        except ValueError:
            gigabytes = math.nan
        if not 0 <= gigabytes < math.inf:
            fix = f"write a number, or unset it for {DEFAULT_GB:g}"
            raise ConfigError(
                f"${SIZE_VARIABLE} is not a number of gigabytes", value=given, fix=fix
            )
        return cls(folder / "embeddings", int(gigabytes * 1e9))

    def read(self, key: str, ids: Sequence[str], width: int) -> FloatArray | None:
        """Return what is kept under ``key``, shape ``(N, D)``; None if that is nothing sound."""
        folder = self.folder / key
        if not folder.is_dir():
            return None
        try:
            stored = read_embeddings(folder)
            sound = (
                stored.ids == list(ids)
                and stored.embeddings_ND.shape[1] == width
                and stored.meta.get("sha256") == sha256(folder / MATRIX_FILE)
            )
        except (DataError, OSError):
            sound = False
        if not sound:
            warn(f"{folder}: damaged or of another version, so the texts are encoded again")
            return None
        with suppress(OSError):
            os.utime(folder)
        return stored.embeddings_ND

    def keep(
        self, key: str, ids: Sequence[str], embeddings_ND: FloatArray, meta: dict[str, Any]
    ) -> None:
        """Write embeddings under ``key``, in the place of what is there; note it if that fails."""
        size = embeddings_ND.nbytes
        if size > self.max_bytes:
            bound = f"${SIZE_VARIABLE} bounds it to {self.max_bytes / 1e9:g} GB"
            warn(f"embeddings of {size / 1e9:.1f} GB are not kept in the cache: {bound}")
            return
        try:
            shutil.rmtree(self.folder / key, ignore_errors=True)
            self._make_room(size)
            write_embeddings(self.folder / key, ids, embeddings_ND, meta)
        except (StorageError, OSError) as error:
            problem = error.problem if isinstance(error, StorageError) else error
            warn(f"{self.folder}: embeddings are not kept ({problem}); {_ELSEWHERE}")

    def _make_room(self, needed: int) -> None:
        """Remove what was not used for longest, until ``needed`` more bytes fit the bound."""
        entries = []
        for folder in self.folder.iterdir() if self.folder.is_dir() else ():
            if _UNFINISHED.fullmatch(folder.name):
                remove_if_dead(folder)
            elif (folder / META_FILE).is_file():
                with suppress(OSError):  # another process removed it
                    size = sum(file.stat().st_size for file in folder.iterdir())
                    entries.append((folder.stat().st_mtime, size, folder))
        total = sum(size for _, size, _ in entries)
        for _, size, folder in sorted(entries):
            if total + needed <= self.max_bytes:
                return
            shutil.rmtree(folder, ignore_errors=True)
            total -= size


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
