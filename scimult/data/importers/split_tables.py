"""Read Semantic Scholar's datasets: papers, abstracts and citations, joined by ``corpusid``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path

import duckdb
import pyarrow as pa

from scimult.data.importers.engine import connected, rows_of, run
from scimult.data.importers.values import first
from scimult.data.lines import read_jsonl
from scimult.data.packed import is_whole
from scimult.data.records import Record, Rejects
from scimult.data.sql import literal, table_of
from scimult.errors import DataError

_ROWS = 1 << 14
# Columns read from each table. All of a paper stays in its file, which is read again.
_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "papers": {"corpusid": "BIGINT"},
    "abstracts": {"corpusid": "BIGINT", "abstract": "VARCHAR"},
    "citations": {"citingcorpusid": "BIGINT", "citedcorpusid": "BIGINT"},
}
_JOINED = """
SELECT abstract, cited
FROM (SELECT corpusid, rowid AS number FROM papers)
LEFT JOIN (SELECT corpusid, min(abstract) AS abstract FROM abstracts GROUP BY 1) USING (corpusid)
LEFT JOIN (
    SELECT citingcorpusid AS corpusid, list(citedcorpusid ORDER BY citedcorpusid) AS cited
    FROM citations WHERE citedcorpusid IS NOT NULL GROUP BY 1
) USING (corpusid)
ORDER BY number
"""


def tables_of(files: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the files of papers, abstracts and citations, told by their first records."""
    tables: dict[str, list[Path]] = {name: [] for name in _COLUMNS}
    for file in files:
        record = next(read_jsonl(file, Rejects(skip_bad=True)), None)
        names = set() if record is None else record.fields.keys()
        is_abstract = "abstract" in names and "title" not in names
        other = "abstracts" if is_abstract else "papers"
        tables["citations" if "citingcorpusid" in names else other].append(file)
    return tables


def read_split_tables(tables: Mapping[str, list[Path]], rejects: Rejects) -> Iterator[Record]:
    """Yield the papers with the abstracts and citations of their ``corpusid``; see ``tables_of``.

    Raises
    ------
    DataError
        If no file has papers; and, through ``rejects``, for a bad record.
    """
    papers = tables["papers"]
    if not papers:
        problem, fix = "no file has papers, with a title", "add the files of papers"
        raise DataError(problem, path=next(chain.from_iterable(tables.values())), fix=fix)
    with connected() as engine:
        for name, columns in _COLUMNS.items():
            kinds = ", ".join(f"{column} {kind}" for column, kind in columns.items())
            engine.execute(f"CREATE TABLE {name} ({kinds})")
            for file in tables[name]:
                _load(engine, name, file, rejects)
        added = rows_of(run(engine, _JOINED, papers[0]), papers[0])
        for file in papers:
            silent = Rejects(skip_bad=True)  # the first reading has reported them
            for record, _ in _rows("papers", file, silent):
                abstract, cited = next(added)
                own = first(record.fields, "abstract")
                joined = {"abstract": own or abstract, "outbound_citations": cited}
                yield Record(file, record.line, record.fields | joined)


def _load(engine: duckdb.DuckDBPyConnection, name: str, file: Path, rejects: Rejects) -> None:
    """Add a file to its table; one that the engine refuses is read record by record."""
    columns = _COLUMNS[name]
    # Papers must be the same records as when they are read again.
    if name != "papers" and is_whole(file):
        kinds = ", ".join(f"{literal(name)}: {literal(kind)}" for name, kind in columns.items())
        options = f"format='newline_delimited', columns={{{kinds}}}"
        with suppress(DataError):
            run(engine, f"INSERT INTO {name} FROM {table_of('read_json', [file], options)}", file)
            return
    rows = (values for _, values in _rows(name, file, rejects))
    while part := list(islice(rows, _ROWS)):
        arrays = map(pa.array, zip(*part, strict=True))
        engine.register("part", pa.table(dict(zip(columns, arrays, strict=True))))
        run(engine, f"INSERT INTO {name} FROM part", file)


def _rows(
    name: str, file: Path, rejects: Rejects
) -> Iterator[tuple[Record, tuple[int | str | None, ...]]]:
    """Yield a file's records with their values in the columns of the table."""

    def value(record: Record, column: str, kind: str) -> int | str | None:
        if record.fields.get(column) is None:
            return None
        return record.integer(column) if kind == "BIGINT" else record.text(column)

    def values(record: Record) -> tuple[Record, tuple[int | str | None, ...]]:
        columns = _COLUMNS[name].items()
        return record, tuple(value(record, column, kind) for column, kind in columns)

    return rejects.keep(read_jsonl(file, rejects), values)
