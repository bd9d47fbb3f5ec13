"""Samples of few training papers, as SciRepEval draws them for its few-shot versions.

Shape legend: N papers, S labels.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold

from scimult.errors import DataError
from scimult.evaluation.benchmark import FewShot
from scimult.types import IntArray

# Sample k of several labels is drawn with this number + k, as in SciRepEval.
_SEED = 42


def held_out_folds(labels_N: NDArray[Any], shot: FewShot) -> Iterator[IntArray]:
    """Yield the held-out rows of each of ceil(N / size) stratified folds as samples."""
    folds = StratifiedKFold(n_splits=math.ceil(len(labels_N) / shot.size))
    with warnings.catch_warnings():
        # A sample may lack a rare class, as in SciRepEval.
        warnings.simplefilter("ignore", UserWarning)
        parts = [rows for _, rows in folds.split(labels_N, labels_N)]
    yield from parts[: shot.iterations]


def class_samples(name: str, labels_N: NDArray[Any], shot: FewShot) -> Iterator[IntArray]:
    """Yield samples of papers with one label each.

    Raises
    ------
    DataError
        If the set has too few training papers for the folds.
    """
    folds = math.ceil(len(labels_N) / shot.size)
    largest = int(np.unique(labels_N, return_counts=True)[1].max())
    if not 2 <= folds <= largest:
        problem = f"{name}: {len(labels_N)} training papers, {largest} of the largest class"
        fix = "choose a size that gives at least 2 folds, and no more than that class has papers"
        problem += f", cannot be split into {folds} samples"
        raise DataError(problem, value=shot.size, fix=fix)
    yield from held_out_folds(labels_N, shot)


def label_samples(
    flags_NS: NDArray[np.int64], shot: FewShot, labels: Sequence[str]
) -> Iterator[IntArray]:
    """Yield samples with ``size`` papers drawn per label, in the order of ``labels``.

    Rows come in the order of a Python set, as in SciRepEval: folds are made of rows as they come.

    Raises
    ------
    DataError
        If a label has fewer than ``size`` papers.
    """
    for label, count in zip(labels, flags_NS.sum(axis=0), strict=True):
        if count < shot.size:
            problem = f"label has {count} training papers, but {shot.size} are drawn per label"
            raise DataError(problem, value=label, fix="use a smaller few-shot size")
    for k in range(shot.iterations):
        random = np.random.RandomState(_SEED + k)
        rows: set[int] = set()
        for column_N in flags_NS.T:
            rows.update(random.choice(np.flatnonzero(column_N), shot.size, replace=False).tolist())
        yield np.array(list(rows))
