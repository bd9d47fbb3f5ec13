"""Tables of the libraries that people keep papers in, row by row; none of them is imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scimult.errors import DataError

# Rows of a frame that become mappings at once.
_ROWS = 1 << 12


def rows_of(table: Any) -> Iterator[Mapping[str, Any]] | None:
    """Return the rows of a table as mappings, an absent cell as None; None if it is no table.

    Parameters
    ----------
    table : object
        A pandas or polars frame, an Arrow table, batch or reader, or a mapping of columns to
        lists, as a slice of a ``datasets`` data set is. (Such a data set itself has rows for
        items.)

    Raises
    ------
    DataError
        If columns of a mapping have different lengths.
    """
    library = type(table).__module__.partition(".")[0]
    if library == "pandas" and hasattr(table, "columns"):
        return _of_pandas(table)
    if library == "polars" and hasattr(table, "iter_rows"):
        rows: Iterator[Mapping[str, Any]] = table.iter_rows(named=True)
        return rows
    if library == "pyarrow" and hasattr(table, "schema"):
        return _of_arrow(table)
    if isinstance(table, Mapping) and table and all(map(_is_column, table.values())):
        return _of_columns(table)
    return None


def _is_column(values: Any) -> bool:
    return isinstance(values, (list, tuple)) or type(values).__module__.startswith("datasets.")


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


def _of_columns(columns: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        fix = "give every text a cell in each"
        raise DataError("columns have different lengths", value=lengths, fix=fix)
    return (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
