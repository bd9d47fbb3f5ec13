"""What readers share: which queries can be scored, and arrays from judgments by id.

Bad records end the work, or with ``--skip-bad`` are counted and named; either way no query,
document or judgment disappears silently.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from scimult.data.lines import Rejects
from scimult.data.ragged import Ragged
from scimult.errors import DataError
from scimult.evaluation.benchmark import Benchmark
from scimult.evaluation.records import Judgments
from scimult.evaluation.task_data import Dataset, PaperSet
from scimult.retrieval.runs import Qrels
from scimult.types import Text

NOTHING_RELEVANT = (
    "nothing is relevant to the query (trec_eval counts it as 0; leaving it out raises the mean)"
)
COUNTS_AS_0 = "nothing is relevant to the query, which counts as 0"
NOT_ASKED = "query has no judgment and is not asked"

Targets = dict[str, tuple[list[str], float]]
"""Paper id to its labels and its number, of which one is meant."""


def keep(
    queries: Iterable[str],
    problem_of: Callable[[str], str | None],
    path: Path,
    rejects: Rejects,
    fix: str,
) -> list[str]:
    """Return the queries without a problem; the others are rejected with it.

    Raises
    ------
    DataError
        If none is left.
    """
    kept = []
    for query in queries:
        problem = problem_of(query)
        if problem is None:
            kept.append(query)
        else:
            rejects.reject(DataError(problem, path=path, value=query, fix=fix))
    if not kept:
        raise DataError("no query can be scored", path=path, fix="check that the ids agree")
    return kept


def scorable(
    queries: Iterable[str],
    judgments: Judgments,
    path: Path,
    rejects: Rejects,
    benchmark: Benchmark,
) -> list[str]:
    """Return the queries that can be scored.

    They have a judgment, and a relevant candidate unless the benchmark counts those without as 0.
    """

    def problem_of(query: str) -> str | None:
        if not judgments[query]:
            return "query has no judgment"
        counts_as_0 = benchmark.nothing_relevant == "zero"
        return None if counts_as_0 or _has_relevant(judgments[query]) else NOTHING_RELEVANT

    fix = "judge it, leave it out, or set nothing_relevant: zero to count it as 0 as trec_eval does"
    return keep(queries, problem_of, path, rejects, fix)


def _has_relevant(judged: Mapping[str, int]) -> bool:
    return any(grade > 0 for grade in judged.values())


def single_label(
    papers: Sequence[str], judgments: Judgments, path: Path, rejects: Rejects
) -> list[str]:
    """Return the papers with one label."""

    def problem_of(paper: str) -> str | None:
        several = len(judgments[paper]) > 1
        return "paper has several labels, coarse classification takes one" if several else None

    fix = "keep one label or use the protocol classification_fine"
    return keep(papers, problem_of, path, rejects, fix)


def listed_too(
    queries: Sequence[str], judgments: Judgments, listed: Judgments, path: Path, rejects: Rejects
) -> list[str]:
    """Return the queries whose candidates include everything relevant to them."""

    def problem_of(query: str) -> str | None:
        if not listed[query]:
            return "query has no candidates"
        relevant = {document for document, score in judgments[query].items() if score > 0}
        return None if relevant <= listed[query].keys() else "a relevant one is not listed"

    return keep(queries, problem_of, path, rejects, "list it as a candidate of the query")


def qrels_of(judgments: Sequence[Mapping[str, int]], rows: Mapping[str, int]) -> Qrels:
    """Return judgments by id as arrays over candidate rows."""
    grades = Ragged.from_lists(judged.values() for judged in judgments)
    return Qrels(lists_of(judgments, rows), grades, candidates=len(rows))


def lists_of(listed: Sequence[Iterable[str]], rows: Mapping[str, int]) -> Ragged:
    """Return lists of candidate ids as lists of rows."""
    return Ragged.from_lists([rows[document] for document in documents] for documents in listed)


def ranked_set(
    name: str,
    benchmark: Benchmark,
    queries: Mapping[str, Text],
    documents: Mapping[str, Text],
    judgments: Judgments,
    rejects: Rejects,
    *,
    files: Sequence[Path],
    judged_in: Path,
    listed: Judgments | None = None,
    listed_in: Path | None = None,
    groups: Mapping[str, str] | None = None,
    remarks: Mapping[str, int] | None = None,
) -> Dataset:
    """Put queries, documents and judgments together, keeping the queries that can be scored.

    Parameters
    ----------
    name, benchmark
        The set.
    queries, documents, judgments : mapping
        By id.
    rejects : Rejects
        Takes queries that cannot be scored.
    files : sequence of Path
        Everything that was read.
    judged_in : Path
        The file of the judgments, which messages name.
    listed : mapping, optional
        The candidates of each query, where it does not rank all documents.
    listed_in : Path, optional
        Their file, where they have one of their own.
    groups : mapping, optional
        The group of each query.
    remarks : mapping, optional
        What a reader of the scores should know, and how often it occurred.

    Raises
    ------
    DataError
        If no query is left, or none has anything relevant.
    """
    kept = scorable(queries, judgments, judged_in, rejects, benchmark)
    if listed is not None:
        kept = listed_too(kept, judgments, listed, listed_in or judged_in, rejects)
    remarks, without = (
        dict(remarks or {}),
        sum(not _has_relevant(judgments[query]) for query in kept),
    )
    if without == len(kept):
        fix = "check the judgments"
        raise DataError("no query has anything relevant", path=judged_in, fix=fix)
    if without:
        remarks[COUNTS_AS_0] = without
    rows = {document: row for row, document in enumerate(documents)}
    return Dataset(
        name=name,
        task=benchmark.task,
        query_ids=kept,
        queries=[queries[query] for query in kept],
        candidate_ids=list(documents),
        candidates=list(documents.values()),
        qrels=qrels_of([judgments[query] for query in kept], rows),
        lists=None if listed is None else lists_of([listed[query] for query in kept], rows),
        files=list(files),
        similarity=benchmark.similarity,
        groups=[groups[query] for query in kept] if groups else [],
        remarks=remarks,
    )


def paper_set(
    name: str,
    benchmark: Benchmark,
    papers: Mapping[str, Text],
    train: Targets,
    test: Targets,
    files: Sequence[Path],
) -> PaperSet:
    """Put papers and their targets together, training papers first.

    Raises
    ------
    DataError
        If one side has no paper.
    """
    for what, side in (("training", train), ("test", test)):
        if not side:
            raise DataError(f"{name} has no {what} paper", path=files[0], fix="check the split")
    ids = [*train, *test]
    targets = [*train.values(), *test.values()]
    is_regression = benchmark.protocol == "regression_linear"
    return PaperSet(
        name=name,
        task=benchmark.task,
        ids=ids,
        texts=[papers[paper] for paper in ids],
        train_rows=np.arange(len(train)),
        test_rows=np.arange(len(train), len(ids)),
        labels=[] if is_regression else [labels for labels, _ in targets],
        values_N=np.array([value for _, value in targets] if is_regression else []),
        files=list(files),
    )


def hold_out(targets: Targets, share: float) -> tuple[Targets, Targets]:
    """Split papers by the SHA-256 of their ids; return those kept and the share held out."""
    order = sorted(targets, key=lambda paper: hashlib.sha256(paper.encode()).digest())
    held = set(order[: max(1, round(share * len(order)))])
    kept = {paper: target for paper, target in targets.items() if paper not in held}
    return kept, {paper: target for paper, target in targets.items() if paper in held}


def known_documents(
    judgments: Judgments, documents: Mapping[str, Text], path: Path, rejects: Rejects
) -> Judgments:
    """Return the judgments of documents that are there; the others are rejected."""
    kept: Judgments = {}
    for query, judged in judgments.items():
        for document in judged:
            if document not in documents:
                fix = "get its text, or leave the judgment out"
                problem = "judged paper has no text"
                rejects.reject(DataError(problem, path=path, value=(query, document), fix=fix))
        kept[query] = {
            document: grade for document, grade in judged.items() if document in documents
        }
    return kept
