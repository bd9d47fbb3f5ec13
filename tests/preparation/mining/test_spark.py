"""The same plans on a local Spark give the same pools, bit for bit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scimult.config import validate
from scimult.data.prepared import PreparedData
from scimult.preparation.dataset import DatasetConfig, build_dataset
from scimult.preparation.mining.config import MiningConfig
from scimult.preparation.mining.mine import mine_again
from scimult.preparation.world import WorldSettings, make_world, write_world

pytest.importorskip("pyspark")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java"),
]
EASY = [
    {"rule": "random", "count": 3},
    {"rule": "same_field", "field": "venue", "count": 3},
    {"rule": "other_field", "field": "venue", "count": 3},
]
# Limits low enough for every kind of sample.
RULES: dict[str, Any] = {
    "citations": ["cited_by_cited", "co_cited", *EASY],
    "labels": ["cited", "author", "venue", "random"],
    "queries": ["shown", "random"],
    "max_negatives": 6,
    "max_neighbours": 5,
}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    where = tmp_path_factory.mktemp("spark")
    session = builder.config("spark.sql.warehouse.dir", str(where)).getOrCreate()
    yield session
    session.stop()


def _pools(data: PreparedData) -> dict[str, bytes]:
    return {e.file: (data.folder / e.file).read_bytes() for e in data.manifest.pairs}


def _assert_same(folder: Path, session: Any, rules: dict[str, Any]) -> None:
    from scimult.preparation.mining.spark import SparkEngine

    config, on_spark = validate(MiningConfig, rules), folder.with_name("on_spark")
    shutil.copytree(folder, on_spark)
    mine_again(folder, config)
    tables = folder.with_name("tables")
    tables.mkdir()
    mine_again(on_spark, config, engine=SparkEngine(session, tables))
    here, there = PreparedData.open(folder), PreparedData.open(on_spark)
    assert _pools(here) == _pools(there)
    assert all(entry.negatives for entry in here.manifest.pairs if entry.groups)


def test_the_generated_world(tmp_path: Path, session: Any) -> None:
    write_world(make_world(WorldSettings(papers=600)), tmp_path / "raw")
    source = {
        "name": "world",
        "papers": "papers.jsonl",
        "citations": "citations.tsv",
        "labels": "labels.jsonl",
        "queries": "queries.jsonl",
        "clicks": "clicks.tsv",
    }
    tree = {"root": str(tmp_path / "raw" / "train"), "sources": [source]}
    build_dataset(validate(DatasetConfig, tree), tmp_path / "out")
    _assert_same(tmp_path / "out", session, RULES)


@pytest.mark.data
def test_vis(tmp_path: Path, session: Any, scimult_data: Path) -> None:
    root = scimult_data / "train"
    source = {"name": "vis", "papers": "vis/papers.jsonl.gz", "citations": "vis/citations.tsv"}
    tree = {"root": str(root), "sources": [source]}
    build_dataset(validate(DatasetConfig, tree), tmp_path / "out")
    _assert_same(tmp_path / "out", session, RULES)
