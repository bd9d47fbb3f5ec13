"""Seeded choices that depend on what is chosen, not on when: chunks and order do not matter."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scimult.data.ragged import Ragged, offsets_of, rank_in_runs
from scimult.types import BoolArray, IntArray

HashArray = NDArray[np.uint64]


class Membership:
    """Answers whether a value is in a list, for many (list, value) pairs at once.

    Parameters
    ----------
    lists : Ragged
        Every list sorted and unique, as ``Ragged.from_pairs`` makes them.
    """

    def __init__(self, lists: Ragged) -> None:
        self._span = int(lists.values.max(initial=-1)) + 1
        self._keys = lists.owners * self._span + lists.values

    def __call__(self, rows: IntArray, values: IntArray) -> BoolArray:
        """Return, for each position, whether list ``rows[i]`` holds ``values[i]``."""
        if not len(self._keys):
            return np.zeros(len(rows), dtype=np.bool_)
        keys = rows * self._span + values
        found = self._keys[np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)]
        same: BoolArray = (found == keys) & (values < self._span)
        return same


def hash_rows(seed: int, *columns: IntArray) -> HashArray:
    """Return one well-mixed 64-bit number per row of ``columns`` (SplitMix64, Steele 2014)."""
    state = np.full(len(columns[0]), seed, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            state = state + np.uint64(0x9E3779B97F4A7C15) + column.astype(np.uint64)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return state


def sample_lists(lists: Ragged, limit: int, seed: int, owners: IntArray | None = None) -> Ragged:
    """Keep at most ``limit`` values of each list: those with the smallest hash.

    Parameters
    ----------
    lists : Ragged
        Every list unique.
    limit : int
        Largest length of a result; shorter lists stay as they are.
    seed : int
        Decides which values stay.
    owners : IntArray, optional
        What identifies each list in the hash, shape ``(len(lists),)``; default: its index.
    """
    too_long = lists.lengths > limit
    rows = lists.owners
    places = np.flatnonzero(too_long[rows])
    if not len(places):
        return lists
    identities = rows if owners is None else owners[rows]
    hashes = hash_rows(seed, identities[places], lists.values[places])
    # One key: the list in the high bits keeps lists apart, the hash in the low bits shuffles.
    bits = np.uint64(len(lists).bit_length())
    keys = rows[places].astype(np.uint64) << (np.uint64(64) - bits) | hashes >> bits
    order = places[np.argsort(keys)]
    kept = np.ones(len(lists.values), dtype=np.bool_)
    kept[order] = rank_in_runs(rows[order]) < limit
    return Ragged(lists.values[kept], offsets_of(np.minimum(lists.lengths, limit)))


def concatenate(parts: list[Ragged]) -> Ragged:
    """Put the lists of several parts one after the other."""
    if not parts:
        return Ragged.empty(0)
    lengths = np.concatenate([part.lengths for part in parts])
    return Ragged(np.concatenate([part.values for part in parts]), offsets_of(lengths))
