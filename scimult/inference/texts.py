"""What users call a text, made into a ``Text``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scimult.errors import DataError
from scimult.types import Kind, Text

# Fields of a mapping that are read, by kind: those of the title, then those of the body.
FIELDS: dict[Kind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "paper": (("title",), ("abstract", "text", "body")),
    "label": (("name", "title"), ("definition", "body")),
    "query": (("text", "query", "title"), ()),
}


def as_text(item: object, kind: Kind, place: int) -> Text:
    """Return ``item`` as a text of ``kind``.

    Parameters
    ----------
    item : Text, str or mapping
        A string is a query, or the title of a paper, or the name of a label. Of a mapping
        the first field present in ``FIELDS`` counts, ``None`` as empty. A ``Text`` stays.
    kind : {"paper", "label", "query"}
        What the task expects here.
    place : int
        Position in the user's list, for messages.

    Raises
    ------
    DataError
        If it is of another type, has no known field, or is empty.
    """
    if isinstance(item, Text):
        text = item
    elif isinstance(item, str):
        text = Text(kind, item.strip())
    elif isinstance(item, Mapping):
        titles, bodies = FIELDS[kind]
        if not any(name in item for name in (*titles, *bodies)):
            raise DataError(
                f"text {place} ({kind}) has none of the fields {', '.join((*titles, *bodies))}",
                value=sorted(map(str, item)),
                fix=f"name the {kind}'s text {titles[0]!r}",
            )
        text = Text(kind, _first(item, titles, place), _first(item, bodies, place))
    else:
        fix = "pass a string, a mapping or a scimult.types.Text"
        raise DataError(f"text {place} is of type {type(item).__name__}", value=item, fix=fix)
    if not (text.title.strip() or text.body.strip()):
        raise DataError(f"text {place} ({text.kind}) is empty", fix="leave it out or give it words")
    return text


def _first(item: Mapping[str, Any], names: tuple[str, ...], place: int) -> str:
    value = next((item[name] for name in names if item.get(name) is not None), "")
    if not isinstance(value, str):
        fix = f"write {' or '.join(names)} as a string"
        raise DataError(f"text {place} holds a {type(value).__name__}", value=value, fix=fix)
    return value.strip()
