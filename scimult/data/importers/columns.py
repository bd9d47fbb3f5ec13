"""Read table rows under our field names, by column, dotted path or SQL expression."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from scimult.data.importers.files import guess_format
from scimult.data.importers.shapes import at
from scimult.data.records import Record, Rejects
from scimult.data.rows import read_rows

# Characters of an expression, which names and dotted paths do not contain.
_MARKS = re.compile(r"[()\[\]'\"|*+=<>,]")


def expressions_in(columns: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the columns that are SQL expressions rather than names or dotted paths."""
    return [column for column in columns if column not in names and _MARKS.search(column)]


def values_at(fields: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the values at columns and dotted paths, by our names, of those that a record has."""
    values = {name: at(fields, column) for name, column in columns.items()}
    return {
        name: value
        for name, value in values.items()
        if columns[name] in fields
        or not (value is None or _is_lacking(value, fields, columns[name]))
    }


def _is_lacking(value: Any, fields: Mapping[str, Any], path: str) -> bool:
    """Return whether a path finds nothing because no item of its last list has that field."""
    parent = at(fields, path.rpartition(".")[0]) if value == [] else None
    return isinstance(parent, list) and len(parent) > 0


class Columns:
    """The columns of one table, in one or several files of the same kind.

    ``names`` maps our names to columns, dotted paths or SQL expressions; columns in ``needed`` must
    exist. After reading, ``seen`` has the columns that exist, including unread ones.
    """

    def __init__(
        self, paths: Sequence[Path], names: Mapping[str, str], needed: Sequence[str]
    ) -> None:
        self.paths, self.names = paths, names
        self._needed = [column for column in needed if not _MARKS.search(column)]
        self.seen: set[str] = set()

    def read(self, rejects: Rejects) -> Iterator[Record]:
        """Yield the rows, without fields for the columns that a row lacks.

        Raises
        ------
        DataError
            If a file does not exist, has an unknown type or lacks a column; and, through
            ``rejects``, for a bad row.
        """
        plain = [column for column in self._needed if "." not in column]

        def rows(path: Path, rejects: Rejects) -> Iterator[Record]:
            return read_rows(path, rejects, columns=plain)

        sql = expressions_in(self.names.values(), ())
        if sql:
            first = next(read_rows(self.paths[0], Rejects(skip_bad=True)), None)
            sql = expressions_in(sql, first.fields if first else ())
        if sql:
            from scimult.data.importers.expressions import evaluated

            container = guess_format(self.paths[0]).container
            records = evaluated(self.paths, container, rows, sql, rejects)
        else:
            records = chain.from_iterable(rows(path, rejects) for path in self.paths)
        yield from map(self._renamed, records)

    def unread(self, others: Sequence[Columns] = ()) -> list[str]:
        """Return the seen columns that neither this table nor ``others`` read."""
        tables = (self, *others)
        named = filter(None, self.seen)  # pandas writes its index under no name
        return sorted(name for name in named if not any(t._is_read(name) for t in tables))

    def _renamed(self, row: Record) -> Record:
        fields = values_at(row.fields, self.names)
        self.seen.update(row.fields, (self.names[name] for name in fields))
        return Record(row.path, row.line, fields)

    def _is_read(self, name: str) -> bool:
        """Return whether a column is read, alone, on a path or in SQL."""
        # SQL does not tell names by case.
        word = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", re.IGNORECASE)
        return any(
            column == name
            or ((_MARKS.search(column) or "." in column) and word.search(column) is not None)
            for column in self.names.values()
        )
