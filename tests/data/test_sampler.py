"""Plans follow the sources' rates and are a function of their inputs."""

from __future__ import annotations

from collections import Counter
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scimult.data.pair_streams import (
    FixedMicroBatches,
    MicroBatchStream,
    Rows,
    TokenMicroBatches,
    pair_streams,
)
from scimult.data.pairs import PairFile
from scimult.data.ragged import Ragged
from scimult.data.rates import RateArray, sampling_rates
from scimult.data.sampler import (
    AlternatingSampler,
    BalancedSampler,
    MixingSampler,
    PlannedPart,
    Sampler,
    epoch_micro_batches,
)
from scimult.errors import ConfigError
from tests.data.pair_files import SOURCES, pair_file


@pytest.mark.parametrize("mix", ["alternate", "in_batch"])
def test_micro_batches_can_be_planned_in_any_order(mix: str) -> None:
    forward, backward = make_sampler(mix, micro_batches=40), make_sampler(mix, micro_batches=40)
    plans = [forward.plan(micro_batch) for micro_batch in range(40)]
    for micro_batch in reversed(range(40)):
        assert same_parts(backward.plan(micro_batch), plans[micro_batch])


@pytest.mark.parametrize("mix", ["alternate", "in_batch"])
def test_another_seed_gives_another_plan(mix: str) -> None:
    one, other = (make_sampler(mix, micro_batches=20, seed=seed) for seed in (1, 2))
    assert not any(
        same_parts(one.plan(micro_batch), other.plan(micro_batch)) for micro_batch in range(20)
    )


@settings(deadline=None)
@given(st.lists(st.floats(0.05, 1), min_size=1, max_size=3), st.integers(1, 300))
def test_alternating_keeps_rates_on_the_way_and_ends_at_them(
    weights: list[float], micro_batches: int
) -> None:
    rates = np.array(weights) / sum(weights)
    streams = [FixedMicroBatches(stream, 2) for stream in pair_streams(SOURCES[: len(weights)], 0)]
    sampler = AlternatingSampler(streams, rates, micro_batches=micro_batches, seed=0)
    used = np.zeros(len(rates))
    for micro_batch in range(micro_batches):
        (part,) = sampler.plan(micro_batch)
        used[part.source] += 1
        assert abs(used - rates * (micro_batch + 1)).max() <= 2
    assert abs(used - rates * micro_batches).max() < 1


def texts_of_two_lengths(pairs: list[int]) -> tuple[list[PairFile], np.ndarray]:
    """Return sources of the given sizes, and text lengths: 20 in the first source, else 200."""
    sources, first = [], 0
    for number, count in enumerate(pairs):
        rows = np.arange(count) + first
        positives = Ragged(rows + count, np.arange(count + 1))
        name = f"s{number}"
        sources.append(PairFile(name, "search", "train", rows, positives, Ragged.empty(count)))
        first += 2 * count
    return sources, np.repeat([20, *[200] * (len(pairs) - 1)], 2 * np.array(pairs))


def token_micro_batches(
    sources: list[PairFile], lengths_N: np.ndarray, ranks: int, seed: int = 0
) -> list[MicroBatchStream]:
    return [
        TokenMicroBatches(stream, lengths_N, max_tokens=1000, ranks=ranks, pool=4)
        for stream in pair_streams(sources, seed)
    ]


def seen_pairs(
    micro_batches: list[MicroBatchStream], rates: RateArray, length: int
) -> list[Counter[int]]:
    """Count each query of each source in a plan."""
    sampler = AlternatingSampler(micro_batches, rates, micro_batches=length, seed=3)
    seen: list[Counter[int]] = [Counter() for _ in micro_batches]
    for micro_batch in range(length):
        for part in sampler.plan(micro_batch):
            seen[part.source].update(part.rows.queries_R.tolist())
    return seen


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=4), st.integers(1, 3))
def test_an_epoch_by_tokens_holds_every_pair_once(pairs: list[int], ranks: int) -> None:
    sources, lengths_N = texts_of_two_lengths(pairs)
    rates = sampling_rates(sources, "proportional")
    micro_batches = token_micro_batches(sources, lengths_N, ranks)
    length = epoch_micro_batches(micro_batches, rates)
    assert length == pytest.approx(sum(stream.micro_batches_per_epoch for stream in micro_batches))
    for counts, source in zip(
        seen_pairs(micro_batches, rates, round(length)), sources, strict=True
    ):
        assert counts == Counter(source.queries.tolist())


SHARES = {"s0": 5.0, "s1": 1.0, "s2": 0.0}


@pytest.mark.parametrize("mode", ["proportional", "equal", "explicit"])
def test_rates_are_shares_of_pairs_whatever_a_micro_batch_holds(mode: str) -> None:
    sources, lengths_N = texts_of_two_lengths([4000, 3000, 1500])
    rates = sampling_rates(sources, mode, SHARES if mode == "explicit" else None)  # type: ignore[arg-type]
    micro_batches = token_micro_batches(sources, lengths_N, ranks=1)
    length = ceil(3 * epoch_micro_batches(micro_batches, rates))
    pairs_S = np.array([counts.total() for counts in seen_pairs(micro_batches, rates, length)])
    # The whole numbers of micro-batches are the nearest; epochs of a source differ by a micro-batch
    # or two.
    assert pairs_S / pairs_S.sum() == pytest.approx(rates, abs=0.01)
    trained = sum(
        len(stream) for stream, rate in zip(micro_batches, rates, strict=True) if rate > 0
    )
    assert pairs_S.sum() == pytest.approx(3 * trained, rel=0.01)


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=3).filter(any),
    st.integers(1, 9),
    st.integers(1, 60),
)
def test_mixing_keeps_rates_at_every_moment(
    weights: list[float], rows: int, micro_batches: int
) -> None:
    rates = np.array(weights) / sum(weights)
    streams = pair_streams(SOURCES[: len(weights)], 0)
    sampler = MixingSampler(streams, rates, rows=rows, micro_batches=micro_batches)
    used = np.zeros(len(rates))
    for micro_batch in range(micro_batches):
        parts = sampler.plan(micro_batch)
        assert sum(len(part.rows) for part in parts) == rows
        for part in parts:
            # The source's own order, without a gap or a repetition.
            start = int(used[part.source])
            following = streams[part.source].rows(start, len(part.rows))
            assert np.array_equal(part.rows.positives_R, following.positives_R)
            used[part.source] += len(part.rows)
        assert abs(used - rates * rows * (micro_batch + 1)).max() < 1 + 1e-6
    assert not used[rates == 0].any()


def same_parts(one: list[PlannedPart], other: list[PlannedPart]) -> bool:
    return [part.source for part in one] == [part.source for part in other] and all(
        np.array_equal(a.rows.positives_R, b.rows.positives_R)
        and np.array_equal(a.rows.negatives_R, b.rows.negatives_R)
        for a, b in zip(one, other, strict=True)
    )


def make_sampler(mix: str, micro_batches: int, seed: int = 0) -> Sampler:
    rates, streams = sampling_rates(SOURCES, "equal"), pair_streams(SOURCES, seed)
    if mix == "in_batch":
        return MixingSampler(streams, rates, rows=9, micro_batches=micro_batches)
    fixed = [FixedMicroBatches(stream, 6) for stream in streams]
    return AlternatingSampler(fixed, rates, micro_batches=micro_batches, seed=seed)


def test_a_source_of_weight_zero_is_never_used() -> None:
    rates = sampling_rates(SOURCES, "explicit", {"labels": 1, "links": 1, "clicks": 0})
    streams = [FixedMicroBatches(stream, 2) for stream in pair_streams(SOURCES, 0)]
    sampler = AlternatingSampler(streams, rates, micro_batches=50, seed=0)
    assert all(part.source != 2 for micro_batch in range(50) for part in sampler.plan(micro_batch))


def test_a_source_without_pairs_is_refused() -> None:
    empty = pair_file("empty", "search", [0], [0])
    with pytest.raises(ConfigError, match=r"no training pairs.*empty\.search"):
        pair_streams([empty], 0)


@settings(deadline=None)
@given(
    st.sampled_from(["alternate", "in_batch"]),
    st.integers(1, 5),
    st.integers(0, 99),
)
def test_ranks_get_as_many_tokens_of_the_same_rows(mix: str, ranks: int, seed: int) -> None:
    lengths_N = np.random.default_rng(seed).integers(1, 513, size=1_000_100)
    plain = make_sampler(mix, micro_batches=6)
    balanced = BalancedSampler(plain, lengths_N, ranks=ranks)
    assert len(balanced) == len(plain)
    for micro_batch in range(len(plain)):
        loads, longest = np.zeros(ranks, dtype=int), 0
        parts = balanced.plan(micro_batch)
        for part, whole in zip(parts, plain.plan(micro_batch), strict=True):
            assert part.source == whole.source
            assert sorted(triples(part.rows)) == sorted(triples(whole.rows))
            shards = [triples(part.rows.shard(rank)) for rank in range(ranks)]
            assert max(map(len, shards)) - min(map(len, shards)) <= 1
            for rank, shard in enumerate(shards):
                for query, positive, negative, _ in shard:
                    tokens = lengths_N[query] + lengths_N[positive]
                    if negative >= 0:
                        tokens += lengths_N[negative]
                    loads[rank] += tokens
                    longest = max(longest, tokens)
        # No round widens the gap beyond its longest row.
        assert np.ptp(loads) <= longest


def triples(rows: Rows) -> list[tuple[int, ...]]:
    columns = (rows.queries_R, rows.positives_R, rows.negatives_R, rows.epochs_R)
    return [tuple(map(int, row)) for row in zip(*columns, strict=True)]
