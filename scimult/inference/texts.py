"""Turn whatever users pass as texts into ``Text``s, dropping nothing silently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from itertools import islice
from typing import Any, TypeAlias, TypeVar

import numpy as np

from scimult.data.importers.paper import ImportedPaper
from scimult.errors import ConfigError, DataError
from scimult.terminal import is_blank, is_one_line, is_unicode
from scimult.types import Kind, Text

# Texts, or a table of them; tables belong to libraries that need not be installed.
Texts: TypeAlias = Iterable[Any]
Fields = tuple[tuple[str, ...], tuple[str, ...]]

# Fields to read from a mapping, by kind: those of the title, then those of the body.
FIELDS: dict[Kind, Fields] = {
    "paper": (("title",), ("abstract", "text", "body")),
    "label": (("name", "title"), ("definition", "body")),
    "query": (("text", "query", "title"), ()),
}
# Names of titles and bodies in records of any kind; the last two bodies are never read.
_TITLES = ("title", "name")
_BODIES = ("abstract", "text", "body", "definition", "description", "summary")
_KNOWN = (*_TITLES, *_BODIES[:4])
_CLOSE = 0.75


def as_texts(items: Texts, kind: Kind) -> list[Text]:
    """Return a user's input as a list of texts of ``kind``, in its order.

    Parameters
    ----------
    items : iterable of Text, str or mapping; or a table
        Also a generator or a column of a table; items as in `as_text`, tables as in `rows_of`.
    kind : {"paper", "label", "query"}
        The kind that the task expects.

    Raises
    ------
    DataError
        If it is a single text, a table of another library (which would be read as its column
        names), unordered or not iterable; or if an item is not a text.
    """
    return [as_text(item, kind, index) for index, item in enumerate(_items(items))]


def in_blocks(items: Texts, kind: Kind, size: int) -> Iterator[list[Text]]:
    """Yield the texts of `as_texts` in lists of ``size``, reading no further ahead.

    Raises
    ------
    DataError
        As `as_texts`; for an item when its block is reached.
    ConfigError
        If ``size`` is not positive.
    """
    if size < 1:
        raise ConfigError("a block has no texts", value=size, fix="use 1 or more")
    numbered = enumerate(_items(items))
    while block := [as_text(item, kind, index) for index, item in islice(numbered, size)]:
        yield block


def _items(items: Texts) -> Iterable[Any]:
    rows = rows_of(items)
    if rows is not None:
        return rows
    if type(items).__module__.startswith("pyarrow") and hasattr(items, "to_pylist"):
        return (value.as_py() for value in items)
    if isinstance(items, (str, bytes, Text, Mapping)):
        raise DataError("texts is a single text", value=items, fix="pass a list of texts")
    if hasattr(items, "columns"):
        fix = "pass its rows, as mappings with title and abstract"
        raise DataError(f"texts is a table ({type(items).__name__})", fix=fix)
    if isinstance(items, (set, frozenset)) or not isinstance(items, Iterable):
        problem = f"texts is of type {type(items).__name__}"
        raise DataError(problem, value=items, fix="pass a list of texts")
    return items


def as_text(item: object, kind: Kind, index: int) -> Text:
    """Return ``item`` as a text of ``kind``.

    Parameters
    ----------
    item : Text, str, mapping or ImportedPaper
        A string is a query, a paper's title or a label's name. Of a mapping, the first field in
        ``FIELDS`` with text counts; ``None`` is empty. A ``Text`` is returned unchanged.
    kind : {"paper", "label", "query"}
        The kind that the task expects.
    index : int
        Position in the user's list, for messages.

    Raises
    ------
    DataError
        If it is of another type, has no known field, has text in a field that is not read, is
        empty, or holds an unpaired surrogate.
    """
    if isinstance(item, Text):
        text = item
    elif isinstance(item, ImportedPaper):
        text = item.text
    elif isinstance(item, str):
        text = Text(kind, item.strip())
    elif isinstance(item, Mapping):
        text = _of_mapping(item, kind, index)
    else:
        fix = "pass a string, a mapping, a paper of read_papers or a scimult.types.Text"
        raise DataError(f"text {index} is of type {type(item).__name__}", value=item, fix=fix)
    for part in (text.title, text.body):
        if not isinstance(part, str) or not is_unicode(part):
            problem = f"text {index} ({text.kind}) is not a string of characters"
            fix = "decode its bytes in their encoding (UTF-8, Latin-1): it has unpaired surrogates"
            raise DataError(problem, value=part, fix=fix)
    if is_blank(text.title) and is_blank(text.body):
        raise DataError(f"text {index} ({text.kind}) is empty", fix="leave it out or give it words")
    return text


def paper_of(item: object, index: int) -> tuple[Mapping[Any, Any], Text]:
    """Return the fields and the text of a user's paper, as a mapping or from ``read_papers``.

    A whole number is an id, and NaN is None.

    Raises
    ------
    DataError
        If it is of another type, or has no id of one line, or for its text; see `as_text`.
    """
    if isinstance(item, ImportedPaper):
        return item.fields(), item.text
    if not isinstance(item, Mapping):
        fix = 'pass mappings such as {"id": "p1", "title": "...", "abstract": "..."}'
        raise DataError(f"paper {index} is of type {type(item).__name__}", fix=fix)
    fields = {key: _plain(value) for key, value in item.items()}
    given = fields.get("id", fields.get("_id"))
    name = id_of(given)
    if name is None or not name.strip() or not is_one_line(name):
        fix = "give every paper an id: a string without line breaks, or a whole number"
        raise DataError(f"paper {index} has no id, or not one line", value=given, fix=fix)
    fields["id"] = name
    return fields, as_text(fields, "paper", index)


def id_of(value: object) -> str | None:
    """Return an id as a string: whole numbers, also as 1.0, as their digits; None if it is none."""
    value = _plain(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else None


def _plain(value: Any) -> Any:
    """Convert a value to plain Python: NaN and pandas' NA and NaT to None, sets to sorted lists."""
    value = value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    return None if is_missing(value) else value


def is_missing(value: object) -> bool:
    """Return whether a value is NaN, or NA or NaT of pandas or NumPy."""
    is_nan = isinstance(value, (float, np.generic)) and value != value
    return is_nan or type(value).__name__ in ("NAType", "NaTType")


def unread_text(item: Mapping[Any, Any], kind: Kind, fields: Fields) -> DataError | None:
    """Return an error if a record has text in a field that this kind does not read.

    That is a field of another kind of record or, if the title or the body is missing, one whose
    name resembles theirs. Other fields (year, doi, authors, ...) are ignored.
    """
    written = [
        key
        for key, value in item.items()
        if isinstance(key, str) and isinstance(value, str) and value.strip()
    ]
    titles, bodies = (() if set(names) & set(written) else names for names in fields)
    for key in written:
        if key in fields[0] or key in fields[1]:
            continue
        plain = key.casefold()
        guesses = get_close_matches(plain, [*titles, *bodies], n=1, cutoff=_CLOSE)
        # Vocabularies, which scimult tagger reads, call a label's name so.
        is_title = plain in _TITLES or plain == kind == "label"
        guesses += titles[:1] if is_title else bodies[:1] if plain in _BODIES else ()
        if key in _KNOWN or (guesses and not plain.endswith("id")):
            read = " and ".join(" or ".join(names) for names in fields if names)
            fix = f"name it {guesses[0]!r}" if guesses else f"leave it out: a {kind} has {read}"
            if kind == "query" and key in FIELDS["paper"][1]:
                fix += "; papers to be found have the role 'candidate'"
            problem = f"{kind} has text under {key!r}, which is not read"
            return DataError(problem, value=item[key], fix=fix)
    return None


def _of_mapping(item: Mapping[Any, Any], kind: Kind, index: int) -> Text:
    titles, bodies = FIELDS[kind]
    if not any(name in item for name in (*titles, *bodies)):
        problem = f"text {index} ({kind}) has none of the fields {', '.join((*titles, *bodies))}"
        fix = f"name the {kind}'s text {titles[0]!r}"
        raise DataError(problem, value=sorted(map(str, item)), fix=fix)
    if error := unread_text(item, kind, FIELDS[kind]):
        raise DataError(f"text {index}: {error.problem}", value=error.value, fix=error.fix)
    return Text(kind, _first(item, titles, index), _first(item, bodies, index))


def _first(item: Mapping[Any, Any], names: tuple[str, ...], index: int) -> str:
    given = [item[name] for name in names if item.get(name) is not None]
    value = next((one for one in given if not (isinstance(one, str) and not one.strip())), "")
    if not isinstance(value, str):
        fix = f"write {' or '.join(names)} as a string"
        if _plain(value) is None:
            fix = "write an empty cell as None or an empty string (pandas: frame.fillna(''))"
        raise DataError(f"text {index} holds a {type(value).__name__}", value=value, fix=fix)
    return value.strip()


# Rows of a frame converted to mappings at once.
_ROWS = 1 << 12


def rows_of(table: Any) -> Iterator[Mapping[str, Any]] | None:
    """Return a table's rows as mappings, with None for missing cells; None if it is no table.

    Parameters
    ----------
    table : object
        A pandas or polars frame, an Arrow table, batch or reader, or a mapping of columns to
        lists, arrays or tensors, such as a slice of a ``datasets`` data set; or a whole such data
        set.

    Raises
    ------
    DataError
        If columns of a mapping have different lengths, two of a table have the same name, a frame
        is lazy, or a data set has splits.
    """
    library = type(table).__module__.partition(".")[0]
    if library == "pandas" and hasattr(table, "columns"):
        _check_names(table.columns)
        return _of_pandas(table)
    if library == "polars" and hasattr(table, "iter_rows"):
        rows: Iterator[Mapping[str, Any]] = table.iter_rows(named=True)
        return rows
    if library == "polars" and hasattr(table, "collect"):
        raise DataError("a lazy frame has no rows yet", fix="pass frame.collect()")
    if library == "pyarrow" and hasattr(table, "schema"):
        _check_names(table.schema.names)
        return _of_arrow(table)
    if library == "datasets" and isinstance(table, Mapping):
        problem = "several splits of a data set"  # what load_dataset returns without split=
        raise DataError(problem, value=list(table), fix="pass one, such as data['train']")
    if isinstance(table, Mapping):
        return _of_columns(table) if table and all(map(_is_column, table.values())) else None
    if library == "datasets" and hasattr(table, "with_format"):
        return _of_data_set(table)
    return None


def _check_names(names: Iterable[Any]) -> None:
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        fix = "rename or drop all but one"
        raise DataError("columns have the same name", value=repeated, fix=fix)


def _is_column(values: Any) -> bool:
    is_array = len(getattr(values, "shape", ())) > 0  # also tensors and columns of frames
    is_list = isinstance(values, (list, tuple)) or type(values).__module__.startswith("datasets.")
    return is_array or is_list


def _of_pandas(frame: Any) -> Iterator[Mapping[str, Any]]:
    for start in range(0, len(frame), _ROWS):
        part = frame.iloc[start : start + _ROWS].astype(object)
        yield from part.where(part.notna(), None).to_dict("records")


def _of_arrow(table: Any) -> Iterator[Mapping[str, Any]]:
    if hasattr(table, "to_batches"):
        batches = table.to_batches(max_chunksize=_ROWS)
    else:
        batches = [table] if hasattr(table, "num_rows") else table
    for batch in batches:
        yield from batch.to_pylist()


def _of_data_set(data_set: Any) -> Iterator[Mapping[str, Any]]:
    """Yield rows as Python's values: in other formats they are frames, or hold arrays."""
    output_format = getattr(data_set, "format", {})
    if output_format.get("type") == "custom":  # the user's own function makes the rows
        return iter(data_set)
    columns = {"columns": output_format["columns"]} if output_format else {}
    rows: Iterator[Mapping[str, Any]] = iter(data_set.with_format(None, **columns))
    return rows


def _of_columns(columns: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        fix = "give every column the same number of cells"
        raise DataError("columns have different lengths", value=lengths, fix=fix)
    cells = map(_cells, columns.values())
    return (dict(zip(columns, row, strict=True)) for row in zip(*cells, strict=True))


def _cells(values: Any) -> Any:
    """Return the cells of a column, None for those that pandas calls missing."""
    return values.astype(object).where(values.notna(), None) if hasattr(values, "notna") else values


_In = TypeVar("_In")
_Out = TypeVar("_Out")


def made_ahead(make: Callable[[_In], _Out], items: Iterable[_In]) -> Iterator[_Out]:
    """Yield ``make(item)`` for every item, making the next one in a thread meanwhile."""
    remaining = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="tokenise") as thread:
        pending = [thread.submit(make, item) for item in islice(remaining, 1)]
        while pending:
            result = pending.pop().result()
            pending += [thread.submit(make, item) for item in islice(remaining, 1)]
            yield result
