"""Batches are planned, not drawn by chance: a pure function of (seed, unit, world size).

A *unit* is one forward-backward over all ranks; without accumulation a unit is a step.
Every unit holds pairs of one source, hence of one task, on every rank.

Shape legend: P pairs of a source, R rows of a unit over all ranks, G groups of a source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scimult.data.pairs import PairFile
from scimult.data.rates import RateArray
from scimult.errors import ConfigError
from scimult.types import IntArray

NO_NEGATIVE = -1


@dataclass(frozen=True)
class PlannedRows:
    """Rows of one unit: parallel arrays of text rows; ``negatives_R`` is -1 where none exists."""

    source: int
    queries_R: IntArray
    positives_R: IntArray
    negatives_R: IntArray

    def shard(self, rank: int, world_size: int) -> PlannedRows:
        """Return the consecutive rows that ``rank`` works on."""
        rows = slice(*(len(self.queries_R) * r // world_size for r in (rank, rank + 1)))
        return PlannedRows(
            self.source, self.queries_R[rows], self.positives_R[rows], self.negatives_R[rows]
        )


class PairStream:
    """An endless sequence of the pairs of one source, reshuffled at every epoch.

    Each epoch visits every pair once, in an order of its own, and draws one hard negative
    per pair from the pair's group (SciMult, section 3.4), by ``(seed, source, epoch)``.
    """

    def __init__(self, pairs: PairFile, seed: int) -> None:
        self.pairs = pairs
        self._seed = seed
        self._group_P = pairs.positives.owners
        self._epoch = -1
        self._order_P: IntArray = np.zeros(0, dtype=np.int64)
        self._negative_P: IntArray = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._group_P)

    def rows(self, start: int, count: int) -> tuple[IntArray, IntArray, IntArray]:
        """Return queries, positives and negatives of pairs ``start`` to ``start + count``."""
        parts = []
        while count > 0:
            epoch, offset = divmod(start, len(self))
            self._enter(epoch)
            pairs = self._order_P[offset : offset + count]
            groups = self._group_P[pairs]
            parts.append(
                (
                    self.pairs.queries[groups],
                    self.pairs.positives.values[pairs],
                    self._negative_P[pairs],
                )
            )
            start, count = start + len(pairs), count - len(pairs)
        queries, positives, negatives = (
            np.concatenate(column) for column in zip(*parts, strict=True)
        )
        return queries, positives, negatives

    def _enter(self, epoch: int) -> None:
        if epoch == self._epoch:
            return
        rng = np.random.default_rng([self._seed, epoch])
        self._order_P = rng.permutation(len(self))
        self._negative_P = self._draw_negatives(rng)
        self._epoch = epoch

    def _draw_negatives(self, rng: np.random.Generator) -> IntArray:
        negatives = self.pairs.negatives
        counts_P = negatives.lengths[self._group_P]
        picks_P = (rng.random(len(self)) * counts_P).astype(np.int64)
        drawn_P = np.full(len(self), NO_NEGATIVE, dtype=np.int64)
        has_any = counts_P > 0
        places = negatives.offsets[self._group_P] + picks_P
        drawn_P[has_any] = negatives.values[places[has_any]]
        return drawn_P


class Sampler:
    """Plans which source each unit uses and which of its pairs.

    Parameters
    ----------
    sources : sequence of PairFile
        Training pairs; sources without a pair are refused.
    rates : array
        Share of the units that each source gets; sums to 1.
    rows_per_unit : int
        Pairs of one unit over all ranks.
    units : int
        Length of the plan.
    seed : int
        Decides every order and every draw.

    Raises
    ------
    ConfigError
        If a source is empty or a unit would hold no row.
    """

    def __init__(
        self,
        sources: Sequence[PairFile],
        rates: RateArray,
        *,
        rows_per_unit: int,
        units: int,
        seed: int,
    ) -> None:
        empty = [file.name for file in sources if not len(file.positives.values)]
        if empty or not sources:
            raise ConfigError(
                "a source has no training pairs",
                value=empty or "no source at all",
                fix="leave it out of data.sources or prepare it again",
            )
        self.sources = list(sources)
        self.rows_per_unit = rows_per_unit
        self._streams = [
            PairStream(file, _mix(seed, number)) for number, file in enumerate(sources)
        ]
        self.source_of_unit = _interleave(rates, units, seed)
        self._uses_before = np.zeros(units, dtype=np.int64)
        for number in range(len(sources)):
            chosen = self.source_of_unit == number
            self._uses_before[chosen] = np.arange(chosen.sum())

    def __len__(self) -> int:
        return len(self.source_of_unit)

    def plan(self, unit: int) -> PlannedRows:
        """Return the rows of a unit over all ranks."""
        source = int(self.source_of_unit[unit])
        start = int(self._uses_before[unit]) * self.rows_per_unit
        return PlannedRows(source, *self._streams[source].rows(start, self.rows_per_unit))

    def task(self, unit: int) -> str:
        """Return the task of a unit, the same on every rank."""
        return self.sources[int(self.source_of_unit[unit])].task


def _interleave(rates: RateArray, units: int, seed: int) -> IntArray:
    """Spread the sources evenly: at every unit the one that is most behind its rate.

    A seeded jitter keeps the order free of a fixed pattern; it is bounded, so after n units
    each source has been used ``rate * n`` times give or take a few.
    """
    rng = np.random.default_rng([seed, 1])
    used = np.zeros(len(rates))
    chosen = np.zeros(units, dtype=np.int64)
    jitter = rng.random((units, len(rates))) * 0.5
    for unit in range(units):
        behind = np.where(rates > 0, rates * (unit + 1) - used + jitter[unit], -np.inf)
        chosen[unit] = int(behind.argmax())
        used[chosen[unit]] += 1
    return chosen


def _mix(seed: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
