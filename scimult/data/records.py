"""Records of input files with their place, and those that are rejected."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from scimult.data.packed import unpacked_name
from scimult.errors import DataError
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
