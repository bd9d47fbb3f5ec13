"""Batches are planned, not drawn by chance: a pure function of (seed, unit, ranks).

A *unit* is one forward-backward over all ranks; without accumulation a unit is a step.
It holds pairs of one source or of several, the same ones on every rank.

Shape legend: S sources, U units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scimult.data.pair_streams import PairStream, Rows, UnitStream
from scimult.data.pairs import PairFile
from scimult.errors import ConfigError, UnknownNameError
from scimult.types import IntArray

RateArray = NDArray[np.float64]


@dataclass(frozen=True)
class PlannedPart:
    """The rows of one source in a unit, over all ranks; ``source`` is its number."""

    source: int
    rows: Rows


class Sampler(Protocol):
    """Plans the units of a run."""

    def __len__(self) -> int:
        """Return the number of units."""

    def plan(self, unit: int) -> list[PlannedPart]:
        """Return the parts of a unit: the same sources in the same order on every rank."""


class AlternatingSampler:
    """Every unit holds pairs of one source, hence of one task.

    Parameters
    ----------
    streams : sequence of UnitStream
        One per source.
    rates : array
        Share of the units that each source gets; sums to 1.
    units : int
        Length of the plan.
    seed : int
        Decides the order of the sources.
    """

    def __init__(
        self, streams: Sequence[UnitStream], rates: RateArray, *, units: int, seed: int
    ) -> None:
        self._streams = list(streams)
        self._source_U = _interleave(rates, units, seed)
        self._uses_before_U = np.zeros(units, dtype=np.int64)
        for number in range(len(streams)):
            chosen = self._source_U == number
            self._uses_before_U[chosen] = np.arange(chosen.sum())

    def __len__(self) -> int:
        return len(self._source_U)

    def plan(self, unit: int) -> list[PlannedPart]:
        """Return the one part of a unit."""
        source = int(self._source_U[unit])
        return [PlannedPart(source, self._streams[source].unit(int(self._uses_before_U[unit])))]


class MixingSampler:
    """Every unit holds pairs of several sources, as many of each as its rate asks for.

    A source's pairs so far are its rate of all pairs so far, give or take one; a source of a
    low rate is absent from some units.

    Parameters
    ----------
    streams : sequence of PairStream
        One per source.
    rates : array
        Share of the pairs that each source gets; sums to 1.
    rows, ranks : int
        Pairs of a unit over all ranks; world size.
    units : int
        Length of the plan.
    """

    def __init__(
        self, streams: Sequence[PairStream], rates: RateArray, *, rows: int, ranks: int, units: int
    ) -> None:
        self._streams = list(streams)
        self._ranks = ranks
        self._rows_US = _share_out(rates, rows, units)
        self._before_US = np.cumsum(self._rows_US, axis=0) - self._rows_US

    def __len__(self) -> int:
        return len(self._rows_US)

    def plan(self, unit: int) -> list[PlannedPart]:
        """Return a part for every source that has rows in the unit."""
        return [
            PlannedPart(
                number, stream.rows(int(self._before_US[unit, number]), int(count), self._ranks)
            )
            for number, stream in enumerate(self._streams)
            if (count := self._rows_US[unit, number])
        ]


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


def _share_out(rates: RateArray, rows: int, units: int) -> IntArray:
    """Divide each unit's rows over the sources by what each is behind its rate, shape (U, S)."""
    rows_US = np.zeros((units, len(rates)), dtype=np.int64)
    used_S = np.zeros(len(rates), dtype=np.int64)
    for unit in range(units):
        behind_S = rates * rows * (unit + 1) - used_S
        rows_S = np.floor(behind_S.clip(min=0)).astype(np.int64)
        left = rows - int(rows_S.sum())
        for number in np.argsort(-(behind_S - rows_S), kind="stable")[: max(left, 0)]:
            rows_S[number] += 1
        given_S = np.where(rows_S > 0, behind_S - rows_S, np.inf)
        for number in np.argsort(given_S, kind="stable")[: max(-left, 0)]:
            rows_S[number] -= 1
        assert rows_S.min() >= 0
        used_S += rows_S
        rows_US[unit] = rows_S
    return rows_US
