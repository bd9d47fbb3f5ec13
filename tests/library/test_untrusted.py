"""Libraries that others made: their manifest names files of theirs alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scimult.errors import DataError
from scimult.inference import SciMult
from scimult.library import Library
from tests.library.conftest import PAPERS, made

_INJECTED = "BIGINT AS x WHERE FALSE); COPY (SELECT 1) TO 'made.csv'; --"

_MODEL = {"path": "m", "name": "m", "dtype": "float32"}


@pytest.fixture(scope="module")
def theirs(model: SciMult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("theirs") / "library", model, PAPERS).path


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"removed": "../precious.npy"}, "precious"),
        ({"vectors": "../../other/vectors/0123"}, "other"),
        ({"vectors": ".."}, r"'\.\.' is not a name"),
        ({"sides": {"../../other": "candidate"}}, "other"),
        ({"sides": ["search"]}, "damaged"),
        ({"adapter": {"file": "/precious.npy"}}, "precious"),
        ({"indexes": {"search": {"file": "../precious.npy"}}}, "precious"),
        ({"indexes": {"search": {}}}, "file"),
        ({"columns": {"year": _INJECTED}}, "not a type of columns"),
        ({"segments": [{"name": "../0", "rows": 1, "bytes": 1, "sha256": ""}]}, "not a name"),
        ({"segments": [{"name": "000000", "rows": "x", "bytes": 1, "sha256": ""}]}, "number"),
        ({"segments": [{"name": "000000", "rows": -1, "bytes": 1, "sha256": ""}]}, "number"),
        ({"segments": [{"name": "000000", "rows": True, "bytes": 1, "sha256": ""}]}, "number"),
        ({"vectors": "x" * 400}, "not a name"),
        ({"longest": 3}, "damaged"),
        ({"longest": {"search": "3"}}, "not lengths"),
        ({"adapter": {"file": "a.npz"}}, "its adapter has no spaces"),
        ({"format": "scimult-tagger"}, "not a library manifest"),
        ({"version": 99}, "library of another version.*99"),
        ({"model": {}}, "its model has no dtype, name, path, settings"),
        ({"model": []}, "damaged"),
        ({"model": {**_MODEL, "path": 3, "settings": {}}}, "its model's path is not a text"),
        ({"model": {**_MODEL, "settings": 1}}, "settings: Input should be a mapping"),
        ({"model": {**_MODEL, "settings": {"poling": "cls"}}}, "settings.poling: unknown key"),
    ],
)
def test_a_manifest_names_no_other_files(
    theirs: Path, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    folder = tmp_path / "library"
    shutil.copytree(theirs, folder)
    manifest = json.loads((folder / "library.json").read_text())
    (folder / "library.json").write_text(json.dumps(manifest | changes))
    with pytest.raises(DataError, match=named):
        Library.open(folder)


@pytest.mark.parametrize("rows", [0, 11, 1 << 33, 10**20])
def test_a_manifest_of_other_rows_than_its_vectors_is_damaged(
    theirs: Path, tmp_path: Path, rows: int
) -> None:
    """Arrays of other lengths met in a search; those of 2^33 rows took its memory."""
    folder = Path(shutil.copytree(theirs, tmp_path / "library"))
    manifest = json.loads((folder / "library.json").read_text())
    assert manifest["segments"][0].pop("rows") not in (0, 11)
    manifest["segments"][0]["rows"] = rows
    (folder / "library.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="papers and vectors differ in rows. Fix: restore"):
        Library.open(folder)


def test_a_manifest_is_an_object(tmp_path: Path) -> None:
    (tmp_path / "library.json").write_text("[]")
    with pytest.raises(DataError, match="not a library manifest"):
        Library.open(tmp_path)


def test_removing_papers_removes_no_file_of_others(theirs: Path, tmp_path: Path) -> None:
    """``library.json`` could name any array as the mark of removed rows, and the next replaced it.

    So the file went.
    """
    folder, precious = tmp_path / "library", tmp_path / "precious.npy"
    shutil.copytree(theirs, folder)
    np.save(precious, np.zeros(8, np.uint8))
    manifest = json.loads((folder / "library.json").read_text())
    (folder / "library.json").write_text(json.dumps(manifest | {"removed": str(precious)}))
    with pytest.raises(DataError, match="damaged"):
        Library.open(folder).remove(["p0"])
    assert precious.exists()


def test_damaged_marks_of_removed_papers_are_named(theirs: Path, tmp_path: Path) -> None:
    """Without them, removed papers would be back."""
    folder = tmp_path / "library"
    shutil.copytree(theirs, folder)
    Library.open(folder).remove([PAPERS[0]["id"]])
    (file,) = folder.glob("removed.*.npy")
    for content in (b"", file.read_bytes()[:100], b"x"):
        file.write_bytes(content)
        with pytest.raises(DataError, match=rf"{file.name}: cannot read removed rows"):
            Library.open(folder)


def test_a_library_finds_its_model_from_any_folder(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(model_folder, tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    made = Library.create("library", PAPERS[:3], model="tiny", tasks=["search"])
    wanted = made.search("graph").ids
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert Library.open("../library").search("graph").ids == wanted


def test_a_library_reads_texts_as_when_it_was_made(model_folder: Path, tmp_path: Path) -> None:
    """It has a copy of the tokenizer; one that is given with another model is told apart."""
    folder = Path(shutil.copytree(model_folder, tmp_path / "tiny"))
    made = Library.create(tmp_path / "library", PAPERS[:5], model=folder, tasks=["search"])
    wanted = made.search("graph 2-1").as_dicts()
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    first, second = list(words)[-2:]
    words[first], words[second] = words[second], words[first]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert Library.open(made.path).search("graph 2-1").as_dicts() == wanted
    with pytest.raises(DataError, match="differ in tokenizer"):
        Library.open(made.path, model=folder).search("graph 2-1")
