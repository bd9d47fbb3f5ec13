"""SciRepEval's training files as benchmarks: one JSON array or JSON lines file with everything.

``classification`` and ``regression`` rows hold a paper and its target (``probe.target`` names
the field); ``ir`` rows hold a ``query`` and ``candidates`` with a ``score`` each; ``triplet``
rows hold ``query``, ``pos`` and ``neg``. The files have no split: a part is held out by id.
"""

from __future__ import annotations

from pathlib import Path

from scimult.data.judgments import grade_of
from scimult.data.records import Record, Rejects
from scimult.data.rows import read_rows
from scimult.errors import DataError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.formats.checks import Source, Targets, hold_out
from scimult.evaluation.formats.native import target_of
from scimult.evaluation.formats.scirepeval import (
    candidate_records,
    document_id,
    query_record,
    store_text,
)
from scimult.evaluation.records import Judgments, once
from scimult.evaluation.task_data import Dataset, PaperSet
from scimult.types import Text


def needed(benchmark: Benchmark, folder: Path) -> list[str]:
    """Return the one file of the benchmark."""
    return [benchmark.texts or "train.jsonl"]


def read(source: Source) -> Dataset | PaperSet:
    """Read papers with targets, or queries with scored candidates."""
    return _read_targets(source) if source.benchmark.probe else _read_rankings(source)


def _read_targets(source: Source) -> PaperSet:
    probe, path, rejects = source.benchmark.probe, source.paths[0], source.rejects
    assert probe is not None
    papers: dict[str, Text] = {}

    def parse(record: Record) -> tuple[list[str], float]:
        target = target_of(record, source.benchmark)
        store_text(papers, record, source.benchmark)
        return target

    rows = read_rows(path, rejects)
    targets: Targets = once(rows, document_id, parse, rejects, "paper", "keep one of the rows")
    if probe.held_out is None:
        raise DataError("the file has no split", path=path, fix="set probe.held_out, such as 0.3")
    return source.paper_set(papers, *hold_out(targets, probe.held_out))


def _read_rankings(source: Source) -> Dataset:
    rejects = source.rejects
    documents: dict[str, Text] = {}
    queries: dict[str, Text] = {}
    judgments: Judgments = {}

    def parse(record: Record) -> tuple[Record, str]:
        query = query_record(record)
        if not isinstance(record.fields["query"], dict):
            query.fields.setdefault("doc_id", f"query-{record.line}")
        identity = document_id(query)
        if identity in judgments:
            raise record.error("duplicate query", value=identity, fix="keep one")
        return record, store_text(queries, query, source.benchmark)

    def parse_candidate(candidate: Record) -> tuple[str, int]:
        grade = grade_of(candidate)
        return store_text(documents, candidate, source.benchmark), grade

    for record, identity in rejects.keep(read_rows(source.paths[0], rejects), parse):
        judged = judgments.setdefault(identity, {})
        for document, grade in rejects.keep(_candidates(record, rejects), parse_candidate):
            if judged.setdefault(document, grade) != grade:
                fix = "keep one of its grades"
                rejects.reject(record.error("candidate has two grades", value=document, fix=fix))
    return source.ranked_set(queries, documents, judgments, listed=judgments)


def _candidates(record: Record, rejects: Rejects) -> list[Record]:
    """Return the candidates of a row with their scores; those of a triplet are 1 and 0."""
    if not all(isinstance(record.fields.get(side), dict) for side in ("pos", "neg")):
        return candidate_records(record, rejects)
    return [
        Record(record.path, record.line, {**record.fields[side], "score": grade})
        for side, grade in (("pos", 1), ("neg", 0))
    ]
