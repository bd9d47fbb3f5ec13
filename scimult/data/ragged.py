"""Lists of unequal length in two flat arrays (compressed sparse rows)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from scimult.types import IntArray


@dataclass(frozen=True)
class Ragged:
    """A sequence of integer lists.

    Parameters
    ----------
    values : IntArray
        All lists, one after the other.
    offsets : IntArray
        List ``i`` is ``values[offsets[i]:offsets[i + 1]]``; one longer than the sequence.
    """

    values: IntArray
    offsets: IntArray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> IntArray:
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        i %= len(self)
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    def __iter__(self) -> Iterator[IntArray]:
        return (self[i] for i in range(len(self)))

    @property
    def lengths(self) -> IntArray:
        """Length of each list, shape ``(len(self),)``."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> IntArray:
        """For each value, the index of the list that holds it, shape ``(len(values),)``."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.lengths)

    def take(self, rows: IntArray) -> Ragged:
        """Return the lists at ``rows``, in that order."""
        lengths = self.lengths[rows]
        offsets = _offsets(lengths)
        shift = np.repeat(self.offsets[:-1][rows] - offsets[:-1], lengths)
        return Ragged(self.values[np.arange(offsets[-1], dtype=np.int64) + shift], offsets)

    @classmethod
    def from_lists(cls, lists: Iterable[Iterable[int]]) -> Ragged:
        """Build from Python lists or arrays."""
        arrays = [np.asarray(list(values), dtype=np.int64) for values in lists]
        lengths = np.array([len(array) for array in arrays], dtype=np.int64)
        values = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
        return cls(values, _offsets(lengths))

    @classmethod
    def from_pairs(cls, rows: IntArray, values: IntArray, count: int) -> Ragged:
        """Group ``values`` by ``rows``; each list is sorted and unique.

        Parameters
        ----------
        rows, values : IntArray
            Parallel arrays; ``0 <= rows < count``.
        count : int
            Number of lists.
        """
        order = np.lexsort((values, rows))
        rows, values = rows[order], values[order]
        if len(rows):
            new = np.ones(len(rows), dtype=bool)
            new[1:] = (rows[1:] != rows[:-1]) | (values[1:] != values[:-1])
            rows, values = rows[new], values[new]
        lengths = np.bincount(rows, minlength=count).astype(np.int64)
        return cls(values.astype(np.int64, copy=False), _offsets(lengths))

    @classmethod
    def empty(cls, count: int) -> Ragged:
        """Return ``count`` empty lists."""
        return cls(np.empty(0, np.int64), np.zeros(count + 1, np.int64))


def _offsets(lengths: IntArray) -> IntArray:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
