"""Ragged lists against Python lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scimult.data.ragged import Ragged

LISTS = st.lists(st.lists(st.integers(0, 50), max_size=5), max_size=8)


@given(LISTS)
def test_lists_survive(lists: list[list[int]]) -> None:
    ragged = Ragged.from_lists(lists)
    assert [part.tolist() for part in ragged] == lists
    assert ragged.lengths.tolist() == [len(part) for part in lists]
    assert ragged.owners.tolist() == [i for i, part in enumerate(lists) for _ in part]


@given(LISTS, st.data())
def test_take_reorders_and_repeats(lists: list[list[int]], data: st.DataObject) -> None:
    places = st.lists(st.integers(0, max(len(lists) - 1, 0)), max_size=6 if lists else 0)
    rows = data.draw(places)
    taken = Ragged.from_lists(lists).take(np.array(rows, dtype=np.int64))
    assert [part.tolist() for part in taken] == [lists[row] for row in rows]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9))))
def test_pairs_are_grouped_sorted_and_unique(pairs: list[tuple[int, int]]) -> None:
    rows, values = (np.array([pair[i] for pair in pairs], dtype=np.int64) for i in (0, 1))
    grouped = Ragged.from_pairs(rows, values, 7)
    expected = [sorted({value for row, value in pairs if row == i}) for i in range(7)]
    assert [part.tolist() for part in grouped] == expected


def test_index_out_of_range() -> None:
    with pytest.raises(IndexError):
        Ragged.empty(2)[2]
    assert Ragged.from_lists([[1], [2, 3]])[-1].tolist() == [2, 3]
