"""Keys: the same everywhere, without ties, and evenly spread."""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scimult.preparation.mining.engine import DuckDBEngine
from scimult.preparation.mining.hashing import key, key_sql, mix

KNOWN = [0, 2261973619, 229111015, 2578835075]
ROWS = st.integers(0, (1 << 32) - 1)


@pytest.mark.long
@settings(max_examples=30)
@given(st.integers(0, 1 << 40), st.lists(st.tuples(ROWS, ROWS, ROWS), min_size=1, max_size=50))
def test_python_numpy_and_sql_agree(seed: int, rows: list[tuple[int, int, int]]) -> None:
    with duckdb.connect(config={"threads": 1}) as connection:
        engine = DuckDBEngine(connection)
        columns = dict(zip("abc", np.array(rows, dtype=np.int64).T, strict=True))
        engine.load("rows", [pa.table({"place": np.arange(len(rows)), **columns})])
        expression = key_sql(seed, "a", "b", "c")
        of_sql = engine.fetch(f"SELECT {expression} AS k FROM rows ORDER BY place")["k"].tolist()
    assert of_sql == [key(seed, *row) for row in rows]
    assert of_sql == key(seed, *columns.values()).tolist()
    assert all(0 <= number < 1 << 32 for number in of_sql)


def test_known_values_stay() -> None:
    """Pools of other versions and engines depend on these numbers."""
    assert [mix(x) for x in (0, 1, 2, (1 << 32) - 1)] == KNOWN
    assert [key(7, 1), key(7, 1, 2), key(7, 1, 2, 3)] == [1575807547, 880295222, 45756196]


@pytest.mark.long
def test_numbers_are_never_mapped_to_one() -> None:
    numbers = np.arange(1 << 20, dtype=np.int64) * 4093 % (1 << 32)
    assert len(np.unique(mix(numbers))) == len(numbers)
    assert len(np.unique(key(3, np.full_like(numbers, 5), numbers))) == len(numbers)


def test_each_bit_of_a_row_changes_each_bit_of_its_key_half_of_the_time() -> None:
    rows = np.random.default_rng(0).integers(0, 1 << 32, 4000)
    before = key(0, np.arange(4000), rows)
    for bit in range(32):
        for changed in ((np.arange(4000), rows ^ (1 << bit)), (np.arange(4000) ^ (1 << bit), rows)):
            flipped = before ^ key(0, *changed)
            shares = [((flipped >> place) & 1).mean() for place in range(32)]
            # Binomial of 4,000: five standard deviations are 0.04.
            assert max(abs(share - 0.5) for share in shares) < 0.045


def test_neighbouring_groups_are_sampled_independently() -> None:
    """Choosing 3 of 10 candidates in 30,000 groups favours no candidate and no pair."""
    groups, rows = (axis.ravel() for axis in np.indices((30_000, 10)))
    keys = key(0, groups, rows).reshape(30_000, 10)
    chosen = np.zeros_like(keys, dtype=bool)
    np.put_along_axis(chosen, keys.argsort(axis=1)[:, :3], True, axis=1)
    assert np.abs(chosen.mean(axis=0) - 0.3).max() < 0.014
    both = (chosen[:, :, None] & chosen[:, None, :]).mean(axis=0)[np.triu_indices(10, 1)]
    assert np.abs(both - 3 * 2 / 90).max() < 0.008
    again = (chosen[1:] & chosen[:-1]).sum(axis=1).mean()
    assert abs(again - 0.9) < 0.03
