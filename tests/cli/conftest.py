"""A tiny model, a suite of every protocol, and `scimult evaluate` on it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import Result

from scimult.evaluation.benchmark import Benchmark
from tests.benchmark_sets import EVERY_KIND
from tests.command import invoke
from tests.tiny import save_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with experts for three tasks."""
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Write data of every protocol and a custom suite; return the suite's file."""
    data = tmp_path / "data"
    made = [write(data) for write in EVERY_KIND]
    tree = {
        "name": "own",
        "description": "Mine",
        "how_to_get": "ask me",
        "benchmarks": {entry.folder: plain(entry) for entry in made},
    }
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return path


def plain(entry: Benchmark) -> dict[str, object]:
    """Return a benchmark as JSON."""
    tree: dict[str, object] = entry.model_dump(mode="json")
    return tree


def evaluated(suite: Path, *arguments: str) -> Result:
    """Call ``scimult evaluate`` on the suite, with its data and folder of results."""
    data, out = suite.parent / "data", suite.parent / "out"
    options = ["--suite", str(suite), "--data", str(data), "--out", str(out)]
    return invoke("evaluate", *options, *arguments)
