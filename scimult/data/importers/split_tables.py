"""Read Semantic Scholar's datasets: papers, abstracts and citations, joined by ``corpusid``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from scimult.data.importers.engine import connected, file_list, literal, rows_of, run
from scimult.data.lines import Record, Rejects, read_jsonl
from scimult.errors import DataError

# Columns read from the tables other than the papers', and their aggregation by corpusid.
_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "abstracts": {"corpusid": "BIGINT", "abstract": "VARCHAR"},
    "citations": {"citingcorpusid": "BIGINT", "citedcorpusid": "BIGINT"},
}
_AGGREGATES = {
    "abstracts": "SELECT corpusid, min(abstract) AS abstract FROM {table} GROUP BY 1",
    "citations": (
        "SELECT citingcorpusid AS corpusid, list(citedcorpusid ORDER BY citedcorpusid) AS cited "
        "FROM {table} WHERE citedcorpusid IS NOT NULL GROUP BY 1"
    ),
}
# In the papers' own order, which is deterministic and gives line numbers for messages.
_JOINED = """
SELECT filename, number, paper, a.abstract, c.cited
FROM (
    SELECT filename, row_number() OVER () AS number, json AS paper,
        CAST(json->>'corpusid' AS BIGINT) AS corpusid
    FROM read_json_objects({papers}, format='newline_delimited', filename=true)
)
LEFT JOIN ({abstracts}) a USING (corpusid)
LEFT JOIN ({citations}) c USING (corpusid)
ORDER BY number
"""


def has_split_tables(files: Sequence[Path]) -> bool:
    """Return whether these are Semantic Scholar's tables of papers, abstracts and citations."""
    return len(files) > 1 and bool({_table_of(file) for file in files} - {"papers"})


def read_split_tables(files: Sequence[Path]) -> Iterator[Record]:
    """Yield the papers with the abstracts and citations of their ``corpusid``.

    Raises
    ------
    DataError
        If no file has papers, or one is damaged.
    """
    tables: dict[str, list[Path]] = {"papers": [], "abstracts": [], "citations": []}
    for file in files:
        tables[_table_of(file)].append(file)
    papers = tables["papers"]
    if not papers:
        problem, fix = "no file has papers, with a title", "add the files of papers"
        raise DataError(problem, path=files[0], fix=fix)
    joined = {
        name: sql.format(table=_reader(name, tables[name])) for name, sql in _AGGREGATES.items()
    }
    lines_before, line, current = 0, 0, papers[0]
    with connected() as engine:
        cursor = run(engine, _JOINED.format(papers=file_list(papers), **joined), current)
        for name, number, paper, abstract, cited in rows_of(cursor, current):
            if Path(name) != current:
                lines_before, current = lines_before + line, Path(name)
            line = number - lines_before
            fields = json.loads(paper)
            fields.setdefault("abstract", abstract)
            yield Record(current, line, {**fields, "outbound_citations": cited})


def _table_of(path: Path) -> str:
    """Return the table that a file belongs to, by its first record."""
    first = next(read_jsonl(path, Rejects(skip_bad=True)), None)
    names = set() if first is None else first.fields.keys()
    if "citingcorpusid" in names:
        return "citations"
    return "abstracts" if "abstract" in names and "title" not in names else "papers"


def _reader(name: str, files: Sequence[Path]) -> str:
    """Return the SQL that reads a table; one without files has no rows."""
    columns = _COLUMNS[name]
    if not files:
        empty = ", ".join(f"NULL::{kind} AS {column}" for column, kind in columns.items())
        return f"(SELECT {empty} WHERE false)"
    kinds = ", ".join(f"{literal(column)}: {literal(kind)}" for column, kind in columns.items())
    return f"read_json({file_list(files)}, format='newline_delimited', columns={{{kinds}}})"
