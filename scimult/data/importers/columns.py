"""Read table rows under our field names, by column, dotted path or SQL expression."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from scimult.data.importers.files import guess_format
from scimult.data.importers.shapes import at
from scimult.data.lines import Record, Rejects
from scimult.data.rows import read_rows
from scimult.errors import DataError

TABLES = ("json", "csv", "tsv", "parquet")
# Characters of an expression, which names and dotted paths do not contain.
_MARKS = re.compile(r"[()\[\]'\"|*+=<>,]")


def is_expression(column: str, names: Sequence[str]) -> bool:
    """Return whether a column is an SQL expression rather than a name or dotted path."""
    return column not in names and _MARKS.search(column) is not None


class Columns:
    """The columns of one table, in one or several files of the same kind.

    ``names`` maps our names to columns, dotted paths or SQL expressions; columns in ``needed`` must
    exist. After reading, ``seen`` has the columns that exist, including unread ones.
    """

    def __init__(
        self, paths: Sequence[Path], names: Mapping[str, str], needed: Sequence[str]
    ) -> None:
        self._paths, self._names = paths, names
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
        columns = list(self._names.values())
        if any(_MARKS.search(column) for column in columns):
            first = next(read_rows(self._paths[0], Rejects(skip_bad=True)), None)
            known = () if first is None else list(first.fields)
            sql = [column for column in columns if is_expression(column, known)]
            if sql:
                yield from self._selected(sql)
                return
        plain = [column for column in self._needed if "." not in column]
        for path in self._paths:
            for row in read_rows(path, rejects, columns=plain):
                yield self._renamed(row)

    def unread(self) -> list[str]:
        """Return the seen columns that nothing reads."""
        return sorted(name for name in self.seen if not self._is_read(name))

    def _renamed(self, row: Record) -> Record:
        self.seen.update(row.fields)
        fields = {}
        for name, column in self._names.items():
            value = at(row.fields, column)
            if value is not None or column in row.fields:
                fields[name] = value
                self.seen.add(column)
        return Record(row.path, row.line, fields)

    def _selected(self, sql: list[str]) -> Iterator[Record]:
        """Yield the values of SQL expressions, along with the plain columns."""
        from scimult.data.importers import engine

        container = guess_format(self._paths[0]).container
        columns = engine.column_names(self._paths, container)
        missing = [name for name in self._needed if name.partition(".")[0] not in columns]
        if missing:
            raise DataError(
                f"file lacks the column {', '.join(missing)}",
                path=self._paths[0],
                value=columns,
                fix="correct its name",
            )
        self.seen.update(columns)
        rest = [column for column in self._names.values() if column not in sql]
        # For a dotted path, select the whole column: unlike SQL's, ours may lead through lists.
        heads = (name if name in columns else name.partition(".")[0] for name in rest)
        plain = [name for name in dict.fromkeys(heads) if name in columns]
        for row in engine.select(self._paths, container, sql, plain):
            yield self._renamed(row)

    def _is_read(self, name: str) -> bool:
        """Return whether a column is read, alone, on a path or in SQL."""
        word = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
        return any(
            column == name
            or ((_MARKS.search(column) or "." in column) and word.search(column) is not None)
            for column in self._names.values()
        )
