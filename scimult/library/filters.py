"""Filters on a library's columns, as SQL or by name and value.

``{"year": (2019, None), "venue": ["ACL", "EMNLP"], "labels": "cs.CL"}`` means: from 2019 on, in one
of two venues, with this among its labels. Values are passed as SQL parameters, never as SQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Any

from scimult.data.sql import quoted
from scimult.errors import ConfigError, one_of
from scimult.inference.texts import is_missing
from scimult.library.values import as_python, as_text

Where = str | Mapping[str, Any]
# By columns of text. DuckDB refuses what is no value at all, such as a mapping.
_STORED_AS_TEXT = (bool, int, float, Decimal, date)


def as_sql(where: Where, types: Mapping[str, str]) -> tuple[str, list[Any]]:
    """Return a condition in SQL and its parameters, given the type of each column.

    A mapping has by column: a value, None (absent), several values (any of these: a list, set,
    range, array or a frame's column) or an inclusive pair (from, to), None for open. NaN, NA and
    NaT are None, but no end of a pair. On a column of lists a value matches any of its items; dates
    and pairs of them compare a column of text as dates.

    Raises
    ------
    ConfigError, UnknownNameError
        If it is neither SQL nor a mapping, a column is unknown or a value unusable.
    """
    given: object = where
    if not isinstance(given, (str, Mapping)):
        fix = 'pass SQL, or a mapping such as {"year": (2019, None)}'
        raise ConfigError("not a filter", value=given, fix=fix)
    if isinstance(where, str):
        if not where.strip():
            raise ConfigError("filter is empty", fix='write one such as "year >= 2020"')
        return f"({where}\n)", []  # a comment ends with its line
    terms, values = ["TRUE"], []
    for name, wanted in where.items():
        kind = types[one_of("column", name, types)]
        term, params = _term(quoted(name), kind, wanted)
        terms.append(term)
        values += params
    return " AND ".join(terms), values


def _term(column: str, kind: str, wanted: Any) -> tuple[str, list[Any]]:
    many = kind.endswith("[]")
    wanted = as_python(wanted)
    if wanted is None:
        return f"{column} IS NULL", []
    if isinstance(wanted, tuple):
        # Taken for an open end, a bound that came out as NaN would let everything pass.
        if len(wanted) != 2 or many or any(map(is_missing, wanted)):
            fix = "pass (from, to) on a column of single values, None where it is open"
            raise ConfigError(f"{column} does not take a range", value=wanted, fix=fix)
        ends = [as_python(end) for end in wanted]
        if _is_reversed(ends[0], ends[1], kind):
            fix = "swap its ends, or leave one open"
            raise ConfigError(f"{column}: the range ends before it starts", value=wanted, fix=fix)
        if kind == "VARCHAR" and any(isinstance(end, date) for end in ends):
            column = f"CAST({column} AS TIMESTAMP)"
        bounds = [(sign, end) for sign, end in zip((">=", "<="), ends, strict=True)]
        bounds = [(sign, end) for sign, end in bounds if end is not None]
        terms = [f"{column} {sign} ?" for sign, _ in bounds] or [f"{column} IS NOT NULL"]
        return f"({' AND '.join(terms)})", [end for _, end in bounds]
    # One value is as a list of it.
    items = [as_python(value) for value in (wanted if isinstance(wanted, list) else [wanted])]
    values = [value for value in items if value is not None]
    terms = [f"{column} IS NULL"] if len(values) < len(items) else []
    # Not as text alone: a frame's column of moments prints midnight, too, and a date does not.
    dates = [value for value in values if kind == "VARCHAR" and isinstance(value, date)]
    if dates:
        terms.append(f"TRY_CAST({column} AS TIMESTAMP) IN ({', '.join('?' * len(dates))})")
    if kind.startswith("VARCHAR"):
        values = [as_text(v) if isinstance(v, _STORED_AS_TEXT) else v for v in values]
    if values and many:
        terms.append(f"list_has_any({column}, ?)")
        values = [values]
    elif values:
        terms.append(f"{column} IN ({', '.join('?' * len(values))})")
    return f"({' OR '.join(terms) or 'FALSE'})", [*dates, *values]


def _is_reversed(start: Any, end: Any, kind: str) -> bool:
    """Return whether a range ends before it starts."""
    if kind != "VARCHAR" and isinstance(start, str) and isinstance(end, str):
        return False  # "9" and "10", which DuckDB casts to the column's type
    try:
        return bool(start > end)
    except TypeError:  # an open end, or kinds that DuckDB alone compares
        return False
