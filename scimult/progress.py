"""Progress bars where someone watches, and messages through the logger ``scimult``.

Who embeds the library silences or redirects messages by :mod:`logging`: without a set-up Python
shows warnings and hides the rest. The command line shows all of them.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

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
    """Return a progress bar whose ``update(n)`` and ``set_postfix`` the caller drives.

    Silent on other ranks, and where stderr goes to a file or a pipe.
    """
    return _kind()(
        items,
        desc=what,
        total=total,
        unit=unit,
        disable=not (show and _is_main() and is_watched()),
        initial=initial,
        dynamic_ncols=True,
        unit_scale=True,
    )


def _is_main() -> bool:
    """Return whether this process prints; without torch loaded there is no group to ask."""
    loaded = sys.modules.get("scimult.distributed")
    return bool(loaded.is_main()) if loaded else int(os.environ.get("RANK", "0")) == 0


def _kind() -> Any:
    if not in_notebook():
        return tqdm
    from tqdm.auto import tqdm as of_notebooks

    return of_notebooks


def is_watched() -> bool:
    """Return whether what is written to stderr is looked at while it is written."""
    return sys.stderr.isatty() or in_notebook()


def in_notebook() -> bool:
    """Return whether this process is a Jupyter kernel, whose stderr is no terminal and yet seen.

    A kernel has imported IPython; its shell, and no other, belongs to a kernel.
    """
    ask = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return getattr(ask and ask(), "kernel", None) is not None


def note(message: str) -> None:
    """Log what a reader may want to know, on the main rank only."""
    if _is_main():
        LOGGER.info(message)


def warn(message: str) -> None:
    """Log what a reader should know, on the main rank only."""
    if _is_main():
        LOGGER.warning(message)
