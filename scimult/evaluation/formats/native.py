"""Our own layout: BEIR folders, and papers with labels or numbers.

``corpus.jsonl``, ``queries.jsonl`` and ``qrels/<split>.tsv`` (with ``candidates.tsv`` for
reranking), or ``papers.jsonl`` with a label file and ``split.csv``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from scimult.data.judgments import QUERY, read_judgments
from scimult.data.packed import packed_or_plain, unpacked_name
from scimult.data.records import Record, Rejects
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.formats.checks import NOT_ASKED, Source, Targets, hold_out
from scimult.evaluation.records import (
    QUERY_ID,
    Judgments,
    by_id,
    label_with_names,
    labelled_paper,
    paper,
    query_paper,
    read_pairs,
    read_split,
    request,
)
from scimult.evaluation.task_data import Dataset, PaperSet
from scimult.types import Text

ALSO_RANKED = "a query is also the document of its id, which mode=beir leaves out as BEIR does"


def needed(benchmark: Benchmark, folder: Path) -> list[str]:
    """Return the files that the benchmark requires."""
    if benchmark.is_classification or benchmark.probe:
        names = [benchmark.texts or "papers.jsonl"]
        if benchmark.probe is None:
            names += [benchmark.labels] if benchmark.labels else []
        elif benchmark.probe.held_out is None:
            names.append("split.csv")
    else:
        qrels = [f"qrels/{split}.tsv" for split in benchmark.splits]
        texts, queries = benchmark.texts or "corpus.jsonl", benchmark.queries or "queries.jsonl"
        names = [texts, queries, *([benchmark.judgments] if benchmark.judgments else qrels)]
    if benchmark.protocol == "rerank":
        names.append("candidates.tsv")
    return names


def read(source: Source) -> Dataset | PaperSet:
    """Read a folder in our own layout."""
    if source.benchmark.probe:
        return _read_probe(source)
    if source.benchmark.is_classification:
        return _read_labelled(source)
    return _read_retrieval(source)


def _read_retrieval(source: Source) -> Dataset:
    """Read a folder in BEIR layout, with ``candidates.tsv`` for reranking."""
    benchmark, paths, rejects = source.benchmark, source.paths, source.rejects
    is_search = benchmark.protocol == "search"
    # BEIR's own corpora have documents without text (one in TREC-COVID), and rank them.
    as_beir = is_search and benchmark.nothing_relevant == "zero"
    corpus = by_id(paths[0], "_id", _document if as_beir else _paper, rejects)
    identifier = f"_id|{QUERY_ID}" if benchmark.queries else "_id"
    queries = by_id(paths[1], identifier, request if is_search else query_paper, rejects)
    split = len(paths) - (benchmark.protocol == "rerank")
    qrels, lists = paths[2:split], paths[split:]
    unjudged: Judgments = {query: {} for query in queries}
    judgments = {**unjudged, **read_pairs(qrels, queries, rejects, corpus)}
    not_asked = 0
    if benchmark.nothing_relevant == "zero":
        asked = {query: text for query, text in queries.items() if judgments[query]}
        not_asked = len(queries) - len(asked)
    else:
        # Outside a folder of splits, other tables lie next to the judgments.
        is_split = qrels[0].parent.name == "qrels"
        elsewhere = _judged_elsewhere(qrels, rejects) if is_split else set()
        asked = {
            name: queries[name] for name in queries if judgments[name] or name not in elsewhere
        }
    listed = {**unjudged, **read_pairs(lists, queries, rejects, corpus)} if lists else None
    return source.ranked_set(
        asked,
        corpus,
        judgments,
        judged_in=qrels[0],
        listed=listed,
        listed_in=lists[0] if lists else None,
        remarks={
            NOT_ASKED: not_asked,
            ALSO_RANKED: _also_ranked(asked, corpus) if benchmark.mode == "default" else 0,
        },
    )


def _paper(record: Record) -> Text:
    return paper(record, "text")


def _document(record: Record) -> Text:
    """Return a document of a corpus; one whose text is blank stays."""
    names = ("title", "text", "abstract")
    is_blank = "text" in record.fields and not any(record.text(name, "").strip() for name in names)
    return Text("paper", "") if is_blank else _paper(record)


def _also_ranked(queries: Mapping[str, Text], corpus: Mapping[str, Text]) -> int:
    """Count requests whose text is that of the document with their id."""

    def is_document(name: str, query: Text) -> bool:
        document = corpus.get(name)
        if document is None or query.kind != "query":
            return False
        return query.joined.split() in (document.joined.split(), document.body.split())

    return sum(is_document(*item) for item in queries.items())


def _judged_elsewhere(paths: Sequence[Path], rejects: Rejects) -> set[str]:
    """Return the queries judged in other splits, which this one need not judge."""
    tables = sorted(paths[0].parent.glob("*.tsv*"))
    return {
        record.identifier(QUERY)
        for path in tables
        if path not in paths and unpacked_name(path).endswith(".tsv")
        for record in read_judgments(path, rejects)
    }


def _read_labelled(source: Source) -> Dataset:
    """Read ``papers.jsonl`` with label ids, ``split.csv`` if there is one, and the label file."""
    benchmark, paths, rejects = source.benchmark, source.paths, source.rejects
    papers = by_id(paths[0], "id", labelled_paper, rejects)
    if benchmark.labels:
        labels = by_id(paths[1], "id", label_with_names, rejects)
    else:
        names = {label for _, labels in papers.values() for label in labels}
        labels = {name: (Text("label", name), [name]) for name in sorted(names)}
    split = packed_or_plain(source.folder / "split.csv")
    if split.exists():
        paths = [*paths, split]
        splits = read_split(split, benchmark.splits, papers, rejects)
        papers = {paper: papers[paper] for part in benchmark.splits for paper in splits[part]}
    return source.labelled_set(papers, labels, paths)


def _read_probe(source: Source) -> PaperSet:
    """Read ``papers.jsonl`` with labels or numbers, and ``split.csv`` if there is one."""
    benchmark, paths, rejects = source.benchmark, source.paths, source.rejects
    probe = benchmark.probe
    assert probe is not None
    papers = by_id(
        paths[0],
        "id",
        lambda record: (paper(record, "abstract"), target_of(record, benchmark)),
        rejects,
    )
    texts = {paper: text for paper, (text, _) in papers.items()}
    targets: Targets = {paper: target for paper, (_, target) in papers.items()}
    if probe.held_out is not None:
        return source.paper_set(texts, *hold_out(targets, probe.held_out))
    members = read_split(paths[1], ["train", *benchmark.splits], texts, rejects)
    train = {paper: targets[paper] for paper in members["train"]}
    test = {paper: targets[paper] for part in benchmark.splits for paper in members[part]}
    return source.paper_set(texts, train, test)


def target_of(
    record: Record, benchmark: Benchmark, field: str | None = None
) -> tuple[list[str], float]:
    """Return the labels of a record, one name or a list of names, or else its number.

    Raises
    ------
    DataError
        If there is none, or several labels without ``multi_label``.
    """
    probe = benchmark.probe
    assert probe is not None
    field = field or probe.target
    if benchmark.protocol == "regression_linear":
        return [], record.number(field)
    value = record.fields.get(field)
    parts = [record]
    if isinstance(value, list):
        parts = [Record(record.path, record.line, {field: item}) for item in value]
    labels = [part.identifier(field) for part in parts]
    if not labels and not probe.multi_label:
        raise record.error("paper has no label", fix="label or remove it")
    if len(labels) > 1 and not probe.multi_label:
        fix = "set probe.multi_label: true"
        raise record.error("paper has several labels", value=labels, fix=fix)
    return labels, 0.0
