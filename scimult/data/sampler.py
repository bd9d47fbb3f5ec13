"""Plan micro-batches as a pure function of (seed, micro-batch, ranks).

A *micro-batch* is one forward-backward over all ranks; without accumulation it is a step. It holds
pairs of one or several sources, the same ones on every rank.

Shape legend: S sources, U micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from scimult.data.pair_streams import ItemStream, MicroBatchStream, Rows
from scimult.data.rates import RateArray
from scimult.types import IntArray


@dataclass(frozen=True)
class PlannedPart:
    """The rows of source number ``source`` in a micro-batch, over all ranks."""

    source: int
    rows: Rows


class AlternatingSampler:
    """Every micro-batch holds pairs of one source, hence of one task.

    A source whose micro-batches hold many pairs gets fewer of them. Over the whole plan, each
    source gets its share of the pairs (``rates``, which sum to 1) rounded to whole micro-batches.
    ``sequential`` plans all micro-batches of the first source, then all of the next, instead of an
    even spread in an order that ``seed`` decides.
    """

    def __init__(
        self,
        streams: Sequence[MicroBatchStream],
        rates: RateArray,
        *,
        micro_batches: int,
        seed: int,
        sequential: bool = False,
    ) -> None:
        self._streams = list(streams)
        per_pair_S = _micro_batches_per_pair(streams, rates)
        micro_batches_S = per_pair_S / per_pair_S.sum()
        if sequential:
            shares_S = share_out(micro_batches_S, micro_batches, 1)[0]
            self._source_U = np.repeat(np.arange(len(streams)), shares_S)
        else:
            self._source_U = _interleave(micro_batches_S, micro_batches, seed)
        # Number of each micro-batch within its source.
        self._number_U = np.zeros(micro_batches, dtype=np.int64)
        for source in range(len(streams)):
            is_own_U = self._source_U == source
            self._number_U[is_own_U] = np.arange(is_own_U.sum())

    def __len__(self) -> int:
        return len(self._source_U)

    def plan(self, micro_batch: int) -> list[PlannedPart]:
        """Return the single part of a micro-batch."""
        source = int(self._source_U[micro_batch])
        rows = self._streams[source].micro_batch(int(self._number_U[micro_batch]))
        return [PlannedPart(source, rows)]


class MixingSampler:
    """Every micro-batch holds ``rows`` pairs of several sources, in proportion to their rates.

    A source's pairs so far are its rate of all pairs so far, give or take one; a source with a low
    rate is absent from some micro-batches.
    """

    def __init__(
        self, streams: Sequence[ItemStream], rates: RateArray, *, rows: int, micro_batches: int
    ) -> None:
        self._streams = list(streams)
        self._rows_US = share_out(rates, rows, micro_batches)
        self._before_US = np.cumsum(self._rows_US, axis=0) - self._rows_US

    def __len__(self) -> int:
        return len(self._rows_US)

    def plan(self, micro_batch: int) -> list[PlannedPart]:
        """Return a part for every source that has rows in the micro-batch."""
        return [
            PlannedPart(number, stream.rows(int(self._before_US[micro_batch, number]), int(count)))
            for number, stream in enumerate(self._streams)
            if (count := self._rows_US[micro_batch, number])
        ]


class BalancedSampler:
    """The micro-batches of another sampler, divided over the ranks by tokens.

    All ranks wait for the one with the longest texts. A part's rows are dealt in rounds, longest
    first, one row per rank; in each round the longest row goes to the rank with the fewest tokens
    so far. The content of a micro-batch does not change, and ranks differ by at most one row per
    part.
    """

    def __init__(self, sampler: Sampler, lengths_N: IntArray, *, ranks: int) -> None:
        self._sampler = sampler
        self._lengths_N = lengths_N
        self._ranks = ranks

    def __len__(self) -> int:
        return len(self._sampler)

    def plan(self, micro_batch: int) -> list[PlannedPart]:
        """Return the parts of a micro-batch."""
        loads = np.zeros(self._ranks, dtype=np.int64)
        return [
            PlannedPart(part.source, self._deal(part.rows, loads))
            for part in self._sampler.plan(micro_batch)
        ]

    def _deal(self, rows: Rows, loads: IntArray) -> Rows:
        """Divide rows over the ranks and add their tokens to ``loads``."""
        tokens_R = rows.tokens(self._lengths_N)
        longest_first = np.argsort(-tokens_R, kind="stable")
        dealt: list[list[int]] = [[] for _ in range(self._ranks)]
        for start in range(0, len(rows), self._ranks):
            least_first = np.argsort(loads, kind="stable")
            round_rows = longest_first[start : start + self._ranks]
            for rank, row in zip(least_first, round_rows, strict=False):
                dealt[rank].append(int(row))
                loads[rank] += tokens_R[row]
        bounds = np.cumsum([0, *map(len, dealt)]).tolist()
        return rows.take(np.concatenate([np.array(part, dtype=np.int64) for part in dealt]), bounds)


Sampler: TypeAlias = AlternatingSampler | MixingSampler | BalancedSampler
"""Plans the micro-batches of a run: the same sources in the same order on every rank."""


def epoch_micro_batches(streams: Sequence[MicroBatchStream], rates: RateArray) -> float:
    """Return how many micro-batches of an `AlternatingSampler` hold one epoch's number of pairs.

    With rates proportional to the pairs, every pair comes once. Sources of rate 0 do not count.
    """
    pairs = sum(len(stream) for stream, rate in zip(streams, rates, strict=True) if rate > 0)
    return pairs * float(_micro_batches_per_pair(streams, rates).sum())


def _micro_batches_per_pair(streams: Sequence[MicroBatchStream], rates: RateArray) -> RateArray:
    """Return each source's micro-batches per pair of the plan, weighted by its rate."""
    per_pair_S = [stream.micro_batches_per_epoch / len(stream) for stream in streams]
    micro_batches_S: RateArray = rates * np.array(per_pair_S)
    return micro_batches_S


def _interleave(rates: RateArray, micro_batches: int, seed: int) -> IntArray:
    """Spread the sources evenly: every micro-batch goes to the one furthest behind its rate.

    A bounded, seeded jitter prevents a fixed pattern: after n micro-batches each source has been
    used about ``rate * n`` times, give or take a few, and to within one at the end.
    """
    rng = np.random.default_rng([seed, 1])
    used = np.zeros(len(rates))
    totals = share_out(rates, micro_batches, 1)[0]
    source_U = np.zeros(micro_batches, dtype=np.int64)
    jitter = rng.random((micro_batches, len(rates))) * 0.5
    for micro_batch in range(micro_batches):
        behind = np.where(
            used < totals, rates * (micro_batch + 1) - used + jitter[micro_batch], -np.inf
        )
        source_U[micro_batch] = int(behind.argmax())
        used[source_U[micro_batch]] += 1
    return source_U


def share_out(rates: RateArray, rows: int, micro_batches: int) -> IntArray:
    """Divide each micro-batch's rows over the sources by how far each is behind its rate.

    Return the rows of each source in each micro-batch, shape ``(U, S)``.
    """
    rows_US = np.zeros((micro_batches, len(rates)), dtype=np.int64)
    used_S = np.zeros(len(rates), dtype=np.int64)
    for micro_batch in range(micro_batches):
        behind_S = rates * rows * (micro_batch + 1) - used_S
        rows_S = np.floor(behind_S.clip(min=0)).astype(np.int64)
        left = rows - int(rows_S.sum())
        for number in np.argsort(-(behind_S - rows_S), kind="stable")[: max(left, 0)]:
            rows_S[number] += 1
        given_S = np.where(rows_S > 0, behind_S - rows_S, np.inf)
        for number in np.argsort(given_S, kind="stable")[: max(-left, 0)]:
            rows_S[number] -= 1
        assert rows_S.min() >= 0
        used_S += rows_S
        rows_US[micro_batch] = rows_S
    return rows_US
