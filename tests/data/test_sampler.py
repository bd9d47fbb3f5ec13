"""The plan of batches: every pair once an epoch, agreed by all ranks, a function of its inputs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scimult.data.pairs import PairFile
from scimult.data.ragged import Ragged
from scimult.data.rates import sampling_rates
from scimult.data.sampler import NO_NEGATIVE, PairStream, Sampler
from scimult.errors import ConfigError


def pair_file(name: str, task: str, sizes: list[int], negatives: list[int]) -> PairFile:
    """Make groups with ``sizes`` positives and ``negatives`` hard negatives; all ids differ."""
    groups = len(sizes)
    positives = [range(1000 * g, 1000 * g + size) for g, size in enumerate(sizes)]
    hard = [range(1000 * g + 500, 1000 * g + 500 + n) for g, n in enumerate(negatives)]
    return PairFile(
        name,
        task,
        "train",
        np.arange(groups) + 10_000_000,
        Ragged.from_lists(positives),
        Ragged.from_lists(hard),
    )


SOURCES = [
    pair_file("labels", "classification", [3, 1, 4, 2], [2, 0, 5, 1]),
    pair_file("links", "link_prediction", [1] * 25, [1] * 25),
    pair_file("clicks", "search", [2, 2, 1], [3, 0, 0]),
]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=8),
    st.integers(1, 7),
    st.integers(0, 100),
)
def test_an_epoch_holds_every_pair_once(
    groups: list[tuple[int, int]], rows: int, seed: int
) -> None:
    file = pair_file("x", "search", [p for p, _ in groups], [n for _, n in groups])
    stream = PairStream(file, seed)
    every_pair = {
        (int(q), int(p)) for q, ps in zip(file.queries, file.positives, strict=True) for p in ps
    }
    seen = []
    for start in range(0, 3 * len(stream), rows):
        count = min(rows, 3 * len(stream) - start)
        queries, positives, _ = stream.rows(start, count)
        seen += list(zip(queries.tolist(), positives.tolist(), strict=True))
    assert len(every_pair) == len(stream)
    for epoch in range(3):
        assert set(seen[epoch * len(stream) : (epoch + 1) * len(stream)]) == every_pair


def test_negatives_come_from_the_group_and_change_by_epoch() -> None:
    stream = PairStream(SOURCES[0], 3)
    drawn: dict[int, set[int]] = {}
    for epoch in range(30):
        queries, _, negatives = stream.rows(epoch * len(stream), len(stream))
        for query, negative in zip(queries, negatives, strict=True):
            drawn.setdefault(int(query), set()).add(int(negative))
    for group, query in enumerate(SOURCES[0].queries):
        pool = set(SOURCES[0].negatives[group].tolist()) or {NO_NEGATIVE}
        # 30 epochs with 2 or more pairs a group leave no negative of 5 undrawn.
        assert drawn[int(query)] == pool


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_ranks_share_a_unit_without_overlap(world_size: int) -> None:
    sampler = make_sampler(units=12)
    for unit in range(len(sampler)):
        whole = sampler.plan(unit)
        shards = [whole.shard(rank, world_size) for rank in range(world_size)]
        assert {shard.source for shard in shards} == {whole.source}
        for name in ("queries_R", "positives_R", "negatives_R"):
            joined = np.concatenate([getattr(shard, name) for shard in shards])
            assert np.array_equal(joined, getattr(whole, name))


def test_units_can_be_planned_in_any_order() -> None:
    forward, backward = make_sampler(units=40), make_sampler(units=40)
    plans = [forward.plan(unit) for unit in range(40)]
    for unit in reversed(range(40)):
        plan = backward.plan(unit)
        assert plan.source == plans[unit].source
        assert np.array_equal(plan.positives_R, plans[unit].positives_R)
        assert np.array_equal(plan.negatives_R, plans[unit].negatives_R)


def test_another_seed_gives_another_plan() -> None:
    one, other = (make_sampler(units=20, seed=seed) for seed in (1, 2))
    same = [np.array_equal(one.plan(u).positives_R, other.plan(u).positives_R) for u in range(20)]
    assert not any(same)


@settings(deadline=None)
@given(st.lists(st.floats(0.05, 1), min_size=1, max_size=3), st.integers(1, 300))
def test_rates_are_kept_at_every_moment(weights: list[float], units: int) -> None:
    rates = np.array(weights) / sum(weights)
    sampler = Sampler(SOURCES[: len(weights)], rates, rows_per_unit=2, units=units, seed=0)
    uses = Counter(sampler.source_of_unit.tolist())
    for number, rate in enumerate(rates):
        assert abs(uses[number] - rate * units) <= 2


def make_sampler(units: int, seed: int = 0) -> Sampler:
    rates = sampling_rates(SOURCES, "equal")
    return Sampler(SOURCES, rates, rows_per_unit=6, units=units, seed=seed)


def test_a_source_of_weight_zero_is_never_used() -> None:
    rates = sampling_rates(SOURCES, "explicit", {"labels": 1, "links": 1, "clicks": 0})
    sampler = Sampler(SOURCES, rates, rows_per_unit=2, units=50, seed=0)
    assert 2 not in sampler.source_of_unit


def test_a_source_without_pairs_is_refused() -> None:
    empty = pair_file("empty", "search", [0], [0])
    with pytest.raises(ConfigError, match=r"no training pairs.*empty\.search"):
        Sampler([empty], np.ones(1), rows_per_unit=2, units=1, seed=0)
