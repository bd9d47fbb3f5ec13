from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from scimult.errors import DataError
from scimult.files import read_json, write_json
from scimult.retrieval.embeddings import (
    StoredEmbeddings,
    check_finite,
    read_embeddings,
    write_embeddings,
)

IDS = ["b", "a", "ü\u2028c"]
MATRIX_ND = np.arange(6, dtype=np.float32).reshape(3, 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_embeddings(tmp_path / "e", IDS, MATRIX_ND, {"task": "search"})
    return tmp_path / "e"


def test_what_is_written_is_read(folder: Path) -> None:
    stored = read_embeddings(folder)
    assert stored.ids == IDS
    np.testing.assert_array_equal(stored.embeddings_ND, MATRIX_ND)
    assert (stored.meta["task"], stored.meta["rows"], stored.meta["width"]) == ("search", 3, 2)
    np.testing.assert_array_equal(stored.rows(["a", "b", "a"]), MATRIX_ND[[1, 0, 1]])
    assert [path.name for path in folder.parent.iterdir()] == ["e"]


def test_embeddings_made_elsewhere_need_no_meta(tmp_path: Path) -> None:
    np.save(tmp_path / "embeddings.npy", MATRIX_ND.astype(np.float16))
    (tmp_path / "ids.txt").write_text("b\na\nc", encoding="utf-8")
    assert read_embeddings(tmp_path).ids == ["b", "a", "c"]
    (tmp_path / "ids.txt").write_text("b\r\na\r\nc\r\n", encoding="utf-8-sig", newline="")
    assert read_embeddings(tmp_path).ids == ["b", "a", "c"]


def test_rows_that_are_not_finite_are_found_without_flags_of_all(tmp_path: Path) -> None:
    """Flags of all numbers would take a quarter of the embeddings' memory again."""
    values = np.ones((100_000, 32), dtype=np.float32)
    check_finite(values, "x")
    values[[70_001, 99_999], [3, 31]] = np.nan, np.inf
    tracemalloc.start()
    with pytest.raises(DataError, match=r"2 of 100000 embeddings by x .*row 70001"):
        check_finite(values, "x")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < values.size / 4
    stored = StoredEmbeddings(tmp_path, [str(row) for row in range(100_000)], values, {})
    with pytest.raises(DataError, match=r"1 of 3 embeddings are not finite .*'70001'"):
        stored.rows(["5", "70001", "6"])


def test_an_id_without_embedding_is_named(folder: Path) -> None:
    with pytest.raises(DataError, match=r"1 of 2 ids have no embedding \(value: \['x'\]\)"):
        read_embeddings(folder).rows(["a", "x"])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("other version", "meta.json: not embeddings of version 1"),
        ("no object", "meta.json: not embeddings of version 1"),
        ("fewer ids", r"2 ids for float32 of shape \(3, 2\)"),
        ("an id twice", "an id occurs twice"),
        ("integers", r"3 ids for int64 of shape \(3, 2\)"),
        ("cut array", "cannot read embeddings"),
        ("objects", "cannot read embeddings"),
        ("no array", "cannot read embeddings"),
        ("no ids", "cannot read ids"),
    ],
)
def test_damage_is_named(folder: Path, damage: str, message: str) -> None:
    matrix, ids, meta = folder / "embeddings.npy", folder / "ids.txt", folder / "meta.json"
    if damage == "other version":
        write_json(meta, {**read_json(meta), "version": 2})
    elif damage == "no object":
        write_json(meta, None)
    elif damage == "fewer ids":
        ids.write_text("a\nb\n", encoding="utf-8")
    elif damage == "an id twice":
        ids.write_text("a\nb\na\n", encoding="utf-8")
    elif damage == "integers":
        np.save(matrix, MATRIX_ND.astype(np.int64))
    elif damage == "cut array":
        matrix.write_bytes(matrix.read_bytes()[:-8])
    elif damage == "objects":
        np.save(matrix, MATRIX_ND.astype(object), allow_pickle=True)
    elif damage == "no array":
        matrix.unlink()
    else:
        ids.unlink()
    with pytest.raises(DataError, match=message):
        read_embeddings(folder)
