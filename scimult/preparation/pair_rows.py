"""Read the rows of pair and target tables, in SQL where a file is as usual, else in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from scimult.data.records import Record
from scimult.data.sql import literal, quoted, table_of
from scimult.data.tables import read_header, read_table
from scimult.data.text_files import raw_columns
from scimult.preparation.file_rows import FileRows, numbered_lines
from scimult.preparation.targets import PAPER_COLUMN

_OPTIONAL = ("teacher", "negative-id", "score", "clicked")


def table_rows(
    path: Path,
    columns: Sequence[str],
    values: Mapping[str, tuple[str, pa.DataType]],
    parse: Callable[[Record], Mapping[str, Any]],
) -> FileRows:
    """Return how to read a table with the required ``columns``; see ``read_table``.

    ``values`` has SQL over the columns and the type of each value of a row, by name; a column that
    the table does not have is an empty string. ``parse`` returns the same values from a record.
    """
    sql = None
    schema = pa.schema([("line", pa.int64()), *((n, kind) for n, (_, kind) in values.items())])
    wanted = [column.partition("|")[0] for column in columns]
    wanted += [name for name in _OPTIONAL if name not in wanted]
    select = ", ".join(f"{value} AS {name}" for name, (value, _) in values.items())
    written = raw_columns(path)
    if written is not None:
        sql_of = {name: f"coalesce({quoted(name)}::VARCHAR, '')" for name in written}
        file = table_of("read_parquet", [path], "file_row_number=true")
        rows = f"SELECT file_row_number + 1 AS line, {_renamed(sql_of, wanted)} FROM {file}"
        return FileRows(path, f"SELECT line, {select} FROM ({rows})", schema)
    header = read_header(path, columns)
    # SQL takes names that differ only in case for the same.
    if header is not None and len({name.casefold() for name in wanted}) == len(wanted):
        line, names, separator = header
        sql_of = {name: f"v[{index}]" for index, name in enumerate(names, start=1)}
        # Quoted fields may hold separators and line ends: those files are left to Python.
        plain = "true" if separator == "\t" else "NOT contains(text, '\"')"
        sql = f"""
            SELECT line, {select}
            FROM (SELECT line, {_renamed(sql_of, wanted)}
                FROM (SELECT line, text, string_split(text, {literal(separator)}) AS v
                    FROM ({numbered_lines(path)}) WHERE line > {line} AND NOT blank(text))
                WHERE CASE WHEN len(v) = {len(names)} AND {plain} THEN true
                    ELSE error('unusual') END)
            """
    return FileRows(path, sql, schema, partial(read_table, path, columns), parse)


def _renamed(sql_of: Mapping[str, str], wanted: Sequence[str]) -> str:
    """Return the wanted columns of a SELECT; empty strings for those without SQL."""
    empty = "''"
    return ", ".join(f"{sql_of.get(name, empty)} AS {quoted(name)}" for name in wanted)


def edge_rows(path: Path) -> FileRows:
    """Return how to read a table of citations."""
    names = ("citing", "cited")
    values = {name: (f"filled({name})", pa.string()) for name in names}
    return table_rows(path, names, values, _edge)


def _edge(record: Record) -> Mapping[str, Any]:
    ids = {name: record.identifier(name) for name in ("citing", "cited")}
    return {"line": record.line, **ids}


def answer_rows(path: Path, kind: str, score_threshold: float) -> FileRows:
    """Return how to read a table of answers."""
    extra = {"positives": (), "clicks": ("clicked",)}.get(kind, ("score",))
    reached = f"number(score) >= {score_threshold!r}"
    positive = {
        # CASE, since OR evaluates both sides, and no number stops the statement.
        "positives": f"CASE WHEN blank(score) THEN true ELSE {reached} END "
        "AND stripped(clicked) <> '0'",
        "clicks": "CASE stripped(clicked) WHEN '0' THEN false WHEN '1' THEN true "
        "ELSE error('unusual') END",
    }
    values = {
        "query": ('filled("query-id")', pa.string()),
        "paper": ('filled("paper-id")', pa.string()),
        "positive": (positive.get(kind, reached), pa.bool_()),
        "teacher": ("CASE WHEN blank(teacher) THEN NULL ELSE number(teacher) END", pa.float64()),
        "negative": ('stripped("negative-id")', pa.string()),
    }
    parse = partial(_answer, kind=kind, score_threshold=score_threshold)
    return table_rows(path, ("query-id", PAPER_COLUMN, *extra), values, parse)


def _answer(record: Record, kind: str, score_threshold: float) -> Mapping[str, Any]:
    return {
        "line": record.line,
        "query": record.identifier("query-id"),
        "paper": record.identifier("paper-id"),
        "positive": _is_positive(record, kind, score_threshold),
        "teacher": record.number("teacher") if record.text("teacher", "").strip() else None,
        "negative": record.text("negative-id", "").strip(),
    }


def _is_positive(record: Record, kind: str, score_threshold: float) -> bool:
    if kind == "positives":
        has_score = bool(record.text("score", "").strip())
        reached = not has_score or record.number("score") >= score_threshold
        return reached and record.text("clicked", "").strip() != "0"
    if kind in ("judgments", "links"):
        return record.number("score") >= score_threshold
    clicked = record.text("clicked").strip()
    if clicked not in ("0", "1"):
        raise record.error("field 'clicked' is not 0 or 1", value=clicked, fix="write 0 or 1")
    return clicked == "1"
