"""User tables with a column mapping, and papers in every format of ``data.importers``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from scimult.config import StrictConfig
from scimult.data.importers import FORMATS, ImportedPaper, guess_format, read_papers
from scimult.data.importers.columns import Columns
from scimult.data.importers.paper import make_paper
from scimult.data.records import Record
from scimult.data.rows import KINDS
from scimult.data.tables import MissingColumnError
from scimult.errors import DataError, one_of, suggest
from scimult.preparation.config import Dangling, Name, PairTable
from scimult.preparation.sources.base import PublicSource, SourceOptions
from scimult.preparation.sources.conversion import Conversion
from scimult.preparation.sources.raw import (
    ONE_TASK,
    TWO_SOURCES,
    Makes,
    RawSource,
    Written,
)
from scimult.terminal import listed

# Our names of the columns, and whether a table must have them.
COLUMNS: Mapping[Written, Mapping[str, bool]] = {
    "papers": {
        "id": True,
        "title": True,
        "abstract": False,
        "authors": False,
        "venue": False,
        "year": False,
        "doi": False,
        "labels": False,
        "references": False,
    },
    "labels": {"id": True, "name": True, "definition": False},
    "citations": {"citing": True, "cited": True},
    "references": {"citing": True, "cited": True},
    "links": {"query-id": True, "paper-id": True, "score": False},
    "queries": {"id": True, "text": True},
    "judgments": {"query-id": True, "paper-id": True, "score": False},
}
# Optional columns that change what is learnt: if one is missing while other columns are not read,
# the user must confirm that the file has none.
TELLING = ("abstract", "definition", "score")


class TableFile(StrictConfig):
    """One table, in one or several files, and the names of its columns.

    Parameters
    ----------
    file : str or list of str
        Paths relative to ``--input``, or globs; their names determine the format.
    columns : mapping
        From our name of a column to its name in the file, a dotted path into nested fields, an
        SQL expression (DuckDB's), or ``null`` to skip it. Unmapped columns keep our name.
    separator : str
        Splits authors, labels and references that are given as one string.
    """

    file: str | list[str] = Field(min_length=1)
    columns: dict[str, str | None] = {}
    separator: str = Field(default=";", min_length=1)

    @property
    def files(self) -> list[str]:
        """All files."""
        return [self.file] if isinstance(self.file, str) else self.file


class PapersFile(TableFile):
    """The table of papers, possibly in a third-party format.

    ``format`` is one of ``data.importers.FORMATS``; by default it is detected if no column is
    mapped. ``cited`` is what references inside the records become: citations for training pairs, or
    references for mining only.
    """

    format: str | None = None
    cited: Literal["citations", "references"] = "citations"

    @field_validator("format")
    @classmethod
    def _check_format(cls, name: str | None) -> str | None:
        return None if name is None else one_of("format of papers", name, FORMATS)


class TableOptions(SourceOptions):
    """Options of ``scimult prepare table``.

    Parameters
    ----------
    name : str
        Name of the source.
    papers : PapersFile
        id, title; optional abstract, authors, venue, year, doi, labels, references.
    labels : TableFile, optional
        id, name; optional definition. Without this table, the labels of papers are their names.
    citations, references : TableFile, optional
        citing, cited: for training pairs, or for mining only.
    links : TableFile, optional
        query-id, paper-id, both papers; optional score.
    queries, judgments : TableFile, optional
        id, text; and query-id, paper-id, optional score.
    score_threshold : float
        Smallest score of a positive.
    max_pairs_per_label : int or "all"
        Maximum number of training pairs per label; see ``PrepareConfig``.
    """

    name: Name = "table"
    papers: PapersFile
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
        if self.citations is not None and self.links is not None:
            raise ValueError(f"{ONE_TASK}; {TWO_SOURCES}")
        for what, known in COLUMNS.items():
            table: TableFile | None = getattr(self, what)
            columns = {} if table is None else table.columns
            unknown = sorted(set(columns) - set(known))
            if unknown:
                raise ValueError(
                    f"{what}.columns.{unknown[0]}: unknown column{suggest(unknown[0], known)}; "
                    f"known: {', '.join(known)}"
                )
            missing = [name for name in columns if columns[name] is None and known[name]]
            if missing:
                raise ValueError(f"{what}.columns.{missing[0]} is null, but {what} need it")
        return self


def _convert(conversion: Conversion, options: TableOptions) -> None:
    tables: dict[Written, TableFile] = {
        what: getattr(options, what) for what in COLUMNS if getattr(options, what) is not None
    }
    paths = {
        what: conversion.matching(table.files, f"name a file below --input with {what}.file=...")
        for what, table in tables.items()
    }

    def fill(raw: RawSource) -> None:
        imported = _imported(options.papers, paths["papers"], raw)
        columns = {what: _columns(what, table, paths[what]) for what, table in tables.items()}

        def rows(what: Written) -> Iterator[Record]:
            shared = [other for other in tables if {*paths[other]} & {*paths[what]}]
            others = None
            # What a third-party format reads is not known here.
            if imported is None or "papers" not in shared:
                others = [columns[other] for other in shared]
            return _rows(what, tables[what], columns[what], others, raw)

        for what in tables:
            if what != "papers":
                raw.write(what, rows(what))
            elif imported is None:
                raw.each(rows(what), lambda row: _own_paper(row, options, raw))
            else:
                raw.each(imported, lambda paper: _paper(paper, options, raw))

    pairs: tuple[Makes, ...] = ("citations", "links", "judgments")
    makes = [what for what in pairs if getattr(options, what) is not None]
    # Citations from records, unlike those in a table of their own, mostly lead out of the set.
    usual: dict[PairTable, Dangling] = {} if options.citations else {"citations": "drop"}
    conversion.write(
        options.name,
        list(chain.from_iterable(paths.values())),
        fill,
        makes,
        dangling=usual,
        score_threshold=options.score_threshold,
        max_pairs_per_label=options.max_pairs_per_label,
    )


def _imported(
    papers: PapersFile, paths: Sequence[Path], raw: RawSource
) -> Iterator[ImportedPaper] | None:
    """Return papers in third-party formats; ``None`` for plain tables."""
    if papers.format is None:
        container, shape = guess_format(paths[0])
        if container in KINDS.values() and (papers.columns or shape == "plain"):
            return None
    return read_papers(
        paths,
        format=papers.format,
        columns=papers.columns,
        separator=papers.separator,
        rejects=raw.rejects,
    )


def _named(records: Iterator[Record], what: Written, names: Mapping[str, str]) -> Iterator[Record]:
    """Yield the rows; a header without one of our columns can also be mapped to them."""
    try:
        yield from records
    except MissingColumnError as error:
        ours = {old: new for new, old in names.items()}
        hints = " ".join(f"{what}.columns.{ours[column]}=..." for column in error.columns)
        fix = f"name the columns of the file, {hints}, or {error.fix}"
        raise DataError(
            error.problem, path=error.path, line=error.line, value=error.value, fix=fix
        ) from error


def _columns(what: Written, table: TableFile, paths: Sequence[Path]) -> Columns:
    # A column named references is usually prose, not ids: it is only read if it is mapped.
    own = {name: None if name == "references" else name for name in COLUMNS[what]}
    names = {name: column for name, column in (own | table.columns).items() if column is not None}
    needed = [old for new, old in names.items() if COLUMNS[what][new] or new in table.columns]
    return Columns(paths, names, needed)


def _rows(
    what: Written,
    table: TableFile,
    columns: Columns,
    others: Sequence[Columns] | None,
    raw: RawSource,
) -> Iterator[Record]:
    """Yield the rows of a table under our names; note the columns that no table reads.

    ``others`` are the tables of the same files; None if it is unknown what else reads them.
    Required and mapped columns must exist (in JSON, in some row), and so must those in
    ``TELLING`` if there are columns that are not read.
    """
    names = columns.names
    for record in _named(columns.read(raw.rejects), what, names):
        lacking = next((n for n in names if COLUMNS[what][n] and n not in record.fields), None)
        if lacking is None:
            yield record
            continue
        left = columns.unread()
        hint = f"{what}.columns.{lacking}=...{suggest(names[lacking], left)}"
        fix = f"name the field that holds it, {hint}, or leave the record out with --skip-bad"
        problem = f"missing field {names[lacking]!r}"
        raw.rejects.reject(record.error(problem, value=left, fix=fix))
    unread = [] if others is None else columns.unread(others)
    _check_seen(columns.paths[0], what, table, names, columns.seen, unread)
    note = f"{table.file}: columns not read: {listed(unread)}"
    if unread and note not in raw.notes:
        raw.notes.append(note)


def _check_seen(
    path: Path,
    what: Written,
    table: TableFile,
    names: Mapping[str, str],
    seen: set[str],
    unread: Sequence[str],
) -> None:
    """Check that some row has each mapped column, and each of ``TELLING``."""
    for name in (name for name, column in names.items() if seen and column not in seen):
        if name in table.columns:
            fix = f"correct {what}.columns.{name}"
        elif name in TELLING and unread:
            fix = (
                f"name the column that holds it with {what}.columns.{name}=..., or confirm that "
                f"there is none with {what}.columns.{name}=null"
            )
        else:
            continue
        others = f"; columns not read: {listed(unread)}" if unread else ""
        raise DataError(f"no row has the column {names[name]!r}{others}", path=path, fix=fix)


def _own_paper(record: Record, options: TableOptions, raw: RawSource) -> None:
    """Write a row of a plain table, whose id is its own."""
    known = raw.has_paper(record.identifier("id"))
    paper = make_paper(record, options.papers.separator, has_text=not known)
    _paper(paper, options, raw)


def _paper(paper: ImportedPaper, options: TableOptions, raw: RawSource) -> None:
    record = Record(*paper.location, {})
    if paper.id_from != "record":
        origin = "their DOI" if paper.id_from == "doi" else "a hash of their text"
        raw.counts[f"papers without an id, known by {origin}"] += 1
    raw.imported(record, paper, labels=paper.labels)
    if options.labels is None:
        raw.labels_by_name(record, paper.labels)
    for cited in paper.references:
        raw.edge(options.papers.cited, record, paper.id, cited)


TABLE = PublicSource(
    name="table",
    title="your own files: JSONL, CSV, TSV, Parquet, BibTeX, RIS, .nbib, .enw, OpenAlex, ...",
    url="(yours)",
    licence="(yours)",
    files=("named by papers.file, labels.file, citations.file, ...; globs are expanded",),
    options=TableOptions,
    convert=_convert,
)
