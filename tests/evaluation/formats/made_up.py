"""Benchmarks in other layouts, and papers for their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scimult.data.records import Rejects
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.datasets import read_dataset
from scimult.evaluation.task_data import TaskData
from tests.benchmark_sets import benchmark, write_jsonl

PAPERS = {
    f"p{row}": {"title": f"About {word}", "abstract": None} for row, word in enumerate("abcde")
}
WORDS = ["graphs", "proteins", "water", "matrices", "nodes", "cells", "laws", "stars"]


def made_benchmark(layout: str, protocol: str, metrics: list[str], **options: Any) -> Benchmark:
    """Return a benchmark in the folder ``set``."""
    options = {"task": "link_prediction", "format": layout, **options}
    return benchmark("set", protocol=protocol, metrics=metrics, **options)


def read(entry: Benchmark, root: Path, rejects: Rejects | None = None) -> TaskData:
    """Return the benchmark's data."""
    return read_dataset("set", entry, root, "ask the author", rejects or Rejects())


def write_documents(folder: Path, count: int = 8) -> None:
    """Write SciRepEval's texts of papers p0, p1, ..."""
    entries = [
        {"doc_id": f"p{row}", "title": f"About {WORDS[row]}", "abstract": None}
        for row in range(count)
    ]
    write_jsonl(folder / "set/meta.jsonl", entries)


def write_json(path: Path, tree: Any) -> None:
    """Write a JSON file below new folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(tree))
