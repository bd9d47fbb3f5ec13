"""A small raw data set with all three tasks, for tests of prepare and mining."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scimult.config import validate
from scimult.preparation.dataset import DatasetConfig

PAPERS: list[dict[str, Any]] = [
    {
        "id": f"p{i}",
        "title": f"Paper number {i}",
        "abstract": f"An abstract about topic {i % 3}." if i != 5 else "",
        "authors": [f"Author {i % 4}", f"Author {i % 7}"],
        "venue": ["Journal A", "Journal B", ""][i % 3],
        "year": 2000 + i,
        "labels": [f"l{i % 5}", f"l{(i + 1) % 5}"],
    }
    for i in range(20)
]
LABELS = [
    {"id": f"l{i}", "name": f"Label {i}", "definition": f"About {i}." if i else ""}
    for i in range(5)
]
CITATIONS = [(f"p{i}", f"p{j}") for i in range(20) for j in range(i) if (i + j) % 5 == 0]
QUERIES = [{"id": f"q{i}", "text": f"find topic {i}"} for i in range(6)]
CLICKS = [(f"q{i}", f"p{(i * 3 + k) % 20}", int(k == 0)) for i in range(6) for k in range(4)]


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write JSON lines; return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_tsv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table with a header line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(str(value) for value in row) for row in [header, *rows]]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_raw(root: Path) -> Path:
    """Write the raw data set below ``root`` and return ``root``."""
    write_jsonl(root / "papers.jsonl", PAPERS)
    write_jsonl(root / "labels.jsonl", LABELS)
    write_jsonl(root / "queries.jsonl", QUERIES)
    write_tsv(root / "citations.tsv", ("citing", "cited"), CITATIONS)
    write_tsv(root / "clicks.tsv", ("query-id", "paper-id", "clicked"), CLICKS)
    return root


def raw_config(root: Path, **choices: Any) -> DatasetConfig:
    """Return the configuration that reads the files of ``write_raw``."""
    source = {
        "name": "toy",
        "papers": "papers.jsonl",
        "labels": "labels.jsonl",
        "citations": "citations.tsv",
        "queries": "queries.jsonl",
        "clicks": "clicks.tsv",
    }
    tree = {"root": str(root), "sources": [source], "dev_fraction": 0.3, **choices}
    return validate(DatasetConfig, tree)
