"""The support vector regression behind SciRepEval's published numbers, including its bug.

They were computed with ``LinearSVR`` of sklearn-contrib-lightning: dual coordinate descent (Hsieh
et al. 2008; Ho and Lin 2012) on the absolute error (ε = 0), with no intercept. That solver shuffles
the papers before every pass but indexes its dual variables by position in the shuffled order, not
by paper, so each bounds the steps of whatever paper is at that position next. It ends at weights
that are not an optimum and depend on the shuffles, and its predictions differ enough (SciRepEval's
regression columns) that numbers are only comparable with the published ones if the bug is kept.

Shape legend: N papers, D width.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import daxpy, ddot
from sklearn.base import BaseEstimator, RegressorMixin

Numbers = NDArray[np.float64]

_SMALLEST_STEP = 1e-12
"""Gradients up to this count as zero."""
_TOLERANCE = 1e-3
"""Violations, as a share of those of the first pass, below which a pass is the last."""


class PublishedSVR(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Linear support vector regression as sklearn-contrib-lightning 0.6 fits it.

    Parameters
    ----------
    C : float
        Weight of the loss, and bound of the dual variables.
    max_iter : int
        Number of passes; each visits every paper twice, for too low and too high predictions.
    random_state : int
        Seed of the shuffles.
    """

    def __init__(self, C: float = 1.0, max_iter: int = 1000, random_state: int = 42) -> None:
        self.C, self.max_iter, self.random_state = C, max_iter, random_state

    def fit(self, x_ND: Numbers, y_N: Numbers) -> PublishedSVR:
        """Fit weights ``coef_``, shape ``(D,)``."""
        x_ND, papers = np.ascontiguousarray(x_ND, dtype=np.float64), len(x_ND)
        rows, targets = list(x_ND), np.asarray(y_N, dtype=np.float64).tolist()
        # A paper of zeros takes the step of one that is all but zero: to a bound.
        norms = np.maximum(np.einsum("nd,nd->n", x_ND, x_ND), np.finfo(np.float64).tiny).tolist()
        self.coef_: Numbers = np.zeros(x_ND.shape[1])
        duals = [0.0] * (2 * papers)
        order, random = np.arange(papers), np.random.RandomState(self.random_state)
        first = None
        for _ in range(self.max_iter):
            random.shuffle(order)
            violations = self._pass(order.tolist(), rows, targets, norms, duals)
            first = violations if first is None else first
            if violations < _TOLERANCE * first:
                break
        return self

    def _pass(
        self,
        order: list[int],
        rows: list[Numbers],
        targets: list[float],
        norms: list[float],
        duals: list[float],
    ) -> float:
        """Visit all papers twice, with alternating signs; return the sum of violations."""
        weights_D, bound, total = self.coef_, self.C, 0.0
        for position, paper in enumerate(order + order):
            row, dual = rows[paper], duals[position]
            sign = 1.0 if position % 2 == 0 else -1.0
            slope = sign * (ddot(weights_D, row) - targets[paper])
            blocked = (dual == 0.0 and slope >= 0.0) or (dual == bound and slope <= 0.0)
            if blocked:
                continue
            total += abs(slope)
            if abs(slope) <= _SMALLEST_STEP:
                continue
            new_dual = min(max(dual - slope / norms[paper], 0.0), bound)
            if new_dual != dual:
                duals[position] = new_dual
                daxpy(row, weights_D, a=sign * (new_dual - dual))
        return total

    def predict(self, x_ND: Numbers) -> Numbers:
        """Return one prediction per row, shape ``(N,)``."""
        predicted_N: Numbers = x_ND @ self.coef_
        return predicted_N
