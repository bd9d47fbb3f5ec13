"""What DuckDB reads: columns that are SQL expressions, and Semantic Scholar's split tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb

from scimult.data.lines import Record, Rejects, read_jsonl
from scimult.errors import DataError

_FETCHED = 1000
# Types that DuckDB sees in strings: an expression should find the same in JSON as in CSV.
_TEMPORAL = re.compile(r'(?<!["\w])(?:DATE|TIMESTAMP(?:_\w+| WITH TIME ZONE)?|TIME|UUID)(?!["\w])')
_READERS = {
    "json": "read_json({files}, sample_size=20480, maximum_object_size=67108864{more})",
    "csv": "read_csv({files}, all_varchar=true, header=true, max_line_size=16777216{more})",
    "tsv": "read_csv({files}, all_varchar=true, header=true, delim='\\t'{more})",
    "parquet": "read_parquet({files}{more})",
}


def select(
    files: Sequence[Path],
    container: str,
    expressions: Iterable[str],
    columns: Sequence[str] | None = None,
) -> Iterator[Record]:
    """Yield the rows of files: each expression under its own text, and ``columns`` or all.

    ``Record.line`` is the number of the row that the expressions give, for ``unnest`` makes
    several of one.

    Raises
    ------
    DataError
        If an expression does not fit the files, or a file is damaged: the message is DuckDB's.
    """
    stated = ["*"] if columns is None else [_quoted(name) for name in columns]
    chosen = [*stated, *(f"({sql}) AS {_quoted(sql)}" for sql in dict.fromkeys(expressions))]
    with closing(duckdb.connect()) as engine:
        types = _json_types(engine, files) if container == "json" else ""
        for file in files:
            reader = _READERS[container].format(files=_literal(str(file)), more=types)
            found = _run(engine, f"SELECT {', '.join(chosen)} FROM {reader}", file, chosen)
            names = [name for name, *_ in found.description or ()]
            for number, row in enumerate(_rows(found, file), start=1):
                yield Record(file, number, dict(zip(names, row, strict=True)))


def column_names(files: Sequence[Path], container: str) -> list[str]:
    """Return the names of the columns of all files together."""
    named = ", ".join(_literal(str(file)) for file in files)
    reader = _READERS[container].format(files=f"[{named}]", more=", union_by_name=true")
    with closing(duckdb.connect()) as engine:
        described = _run(engine, f"DESCRIBE SELECT * FROM {reader}", files[0], ())
        return [str(name) for name, *_ in _rows(described, files[0])]


def _json_types(engine: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> str:
    """Return the columns of all files together: one file may lack a field that another has."""
    reader = _READERS["json"].format(
        files=f"[{', '.join(_literal(str(file)) for file in files)}]", more=", union_by_name=true"
    )
    described = _rows(_run(engine, f"DESCRIBE SELECT * FROM {reader}", files[0], ()), files[0])
    columns = (
        f"{_literal(name)}: {_literal(_TEMPORAL.sub('VARCHAR', kind))}"
        for name, kind, *_ in described
    )
    return f", columns={{{', '.join(columns)}}}"


def has_split_tables(files: Sequence[Path]) -> bool:
    """Return whether these are Semantic Scholar's tables of papers, abstracts and citations."""
    return len(files) > 1 and bool({_split_table(file) for file in files} - {"papers"})


def _split_table(path: Path) -> str:
    """Return which of the tables a file is part of, by its first record."""
    first = next(read_jsonl(path, Rejects(skip_bad=True)), None)
    names = set() if first is None else first.fields.keys()
    if "citingcorpusid" in names:
        return "citations"
    return "abstracts" if "abstract" in names and "title" not in names else "papers"


def read_split_tables(files: Sequence[Path]) -> Iterator[Record]:
    """Yield Semantic Scholar's papers with the abstracts and citations of their ``corpusid``.

    The join is DuckDB's, which spills what does not fit into memory.

    Raises
    ------
    DataError
        If no file has papers, or a file is damaged.
    """
    tables: dict[str, list[Path]] = {"papers": [], "abstracts": [], "citations": []}
    for file in files:
        tables[_split_table(file)].append(file)
    if not tables["papers"]:
        problem, fix = "no file has papers, with a title", "name the files of papers too"
        raise DataError(problem, path=files[0], fix=fix)
    with closing(duckdb.connect()) as engine:
        sides = {
            "abstracts": ("corpusid, any_value(abstract) AS found", "abstract VARCHAR"),
            "citations": (
                "citingcorpusid AS corpusid, list(citedcorpusid ORDER BY citedcorpusid)"
                " FILTER (citedcorpusid IS NOT NULL) AS found",
                "citingcorpusid BIGINT, citedcorpusid BIGINT",
            ),
        }
        for name, (chosen, kinds) in sides.items():
            columns = kinds if name == "citations" else f"corpusid BIGINT, {kinds}"
            source = _split_reader(tables[name], columns) if tables[name] else None
            made = f"SELECT {chosen} FROM {source} GROUP BY 1" if source else _EMPTY[name]
            _run(engine, f"CREATE TEMP TABLE {name} AS {made}", (tables[name] or files)[0], ())
        for file in tables["papers"]:
            lines = f"read_json_objects({_literal(str(file))}, format='newline_delimited')"
            sql = (
                "SELECT line, paper, a.found, c.found FROM (SELECT row_number() OVER () AS line,"
                f" json AS paper, CAST(json->>'corpusid' AS BIGINT) AS corpusid FROM {lines})"
                " LEFT JOIN abstracts a USING (corpusid) LEFT JOIN citations c USING (corpusid)"
                " ORDER BY line"
            )
            for line, paper, abstract, cited in _rows(_run(engine, sql, file, ()), file):
                fields = json.loads(paper)
                fields.setdefault("abstract", abstract)
                yield Record(file, line, {**fields, "outbound_citations": cited})


_EMPTY = {
    "abstracts": "SELECT 0::BIGINT AS corpusid, NULL::VARCHAR AS found WHERE false",
    "citations": "SELECT 0::BIGINT AS corpusid, NULL::BIGINT[] AS found WHERE false",
}


def _split_reader(files: Sequence[Path], columns: str) -> str:
    kinds = ", ".join(
        f"{_literal(name)}: {_literal(kind)}"
        for name, kind in (column.split() for column in columns.split(", "))
    )
    named = ", ".join(_literal(str(file)) for file in files)
    return f"read_json([{named}], format='newline_delimited', columns={{{kinds}}})"


def _run(
    engine: duckdb.DuckDBPyConnection, sql: str, file: Path, columns: Sequence[str]
) -> duckdb.DuckDBPyConnection:
    try:
        return engine.execute(sql)
    except duckdb.Error as error:
        raise _failed(error, file, columns) from error


def _rows(found: duckdb.DuckDBPyConnection, file: Path) -> Iterator[tuple[Any, ...]]:
    while True:
        try:
            rows = found.fetchmany(_FETCHED)
        except duckdb.Error as error:
            raise _failed(error, file, ()) from error
        if not rows:
            return
        yield from rows


def _failed(error: duckdb.Error, file: Path, columns: Sequence[str]) -> DataError:
    """Return DuckDB's error with the file; its first lines say what and where."""
    message = " ".join(str(error).split("\n\n")[0].split())
    if columns:
        problem, fix = f"columns do not fit the file: {message}", "correct the expression"
        return DataError(problem, path=file, value=", ".join(columns), fix=fix)
    fix = "mend the file, or read it without SQL expressions, which names the line"
    return DataError(f"file cannot be read: {message}", path=file, fix=fix)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
