"""Work of the host that is done while a device is busy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def made_ahead(make: Callable[[_In], _Out], items: Iterable[_In]) -> Iterator[_Out]:
    """Yield ``make(item)`` of every item; the next one is made in a thread meanwhile."""
    left = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="tokenise") as thread:
        ready = [thread.submit(make, item) for item in islice(left, 1)]
        while ready:
            made = ready.pop().result()
            ready += [thread.submit(make, item) for item in islice(left, 1)]
            yield made
