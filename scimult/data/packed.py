"""Open input files, decompressed as their names tell."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from scimult.errors import DataError

_BLOCK = 1 << 16


class _Streams:
    """Bytes of a file of one or more compressed streams; zero bytes may stand between them.

    ``bz2.open`` and ``lzma.open`` take the rest of a file for no data, in silence, where no stream
    starts: after such padding, and where the start of a stream is damaged.
    """

    def __init__(self, path: Path, start: Callable[[], Any]) -> None:
        self._file, self._start = path.open("rb"), start
        self._stream: Any = None
        self._rest = b""

    def read1(self, size: int) -> bytes:
        """Return at most ``size`` bytes, none at the end."""
        data = b""
        while not data:
            if self._stream is None:
                if not (packed := self._after_padding()):
                    return b""
                self._stream = self._start()
            elif not self._stream.needs_input:
                packed = b""
            elif not (packed := self._file.read(_BLOCK)):
                raise EOFError("the last stream has no end")
            data = self._stream.decompress(packed, size)
            if self._stream.eof:
                self._rest, self._stream = self._stream.unused_data, None
        return data

    def _after_padding(self) -> bytes:
        packed = self._rest.lstrip(b"\0")
        while not packed and (block := self._file.read(_BLOCK)):
            packed = block.lstrip(b"\0")
        return packed

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _open_zst(path: Path) -> Any:
    import pyarrow as pa

    return pa.input_stream(str(path), compression="zstd")


UNPACK: Mapping[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": partial(_Streams, start=bz2.BZ2Decompressor),
    ".xz": partial(_Streams, start=lzma.LZMADecompressor),
    ".zst": _open_zst,
}
"""Functions that open compressed files, by the last suffix of a name."""


_FROM_PIPE = "write what it gives to a file first, whose name tells its format"


def no_file(path: Path) -> DataError:
    """Return the error for a file that does not exist; ``-`` stands for none here."""
    if str(path) == "-":
        problem = "standard input is not read, as files are read more than once"
        return DataError(problem, path=path, fix=_FROM_PIPE)
    return DataError("file does not exist", path=path, fix="check the path")


def open_binary(path: Path) -> io.BufferedReader:
    """Open a file, which must exist, for reading bytes; decompress it as its name tells.

    Reading a compressed file that is cut off or damaged is an EOFError.
    """
    if path.is_fifo():
        raise DataError("is a pipe, and files are read more than once", path=path, fix=_FROM_PIPE)
    try:
        if path.suffix in UNPACK:
            return io.BufferedReader(_Unpacked(UNPACK[path.suffix](path)), _BLOCK)
        return path.open("rb")
    except FileNotFoundError:
        raise no_file(path) from None


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
    """Return whether a compressed file ends where it should.

    Reads only files of which DuckDB, when they are cut off, reads what there is in silence.
    """
    unchecked = path.suffix == ".zst" or (path.suffix == ".gz" and not _checks_gzip())
    with suppress(EOFError), open_binary(path) as file:
        while unchecked and file.read(_BLOCK):
            pass
        return True
    return False


@cache
def _checks_gzip() -> bool:
    import duckdb

    return int(duckdb.__version__.partition(".")[0]) >= 2


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
