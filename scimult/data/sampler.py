"""Batches are planned, not drawn by chance: a pure function of (seed, unit, world size).

A *unit* is one forward-backward over all ranks; without accumulation a unit is a step.
Every unit holds pairs of one source, hence of one task, on every rank.

Shape legend: P pairs of a source, R rows of a unit over all ranks, G groups of a source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scimult.data.pairs import PairFile
from scimult.errors import ConfigError, UnknownNameError
from scimult.types import IntArray

RateArray = NDArray[np.float64]
NO_NEGATIVE = -1


@dataclass(frozen=True)
class PlannedRows:
    """Rows of one unit: parallel arrays of text rows; ``negatives_R`` is -1 where none exists.

    ``epochs_R`` counts how often the source's pairs were all visited before.
    """

    source: int
    queries_R: IntArray
    positives_R: IntArray
    negatives_R: IntArray
    epochs_R: IntArray

    def shard(self, rank: int, world_size: int) -> PlannedRows:
        """Return the consecutive rows that ``rank`` works on."""
        rows = slice(*(len(self.queries_R) * r // world_size for r in (rank, rank + 1)))
        return PlannedRows(
            self.source,
            self.queries_R[rows],
            self.positives_R[rows],
            self.negatives_R[rows],
            self.epochs_R[rows],
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
        stream = self._streams[source]
        epochs_R = np.arange(start, start + self.rows_per_unit, dtype=np.int64) // len(stream)
        return PlannedRows(source, *stream.rows(start, self.rows_per_unit), epochs_R)

    def task(self, unit: int) -> str:
        """Return the task of a unit, the same on every rank."""
        return self.sources[int(self.source_of_unit[unit])].task


def sampling_rates(
    sources: Sequence[PairFile], mode: str, explicit: Mapping[str, float] | None = None
) -> RateArray:
    """Return the share of units for each source.

    Parameters
    ----------
    sources : sequence of PairFile
        The sources, in order.
    mode : str
        ``proportional`` to the number of pairs, ``sqrt`` of it, ``equal`` by source,
        ``equal_tasks`` (tasks alike, sources of a task in proportion), or ``explicit``.
    explicit : mapping
        For ``explicit``: weight by ``source.task``, or by source where it trains one task.

    Raises
    ------
    UnknownNameError, ConfigError
        If the mode or a name is unknown, or a source has no weight.
    """
    sizes = np.array([len(file.positives.values) for file in sources], dtype=np.float64)
    if mode == "proportional":
        weights = sizes
    elif mode == "sqrt":
        weights = np.sqrt(sizes)
    elif mode == "equal":
        weights = np.ones_like(sizes)
    elif mode == "equal_tasks":
        tasks = np.array([file.task for file in sources])
        weights = np.array([n / sizes[tasks == t].sum() for n, t in zip(sizes, tasks, strict=True)])
    elif mode == "explicit":
        weights = _explicit(sources, explicit or {})
    else:
        modes = ("proportional", "sqrt", "equal", "equal_tasks", "explicit")
        raise UnknownNameError("sampling mode", mode, modes)
    rates: RateArray = weights / weights.sum()
    return rates


def _explicit(sources: Sequence[PairFile], weights: Mapping[str, float]) -> RateArray:
    named = {name: find_source(sources, name, "data.rates").name for name in weights}
    absent = [file.name for file in sources if file.name not in named.values()]
    if absent or len(named) > len(sources) or sum(weights.values()) <= 0:
        raise ConfigError(
            "data.rates must weigh every source once",
            value=absent or dict(weights),
            fix="give each source a weight, 0 to leave one out",
        )
    by_file = {file: weights[name] for name, file in named.items()}
    return np.array([by_file[file.name] for file in sources], dtype=np.float64)


def find_source(sources: Sequence[PairFile], name: str, where: str) -> PairFile:
    """Return the pair file called ``source.task``, or the only one of a source.

    Raises
    ------
    UnknownNameError, ConfigError
        If there is none, or the source trains several tasks.
    """
    found = [file for file in sources if name in (file.name, file.source)]
    if not found:
        known = {known for file in sources for known in (file.source, file.name)}
        raise UnknownNameError(f"source in {where}", name, known)
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ConfigError(
            f"source in {where} trains several tasks", value=name, fix=f"name one of {names}"
        )
    return found[0]


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
