"""Judged queries: what BEIR's layout and your own tables share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isfinite
from pathlib import Path

from scimult.data.lines import Record, Rejects, read_lines
from scimult.data.rows import read_delimited
from scimult.preparation.sources.raw import RawSource
from scimult.preparation.sources.readers import renamed

QRELS_COLUMNS = {"query-id": "query-id", "paper-id": "corpus-id", "score": "score"}
# Layouts without a header, by their number of values: BEIR's own, and TREC's.
HEADERLESS = {
    3: ("query-id", "corpus-id", "score"),
    4: ("query-id", "iteration", "corpus-id", "score"),
}


def read_qrels(paths: Iterable[Path], rejects: Rejects) -> Iterator[Record]:
    """Yield the rows of qrels with query-id, paper-id and score.

    BEIR's have a header; without one, three values are taken for BEIR's and four, split at tabs
    or spaces, for TREC's (query, iteration, document, relevance).

    Raises
    ------
    DataError
        If a file lacks a column; and, through ``rejects``, at a bad row.
    """
    for path in paths:
        separator, header = _layout(path)
        columns = () if header else tuple(QRELS_COLUMNS.values())
        choices = {"columns": columns, "header": header}
        rows = read_delimited(path, separator, rejects, **choices, quoted=False)
        yield from renamed(rows, QRELS_COLUMNS)


def _layout(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return what separates the values of a qrels file, and its columns if it has no header."""
    first = next((line for _, line in read_lines(path, Rejects(skip_bad=True))), "")
    separator = "\t" if "\t" in first else " "
    values = first.split(separator)
    header = HEADERLESS.get(len(values), ())
    return (separator, header) if header and _is_number(values[-1]) else ("\t", ())


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False


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
