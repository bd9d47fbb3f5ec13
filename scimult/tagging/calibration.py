"""Calibrated probabilities, calibration error, and thresholds for a target precision.

Shape legend: P pairs of paper and concept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scimult.types import BoolArray, IntArray

Numbers = NDArray[np.float64]
_LEAST = 20
_PLAIN = 1e-3
_CONFIDENCE, _STARTS = 0.95, 5


@dataclass(frozen=True)
class Curve:
    """A non-decreasing map from log odds to probabilities.

    Interpolates linearly between the centres of the blocks of an isotonic regression (Zadrozny and
    Elkan 2002); outside them the first and the last level hold. Mixing in a thousandth of the
    logistic function keeps the order within a block.

    Attributes
    ----------
    logits, probabilities : list of float
        Knots; if empty, the logistic function alone.
    """

    logits: list[float]
    probabilities: list[float]

    def __post_init__(self) -> None:
        if len(self.logits) != len(self.probabilities):
            raise ValueError("a curve has as many logits as probabilities")

    def __call__(self, logits: NDArray[Any]) -> Numbers:
        """Return the probabilities of log odds of any shape."""
        plain: Numbers = _logistic(np.asarray(logits, dtype=np.float64))
        if not self.logits:
            return plain
        calibrated = np.interp(logits, self.logits, self.probabilities)
        mixed: Numbers = (1 - _PLAIN) * calibrated + _PLAIN * plain
        return mixed

    @classmethod
    def fit(cls, logits_P: NDArray[Any], right_P: BoolArray) -> Curve:
        """Fit to pairs; use the logistic function if fewer than 20 are right or wrong."""
        if min(right_P.sum(), (~right_P).sum()) < _LEAST:
            return cls([], [])
        from sklearn.isotonic import IsotonicRegression

        order = np.argsort(logits_P, kind="stable")
        x_P = np.asarray(logits_P, dtype=np.float64)[order]
        y_P = IsotonicRegression().fit_transform(x_P, right_P[order].astype(np.float64))
        levels, starts, counts = np.unique(y_P, return_index=True, return_counts=True)
        centres = np.add.reduceat(x_P, np.sort(starts)) / counts
        return cls([float(x) for x in centres], [float(x) for x in levels])


@dataclass(frozen=True)
class Calibration:
    """Curves for concepts with and without tagged papers, whose log odds are not comparable."""

    seen: Curve
    unseen: Curve

    def probabilities(self, logits: NDArray[Any], seen: BoolArray) -> Numbers:
        """Return probabilities; ``seen`` indexes the last axis of the log odds."""
        calibrated = np.empty(logits.shape, dtype=np.float64)
        calibrated[..., seen] = self.seen(logits[..., seen])
        calibrated[..., ~seen] = self.unseen(logits[..., ~seen])
        return calibrated


def expected_calibration_error(
    probabilities_P: NDArray[Any], right_P: BoolArray, bins: int = 15
) -> float:
    """Return the mean gap between probability and share of right pairs (Guo et al. 2017, eq. 5).

    The mean is over equally wide bins, weighted by their numbers of pairs.
    """
    if not len(right_P):
        return 0.0
    bin_P = np.minimum((np.asarray(probabilities_P) * bins).astype(int), bins - 1)
    gaps = np.bincount(bin_P, np.asarray(probabilities_P) - right_P, minlength=bins)
    return float(np.abs(gaps).sum() / len(right_P))


@dataclass(frozen=True)
class Suggestions:
    """A tagger's suggestions for held-out papers, and whether each is right.

    Papers are given by number, concepts by row, ranks within a paper's list from 1. Copies of a
    paper are one work. Only a list that is no tagger's may lack concepts or works.
    `scimult.tagging.sets.as_selected` makes each entry a change of a paper's list: by ``added_P``
    tags, of which ``right_P`` are right.
    """

    probabilities_P: Numbers
    right_P: BoolArray | IntArray
    papers_P: IntArray
    ranks_P: IntArray
    concepts_P: IntArray | None = None
    added_P: IntArray | None = None
    works_P: IntArray | None = None

    def threshold(self, precision: float, k: int | None) -> float | None:
        """Return the lowest threshold with a guaranteed precision; None if there is none.

        Thresholds are tested from the highest down until one fails (fixed-sequence testing with
        several starts, which share the error budget: Angelopoulos et al. 2021), so that the bound
        holds for the chosen one: with a probability of 0.95 the share of right suggestions, at
        most ``k`` per paper, is not lower on similar papers.
        """
        passed = [
            cutoff
            for tests in self._sequences(k)
            for _, cutoff in takewhile(lambda test: test[0] >= precision, tests)
        ]
        return min(passed, default=None)

    def greatest_precision(self, k: int | None) -> float:
        """Return the greatest precision that a threshold guarantees; see `threshold`."""
        first = [bound for tests in self._sequences(k) for bound, _ in islice(tests, 1)]
        return max(first, default=0.0)

    def _sequences(self, k: int | None) -> Iterator[Iterator[tuple[float, float]]]:
        """Yield the tests from each start on: the bound of the precision, and the threshold."""
        p, *listed = self._listed(k)
        steps = _steps(p)
        confidence = 1 - (1 - _CONFIDENCE) / _STARTS
        for start in np.linspace(0, len(steps), _STARTS, endpoint=False).astype(int).tolist():
            yield ((_bound(listed, stop, confidence), float(p[stop - 1])) for stop in steps[start:])

    def _listed(self, k: int | None) -> list[NDArray[Any]]:
        """Return the arrays of the top ``k``, most probable first, but for ranks and concepts."""
        listed_P = np.full(len(self.right_P), True) if k is None else self.ranks_P <= k
        order = np.flatnonzero(listed_P)
        order = order[np.argsort(-self.probabilities_P[order], kind="stable")]
        added_P = np.ones_like(self.papers_P) if self.added_P is None else self.added_P
        works_P = self.papers_P if self.works_P is None else self.works_P
        arrays = (self.probabilities_P, self.right_P, works_P, added_P)
        return [array_P[order] for array_P in arrays]


def _bound(listed: Sequence[NDArray[Any]], stop: int, confidence: float) -> float:
    right_P, works_P, added_P = (array_P[:stop] for array_P in listed)
    return precision_bound(right_P, works_P, confidence, added_P)


def precision_bound(
    right_P: BoolArray | IntArray,
    works_P: IntArray,
    confidence: float = _CONFIDENCE,
    added_P: IntArray | None = None,
) -> float:
    """Return a lower confidence bound of the precision on similar papers.

    Suggestions for a paper and its copies are correlated, so works are the sampling units: the
    precision is a ratio of two sums over works, with the variance of the residuals
    ``right - precision · suggested`` (Cochran 1977, section 2.11), widened by Student's t. The
    bound never exceeds that of as many works with one suggestion each (Clopper and Pearson 1934),
    which matters where all are right.
    """
    from scipy.stats import beta, t

    _, owners = np.unique(works_P, return_inverse=True)
    count = int(owners.max(initial=-1)) + 1
    if count < 2:
        return 0.0
    suggested, right = np.bincount(owners, added_P), np.bincount(owners, right_P)
    share = right.sum() / suggested.sum()
    residuals = right - share * suggested
    error = np.sqrt(count / (count - 1) * (residuals**2).sum()) / suggested.sum()
    bound = share - t.ppf(confidence, count - 1) * error
    hits = share * count
    least = beta.ppf(1 - confidence, hits, count - hits + 1) if hits else 0.0
    return float(max(0.0, min(bound, least)))


def _steps(sorted_P: Numbers) -> list[int]:
    """Return about 100 list lengths to test, none of which separates equal scores."""
    if len(sorted_P) < _LEAST:
        return []
    ends = np.flatnonzero(np.diff(sorted_P, append=-np.inf)) + 1
    lengths = np.geomspace(_LEAST, len(sorted_P), 100).astype(int)
    return sorted({int(end) for end in ends[np.searchsorted(ends, lengths)]})


def _logistic(logits: Numbers) -> Numbers:
    probabilities: Numbers = 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
    return probabilities
