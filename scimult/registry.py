"""A named collection: duplicates raise, unknown names suggest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from scimult.errors import UnknownNameError

T = TypeVar("T")


class Registry(dict[str, T]):
    """Maps names to implementations; an unknown name raises ``UnknownNameError``.

    Parameters
    ----------
    what : str
        The kind of thing in the singular, for messages ("loss", "reader", ...).
    """

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers its argument as ``name``."""

        def add(entry: T) -> T:
            assert name not in self, f"{self.what} {name!r} is registered twice"
            self[name] = entry
            return entry

        return add

    def __missing__(self, name: str) -> T:
        raise UnknownNameError(self.what, name, self)
