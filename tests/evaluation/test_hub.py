"""Files from the hub, here from a local folder with the layout of a hub repository."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from huggingface_hub import constants

from scimult.data.records import Rejects
from scimult.errors import DataError
from scimult.evaluation.benchmark import HubFile
from scimult.evaluation.datasets import download_from_hub, read_dataset, write_hub_file
from scimult.evaluation.task_data import Dataset
from tests.benchmark_sets import CORPUS, HEADER, REQUESTS, write_jsonl, write_rows, write_search
from tests.file_server import cut_off_hub

CARD = """---
configs:
- config_name: corpus
  data_files: [{split: corpus, path: corpus.jsonl}]
- config_name: queries
  data_files: [{split: queries, path: queries.jsonl}]
---
"""


@pytest.fixture
def repository_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "repo"
    write_jsonl(folder / "corpus.jsonl", CORPUS)
    write_jsonl(folder / "queries.jsonl", REQUESTS)
    judged = [("q1", "d1", 2), ("q2", "d3", 1), ("q3", "d2", 1)]
    write_rows(tmp_path / "repo-qrels/test.csv", [HEADER, *judged], ",")
    (folder / "README.md").write_text(CARD)
    return folder


def test_downloaded_files_are_read_as_local_ones(tmp_path: Path, repository_folder: Path) -> None:
    repo = str(repository_folder)
    hub = {
        "corpus.jsonl": HubFile(repo=repo, config="corpus", split="corpus"),
        "queries.jsonl": HubFile(repo=repo, config="queries", split="queries"),
        "qrels/test.tsv": HubFile(repo=f"{repo}-qrels", split="test"),
    }
    benchmark = write_search(tmp_path / "unused").model_copy(update={"hub": hub})
    announced: list[Path] = []
    written = download_from_hub({"search": benchmark}, tmp_path / "data", announced.append)
    assert announced == written
    assert len(written) == 3
    data = read_dataset("search", benchmark, tmp_path / "data", "", Rejects())
    assert isinstance(data, Dataset)
    assert data.candidate_ids == ["d1", "d2", "d3", "d4", "d5"]
    assert data.qrels.grades.values.tolist() == [2, 1, 1]
    corpus = written[0]
    corpus.with_name("corpus.jsonl.gz").write_bytes(gzip.compress(corpus.read_bytes()))
    corpus.unlink()
    assert download_from_hub({"search": benchmark}, tmp_path / "data", announced.append) == []


def test_a_source_that_cannot_be_read_leaves_nothing(tmp_path: Path) -> None:
    source = HubFile(repo=str(tmp_path / "nowhere"), split="test")
    with pytest.raises(DataError, match="cannot read .*nowhere"):
        write_hub_file(tmp_path / "data/x.jsonl", source)
    assert not (tmp_path / "data/x.jsonl").exists()


def test_an_error_without_a_message_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    def fails(*arguments: object, **options: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(datasets, "load_dataset", fails)
    with pytest.raises(DataError, match="cannot read a/b .*: ConnectionError"):
        write_hub_file(tmp_path / "x.jsonl", HubFile(repo="a/b", split="test"))


def test_without_a_network_nothing_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    cut_off_hub(monkeypatch)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    with pytest.raises(DataError, match=r"cannot read a/b .*Couldn't reach 'a/b' on the Hub"):
        write_hub_file(tmp_path / "x.jsonl", HubFile(repo="a/b", split="test"))
    assert not datasets.config.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE
