"""Reviewer assignment with the largest total score, as a linear programme.

With loads alone the programme is a transportation problem, whose corners are integral. It is
solved on the best pairs only, and pairs whose reduced cost shows that they would help are added
until there are none: the optimum over all pairs, in the memory of a few.

Shape legend: S submissions, R reviewers, C pairs of the programme.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, vstack

from scimult.errors import DataError
from scimult.matching.affinity import best_pairs, blocks_of
from scimult.progress import bar
from scimult.terminal import counted
from scimult.types import FloatArray, IntArray

# Reduced costs above this count as an improvement; scores are float32, here from 0 to 1.
_TOLERANCE = 1e-6
# Pairs that miss an improvement by less than this are added, too.
_NEARLY = 2e-3
# Pairs added per submission and round.
_ADDED = 20


@dataclass(frozen=True)
class Loads:
    """Reviewers that each submission needs, and bounds on each reviewer's submissions."""

    needed_S: IntArray
    most_R: IntArray
    least_R: IntArray


@dataclass(frozen=True)
class Assignment:
    """Assigned pairs in the order of submissions, best first.

    ``rounds`` is the number of times the programme was solved.
    """

    submissions: IntArray
    reviewers: IntArray
    scores: FloatArray
    rounds: int


def assign(
    scores_SR: FloatArray,
    loads: Loads,
    names: Sequence[str] = (),
    reviewers_R: Sequence[str] = (),
) -> Assignment:
    """Return the assignment with the largest sum of scores.

    ``scores_SR`` may be memory-mapped; NaN where a pair must not be assigned. If the loads cannot
    be met, the error has the ``names`` of submissions that lack reviewers, or ``reviewers_R`` who
    lack submissions.

    Raises
    ------
    DataError
        If the loads cannot be met.
    """
    check_sums(loads)
    programme = _Programme(scores_SR, loads)
    pairs_C = programme.first_pairs()
    rounds = 0
    with bar("assigning", unit="round") as meter:
        while True:
            rounds += 1
            values_C, missing_S, unfilled_R, prices_S, prices_R = programme.solve(pairs_C)
            meter.update(1)
            more = programme.better_pairs(pairs_C, prices_S, prices_R)
            if len(more):
                pairs_C = np.concatenate([pairs_C, more])
            elif not (missing_S > 0.5).any() and not (unfilled_R > 0.5).any():
                break
            elif not programme.raise_penalty():
                if (missing_S > 0.5).any():
                    raise _short_of_reviewers(scores_SR, loads, missing_S, names)
                raise _short_of_submissions(loads, unfilled_R, reviewers_R)
    pairs = pairs_C[values_C > 0.5]
    assert np.abs(values_C - values_C.round()).max(initial=0) < 1e-5, "corners are integral"
    submissions, reviewers = np.divmod(pairs, scores_SR.shape[1])
    scores = np.asarray(scores_SR[submissions, reviewers])
    order = np.lexsort((reviewers, -scores, submissions))
    return Assignment(submissions[order], reviewers[order], scores[order], rounds)


class _Programme:
    """The linear programme over a growing set of pairs, numbered ``submission * R + reviewer``.

    Scores are scaled to 0 to 1, as tolerances are absolute: a short half-life makes them minute.
    """

    def __init__(self, scores_SR: FloatArray, loads: Loads) -> None:
        self._scores, self._loads = scores_SR, loads
        self._count = scores_SR.shape[1]
        low, high = np.inf, -np.inf
        for _, block in blocks_of(scores_SR):
            finite = block[np.isfinite(block)]
            low, high = float(finite.min(initial=low)), float(finite.max(initial=high))
        self._low, self._spread = low, high - low if high > low else 1.0
        # Cost of an unfilled slot. Only the last value exceeds what exchanges along any chain of
        # pairs could gain; such large costs are slow and inexact, and seldom needed.
        self._penalty = 5.0
        self._last_penalty = self._penalty + sum(scores_SR.shape)

    def raise_penalty(self) -> bool:
        """Raise the cost of unfilled slots; return whether it was below its maximum."""
        raised = self._penalty < self._last_penalty
        self._penalty = min(32 * self._penalty, self._last_penalty)
        return raised

    def _scaled(self, scores: FloatArray) -> NDArray[np.float64]:
        scaled: NDArray[np.float64] = (scores.astype(np.float64) - self._low) / self._spread
        return scaled

    def first_pairs(self) -> IntArray:
        """Return the best pairs of each submission and each reviewer."""
        wide = 3 * int(self._loads.needed_S.max(initial=0)) + 20
        long = 3 * int(self._loads.most_R.max(initial=0)) + 10
        return best_pairs(self._scores, wide, long)

    def solve(
        self, pairs_C: IntArray
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return the pairs' values, the unfilled slots of both sides, and the prices of both."""
        loads, number = self._loads, len(pairs_C)
        submissions, reviewers = np.divmod(pairs_C, self._count)
        sizes = len(loads.needed_S), len(loads.most_R)
        lower = np.flatnonzero(loads.least_R > 0)
        # Variables: pairs, unfilled slots of submissions, and of reviewers with a minimum.
        width = number + sizes[0] + len(lower)
        columns = np.arange(number + sizes[0])
        owners = np.concatenate([submissions, np.arange(sizes[0])])
        equal = _ones(owners, columns, (sizes[0], width))
        most = _ones(reviewers, np.arange(number), (sizes[1], width))
        unfilled = number + sizes[0] + np.arange(len(lower))
        least = -most[lower] - _ones(np.arange(len(lower)), unfilled, (len(lower), width))
        scores = self._scaled(self._scores[submissions, reviewers])
        costs = np.concatenate([-scores, np.full(sizes[0] + len(lower), self._penalty)])
        bounds = np.zeros((width, 2))
        bounds[:number, 1] = 1
        bounds[number:, 1] = np.inf
        solution = linprog(
            costs,
            A_ub=vstack([most, least]),
            b_ub=np.concatenate([loads.most_R, -loads.least_R[lower]]),
            A_eq=equal,
            b_eq=loads.needed_S,
            bounds=bounds,
            method="highs-ds",
        )
        assert solution.status == 0, solution.message
        prices_R = solution.ineqlin.marginals[: sizes[1]].copy()
        prices_R[lower] -= solution.ineqlin.marginals[sizes[1] :]
        return (
            solution.x[:number],
            solution.x[number : number + sizes[0]],
            solution.x[number + sizes[0] :],
            solution.eqlin.marginals,
            prices_R,
        )

    def better_pairs(
        self, pairs_C: IntArray, prices_S: FloatArray, prices_R: FloatArray
    ) -> IntArray:
        """Return pairs outside the programme that would lower its cost, the best of each row.

        Also return those that nearly would: prices move a little from round to round, and a round
        costs more than a few pairs.
        """
        pairs, helps = [], False
        wide = min(self._count, _ADDED)
        for start, block in blocks_of(self._scores):
            gain = self._scaled(block) + prices_S[start : start + len(block), np.newaxis] + prices_R
            first, last = start * self._count, (start + len(block)) * self._count
            inside = pairs_C[(pairs_C >= first) & (pairs_C < last)] - first
            gain.ravel()[inside] = -np.inf
            columns = np.argpartition(-gain, wide - 1, axis=1)[:, :wide]
            best = np.take_along_axis(gain, columns, 1)
            helps = helps or bool((best > _TOLERANCE).any())
            rows = np.arange(start, start + len(block))[:, np.newaxis]
            pairs.append((rows * self._count + columns)[best > -_NEARLY])
        return np.concatenate(pairs) if helps else np.empty(0, dtype=np.int64)


def _ones(rows: IntArray, columns: IntArray, shape: tuple[int, int]) -> csr_array:
    """Return a sparse matrix with ones at the given positions."""
    return coo_array((np.ones(len(rows)), (rows, columns)), shape=shape).tocsr()


def check_sums(loads: Loads) -> None:
    """Check what no scores could change: the number of reviewers, and the sums of loads.

    Raises
    ------
    DataError
        If the loads cannot be met.
    """
    wide, there = int(loads.needed_S.max(initial=0)), len(loads.most_R)
    if wide > there:
        problem = f"a submission needs {wide:,} reviewers, but only {there:,} have publications"
        raise DataError(problem, fix="lower --reviewers, or add reviewers")
    needed, most, least = (int(x.sum()) for x in (loads.needed_S, loads.most_R, loads.least_R))
    if needed > most:
        problem = f"{needed:,} reviews are needed, but reviewers take at most {most:,}"
        fix = "raise --max-papers, lower --reviewers, or add reviewers"
        raise DataError(problem, fix=fix)
    if least > needed:
        problem = f"reviewers require at least {least:,} reviews, but only {needed:,} are needed"
        raise DataError(problem, fix="lower --min-papers")


def _short_of_reviewers(
    scores_SR: FloatArray, loads: Loads, missing_S: FloatArray, names: Sequence[str]
) -> DataError:
    """Return what only conflicts explain, or else conflicts and loads.

    Minima never do: where submissions and minima can be filled separately, both can (Mendelsohn and
    Dulmage 1958).
    """
    short = np.flatnonzero(missing_S > 0.5)
    allowed = np.isfinite(scores_SR[short]).sum(axis=1)
    blocked = short[allowed < loads.needed_S[short]]
    problem, fix = "without enough reviewers", "raise --max-papers, lower --reviewers"
    if len(blocked):
        short, fix = blocked, "add reviewers, lower --reviewers"
        problem = "with too few reviewers who have no conflict"
    problem = f"{len(short):,} of {counted(len(missing_S), 'submission')} {problem}"
    return DataError(problem, value=_some(short, names), fix=f"{fix}, or check the conflicts")


def _short_of_submissions(
    loads: Loads, unfilled_R: FloatArray, reviewers_R: Sequence[str]
) -> DataError:
    short = np.flatnonzero(loads.least_R > 0)[unfilled_R > 0.5]
    problem = f"{counted(len(short), 'reviewer')} cannot get their minimum"
    fix = "lower --min-papers, or check the conflicts"
    return DataError(problem, value=_some(short, reviewers_R), fix=fix)


def _some(rows: IntArray, names: Sequence[str]) -> str:
    return ", ".join(names[row] if names else str(row) for row in rows[:3])
