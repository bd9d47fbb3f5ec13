"""A memory limit for the whole process: its allocations and its mapped files.

Linux counts both as resident (``RssAnon`` and ``RssFile``; ``top`` and ``getrusage`` show the sum).
DuckDB limits only its own allocations, so it gets what is left of the limit. Pages of mapped files
are released whenever they exceed their share: nothing is lost, they are read again when needed.
Systems other than Linux are left to manage mapped pages themselves.
"""

from __future__ import annotations

import ctypes
import math
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from scimult.errors import ConfigError
from scimult.preparation.mining.engine import Limits
from scimult.progress import note

_UNITS = {"K": 1, "M": 2, "G": 3, "T": 4}
# Share of the limit for pages of mapped files.
_MAPPED = 1 / 8
_LEAST_FOR_ENGINE = 256 << 20
_SECONDS = 0.05
# Safe if a file is unmapped and its addresses are reused while we look, where MADV_DONTNEED would
# clear the new data. Since Linux 5.4.
_MADV_PAGEOUT = 21
_STATUS, _MAPS = Path("/proc/self/status"), Path("/proc/self/maps")


@dataclass(frozen=True)
class Held:
    """Bytes that a process holds: allocated, and mapped from files."""

    own: int
    mapped: int


def held() -> Held:
    """Return the bytes that this process holds now; zeros if the system does not report them."""
    if not _STATUS.exists():
        return Held(0, 0)
    fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    own, mapped = (int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssFile"))
    return Held(own, mapped + int(fields["RssShmem"].split()[0]) * 1024)


def bytes_of(memory: str) -> int:
    """Return the bytes in a size such as ``4GB`` (of 1,000 MB) or ``4GiB`` (of 1,024 MiB)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT])(i?)B", memory.strip(), re.IGNORECASE)
    if match is None:
        raise ConfigError("not a valid memory limit", value=memory, fix="write it as 4GB")
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** _UNITS[match[2].upper()])


@contextmanager
def within(limits: Limits, folders: Sequence[Path], arrays: float = 1 / 8) -> Iterator[Limits]:
    """Keep this process below a memory limit while the body runs, and report its peak.

    Without a memory limit nothing is watched. The ``folders`` are those of mapped files whose pages
    may be released; ``arrays`` is the share of the limit for arrays, and for what engines overdraw.
    Yield what the engine may allocate. A limit that is invalid, or too low for the work, is a
    ConfigError.
    """
    if limits.memory is None:
        yield limits
        return
    limit, before = bytes_of(limits.memory), held()
    mapped, spare = int(_MAPPED * limit), int(arrays * limit)
    left = limit - before.own - before.mapped - mapped - spare
    if left < _LEAST_FOR_ENGINE:
        needed = (before.own + before.mapped + _LEAST_FOR_ENGINE) / (1 - _MAPPED - arrays)
        raise ConfigError(
            f"too little memory: this process holds {_named(before.own + before.mapped)} already",
            value=limits.memory,
            fix=f"give {math.ceil(needed / 1e8) / 10:.1f}GB or more",
        )
    with Watch(before.mapped + mapped, [folder.resolve() for folder in folders]) as watch:
        yield replace(limits, memory=f"{left >> 20}MiB")
    peak = watch.peak
    note(
        f"peak memory: {_named(watch.together)} (limit {limits.memory}); "
        f"own {_named(peak.own)}, mapped files {_named(peak.mapped)}"
    )


class Watch(threading.Thread):
    """Monitors the process's memory, and releases mapped pages beyond a number of bytes.

    A context manager: it monitors while the body runs.
    """

    def __init__(self, most_mapped: float = math.inf, folders: Sequence[Path] = ()) -> None:
        super().__init__(daemon=True)
        self._most, self._folders = most_mapped, folders
        self._stopped = threading.Event()
        self.peak, self.together = Held(0, 0), 0

    def run(self) -> None:
        """Look at regular intervals until stopped, and a last time then."""
        stopped = False
        while not stopped:
            stopped = self._stopped.wait(_SECONDS)
            now = held()
            self.peak = Held(max(self.peak.own, now.own), max(self.peak.mapped, now.mapped))
            self.together = max(self.together, now.own + now.mapped)
            if now.mapped > self._most:
                give_back(self._folders)

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.join()


def give_back(folders: Sequence[Path]) -> None:
    """Release this process's mapped pages of files below the folders.

    Nothing is lost: writes to a shared map go to the file, and pages are read again when needed.
    The files must belong to this user, and no other process may map them.
    """
    if not _MAPS.exists():
        return
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in _MAPS.read_text().splitlines():
        span, flags, _, _, _, *named = line.split(maxsplit=5)
        if not named or flags.startswith("rw-p"):
            continue
        path = Path(named[0].removesuffix(" (deleted)"))
        if any(path.is_relative_to(folder) for folder in folders):
            start, stop = (int(number, 16) for number in span.split("-"))
            madvise(start, stop - start, _MADV_PAGEOUT)


def _named(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
