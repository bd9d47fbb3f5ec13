"""A teacher's vectors: one per text, of exactly these texts, all finite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from scimult.data.text_store import TextStore
from scimult.errors import DataError
from scimult.retrieval import teacher_vectors
from scimult.retrieval.embeddings import StoredEmbeddings, read_embeddings, read_vector_file
from scimult.retrieval.store import StoringEncoder
from scimult.retrieval.teacher_vectors import TeacherVectors, write_encoded, write_imported
from scimult.types import FloatArray, Kind, Role, Text
from tests.benchmark_sets import WordEncoder
from tests.prepared_folders import write_texts

KINDS: tuple[Kind, ...] = ("paper", "label", "query")
TEXTS = {f"s:{row}": Text(KINDS[row % 3], f"title {row}", "of a body") for row in range(25)}


@pytest.fixture
def texts(tmp_path: Path) -> TextStore:
    return write_texts(tmp_path / "prepared", TEXTS)


def teach(folder: Path, texts: TextStore, encoder: Any, **options: Any) -> TeacherVectors:
    return write_encoded(folder, texts, encoder, task="search", meta={}, **options)


def expected() -> FloatArray:
    return WordEncoder().encode(list(TEXTS.values()), task="search", role="query")


def given(matrix: FloatArray | None = None, ids: Sequence[str] = tuple(TEXTS)) -> StoredEmbeddings:
    matrix = expected() if matrix is None else matrix
    return StoredEmbeddings(Path("theirs.npy"), list(ids), matrix, {})


@pytest.mark.parametrize("block", [4, 1000])
def test_every_text_has_its_vector_and_role(
    tmp_path: Path, texts: TextStore, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(teacher_vectors, "TEXTS_PER_BLOCK", block)
    encoder = WordEncoder()
    vectors = teach(tmp_path / "out", texts, encoder, precision="float32")
    rows = np.array([7, 0, 24, 7])
    np.testing.assert_array_equal(vectors(rows), expected()[rows])
    assert vectors.width == 16
    roles: set[tuple[Kind, Role]] = {(text.kind, role) for text, _, role in encoder.encoded}
    assert roles == {("paper", "candidate"), ("label", "candidate"), ("query", "query")}
    # It is also an embedding folder, half the size in float16, which keeps 11 bits.
    assert read_embeddings(tmp_path / "out").ids == list(TEXTS)
    half = teach(tmp_path / "half", texts, encoder)
    np.testing.assert_allclose(half(rows), expected()[rows], rtol=2.0**-11, atol=1e-7)
    assert half.vectors_NE.dtype == np.float16


class _Killed(WordEncoder):
    def encode(
        self, texts: Sequence[Text], *, task: str, role: Role, show_progress: bool = False
    ) -> FloatArray:
        if len(self.encoded) > 8:
            raise KeyboardInterrupt
        return super().encode(texts, task=task, role=role)


def test_an_interrupted_call_resumes_and_leaves_no_partial_folder(
    tmp_path: Path, texts: TextStore
) -> None:
    def storing(encoder: WordEncoder) -> StoringEncoder:
        return StoringEncoder(encoder, tmp_path / "store", "m", "float16", block=3)

    killed, inner = _Killed(), WordEncoder()
    with pytest.raises(KeyboardInterrupt):
        teach(tmp_path / "out", texts, storing(killed))
    assert not (tmp_path / "out").exists()
    vectors = teach(tmp_path / "out", texts, storing(inner))
    assert len(inner.encoded) == len(TEXTS) - len(killed.encoded) > 0
    whole = teach(tmp_path / "whole", texts, WordEncoder())
    np.testing.assert_array_equal(vectors.vectors_NE, whole.vectors_NE)
    assert vectors.fingerprint == whole.fingerprint


def test_vectors_of_other_texts_are_refused(tmp_path: Path, texts: TextStore) -> None:
    teach(tmp_path / "out", texts, WordEncoder())
    changed = {**TEXTS, "s:3": Text("paper", "another title")}
    other = write_texts(tmp_path / "other", changed)
    with pytest.raises(DataError, match="not the vectors of the texts in .*other.*scimult teach"):
        TeacherVectors.open(tmp_path / "out", other)
    np.save(tmp_path / "out/embeddings.npy", expected()[:-1])
    with pytest.raises(DataError, match=r"vectors of shape \(24, 16\) for 25 texts"):
        TeacherVectors.open(tmp_path / "out", texts)
    (tmp_path / "out/embeddings.npy").write_bytes(b"no matrix")
    with pytest.raises(DataError, match="cannot read embeddings"):
        TeacherVectors.open(tmp_path / "out", texts)
    with pytest.raises(DataError, match="folder of embeddings does not exist"):
        TeacherVectors.open(tmp_path / "nowhere", texts)


def test_a_number_changed_on_disk_is_refused_on_reading(tmp_path: Path, texts: TextStore) -> None:
    teach(tmp_path / "out", texts, WordEncoder())
    spoilt = np.load(tmp_path / "out/embeddings.npy")
    spoilt[6, 2] = np.nan
    np.save(tmp_path / "out/embeddings.npy", spoilt)
    vectors = TeacherVectors.open(tmp_path / "out", texts)
    assert np.isfinite(vectors(np.array([5, 7]))).all()
    with pytest.raises(DataError, match="not finite .*row 6"):
        vectors(np.array([5, 6]))


@pytest.mark.parametrize("name", ["v.npy", "v.safetensors", "half.safetensors"])
def test_vectors_made_elsewhere_are_found_by_id(
    tmp_path: Path, texts: TextStore, name: str
) -> None:
    order = np.random.default_rng(0).permutation(len(TEXTS))
    matrix = np.concatenate([expected()[order], np.ones((1, 16), np.float32)])
    ids = [*(list(TEXTS)[place] for place in order), "of no text"]
    (tmp_path / "ids.txt").write_text("".join(f"{line}\n" for line in ids), encoding="utf-8")
    if name == "v.npy":
        np.save(tmp_path / name, matrix)
    else:
        tensor = torch.from_numpy(matrix)
        save_file({"e": tensor.bfloat16() if "half" in name else tensor}, tmp_path / name)
    read = read_vector_file(tmp_path / name, tmp_path / "ids.txt")
    vectors = write_imported(tmp_path / "out", texts, read, precision="float32")
    tolerance = 2.0**-8 if "half" in name else 0.0
    np.testing.assert_allclose(vectors.vectors_NE, expected(), rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float16])
def test_types_that_numpy_lacks_are_widened(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.tensor([[0.5, -2.0]]).to(dtype)
    save_file({"e": tensor}, tmp_path / "v.safetensors")
    (tmp_path / "ids.txt").write_text("a\n")
    read = read_vector_file(tmp_path / "v.safetensors", tmp_path / "ids.txt")
    assert read.embeddings_ND.tolist() == [[0.5, -2.0]]


def spoilt(value: float, row: int = 4) -> FloatArray:
    matrix = expected()
    matrix[row] = value
    return matrix


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (given(spoilt(np.nan)), "of length 0 or not finite in float16.*row 20 of theirs.npy"),
        (given(spoilt(np.inf)), "row 20 of theirs.npy"),
        (given(spoilt(0)), "row 20 of theirs.npy"),
        (given(spoilt(70_000)), "row 20 of theirs.npy.*up to 65,504"),
        (given(spoilt(1e-9)), "row 20 of theirs.npy"),
        (given(expected()[2:], list(TEXTS)[2:]), r"2 of 25 texts .* have no vector .*s:0.*s:1"),
    ],
)
def test_broken_vectors_are_refused_by_row(
    tmp_path: Path, texts: TextStore, read: StoredEmbeddings, message: str
) -> None:
    if len(read.ids) == len(TEXTS):  # the last row of the file is that of the first text
        read = StoredEmbeddings(read.path, read.ids[::-1], read.embeddings_ND, {})
        message = message.replace("row 20", "row 4")
    with pytest.raises(DataError, match=message):
        write_imported(tmp_path / "out", texts, read)
    assert not (tmp_path / "out").exists()


def test_imported_vectors_of_other_texts_are_refused(tmp_path: Path, texts: TextStore) -> None:
    """The same ids do not make the same texts."""
    teach(tmp_path / "out", texts, WordEncoder())
    read = read_embeddings(tmp_path / "out")
    again = write_imported(tmp_path / "again", texts, read)
    np.testing.assert_array_equal(again.vectors_NE, read.embeddings_ND)
    other = write_texts(tmp_path / "other", {**TEXTS, "s:3": Text("paper", "another title")})
    with pytest.raises(DataError, match="of another prepared folder than .*other.*--model"):
        write_imported(tmp_path / "theirs", other, read)
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("v.npy", 24, "24 ids for float32 of shape"),
        ("v.npy", 0, "cannot read ids"),
        ("v.txt", 25, "not a .npy or .safetensors file"),
        ("two.safetensors", 25, "2 tensors, not one"),
        ("broken.safetensors", 25, "cannot read vectors"),
        ("broken.npy", 25, "cannot read embeddings"),
    ],
)
def test_unusable_vector_files(tmp_path: Path, name: str, lines: int, message: str) -> None:
    ids = tmp_path / "ids.txt"
    if lines:
        ids.write_text("".join(f"s:{line}\n" for line in range(lines)), encoding="utf-8")
    if name == "two.safetensors":
        save_file({"a": torch.ones(2, 2), "b": torch.ones(2, 2)}, tmp_path / name)
    elif name.startswith("broken") or name == "v.txt":
        (tmp_path / name).write_bytes(b"xy")
    else:
        np.save(tmp_path / name, expected())
    with pytest.raises(DataError, match=message):
        read_vector_file(tmp_path / name, ids)


def test_an_id_that_occurs_twice(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", expected()[:2])
    (tmp_path / "ids.txt").write_text("s:1\ns:1\n", encoding="utf-8")
    with pytest.raises(DataError, match="an id occurs twice"):
        read_vector_file(tmp_path / "v.npy", tmp_path / "ids.txt")
