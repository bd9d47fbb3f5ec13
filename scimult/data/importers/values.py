"""What the values of a record hold: lists and keywords in one text, years, nothing."""

from __future__ import annotations

import ast
import html
import json
import re
from collections.abc import Mapping
from typing import Any

from scimult.data.records import Record
from scimult.terminal import is_blank

_KEYWORD_END = re.compile("[;,]")
_YEAR = re.compile(r"(?<!\d)(1[4-9]\d\d|20\d\d)(?!\d)")
_NO_YEAR = re.compile(
    r"0?|n\.?\s?[ad]\.?|n/a|<na>|nan|nat|none|null|unknown|in press|forthcoming|to appear"
    r"|submitted|accepted",
    re.I,
)
# A list in one text, as JSON, Python (so pandas in CSV) and numpy (without commas) write it.
_ITEM = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|-?\d+""", re.DOTALL)
_WRITTEN_LIST = re.compile(
    rf"\s*\[\s*(?:(?:{_ITEM.pattern})(?:\s*,\s*|\s+|(?=\])))*\]\s*", re.DOTALL
)
# Text whose backslashes all begin what Python writes for a character; LaTeX's \alpha does not.
_ESCAPED = re.compile(r"""(?:[^\\]|\\(?:[\\'"nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}))*""")


def first(fields: Mapping[str, Any], *names: str) -> Any:
    """Return the first of these fields that is neither empty nor a blank text, or ``None``."""
    for name in names:
        value = fields.get(name)
        is_empty = is_blank(value) if isinstance(value, str) else value in ([], {})
        if not is_empty and not is_missing(value):
            return value
    return None


def is_missing(value: Any) -> bool:
    """Return whether a value is None or, as arrays and frames write it, NaN."""
    return value is None or (isinstance(value, float) and value != value)


def list_in(text: str, separator: str) -> list[Any]:
    """Return the items of a list that is written as one text.

    >>> list_in("['a;b', 'c']", ";"), list_in("R&amp;D; c", ";")
    (['a;b', 'c'], ['R&D', ' c'])
    """
    if _WRITTEN_LIST.fullmatch(text) is None:
        return html.unescape(text).split(separator)
    try:
        items: list[Any] = json.loads(text)
    except ValueError:
        unquoted = _unescaped if _ESCAPED.fullmatch(text) else _within_quotes
        items = [unquoted(item) for item in _ITEM.findall(text)]
    return items


def keywords_in(text: str) -> list[str]:
    """Return the keywords in one text, which semicolons or commas separate.

    >>> keywords_in("R&amp;D, graphs; trees;")
    ['R&D', 'graphs', 'trees']
    """
    words = map(str.strip, _KEYWORD_END.split(html.unescape(text)))
    return [word for word in words if word]


def _unescaped(item: str) -> str:
    try:
        return str(ast.literal_eval(item))
    except (SyntaxError, ValueError):  # an id such as 007
        return _within_quotes(item)


def _within_quotes(item: str) -> str:
    return item.strip("'\"")


def year_in(value: Any) -> int | None:
    """Return the year in a number, a date or a text; ``None`` if there is none.

    >>> year_in("May 2012"), year_in("forthcoming")
    (2012, None)
    """
    match = _YEAR.search(str(value))
    return int(match[0]) if match else None


def year_of(record: Record) -> int | None:
    """Return the year in the field ``year``, which may be a date.

    ``None`` if it is unknown, which includes empty values, "n.d." and "in press".

    Raises
    ------
    DataError
        If the field holds anything else.
    """
    value = record.fields.get("year")
    if value is None:
        return None
    year = year_in(value)
    if year is not None:
        return year
    if _NO_YEAR.fullmatch(str(value).strip()):
        return None
    raise record.error(
        "no year in the field 'year'",
        value=value,
        fix="name the column with the year or a date, or none (--column year=; in prepare table "
        "papers.columns.year=null)",
    )
