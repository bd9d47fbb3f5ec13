"""Open input files, decompressed as their names tell."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from scimult.errors import DataError

_BLOCK = 1 << 16


def _open_zst(path: Path) -> Any:
    import pyarrow as pa

    return pa.input_stream(str(path), compression="zstd")


UNPACK: Mapping[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _open_zst,
}
"""Functions that open compressed files, by the last suffix of a name."""


def open_binary(path: Path) -> io.BufferedReader:
    """Open a file, which must exist, for reading bytes; decompress it as its name tells.

    Reading a compressed file that is cut off or damaged is an EOFError.
    """
    if path.is_fifo():
        fix = "write what it gives to a file first"
        raise DataError("is a pipe, and files are read more than once", path=path, fix=fix)
    try:
        if path.suffix in UNPACK:
            return io.BufferedReader(_Unpacked(UNPACK[path.suffix](path)), _BLOCK)
        return path.open("rb")
    except FileNotFoundError:
        raise DataError("file does not exist", path=path, fix="check the path") from None


def variants(path: Path) -> list[Path]:
    """Return a path, and those of the same file compressed."""
    return [path, *(path.with_name(path.name + suffix) for suffix in UNPACK)]


def packed_or_plain(path: Path) -> Path:
    """Return ``path``, or a compressed file if only that exists; for tables and JSON lines."""
    may_be_packed = path.suffix in (".jsonl", ".csv", ".tsv")
    return next(filter(Path.exists, variants(path) if may_be_packed else ()), path)


def unpacked_name(path: Path) -> str:
    """Return a file's name without the suffix of its compression."""
    return path.stem if path.suffix in UNPACK else path.name


def is_whole(path: Path) -> bool:
    """Return whether a Zstandard file ends where it should; other files are not read.

    DuckDB reads one that is cut off without an error, unlike other compressed files.
    """
    with suppress(EOFError), open_binary(path) as file:
        while path.suffix == ".zst" and file.read(_BLOCK):
            pass
        return True
    return False


class _Unpacked(io.RawIOBase):
    """The bytes of a compressed file; if it is cut off or damaged, reading is an EOFError."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        """Return true."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read at most as many bytes as the buffer holds; return their number."""
        try:
            data = self._file.read1(len(buffer))
        except (OSError, zlib.error, lzma.LZMAError) as error:
            if getattr(error, "errno", None) is not None:
                raise  # the disk's error
            raise EOFError(str(error)) from error
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()
