"""Streams visit every pair once per epoch, divided over ranks, within a token budget."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scimult.data.negatives import NO_NEGATIVE
from scimult.data.pair_streams import (
    FixedMicroBatches,
    MicroBatchStream,
    PairStream,
    Rows,
    TokenMicroBatches,
)
from scimult.data.sampler import AlternatingSampler, BalancedSampler, Sampler
from scimult.errors import ConfigError
from tests.data.pair_files import SOURCES, pair_file


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
        drawn = stream.rows(start, count)
        seen += list(zip(drawn.queries_R.tolist(), drawn.positives_R.tolist(), strict=True))
        assert drawn.epochs_R.tolist() == [(start + i) // len(stream) for i in range(count)]
    assert len(every_pair) == len(stream)
    for epoch in range(3):
        assert set(seen[epoch * len(stream) : (epoch + 1) * len(stream)]) == every_pair


def test_negatives_come_from_the_group_and_change_by_epoch() -> None:
    stream = PairStream(SOURCES[0], 3)
    drawn: dict[int, set[int]] = {}
    for epoch in range(30):
        rows = stream.rows(epoch * len(stream), len(stream))
        for query, negative in zip(rows.queries_R, rows.negatives_R, strict=True):
            drawn.setdefault(int(query), set()).add(int(negative))
    for group, query in enumerate(SOURCES[0].queries):
        pool = set(SOURCES[0].negatives[group].tolist()) or {NO_NEGATIVE}
        # 30 epochs with 2 or more pairs a group leave no negative of 5 undrawn.
        assert drawn[int(query)] == pool


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("by_tokens", [False, True])
def test_ranks_share_a_micro_batch_without_overlap(ranks: int, by_tokens: bool) -> None:
    stream = PairStream(SOURCES[1], 0)
    texts = SOURCES[1].queries.max() + 1
    micro_batches: MicroBatchStream = (
        token_micro_batches(texts, ranks, 1) if by_tokens else FixedMicroBatches(stream, 6)
    )
    sampler: Sampler = AlternatingSampler([micro_batches], np.ones(1), micro_batches=12, seed=0)
    if not by_tokens:
        sampler = BalancedSampler(sampler, np.arange(texts), ranks=ranks)
    for number in range(12):
        whole = sampler.plan(number)[0].rows
        shards = [whole.shard(rank) for rank in range(ranks)]
        for name in ("queries_R", "positives_R", "negatives_R", "epochs_R"):
            joined = np.concatenate([getattr(shard, name) for shard in shards])
            assert np.array_equal(joined, getattr(whole, name))
        sizes = [len(shard) for shard in shards]
        assert max(sizes) - min(sizes) <= 1


LONGEST = 12


def token_micro_batches(texts: int, ranks: int, pool: int) -> TokenMicroBatches:
    lengths = np.random.default_rng(0).integers(1, LONGEST + 1, texts)
    stream = PairStream(SOURCES[1], 7)
    return TokenMicroBatches(stream, lengths, max_tokens=3 * LONGEST, ranks=ranks, pool=pool)


def pairs_of(rows: Rows) -> list[tuple[int, int]]:
    return list(zip(rows.queries_R.tolist(), rows.positives_R.tolist(), strict=True))


@settings(deadline=None, max_examples=50)
@given(
    st.integers(1, 60), st.integers(1, 4), st.integers(1, 5), st.booleans(), st.integers(0, 1000)
)
def test_token_micro_batches_hold_an_epoch_once_within_the_budget(
    pairs: int, ranks: int, pool: int, hard_negatives: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    file = pair_file("x", "search", [1] * pairs, rng.integers(0, 3, pairs).tolist())
    lengths = rng.integers(1, LONGEST + 1, int(file.queries.max()) + 1)
    stream = PairStream(file if hard_negatives else file.without_negatives(), seed)
    micro_batches = TokenMicroBatches(
        stream, lengths, max_tokens=3 * LONGEST, ranks=ranks, pool=pool
    )
    every_pair = sorted(zip(file.queries.tolist(), file.positives.values.tolist(), strict=True))
    number = 0
    for _ in range(3):
        seen: list[tuple[int, int]] = []
        while len(seen) < len(every_pair):
            micro_batch = micro_batches.micro_batch(number)
            for rank in range(ranks):
                shard = micro_batch.shard(rank)
                costs = lengths[shard.queries_R] + lengths[shard.positives_R]
                drawn = shard.negatives_R
                assert hard_negatives or (drawn == NO_NEGATIVE).all()
                costs = costs + np.where(drawn == NO_NEGATIVE, 0, lengths[drawn])
                assert costs.sum() <= 3 * LONGEST
            seen += pairs_of(micro_batch)
            number += 1
        assert sorted(seen) == every_pair


def test_token_micro_batches_are_the_same_in_any_order() -> None:
    texts = int(SOURCES[1].queries.max()) + 1
    forward, backward = (token_micro_batches(texts, 2, 3) for _ in range(2))
    micro_batches = [pairs_of(forward.micro_batch(number)) for number in range(40)]
    for number in reversed(range(40)):
        assert pairs_of(backward.micro_batch(number)) == micro_batches[number]


def test_a_pool_sorts_by_length_and_keeps_epochs_apart() -> None:
    """Pools make lengths within a micro-batch similar; pairs meet others in every epoch."""
    file = pair_file("x", "search", [1] * 400, [0] * 400)
    lengths = np.random.default_rng(0).integers(1, 101, int(file.queries.max()) + 1)
    spreads, meetings = {}, {}
    for pool in (1, 10):
        micro_batches = TokenMicroBatches(
            PairStream(file, 3), lengths, max_tokens=1000, ranks=1, pool=pool
        )
        per_epoch = int(micro_batches.micro_batches_per_epoch)
        of_epoch = [micro_batches.micro_batch(number) for number in range(per_epoch)]
        costs = [
            lengths[micro_batch.queries_R] + lengths[micro_batch.positives_R]
            for micro_batch in of_epoch
        ]
        spreads[pool] = np.mean([cost.std() for cost in costs])
        first = {frozenset(micro_batch.queries_R.tolist()) for micro_batch in of_epoch}
        again = {
            frozenset(micro_batches.micro_batch(number).queries_R.tolist())
            for number in range(per_epoch, 2 * per_epoch)
        }
        meetings[pool] = first & again
    assert spreads[10] < spreads[1] / 3
    assert not meetings[1]
    assert not meetings[10]


def test_a_pair_beyond_the_budget_is_refused() -> None:
    file = pair_file("x", "search", [1, 1], [1, 0])
    lengths = np.full(int(file.queries.max()) + 1, 10)
    with pytest.raises(ConfigError, match=r"'x\.search' has 30 tokens.*max_tokens"):
        TokenMicroBatches(PairStream(file, 0), lengths, max_tokens=29, ranks=1, pool=1)
    stream = PairStream(file.without_negatives(), 0)
    micro_batches = TokenMicroBatches(stream, lengths, max_tokens=20, ranks=1, pool=1)
    assert micro_batches.micro_batches_per_epoch == 2


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 5), st.integers(0, 100))
def test_pairs_of_a_query_take_turns(sizes: list[int], limit: int, seed: int) -> None:
    """Epochs respect the limit per query; over as many epochs as pairs, all come equally often.

    Pairs of a query stand in one group or, as citations, in one group each.
    """
    together = pair_file("x", "search", sizes, [1] * len(sizes))
    apart = replace(
        pair_file("x", "link_prediction", [1] * sum(sizes), [1] * sum(sizes)),
        queries=np.repeat(np.arange(len(sizes)), sizes),
    )
    for file in (together, apart):
        stream = PairStream(file, seed, limit)
        queries = np.unique(file.queries)
        assert len(stream) == sum(min(size, limit) for size in sizes)
        counts: Counter[tuple[int, int]] = Counter()
        for epoch in range(max(sizes)):
            rows = stream.rows(epoch * len(stream), len(stream))
            assert set(rows.epochs_R) == {epoch}
            pairs = list(zip(rows.queries_R.tolist(), rows.positives_R.tolist(), strict=True))
            assert len(set(pairs)) == len(pairs)
            for query, size in zip(queries, sizes, strict=True):
                own = Counter(pair for pair in pairs if pair[0] == query)
                assert len(own) == min(size, limit)
                if epoch < size:
                    counts.update(own)
                if epoch == size - 1:
                    whole = [count for (q, _), count in counts.items() if q == query]
                    assert whole == [min(size, limit)] * size
