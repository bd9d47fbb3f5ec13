"""Embeddings on disk as one matrix, in a folder that anyone can write with numpy.

`shards` has the folders that ``scimult encode`` writes; `read_embeddings` reads both.
``embeddings.npy`` has one row per text, ``ids.txt`` one id per line in the same order, and
``meta.json`` describes the model (optional for embeddings made elsewhere).

Shape legend: N texts, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from scimult.arrays import load_array
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
from scimult.types import FloatArray, Role, Similarity, Text, TextEncoder

FORMAT, VERSION = "scimult-embeddings", 1
MATRIX_FILE, IDS_FILE, META_FILE = "embeddings.npy", "ids.txt", "meta.json"
_FILES = (MATRIX_FILE, IDS_FILE, META_FILE)
# Squares of lengths between these are float32 numbers and lose nothing to speak of.
SHORTEST, LONGEST = 2.0**-50, 2.0**60
# Rows looked at together.
_SOME = 1 << 14
EMBEDDINGS = FolderKind(
    "a folder of embeddings and nothing else",
    lambda folder: (
        holds_only(folder, _FILES) and read_json(folder / META_FILE).get("format") == FORMAT
    ),
)


@dataclass(frozen=True)
class StoredEmbeddings:
    """The contents of an embedding folder.

    Attributes
    ----------
    path : Path
        The folder.
    ids : list of str
        N distinct ids.
    embeddings_ND : array
        Floating point, memory-mapped.
    meta : dict
        Describes the model; empty for embeddings made elsewhere.
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
            If an id has no embedding, or one with NaN or infinity.
        """
        row_of = {name: row for row, name in enumerate(self.ids)}
        missing = [name for name in wanted if name not in row_of]
        if missing:
            problem = f"{len(missing)} of {len(wanted)} ids have no embedding"
            fix = "encode every text of the data set"
            raise DataError(problem, path=self.path, value=missing[:3], fix=fix)
        wanted_ND: FloatArray = self.embeddings_ND[[row_of[name] for name in wanted]]
        bad = _not_finite(wanted_ND)
        if len(bad):
            problem = f"{len(bad)} of {len(wanted)} embeddings are not finite"
            fix = "encode these texts again; activations can overflow in float16"
            first = [wanted[row] for row in bad[:3]]
            raise DataError(problem, path=self.path, value=first, fix=fix)
        return wanted_ND


def check_finite(embeddings_ND: FloatArray, made_by: str) -> None:
    """Refuse embeddings with NaN or infinity; the message names ``made_by``.

    Raises
    ------
    DataError
        With the number of such rows and the first of them.
    """
    bad = _not_finite(embeddings_ND)
    if len(bad):
        problem = f"{len(bad)} of {len(embeddings_ND)} embeddings by {made_by} are not finite"
        fix = "check the model's weights; activations can overflow in float16"
        raise DataError(problem, value=f"row {bad[0]}", fix=fix)


def _not_finite(embeddings_ND: FloatArray) -> list[int]:
    """Return the rows with NaN or infinity, looking at some at a time: flags of all are large."""
    rows: list[int] = []
    for first in range(0, len(embeddings_ND), _SOME):
        finite_S = np.isfinite(embeddings_ND[first : first + _SOME]).all(axis=1)
        rows += (first + np.flatnonzero(~finite_S)).tolist()
    return rows


def encode(
    encoder: TextEncoder,
    texts: Sequence[Text],
    *,
    task: str,
    role: Role,
    show_progress: bool = False,
) -> FloatArray:
    """Return any encoder's checked embeddings of texts, shape ``(N, D)``.

    Raises
    ------
    DataError
        If the encoder returns no array, the wrong number of rows, NaN or infinity.
    """
    returned = encoder.encode(texts, task=task, role=role, show_progress=show_progress)
    # Tensors with gradients or on a GPU, and ragged lists, are none.
    try:
        rows_ND = np.asarray(returned)
        is_real = rows_ND.dtype.kind in "fiu"
    except (RuntimeError, TypeError, ValueError):
        is_real = False
    if not is_real:
        problem = f"{encoder.name} did not return an array of real numbers"
        fix = "return a numpy array, such as tensor.detach().float().cpu().numpy()"
        raise DataError(problem, value=type(returned).__name__, fix=fix)
    if rows_ND.ndim != 2 or len(rows_ND) != len(texts):
        problem = f"{encoder.name} returned embeddings of shape {rows_ND.shape}"
        raise DataError(f"{problem} for {len(texts)} texts", fix="return one row per text")
    check_finite(rows_ND, encoder.name)
    return rows_ND


def unit_rows(embeddings_ND: FloatArray) -> FloatArray:
    """Return the embeddings scaled to length 1, float32; rows of zeros stay zeros."""
    x_ND = np.asarray(embeddings_ND, dtype=np.float32)
    with np.errstate(over="ignore", under="ignore"):
        lengths_N1 = np.linalg.norm(x_ND, axis=1, keepdims=True)
    odd_N = ~((lengths_N1 >= SHORTEST) & (lengths_N1 <= LONGEST))[:, 0]
    if odd_N.any():
        # Divided by their largest number, they have lengths that float32 can hold.
        x_ND = x_ND.copy()
        largest_N1 = np.abs(x_ND[odd_N]).max(axis=1, keepdims=True, initial=0)
        x_ND[odd_N] /= np.where(largest_N1 > 0, largest_N1, 1)
        lengths_N1[odd_N] = np.linalg.norm(x_ND[odd_N], axis=1, keepdims=True)
    divisors_N1: FloatArray = np.where(lengths_N1 > 0, lengths_N1, np.float32(1))
    scaled_ND: FloatArray = x_ND / divisors_N1
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
        If the folder holds something else, or cannot be written.
    """
    with atomic_folder(folder, EMBEDDINGS) as temporary:
        assert len(ids) == len(embeddings_ND), (len(ids), embeddings_ND.shape)
        check_finite(embeddings_ND, str(meta.get("model_name", "their model")))
        np.save(temporary / MATRIX_FILE, embeddings_ND)
        describe_embeddings(temporary, ids, embeddings_ND.shape[1], meta)


def describe_embeddings(folder: Path, ids: Sequence[str], width: int, meta: dict[str, Any]) -> None:
    """Write the ids and ``meta.json`` next to an existing matrix."""
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
    if by_task := sorted(path.parent.name for path in folder.glob("*/manifest.json")):
        problem = "not one folder of embeddings but one for each task"
        raise DataError(problem, path=folder, fix=f"name one of {', '.join(by_task)} in it")
    fix = f"write {MATRIX_FILE} with numpy.save and {IDS_FILE} with one id per line"
    ids = _read_ids(folder / IDS_FILE, fix)
    return _checked(folder, ids, map_matrix(folder / MATRIX_FILE), meta)


def read_vector_file(path: Path | str, ids_path: Path | str) -> StoredEmbeddings:
    """Read vectors from one file and their ids from another, one per line.

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
    ids = _read_ids(Path(ids_path), "write a text file with one id per line")
    matrix_ND = map_matrix(path) if path.suffix == ".npy" else _only_tensor(path)
    return _checked(path, ids, matrix_ND, {})


def read_meta(folder: Path) -> dict[str, Any]:
    """Return the contents of ``meta.json`` of an embedding folder; empty if there is none.

    Raises
    ------
    DataError
        If the folder is missing, or the file is of another format.
    """
    if not folder.is_dir():
        raise DataError("folder of embeddings does not exist", path=folder, fix="check the path")
    meta = read_json(folder / META_FILE) if (folder / META_FILE).exists() else {}
    known = isinstance(meta, dict) and (meta.get("format"), meta.get("version"))
    if meta != {} and known != (FORMAT, VERSION):
        fix = "write the folder again with scimult encode"
        raise DataError(f"not embeddings of version {VERSION}", path=folder / META_FILE, fix=fix)
    return dict(meta)


def read_similarity(folder: Path) -> Similarity | None:
    """Return how the embeddings of a folder are compared, where it says so.

    Folders that cannot be read say nothing.
    """
    from scimult.retrieval.shards import MANIFEST, Shards  # imports this module

    with suppress(DataError):
        if (folder / MANIFEST).is_file():
            return Shards(folder).space.similarity
        similarity = read_meta(folder).get("similarity")
        return similarity if similarity in get_args(Similarity) else None
    return None


def map_matrix(path: Path) -> FloatArray:
    """Memory-map a matrix written by ``numpy.save``.

    Raises
    ------
    DataError
        If the file is missing or damaged.
    """
    try:
        matrix: FloatArray = load_array(path, mapped=True)
    except (OSError, ValueError, EOFError) as error:
        fix = "write it again with numpy.save"
        raise DataError(f"cannot read embeddings: {error}", path=path, fix=fix) from error
    return matrix


def _of_shards(folder: Path) -> StoredEmbeddings:
    from scimult.retrieval.shards import Shards  # imports this module

    shards = Shards(folder)
    ids = shards.ids
    if shards.damaged:
        raise next(iter(shards.damaged.values()))
    if not shards.shards:
        fix = "run the same encode command again: it resumes where it stopped"
        raise DataError("embeddings are incomplete", path=folder, fix=fix)
    blocks = [block_BD for _, block_BD in shards.blocks(len(shards))]
    matrix_ND = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    space = shards.space
    meta = {**space.made_by, "model_name": space.model, "similarity": space.similarity}
    return _checked(folder, ids, matrix_ND, meta)


def _only_tensor(path: Path) -> FloatArray:
    """Return the tensor of a safetensors file; types that numpy lacks as float32."""
    if path.suffix != ".safetensors":
        problem, fix = "not a .npy or .safetensors file", "convert it to either"
        raise DataError(problem, path=path, fix=fix)
    import torch
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            tensor = file.get_tensor(names[0]) if len(names) == 1 else None
    except (OSError, SafetensorError) as error:
        fix = "write it again with safetensors"
        raise DataError(f"cannot read vectors: {error}", path=path, fix=fix) from error
    if tensor is None:
        fix = "keep only the one with the vectors"
        raise DataError(f"{len(names)} tensors, not one", path=path, value=names[:3], fix=fix)
    numpys = (torch.float16, torch.float32, torch.float64)
    widened = tensor.is_floating_point() and tensor.dtype not in numpys
    matrix: FloatArray = (tensor.float() if widened else tensor).numpy()
    return matrix


def _read_ids(path: Path, fix: str) -> list[str]:
    try:
        ids = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read ids: {error}", path=path, fix=fix) from error
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
