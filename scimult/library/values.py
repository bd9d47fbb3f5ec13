"""Values of columns: as they are stored, and as Python's own types."""

from __future__ import annotations

import json
from collections.abc import Set
from typing import Any

from scimult.inference.texts import is_missing

# How arrays, frames' columns and scalars of other libraries become values of Python: NumPy, pandas
# and torch; polars; Arrow.
_METHODS = ("tolist", "to_list", "to_pylist", "as_py")


def as_text(value: Any) -> str:
    """Return what a column of text holds of a value.

    What is no string is JSON; what JSON lacks (dates, decimals) is as it prints.
    """
    if isinstance(value, (bool, int, float, list, tuple, dict)):
        return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    return str(value)


def as_python(value: Any) -> Any:
    """Return an array, a frame's column, a range or a set as a list, and a scalar as Python's.

    What is missing in a frame (NaN, NA, NaT) is None, as where papers come from.
    """
    if is_missing(value):
        return None
    if isinstance(value, (range, Set)):
        return list(value)
    for method in _METHODS:
        if hasattr(value, method):
            return getattr(value, method)()
    return value
