"""Fits of linear models to frozen embeddings, each with the best C of a grid.

C is chosen by cross-validation on the training papers, by accuracy or R²; the model with the
best C (the smallest on ties) is fitted to all of them. The solvers are scikit-learn's.

Shape legend: N papers, T test papers, D width, S labels.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from joblib import Parallel, delayed, parallel_config
from numpy.typing import NDArray
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.svm import LinearSVC, LinearSVR

from scimult.errors import DataError
from scimult.evaluation.benchmark import Probe
from scimult.evaluation.published_svr import PublishedSVR

Flags = NDArray[np.int64]
Numbers = NDArray[np.float64]

SEED = 42
"""Seed of the solvers, as in SciRepEval."""
# scikit-learn's and SciRepEval's, which for several labels has more.
_ITERATIONS, _MORE_ITERATIONS = 1_000, 10_000


@dataclass(frozen=True)
class Split:
    """Training and test embeddings, shapes ``(N, D)`` and ``(T, D)``."""

    train_ND: Numbers
    test_TD: Numbers


def check_classes(labels_N: NDArray[Any], folds: int, source: str) -> None:
    """Raise if papers have one class only, or no class has a paper for every fold."""
    classes, counts = np.unique(labels_N, return_counts=True)
    if len(classes) < 2:
        fix = "use larger samples, or leave out the few-shot version or the set"
        raise DataError(f"{source} have only one class", value=str(classes[0]), fix=fix)
    if counts.max() < folds:
        problem = f"{source} have {counts.max()} of the largest class, fewer than {folds} folds"
        raise DataError(problem, value=str(classes[counts.argmax()]), fix="lower probe.folds")


def fit_best(
    model: Any, probe: Probe, x_ND: Numbers, y_N: NDArray[Any]
) -> tuple[Any, dict[str, Any]]:
    """Choose C on a grid and fit to all rows; return the model and details for the result."""
    grid = _grid(model, probe)
    with (
        parallel_config(backend="threading", n_jobs=_threads(model, x_ND, probe.folds)),
        _silent_solvers(),
    ):
        grid.fit(x_ND, y_N)
    details = {
        "C": float(grid.best_params_["C"]),
        "cross_validated": round(float(grid.best_score_), 6),
        "fits_not_converged": _unconverged_fits(grid),
    }
    return grid.best_estimator_, details


def _threads(model: Any, x_ND: Numbers, folds: int) -> int:
    """Return how many threads may fit such models at once; they share the embeddings.

    liblinear releases the GIL, but its dual solvers draw from one random generator: fits next to
    each other would differ from run to run. ``dual="auto"`` means the primal where there is one
    for the loss and no fewer rows than columns.
    """
    is_primal = isinstance(model, LinearSVC) and model.loss == "squared_hinge"
    is_primal &= len(x_ND) * (folds - 1) // folds >= x_ND.shape[1]
    draws = isinstance(model, LinearSVC | LinearSVR) and not is_primal
    return 1 if draws else os.cpu_count() or 1


def _grid(model: Any, probe: Probe) -> GridSearchCV:
    costs = {"C": sorted(probe.costs)}
    return GridSearchCV(model, costs, cv=probe.folds, scoring=_fold_scores, refit="score")


def _fold_scores(model: Any, x_ND: Numbers, y_N: NDArray[Any]) -> dict[str, float]:
    """Return accuracy or R², and whether the solver stopped before converging."""
    return {"score": model.score(x_ND, y_N), "unconverged": _is_unconverged(model)}


def _is_unconverged(model: Any) -> bool:
    # Solvers warn in this case, but warnings get lost between threads.
    return bool(np.max(getattr(model, "n_iter_", 0)) >= model.max_iter)


def _unconverged_fits(grid: GridSearchCV) -> int:
    """Count the fits of a grid, the final one included, that did not converge."""
    folds = [grid.cv_results_[f"split{fold}_test_unconverged"] for fold in range(grid.n_splits_)]
    # NaN: the fold could not be fitted.
    return int(np.nansum(folds)) + _is_unconverged(grid.best_estimator_)


def fit_one_vs_rest(
    probe: Probe, split: Split, train_NS: Flags, source: str
) -> tuple[Flags, dict[str, Any]]:
    """Fit one model per label, each with its own grid, and predict the test papers.

    A label that all or no training papers have is predicted for all or none.
    """
    with _silent_solvers():
        threads = _threads(classifier(probe), split.train_ND, probe.folds)
        fitted = Parallel(n_jobs=threads, backend="threading")(
            delayed(_one_label)(probe, split, train_NS[:, label], source)
            for label in range(train_NS.shape[1])
        )
    predicted, costs, unconverged = zip(*fitted, strict=True)
    details = {"C": list(costs), "fits_not_converged": sum(unconverged)}
    return np.stack(predicted, axis=1), details


def _one_label(
    probe: Probe, split: Split, flags_N: Flags, source: str
) -> tuple[Flags, float | None, int]:
    """Return predictions, the chosen C, and the number of fits that did not converge.

    Of a label that one paper has, a fold without it cannot be fitted, and the smallest C is chosen.
    """
    if np.ptp(flags_N) == 0:
        return np.full(len(split.test_TD), flags_N[0]), None, 0
    check_classes(flags_N, probe.folds, source)
    grid = _grid(classifier(probe), probe).fit(split.train_ND, flags_N)
    cost = float(grid.best_params_["C"])
    return grid.predict(split.test_TD), cost, _unconverged_fits(grid)


def classifier(probe: Probe, cost: float = 1.0) -> Any:
    """Return the classifier; its loss is squared hinge, or hinge for multiple labels."""
    if probe.model == "logistic":
        return LogisticRegression(C=cost, fit_intercept=probe.intercept, max_iter=_MORE_ITERATIONS)
    return LinearSVC(
        C=cost,
        loss="hinge" if probe.multi_label else "squared_hinge",
        dual=True if probe.multi_label else "auto",
        fit_intercept=probe.intercept,
        random_state=SEED,
        max_iter=_MORE_ITERATIONS if probe.multi_label else _ITERATIONS,
    )


def regressor(probe: Probe) -> Any:
    """Return support vector regression with epsilon 0."""
    if probe.solver == "lightning":
        return PublishedSVR(random_state=SEED)
    return LinearSVR(
        epsilon=0.0,
        fit_intercept=probe.intercept,
        random_state=SEED,
        max_iter=_ITERATIONS,
        dual="auto",
    )


@contextmanager
def _silent_solvers() -> Iterator[None]:
    """Suppress warnings of fits, whose results count those that did not converge, and of folds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("ignore", FitFailedWarning)
        yield
