"""MDCR: citation recommendation over fields of study (Medić and Šnajder 2022).

Texts are JSON lines of documents; the judgments are a JSON object of fields, of query ids, of
``true`` (cited papers) and further lists (what each of several systems retrieved, not cited).
"""

from __future__ import annotations

from pathlib import Path

from scimult.data.lines import Rejects
from scimult.errors import DataError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.formats.checks import known_documents, ranked_set
from scimult.evaluation.formats.scirepeval import read_texts
from scimult.evaluation.records import Judgments
from scimult.evaluation.task_data import Dataset
from scimult.files import packed_or_plain, read_json


def needed(benchmark: Benchmark, root: Path) -> list[Path]:
    """Return the files of judgments and of texts."""
    names = [f"{benchmark.split}.json", benchmark.texts or "meta.jsonl"]
    return [packed_or_plain(root / benchmark.folder / name) for name in names]


def read(name: str, benchmark: Benchmark, root: Path, rejects: Rejects) -> Dataset:
    """Read judgments by field, and rank what is listed for each query."""
    path, texts = needed(benchmark, root)
    documents, _ = read_texts(texts, benchmark, rejects)
    judgments, fields = _read_judgments(path, rejects)
    judgments = known_documents(judgments, documents, path, rejects)
    for query in [query for query in judgments if query not in documents]:
        fix = "get its text, or leave the query out"
        rejects.reject(DataError("judged query has no text", path=path, value=query, fix=fix))
        del judgments[query]
    queries = {query: documents[query] for query in judgments}
    return ranked_set(
        name,
        benchmark,
        queries,
        documents,
        judgments,
        rejects,
        files=[path, texts],
        judged_in=path,
        listed=judgments,
        groups=fields,
    )


def _read_judgments(path: Path, rejects: Rejects) -> tuple[Judgments, dict[str, str]]:
    """Return judgments and the field of every query."""
    tree = read_json(path)
    if not isinstance(tree, dict) or not all(isinstance(entry, dict) for entry in tree.values()):
        fix = 'write {field: {query: {"true": [...], ...}}}'
        raise DataError("not judgments by field", path=path, fix=fix)
    judgments: Judgments = {}
    fields: dict[str, str] = {}
    for field, queries in tree.items():
        for query, lists in queries.items():
            if query in judgments:
                fix = "keep it in one field"
                problem = "query is in two fields"
                rejects.reject(DataError(problem, path=path, value=query, fix=fix))
                continue
            cited = {str(paper) for paper in lists.get("true", [])}
            listed = [str(paper) for papers in lists.values() for paper in papers]
            judgments[query] = {paper: int(paper in cited) for paper in listed}
            fields[query] = field
    return judgments, fields
