"""Membership and seeded samples."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scimult.data.ragged import Ragged
from scimult.preparation.mining.sampling import Membership, concatenate, hash_rows, sample_lists

LISTS = st.lists(st.lists(st.integers(0, 20), unique=True, max_size=8), max_size=6)


@given(LISTS, st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=20))
def test_membership(lists: list[list[int]], asked: list[tuple[int, int]]) -> None:
    asked = [pair for pair in asked if pair[0] < len(lists)]
    rows, values = (np.array([pair[i] for pair in asked], dtype=np.int64) for i in (0, 1))
    is_in = Membership(Ragged.from_lists([sorted(part) for part in lists]))
    assert is_in(rows, values).tolist() == [value in lists[row] for row, value in asked]


@given(LISTS, st.integers(1, 5), st.integers(0, 9))
def test_a_sample_is_a_subset_of_the_right_size(
    lists: list[list[int]], limit: int, seed: int
) -> None:
    whole = Ragged.from_lists([sorted(part) for part in lists])
    sample = sample_lists(whole, limit, seed)
    for part, everything in zip(sample, lists, strict=True):
        assert set(part.tolist()) <= set(everything)
        assert len(part) == min(limit, len(everything))


@given(LISTS, st.integers(1, 5))
def test_a_sample_does_not_depend_on_its_neighbours(lists: list[list[int]], limit: int) -> None:
    whole = Ragged.from_lists([sorted(part) for part in lists])
    owners = np.arange(len(lists), dtype=np.int64) * 10
    together = sample_lists(whole, limit, 1, owners=owners)
    for i in range(len(lists)):
        row = np.array([i], dtype=np.int64)
        alone = sample_lists(whole.take(row), limit, 1, owners=owners[row])
        assert alone.values.tolist() == together[i].tolist()


def test_samples_are_uniform_and_seeded() -> None:
    lists = Ragged.from_pairs(np.repeat(np.arange(3000), 10), np.tile(np.arange(10), 3000), 3000)
    counts = np.bincount(sample_lists(lists, 3, seed=0).values, minlength=10) / 3000
    assert (np.abs(counts - 0.3) < 0.04).all()
    assert (sample_lists(lists, 3, 0).values != sample_lists(lists, 3, 1).values).any()


def test_hashes_are_distinct_and_depend_on_every_column() -> None:
    a, b = (axis.ravel() for axis in np.meshgrid(np.arange(300), np.arange(300)))
    hashes = hash_rows(0, a, b)
    assert len(np.unique(hashes)) == len(hashes)
    assert (hash_rows(0, b, a)[a != b] != hashes[a != b]).all()
    assert (hash_rows(1, a, b) != hashes).all()


@given(LISTS, LISTS)
def test_concatenate(first: list[list[int]], second: list[list[int]]) -> None:
    both = concatenate([Ragged.from_lists(first), Ragged.from_lists(second)])
    assert [part.tolist() for part in both] == [*first, *second]
    assert len(concatenate([])) == 0
