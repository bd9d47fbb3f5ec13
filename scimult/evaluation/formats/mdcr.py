"""MDCR: citation recommendation over fields of study (Medić and Šnajder 2022).

Texts are JSON lines of documents. The judgments are a JSON object: field, then query id, then
``true`` (the cited papers) and further lists (uncited papers that each of several systems found).
"""

from __future__ import annotations

from pathlib import Path

from scimult.errors import DataError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.formats.checks import Source
from scimult.evaluation.formats.scirepeval import read_texts
from scimult.evaluation.records import Judgments
from scimult.evaluation.task_data import Dataset
from scimult.files import read_json


def needed(benchmark: Benchmark, folder: Path) -> list[str]:
    """Return the files of judgments and texts."""
    return [f"{benchmark.split}.json", benchmark.texts or "meta.jsonl"]


def read(source: Source) -> Dataset:
    """Read judgments by field, and rank each query's listed papers."""
    documents, _ = read_texts(source, source.paths[1])
    judgments, fields = _read_judgments(source)
    judgments = source.known_documents(judgments, documents)
    queries = source.known_queries(judgments, documents.get)
    return source.ranked_set(queries, documents, judgments, listed=judgments, groups=fields)


def _read_judgments(source: Source) -> tuple[Judgments, dict[str, str]]:
    """Return judgments and the field of every query."""
    path = source.paths[0]
    tree = read_json(path)
    if not isinstance(tree, dict) or not all(isinstance(entry, dict) for entry in tree.values()):
        fix = 'write {field: {query: {"true": [...], ...}}}'
        raise DataError("not judgments by field", path=path, fix=fix)
    judgments: Judgments = {}
    fields: dict[str, str] = {}
    for field, queries in tree.items():
        for query, lists in queries.items():
            if query in judgments:
                source.reject("query is in two fields", query, "keep it in one field")
                continue
            cited = {str(paper) for paper in lists.get("true", [])}
            listed = [str(paper) for papers in lists.values() for paper in papers]
            judgments[query] = {paper: int(paper in cited) for paper in listed}
            fields[query] = field
    return judgments, fields
