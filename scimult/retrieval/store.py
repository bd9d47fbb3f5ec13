"""Embeddings cached by text: each distinct text is encoded once, for all benchmarks and runs.

``<folder>/<model>/<task>.<role>.<precision>/`` holds pairs of files: ``<name>.rows.npy`` with one
embedding per text, and ``<name>.keys.npy`` with the texts' hashes, written last. A written block is
final, so killed work resumes where it stopped, and several processes may write at once: two that
encode the same text write the same row.

Shape legend: N texts, D width, B texts of one block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from scimult.arrays import load_array, save_array
from scimult.errors import DataError
from scimult.retrieval.embeddings import encode
from scimult.types import (
    FloatArray,
    Role,
    Similarity,
    TaskChooser,
    Text,
    TextEncoder,
    tokens_encoded_by,
)

Precision = Literal["float32", "float16", "bfloat16"]
_KEY_BYTES = 16
_KEYS, _ROWS = ".keys.npy", ".rows.npy"


class StoringEncoder:
    """A text encoder that looks embeddings up before it encodes; itself a ``TextEncoder``.

    Results are rounded to ``precision``, stored before or not, so they do not depend on the
    store's contents.

    Parameters
    ----------
    encoder : TextEncoder
        Encodes texts that are not stored.
    folder : Path
        The store, shared between models.
    fingerprint : str
        Hash of everything the encoder's embeddings depend on.
    precision : {"float32", "float16", "bfloat16"}
        Number type on disk.
    block : int
        Texts per write: the most that a kill can lose.

    Attributes
    ----------
    texts_encoded : int
        Texts that this process had to encode because they were not stored.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        folder: Path,
        fingerprint: str,
        precision: Precision = "float32",
        block: int = 1024,
    ) -> None:
        self.name, self._encoder, self._block = encoder.name, encoder, block
        self._folder, self._precision = Path(folder) / fingerprint, precision
        self._parts: dict[tuple[str, Role], _Part] = {}
        self.texts_encoded = 0

    @property
    def tokens_encoded(self) -> int | None:
        """Tokens of these texts, if the encoder counts them."""
        return tokens_encoded_by(self._encoder)

    @property
    def similarity(self) -> Similarity:
        """How two embeddings are compared."""
        return self._encoder.similarity

    def task_for(self, task: str, fallback: str) -> str:
        """Return the inner encoder's choice; ``fallback`` if it makes none."""
        if isinstance(self._encoder, TaskChooser):
            return self._encoder.task_for(task, fallback)
        return fallback

    def encode(
        self, texts: Sequence[Text], *, task: str, role: Role, show_progress: bool = False
    ) -> FloatArray:
        """Return float32 embeddings, shape ``(N, D)``, encoding only what is not stored.

        Raises
        ------
        DataError
            If the encoder returns the wrong number of rows or a number that does not fit the
            precision, or a stored file is damaged.
        UnknownNameError
            If the encoder does not know ``task``.
        """
        if not texts:
            return self._encoder.encode([], task=task, role=role)
        part = self._part(task, role)
        self._add(part, part.missing(texts), task, role, show_progress)
        return part.look_up(texts)

    def encode_on_all_ranks(
        self, texts: Sequence[Text], *, task: str, role: Role, show_progress: bool = False
    ) -> None:
        """Store the embeddings of the texts, each rank encoding a share; all ranks must call it."""
        part = self._part(task, role)
        from scimult import distributed  # loads torch

        missing = distributed.broadcast_object(part.missing(texts))
        mine = missing[distributed.rank() :: distributed.world_size()]
        self._add(part, mine, task, role, show_progress)
        distributed.barrier()
        part.read()

    def _part(self, task: str, role: Role) -> _Part:
        if (task, role) not in self._parts:
            name = f"{quote(task, safe='')}.{role}.{self._precision}"
            self._parts[task, role] = _Part(self._folder / name, self._precision)
        return self._parts[task, role]

    def _add(
        self, part: _Part, missing: Sequence[Text], task: str, role: Role, show_progress: bool
    ) -> None:
        """Encode missing texts, writing each block."""
        for start in range(0, len(missing), self._block):
            block = missing[start : start + self._block]
            rows_BD = encode(
                self._encoder, block, task=task, role=role, show_progress=show_progress
            )
            part.write(block, rows_BD)
            self.texts_encoded += len(block)


class _Part:
    """The stored embeddings of one model, task and role: blocks of rows, looked up by key."""

    def __init__(self, folder: Path, precision: Precision) -> None:
        self._folder, self._precision = folder, precision
        # Of each block: a process may open fewer files than there are blocks.
        self._widths: dict[str, int] = {}
        self._locations: dict[bytes, tuple[str, int]] = {}
        self.read()

    def read(self) -> None:
        """Open new blocks."""
        for path in sorted(self._folder.glob(f"*{_KEYS}")):
            name = path.name.removesuffix(_KEYS)
            if name not in self._widths:
                self._open(name)

    def missing(self, texts: Sequence[Text]) -> list[Text]:
        """Return the distinct texts without an embedding."""
        return [text for text in dict.fromkeys(texts) if key_of(text) not in self._locations]

    def write(self, texts: Sequence[Text], rows_BD: FloatArray) -> None:
        """Write one block: rows first, then the keys that make them visible."""
        stored_BD = _to_disk(rows_BD, self._precision)
        keys = [key_of(text) for text in texts]
        keys_BK = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(-1, _KEY_BYTES)
        name = hashlib.sha256(keys_BK.tobytes()).hexdigest()[:_KEY_BYTES]
        for ending, array in ((_ROWS, stored_BD), (_KEYS, keys_BK)):
            save_array(self._folder / (name + ending), array)
        self._open(name)

    def look_up(self, texts: Sequence[Text]) -> FloatArray:
        """Return the embeddings of stored texts in float32, shape ``(N, D)``."""
        by_block: dict[str, tuple[list[int], list[int]]] = {}
        for index, text in enumerate(texts):
            name, row = self._locations[key_of(text)]
            indices, rows = by_block.setdefault(name, ([], []))
            indices.append(index)
            rows.append(row)
        widths = {self._widths[name] for name in by_block}
        if len(widths) > 1:
            problem = f"stored embeddings have different widths: {sorted(widths)}"
            raise DataError(problem, path=self._folder, fix="delete the folder")
        vectors_ND = np.empty((len(texts), widths.pop()), dtype=np.float32)
        for name, (indices, rows) in by_block.items():
            vectors_ND[indices] = _from_disk(self._load(name)[1][rows], self._precision)
        return vectors_ND

    def _open(self, name: str) -> None:
        keys_BK, rows_BD = self._load(name)
        self._widths[name] = rows_BD.shape[1]
        for row, key in enumerate(keys_BK):
            self._locations.setdefault(key.tobytes(), (name, row))

    def _load(self, name: str) -> tuple[NDArray[np.uint8], NDArray[np.generic]]:
        """Return a block's keys, and its rows, which are mapped."""
        try:
            keys_BK = load_array(self._folder / (name + _KEYS))
            rows_BD = load_array(self._folder / (name + _ROWS), mapped=True)
            if rows_BD.ndim != 2 or keys_BK.shape != (len(rows_BD), _KEY_BYTES):
                raise ValueError(f"{len(keys_BK)} keys for shape {rows_BD.shape}")
        except (OSError, ValueError, EOFError) as error:
            problem, path = f"cannot read stored embeddings: {error}", self._folder / name
            raise DataError(problem, path=path, fix="delete the block's two files") from error
        return keys_BK, rows_BD


def key_of(text: Text) -> bytes:
    """Hash a text's kind, title and body, each with its length."""
    digest = hashlib.sha256()
    for part in (text.kind, text.title, text.body):
        encoded = part.encode()
        digest.update(f"{len(encoded)} ".encode() + encoded)
    return digest.digest()[:_KEY_BYTES]


def _to_disk(rows_BD: FloatArray, precision: Precision) -> NDArray[np.generic]:
    """Round to the precision; bfloat16, which numpy lacks, is stored as its bits."""
    if precision == "float32":
        stored: NDArray[np.generic] = np.ascontiguousarray(rows_BD, dtype=np.float32)
        finite = stored
    elif precision == "float16":
        with np.errstate(over="ignore"):
            stored = finite = np.asarray(rows_BD, dtype=np.float16)
    else:
        import torch  # numpy has no bfloat16

        rounded = torch.from_numpy(np.array(rows_BD, dtype=np.float32)).to(torch.bfloat16)
        stored, finite = rounded.view(torch.int16).numpy(), rounded.float().numpy()
    bad = ~np.isfinite(finite).all(axis=1)
    if bad.any():
        problem = f"{int(bad.sum())} of {len(bad)} embeddings are not finite in {precision}"
        fix = "check the model, or store float32" if precision != "float32" else "check the model"
        raise DataError(problem, fix=fix)
    return stored


def _from_disk(rows: NDArray[np.generic], precision: Precision) -> FloatArray:
    if precision != "bfloat16":
        return rows.astype(np.float32)
    import torch

    bits = torch.from_numpy(np.array(rows, dtype=np.int16))
    widened: FloatArray = bits.view(torch.bfloat16).float().numpy()
    return widened
