"""The solver of SciRepEval's regressions against the original's weights."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.svm import LinearSVR

from scimult.evaluation.published_svr import Numbers, PublishedSVR

LIGHTNING = {
    0.01: [1.7662117366392445, 0.04589814261317744, 0.6257648874362095, -0.0872207077541153],
    1.0: [2.154986963318788, -0.779433936548025, 1.120284065831516, 0.019116249713215273],
    100.0: [2.5014488138852333, -0.6107992538558901, 0.6826930441303525, -0.07665759817170505],
}
"""Weights by C that ``lightning.regression.LinearSVR(C=C, random_state=42)`` of
sklearn-contrib-lightning 0.6.2 (scikit-learn 1.2.2) fits to the data below."""


def _shifted() -> tuple[Numbers, Numbers]:
    draw = np.random.default_rng(12)
    x = draw.normal(size=(60, 4)) + 1.0
    return x, x @ np.array([2.0, -1.0, 0.5, 0.0]) + draw.normal(size=60) + 3.0


@pytest.mark.parametrize("cost", LIGHTNING)
def test_the_published_solver_is_repeated(cost: float) -> None:
    """Against the original in float64; another order of addition leaves 1e-14."""
    fitted = PublishedSVR(C=cost).fit(*_shifted())
    assert fitted.coef_ == pytest.approx(LIGHTNING[cost], rel=1e-10)


def test_the_published_solver_takes_papers_without_embedding() -> None:
    """Its division by a norm of 0 is infinite: the dual goes to a bound, the weights stay."""
    x, y = _shifted()
    fitted = []
    for length in (0.0, 1e-150):
        x[3] = length
        fitted.append(PublishedSVR(C=1.0).fit(x, y).coef_)
    assert fitted[0] == pytest.approx(fitted[1], rel=1e-12)


def test_the_published_solver_minimises_nothing() -> None:
    """Why the bug is repeated instead of fixed: the loss is far from liblinear's."""
    x, y = _shifted()

    def objective(weights: Numbers) -> float:
        return float(weights @ weights / 2 + 100 * np.abs(y - x @ weights).sum())

    best = LinearSVR(C=100, epsilon=0, fit_intercept=False, max_iter=100_000, dual=True).fit(x, y)
    assert objective(PublishedSVR(C=100).fit(x, y).coef_) > 1.001 * objective(best.coef_)
