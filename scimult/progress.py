"""Progress bars with rate and ETA, silent on other ranks and when stderr is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

from scimult import distributed
from scimult.terminal import visible

T = TypeVar("T")


def progress(
    items: Iterable[T], what: str, *, total: int | None = None, unit: str = "it", show: bool = True
) -> Iterator[T]:
    """Yield ``items`` while showing count, rate and ETA on stderr."""
    yield from bar(what, total=total, unit=unit, show=show, items=items)


def bar(
    what: str,
    *,
    total: int | None = None,
    unit: str = "it",
    show: bool = True,
    items: Iterable[Any] | None = None,
    initial: int = 0,
) -> tqdm:
    """Return a progress bar whose ``update(n)`` and ``set_postfix`` the caller drives."""
    quiet = not (show and distributed.is_main() and sys.stderr.isatty())
    return tqdm(
        items,
        desc=what,
        total=total,
        unit=unit,
        disable=quiet,
        initial=initial,
        dynamic_ncols=True,
        unit_scale=True,
    )


def note(message: str) -> None:
    """Print one line on stderr, on the main rank only and beside any running bar."""
    if distributed.is_main():
        tqdm.write(visible(message), file=sys.stderr)
