"""A named collection: duplicates raise, unknown names suggest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from scimult.errors import UnknownNameError

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps names to implementations of one kind of thing.

    Parameters
    ----------
    what : str
        The kind of thing in the singular, for messages ("loss", "reader", ...).
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers its argument as ``name``."""

        def add(entry: T) -> T:
            assert name not in self._entries, f"{self.what} {name!r} is registered twice"
            self._entries[name] = entry
            return entry

        return add

    def __getitem__(self, name: str) -> T:
        """Return the entry called ``name``.

        Raises
        ------
        UnknownNameError
            If there is none.
        """
        if name not in self._entries:
            raise UnknownNameError(self.what, name, self._entries)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
