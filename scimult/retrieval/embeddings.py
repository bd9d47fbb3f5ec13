"""Embeddings on disk: a folder that ``scimult encode`` writes, or that anyone writes with numpy.

``embeddings.npy`` has one row per text, ``ids.txt`` one id per line in the same order, and
``meta.json`` says what made them (optional for embeddings made elsewhere).

Shape legend: N texts, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scimult.errors import DataError
from scimult.files import (
    FolderKind,
    atomic_folder,
    holds_only,
    read_json,
    sha256,
    write_json,
    write_text,
)
from scimult.types import FloatArray

FORMAT, VERSION = "scimult-embeddings", 1
MATRIX_FILE, IDS_FILE, META_FILE = "embeddings.npy", "ids.txt", "meta.json"
_FILES = (MATRIX_FILE, IDS_FILE, META_FILE)
EMBEDDINGS = FolderKind(
    "a folder of embeddings and nothing else",
    lambda folder: (
        holds_only(folder, _FILES) and read_json(folder / META_FILE).get("format") == FORMAT
    ),
)
EMBEDDINGS_BY_TASK = FolderKind(
    "a folder with a folder of embeddings for each task and nothing else",
    lambda folder: all(path.is_dir() and EMBEDDINGS.is_one(path) for path in folder.iterdir()),
)


@dataclass(frozen=True)
class StoredEmbeddings:
    """An embedding folder that was read.

    Attributes
    ----------
    path : Path
        The folder.
    ids : list of str
        N distinct ids.
    embeddings_ND : array
        Floating point, memory-mapped.
    meta : dict
        What made them; empty for embeddings made elsewhere.
    """

    path: Path
    ids: list[str]
    embeddings_ND: FloatArray
    meta: dict[str, Any]

    def rows(self, wanted: Sequence[str]) -> FloatArray:
        """Return the embeddings of the ``wanted`` ids, in their order.

        Raises
        ------
        DataError
            If an id has none.
        """
        places = {name: row for row, name in enumerate(self.ids)}
        missing = [name for name in wanted if name not in places]
        if missing:
            raise DataError(
                f"{len(missing)} of {len(wanted)} ids have no embedding",
                path=self.path,
                value=missing[:3],
                fix="encode every text of the data set",
            )
        chosen: FloatArray = self.embeddings_ND[[places[name] for name in wanted]]
        return chosen


def check_finite(embeddings_ND: FloatArray, made_by: str) -> None:
    """Refuse embeddings with NaN or infinity; ``made_by`` is named in the message.

    Raises
    ------
    DataError
        With the number of such rows and the first of them.
    """
    bad_N = np.logical_not(np.isfinite(embeddings_ND).all(axis=1))
    if bad_N.any():
        raise DataError(
            f"{int(bad_N.sum())} of {len(bad_N)} embeddings by {made_by} are not finite",
            value=f"row {int(bad_N.argmax())}",
            fix="check the model's weights; activations can overflow in float16",
        )


def unit_rows(embeddings_ND: FloatArray) -> FloatArray:
    """Return the embeddings scaled to length 1, float32; a row of zeros stays one."""
    x_ND = torch.from_numpy(np.array(embeddings_ND, dtype=np.float32))
    scaled_ND: FloatArray = torch.nn.functional.normalize(x_ND, dim=1).numpy()
    return scaled_ND


def write_embeddings(
    folder: Path, ids: Sequence[str], embeddings_ND: FloatArray, meta: dict[str, Any]
) -> None:
    """Write an embedding folder, atomically.

    Raises
    ------
    DataError
        If an embedding is not finite.
    StorageError
        If something else is there, or the folder cannot be written.
    """
    with atomic_folder(folder, EMBEDDINGS) as temporary:
        fill_embeddings(temporary, ids, embeddings_ND, meta)


def fill_embeddings(
    folder: Path, ids: Sequence[str], embeddings_ND: FloatArray, meta: dict[str, Any]
) -> None:
    """Write the files of an embedding folder into a folder that is there.

    Raises
    ------
    DataError
        If an embedding is not finite.
    """
    assert len(ids) == len(embeddings_ND), (len(ids), embeddings_ND.shape)
    check_finite(embeddings_ND, str(meta.get("model_name", "their model")))
    facts: dict[str, Any] = {"rows": len(ids), "width": embeddings_ND.shape[1]}
    np.save(folder / MATRIX_FILE, embeddings_ND)
    facts["sha256"] = sha256(folder / MATRIX_FILE)
    write_text(folder / IDS_FILE, "".join(f"{name}\n" for name in ids))
    write_json(folder / META_FILE, {"format": FORMAT, "version": VERSION, **facts, **meta})


def read_embeddings(folder: Path | str) -> StoredEmbeddings:
    """Read an embedding folder.

    Raises
    ------
    DataError
        If a file is missing, damaged or of another format, the counts disagree, or an id
        occurs twice.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError("folder of embeddings does not exist", path=folder, fix="check the path")
    meta = read_json(folder / META_FILE) if (folder / META_FILE).exists() else {}
    known = isinstance(meta, dict) and (meta.get("format"), meta.get("version"))
    if meta and known != (FORMAT, VERSION):
        fix = "make the folder again with scimult encode"
        raise DataError(f"not embeddings of version {VERSION}", path=folder / META_FILE, fix=fix)
    try:
        ids = (folder / IDS_FILE).read_text(encoding="utf-8").split("\n")
        embeddings_ND = np.load(folder / MATRIX_FILE, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        fix = f"write {MATRIX_FILE} with numpy.save and {IDS_FILE} with one id per line"
        raise DataError(f"cannot read embeddings: {error}", path=folder, fix=fix) from error
    if not ids[-1]:
        ids.pop()
    if embeddings_ND.ndim != 2 or embeddings_ND.dtype.kind != "f" or len(ids) != len(embeddings_ND):
        shown = f"{embeddings_ND.dtype} of shape {embeddings_ND.shape}"
        fix = "write one row of floating point numbers per id"
        raise DataError(f"{len(ids)} ids for {shown}", path=folder, fix=fix)
    if len(set(ids)) != len(ids):
        raise DataError("an id occurs twice", path=folder, fix="keep one row per id")
    return StoredEmbeddings(folder, ids, embeddings_ND, meta)
