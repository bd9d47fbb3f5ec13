"""Splits, down-sampling and groups."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scimult.preparation.hygiene.splits import dev_mask
from scimult.preparation.pair_columns import group_by_query, sample_per_value

PAIRS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), unique=True, max_size=30)


def _columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def test_dev_split_depends_on_id_and_seed_alone() -> None:
    ids = [f"ns:{i}" for i in range(4000)]
    mask = dev_mask(ids, 0.1, seed=0)
    assert 0.08 < mask.mean() < 0.12
    assert (dev_mask(ids[::-1], 0.1, seed=0)[::-1] == mask).all()
    assert (dev_mask(ids, 0.1, seed=1) != mask).any()
    larger = dev_mask(ids, 0.2, seed=0)
    assert larger[mask].all()
    assert not dev_mask(ids, 0.0, seed=0).any()


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(1, 6), st.integers(0, 3))
def test_sampling_keeps_the_smaller_of_limit_and_count(
    values: list[int], limit: int, seed: int
) -> None:
    array = np.array(values, dtype=np.int64)
    kept = sample_per_value(array, limit, seed)
    for value in set(values):
        assert (array[kept] == value).sum() == min(limit, values.count(value))
    assert (kept == sample_per_value(array, limit, seed)).all()


def test_sampling_is_uniform() -> None:
    counts = sum(
        sample_per_value(np.zeros(10, dtype=np.int64), 3, seed).astype(int) for seed in range(2000)
    )
    assert (np.abs(counts / 2000 - 0.3) < 0.05).all()


@given(PAIRS, st.randoms(use_true_random=False))
def test_group_by_query_keeps_every_pair(pairs: list[tuple[int, int]], random: object) -> None:
    queries, positives = _columns(pairs)
    kept = np.array([random.random() < 0.7 for _ in pairs], dtype=bool)  # type: ignore[attr-defined]
    rows, inside, outside = group_by_query(queries, positives, kept)
    expected = {query for (query, _), keep in zip(pairs, kept, strict=True) if keep}
    assert rows.tolist() == sorted(expected)
    for query, ins, outs in zip(rows.tolist(), inside, outside, strict=True):
        chosen = [
            pair[1] for pair, keep in zip(pairs, kept, strict=True) if keep and pair[0] == query
        ]
        assert ins.tolist() == sorted(chosen)
        assert {*ins.tolist(), *outs.tolist()} == {p for q, p in pairs if q == query}
