"""S2AND: author mentions (signatures) in blocks of similar names, and their persons.

``<folder>/<split>_papers.json``, ``_signatures.json`` and ``_clusters.json`` are JSON objects by
id, in the S2AND project's format for each of its sources (``split`` is the source's name).
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scimult.data.records import Record
from scimult.errors import DataError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.formats.checks import Source
from scimult.evaluation.formats.scidocs import read_papers
from scimult.evaluation.records import by_name
from scimult.evaluation.task_data import Signatures


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
        persons = _persons(source, paths[i + 2])
        signatures = by_name(paths[i + 1], partial(_signature, papers), source.rejects)
        for signature, (paper, block) in signatures.items():
            if signature not in persons:
                fix = f"add it to {paths[i + 2].name}, or remove the entry"
                source.reject("signature is in no cluster", signature, fix, paths[i + 1])
                continue
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


def _persons(source: Source, path: Path) -> dict[str, str]:
    """Return the cluster of every signature; raise if one is in two."""
    persons: dict[str, str] = {}
    clusters = by_name(path, lambda cluster: cluster.identifiers("signature_ids"), source.rejects)
    for cluster, signatures in clusters.items():
        for signature in signatures:
            if persons.setdefault(signature, cluster) != cluster:
                problem = "signature is in two clusters"
                raise DataError(problem, path=path, value=signature, fix="keep it in one")
    return persons


def _signature(papers: Collection[str], record: Record) -> tuple[str, str]:
    """Return the paper and the block of a signature."""
    paper, author = record.identifier("paper_id"), record.fields.get("author_info")
    if not isinstance(author, dict) or "block" not in author:
        fix = 'write {"author_info": {"block": ...}}, or remove the entry'
        raise record.error("signature has no block", value=author, fix=fix)
    if paper not in papers:
        fix = "add its text, or remove the entry"
        raise record.error("signature's paper has no text", value=paper, fix=fix)
    return paper, Record(record.path, record.line, author).text("block")
