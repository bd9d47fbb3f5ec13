"""Read the papers, labels and queries of a source into the corpus."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from scimult.data.lines import read_jsonl
from scimult.data.records import Record, Rejects
from scimult.data.sql import literal, quoted, table_of
from scimult.data.text_files import raw_columns
from scimult.errors import DataError
from scimult.preparation.corpus import Corpus, FileTexts
from scimult.preparation.file_rows import FileRows, numbered_lines
from scimult.preparation.pair_columns import Columns
from scimult.preparation.targets import TargetReader
from scimult.types import SEPARATOR, Kind

_TEXT = [("line", pa.int64()), *((name, pa.string()) for name in ("id", "title", "body"))]
_NAMES = pa.list_(pa.string())
_PAPER = [
    *_TEXT,
    ("authors", _NAMES),
    ("venue", pa.string()),
    ("year", pa.int64()),
    ("labels", _NAMES),
    ("doi", pa.string()),
    ("targets", _NAMES),
]
_SQL = {
    "label": "json_id(f[1]) AS id, json_text(f[2]) AS title, json_optional(f[3]) AS body",
    "query": "json_id(f[1]) AS id, json_text(f[2]) AS title, '' AS body",
    # A null abstract counts as empty; Python reads the inverted index that OpenAlex has instead.
    "paper": """
        json_id(f[1]) AS id, json_text(f[2]) AS title,
        CASE WHEN given(f[9]) AND blank(json_optional(f[3])) THEN error('unusual')
            WHEN f[3] = 'null' THEN '' ELSE json_text(f[3]) END AS body,
        list_transform(json_list(f[4], ['["VARCHAR"]']), lambda name: stripped(name)) AS authors,
        stripped(json_optional(f[5])) AS venue, json_year(f[6]) AS year,
        list_transform(json_list(f[7], ['["VARCHAR"]', '["UBIGINT"]', '["BIGINT"]']),
            lambda name: stripped(name)) AS labels,
        stripped(json_optional(f[8])) AS doi, f[10:]::VARCHAR[] AS targets""",
}
# The same columns of a file that a conversion wrote.
_RAW = {
    "label": "name AS title, definition AS body",
    "query": "text AS title, '' AS body",
    "paper": """
        title, abstract AS body,
        list_transform(coalesce(authors, []), lambda name: stripped(name)) AS authors,
        stripped(coalesce(venue, '')) AS venue, year, coalesce(labels, []) AS labels,
        stripped(coalesce(doi, '')) AS doi, {targets}::VARCHAR[] AS targets""",
}
_FIELDS = {
    "label": ("id", "name", "definition"),
    "query": ("id", "text"),
    "paper": (
        *("id", "title", "abstract", "authors", "venue", "year", "labels", "doi"),
        "abstract_inverted_index",
    ),
}
_FILLED = {
    "label": "NOT blank(title)",
    "query": "NOT blank(title)",
    "paper": "NOT (blank(title) AND blank(body))",
}


def read_labels(path: Path, namespace: str, corpus: Corpus) -> Counter[str]:
    """Add the labels of a label space to the corpus."""
    texts = corpus.add_texts(text_rows(path, "label"), f"{namespace}/label:", "label")
    counts = _counted(
        corpus,
        texts,
        {"labels": "count(*)", "labels without definition": "count(*) FILTER (blank(body))"},
    )
    counts["labels known from an earlier source"] = texts.merged
    start = corpus.label_rows.get(namespace, texts.rows).start
    corpus.label_rows[namespace] = range(start, texts.rows.stop)
    return counts


def read_papers(
    path: Path,
    namespace: str,
    corpus: Corpus,
    targets: Sequence[TargetReader],
    append: Sequence[str],
) -> tuple[Counter[str], Columns | None]:
    """Add papers with their metadata, and with their labels if the namespace defines labels.

    ``targets`` are those in fields of the papers, ``append`` names metadata that texts end with.
    Return counts and, if labels are defined, the rows ``(paper, label)``.
    """
    fields = [str(reader.config.field) for reader in targets]
    select, no_abstract = "{rows}", "blank(body)"
    if append:
        parts = ", ".join(f"nullif({name}::VARCHAR, '')" for name in ("body", *append))
        select = (
            f"SELECT * REPLACE (concat_ws({literal(SEPARATOR)}, {parts}) AS body), "
            f"blank(body) AS no_abstract FROM ({{rows}})"
        )
        no_abstract = "no_abstract"
    texts = corpus.add_texts(text_rows(path, "paper", fields), f"{namespace}:", "paper", select)
    has_labels = namespace in corpus.label_rows
    counts = _counted(
        corpus,
        texts,
        {
            "papers": "count(*)",
            "papers with empty title": "count(*) FILTER (blank(title))",
            "papers with empty abstract": f"count(*) FILTER ({no_abstract})",
            "papers without labels": f"count(*) FILTER ({has_labels} AND len(labels) = 0)",
            "empty author names": "sum(len(list_filter(authors, lambda name: name = '')))",
        },
    )
    if not counts["papers"]:
        raise nothing_left("no paper is left", path, corpus.rejects)
    counts["papers known from an earlier source"] = texts.merged
    labelled = corpus.add_labels(texts, namespace) if has_labels else None
    for index, (field, reader) in enumerate(zip(fields, targets, strict=True), start=1):
        rows = corpus.rows(
            f"SELECT row, line, targets[{index}] FROM {texts.table} JOIN {texts.placed} "
            f"USING (line) WHERE targets[{index}] NOT IN ('null', '\"\"', '[]') ORDER BY line"
        )
        for row, line, value in rows:
            reader.add_field(row, Record(path, line, {field: json.loads(value)}))
    return counts, labelled


def nothing_left(
    problem: str, path: Path, rejects: Rejects, fix: str = "check that it is the right file"
) -> DataError:
    """Return the error for a file of which nothing is left, with what was left out."""
    if rejects.counts:
        fix = "check that it is the right file; run without --skip-bad to see what is wrong"
    return DataError(f"{problem}{rejects.because()}", path=path, fix=fix)


def _counted(corpus: Corpus, texts: FileTexts, counts: Mapping[str, str]) -> Counter[str]:
    """Count the usable records of a file; empty if there are none."""
    columns = ", ".join(f'{sql} AS "{name}"' for name, sql in counts.items())
    row = corpus.one(f"SELECT {columns} FROM {texts.table} SEMI JOIN {texts.placed} USING (line)")
    return Counter({name: int(count) for name, count in row.items()} if any(row.values()) else {})


def read_queries(path: Path, source: str, corpus: Corpus) -> FileTexts:
    """Add the queries of a source."""
    return corpus.add_texts(text_rows(path, "query"), f"{source}/query:", "query")


def text_rows(path: Path, kind: Kind, targets: Sequence[str] = ()) -> FileRows:
    """Return how to read a file of papers, labels or queries; ``targets`` are fields of papers."""
    schema = pa.schema(_PAPER if kind == "paper" else _TEXT)
    written = raw_columns(path)
    if written is not None:
        fields = [f"to_json({quoted(n)})" if n in written else "NULL" for n in targets]
        columns = _RAW[kind].format(targets=f"[{', '.join(fields)}]")
        sql = f"SELECT file_row_number + 1 AS line, filled(id) AS id, {columns} "
        sql += f"FROM {table_of('read_parquet', [path], 'file_row_number=true')}"
        return FileRows(path, sql, schema)
    pointers = [f"/{name.replace('~', '~0').replace('/', '~1')}" for name in targets]
    paths = ", ".join(literal(path) for path in [*(f"/{f}" for f in _FIELDS[kind]), *pointers])
    sql = f"""
        SELECT * FROM (
            SELECT line, {_SQL[kind]}
            FROM (SELECT line, json_extract(text, [{paths}])::VARCHAR[] AS f
                  FROM ({numbered_lines(path)}) WHERE NOT blank(text)))
        WHERE CASE WHEN {_FILLED[kind]} THEN true ELSE error('unusual') END
        """
    return FileRows(path, sql, schema, partial(read_jsonl, path), partial(_text, kind, targets))


def _text(kind: Kind, targets: Sequence[str], record: Record) -> Mapping[str, Any]:
    """Return the row of a paper, label or query."""
    row: dict[str, Any] = {"line": record.line, "id": record.identifier("id")}
    if kind == "paper":
        # Dumps write null for a missing abstract; an absent field may be misnamed.
        none = "" if "abstract" in record.fields else None
        row |= {"title": record.text("title"), "body": record.text("abstract", none)}
        problem = "title and abstract are both empty"
    elif kind == "label":
        row |= {"title": record.text("name"), "body": record.text("definition", "")}
        problem = "name of the label is empty"
    else:
        row |= {"title": record.text("text"), "body": ""}
        problem = "query is empty"
    if not (row["title"].strip() or (kind == "paper" and row["body"].strip())):
        fix = "fill it in, remove the record, or pass --skip-bad"
        raise record.error(problem, value=record.fields.get("id"), fix=fix)
    if kind != "paper":
        return row
    has_year = record.fields.get("year") is not None
    return row | {
        "authors": [name.strip() for name in record.strings("authors", ())],
        "venue": record.text("venue", "").strip(),
        "year": record.integer("year") if has_year else None,
        "labels": record.identifiers("labels"),
        "doi": record.text("doi", "").strip(),
        "targets": [
            json.dumps(record.fields[name]) if name in record.fields else None for name in targets
        ],
    }
