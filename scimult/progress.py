"""Progress bars on interactive terminals, and messages through the logger ``scimult``.

Applications silence or redirect messages with `logging`, which by default shows warnings
only. The command line shows all messages.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

from scimult.terminal import visible

T = TypeVar("T")
LOGGER = logging.getLogger("scimult")


def progress(
    items: Iterable[T], what: str, *, total: int | None = None, unit: str = "it", show: bool = True
) -> Iterator[T]:
    """Yield ``items`` while showing count, rate and ETA on stderr."""
    yield from bar(what, total=total, unit=unit, items=items) if show else items


def bar(
    what: str,
    *,
    total: int | None = None,
    unit: str = "it",
    show: bool = True,
    items: Iterable[Any] | None = None,
    initial: int = 0,
) -> tqdm:
    """Return a progress bar for the caller to ``update(n)`` and ``set_postfix``.

    Silent on ranks other than 0, and if stderr goes to a file or a pipe.
    """
    return _tqdm_class()(
        items,
        desc=visible(what),  # may be the name of a file
        total=total,
        unit=unit,
        disable=not (show and _is_main() and is_watched()),
        initial=initial,
        dynamic_ncols=True,
        unit_scale=True,
    )


def _is_main() -> bool:
    """Return whether this process prints, without importing torch to find out."""
    loaded = sys.modules.get("scimult.distributed")
    return bool(loaded.is_main()) if loaded else int(os.environ.get("RANK") or 0) == 0


def _tqdm_class() -> Any:
    if not in_notebook():
        return tqdm
    from tqdm.auto import tqdm as notebook_tqdm

    return notebook_tqdm


def is_watched() -> bool:
    """Return whether someone sees stderr live; a daemon may have closed it, which makes it None."""
    return (sys.stderr is not None and sys.stderr.isatty()) or in_notebook()


def in_notebook() -> bool:
    """Return whether this process is a Jupyter kernel, whose stderr is visible but no terminal.

    A kernel has imported IPython, and only a kernel's shell has the attribute ``kernel``.
    """
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return getattr(get_shell and get_shell(), "kernel", None) is not None


def note(message: str) -> None:
    """Log information, on the main rank only."""
    if _is_main():
        LOGGER.info(message)


def warn(message: str) -> None:
    """Log a warning, on the main rank only."""
    if _is_main():
        LOGGER.warning(message)
