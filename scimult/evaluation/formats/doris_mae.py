"""DORIS-MAE's own file: research needs of several sentences (Wang et al. 2023).

``DORIS-MAE_dataset_v1.json`` is one object: ``Corpus`` (a list of abstracts, whose positions are
their ids), ``Query`` (``query_text``, ``candidate_pool``, ``aspects``: aspect to its sub-aspects)
and ``Annotation`` (``aspect_id``, ``abstract_id``, ``score`` from 0 to 2). The grade of an
abstract is the sum of its scores over a query's aspects and sub-aspects. The authors rank abstracts
alone, so titles are not read. ``split`` is ``graded``, or ``relevant``: 1 if the mean score is at
least 1, as in the authors' recall, R-precision and MAP, which leave out queries without such an
abstract.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from scimult.data.judgments import grade_of
from scimult.data.records import Record
from scimult.errors import ConfigError, DataError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.formats.checks import Source
from scimult.evaluation.records import Judgments, request
from scimult.evaluation.task_data import Dataset
from scimult.files import read_json
from scimult.types import Text

T = TypeVar("T")
SPLITS = ("graded", "relevant")
LEFT_OUT = "a query without a relevant abstract was left out, as its authors do"


def needed(benchmark: Benchmark, folder: Path) -> list[str]:
    """Return the data set's only file."""
    return [benchmark.texts or "DORIS-MAE_dataset_v1.json"]


def read(source: Source) -> Dataset:
    """Read the queries, each with its pool of abstracts."""
    split, [path] = source.benchmark.split, source.paths
    if split not in SPLITS:
        fix = f"use split: {' or '.join(SPLITS)}"
        raise ConfigError("format 'doris_mae' has no such split", value=split, fix=fix)
    tree = read_json(path)
    corpus = _parsed(source, tree, "Corpus", lambda record: record.text("original_abstract"))
    queries = _parsed(source, tree, "Query", _query)
    scores: dict[tuple[str, str], int] = defaultdict(int)
    for aspect, abstract, score in _parsed(source, tree, "Annotation", _annotation).values():
        scores[aspect, abstract] += score
    judgments: Judgments = {}
    for query, (_, pool, aspects) in queries.items():
        sums = {abstract: sum(scores[aspect, abstract] for aspect in aspects) for abstract in pool}
        if split == "relevant":
            sums = {abstract: int(total >= len(aspects)) for abstract, total in sums.items()}
        judgments[query] = sums
    answered = {query: sums for query, sums in judgments.items() if any(sums.values())}
    listed = {abstract for sums in answered.values() for abstract in sums}
    documents = {
        abstract: Text("paper", "", text) for abstract, text in corpus.items() if abstract in listed
    }
    answered = source.known_documents(answered, documents)
    return source.ranked_set(
        {query: queries[query][0] for query in answered},
        documents,
        answered,
        listed=answered,
        remarks={LEFT_OUT: len(judgments) - len(answered)},
    )


def _parsed(source: Source, tree: Any, key: str, parse: Callable[[Record], T]) -> dict[str, T]:
    """Parse the objects of a list by their positions, from 0, which are their ids.

    Raises
    ------
    DataError
        If there is no such list; and, through ``source.rejects``, if ``parse`` refuses an object.
    """
    entries = tree.get(key) if isinstance(tree, dict) else None
    if not isinstance(entries, list):
        problem, fix = f"not the DORIS-MAE data set: no list {key!r}", "download it again"
        raise DataError(problem, path=source.paths[0], fix=fix)
    records = [
        Record(source.paths[0], number, entry if isinstance(entry, dict) else {})
        for number, entry in enumerate(entries, start=1)
    ]
    named = source.rejects.keep(records, lambda record: (str(record.line - 1), parse(record)))
    return dict(named)


def _query(record: Record) -> tuple[Text, list[str], set[str]]:
    """Return a query, its pool of abstracts, and the ids of its aspects and their sub-aspects."""
    tree = record.fields.get("aspects")
    if not isinstance(tree, dict):
        fix = "write {aspect: [sub-aspect, ...]}"
        raise record.error("query has no aspects", value=tree, fix=fix)
    parts = Record(record.path, record.line, tree)
    aspects = {part for aspect in tree for part in (aspect, *parts.identifiers(aspect))}
    return request(record, "query_text"), record.identifiers("candidate_pool"), aspects


def _annotation(record: Record) -> tuple[str, str, int]:
    """Return the aspect, the abstract and the score of a judgment."""
    return record.identifier("aspect_id"), record.identifier("abstract_id"), grade_of(record)
