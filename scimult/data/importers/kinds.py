"""Find the SQL type of JSON values: one for a column, whatever its records hold.

A kind is the name of a type, ``[kind]`` for lists, ``{name: kind}`` for objects, ``{None: kind}``
for objects with names of their own (SQL's maps), or None where every value is null.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from scimult.data.sql import quoted

TEXT = "VARCHAR"
# Each also holds the numbers of those before it.
_NUMBERS = ("BIGINT", "HUGEINT", "DOUBLE")
_BITS = {63: "BIGINT", 127: "HUGEINT"}
# Objects with more names in all do not have fields but keys, such as ids or words.
_MOST_FIELDS = 200


def kind_of(value: Any) -> Any:
    """Return the kind of a value that was read from JSON."""
    if value is None or isinstance(value, str):
        return None if value is None else TEXT
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, float):
        return "DOUBLE"
    if isinstance(value, int):
        bits = value.bit_length()
        return next((kind for most, kind in _BITS.items() if bits <= most), TEXT)
    if isinstance(value, list):
        return [reduce(joined, map(kind_of, value), None)]
    return _fields({name: kind_of(item) for name, item in value.items()})


def joined(one: Any, other: Any) -> Any:
    """Return the kind of values of either kind: text, with other values as JSON, if they differ."""
    if other is None or one == other:
        return one
    if one is None:
        return other
    if isinstance(one, list) and isinstance(other, list):
        return [joined(one[0], other[0])]
    if isinstance(one, dict) and isinstance(other, dict):
        more = {name: joined(one.get(name), kind) for name, kind in other.items()}
        return _fields({**one, **more})
    if one in _NUMBERS and other in _NUMBERS:
        return max(one, other, key=_NUMBERS.index)
    return TEXT


def sql_type(kind: Any) -> str:
    """Return the SQL type of a kind."""
    if isinstance(kind, list):
        return f"{sql_type(kind[0])}[]"
    if isinstance(kind, dict):
        if not kind or None in kind:
            return f"MAP({TEXT}, {sql_type(kind.get(None))})"
        fields = (f"{quoted(name)} {sql_type(item)}" for name, item in kind.items())
        return f"STRUCT({', '.join(fields)})"
    return kind or TEXT


def _fields(fields: dict[str | None, Any]) -> dict[str | None, Any]:
    """Return the kind of objects with these fields, which SQL cannot tell apart by case alone."""
    names = {name if name is None else name.casefold() for name in fields}
    if len(names) < len(fields) or len(names) > _MOST_FIELDS or names & {None, ""}:
        return {None: reduce(joined, fields.values(), None)}
    return fields
