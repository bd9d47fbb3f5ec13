"""Read delimited tables: CSV, TSV, and values separated by spaces."""

from __future__ import annotations

import csv
import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from scimult.data.lines import empty_file, read_lines
from scimult.data.packed import unpacked_name
from scimult.data.records import Record, Rejects
from scimult.errors import DataError, quoted_in_line, suggest

FIELD_LIMIT = 1 << 24
"""Longest value, in characters; the csv module's process-wide default is too low."""
# Excel's own first line, which tells the delimiter.
_EXCEL = re.compile(r'"?sep=([,;\t|])"?', re.IGNORECASE)
# What Dimensions writes above the header: the date of the export, the search, the rights.
_ABOUT = re.compile(r'"?About the data:\s', re.IGNORECASE)
# How to name or write a file whose header was not split, as it has a mark of another kind.
_OTHER_MARKS = {
    "\t": "tabs: end its name in .tsv",
    ";": "semicolons: separate them by commas (.csv) or tabs (.tsv)",
    ",": "commas: end its name in .csv",
    "|": "bars: separate them by commas (.csv) or tabs (.tsv)",
}
Line = tuple[int, str]


def read_table(path: Path | str, columns: Sequence[str], rejects: Rejects) -> Iterator[Record]:
    """Yield the rows of a table with a header line; every value is a string.

    ``.csv`` is split at commas, anything else at tabs without quoting; see ``read_delimited``.

    Raises
    ------
    DataError
        If the file does not exist or lacks one of ``columns``; and, through ``rejects``, if it is
        empty or cut off, or a row has the wrong number of values.
    """
    path = Path(path)
    separator = _separator(path)
    quoted = separator == ","
    return read_delimited(path, separator, rejects, columns=columns, quoted=quoted)


def read_header(path: Path, columns: Sequence[str]) -> tuple[int, list[str], str] | None:
    """Return a table's header line number, column names and separator; see ``read_table``.

    ``None`` if the file has no readable line.

    Raises
    ------
    DataError
        If the file does not exist or lacks one of ``columns``.
    """
    separator, rejects = _separator(path), Rejects(skip_bad=True)
    for number, values in _rows(path, separator, rejects, quoted=separator == ","):
        return number, check_columns(path, number, values, columns), separator
    return None


def _separator(path: Path) -> str:
    return "," if unpacked_name(path).endswith(".csv") else "\t"


def delimiter_of(path: Path) -> str:
    """Return the delimiter of a ``.csv`` file: comma, semicolon or tab."""
    lines = (line for _, line in read_lines(path, Rejects(skip_bad=True)))
    first = next((line for line in lines if not _ABOUT.match(line)), "")
    if (match := _EXCEL.fullmatch(first)) is not None:
        return match[1]
    try:
        counts = {mark: len(next(csv.reader([first], delimiter=mark), [])) for mark in ",;\t"}
    except csv.Error:
        return ","  # reading it reports the problem
    return max(counts, key=lambda mark: counts[mark])


def read_delimited(
    path: Path,
    delimiter: str | None,
    rejects: Rejects,
    *,
    columns: Sequence[str] = (),
    header: Sequence[str] = (),
    quoted: bool = True,
) -> Iterator[Record]:
    """Yield the rows of a delimited table; ``.gz`` and the like are decompressed.

    Blank lines are skipped. Without a ``delimiter`` values are separated by any spaces. The table
    has all ``columns``; ``"a|b"`` accepts either name and calls it ``a``, and other columns keep
    their names. A table without a header line has the columns of ``header``.

    If ``quoted``, double quotes protect delimiters and line ends. Between tabs, a value whose
    quotes are not balanced is text as it stands all the same: many tables are just joined with
    tabs.
    """
    names = list(header)
    number = 0
    for number, values in _rows(path, delimiter, rejects, quoted=quoted):
        if not names:
            names = check_columns(path, number, values, columns)
            continue
        # Some exports, as Web of Science's, end rows with a tab. A comma would be a text's, cut.
        if delimiter == "\t" and len(values) == len(names) + 1 and not values[-1]:
            del values[-1]
        if len(values) != len(names):
            wanted = f"{len(names)} values ({quoted_in_line(', '.join(names))})"
            fix = f"write {wanted}; the file may be cut off"
            text = (delimiter or " ").join(values)
            rejects.refuse("wrong number of values", path, number, value=text, fix=fix)
        else:
            yield Record(path, number, dict(zip(names, values, strict=True)))
    if not number:
        rejects.reject(empty_file(path))


def _rows(
    path: Path, delimiter: str | None, rejects: Rejects, *, quoted: bool
) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line number and the values of each row that is not blank."""
    csv.field_size_limit(FIELD_LIMIT)
    lines = read_lines(path, rejects, keep_blank=True)
    # Lines that a quoted value seemed to continue on, but did not.
    again: deque[Line] = deque()
    # A row that goes on after a line before this one fails there, as an earlier one did: within
    # quotes, where a row began makes no difference.
    failing, problem = 0, ""
    is_first = True
    while (line := again.popleft() if again else next(lines, None)) is not None:
        if not line[1].strip() or (is_first and _is_preamble(line[1])):
            continue
        is_first = False
        used = [line]
        try:
            if quoted and delimiter is not None and ('"' in line[1] or "\r" in line[1]):
                known = problem if line[0] < failing else ""
                following = _unless(known, chain(_taken(again), lines))
                values = _quoted(used, following, delimiter)
            else:
                values = _split(line[1], delimiter)
        except csv.Error as error:
            if len(used) > 1:
                failing, problem = used[-1][0], str(error)
            again.extendleft(reversed(used[1:]))
            del used[1:]
            if delimiter != "\t" or len(line[1]) > FIELD_LIMIT:
                fix = "close its quote, write a quote inside it twice, or shorten it"
                rejects.refuse(f"line is not CSV: {error}", path, line[0], value=line[1], fix=fix)
                continue
            values = _split(line[1], delimiter)
        if used[-1][0] - line[0] < len(used):
            yield line[0], values  # else one of its lines is no UTF-8, and was rejected


def _is_preamble(line: str) -> bool:
    """Return whether a program wrote this line above a table's header."""
    return (_EXCEL.fullmatch(line) or _ABOUT.match(line)) is not None


def _split(line: str, delimiter: str | None) -> list[str]:
    """Split a line at every delimiter; one value too long is the csv module's own error."""
    values = line.split(delimiter)
    if len(line) > FIELD_LIMIT and any(len(value) > FIELD_LIMIT for value in values):
        raise csv.Error(f"field larger than field limit ({FIELD_LIMIT})")
    return values


def _taken(lines: deque[Line]) -> Iterator[Line]:
    while lines:
        yield lines.popleft()


def _unless(problem: str, lines: Iterator[Line]) -> Iterator[Line]:
    if problem:
        raise csv.Error(problem)
    yield from lines


def _quoted(used: list[Line], following: Iterator[Line], delimiter: str) -> list[str]:
    """Return the values of the row that starts with the line in ``used``; add those it goes on in.

    A quoted value that does not end, or is too long, is a csv.Error; in a row of several lines, and
    between tabs, also one whose quotes are not balanced; between tabs, also one that holds line
    ends and tabs: it would swallow rows.
    """
    first = f"{used[0][1]}\n"
    if delimiter != "\t":
        lines = iter([first, ""])
        values = next(csv.reader(lines, delimiter=delimiter))
        if any(True for _ in lines):  # it did not ask for more
            return values

    def text() -> Iterator[str]:
        yield first
        for line in following:
            used.append(line)
            if delimiter == "\t" and "\t" in line[1].partition('"')[0]:
                raise csv.Error("a quoted value holds a row")
            yield f"{line[1]}\n"

    return next(csv.reader(text(), delimiter=delimiter, strict=True))


class MissingColumnError(DataError):
    """A table lacks ``columns``, by its header."""

    def __init__(self, columns: Sequence[str], problem: str, **location: Any) -> None:
        self.columns = columns
        super().__init__(problem, **location)


def check_columns(
    path: Path, line: int | None, values: Sequence[str], columns: Sequence[str]
) -> list[str]:
    """Return a table's column names, with accepted alternatives renamed; see ``read_delimited``."""
    names = [value.strip() for value in values]
    repeated = [name for name, count in Counter(names).items() if name and count > 1]
    if repeated:
        problem, fix = "two columns have the same name", "rename or remove one of them"
        raise DataError(problem, path=path, line=line, value=repeated[0], fix=fix)
    missing = []
    for column in columns:
        hits = [name for name in column.split("|") if name in names]
        if hits:
            names[names.index(hits[0])] = column.partition("|")[0]
        else:
            missing.append(column)
    if missing:
        wanted, lacking = (", ".join(some).replace("|", " or ") for some in (columns, missing))
        problem = f"file lacks the column {lacking}"
        fix = f"start the file with a header line with {wanted}{suggest(missing[0], names)}"
        fix = unsplit(names) or fix
        raise MissingColumnError(missing, problem, path=path, line=line, value=names, fix=fix)
    return names


def unsplit(names: Sequence[str]) -> str | None:
    """Return the fix for a table whose header was not split; None for another one."""
    mark = next((mark for mark in _OTHER_MARKS if len(names) == 1 and mark in names[0]), None)
    return f"its values are separated by {_OTHER_MARKS[mark]}" if mark else None
