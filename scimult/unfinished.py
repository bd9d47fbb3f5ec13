"""Work on outputs that a repeated call resumes: only one call at a time, and no strays.

What is done may be kept in a folder next to the output until that is complete.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

from scimult.errors import StorageError
from scimult.files import discard, only_writer, storage_error
from scimult.locks import (
    OLD,
    exclusive,
    left_by_writers,
    lock_name,
    make_folder,
    remove_if_dead,
    remove_if_empty,
    remove_leftovers,
)

_LOCK = ".lock"


@contextmanager
def unfinished(out: Path) -> Iterator[Path]:
    """Yield the folder for what is done of ``out``, held by this process; then remove it.

    If the body raises, what it wrote there stays.

    Raises
    ------
    StorageError
        If another process holds the folder, or it cannot be written.
    """
    folder = _unfinished_name(out)
    try:
        with only_writer(folder, out):
            yield folder
            # The lock stays to the end: it may be another process's once it has no name.
            for path in folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                elif path.name != _LOCK:
                    path.unlink(missing_ok=True)
    finally:
        remove_if_empty(folder)


def alone_with(out: Path | None) -> AbstractContextManager[object]:
    """Return what keeps other calls from writing ``out``, if there is one; see `unfinished`."""
    return nullcontext() if out is None else unfinished(out)


@contextmanager
def only_call(out: Path) -> Iterator[None]:
    """Keep other processes from working on ``out`` while the body runs.

    Raises
    ------
    StorageError
        If one does already, or the folder of ``out`` cannot be written.
    """
    path = _named(out)
    with ExitStack() as locks:
        try:
            locks.callback(remove_if_empty, *make_folder(path.parent))
            locks.enter_context(exclusive(lock_name(path), out))
        except OSError as error:
            raise storage_error(error, out) from error
        yield


def remove_strays(out: Path) -> None:
    """Remove what a process left that was killed after it had completed ``out``.

    What a living process holds stays, and what is newer than ``out``: progress of its replacement.
    """
    if not out.name or out.name == "..":
        return
    remove_leftovers(out)
    remove_if_dead(lock_name(out))
    folder = _unfinished_name(out)
    with suppress(OSError, StorageError):
        if folder.is_dir() and _last_write(folder) <= _last_write(out):
            with unfinished(out):
                pass


def remove_replaced(folder: Path) -> None:
    """Remove what a process left of a folder's former content that was killed after replacing it.

    Nothing happens while another process writes the folder.
    """
    with suppress(OSError, StorageError), exclusive(lock_name(folder), folder):
        for old in left_by_writers(folder, OLD):
            discard(old, folder)
        remove_leftovers(folder)


def _unfinished_name(out: Path) -> Path:
    path = _named(out)
    return path.with_name(f".{path.name}.unfinished")


def _named(out: Path) -> Path:
    """Return a path whose last part is a name, so that it can have siblings."""
    return out if out.name and out.name != ".." else out.resolve()


def _last_write(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    times = (one.stat().st_mtime_ns for one in files if one.is_file() and one.name != _LOCK)
    return max(times, default=0)
