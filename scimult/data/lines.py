"""Read input files line by line; errors name file, line, value and fix."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from scimult.data.formats import (
    HEAD_BYTES,
    LONGEST,
    json_form,
    read_elements,
    refuse_binary,
    restore_abstract,
)
from scimult.data.packed import open_binary, unpacked_name
from scimult.errors import DataError
from scimult.files import json_problem
from scimult.terminal import is_unicode

S = TypeVar("S")
T = TypeVar("T")

EXAMPLES_PER_REASON = 3


class Rejects:
    """Collects rejected records by reason.

    With ``skip_bad`` bad records are collected instead of raising at the first. ``log`` is a JSON
    lines file for every rejected record: reason, file, line and value. ``left_out`` are the ids of
    rejected papers; None is among them if one has no readable id.
    """

    def __init__(self, skip_bad: bool = False, log: Path | None = None) -> None:
        self.skip_bad = skip_bad
        self.log = log
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self.left_out: set[str | None] = set()

    def reject(self, error: DataError, identifier: str | None = None) -> None:
        """Count ``error`` under its problem; raise it unless bad records are skipped."""
        if not self.skip_bad:
            raise error
        self.left_out.add(identifier)
        self.counts[error.problem] += 1
        examples = self.examples.setdefault(error.problem, [])
        if len(examples) < EXAMPLES_PER_REASON:
            examples.append(str(error))
        if self.log is not None:
            entry = {
                "reason": error.problem,
                "file": str(error.path),
                "line": error.line,
                "value": repr(error.value),
            }
            with self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry, ensure_ascii=True) + "\n")

    def refuse(
        self, problem: str, path: Path, line: int | None = None, *, value: Any = None, fix: str
    ) -> None:
        """Reject a record with a new error; see ``reject``."""
        self.reject(DataError(problem, path=path, line=line, value=value, fix=fix))

    def keep(
        self,
        records: Iterable[S],
        parse: Callable[[S], T],
        identify: Callable[[S], str | None] = lambda record: None,
    ) -> Iterator[T]:
        """Yield ``parse(record)`` for each record; reject those that it refuses, by their id."""
        for record in records:
            try:
                parsed = parse(record)
            except DataError as error:
                self.reject(error, identify(record))
            else:
                yield parsed

    def because(self) -> str:
        """Return the rejects as a suffix for a problem: each reason's count and first example."""
        if not self.counts:
            return ""
        reasons = [
            f"{count:,} as in {self.examples[reason][0].partition('. Fix: ')[0]}"
            for reason, count in self.counts.most_common()
        ]
        return f"; left out: {', '.join(reasons)}"

    def summary(self) -> str:
        """Return each reason's count and first examples, a line each; empty if none."""
        lines = []
        for reason, count in self.counts.most_common():
            lines.append(f"left out {count:,}: {reason}")
            lines.extend(f"  e.g. {example}" for example in self.examples[reason])
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Record:
    """One object of a JSON lines file or one row of a table, with its location.

    A field that is missing, and has no default, or that is not of the wanted type is a
    ``DataError`` with file, line, value and fix. No string may hold a lone surrogate.
    """

    path: Path
    line: int
    fields: dict[str, Any]

    def error(self, problem: str, *, value: Any = None, fix: str) -> DataError:
        """Return an error located at this record."""
        return DataError(problem, path=self.path, line=self.line, value=value, fix=fix)

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string field; ``default``, if given, replaces a missing or null one."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self._wrong_type(name, "a string", value)
        self._check_unicode(name, value)
        return value

    def identifier(self, name: str) -> str:
        """Return a non-empty id; an integer, also as 1.0, becomes its decimal digits."""
        value = digits_of(self._value(name, None))
        identifier = Record(self.path, self.line, {name: value}).text(name).strip()
        if not identifier:
            raise self.error(f"field {name!r} is empty", fix="give every record an id")
        return identifier

    def strings(self, name: str, default: Sequence[str] | None = None) -> list[str]:
        """Return a list-of-strings field."""
        value = self._value(name, default)
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise self._wrong_type(name, "a list of strings", value)
        for item in value:
            if not isinstance(item, str):
                raise self._wrong_type(name, "a list of strings", value)
            self._check_unicode(name, item)
        return list(value)

    def identifiers(self, name: str) -> list[str]:
        """Return a list of ids, as ``identifier`` reads them; null is an empty list."""
        values = self.fields.get(name)
        if isinstance(values, list):
            values = list(map(digits_of, values))
        items = Record(self.path, self.line, {name: values}).strings(name, ())
        return [item.strip() for item in items]

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a 64-bit integer field, parsed from its decimal digits in a table."""
        value = self._value(name, default)
        if isinstance(value, str):
            try:
                value = int(value)
            except ValueError:
                raise self._wrong_type(name, "an integer", value) from None
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong_type(name, "an integer", value)
        if not -(2**63) <= value < 2**63:
            raise self._wrong_type(name, "a 64-bit integer", value)
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite number field, parsed from its decimal form in a table."""
        value = self._value(name, default)
        try:
            number = float(value) if not isinstance(value, bool) else float("nan")
        except (TypeError, ValueError, OverflowError):
            number = float("nan")
        if not abs(number) < float("inf"):
            raise self._wrong_type(name, "a finite number", value)
        return number

    def _value(self, name: str, default: Any) -> Any:
        value = self.fields.get(name)
        if value is not None:
            return value
        if default is not None:
            return default
        fix = f"add {name!r} to this record, or leave the record out with --skip-bad"
        if name in self.fields:
            raise self.error(f"field {name!r} is null", value=sorted(self.fields), fix=fix)
        # What one row of a table lacks, every row lacks.
        if unpacked_name(self.path).endswith((".csv", ".tsv")):
            fix = f"call the column that holds it {name!r}, on the first line"
        raise self.error(f"missing field {name!r}", value=sorted(self.fields), fix=fix)

    def _check_unicode(self, name: str, value: str) -> None:
        # Most text is ASCII, which is told faster.
        if not value.isascii() and not is_unicode(value):
            raise self.error(
                f"field {name!r} is not valid Unicode",
                value=value,
                fix="remove the lone \\ud800-\\udfff escape",
            )

    def _wrong_type(self, name: str, wanted: str, value: Any) -> DataError:
        return self.error(
            f"field {name!r} is not {wanted}", value=value, fix=f"write {name!r} as {wanted}"
        )


def digits_of(value: Any) -> Any:
    """Return the decimal digits of an integer, also as 1.0; other values as they are."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        value = int(value)
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def read_jsonl(path: Path | str, rejects: Rejects, *, arrays: bool = False) -> Iterator[Record]:
    """Yield the objects of a JSON lines file; ``.gz`` and the like are decompressed.

    Blank lines are skipped. Also reads a JSON array of objects, or a page of OpenAlex, Crossref or
    Semantic Scholar; ``Record.line`` is then the element's number. With ``arrays`` a line may be an
    array, whose items become the fields ``"0"``, ``"1"``, ... For CSV, BibTeX and the like the
    error has the command that reads them.

    Raises
    ------
    DataError
        If the file does not exist, or is CSV, BibTeX or the like (the message has the command
        that reads it); and, through ``rejects``, if it is empty or cut off, or a line is not
        UTF-8, not JSON or not an object.
    """
    path = Path(path)
    opening = None if arrays else find_objects(path)
    if opening is not None:
        yield from _read_elements(path, opening, rejects)
        return
    has_lines = False
    for number, line in read_lines(path, rejects):
        has_lines = True
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            detail = json_problem(error)
            if isinstance(error, json.JSONDecodeError):
                detail = f"{error.msg}; the file may be cut off"
            fix = f"write one complete JSON object per line ({detail})"
            rejects.refuse("line is not valid JSON", path, number, value=line, fix=fix)
            continue
        if arrays and isinstance(fields, list):
            fields = {str(i): item for i, item in enumerate(fields)}
        if not isinstance(fields, dict):
            fix = 'write one object per line, such as {"id": "1", "title": "..."}'
            rejects.refuse("line is not an object", path, number, value=fields, fix=fix)
            continue
        yield Record(path, number, restore_abstract(fields))
    if not has_lines:
        rejects.reject(empty_file(path))


def find_objects(path: Path) -> re.Pattern[str] | None:
    """Return the pattern of a JSON file's text before its objects; see ``formats.json_form``."""
    try:
        with open_binary(path) as file:
            start = file.read(HEAD_BYTES)
    except (EOFError, OSError):
        return None  # reading it reports the problem
    return json_form(path, start)


def _read_elements(path: Path, opening: re.Pattern[str], rejects: Rejects) -> Iterator[Record]:
    number = 0
    try:
        with open_binary(path) as file:
            elements = read_elements(io.TextIOWrapper(file, encoding="utf-8-sig"), opening)
            for number, value in enumerate(elements, start=1):
                if isinstance(value, dict):
                    yield Record(path, number, restore_abstract(value))
                    continue
                fix = "write an array of objects"
                rejects.refuse("element is not an object", path, number, value=value, fix=fix)
    except DataError:
        raise
    except (ValueError, RecursionError, EOFError) as error:
        detail = json_problem(error) if isinstance(error, RecursionError) else str(error)
        problem, fix = "JSON file is cut off or damaged", "copy or download the file again"
        rejects.refuse(problem, path, number + 1, value=detail, fix=fix)
        return
    if not number:
        rejects.reject(empty_file(path))


def read_lines(
    path: Path, rejects: Rejects, *, keep_blank: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield number and text of every line, by default without blank ones.

    Raises
    ------
    DataError
        If the file does not exist, cannot be read, is of another format or has a line of more than
        ``LONGEST`` bytes; and, through ``rejects``, if a line is not UTF-8 or a compressed file is
        cut off.
    """
    number = 0
    try:
        with open_binary(path) as file:
            for number, raw in enumerate(_split(file), start=1):
                if number == 1:
                    refuse_binary(path, raw)
                if len(raw) > LONGEST:
                    problem = f"line has more than {LONGEST:,} bytes"
                    fix = "write one record per line"
                    raise DataError(problem, path=path, line=number, value=raw[:60], fix=fix)
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    fix = f"save the file as UTF-8 ({error.reason} at byte {error.start}), as "
                    fix += "iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW does for a Windows file"
                    rejects.refuse("line is not UTF-8", path, number, value=raw[:60], fix=fix)
                    continue
                line = line.rstrip("\r\n")
                if keep_blank or line.strip():
                    yield number, line
    except EOFError as error:
        problem, fix = "compressed file is cut off or damaged", "copy or download the file again"
        rejects.refuse(problem, path, number + 1, value=str(error), fix=fix)
    except OSError as error:
        problem = f"file cannot be read: {error.strerror}"
        raise DataError(problem, path=path, fix="check the disk and its permissions") from error


def _split(file: BinaryIO) -> Iterable[bytes]:
    """Return a file's lines; they also end in carriage returns if its first one does.

    Old programs for the Mac write them so, and line feeds within values.
    """
    lines = iter(partial(file.readline, LONGEST + 1), b"")
    first = next(lines, b"")
    lines = chain((first,) if first else (), lines)
    if len(first) <= LONGEST and b"\r" in first.rstrip(b"\r\n"):
        return chain.from_iterable(map(bytes.splitlines, lines))
    return lines


def empty_file(path: Path, missing: str = "") -> DataError:
    """Return the error for a file without records, which says what is missing if it has text."""
    if missing and path.stat().st_size:
        fix = "check that it is the right file, and its format"
        return DataError(f"file has no {missing}", path=path, fix=fix)
    return DataError("file is empty", path=path, fix="write the file again or leave it out")
