"""What public files need besides rows: members of one big object, the hub, names of columns."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ijson

from scimult.data.lines import Record, Rejects, empty_file, open_binary
from scimult.data.rows import KINDS
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


def read_hub(repository: str, config: str, split: str) -> Iterator[Record]:
    """Yield the rows of a data set on the Hugging Face hub, streamed: nothing is kept on disk.

    Parameters
    ----------
    repository : str
        Such as ``allenai/scirepeval``, or a folder in the hub's layout.
    config, split : str
        Which part of it.

    Raises
    ------
    DataError
        If it cannot be opened, or the connection fails while it is read.
    """
    from datasets import load_dataset  # takes seconds to import

    path = Path(repository) / config / split
    try:
        rows = load_dataset(repository, config, split=split, streaming=True)
        for number, row in enumerate(rows, start=1):
            yield Record(path, number, row)
    except (OSError, ValueError) as error:
        fix = "check the name and the connection, or download the files and name their folder"
        problem = "data set of the hub cannot be read"
        raise DataError(problem, path=path, value=str(error), fix=fix) from error


def renamed(rows: Iterable[Record], columns: Mapping[str, str]) -> Iterator[Record]:
    """Yield the rows with the fields that ``columns`` maps: new name to the name in the file.

    A field that a row does not have stays away.
    """
    for row in rows:
        fields = {new: row.fields[old] for new, old in columns.items() if old in row.fields}
        yield Record(row.path, row.line, fields)


def named_files(folder: Path, stem: str) -> list[Path]:
    """Return the files of a hub-like folder that hold ``stem``, of any kind, in order.

    For ``train``: ``train.jsonl``, ``train.json.gz``, ``train-00000-of-00006.parquet``, or the
    files of a sub-folder ``train/``.
    """
    inner = folder / stem
    found = inner.iterdir() if inner.is_dir() else folder.glob(f"{stem}[-.]*")
    return sorted(
        path
        for path in found
        if path.is_file() and Path(path.name.removesuffix(".gz")).suffix in KINDS
    )


def _members(path: Path, rejects: Rejects) -> Iterator[tuple[str, Any]]:
    """Yield the members of a JSON object, one at a time."""
    found = False
    try:
        with open_binary(path) as file:
            for member in ijson.kvitems(file, "", use_float=True):
                found = True
                yield member
    except (ijson.JSONError, UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        fix = "copy or download the file again"
        problem = "JSON file is cut off or damaged"
        rejects.reject(DataError(problem, path=path, value=str(error), fix=fix))
        return
    if not found:
        rejects.reject(empty_file(path))
