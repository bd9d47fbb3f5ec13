"""Whether a folder has room for what is to be written."""

from __future__ import annotations

import shutil
from pathlib import Path

from scimult.errors import StorageError
from scimult.files import storage_error
from scimult.locks import temporary_name


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


def _size(number: int) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e8 else f"{number / 1e6:.1f} MB"
