"""File locks, and temporary names of unfinished files and folders.

A lock ends with its process, so an unlocked temporary file is the leftover of a killed process.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scimult.errors import BusyError

# Endings of a target's temporary siblings: its new content, and the folder that it replaces.
# Locks may not work across hosts, so the names contain the host.
UNFINISHED, OLD = ".tmp", ".old"
_HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:4]
_LEFT = re.compile(rf"\..+\.({_HOST}[0-9a-f]+({UNFINISHED}|{OLD})|lock|unfinished)")
_NOTE_BYTES = 500
_ATTEMPTS = 100


def temporary_name(path: Path, ending: str = UNFINISHED) -> Path:
    """Return a unique sibling of ``path`` for its new or its old content."""
    return path.with_name(f".{path.name}.{_HOST}{uuid.uuid4().hex[:8]}{ending}")


def lock_name(path: Path) -> Path:
    """Return the lock file of a folder that is replaced as a whole."""
    return path.with_name(f".{path.name}.lock")


def left_by_writers(path: Path, ending: str, host: str = "") -> list[Path]:
    """Return the temporary siblings of ``path``, of one host or of all."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.{host}[0-9a-f]+{re.escape(ending)}")
    siblings = os.listdir(path.parent) if path.parent.is_dir() else []
    return sorted(path.with_name(name) for name in siblings if pattern.fullmatch(name))


def is_left(path: Path) -> bool:
    """Return whether a killed process of this host left a path, by its name and its lock."""
    if not _LEFT.fullmatch(path.name):
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # a living one holds it, or a file system without locks cannot say
        return False
    finally:
        os.close(descriptor)
    return True


def remove_leftovers(path: Path) -> None:
    """Remove unfinished writes of ``path`` by dead processes of this host."""
    for leftover in left_by_writers(path, UNFINISHED, _HOST):
        remove_if_dead(leftover)


def remove_leftovers_in(folder: Path) -> None:
    """Remove unfinished writes in a folder, whatever their target, by dead processes of this host.

    For targets whose names are not used again.
    """
    for leftover in folder.glob(f".*.{_HOST}*{UNFINISHED}"):
        remove_if_dead(leftover)


@contextmanager
def exclusive(path: Path, guarded: Path) -> Iterator[None]:
    """Hold the lock file ``path`` while the body runs, and remove it at the end.

    On a file system without locks the body runs unlocked.

    Parameters
    ----------
    path : Path
        The lock file; its folder must exist.
    guarded : Path
        What the lock protects, for the message.

    Raises
    ------
    BusyError
        If another process holds it; the message names process, host and time.
    OSError
        If the lock file cannot be created.
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


def create_living(path: Path, *, folder: bool = False) -> int:
    """Create a temporary file or folder, and lock it until the returned descriptor is closed.

    Another process may remove it as a leftover before it is locked; it is then created again.

    Raises
    ------
    OSError
        If it cannot be created.
    """
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            if folder:
                path.mkdir(exist_ok=True)
            descriptor = os.open(path, os.O_RDONLY | (0 if folder else os.O_CREAT), 0o666)
        except FileNotFoundError:
            if not attempts_left or not path.parent.is_dir():
                raise
            continue
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is_at(descriptor, path):
            return descriptor
        os.close(descriptor)
    raise OSError(errno.EBUSY, "removed again and again by another process", str(path))


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of ``path`` that does not outlive the body.

    Removes those that killed processes left.

    Raises
    ------
    OSError
        If it cannot be created.
    """
    remove_leftovers(path)
    temporary = temporary_name(path)
    living = create_living(temporary, folder=True)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(living)


def make_folder(folder: Path) -> list[Path]:
    """Create a folder with those above it; return the new ones, for `remove_if_empty`.

    Raises
    ------
    OSError
        If it cannot be created.
    """
    new = [one for one in (folder, *folder.parents) if not os.path.exists(one)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        remove_if_empty(*new)
        raise
    return new


def remove_if_empty(*folders: Path) -> None:
    """Remove each folder, innermost first, unless it holds something or is not there."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def remove_if_dead(path: Path) -> None:
    """Remove a temporary file or folder unless a living process has locked it."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_at(descriptor, path):
                return
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        finally:
            os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file or folder is still what its path names."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _locked(path: Path, guarded: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, _NOTE_BYTES, 0).decode(errors="replace")
            os.close(descriptor)
            raise BusyError(
                f"another process is writing here ({holder or 'it has just begun'})",
                path=guarded,
                fix="wait until it is done, or write elsewhere",
            ) from None
        except OSError:
            return descriptor  # a file system without locks
        if _is_at(descriptor, path):
            return descriptor
        os.close(descriptor)  # of a file that the previous holder removed
