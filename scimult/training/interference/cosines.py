"""Cosines between the gradients of tasks, with confidence intervals and a noise ceiling.

A batch's gradient is the task's gradient plus noise, which alone makes cosines small. The ceiling
of a pair is the cosine to expect if both tasks had the same gradient: the geometric mean of each
task's cosine with itself on other batches, as in Spearman's correction of correlations (1904,
"The proof and measurement of association between two things").

Shape legend: K rounds, T tasks, P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from scimult.training.interference.gradients import HALVES, Location, RoundProducts

CONFIDENCE = 0.95
Verdict = Literal["conflict", "apart", "alike", "routed"]
WHOLE = Location(-2, "all")


@dataclass(frozen=True)
class Estimate:
    """A mean over rounds with its interval (Student's t, 95 %); NaN where undefined."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values_K: NDArray[np.float64], confidence: float = CONFIDENCE) -> Estimate:
        """Estimate the mean of independent rounds, without those that are NaN."""
        values_K = values_K[~np.isnan(values_K)]
        count, mean = len(values_K), _mean(values_K)
        if count < 2:
            return cls(mean, math.nan, math.nan)
        error = float(values_K.std(ddof=1)) / math.sqrt(count)
        reach = float(student.ppf((1 + confidence) / 2, count - 1)) * error
        return cls(mean, mean - reach, mean + reach)


@dataclass(frozen=True)
class PairCell:
    """Two tasks in one location of the encoder.

    All is measured on parameters that both reach. ``cosine`` is between their gradients,
    ``ceiling`` its expected value if both had the same gradient (NaN where a task does not agree
    with itself), ``gap`` the ceiling less the cosine. Verdicts: ``conflict``: the cosine is below
    0; ``apart``: the gap is above 0; both by intervals that hold for all cells of a map at once
    (Bonferroni); ``alike``: neither; ``routed``: no parameter here has gradients of both.
    """

    location: Location
    tasks: tuple[str, str]
    cosine: Estimate
    ceiling: float
    gap: Estimate
    verdict: Verdict

    @property
    def corrected(self) -> float:
        """The cosine over its ceiling, an estimate without noise; NaN if unknown."""
        return self.cosine.mean / self.ceiling


@dataclass(frozen=True)
class InterferenceMap:
    """All locations of a model and pairs of tasks; the location ``all`` is the whole encoder.

    ``within`` has the cosine of each task with itself on other batches.
    """

    tasks: list[str]
    num_blocks: int
    rounds: int
    pairs: list[PairCell]
    within: dict[tuple[Location, str], Estimate]

    @property
    def locations(self) -> list[Location]:
        """The locations: the whole encoder, then from the embeddings upwards."""
        return sorted({cell.location for cell in self.pairs})


def compare(
    tasks: Sequence[str],
    locations: Sequence[Location],
    num_blocks: int,
    rounds: Sequence[RoundProducts],
) -> InterferenceMap:
    """Return cosines within and between tasks for every location, over rounds of disjoint batches.

    ``tasks`` are in the order of the gradients, ``locations`` those of the P parameters.
    """
    pairs: list[PairCell] = []
    within: dict[tuple[Location, str], Estimate] = {}
    every_location = sorted({WHOLE, *locations})
    cells = len(every_location) * len(tasks) * (len(tasks) - 1) // 2
    for location in every_location:
        rows = [number for number, own in enumerate(locations) if location in (own, WHOLE)]
        for number, task in enumerate(tasks):
            selves_K = np.array([_cosine(each, rows, number, number) for each in rounds])
            within[location, task] = Estimate.of(selves_K)
        for first, second in combinations(range(len(tasks)), 2):
            cosines_K3 = np.array([_cosines(each, rows, first, second) for each in rounds])
            meet = any(_shared(each, rows, first, second) for each in rounds)
            names = (tasks[first], tasks[second])
            pairs.append(_cell(location, names, cosines_K3, cells, meet=meet))
    return InterferenceMap(list(tasks), num_blocks, len(rounds), pairs, within)


def _cosine(products: RoundProducts, rows: Sequence[int], first: int, second: int) -> float:
    """Return the mean cosine of two tasks on different batches, over parameters that both reach.

    Within a mixed batch queries of all tasks share their candidates, and with them noise that a
    task's cosine with itself on other batches lacks. A batch whose loss is 0 has no direction; NaN
    if nothing is left.
    """
    products_PGG, reached_PG = products.products_PGG, products.reached_PG
    batch_G = products.batch_G
    cosines = []
    for a in range(HALVES * first, HALVES * (first + 1)):
        for b in range(HALVES * second, HALVES * (second + 1)):
            common = [row for row in rows if reached_PG[row, a] and reached_PG[row, b]]
            if batch_G[a] == batch_G[b] or not common:
                continue
            squares = [products_PGG[common, g, g].sum() for g in (a, b)]
            norm = math.sqrt(squares[0] * squares[1])
            if norm:
                cosines.append(products_PGG[common, a, b].sum() / norm)
    return _mean(cosines)


def _mean(values: Sequence[float] | NDArray[np.float64]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def _cosines(
    products: RoundProducts, rows: Sequence[int], first: int, second: int
) -> tuple[float, float, float]:
    """Return the cosines of two tasks and of each with itself, over parameters that both reach."""
    shared = _shared(products, rows, first, second)
    return (
        _cosine(products, shared, first, second),
        _cosine(products, shared, first, first),
        _cosine(products, shared, second, second),
    )


def _shared(products: RoundProducts, rows: Sequence[int], first: int, second: int) -> list[int]:
    """Return the parameters that gradients of both tasks reach."""
    reached_PTH = products.reached_PG.reshape(len(products.reached_PG), -1, HALVES)
    reached_PT = np.asarray(reached_PTH.any(axis=2))
    return [row for row in rows if reached_PT[row, first] and reached_PT[row, second]]


def _cell(
    location: Location,
    tasks: tuple[str, str],
    cosines_K3: NDArray[np.float64],
    cells: int,
    *,
    meet: bool,
) -> PairCell:
    confidence = 1 - (1 - CONFIDENCE) / cells
    values_K, selves_K2 = cosines_K3[:, 0], cosines_K3[:, 1:]
    cosine = Estimate.of(values_K)
    own_2 = np.array([Estimate.of(selves_K).mean for selves_K in selves_K2.T])
    ceiling = math.sqrt(own_2[0] * own_2[1]) if own_2.min() > 0 else math.nan
    # The delta method: linear in the rounds, with the ceiling as the mean of the first term.
    gaps_K = selves_K2 @ (ceiling / (2 * own_2)) - values_K
    verdict: Verdict = "alike"
    if not meet:
        verdict = "routed"
    elif Estimate.of(values_K, confidence).high < 0:
        verdict = "conflict"
    elif Estimate.of(gaps_K, confidence).low > 0:
        verdict = "apart"
    return PairCell(location, tasks, cosine, ceiling, Estimate.of(gaps_K), verdict)
