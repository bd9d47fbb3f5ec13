"""Filters on a library's columns, as SQL or by name and value.

``{"year": (2019, None), "venue": ["ACL", "EMNLP"], "labels": "cs.CL"}`` is: from 2019 on, in one of
two venues, with a label among its labels. Values go to the data base beside the SQL, never in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scimult.errors import ConfigError, one_of

Where = str | Mapping[str, Any]


def as_sql(where: Where, types: Mapping[str, str]) -> tuple[str, list[Any]]:
    """Return a condition in SQL and the values that stand in it.

    Parameters
    ----------
    where : str or mapping
        A condition in SQL on the columns, or by column: a value, None (absent), a list (any of
        these) or a pair (from, to), both included, None for open. In a column of lists a value is
        one of the list.
    types : mapping of str to str
        The type of each column.

    Raises
    ------
    ConfigError, UnknownNameError
        If a column is not known, or a value of no use.
    """
    if isinstance(where, str):
        if not where.strip():
            raise ConfigError("filter is empty", fix='write one such as "year >= 2020"')
        return f"({where})", []
    terms, values = ["TRUE"], []
    for name, wanted in where.items():
        kind = types[one_of("column", name, types)]
        term, params = _term(quoted(name), kind, wanted)
        terms.append(term)
        values += params
    return " AND ".join(terms), values


def _term(column: str, kind: str, wanted: Any) -> tuple[str, list[Any]]:
    many = kind.endswith("[]")
    if wanted is None:
        return f"{column} IS NULL", []
    if isinstance(wanted, tuple):
        if len(wanted) != 2 or many:
            fix = "pass (from, to) on a column of single values, None where it is open"
            raise ConfigError(f"no range of {column}", value=wanted, fix=fix)
        bounds = [
            (sign, end) for sign, end in zip((">=", "<="), wanted, strict=True) if end is not None
        ]
        terms = [f"{column} {sign} ?" for sign, _ in bounds] or [f"{column} IS NOT NULL"]
        return f"({' AND '.join(terms)})", [end for _, end in bounds]
    if isinstance(wanted, (list, set, frozenset)):
        values = list(wanted)
        if not values:
            return "FALSE", []
        if many:
            return f"list_has_any({column}, ?)", [[str(value) for value in values]]
        return f"{column} IN ({', '.join('?' * len(values))})", values
    return (f"list_contains({column}, ?)" if many else f"{column} = ?"), [wanted]


def quoted(name: str) -> str:
    """Return the name of a column as SQL has it."""
    return '"' + name.replace('"', '""') + '"'
