"""Columns of pairs against Python lists and sets, in blocks far smaller than the columns."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scimult.preparation import pair_columns
from scimult.preparation.pair_columns import (
    Columns,
    group_by_pair,
    mapped,
    masked,
    selected,
    unique_pairs,
)

BLOCK = 4
Pairs = list[tuple[int, int]]
ROW = st.integers(0, 9) | st.integers(0, 1 << 30)
PAIRS = st.lists(st.tuples(ROW, ROW), max_size=5 * BLOCK)
SCRATCH = Path(tempfile.gettempdir())


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_columns, "_BLOCK", BLOCK)
        yield


def _columns(pairs: Pairs) -> Columns:
    rows = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return rows[:, 0], rows[:, 1]


def _pairs(columns: Columns) -> Pairs:
    return list(zip(*(column.tolist() for column in columns), strict=True))


@given(st.lists(PAIRS, max_size=3))
def test_pairs_are_sorted_and_each_is_there_once(lists: list[Pairs]) -> None:
    found = unique_pairs([_columns(pairs) for pairs in lists], SCRATCH)
    assert _pairs(found) == sorted({pair for pairs in lists for pair in pairs})
    assert all(column.dtype == np.int64 for column in found)
    again = unique_pairs([found], SCRATCH)
    assert again[0] is found[0] or not len(found[0]), "what is in order is not sorted again"


@given(st.lists(st.tuples(ROW, ROW, st.booleans()), max_size=5 * BLOCK))
def test_pairs_of_a_mask(marked: list[tuple[int, int, bool]]) -> None:
    columns = _columns([(a, b) for a, b, _ in marked])
    kept = np.array([keep for *_, keep in marked], dtype=np.bool_)
    assert _pairs(masked(columns, kept, SCRATCH)) == [(a, b) for a, b, keep in marked if keep]


@given(st.dictionaries(st.tuples(ROW, ROW), st.booleans(), max_size=5 * BLOCK))
def test_group_by_pair_makes_one_group_per_kept_pair(marked: dict[tuple[int, int], bool]) -> None:
    pairs = sorted(marked)
    kept = np.array([marked[pair] for pair in pairs], dtype=np.bool_)
    queries, positives, unsampled = group_by_pair(_columns(pairs), kept, SCRATCH)
    found = [(int(q), *p.tolist()) for q, p in zip(queries, positives, strict=True)]
    assert found == [pair for pair in pairs if marked[pair]]
    others = {}
    for (query, _), rest in zip(found, unsampled, strict=True):
        others.setdefault(query, rest.tolist())
        assert rest.tolist() in ([], others[query])
    assert others == {
        query: [b for a, b in pairs if a == query and not marked[a, b]] for query, _ in found
    }


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_the_columns_of_a_select(count: int) -> None:
    select = f"SELECT range AS a, range * 7 % 1001 AS b FROM range({count}) ORDER BY range"
    with duckdb.connect() as connection:
        found = selected(connection, select, SCRATCH)
    assert _pairs(found) == [(i, i * 7 % 1001) for i in range(count)]


def test_mapped_columns_have_unnamed_files_that_disappear_with_them(tmp_path: Path) -> None:
    maps, numbers = Path("/proc/self/maps"), np.arange(1 << 16)
    if not maps.exists():
        pytest.skip("no /proc/self/maps")
    (found,) = mapped(((part,) for part in np.split(numbers, 16)), tmp_path)
    assert found.tolist() == numbers.tolist()
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) in maps.read_text()
    found.sort()  # it is writable
    del found
    gc.collect()
    assert str(tmp_path) not in maps.read_text()
