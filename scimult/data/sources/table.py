"""Tables of one's own: JSON lines, CSV, TSV or Parquet files with a column mapping."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from pydantic import Field, model_validator

from scimult.config import StrictConfig
from scimult.data.lines import Record, Rejects
from scimult.data.prepare_config import Name
from scimult.data.sources.base import Conversion, PublicSource, SourceOptions
from scimult.data.sources.judged import answered_queries, write_judgments
from scimult.data.sources.raw import RawSource, distinct
from scimult.data.sources.readers import read_rows, renamed
from scimult.errors import ConfigError, DataError

# Our name of each column, and whether a table must have it.
COLUMNS: Mapping[str, Mapping[str, bool]] = {
    "papers": {
        "id": True,
        "title": True,
        "abstract": False,
        "authors": False,
        "venue": False,
        "year": False,
        "labels": False,
    },
    "labels": {"id": True, "name": True, "definition": False},
    "citations": {"citing": True, "cited": True},
    "references": {"citing": True, "cited": True},
    "links": {"query-id": True, "paper-id": True, "score": False},
    "queries": {"id": True, "text": True},
    "judgments": {"query-id": True, "paper-id": True, "score": False},
}


class TableFile(StrictConfig):
    """One file and what its columns are called.

    Parameters
    ----------
    file : str
        Path relative to ``--input``; its name says of which kind it is.
    columns : mapping
        Our name of a column to its name in the file; columns that are not mapped have our name.
    separator : str
        Splits authors and labels that are written in one string.
    """

    file: str
    columns: dict[str, str] = {}
    separator: str = Field(default=";", min_length=1)


class TableOptions(SourceOptions):
    """Options of ``scimult prepare table``.

    Parameters
    ----------
    name : str
        Name of the source.
    papers : TableFile
        id, title; optional abstract, authors, venue, year, labels.
    labels : TableFile, optional
        id, name; optional definition. Without it, papers with labels define their labels by name.
    citations, references : TableFile, optional
        citing, cited: for training pairs, or for mining alone.
    links : TableFile, optional
        query-id, paper-id, both papers; optional score.
    queries, judgments : TableFile, optional
        id, text; and query-id, paper-id, optional score.
    score_threshold : float
        Smallest score of a positive.
    """

    name: Name = "table"
    papers: TableFile
    labels: TableFile | None = None
    citations: TableFile | None = None
    references: TableFile | None = None
    links: TableFile | None = None
    queries: TableFile | None = None
    judgments: TableFile | None = None
    score_threshold: float = 1

    @model_validator(mode="after")
    def _check(self) -> TableOptions:
        if (self.queries is None) != (self.judgments is None):
            raise ValueError("queries and judgments need each other; name both or neither")
        for what, known in COLUMNS.items():
            table: TableFile | None = getattr(self, what)
            unknown = sorted(set(table.columns) - set(known)) if table is not None else []
            if unknown:
                raise ValueError(
                    f"{what}.columns: unknown {', '.join(unknown)}; known: {', '.join(known)}"
                )
        return self


def _convert(conversion: Conversion, options: TableOptions) -> None:
    def fill(raw: RawSource) -> None:
        if options.labels is not None:
            conversion.each(_rows(conversion, options, "labels"), lambda row: _label(row, raw))
        conversion.each(_rows(conversion, options, "papers"), lambda row: _paper(row, options, raw))
        for what, write in (("citations", raw.citation), ("references", raw.reference)):
            if getattr(options, what) is not None:
                conversion.each(_rows(conversion, options, what), partial(_edge, write=write))
        if options.links is not None:
            conversion.each(_rows(conversion, options, "links"), lambda row: _link(row, raw))
        if options.queries is not None:
            _write_queries(conversion, options, raw)

    judged = options.links is not None or options.judgments is not None
    choices: dict[str, Any] = {"score_threshold": options.score_threshold} if judged else {}
    conversion.write(options.name, fill, **choices)


def _write_queries(conversion: Conversion, options: TableOptions, raw: RawSource) -> None:
    quiet = Rejects(skip_bad=True)
    judgments = _rows(conversion, options, "judgments", quiet)
    answered = answered_queries(judgments, options.score_threshold)

    def add(record: Record) -> None:
        identifier = record.identifier("id")
        if identifier in answered:
            raw.query(record, identifier, record.text("text"))
        else:
            raw.counts["queries without a positive"] += 1

    conversion.each(_rows(conversion, options, "queries"), add)
    rows = _rows(conversion, options, "judgments")
    write_judgments(rows, answered, raw, conversion.rejects)


def _rows(
    conversion: Conversion, options: TableOptions, what: str, rejects: Rejects | None = None
) -> Iterator[Record]:
    """Yield the rows of a table under our names.

    Raises
    ------
    DataError
        If the file lacks a column that is needed or mapped; in JSON, if no row has it.
    """
    table: TableFile | None = getattr(options, what)
    if table is None:
        raise ConfigError(f"no table of {what}", fix=f"name it: {what}.file=...")
    names = {name: table.columns.get(name, name) for name in COLUMNS[what]}
    needed = [old for new, old in names.items() if COLUMNS[what][new] or new in table.columns]
    rejects = conversion.rejects if rejects is None else rejects
    rows = read_rows(conversion.file(table.file), rejects, columns=needed)
    unseen = set(table.columns)
    for row in renamed(rows, names):
        if unseen:
            unseen -= row.fields.keys()
        yield row
    if unseen:
        column = table.columns[min(unseen)]
        fix = f"correct {what}.columns"
        raise DataError(
            "no row has the column", path=conversion.file(table.file), value=column, fix=fix
        )


def _label(record: Record, raw: RawSource) -> None:
    identifier, name = record.identifier("id"), record.text("name")
    raw.label(record, identifier, name, record.text("definition", ""))


def _edge(record: Record, write: Callable[[Record, str, str], None]) -> None:
    write(record, record.identifier("citing"), record.identifier("cited"))


def _link(record: Record, raw: RawSource) -> None:
    score = record.number("score", 1)
    raw.link(record, record.identifier("query-id"), record.identifier("paper-id"), score)


def _paper(record: Record, options: TableOptions, raw: RawSource) -> None:
    separator = options.papers.separator
    labels = distinct(_list(record, "labels", separator))
    year: Any = record.fields.get("year")
    raw.paper(
        record,
        record.identifier("id"),
        record.text("title", ""),
        record.text("abstract", ""),
        authors=_list(record, "authors", separator),
        venue=record.text("venue", ""),
        year=None if year in (None, "") else int(record.number("year")),
        labels=labels,
    )
    if options.labels is None:
        raw.labels_by_name(record, labels)


def _list(record: Record, name: str, separator: str) -> list[str]:
    """Return a list that stands in a field as it is or in one string."""
    value = record.fields.get(name)
    values = value.split(separator) if isinstance(value, str) else record.strings(name, ())
    return [item.strip() for item in values if item.strip()]


TABLE = PublicSource(
    name="table",
    title="your own JSONL, CSV, TSV or Parquet files, with a column mapping",
    url="(yours)",
    licence="(yours)",
    files=("what papers.file, labels.file, citations.file, ... name",),
    options=TableOptions,
    convert=_convert,
)
