"""S2AND: author mentions (signatures) in blocks of similar names, and their persons.

``<folder>/<split>_papers.json``, ``_signatures.json`` and ``_clusters.json`` are JSON objects by
id, in the S2AND project's format for each of its sources (``split`` is the source's name).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from scimult.errors import DataError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.formats.checks import Source
from scimult.evaluation.formats.scidocs import read_papers
from scimult.evaluation.task_data import Signatures
from scimult.files import read_json


def needed(benchmark: Benchmark, folder: Path) -> list[str]:
    """Return papers, signatures and clusters of every source."""
    return [
        f"{source}_{kind}.json"
        for source in benchmark.splits
        for kind in ("papers", "signatures", "clusters")
    ]


def read(source: Source) -> Signatures:
    """Read all sources; ids and blocks are prefixed with their source."""
    benchmark, paths = source.benchmark, source.paths
    texts: dict[str, Any] = {}
    rows: list[tuple[str, str, str, str]] = []
    for project, i in zip(benchmark.splits, range(0, len(paths), 3), strict=True):
        papers = read_papers(source, paths[i])
        texts.update({f"{project}/{paper}": text for paper, text in papers.items()})
        persons = _persons(paths[i + 2])
        for signature, fields in _objects(paths[i + 1]).items():
            problem = _problem(fields, papers, signature in persons)
            if problem:
                fix = "correct or remove the entry"
                source.reject(problem, signature, fix, paths[i + 1])
                continue
            paper, block = str(fields["paper_id"]), fields["author_info"]["block"]
            prefix = f"{project}/"
            rows.append((prefix + signature, prefix + paper, prefix + block, persons[signature]))
    if not rows:
        raise DataError("no signature is left", path=paths[1], fix="check that the ids match")
    used = list(dict.fromkeys(paper for _, paper, _, _ in rows))
    row_of = {paper: row for row, paper in enumerate(used)}
    return Signatures(
        name=source.name,
        task=benchmark.task,
        ids=[signature for signature, _, _, _ in rows],
        paper_ids=used,
        texts=[texts[paper] for paper in used],
        paper_rows=np.array([row_of[paper] for _, paper, _, _ in rows], dtype=np.int64),
        blocks=[block for _, _, block, _ in rows],
        persons=[person for _, _, _, person in rows],
        files=paths,
    )


def _objects(path: Path) -> dict[str, Any]:
    entries = read_json(path)
    if not isinstance(entries, dict):
        raise DataError("not a JSON object by id", path=path, fix='write {"id": {...}}')
    return entries


def _persons(path: Path) -> dict[str, str]:
    """Return the cluster of every signature; raise if one is in two."""
    persons: dict[str, str] = {}
    for cluster, fields in _objects(path).items():
        for signature in fields["signature_ids"]:
            if persons.setdefault(str(signature), cluster) != cluster:
                problem = "signature is in two clusters"
                raise DataError(problem, path=path, value=signature, fix="keep it in one")
    return persons


def _problem(fields: Any, papers: dict[str, Any], has_person: bool) -> str | None:
    if not isinstance(fields, dict) or "paper_id" not in fields:
        return "signature names no paper"
    if not isinstance(fields.get("author_info"), dict) or "block" not in fields["author_info"]:
        return "signature has no block"
    if str(fields["paper_id"]) not in papers:
        return "signature's paper has no text"
    return None if has_person else "signature is in no cluster"
