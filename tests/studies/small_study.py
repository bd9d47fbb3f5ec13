"""A small study on real training: its folder, its file, and how it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.benchmark_sets import HEADER, benchmark, write_jsonl, write_rows
from tests.command import invoke
from tests.training.corpus import WORDS, prepare_corpus, run_config


def small_study(path: Path) -> Path:
    """Fill a folder with data, a base model, a suite and a run configuration."""
    prepare_corpus(path)
    config = run_config(path, "nowhere", schedule={"steps": 4}, checkpoint={"every": 2})
    (path / "run.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    papers = [f"{a} {b}" for a in WORDS for b in WORDS[:3]]
    queries = [f"{a} {b}" for a in WORDS for b in WORDS[3:5]]
    write_jsonl(
        path / "own/corpus.jsonl",
        [{"_id": f"d{n}", "title": text, "text": ""} for n, text in enumerate(papers)],
    )
    write_jsonl(
        path / "own/queries.jsonl", [{"_id": f"q{n}", "text": t} for n, t in enumerate(queries)]
    )
    judged = [
        (f"q{n}", f"d{row}", 1)
        for n, query in enumerate(queries)
        for row, paper in enumerate(papers)
        if query.split()[0] in paper
    ]
    write_rows(path / "own/qrels/test.tsv", [HEADER, *judged])
    entry = benchmark("own", "search", "search", ["ndcg@10"]).model_dump(mode="json")
    tree = {"name": "own", "description": "x", "how_to_get": "x", "benchmarks": {"own": entry}}
    (path / "own.yaml").write_text(yaml.safe_dump(tree))
    return path


def write_study(folder: Path, name: str, /, **changes: Any) -> Path:
    """Write a study file whose output is ``folder / name``."""
    tree = {
        "name": name,
        "output": str(folder / name),
        "baseline": "base",
        "seeds": [0, 1],
        "config": str(folder / "run.yaml"),
        "runs": {"base": {"model": str(folder / "base")}, "experts": {}},
        "launch": {"parallel": 2},
        "evaluate": [{"suite": str(folder / "own.yaml"), "data": str(folder)}],
        "options": {"dtype": "float32"},
        **changes,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def call(*words: str | Path) -> Any:
    """Run ``scimult study`` in this process."""
    return invoke("study", *words)
