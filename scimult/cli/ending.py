"""How a verb ends that was killed, or that the system would not let go on."""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from scimult.errors import SciMultError

# What timeout, schedulers, containers and a closing terminal send.
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_FIXES = {
    errno.ENAMETOOLONG: "use a shorter name",
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path: a part of it is a file",
    errno.EISDIR: "name a file, not a folder",
    errno.ELOOP: "check the path: links in it lead to each other",
    errno.EMFILE: "allow more open files (ulimit -n)",
}


@contextmanager
def cleaned_up_when_killed() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the body as an exception does: nothing half-written stays.

    Who handles these signals on its own, as training does, is not disturbed. A second signal
    kills at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    ours = [number for number, handler in before.items() if handler is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def describe(error: OSError) -> SciMultError:
    """Return an error of the system with the place and a fix."""
    name = error.filename if isinstance(error.filename, str) else None
    number = -1 if error.errno is None else error.errno
    fix = _FIXES.get(number, "check the path, the disk and the network")
    place = None if name is None else name if len(name) <= 200 else f"{name[:200]}…"
    return SciMultError(error.strerror or str(error), path=place, fix=fix)


def _end(number: int, _: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(128 + number)
