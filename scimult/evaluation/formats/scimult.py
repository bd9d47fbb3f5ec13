"""The JSON lines files of the released SciMult evaluation.

Papers have ``paper`` (or ``patient``, ``article``), ``title``, ``abstract`` and ``label`` (a list
of label ids; in coarse sets the row of the label file) or lists of linked papers under
``benchmark.link``; labels have ``label``, ``name`` and ``definition``; name matches have ``paper``
and ``candidate``. In reranking and search, a query holds a ``score`` dictionary of document ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from scimult.data.judgments import SCORE, grade_of
from scimult.data.ragged import Ragged
from scimult.data.records import Record
from scimult.errors import ConfigError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.formats.checks import Source, lists_of
from scimult.evaluation.records import QUERY_ID, by_id, paper, request
from scimult.evaluation.task_data import Dataset
from scimult.types import Text

DOCUMENT_ID = "paper|patient|article"


def needed(benchmark: Benchmark, folder: Path) -> list[str]:
    """Return the files that the benchmark names: papers, then labels or queries, then matches."""
    if benchmark.texts is None:
        problem = "format 'scimult' needs a file of papers"
        raise ConfigError(problem, fix="name it under texts")
    if benchmark.is_classification and benchmark.labels is None:
        problem = "classification in format 'scimult' needs a file of labels"
        raise ConfigError(problem, fix="name it under labels")
    names = [benchmark.texts, benchmark.labels, benchmark.queries, benchmark.matched]
    return [name for name in names if name]


def read(source: Source) -> Dataset:
    """Read papers, then labels, links or scored lists."""
    if source.benchmark.is_classification:
        return _read_labelled(source)
    if source.benchmark.protocol == "link_retrieval":
        return _read_links(source)
    return _read_lists(source)


def _read_labelled(source: Source) -> Dataset:
    paths, rejects = source.paths, source.rejects
    labels = by_id(paths[1], "label", _label, rejects)
    order = list(labels)
    coarse = source.benchmark.protocol == "classification_coarse"
    papers = by_id(
        paths[0],
        DOCUMENT_ID,
        lambda record: (_paper(record), _labels(record, order, coarse)),
        rejects,
    )
    dataset = source.labelled_set(papers, labels, paths)
    if not source.benchmark.matched:
        return dataset
    rows = {label: row for row, label in enumerate(labels)}
    return replace(dataset, matched=_matches(source, dataset.query_ids, rows))


def _paper(record: Record) -> Text:
    return paper(record, "abstract")


def _label(record: Record) -> tuple[Text, list[str]]:
    """Return a label's text, with its first name, and all its names."""
    name = record.fields.get("name")
    names = [name] if isinstance(name, str) else record.strings("name")
    if not names or not names[0].strip():
        raise record.error("field 'name' is empty", fix="name the label")
    return Text("label", names[0], record.text("definition", "")), names


def _labels(record: Record, order: Sequence[str], coarse: bool) -> list[str]:
    """Return label ids; a coarse paper may give its label's row in the label file."""
    value = record.fields.get("label")
    if coarse and isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value < len(order):
            fix = f"use a row from 0 to {len(order) - 1}"
            raise record.error("no label has this row", value=value, fix=fix)
        return [order[value]]
    if isinstance(value, list):
        return record.identifiers("label")
    return [record.identifier("label")]


def _matches(source: Source, papers: Sequence[str], rows: Mapping[str, int]) -> Ragged:
    """Return the label rows that match each paper; the file may have another order."""
    path = source.paths[-1]
    listed = by_id(path, "paper", lambda record: record.identifiers("candidate"), source.rejects)
    for identity in papers:
        if identity not in listed:
            fix = "write a line with an empty list if nothing matches"
            source.reject("paper has no line of matches", identity, fix, path)
        for label in listed.get(identity, []):
            if label not in rows:
                problem = "matched label is not in the label file"
                source.reject(problem, (identity, label), "correct the line", path)
    matching = [
        dict.fromkeys(label for label in listed.get(identity, []) if label in rows)
        for identity in papers
    ]
    return lists_of(matching, rows)


def _read_links(source: Source) -> Dataset:
    """Read papers with the papers linked to them; those without links are not queries."""
    paths, rejects, field = source.paths, source.rejects, source.benchmark.link
    if field is None:
        problem = "link_retrieval in format 'scimult' needs the field of the links"
        raise ConfigError(problem, fix="name it under link")
    documents = by_id(paths[0], DOCUMENT_ID, _paper, rejects)
    entries = by_id(
        paths[-1],
        QUERY_ID if source.benchmark.queries else DOCUMENT_ID,
        lambda record: (_paper(record), record.identifiers(field)),
        rejects,
    )
    queries = {identity: text for identity, (text, links) in entries.items() if links}
    judgments = {identity: dict.fromkeys(entries[identity][1], 1) for identity in queries}
    judgments = source.known_documents(judgments, documents, paths[-1])
    return source.ranked_set(queries, documents, judgments, judged_in=paths[-1])


def _read_lists(source: Source) -> Dataset:
    """Read queries with scored documents, which are the candidates in reranking.

    Without a query file, queries are those papers of the first file that have scores.
    """
    paths, rejects = source.paths, source.rejects
    documents = by_id(paths[0], DOCUMENT_ID, _paper, rejects)
    own_file = source.benchmark.queries is not None
    entries = by_id(paths[-1], QUERY_ID if own_file else DOCUMENT_ID, _query, rejects)
    entries = {identity: entry for identity, entry in entries.items() if entry[1] or own_file}
    queries = {identity: text for identity, (text, _) in entries.items()}
    judgments = {identity: scores for identity, (_, scores) in entries.items()}
    judgments = source.known_documents(judgments, documents, paths[-1])
    listed = judgments if source.benchmark.protocol == "rerank" else None
    return source.ranked_set(queries, documents, judgments, judged_in=paths[-1], listed=listed)


def _query(record: Record) -> tuple[Text, dict[str, int]]:
    """Return a query, as a text or a paper, and its graded documents."""
    scores = record.fields.get(SCORE)
    if not isinstance(scores, dict):
        raise record.error("query has no scores", value=scores, fix='write {"id": grade, ...}')
    graded = {str(key): Record(record.path, record.line, {SCORE: scores[key]}) for key in scores}
    grades = {key: grade_of(entry) for key, entry in graded.items()}
    if "query" not in record.fields:
        return _paper(record), grades
    return request(record, "query"), grades
