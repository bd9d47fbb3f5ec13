"""Members of one big JSON object, one at a time."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ijson

from scimult.data.lines import Record, Rejects, empty_file, open_binary
from scimult.errors import DataError


def read_members(path: Path, rejects: Rejects) -> Iterator[tuple[str, Record]]:
    """Yield name and value of every member of one big JSON object whose values are objects.

    Raises
    ------
    DataError
        If the file does not exist; and, through ``rejects``, if it is not such a file.
    """
    for number, (name, value) in enumerate(_members(path, rejects), start=1):
        if isinstance(value, dict):
            yield name, Record(path, number, value)
        else:
            fix = 'write {"id": {...}, ...}'
            rejects.reject(
                DataError("member is not an object", path=path, line=number, value=name, fix=fix)
            )


def _members(path: Path, rejects: Rejects) -> Iterator[tuple[str, Any]]:
    """Yield the members of a JSON object, one at a time."""
    has_members = False
    try:
        with open_binary(path) as file:
            for member in ijson.kvitems(file, "", use_float=True):
                has_members = True
                yield member
    except (ijson.JSONError, UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        fix = "copy or download the file again"
        problem = "JSON file is cut off or damaged"
        rejects.reject(DataError(problem, path=path, value=str(error), fix=fix))
        return
    if not has_members:
        rejects.reject(empty_file(path))
