"""The files of ``configs/data/`` read what they name; a name may look like a variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from scimult.config import load_config
from scimult.preparation.collect import source_files
from scimult.preparation.dataset import DatasetConfig, build_dataset


@pytest.mark.long
@pytest.mark.data
def test_the_shared_data_configuration(
    repository: Path, scimult_data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SCIMULT_DATA", str(scimult_data))
    config = load_config(DatasetConfig, repository / "configs" / "data" / "scholarly.yaml")
    data, rejects = build_dataset(config, tmp_path / "out")
    assert not rejects.counts
    pairs = {file.name: len(file.positives.values) for file in data.pairs("train")}
    for file in data.pairs("dev"):
        pairs[file.name] += len(file.positives.values)
    for name, left_out in data.manifest.in_neither_split.items():
        pairs[name] += left_out
    assert pairs == {
        "arxiv.classification": 47744,
        "vis.link_prediction": 10968,
        "acl.link_prediction": 67774,
        "paperscape.link_prediction": 14999,
        "citances.search": 9759,
    }


@pytest.mark.data
def test_one_configuration_reads_all_of_the_shared_data(
    repository: Path, scimult_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCIMULT_DATA", str(scimult_data))
    config = load_config(DatasetConfig, repository / "configs" / "data" / "scholarly_all.yaml")
    read = set(source_files(config).values())
    # Names of areas are classes of a head and need no texts.
    unread = {scimult_data / "train" / "paperlists" / "areas.jsonl"}
    files = (scimult_data / "train").rglob("*.*")
    assert {path for path in files if path.is_file()} == read | unread


def test_the_world_configuration_loads(repository: Path) -> None:
    config = load_config(DatasetConfig, repository / "configs" / "data" / "world.yaml")
    assert config.sources[0].parts == ["labels", "citations", "queries"]


@pytest.mark.parametrize("name", ["a$PLACE", "$NO_SUCH_PLACE", "~", "${x", "$"])
def test_a_folder_whose_name_looks_like_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Another folder was read, or none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACE", f"/{name}")
    Path(name).mkdir()
    source = {"name": "a", "papers": "p", "labels": "l"}
    config = DatasetConfig.model_validate({"root": name, "sources": [source]})
    assert config.resolve("p") == Path(name, "p")
    config = config.model_copy(update={"root": "$PLACE/x"})
    assert config.resolve("p") == Path(f"/{name}/x/p")
