"""Read papers in any known format: files to records, records to papers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path

from scimult.data.importers.columns import expressions_in, values_at
from scimult.data.importers.files import Format, find_files, guess_format
from scimult.data.importers.paper import FIELDS, NO_TEXT, ImportedPaper, id_of, make_paper
from scimult.data.importers.plain_table import has_column
from scimult.data.importers.shapes import SHAPES
from scimult.data.importers.tagged import LAYOUTS, read_tagged
from scimult.data.records import Record, Rejects
from scimult.data.rows import KINDS, read_rows
from scimult.data.tables import unsplit
from scimult.errors import DataError, one_of
from scimult.progress import note, warn
from scimult.terminal import listed

Columns = Mapping[str, str | None]


def read_papers(
    files: Path | str | Sequence[Path | str],
    *,
    format: str | None = None,
    columns: Columns | None = None,
    separator: str = ";",
    rejects: Rejects | None = None,
) -> Iterator[ImportedPaper]:
    """Yield the papers of files in order, repeated ones included.

    Parameters
    ----------
    files : path, or sequence of path
        Files, globs such as ``works/**/*.gz``, or folders that hold ``papers.jsonl`` or are
        prepared; ``.gz`` is decompressed.
    format : str, optional
        One of ``FORMATS``; by default guessed from each file's name and first records.
    columns : mapping, optional
        Our field names to the file's: a column, a dotted path
        (``primary_location.source.display_name``; lists on the way are traversed), or, in JSON,
        CSV and Parquet, an SQL expression; ``None`` leaves the field empty. Names that are not
        ours become ``extra``. They override the format's own fields.
    separator : str
        Splits lists that are written as one string.
    rejects : Rejects, optional
        ``Rejects(skip_bad=True)`` collects bad records; by default the first one is an error.

    Raises
    ------
    UnknownNameError
        If a name without a column is none of ours.
    DataError
        If a file does not exist, has an unknown format or is damaged, or no record has a named
        column; and, through ``rejects``, for a bad record.
    """
    column_of, rejects = dict(columns or {}), rejects or Rejects()
    for name in (name for name, column in column_of.items() if column is None):
        one_of("field of papers", name, FIELDS)
    paths = find_files([files] if isinstance(files, (str, Path)) else files)
    formats = [guess_format(path, format) for path in paths]
    make = partial(make_paper, separator=separator)
    # Adjacent files of one format, as some are read together.
    groups = groupby(zip(formats, paths, strict=True), key=itemgetter(0))
    records = chain.from_iterable(
        _read_group(
            [path for _, path in group], kind, column_of, rejects, format_named=format is not None
        )
        for kind, group in groups
    )
    yield from rejects.keep(records, make, id_of)


def _read_group(
    paths: list[Path],
    file_format: Format,
    columns: dict[str, str | None],
    rejects: Rejects,
    *,
    format_named: bool,
) -> Iterator[Record]:
    """Yield the records of files of one format, with our field names."""
    container, shape = file_format
    if container in KINDS.values():
        first = next(read_rows(paths[0], Rejects(skip_bad=True), container), None)
        if container != "json" and shape == "plain" and first is not None:
            _check_columns(first, columns, len(paths) == 1)
        sql = expressions_in(filter(None, columns.values()), first.fields if first else ())
        if sql:
            if shape != "plain" and format_named:
                raise DataError(
                    f"SQL expressions do not work with the format {shape!r}",
                    value=sql,
                    fix="use plain columns or dotted paths, or format=jsonl (parquet, csv)",
                )
            from scimult.data.importers.expressions import evaluated

            read = partial(read_rows, kind=container)
            records = evaluated(paths, container, read, sql, rejects)
            yield from _renamed(records, "plain", columns, rejects, container == "json")
            return
    if shape == "s2ag" and container == "json":
        from scimult.data.importers import split_tables

        tables = split_tables.tables_of(paths) if len(paths) > 1 else {"papers": paths}
        if len(tables["papers"]) < len(paths):
            records = split_tables.read_split_tables(tables, rejects)
            yield from _renamed(records, shape, columns, rejects)
            return
    if container == "pubmed":
        from scimult.data.importers.pubmed import read_pubmed_files

        # Together, as an update deletes papers of earlier files.
        yield from _renamed(read_pubmed_files(paths, rejects), shape, columns, rejects)
        return
    records = chain.from_iterable(_records(path, rejects, container) for path in paths)
    yield from _renamed(records, shape, columns, rejects, container == "json")


def _check_columns(first: Record, columns: Columns, is_only_file: bool) -> None:
    """Raise, before papers are encoded, if a table lacks texts or a column that was named."""
    fields = first.fields
    if is_only_file:
        names = {name: column for name, column in columns.items() if column is not None}
        expressions = expressions_in(names.values(), fields)
        for name, column in names.items():
            is_there = column in fields or column.partition(".")[0] in fields
            if not is_there and column not in expressions:
                raise _no_column(name, column, fields, first.path)
    if not any(has_column(fields, n) or columns.get(n) for n in ("title", "abstract")):
        raise DataError(
            "no column is called title or abstract",
            path=first.path,
            value=list(fields),
            fix=unsplit(list(fields))
            or "name the column with the titles (--column title=NAME of scimult library, encode "
            "and tagger; papers.columns.title=NAME of prepare table), or write column names on the "
            "first line",
        )
    _warn_of_unread(first.path, fields, columns)


def _warn_of_unread(path: Path, names: Iterable[str], columns: Columns) -> None:
    """Warn of each text that no column of plain records holds, if a column that is not read may."""
    unread = [n for n in names if n not in columns.values() and not has_column([n], *FIELDS)]
    for field in ("title", "abstract") if unread else ():
        if field not in columns and not has_column(names, field):
            problem = f"papers have no {field}, as no column is called so"
            warn(f"{path}: {problem}; if one holds it, give {field}=NAME ({listed(unread)})")


def _no_text(record: Record) -> DataError:
    """Return the error for a record without a field for a text, such as a list of papers."""
    fix = (
        "name the fields that hold them, write one paper per line, or leave it out with --skip-bad"
    )
    return record.error(NO_TEXT, value=list(record.fields), fix=fix)


def _no_column(name: str, column: str, names: Iterable[str], path: Path) -> DataError:
    problem = f"no record has the column {column!r}; there are {listed(list(names))}"
    fix = f"correct the column given for {name!r}"
    if name == column:
        fix = "add the column, or call the one that holds it so"
    return DataError(problem, path=path, fix=fix)


def _records(path: Path, rejects: Rejects, container: str) -> Iterator[Record]:
    if container in KINDS.values():
        return read_rows(path, rejects, container)
    if container == "prepared":
        from scimult.data.importers.prepared import read_prepared

        return read_prepared(path)
    if container == "bibtex":
        from scimult.data.importers.bibtex import read_bibtex

        return read_bibtex(path, rejects)
    if container == "atom":
        from scimult.data.importers.atom import read_atom

        return read_atom(path, rejects)
    return read_tagged(path, rejects, LAYOUTS[container])


def _renamed(
    records: Iterator[Record],
    shape: str,
    columns: Columns,
    rejects: Rejects,
    is_json: bool = False,
) -> Iterator[Record]:
    """Yield records with our field names, from the format and then from ``columns``."""
    resolved: set[str] = set()
    seen: dict[str, None] = {}
    path, left_out = None, 0
    column_of = {name: column for name, column in columns.items() if column is not None}
    for record in records:
        path = record.path
        seen.update(dict.fromkeys(record.fields))
        try:
            fields = shaped(record, shape).fields
        except DataError as error:
            rejects.reject(error)
            continue
        if not fields:
            left_out += 1
            continue
        values = values_at(record.fields, column_of)
        if shape == "plain" and not values and not has_column(record.fields, "title", "abstract"):
            rejects.reject(_no_text(record), id_of(Record(record.path, record.line, fields)))
            continue
        resolved.update(values)
        yield Record(record.path, record.line, fields | dict.fromkeys(columns) | values)
    if path is None:
        return
    if left_out:
        note(f"{path}: left out attachments, notes and annotations: {left_out:,}")
    for name, column in column_of.items():
        if name not in resolved:
            raise _no_column(name, column, seen, path)
    if shape == "plain" and is_json:
        _warn_of_unread(path, seen, columns)


def shaped(record: Record, shape: str) -> Record:
    """Return a record with our field names.

    Raises
    ------
    DataError
        If the record does not have the form of ``shape``.
    """
    if not shape:
        fields = {name: record.fields[name] for name in FIELDS if name in record.fields}
        return Record(record.path, record.line, fields)
    try:
        return Record(record.path, record.line, SHAPES[shape](record.fields))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        fix = f"give the file's format; it was read as {shape}"
        raise record.error("record does not fit its format", value=str(error), fix=fix) from error
