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
        ({"model": {}}, "its model has no dtype, name, path, settings"),
        ({"model": []}, "damaged"),
        ({"model": {"path": "m", "name": "m", "dtype": "float32", "settings": 1}}, "settings"),
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
