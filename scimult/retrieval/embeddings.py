"""Embeddings on disk as one matrix: a folder that anyone writes with numpy.

`shards` has the folders that ``scimult encode`` writes; `read_embeddings` reads both.
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
from scimult.types import FloatArray, Role, Text, TextEncoder

FORMAT, VERSION = "scimult-embeddings", 1
MATRIX_FILE, IDS_FILE, META_FILE = "embeddings.npy", "ids.txt", "meta.json"
_FILES = (MATRIX_FILE, IDS_FILE, META_FILE)
# Vectors below this length are zeros; as in torch.nn.functional.normalize.
_SHORTEST = 1e-12
EMBEDDINGS = FolderKind(
    "a folder of embeddings and nothing else",
    lambda folder: (
        holds_only(folder, _FILES) and read_json(folder / META_FILE).get("format") == FORMAT
    ),
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
        wanted_ND: FloatArray = self.embeddings_ND[[places[name] for name in wanted]]
        return wanted_ND


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


def encode(
    encoder: TextEncoder,
    texts: Sequence[Text],
    *,
    task: str,
    role: Role,
    show_progress: bool = False,
) -> FloatArray:
    """Return what any encoder makes of texts, shape ``(N, D)``; what keeps vectors encodes by this.

    Raises
    ------
    DataError
        If the encoder returns the wrong number of rows.
    """
    rows_ND = encoder.encode(texts, task=task, role=role, show_progress=show_progress)
    if rows_ND.ndim != 2 or len(rows_ND) != len(texts):
        problem = f"{encoder.name} returned embeddings of shape {rows_ND.shape}"
        raise DataError(f"{problem} for {len(texts)} texts", fix="return one row per text")
    return rows_ND


def unit_rows(embeddings_ND: FloatArray) -> FloatArray:
    """Return the embeddings scaled to length 1, float32; a row of zeros stays one."""
    x_ND = np.asarray(embeddings_ND, dtype=np.float32)
    lengths_N1 = np.linalg.norm(x_ND, axis=1, keepdims=True)
    scaled_ND: FloatArray = x_ND / np.maximum(lengths_N1, _SHORTEST)
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
    np.save(folder / MATRIX_FILE, embeddings_ND)
    describe_embeddings(folder, ids, embeddings_ND.shape[1], meta)


def describe_embeddings(folder: Path, ids: Sequence[str], width: int, meta: dict[str, Any]) -> None:
    """Write the ids and ``meta.json`` beside a matrix that is there already."""
    facts = {"rows": len(ids), "width": width, "sha256": sha256(folder / MATRIX_FILE)}
    write_text(folder / IDS_FILE, "".join(f"{name}\n" for name in ids))
    write_json(folder / META_FILE, {"format": FORMAT, "version": VERSION, **facts, **meta})


def read_embeddings(folder: Path | str) -> StoredEmbeddings:
    """Read a folder of one matrix or of shards; several shards are copied into one matrix.

    Raises
    ------
    DataError
        If a file is missing, damaged or of another format, the counts disagree, or an id
        occurs twice.
    """
    folder = Path(folder)
    if (folder / "manifest.json").is_file():
        return _of_shards(folder)
    meta = read_meta(folder)
    fix = f"write {MATRIX_FILE} with numpy.save and {IDS_FILE} with one id per line"
    try:
        ids = _read_ids(folder / IDS_FILE)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read embeddings: {error}", path=folder, fix=fix) from error
    return _checked(folder, ids, map_matrix(folder / MATRIX_FILE), meta)


def read_vector_file(path: Path | str, ids_path: Path | str) -> StoredEmbeddings:
    """Read vectors that stand in one file, and their ids in another, one per line.

    Parameters
    ----------
    path : path
        ``.npy``, or ``.safetensors`` with a single tensor; one row per text.
    ids_path : path
        A text file, in the order of the rows.

    Raises
    ------
    DataError
        If a file is missing, damaged or of another type, the counts disagree, or an id occurs
        twice.
    """
    path = Path(path)
    try:
        ids = _read_ids(Path(ids_path))
    except (OSError, ValueError) as error:
        fix = "write a text file with one id per line"
        raise DataError(f"cannot read ids: {error}", path=ids_path, fix=fix) from error
    matrix_ND = map_matrix(path) if path.suffix == ".npy" else _only_tensor(path)
    return _checked(path, ids, matrix_ND, {})


def read_meta(folder: Path) -> dict[str, Any]:
    """Return what ``meta.json`` of an embedding folder says; nothing where there is none.

    Raises
    ------
    DataError
        If the folder is missing, or the file is of another format.
    """
    if not folder.is_dir():
        raise DataError("folder of embeddings does not exist", path=folder, fix="check the path")
    meta = read_json(folder / META_FILE) if (folder / META_FILE).exists() else {}
    known = isinstance(meta, dict) and (meta.get("format"), meta.get("version"))
    if meta and known != (FORMAT, VERSION):
        fix = "make the folder again with scimult encode"
        raise DataError(f"not embeddings of version {VERSION}", path=folder / META_FILE, fix=fix)
    return dict(meta)


def map_matrix(path: Path) -> FloatArray:
    """Memory-map a file that ``numpy.save`` wrote.

    Raises
    ------
    DataError
        If there is none, or it is damaged.
    """
    try:
        matrix: FloatArray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        fix = "write it again with numpy.save"
        raise DataError(f"cannot read embeddings: {error}", path=path, fix=fix) from error
    return matrix


def _of_shards(folder: Path) -> StoredEmbeddings:
    from scimult.retrieval.shards import Shards  # whose writer checks numbers by this module

    shards = Shards(folder)
    ids = shards.ids
    if shards.damaged:
        raise next(iter(shards.damaged.values()))
    if not shards.shards:
        fix = "give the command that encodes again: it goes on where it ended"
        raise DataError("embeddings are not all written", path=folder, fix=fix)
    blocks = [block_BD for _, block_BD in shards.blocks(len(shards))]
    matrix_ND = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    space = shards.space
    meta = {**space.made_by, "model_name": space.model, "similarity": space.similarity}
    return _checked(folder, ids, matrix_ND, meta)


def _only_tensor(path: Path) -> FloatArray:
    """Return the tensor of a safetensors file, in float32 what numpy has no type for."""
    if path.suffix != ".safetensors":
        problem, fix = "not a .npy or .safetensors file", "convert it to one of the two"
        raise DataError(problem, path=path, fix=fix)
    import torch  # numpy has no bfloat16
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            tensor = file.get_tensor(names[0]) if len(names) == 1 else None
    except (OSError, SafetensorError) as error:
        fix = "write it again with safetensors"
        raise DataError(f"cannot read vectors: {error}", path=path, fix=fix) from error
    if tensor is None:
        fix = "keep the one with the vectors"
        raise DataError(f"{len(names)} tensors, not one", path=path, value=names[:3], fix=fix)
    matrix: FloatArray = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return matrix


def _read_ids(path: Path) -> list[str]:
    ids = path.read_text(encoding="utf-8").split("\n")
    return ids if ids[-1] else ids[:-1]


def _checked(
    path: Path, ids: list[str], embeddings_ND: FloatArray, meta: dict[str, Any]
) -> StoredEmbeddings:
    if embeddings_ND.ndim != 2 or embeddings_ND.dtype.kind != "f" or len(ids) != len(embeddings_ND):
        matrix = f"{embeddings_ND.dtype} of shape {embeddings_ND.shape}"
        fix = "write one row of floating point numbers per id"
        raise DataError(f"{len(ids)} ids for {matrix}", path=path, fix=fix)
    if len(set(ids)) != len(ids):
        raise DataError("an id occurs twice", path=path, fix="keep one row per id")
    return StoredEmbeddings(path, ids, embeddings_ND, meta)
