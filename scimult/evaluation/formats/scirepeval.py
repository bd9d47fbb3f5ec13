"""SciRepEval's local layout: texts in one JSON lines file, targets or judgments in a folder.

Texts are documents (``doc_id``, ``title``, ``abstract``, ...) or, for ranking, records of a
``query`` with its ``candidates``. Targets are ``train`` and ``test`` tables (``paper_id``,
``label``; ``.csv``, or ``.jsonl`` for lists of labels), judgments ``test_qrel.jsonl``
(``query_id``, ``cand_id``, ``score``). Unlike in the original, a paper without text is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scimult.data.lines import read_jsonl
from scimult.data.packed import packed_or_plain, unpacked_name
from scimult.data.ragged import Ragged
from scimult.data.records import Record, Rejects
from scimult.data.tables import read_table
from scimult.errors import DataError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.formats.checks import Source, Targets, qrels_of
from scimult.evaluation.formats.native import target_of
from scimult.evaluation.records import Judgments, read_pairs, read_targets, request
from scimult.evaluation.task_data import HARD, SOFT, Dataset, PaperSet, Reviewers
from scimult.types import SEPARATOR, Text


def needed(benchmark: Benchmark, folder: Path) -> list[str]:
    """Return the files that the benchmark requires."""
    if benchmark.probe:
        names = [_table(folder, split) for split in ("train", *benchmark.splits)]
    elif benchmark.protocol == "reviewer_matching":
        names = ["test_hard_qrel.jsonl", "test_soft_qrel.jsonl", "reviewer_metadata.jsonl"]
    else:
        names = [f"{split}_qrel.jsonl" for split in benchmark.splits]
    return [*names, benchmark.texts or "meta.jsonl"]


def _table(folder: Path, split: str) -> str:
    lines = packed_or_plain(folder / f"{split}.jsonl")
    return f"{split}.jsonl" if lines.exists() else f"{split}.csv"


def read(source: Source) -> Dataset | PaperSet:
    """Read texts, then targets or judgments."""
    *paths, texts = source.paths
    documents, queries = read_texts(source, texts)
    if source.benchmark.probe:
        train, test = _targets(source, [paths[:1], paths[1:]], documents)
        return source.paper_set(documents, train, test)
    if source.benchmark.protocol == "reviewer_matching":
        return _reviewers(source, documents)
    queries = queries or documents
    judgments = read_pairs(paths, queries, source.rejects)
    judgments = source.known_documents(judgments, documents)
    asked = {query: queries[query] for query in judgments}
    return source.ranked_set(asked, documents, judgments, listed=judgments)


def read_texts(source: Source, path: Path) -> tuple[dict[str, Text], dict[str, Text]]:
    """Return documents and queries by id; without query records there are no queries.

    A document that several queries list is read once; the same id with two texts is rejected.
    """
    documents: dict[str, Text] = {}
    queries: dict[str, Text] = {}
    for record in read_jsonl(path, source.rejects):
        if "query" not in record.fields:
            add_text(documents, record, source)
            continue
        for query in source.rejects.keep([record], query_record):
            add_text(queries, query, source)
        for candidate in candidate_records(record, source.rejects):
            add_text(documents, candidate, source)
    return documents, queries


def query_record(record: Record) -> Record:
    """Return the query of a ranking record as its own record."""
    query = record.fields.get("query")
    if query is None:
        raise record.error("record has no query", fix="add 'query' or remove the record")
    fields = query if isinstance(query, dict) else {**record.fields, "query": query}
    return Record(record.path, record.line, fields)


def candidate_records(record: Record, rejects: Rejects) -> list[Record]:
    """Return the candidates of a ranking record as records; reject it if it has none."""
    candidates = record.fields.get("candidates")
    if not isinstance(candidates, list) or not candidates:
        fix = "list its candidates or remove the query"
        rejects.reject(record.error("query has no candidates", fix=fix))
        return []
    objects = [fields for fields in candidates if isinstance(fields, dict)]
    if len(objects) < len(candidates):
        fix = 'write {"doc_id": ..., "title": ...}'
        rejects.reject(record.error("a candidate is not an object", value=candidates, fix=fix))
    return [Record(record.path, record.line, fields) for fields in objects]


def document_id(record: Record) -> str:
    """Return ``doc_id``, or ``paper_id`` (MDCR) or ``corpus_id`` (training files)."""
    present = (name for name in ("doc_id", "paper_id") if name in record.fields)
    return record.identifier(next(present, "corpus_id"))


def store_text(texts: dict[str, Text], record: Record, benchmark: Benchmark) -> str:
    """Add a text under its id and return the id.

    Raises
    ------
    DataError
        If the record has no id or text, or its id has another text.
    """
    name, text = document_id(record), text_of(record, benchmark)
    if texts.setdefault(name, text) != text:
        raise record.error("id has two texts", value=name, fix="keep one of them")
    return name


def add_text(texts: dict[str, Text], record: Record, source: Source) -> None:
    """Add a text under its id, or reject the record."""
    try:
        store_text(texts, record, source.benchmark)
    except DataError as error:
        source.rejects.reject(error)


def text_of(record: Record, benchmark: Benchmark) -> Text:
    """Return a text query, or a document made of the benchmark's fields."""
    if isinstance(record.fields.get("query"), str):
        return request(record, "query")
    first, *others = benchmark.fields
    parts = [part for field in others if (part := _plain(record.fields.get(field)))]
    text = Text("paper", record.text(first, ""), SEPARATOR.join(parts))
    if not (text.title.strip() or text.body.strip()):
        names = ", ".join(benchmark.fields)
        raise record.error(f"{names} are all empty", fix="add a text or remove the record")
    return text


def _plain(value: Any) -> str:
    """Return a field as text, whole numbers such as years without a decimal point; 0 is none."""
    if not value:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _targets(
    source: Source, parts: Sequence[Sequence[Path]], documents: Mapping[str, Text]
) -> list[Targets]:
    """Read ``paper_id`` and ``label`` of each part, of one or several files."""
    benchmark, rejects = source.benchmark, source.rejects
    tables = [[record for path in part for record in _rows(path, rejects)] for part in parts]
    given = [record.fields.get("label") for rows in tables for record in rows]
    width = _width_of_flags(given) if benchmark.probe and benchmark.probe.multi_label else None

    def target(record: Record) -> tuple[list[str], float]:
        flags = record.fields.get("label")
        if width is None or not isinstance(flags, list):
            return target_of(record, benchmark, "label")
        if len(flags) != width:
            problem = f"label has no 0 or 1 for each of the {width} labels"
            raise record.error(problem, value=flags, fix="correct or remove the line")
        return [str(position) for position, flag in enumerate(flags) if flag], 0.0

    return [read_targets(rows, "paper_id", documents, target, rejects) for rows in tables]


def _rows(path: Path, rejects: Rejects) -> Iterator[Record]:
    if unpacked_name(path).endswith(".jsonl"):
        return read_jsonl(path, rejects)
    return read_table(path, ["paper_id", "label"], rejects)


def _width_of_flags(given: Sequence[Any]) -> int | None:
    """Return the number of labels if each list has a 0 or 1 for every label, as SciRepEval's have.

    None if the lists name labels: these have other names than 0 and 1, or none twice and lists of
    several lengths.
    """
    lists = [value for value in given if isinstance(value, list)]
    lengths = Counter(map(len, lists))
    if not lists or any(flag not in (0, 1) for value in lists for flag in value):
        return None
    if len(lengths) > 1 and all(len(set(value)) == len(value) for value in lists):
        return None
    return lengths.most_common(1)[0][0]


def _reviewers(source: Source, documents: Mapping[str, Text]) -> Dataset:
    """Read reviewers with their papers, and merge hard and soft judgments into grades.

    A reviewer judged in either file is ranked; one that is missing in a file is not relevant in
    that file's sense, and is counted.
    """
    *graded, owned_in, _ = source.paths
    members = dict(_members(owned_in, documents, source.rejects))
    hard, soft = (_reviewer_grades(source, path, documents, members) for path in graded)
    if hard.keys() != soft.keys():
        differing = min(hard.keys() ^ soft.keys())
        problem = "query is in only one of the hard and soft judgments"
        fix = "download both files again"
        raise DataError(problem, path=graded[1], value=differing, fix=fix)
    merged: Judgments = {
        query: {
            member: HARD * (hard[query].get(member, 0) > 0) + SOFT * (judged.get(member, 0) > 0)
            for member in {**judged, **hard[query]}
        }
        for query, judged in soft.items()
    }
    query_ids = source.keep(
        merged,
        lambda query: None if merged[query] else "query has no judgment",
        "judge or remove the query",
        graded[1],
    )
    rows = {paper: row for row, paper in enumerate(documents)}
    reviewer_rows = {reviewer: row for row, reviewer in enumerate(members)}
    papers = Ragged.from_lists([rows[paper] for paper in owned] for owned in members.values())
    lists = [sorted({rows[p] for r in merged[query] for p in members[r]}) for query in query_ids]
    nothing = Ragged.empty(len(query_ids))
    return Dataset(
        name=source.name,
        task=source.benchmark.task,
        query_ids=query_ids,
        queries=[documents[query] for query in query_ids],
        candidate_ids=list(documents),
        candidates=list(documents.values()),
        qrels=qrels_of([{} for _ in query_ids], rows),
        lists=Ragged.from_lists(lists) if lists else nothing,
        files=source.paths,
        similarity=source.benchmark.similarity,
        reviewers=Reviewers(
            list(members), papers, qrels_of([merged[query] for query in query_ids], reviewer_rows)
        ),
        remarks={**_judged_once("hard", hard, soft), **_judged_once("soft", soft, hard)},
    )


def _judged_once(kind: str, judged: Judgments, other: Judgments) -> dict[str, int]:
    """Count the reviewers that one file judges and the other does not, with an example."""
    only = [(query, name) for query in judged for name in judged[query] if name not in other[query]]
    if not only:
        return {}
    query, reviewer = only[0]
    example = f"such as {reviewer} for {query}"
    return {f"reviewer is judged in the {kind} file only, {example}, and is ranked": len(only)}


def _members(
    path: Path, documents: Mapping[str, Text], rejects: Rejects
) -> Iterator[tuple[str, list[str]]]:
    """Yield every reviewer with the papers that have a text; reject the others."""
    seen: set[str] = set()

    def parse(record: Record) -> tuple[str, list[str]]:
        name = record.identifier("r_id")
        papers = record.identifiers("papers")
        if name in seen:
            raise record.error("duplicate reviewer", value=name, fix="keep one of the lines")
        if not papers:
            raise record.error("reviewer has no papers", value=name, fix="remove the reviewer")
        seen.add(name)
        for paper in papers:
            if paper not in documents:
                fix = "add its text or remove it"
                problem = "reviewer's paper has no text"
                rejects.reject(record.error(problem, value=(name, paper), fix=fix))
        # A paper listed twice counts twice among a reviewer's best, as in SciRepEval.
        return name, [paper for paper in papers if paper in documents]

    yield from rejects.keep(read_jsonl(path, rejects), parse)


def _reviewer_grades(
    source: Source, path: Path, documents: Mapping[str, Text], members: Mapping[str, list[str]]
) -> Judgments:
    grades = read_pairs([path], documents, source.rejects)
    for query, judged in grades.items():
        for reviewer in [name for name in judged if not members.get(name)]:
            fix = "add the reviewer's papers, or remove the judgment"
            source.reject("judged reviewer has no papers", (query, reviewer), fix, path)
            del judged[reviewer]
    return grades
