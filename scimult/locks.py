"""Locks on what a process writes. They end with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scimult.errors import StorageError

_NOTE_BYTES = 500


@contextmanager
def exclusive(path: Path, guarded: Path) -> Iterator[None]:
    """Hold the lock file ``path`` while the body runs, and remove it at the end.

    On a file system without locks the body runs unlocked.

    Parameters
    ----------
    path : Path
        The lock file; its folder must exist.
    guarded : Path
        What the lock stands for, for the message.

    Raises
    ------
    StorageError
        If another process holds it; the message names process, host and time.
    OSError
        If the lock file cannot be made.
    """
    descriptor = _locked(path, guarded)
    try:
        note = f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%F %T')}"
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, note.encode(), 0)
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


def mark_as_living(path: Path) -> int:
    """Lock a temporary file or folder until the descriptor is closed; see ``remove_if_dead``."""
    descriptor = os.open(path, os.O_RDONLY)
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def remove_if_dead(path: Path) -> None:
    """Remove a temporary file or folder unless a living process has marked it."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        finally:
            os.close(descriptor)


def _locked(path: Path, guarded: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, _NOTE_BYTES, 0).decode(errors="replace")
            os.close(descriptor)
            raise StorageError(
                f"another process is writing here ({holder or 'it has just begun'})",
                path=guarded,
                fix="wait until it is done, or write elsewhere",
            ) from None
        except OSError:
            return descriptor  # a file system without locks
        with suppress(FileNotFoundError):
            # The one that held it may have removed the file that was opened here.
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        os.close(descriptor)
