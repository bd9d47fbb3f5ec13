"""Numpy's files: written atomically, and read where they may be damaged."""

from __future__ import annotations

import zlib
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np

from scimult.files import atomic_file

_OF_A_HEADER = (SyntaxError, TokenError)
_OF_AN_ARCHIVE = (*_OF_A_HEADER, BadZipFile, KeyError, NotImplementedError, zlib.error)


def load_array(path: Path, *, mapped: bool = False) -> Any:
    """Read, or memory-map, an array of ``numpy.save``.

    Raises
    ------
    OSError, EOFError, ValueError
        If the file is missing or damaged; numpy raises other errors for some damaged headers.
    """
    try:
        return np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except _OF_A_HEADER as error:
        raise ValueError(f"damaged header: {error}") from error


def load_arrays(path: Path) -> dict[str, Any]:
    """Read the arrays of ``numpy.savez`` by name.

    Raises
    ------
    OSError, EOFError, ValueError
        If the file is missing or damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except _OF_AN_ARCHIVE as error:
        raise ValueError(f"damaged archive: {error}") from error


def save_array(path: Path, array: Any) -> None:
    """Write an array for `load_array`, atomically."""
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        np.save(file, array)


def save_arrays(path: Path, **arrays: Any) -> None:
    """Write arrays as one ``.npz`` file for `load_arrays`, atomically."""
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)
