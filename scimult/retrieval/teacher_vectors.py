"""A teacher's vector of every text in a prepared folder, written once and memory-mapped.

On disk this is an embedding folder (`retrieval.embeddings`) with the texts in text store order;
``meta.json`` names the text store by its hash.

Shape legend: N texts, B texts of a block, E width of the teacher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from scimult import __version__
from scimult.data.text_store import TextStore
from scimult.disk_space import create_matrix
from scimult.errors import DataError
from scimult.files import atomic_folder
from scimult.progress import bar, note
from scimult.retrieval.embeddings import (
    EMBEDDINGS,
    MATRIX_FILE,
    StoredEmbeddings,
    describe_embeddings,
    encode,
    map_matrix,
    read_meta,
)
from scimult.retrieval.space import Precision
from scimult.types import FloatArray, IntArray, Role, Text, TextEncoder

# Key in ``meta.json``: the hash of the text store.
TEXTS_KEY = "text_store"
TEXTS_PER_BLOCK = 1 << 11


@dataclass(frozen=True)
class TeacherVectors:
    """Vectors of all texts of a prepared folder, looked up by row.

    Attributes
    ----------
    path : Path
        Folder of the vectors.
    vectors_NE : array
        Memory-mapped, float16 or float32.
    fingerprint : str
        Hash of the vectors.
    """

    path: Path
    vectors_NE: FloatArray
    fingerprint: str

    @classmethod
    def open(cls, folder: Path | str, texts: TextStore) -> TeacherVectors:
        """Open the vectors of exactly these texts.

        Raises
        ------
        DataError
            If a file is missing or damaged, or the vectors belong to other texts.
        """
        folder = Path(folder)
        meta, vectors_NE = read_meta(folder), map_matrix(folder / MATRIX_FILE)
        fix = f"run scimult teach {texts.folder} again with the same teacher"
        if meta.get(TEXTS_KEY) != texts.fingerprint:
            problem = f"these are not the vectors of the texts in {texts.folder}"
            raise DataError(problem, path=folder, fix=fix)
        if vectors_NE.ndim != 2 or len(vectors_NE) != len(texts):
            problem = f"vectors of shape {vectors_NE.shape} for {len(texts):,} texts"
            raise DataError(problem, path=folder, fix=fix)
        return cls(folder, vectors_NE, str(meta.get("sha256")))

    @property
    def width(self) -> int:
        """Number of dimensions."""
        return int(self.vectors_NE.shape[1])

    def __call__(self, rows_B: IntArray) -> FloatArray:
        """Return the vectors of rows, float32, shape ``(B, E)``.

        Raises
        ------
        DataError
            If one is not finite: the file has changed since it was written.
        """
        vectors_BE: FloatArray = self.vectors_NE[rows_B].astype(np.float32)
        bad_B = np.logical_not(np.isfinite(vectors_BE).all(axis=1))
        if bad_B.any():
            row = int(rows_B[int(bad_B.argmax())])
            fix = "run scimult teach again"
            raise DataError("a vector is not finite", path=self.path, value=f"row {row}", fix=fix)
        return vectors_BE


def write_encoded(
    folder: Path,
    texts: TextStore,
    encoder: TextEncoder,
    *,
    task: str,
    meta: dict[str, Any],
    precision: Precision = "float16",
    overwrite: bool = False,
) -> TeacherVectors:
    """Encode and write every text: queries in the query role, others as candidates.

    Parameters
    ----------
    folder : Path
        Receives the vectors, atomically.
    texts : TextStore
        The texts.
    encoder : TextEncoder
        The teacher. One that stores its embeddings (`retrieval.store`) lets an interrupted call
        resume where it stopped.
    task : str
        Task to encode for.
    meta : dict
        Description of the teacher for ``meta.json``.
    precision : {"float16", "float32"}
        Number type on disk.
    overwrite : bool
        Whether to replace other embeddings in ``folder``.

    Raises
    ------
    DataError
        If a vector is not finite or of length 0.
    StorageError
        If the folder holds something else, or cannot be written.
    """
    blocks = (
        _encode(encoder, texts.slice(start, start + TEXTS_PER_BLOCK), task)
        for start in range(0, len(texts), TEXTS_PER_BLOCK)
    )
    meta = {"model_name": encoder.name, "task": task, **meta}
    _write(folder, texts, blocks, meta, precision, overwrite, lambda row: f"text {row}")
    return TeacherVectors.open(folder, texts)


def write_imported(
    folder: Path,
    texts: TextStore,
    given: StoredEmbeddings,
    *,
    precision: Precision = "float16",
    overwrite: bool = False,
) -> TeacherVectors:
    """Write vectors made elsewhere, looked up by the texts' ids.

    Raises
    ------
    DataError
        If a text has no vector, or one that is not finite or of length 0, or the vectors are
        those of a prepared folder with other texts.
    StorageError
        As for `write_encoded`.
    """
    # Folders of `scimult teach` name their texts; of other vectors only ids can be compared.
    if given.meta.get(TEXTS_KEY, texts.fingerprint) != texts.fingerprint:
        raise DataError(
            f"these vectors are of the texts of another prepared folder than {texts.folder}",
            path=given.path,
            fix="encode these texts with the same teacher: --model or --encoder",
        )
    row_of = {name: row for row, name in enumerate(given.ids)}
    missing = [name for name in texts.ids if name not in row_of]
    if missing:
        raise DataError(
            f"{len(missing):,} of {len(texts):,} texts in {texts.folder} have no vector",
            path=given.path,
            value=missing[:3],
            fix="give every text of the prepared folder a vector, under the same id",
        )
    if unused := len(given.ids) - len(texts):
        note(f"{given.path}: {unused:,} vectors match no text here")
    rows_N = np.array([row_of[name] for name in texts.ids], dtype=np.int64)

    blocks = (
        given.embeddings_ND[rows_N[start : start + TEXTS_PER_BLOCK]]
        for start in range(0, len(texts), TEXTS_PER_BLOCK)
    )
    meta = {"model_name": given.meta.get("model_name", given.path.name)}

    def source(row: int) -> str:
        return f"row {rows_N[row]} of {given.path}"

    _write(folder, texts, blocks, meta, precision, overwrite, source)
    return TeacherVectors.open(folder, texts)


def _encode(encoder: TextEncoder, block: list[Text], task: str) -> FloatArray:
    """Return the vectors of a block, shape ``(B, E)``, each text encoded for its role."""
    encoded: dict[int, FloatArray] = {}
    for role in get_args(Role):
        rows = [
            row for row, text in enumerate(block) if (text.kind == "query") == (role == "query")
        ]
        if rows:
            of_role = encode(encoder, [block[row] for row in rows], task=task, role=role)
            encoded |= dict(zip(rows, of_role, strict=True))
    return np.stack([encoded[row] for row in range(len(block))])


def _write(
    folder: Path,
    texts: TextStore,
    blocks: Iterator[FloatArray],
    meta: dict[str, Any],
    precision: Precision,
    overwrite: bool,
    source: Callable[[int], str],
) -> None:
    """Write blocks of vectors as they come; errors name a text's vector by ``source``."""
    stored: FloatArray | None = None
    start = 0
    with (
        atomic_folder(folder, EMBEDDINGS if overwrite else None) as temporary,
        bar("teach", total=len(texts), unit="text") as meter,
    ):
        for block_BE in blocks:
            if stored is None:
                shape = len(texts), block_BE.shape[1]
                stored = create_matrix(temporary / MATRIX_FILE, precision, shape)
            with np.errstate(over="ignore"):
                stored[start : start + len(block_BE)] = block_BE
            rounded_BE = stored[start : start + len(block_BE)].astype(np.float64)
            lengths_B = np.linalg.norm(rounded_BE, axis=1)
            bad_B = ~np.isfinite(lengths_B) | (lengths_B == 0)
            if bad_B.any():
                raise DataError(
                    f"the teacher's vector is of length 0 or not finite in {precision}",
                    value=source(start + int(bad_B.argmax())),
                    fix="check the teacher and this text; float16 holds numbers up to 65,504",
                )
            start += len(block_BE)
            meter.update(len(block_BE))
        assert stored is not None, "a prepared folder has texts"
        facts = {TEXTS_KEY: texts.fingerprint, "stored_as": precision, "scimult": __version__}
        describe_embeddings(temporary, texts.ids, stored.shape[1], {**meta, **facts})
