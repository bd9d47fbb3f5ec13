"""Reads papers of any known format: files to records, records to papers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from scimult.data.importers.columns import TABLES, is_expression
from scimult.data.importers.files import Format, find_files, guess_format
from scimult.data.importers.paper import FIELDS, ImportedPaper, make_paper
from scimult.data.importers.shapes import SHAPES, at, has_text
from scimult.data.lines import Record, Rejects, read_jsonl
from scimult.data.rows import delimiter_of, read_delimited, read_parquet
from scimult.errors import DataError

Columns = Mapping[str, str | None]
_MOST_NAMED = 12


def read_papers(
    files: Sequence[Path | str],
    *,
    format: str | None = None,
    columns: Columns | None = None,
    separator: str = ";",
    rejects: Rejects,
) -> Iterator[ImportedPaper]:
    """Yield the papers of files, one after the other, as they stand there.

    A paper that occurs twice is yielded twice: the caller knows what to do with it.

    Parameters
    ----------
    files : sequence of path
        Files, globs such as ``works/**/*.gz``, or a folder that holds ``papers.jsonl`` or is a
        prepared one; ``.gz`` is decompressed.
    format : str, optional
        One of ``FORMATS``; by default each file's name and first record say it.
    columns : mapping, optional
        Our name of a field to its name in the file: a column, a dotted path
        (``primary_location.source.display_name``; lists on the way are gone through), in JSON,
        CSV and Parquet also an SQL expression; ``None`` leaves the field empty. Names that are
        not ours become ``extra``. They go before what the format says.
    separator : str
        Splits lists that are written in one string.
    rejects : Rejects
        Takes the bad records.

    Raises
    ------
    DataError
        If a file does not exist, is of no known format or is damaged, a column that is named is
        in no record; and, through ``rejects``, at a bad record.
    """
    named = dict(columns or {})
    paths = find_files(files)
    formats = [guess_format(path, format) for path in paths]
    make = partial(make_paper, separator=separator)
    records = chain.from_iterable(
        _read_group(group, file_format, named, rejects, format_named=format is not None)
        for file_format, group in _grouped(paths, formats)
    )
    yield from rejects.keep(records, make)


def _grouped(
    paths: Sequence[Path], formats: Sequence[Format]
) -> Iterator[tuple[Format, list[Path]]]:
    """Yield neighbouring files of one format together: some are read as one."""
    group: list[Path] = []
    for place, path in enumerate(paths):
        group.append(path)
        if place + 1 == len(paths) or formats[place + 1] != formats[place]:
            yield formats[place], group
            group = []


def _read_group(
    paths: list[Path],
    file_format: Format,
    columns: dict[str, str | None],
    rejects: Rejects,
    *,
    format_named: bool,
) -> Iterator[Record]:
    """Yield the records of files of one format, with fields under our names."""
    container, shape = file_format
    if container in TABLES:
        from scimult.data.importers import engine, split_tables

        first = next(_records(paths[0], container, Rejects(skip_bad=True)), None)
        known = () if first is None else list(first.fields)
        if container != "json" and shape == "plain" and first is not None:
            _check_text(first, columns)
        expressions = {
            name: column
            for name, column in columns.items()
            if column is not None and is_expression(column, known)
        }
        if expressions:
            if shape != "plain" and format_named:
                fix = "name plain columns or dotted paths, or say format=jsonl (parquet, csv)"
                raise DataError(
                    f"SQL expressions do not go with the format {shape!r}",
                    value=expressions,
                    fix=fix,
                )
            records = engine.select(paths, container, expressions.values())
            yield from _renamed(records, "plain", columns, rejects)
            return
        if shape == "s2ag" and container == "json" and split_tables.has_split_tables(paths):
            records = split_tables.read_split_tables(paths)
            yield from _renamed(records, shape, columns, rejects)
            return
    records = chain.from_iterable(_records(path, container, rejects) for path in paths)
    yield from _renamed(records, shape, columns, rejects)


def _check_text(first: Record, columns: Columns) -> None:
    """Refuse a table of which no column holds titles or abstracts.

    Raises
    ------
    DataError
        With the columns that there are.
    """
    if has_text(first.fields) or columns.get("title") or columns.get("abstract"):
        return
    raise DataError(
        "no column is called title or abstract",
        path=first.path,
        value=list(first.fields),
        fix="say which one holds the titles (--column title=NAME; in prepare table "
        "papers.columns.title=NAME), or write the names of the columns on the first line",
    )


def _records(path: Path, container: str, rejects: Rejects) -> Iterator[Record]:
    """Yield the records of one file."""
    if container == "json":
        return read_jsonl(path, rejects)
    if container == "parquet":
        return read_parquet(path, (), rejects)
    if container in ("csv", "tsv"):
        delimiter = "\t" if container == "tsv" else delimiter_of(path)
        return read_delimited(path, delimiter, rejects)
    if container == "prepared":
        from scimult.data.importers.prepared import read_prepared

        return read_prepared(path)
    from scimult.data.importers import bibliographies

    readers: dict[str, Callable[[Path, Rejects], Iterator[Record]]] = {
        "bibtex": bibliographies.read_bibtex,
        "ris": bibliographies.read_ris,
        "pubmed": bibliographies.read_pubmed,
    }
    return readers[container](path, rejects)


def _renamed(
    records: Iterator[Record], shape: str, columns: Columns, rejects: Rejects
) -> Iterator[Record]:
    """Yield records under our names: as the format has them, then as the columns say."""
    met: set[str] = set()
    seen: dict[str, None] = {}
    path = None
    named = {name: column for name, column in columns.items() if column is not None}
    for record in records:
        path = record.path
        seen.update(dict.fromkeys(record.fields))
        try:
            fields = shaped(record, shape).fields
        except DataError as error:
            rejects.reject(error)
            continue
        fields.update(dict.fromkeys(columns))
        for name, column in named.items():
            value = at(record.fields, column)
            if value is not None or column in record.fields:
                met.add(name)
            fields[name] = value
        yield Record(record.path, record.line, fields)
    for name, column in named.items():
        if path is not None and name not in met:
            more = f" and {len(seen) - _MOST_NAMED} more" if len(seen) > _MOST_NAMED else ""
            there = ", ".join(list(seen)[:_MOST_NAMED]) + more
            raise DataError(
                f"no record has the column {column!r}; there are {there}",
                path=path,
                fix=f"correct the column that is named for {name!r}",
            )


def shaped(record: Record, shape: str) -> Record:
    """Return a record with fields under our names.

    Raises
    ------
    DataError
        If the record has not the form of ``shape``.
    """
    if not shape:
        fields = {name: record.fields[name] for name in FIELDS if name in record.fields}
        return Record(record.path, record.line, fields)
    try:
        return Record(record.path, record.line, SHAPES[shape](record.fields))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        fix = f"say which format the file has; it was read as {shape}"
        problem = "record has another form than its format"
        raise record.error(problem, value=str(error), fix=fix) from error
