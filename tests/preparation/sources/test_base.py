"""A conversion repeats only what changed, and resumes where it was interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scimult.config import load_config, validate
from scimult.errors import DataError
from scimult.files import read_json, sha256
from scimult.preparation.dataset import DatasetConfig, build_dataset
from scimult.preparation.sources import SOURCES, Conversion, convert
from tests.prepared_folders import contents
from tests.public import write_files

FOS = [{"doc_id": f"d{i}", "title": f"T{i}", "labels_text": ["Art"]} for i in range(3)]
MESH = [{"doc_id": f"m{i}", "title": f"M{i}", "descriptor": "Cells"} for i in range(3)]
FILES = {"fos/train.jsonl": FOS, "mesh_descriptors/train.jsonl": MESH}
OPTIONS = {"tasks": ["fos", "mesh_descriptors"], "splits": ["train"]}


def _convert(tmp_path: Path, out: str = "raw", skip_bad: bool = False, **more: Any) -> Conversion:
    source = SOURCES["scirepeval"]
    options = validate(source.options, {**OPTIONS, **more})
    return convert(source, options, tmp_path / "in", tmp_path / out, skip_bad=skip_bad)[0]


def _made(tmp_path: Path) -> dict[str, int]:
    """Return when each source was written."""
    found = (tmp_path / ".raw.steps").glob("*/step.json")
    return {path.parent.name.removeprefix("scirepeval-"): path.stat().st_mtime_ns for path in found}


def _again(tmp_path: Path, **more: Any) -> set[str]:
    """Convert again, compare with a fresh conversion, and return the sources not reused."""
    before = _made(tmp_path)
    _convert(tmp_path, **more)
    after = _made(tmp_path)
    fresh = f"fresh-{len(list(tmp_path.iterdir()))}"
    _convert(tmp_path, fresh, **more)
    assert _content(tmp_path / "raw") == _content(tmp_path / fresh)
    return {name for name in after if after[name] != before.get(name)}


def _content(folder: Path) -> dict[str, bytes]:
    """Return all files but ``sources.yaml``, which names the folder, and its checksum."""
    named = ("sources.yaml", "conversion.json")
    return {name: data for name, data in contents(folder).items() if name not in named}


@pytest.mark.long
def test_only_what_changed_is_converted_again(tmp_path: Path) -> None:
    write_files(tmp_path / "in", FILES)
    _convert(tmp_path)
    assert _again(tmp_path) == set()
    write_files(tmp_path / "in", {"fos/train.jsonl": FOS[:2]})
    assert _again(tmp_path) == {"fos"}
    write_files(tmp_path / "in", {"fos/train-2.jsonl": FOS[2:]})
    assert _again(tmp_path) == {"fos"}, "a file more"
    assert _again(tmp_path, skip_bad=True) == {"fos", "mesh_descriptors"}
    assert _again(tmp_path, skip_bad=True, band={"pub_year": 5}) == {"fos", "mesh_descriptors"}
    damaged = tmp_path / "raw" / "scirepeval-fos" / "papers.parquet"
    damaged.write_bytes(b"damaged")
    assert _again(tmp_path, skip_bad=True, band={"pub_year": 5}) == {"fos"}


@pytest.mark.long
def test_the_path_of_a_file_is_no_pattern_and_gives_no_column(tmp_path: Path) -> None:
    def prepared(folder: Path) -> str:
        folder.mkdir(exist_ok=True)
        write_files(tmp_path / "in", {**FILES, "fos/train.jsonl": FOS[:2]})
        _convert(tmp_path, f"{folder.name}/raw1")  # what "raw[1]" matches as a pattern
        write_files(tmp_path / "in", FILES)
        raw = _convert(tmp_path, f"{folder.name}/raw[1]")
        assert raw.counts["scirepeval-fos"]["papers"] == len(FOS)
        config = load_config(DatasetConfig, folder / "raw[1]" / "sources.yaml")
        return build_dataset(config, folder / "out[1]")[0].fingerprint

    assert prepared(tmp_path / "year=1999") == prepared(tmp_path / "year")


def test_the_same_names_in_another_download_are_other_inputs(tmp_path: Path) -> None:
    write_files(tmp_path / "in", FILES)
    _convert(tmp_path)
    (tmp_path / "in").rename(tmp_path / "old")
    write_files(tmp_path / "in", {**FILES, "fos/train.jsonl": FOS[1:]})
    assert _again(tmp_path) == {"fos"}


def test_interrupted_and_resumed_equals_uninterrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = [*MESH[:2], {"doc_id": "bad", "descriptor": "Cells"}]
    write_files(tmp_path / "in", {**FILES, "mesh_descriptors/train.jsonl": bad})
    with pytest.raises(DataError, match="title and abstract are both empty"):
        _convert(tmp_path)
    assert not (tmp_path / "raw").exists()
    assert set(_made(tmp_path)) == {"fos"}, "nothing half-written is kept"
    write_files(tmp_path / "in", FILES)
    assert _again(tmp_path) == {"mesh_descriptors"}


def test_a_reused_source_still_reports_rejects(tmp_path: Path) -> None:
    write_files(tmp_path / "in", {**FILES, "fos/train.jsonl": [*FOS, {"doc_id": "bad"}]})
    first = _convert(tmp_path, skip_bad=True)
    again = _convert(tmp_path, skip_bad=True)
    assert sum(first.rejects.counts.values()) == 1
    assert again.rejects.counts == first.rejects.counts
    assert again.rejects.summary() == first.rejects.summary()
    assert again.counts == first.counts
    assert len((tmp_path / "raw" / "rejects.jsonl").read_text().splitlines()) == 1


def test_the_manifest_has_the_checksum_of_all_that_was_read_and_written(tmp_path: Path) -> None:
    write_files(tmp_path / "in", FILES)
    _convert(tmp_path)
    manifest = read_json(tmp_path / "raw" / "conversion.json")
    assert manifest["read"] == {name: sha256(tmp_path / "in" / name) for name in FILES}
    for name, content in _content(tmp_path / "raw").items():
        assert manifest["files"][name] == sha256(tmp_path / "raw" / name), content
