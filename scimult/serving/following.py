"""What a service has read from files that other processes change while it serves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from scimult.errors import SciMultError
from scimult.progress import warn

_T = TypeVar("_T")
_Stamp = tuple[int, int, int]


class Following(Generic[_T]):
    """A value read from a file or folder, and read again when ``file`` changes.

    ``file`` is the file itself, or the one in the folder that each change replaces. ``what`` names
    the value in messages.
    """

    def __init__(self, what: str, file: Path, read: Callable[[], _T]) -> None:
        self.what, self.file, self._read = what, file, read
        self._swapping = threading.Lock()
        self._stamp = _stamp_of(file)
        self.value = read()
        self.problem: str | None = None

    def change(self, how: Callable[[_T], _T]) -> _T:
        """Replace the value by what ``how`` makes of it, and return that."""
        with self._swapping:
            self.value = how(self.value)
            return self.value

    def follow(self) -> bool:
        """Read the value again if the file changed; return whether it did.

        If it cannot be read, ``problem`` says why, and the former value stays.
        """
        with self._swapping:
            try:
                stamp = _stamp_of(self.file)
                if stamp == self._stamp:
                    self.problem = None
                    return False
                self.value = self._read()
                self._stamp, self.problem = stamp, None
            except Exception as error:  # any other would end the watch silently
                problem = _public(error)
                if problem != self.problem:
                    warn(f"still serving the former {self.what}: {error}")
                self.problem = problem
                return False
        return True


def _stamp_of(file: Path) -> _Stamp | None:
    """Return what differs between the files of one name; None if there is none."""
    try:
        stat = file.stat()
    except FileNotFoundError:
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


def _public(error: Exception) -> str:
    """Return what is wrong without paths of this machine, which ``/health`` must not show."""
    if isinstance(error, SciMultError):
        return error.problem
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__
