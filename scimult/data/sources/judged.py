"""Judged queries: what BEIR's layout and tables of one's own share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from scimult.data.lines import Record, Rejects
from scimult.data.sources.raw import RawSource
from scimult.data.sources.readers import read_delimited, renamed

QRELS_COLUMNS = {"query-id": "query-id", "paper-id": "corpus-id", "score": "score"}


def read_qrels(paths: Iterable[Path], rejects: Rejects) -> Iterator[Record]:
    """Yield the rows of BEIR's qrels with query-id, paper-id and score.

    Raises
    ------
    DataError
        If a file lacks a column; and, through ``rejects``, at a bad row.
    """
    for path in paths:
        columns = tuple(QRELS_COLUMNS.values())
        rows = read_delimited(path, "\t", rejects, columns=columns, quoted=False)
        yield from renamed(rows, QRELS_COLUMNS)


def answered_queries(rows: Iterable[Record], threshold: float) -> set[str]:
    """Return the ids of the queries that have a positive.

    Bad rows are passed over: ``write_judgments`` meets them again, and rejects them.
    """
    quiet = Rejects(skip_bad=True)
    judged = quiet.keep(rows, lambda row: (row.identifier("query-id"), row.number("score", 1)))
    return {query for query, score in judged if score >= threshold}


def write_judgments(
    rows: Iterable[Record], answered: set[str], raw: RawSource, rejects: Rejects
) -> None:
    """Write the judgments of answered queries and count those of the others.

    A row without a score has score 1.
    """

    def add(record: Record) -> None:
        query, score = record.identifier("query-id"), record.number("score", 1)
        paper = record.identifier("paper-id")
        if query in answered:
            raw.judgment(record, query, paper, score)
        else:
            raw.counts["judgments of queries without a positive"] += 1

    for _ in rejects.keep(rows, add):
        pass
