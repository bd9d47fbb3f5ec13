"""The heap of a process: what its allocator keeps, and when gaps between blocks are given back."""

from __future__ import annotations

import ctypes
import resource
import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
# How much larger a process may grow by the gaps between its blocks.
_LARGEST_GROWTH = 1.5
# CPU seconds between two times, per GiB. The system takes half a second to clear it again, so small
# quick steps lose a fortieth of their time and not a fifth.
_SECONDS_BETWEEN = 20.0
_OWN_PAGES = Path("/proc/self/statm")


class _Blocks(ctypes.Structure):
    """glibc's ``struct mallinfo2``, in bytes; both used fields come to all blocks in use."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks")),
        ("keepcost", ctypes.c_size_t),
    ]


def keep_freed_memory() -> None:
    """Let the allocator keep freed memory instead of returning it to the system.

    Otherwise glibc maps every large tensor anew, and the system clears its pages in every step.
    Does nothing with other C libraries.
    """
    _tell_allocator({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: 2**31 - 1})


def share_heaps(count: int) -> None:
    """Limit the heaps that all threads share; call before other threads start.

    glibc creates up to eight heaps per core, and each keeps its peak: the memory of a service
    would grow with every thread that handles a large request.
    """
    _tell_allocator({_M_ARENA_MAX: count})


class HeapGaps:
    """Gives freed memory back once the gaps between blocks have become a third of it.

    After `keep_freed_memory`, blocks of ever new sizes leave gaps that no later block fits, so the
    process would grow for hundreds of steps. Given back after every step, all memory would be
    cleared and mapped anew each time; so it is only after as much work as makes up for that. A step
    is one of training, or a batch of texts.
    """

    def __init__(self) -> None:
        self._without_gaps = 0
        self._given_back_at = 0.0
        self._outside: int | None = None
        self._is_fresh = True

    def at_peak(self) -> None:
        """Tell that a step uses as much as it ever will; more than before is then no gap."""
        used = _blocks_in_use()
        if used is not None:
            # Libraries, stacks and Python's own memory. Gaps only add to the difference.
            outside = own_memory() - used
            self._outside = outside if self._outside is None else min(self._outside, outside)
            self._without_gaps = max(self._without_gaps, used + self._outside)

    def after_step(self) -> None:
        """Compare the memory held with the most that a step took without gaps."""
        memory = own_memory()
        if self._is_fresh:
            self._without_gaps = max(self._without_gaps, memory)
            self._is_fresh = False
        elif memory > _LARGEST_GROWTH * self._without_gaps and self._pays_off(memory):
            trim = _allocator("malloc_trim")
            if trim is not None:
                trim(0)
            self._is_fresh, self._given_back_at = True, time.process_time()

    def _pays_off(self, memory: int) -> bool:
        work = time.process_time() - self._given_back_at
        return work >= _SECONDS_BETWEEN * memory / 2**30


@cache
def heap_gaps() -> HeapGaps:
    """Return what watches this process's heap, whatever runs in it."""
    return HeapGaps()


def own_memory() -> int:
    """Return this process's memory without mapped files, in bytes; 0 where it is not known."""
    try:
        _, resident, shared, *_ = map(int, _OWN_PAGES.read_bytes().split())
    except OSError:
        return 0
    return (resident - shared) * resource.getpagesize()


def _blocks_in_use() -> int | None:
    """Return the bytes of all blocks that are not freed; ``None`` without glibc 2.33 or later."""
    count = _allocator("mallinfo2", _Blocks)
    if count is None:
        return None
    blocks = count()
    return int(blocks.uordblks + blocks.hblkhd)


def _tell_allocator(settings: Mapping[int, int]) -> None:
    mallopt = _allocator("mallopt")
    if mallopt is not None:
        for name, value in settings.items():
            mallopt(name, value)


def _allocator(function: str, returns: Any = ctypes.c_int) -> Any:
    """Return a function of glibc's allocator, by its result's type; ``None`` if there is none."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        symbol: Any = getattr(ctypes.CDLL(None), function)
    except (OSError, AttributeError):
        return None
    symbol.restype = returns
    return symbol
