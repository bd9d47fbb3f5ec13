"""Your own tables: JSON lines, CSV, TSV or Parquet files with a column mapping."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from scimult.config import StrictConfig
from scimult.data.lines import Record, Rejects
from scimult.data.rows import read_rows
from scimult.errors import ConfigError, DataError
from scimult.preparation.config import Name
from scimult.preparation.sources.base import PublicSource, SourceOptions
from scimult.preparation.sources.conversion import Conversion
from scimult.preparation.sources.judged import answered_queries, write_judgments
from scimult.preparation.sources.raw import Makes, RawSource, distinct
from scimult.preparation.sources.readers import renamed

# Our name of each column, and whether a table must have it.
COLUMNS: Mapping[str, Mapping[str, bool]] = {
    "papers": {
        "id": True,
        "title": True,
        "abstract": False,
        "authors": False,
        "venue": False,
        "year": False,
        "doi": False,
        "labels": False,
    },
    "labels": {"id": True, "name": True, "definition": False},
    "citations": {"citing": True, "cited": True},
    "references": {"citing": True, "cited": True},
    "links": {"query-id": True, "paper-id": True, "score": False},
    "queries": {"id": True, "text": True},
    "judgments": {"query-id": True, "paper-id": True, "score": False},
}
# Optional columns that change what is learnt: without one of them in a file that has columns which
# are not read, the file must be said to have none.
TELLING = ("abstract", "definition", "score")
_MOST_NAMED = 12


class TableFile(StrictConfig):
    """One file and what its columns are called.

    Parameters
    ----------
    file : str
        Path relative to ``--input``; its name says of which kind it is.
    columns : mapping
        Our name of a column to its name in the file, or ``null``: it has none, or its own is not
        to be read. Columns that are not mapped have our name.
    separator : str
        Splits authors and labels that are written in one string.
    """

    file: str
    columns: dict[str, str | None] = {}
    separator: str = Field(default=";", min_length=1)


class TableOptions(SourceOptions):
    """Options of ``scimult prepare table``.

    Parameters
    ----------
    name : str
        Name of the source.
    papers : TableFile
        id, title; optional abstract, authors, venue, year, doi, labels.
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
    max_pairs_per_label : int or "all"
        Most training pairs of a label; see ``PrepareConfig``.
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
    max_pairs_per_label: Annotated[int, Field(ge=1)] | Literal["all"] = "all"

    @model_validator(mode="after")
    def _check(self) -> TableOptions:
        if (self.queries is None) != (self.judgments is None):
            raise ValueError("queries and judgments need each other; name both or neither")
        for what, known in COLUMNS.items():
            table: TableFile | None = getattr(self, what)
            columns = {} if table is None else table.columns
            unknown = sorted(set(columns) - set(known))
            if unknown:
                raise ValueError(
                    f"{what}.columns: unknown {', '.join(unknown)}; known: {', '.join(known)}"
                )
            missing = [name for name in columns if columns[name] is None and known[name]]
            if missing:
                raise ValueError(f"{what}.columns.{missing[0]} is null, but {what} need it")
        return self


def _convert(conversion: Conversion, options: TableOptions) -> None:
    def fill(raw: RawSource) -> None:
        def rows(what: str) -> Iterator[Record]:
            return _rows(conversion, options, what, conversion.rejects, raw.notes)

        if options.labels is not None:
            conversion.each(rows("labels"), lambda row: _label(row, raw))
        conversion.each(rows("papers"), lambda row: _paper(row, options, raw))
        for what, write in (("citations", raw.citation), ("references", raw.reference)):
            if getattr(options, what) is not None:
                conversion.each(rows(what), partial(_edge, write=write))
        if options.links is not None:
            conversion.each(rows("links"), lambda row: _link(row, raw))
        if options.queries is not None:
            _write_queries(conversion, options, raw)

    pairs: tuple[Makes, ...] = ("citations", "links", "judgments")
    makes = [what for what in pairs if getattr(options, what) is not None]
    conversion.write(
        options.name,
        fill,
        makes,
        score_threshold=options.score_threshold,
        max_pairs_per_label=options.max_pairs_per_label,
    )


def _write_queries(conversion: Conversion, options: TableOptions, raw: RawSource) -> None:
    judgments = _rows(conversion, options, "judgments", Rejects(skip_bad=True), [])
    answered = answered_queries(judgments, options.score_threshold)

    def add(record: Record) -> None:
        identifier = record.identifier("id")
        if identifier in answered:
            raw.query(record, identifier, record.text("text"))
        else:
            raw.counts["queries without a positive"] += 1

    rejects = conversion.rejects
    conversion.each(_rows(conversion, options, "queries", rejects, raw.notes), add)
    rows = _rows(conversion, options, "judgments", rejects, raw.notes)
    write_judgments(rows, answered, raw, rejects)


def _rows(
    conversion: Conversion,
    options: TableOptions,
    what: str,
    rejects: Rejects,
    notes: list[str],
) -> Iterator[Record]:
    """Yield the rows of a table under our names; note which of its columns are not read.

    Raises
    ------
    DataError
        If the file lacks a column that is needed or mapped; in JSON, if no row has it; or if it
        has columns that are not read, and lacks one of ``TELLING``.
    """
    table: TableFile | None = getattr(options, what)
    if table is None:
        raise ConfigError(f"no table of {what}", fix=f"name it: {what}.file=...")
    mapped = {name: table.columns.get(name, name) for name in COLUMNS[what]}
    names = {name: column for name, column in mapped.items() if column is not None}
    needed = [old for new, old in names.items() if COLUMNS[what][new] or new in table.columns]
    path = conversion.file(table.file, f"name a file below --input with {what}.file=...")
    seen: set[str] = set()
    for row in read_rows(path, rejects, columns=needed):
        seen |= row.fields.keys()
        yield from renamed([row], names)
    _check_seen(path, what, table, names, seen)
    unread = sorted(seen - set(names.values()))
    if unread:
        notes.append(f"{table.file}: columns not read: {_listed(unread)}")


def _check_seen(
    path: Path, what: str, table: TableFile, names: Mapping[str, str], seen: set[str]
) -> None:
    """Check that some row has each column that is mapped, and each telling one."""
    unread = sorted(seen - set(names.values()))
    for name in (name for name, column in names.items() if seen and column not in seen):
        if name in table.columns:
            fix = f"correct {what}.columns.{name}"
        elif name in TELLING and unread:
            fix = (
                f"name the column that holds it with {what}.columns.{name}=..., or say that "
                f"there is none with {what}.columns.{name}=null"
            )
        else:
            continue
        others = f"; those that are not read: {_listed(unread)}" if unread else ""
        raise DataError(f"no row has the column {names[name]!r}{others}", path=path, fix=fix)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


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
        doi=record.text("doi", "").strip(),
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
