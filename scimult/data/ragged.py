"""Lists of unequal length in two flat arrays (compressed sparse rows)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from scimult.types import IntArray


@dataclass(frozen=True)
class Ragged:
    """A sequence of integer lists.

    ``values`` are the lists, concatenated; list ``i`` is ``values[offsets[i]:offsets[i + 1]]``.
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
        """For each value, the index of its list, shape ``(len(values),)``."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.lengths)

    def take(self, rows: IntArray) -> Ragged:
        """Return the lists at ``rows``, in that order."""
        starts = self.offsets[:-1][rows]
        lengths = self.offsets[1:][rows] - starts
        offsets = offsets_of(lengths)
        shift = np.repeat(starts - offsets[:-1], lengths)
        return Ragged(self.values[np.arange(offsets[-1], dtype=np.int64) + shift], offsets)

    def part(self, start: int, stop: int) -> Ragged:
        """Return the lists from ``start`` to ``stop``; their values are not copied."""
        first, last = self.offsets[start], self.offsets[stop]
        return Ragged(self.values[first:last], self.offsets[start : stop + 1] - first)

    @classmethod
    def from_lists(cls, lists: Iterable[Iterable[int]]) -> Ragged:
        """Build from Python lists or arrays."""
        arrays = [np.asarray(list(values), dtype=np.int64) for values in lists]
        lengths = np.array([len(array) for array in arrays], dtype=np.int64)
        values = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
        return cls(values, offsets_of(lengths))

    @classmethod
    def from_pairs(cls, rows: IntArray, values: IntArray, count: int) -> Ragged:
        """Group ``values`` by ``rows`` into ``count`` lists, each sorted and unique.

        ``rows`` and ``values`` are parallel arrays; ``0 <= rows < count`` and ``0 <= values``.
        """
        # Sorting a combined key is several times faster than lexsort or np.unique.
        span = int(values.max(initial=0)) + 1
        assert values.min(initial=0) >= 0, "values are row numbers or codes"
        assert count * span < 1 << 63, "combined key would overflow"
        keys = np.sort(rows * span + values)
        keys = keys[np.diff(keys, prepend=-1) > 0]
        owners = keys // span
        return cls(keys - owners * span, offsets_of(np.bincount(owners, minlength=count)))

    @classmethod
    def concatenate(cls, parts: Sequence[Ragged]) -> Ragged:
        """Concatenate several sequences of lists."""
        if not parts:
            return cls.empty(0)
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(np.concatenate([part.values for part in parts]), offsets_of(lengths))

    @classmethod
    def empty(cls, count: int) -> Ragged:
        """Return ``count`` empty lists."""
        return cls(np.empty(0, np.int64), np.zeros(count + 1, np.int64))


def offsets_of(lengths: IntArray) -> IntArray:
    """Return the start of each list, and the end of the last one."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def rank_in_runs(sorted_values: IntArray) -> IntArray:
    """Return each value's position (0, 1, 2, ...) within its run of equal values."""
    if len(sorted_values) == 0:
        return np.empty(0, dtype=np.int64)
    starts = np.flatnonzero(np.r_[True, sorted_values[1:] != sorted_values[:-1]])
    lengths = np.diff(np.r_[starts, len(sorted_values)])
    return np.arange(len(sorted_values), dtype=np.int64) - np.repeat(starts, lengths)
