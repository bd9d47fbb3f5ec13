"""Whether a folder has room for what is to be written, and what to say if it had not."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from scimult.errors import StorageError
from scimult.files import storage_error
from scimult.locks import temporary_name

if TYPE_CHECKING:  # not at run time: `prepare --list` answers without numpy
    from numpy.typing import DTypeLike

    from scimult.types import FloatArray


def require_room(folder: Path, needed: int, what: str) -> None:
    """Create ``folder`` and check that it is writable and has room for ``needed`` more bytes.

    Raises
    ------
    StorageError
        If not; ``what`` names what needs the bytes.
    """
    probe = temporary_name(folder / "probe")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise storage_error(error, folder) from error
    if free < needed:
        raise StorageError(
            f"{what} need {_size(needed)} and {_size(free)} are free",
            path=folder,
            fix="free disk space, or write less or to another disk",
        )


@contextmanager
def naming_failed_writes(path: Path | str) -> Iterator[None]:
    """Turn a failure to write ``path`` into a message.

    safetensors and tokenizers raise the system's error as text.

    Raises
    ------
    StorageError
        If the system refused a write.
    """
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from error
    except Exception as error:
        match = re.search(r"os error (\d+)", str(error))
        if match is None and "I/O error" not in str(error):
            raise
        number = int(match[1]) if match else errno.EIO
        raise storage_error(OSError(number, os.strerror(number)), path) from error


def create_matrix(path: Path, dtype: DTypeLike, shape: tuple[int, int]) -> FloatArray:
    """Create a matrix in a file and map it.

    Its bytes are reserved: if the disk were full when one is set, the process would die of SIGBUS.

    Raises
    ------
    StorageError
        If the disk is full or the folder cannot be written.
    """
    import numpy as np

    with naming_failed_writes(path):
        stored_ND: FloatArray = np.lib.format.open_memmap(path, "w+", np.dtype(dtype), shape)
        if hasattr(os, "posix_fallocate"):  # not on macOS
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        return stored_ND


def _size(number: int) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e8 else f"{number / 1e6:.1f} MB"
