"""Endless streams of a source's pairs or targets, cut into micro-batches.

A *micro-batch* is one forward-backward over all ranks. It is a pure function of the seed and its
number, and of the number of ranks where each rank has its own token budget.

Shape legend: P pairs of a source or of a pool, R rows of a micro-batch over all ranks, N texts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from scimult.data.negatives import NO_NEGATIVE, NegativeDraws
from scimult.data.pairs import PairFile
from scimult.data.ragged import rank_in_runs
from scimult.data.targets import TargetFile
from scimult.errors import ConfigError
from scimult.types import IntArray


@dataclass(frozen=True)
class Rows:
    """Rows of one micro-batch: parallel arrays of text rows, -1 for none.

    A paper with a target is a query without a positive.

    ``epochs_R`` is the epoch of each row: the number of complete passes over the source before
    it. Rank ``r`` works on rows ``bounds[r]`` to ``bounds[r + 1]``; undivided rows belong to one
    rank.
    """

    queries_R: IntArray
    positives_R: IntArray
    negatives_R: IntArray
    epochs_R: IntArray
    bounds: list[int]

    def __len__(self) -> int:
        return len(self.queries_R)

    def take(self, order: IntArray, bounds: list[int]) -> Rows:
        """Return the rows in another order, with new bounds."""
        return Rows(
            self.queries_R[order],
            self.positives_R[order],
            self.negatives_R[order],
            self.epochs_R[order],
            bounds,
        )

    def tokens(self, lengths_N: IntArray) -> IntArray:
        """Return the total tokens of each row's texts, shape ``(R,)``."""
        tokens_R = lengths_N[self.queries_R]
        for rows_R in (self.positives_R, self.negatives_R):
            has_one = rows_R != NO_NEGATIVE
            tokens_R[has_one] += lengths_N[rows_R[has_one]]
        return tokens_R

    def shard(self, rank: int) -> Rows:
        """Return the rows that ``rank`` works on."""
        first, last = self.bounds[rank : rank + 2]
        return self.take(np.arange(first, last), [0, last - first])


class ItemStream(ABC):
    """An endless sequence of the pairs or targets of a file, reshuffled every epoch by ``seed``."""

    def __init__(self, file: PairFile | TargetFile, seed: int) -> None:
        self.file = file
        self.seed = seed
        self._epoch = -1
        self._order: IntArray = np.zeros(0, dtype=np.int64)

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of items in an epoch."""

    @abstractmethod
    def _shuffle(self, epoch: int, rng: np.random.Generator) -> IntArray:
        """Return the items of an epoch, in order."""

    @abstractmethod
    def _texts(self, items: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Return queries, positives and negatives of items of the current epoch."""

    def rows(self, start: int, count: int) -> Rows:
        """Return items ``start`` to ``start + count``."""
        parts = []
        left = count
        while left > 0:
            epoch, offset = divmod(start, len(self))
            if epoch != self._epoch:
                rng = np.random.default_rng([self.seed, epoch])
                self._order, self._epoch = self._shuffle(epoch, rng), epoch
            items = self._order[offset : offset + left]
            epochs = np.full(len(items), epoch, dtype=np.int64)
            parts.append((*self._texts(items), epochs))
            start, left = start + len(items), left - len(items)
        queries, positives, negatives, epochs = (
            np.concatenate(column) for column in zip(*parts, strict=True)
        )
        return Rows(queries, positives, negatives, epochs, [0, count])


class TargetStream(ItemStream):
    """The papers of one target file; each epoch visits every paper once."""

    def __len__(self) -> int:
        return len(self.file)

    def _shuffle(self, epoch: int, rng: np.random.Generator) -> IntArray:
        return rng.permutation(len(self))

    def _texts(self, items: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        assert isinstance(self.file, TargetFile)
        none = np.full(len(items), NO_NEGATIVE)
        return self.file.rows[items], none, none


class PairStream(ItemStream):
    """The pairs of one source.

    Each epoch visits every pair once, in its own order, and draws one hard negative per pair from
    the pair's group (SciMult, section 3.4), both seeded by ``(seed, epoch)``. With ``per_query``,
    it visits at most so many pairs of a query (SPECTER, section 4: 5), and epochs take turns
    through each query's pairs, in a fixed random order.
    """

    def __init__(self, pairs: PairFile, seed: int, per_query: int | None = None) -> None:
        super().__init__(pairs, seed)
        self._pairs = pairs
        self._group_P = pairs.positives.owners
        self._draws = NegativeDraws(pairs)
        self._turns = None
        if per_query is not None:
            self._turns = _Turns(pairs.queries[self._group_P], per_query, seed)
        self._negative_P: IntArray = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._group_P) if self._turns is None else len(self._turns)

    def _shuffle(self, epoch: int, rng: np.random.Generator) -> IntArray:
        order = rng.permutation(len(self))
        self._negative_P = self._draws.draw(self._group_P, rng)
        return order if self._turns is None else self._turns.pairs(epoch)[order]

    def _texts(self, items: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        groups = self._group_P[items]
        positives = self._pairs.positives.values[items]
        return self._pairs.queries[groups], positives, self._negative_P[items]


class _Turns:
    """Selects each epoch's pairs, at most ``limit`` per query."""

    def __init__(self, queries_P: IntArray, limit: int, seed: int) -> None:
        self._limit = limit
        chances_P = np.random.default_rng([seed, 0, 2]).random(len(queries_P))
        order = np.lexsort((chances_P, queries_P))
        self._position_P = np.empty(len(queries_P), dtype=np.int64)
        self._position_P[order] = rank_in_runs(queries_P[order])
        _, query_P, counts = np.unique(queries_P, return_inverse=True, return_counts=True)
        self._count_P = counts[query_P]
        self._length = int(np.minimum(counts, limit).sum())

    def __len__(self) -> int:
        return self._length

    def pairs(self, epoch: int) -> IntArray:
        """Return the pairs of an epoch; every epoch has equally many of each query."""
        turn_P = (self._position_P - epoch * self._limit) % self._count_P
        return np.flatnonzero(turn_P < self._limit)


def pair_streams(
    sources: Sequence[PairFile | TargetFile], seed: int, per_query: int | None = None
) -> list[ItemStream]:
    """Return the stream of every source.

    Raises
    ------
    ConfigError
        If a source is empty, or there is none.
    """
    empty = [file.name for file in sources if not item_count(file)]
    if empty or not sources:
        raise ConfigError(
            "a source has no training pairs",
            value=empty or "no source at all",
            fix="leave it out of data.sources or prepare it again",
        )
    streams: list[ItemStream] = []
    for number, file in enumerate(sources):
        own_seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        if isinstance(file, TargetFile):
            streams.append(TargetStream(file, own_seed))
        else:
            streams.append(PairStream(file, own_seed, per_query))
    return streams


def item_count(file: PairFile | TargetFile) -> int:
    """Return the number of pairs, or of papers with targets, in a file."""
    return len(file) if isinstance(file, TargetFile) else len(file.positives.values)


class FixedMicroBatches:
    """Micro-batches of a fixed number of pairs."""

    def __init__(self, stream: ItemStream, rows: int) -> None:
        self._stream, self._rows = stream, rows

    def __len__(self) -> int:
        return len(self._stream)

    @property
    def micro_batches_per_epoch(self) -> float:
        """Micro-batches per epoch; two epochs may share one."""
        return len(self._stream) / self._rows

    def micro_batch(self, number: int) -> Rows:
        """Return the rows of the source's micro-batch ``number``."""
        return self._stream.rows(number * self._rows, self._rows)


class TokenMicroBatches:
    """Micro-batches of similar-length pairs that fill each rank's token budget.

    An epoch's shuffled pairs are split into pools of about ``pool`` micro-batches. Each pool is
    sorted by length, cut into micro-batches of equal tokens and dealt to the ranks in turn; the
    micro-batches of a pool then come in random order. So a pair meets other pairs in every epoch,
    and lengths are similar only within a random pool; a ``pool`` of 1 mixes all lengths.

    ``max_tokens`` is the budget of one rank's micro-batch, and a pair that exceeds it is an error.
    A text shared by two pairs of a micro-batch counts twice, though it is encoded once; a view
    counts as the whole text.
    """

    def __init__(
        self,
        stream: ItemStream,
        lengths_N: IntArray,
        *,
        max_tokens: int,
        ranks: int,
        pool: int,
    ) -> None:
        self._stream = stream
        self._lengths_N = lengths_N
        self._max_tokens = max_tokens
        self._ranks = ranks
        self._pool = pool
        # First micro-batch of every epoch so far; then the micro-batches of one current epoch.
        self._first_of_epoch = [0]
        self._epoch = -1
        self._micro_batches: list[IntArray] = []
        self._whole: Rows | None = None
        self._enter(0)

    def __len__(self) -> int:
        return len(self._stream)

    @property
    def micro_batches_per_epoch(self) -> float:
        """Micro-batches of the first epoch; others differ by a few."""
        return self._first_of_epoch[1]

    def micro_batch(self, number: int) -> Rows:
        """Return the rows of the source's micro-batch ``number``."""
        while number >= self._first_of_epoch[-1]:
            self._enter(len(self._first_of_epoch) - 1)
        epoch = int(np.searchsorted(self._first_of_epoch, number, side="right")) - 1
        self._enter(epoch)
        assert self._whole is not None
        pairs = self._micro_batches[number - self._first_of_epoch[epoch]]
        # Pairs are sorted by length, so dealing them in turn balances the ranks.
        dealt = [pairs[rank :: self._ranks] for rank in range(self._ranks)]
        bounds = np.cumsum([0, *map(len, dealt)]).tolist()
        return self._whole.take(np.concatenate(dealt), bounds)

    def _enter(self, epoch: int) -> None:
        if epoch == self._epoch:
            return
        self._whole = self._stream.rows(epoch * len(self._stream), len(self._stream))
        costs_P = self._costs(self._whole)
        rng = np.random.default_rng([self._stream.seed, epoch, 1])
        self._micro_batches = []
        for pool_P in self._pools(costs_P):
            micro_batches = self._cut(pool_P[np.argsort(costs_P[pool_P], kind="stable")], costs_P)
            self._micro_batches += [
                micro_batches[index] for index in rng.permutation(len(micro_batches))
            ]
        self._epoch = epoch
        if epoch == len(self._first_of_epoch) - 1:
            self._first_of_epoch.append(self._first_of_epoch[-1] + len(self._micro_batches))

    def _costs(self, rows: Rows) -> IntArray:
        costs_P = rows.tokens(self._lengths_N)
        if costs_P.max(initial=0) > self._max_tokens:
            raise ConfigError(
                f"a pair of source {self._stream.file.name!r} has {costs_P.max()} tokens, "
                f"more than batch.max_tokens",
                value=self._max_tokens,
                fix="raise batch.max_tokens or lower data.max_length",
            )
        return costs_P

    def _pools(self, costs_P: IntArray) -> Iterator[IntArray]:
        """Yield indices of the epoch's pairs in order, about ``pool`` micro-batches at a time."""
        tokens = self._pool * self._ranks * self._max_tokens
        pools = max(1, round(int(costs_P.sum()) / tokens))
        yield from np.array_split(np.arange(len(costs_P)), pools)

    def _cut(self, sorted_P: IntArray, costs_P: IntArray) -> list[IntArray]:
        """Cut a pool into the fewest micro-batches of about equal tokens that fit the budget."""
        totals_P = np.cumsum(costs_P[sorted_P])
        count = max(1, -(-int(totals_P[-1]) // (self._ranks * self._max_tokens)))
        while True:
            shares = totals_P[-1] * np.arange(1, count) / count
            micro_batches = [
                micro_batch
                for micro_batch in np.split(sorted_P, np.searchsorted(totals_P, shares))
                if len(micro_batch)
            ]
            if all(self._fits(costs_P[micro_batch]) for micro_batch in micro_batches):
                return micro_batches
            count += 1

    def _fits(self, costs_R: IntArray) -> bool:
        sums = (int(costs_R[rank :: self._ranks].sum()) for rank in range(self._ranks))
        return max(sums) <= self._max_tokens


MicroBatchStream: TypeAlias = FixedMicroBatches | TokenMicroBatches
