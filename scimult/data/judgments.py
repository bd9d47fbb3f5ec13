"""Read relevance judgments, one per row, in every public layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path

from scimult.data.lines import read_jsonl, read_lines
from scimult.data.packed import unpacked_name
from scimult.data.records import Record, Rejects
from scimult.data.tables import read_delimited

QUERY, PAPER, SCORE = "query-id", "paper-id", "score"
"""Field names of a judgment, whatever the file calls them."""
TABLE = {QUERY: "query-id", PAPER: "corpus-id", SCORE: "score"}
LINES = {QUERY: "query_id", PAPER: "cand_id", SCORE: "score"}
# Headerless tables by their number of columns: BEIR's and TREC's.
HEADERLESS = {
    3: ("query-id", "corpus-id", "score"),
    4: ("query-id", "iteration", "corpus-id", "score"),
}


def read_judgments(path: Path, rejects: Rejects) -> Iterator[Record]:
    """Yield ``query-id``, ``paper-id`` and ``score`` of every judged pair.

    ``.jsonl`` has ``query_id``, ``cand_id`` and ``score`` (SciRepEval). ``.qrel`` has four
    space-separated values (SciDocs, in TREC's order: query, iteration, document, relevance).
    Anything else is a table: BEIR's with a header, or else three columns in BEIR's order or four,
    split at tabs or any number of spaces, in TREC's; ``.csv`` at commas or semicolons, too.

    Raises
    ------
    DataError
        If the file does not exist or lacks a column; and, through ``rejects``, for a bad row.
    """
    name = unpacked_name(path)
    if name.endswith(".jsonl"):
        yield from _renamed(read_jsonl(path, rejects), LINES, rejects)
        return
    is_csv = name.endswith(".csv")
    separator, header = (None, HEADERLESS[4]) if name.endswith(".qrel") else _layout(path, is_csv)
    columns = () if header else tuple(TABLE.values())
    options = {"columns": columns, "header": header}
    rows = read_delimited(path, separator, rejects, **options, quoted=is_csv)
    yield from _renamed(rows, TABLE, rejects)


def grade_of(record: Record) -> int:
    """Return the score of a pair as an integer grade.

    Raises
    ------
    DataError
        If it is not a whole number of at most 64 bits.
    """
    score = record.fields.get(SCORE)
    if isinstance(score, str) and _is_number(score) and not score.strip("+- ").isdecimal():
        score = float(score)  # a table's "1.0"
    if not isinstance(score, float):
        return record.integer(SCORE)
    if not score.is_integer():
        fix = "use whole numbers, such as 0, 1 and 2"
        raise record.error("field 'score' is not whole", value=score, fix=fix)
    return Record(record.path, record.line, {SCORE: int(score)}).integer(SCORE)


def _renamed(
    rows: Iterator[Record], columns: Mapping[str, str], rejects: Rejects
) -> Iterator[Record]:
    """Yield the rows with our field names; only the score may be missing."""
    for row in rows:
        fields = {new: row.fields[old] for new, old in columns.items() if old in row.fields}
        missing = [columns[new] for new in (QUERY, PAPER) if new not in fields]
        if missing:
            fix = f"add {missing[0]!r}, or leave the record out with --skip-bad"
            error = row.error(f"missing field {missing[0]!r}", value=list(row.fields), fix=fix)
            rejects.reject(error)
            continue
        yield Record(row.path, row.line, fields)


def _layout(path: Path, is_csv: bool) -> tuple[str | None, tuple[str, ...]]:
    """Return the separator of a table (``None``: any spaces), its columns if it has no header."""
    first = next((line for _, line in read_lines(path, Rejects(skip_bad=True))), "")
    marks = ("\t", ",", ";") if is_csv else ("\t",)
    separator = next((mark for mark in marks if mark in first), None)
    values = first.split(separator)
    header = HEADERLESS.get(len(values), ())
    is_bare = header and _is_number(values[-1])
    return (separator, header) if is_bare else (separator or "\t", ())


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False
