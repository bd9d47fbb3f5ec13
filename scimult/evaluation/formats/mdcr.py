"""MDCR: citation recommendation over fields of study (Medić and Šnajder 2022).

Texts are JSON lines of documents. The judgments are a JSON object: field, then query id, then
``true`` (the cited papers) and further lists (uncited papers that each of several systems found).
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from scimult.data.records import Record
from scimult.data.rows import read_members
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.formats.checks import Source
from scimult.evaluation.formats.scirepeval import read_texts
from scimult.evaluation.records import Judgments
from scimult.evaluation.task_data import Dataset


def needed(benchmark: Benchmark, folder: Path) -> list[str]:
    """Return the files of judgments and texts."""
    return [*(f"{split}.json" for split in benchmark.splits), benchmark.texts or "meta.jsonl"]


def read(source: Source) -> Dataset:
    """Read judgments by field, and rank each query's listed papers."""
    documents, _ = read_texts(source, source.paths[-1])
    judgments, fields = _read_judgments(source)
    judgments = source.known_documents(judgments, documents)
    queries = source.known_queries(judgments, documents.get)
    return source.ranked_set(queries, documents, judgments, listed=judgments, groups=fields)


def _read_judgments(source: Source) -> tuple[Judgments, dict[str, str]]:
    """Return judgments and the field of every query."""
    judgments: Judgments = {}
    fields: dict[str, str] = {}

    def parse(entry: tuple[Record, str]) -> tuple[str, dict[str, int]]:
        field, query = entry
        if query in judgments:
            raise field.error("query is in two fields", value=query, fix="keep it in one field")
        tree = field.fields[query]
        if not isinstance(tree, dict):
            fix = 'write {field: {query: {"true": [...], ...}}}'
            raise field.error("query has no lists of papers", value=query, fix=fix)
        lists = Record(field.path, field.line, tree)
        cited = lists.identifiers("true")
        listed = [paper for name in tree for paper in lists.identifiers(name)]
        return query, {paper: int(paper in cited) for paper in listed}

    files = (read_members(path, source.rejects) for path in source.paths[:-1])
    for name, field in chain.from_iterable(files):
        queries = [(field, query) for query in field.fields]
        for query, judged in source.rejects.keep(queries, parse):
            judgments[query], fields[query] = judged, name
    return judgments, fields
