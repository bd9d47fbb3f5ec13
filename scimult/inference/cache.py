"""A bounded on-disk cache of embeddings, whose failures never affect results.

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
# A folder being written, or left by a killed process.
_UNFINISHED = re.compile(r"\.[0-9a-f]{16}\.[0-9a-f]+\.tmp")
_ADVICE = f"${FOLDER_VARIABLE} names another folder, --no-cache turns the cache off"


class EmbeddingCache:
    """Embedding folders by key; beyond ``max_bytes`` the least recently used are removed.

    Failures are reported and cost time, never a result.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes

    @classmethod
    def of_user(cls) -> EmbeddingCache | None:
        """Return the user's cache, configured by the environment.

        Its folder is ``$SCIMULT_CACHE``, else ``$XDG_CACHE_HOME/scimult``, else
        ``~/.cache/scimult``; its limit ``$SCIMULT_CACHE_GB``, 10 by default. None if there is
        neither a home nor a named folder.

        Raises
        ------
        ConfigError
            If the limit is not a number.
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
        if not 0 <= gigabytes * 1e9 < math.inf:
            fix = f"write a number, or unset it for {DEFAULT_GB:g}"
            problem = f"${SIZE_VARIABLE} is not a number of gigabytes"
            raise ConfigError(problem, value=given, fix=fix)
        return cls(folder / "embeddings", int(gigabytes * 1e9))

    def read(self, key: str, ids: Sequence[str], width: int) -> FloatArray | None:
        """Return the embeddings under ``key``, shape ``(N, D)``; None if absent or damaged."""
        folder = self.folder / key
        if not folder.is_dir():
            return None
        try:
            stored = read_embeddings(folder)
            valid = (
                stored.ids == list(ids)
                and stored.embeddings_ND.shape[1] == width
                and stored.meta.get("sha256") == sha256(folder / MATRIX_FILE)
            )
        except (DataError, OSError):
            valid = False
        if not valid:
            warn(f"{folder}: damaged or of another version, encoding the texts again")
            return None
        with suppress(OSError):
            os.utime(folder)
        return stored.embeddings_ND

    def keep(
        self, key: str, ids: Sequence[str], embeddings_ND: FloatArray, meta: dict[str, Any]
    ) -> None:
        """Write embeddings under ``key``, replacing earlier ones; warn if that fails."""
        size = embeddings_ND.nbytes
        if size > self.max_bytes:
            limit = f"${SIZE_VARIABLE} limits it to {self.max_bytes / 1e9:g} GB"
            warn(f"embeddings of {size / 1e9:.1f} GB do not fit the cache: {limit}")
            return
        try:
            shutil.rmtree(self.folder / key, ignore_errors=True)
            self._make_room(size)
            write_embeddings(self.folder / key, ids, embeddings_ND, meta)
        except (StorageError, OSError) as error:
            problem = error.problem if isinstance(error, StorageError) else error
            warn(f"{self.folder}: cannot cache embeddings ({problem}); {_ADVICE}")

    def _make_room(self, needed: int) -> None:
        """Remove the least recently used until ``needed`` more bytes fit the limit."""
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


def encode_collection(
    model: SciMult,
    collection: Collection,
    *,
    task: str,
    role: Role,
    cache: EmbeddingCache | None,
) -> FloatArray:
    """Return a collection's embeddings, float32, shape ``(N, D)``, from the cache if possible.

    Raises
    ------
    UnknownNameError
        If the model does not know ``task``.
    DataError
        If the texts are not of the kind that this side of the task has.
    """
    kind, given = model.kind(task, role), collection.texts[0].kind
    if kind != given:
        fitting = [name for name in model.tasks.names if model.kind(name, role) == given]
        problem = f"the {role} of task {task!r} is a {kind}, not a {given}"
        fix = f"use one of the tasks {', '.join(fitting)}" if fitting else "use another model"
        raise DataError(problem, path=collection.path, fix=fix)
    if cache is None:
        return model.encode(collection.texts, task=task, role=role, show_progress=True)
    texts = _fingerprint(collection)
    # Equal origins mean equal embeddings.
    origin = {"model": model.fingerprint, "texts": texts, "task": task, "role": role}
    key = hashlib.sha256(repr(origin).encode()).hexdigest()[:16]
    cached_ND = cache.read(key, collection.ids, model.width)
    if cached_ND is not None:
        return cached_ND
    embeddings_ND = model.encode(collection.texts, task=task, role=role, show_progress=True)
    meta = {
        "model_name": model.name,
        "similarity": model.similarity,
        "unit_vectors": model.unit_vectors,
        "dtype": model.dtype,
        "source": collection.path.name,
        "scimult": __version__,
        **origin,
    }
    cache.keep(key, collection.ids, embeddings_ND, meta)
    return embeddings_ND


def _fingerprint(collection: Collection) -> str:
    digest = hashlib.sha256()
    for name, text in zip(collection.ids, collection.texts, strict=True):
        for part in (name, text.kind, text.title, text.body):
            digest.update(f"{len(part)} {part}".encode())
    return digest.hexdigest()[:16]
