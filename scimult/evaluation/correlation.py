"""Correlate data sets over systems, to see whether they rank systems alike.

Appendix G of the SciRepEval paper (Singh et al. 2023): sets whose scores rise and fall together
add little to a benchmark. Shape legend: S systems, D data sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import stats

from scimult.config import StrictConfig
from scimult.errors import DataError
from scimult.evaluation.metrics import Scores
from scimult.evaluation.report import check_comparable, set_order
from scimult.evaluation.resampling import ROUNDING
from scimult.evaluation.results import load_results, provenance
from scimult.table import ABSENT, Table, label, number

FEWEST = 3
"""Over two systems every correlation is 1 or -1."""
_DIGITS = round(-math.log10(ROUNDING))

Method = Literal["pearson", "spearman", "kendall"]
METHODS: dict[Method, Callable[[Scores, Scores], Any]] = {
    "pearson": stats.pearsonr,
    "spearman": stats.spearmanr,
    "kendall": stats.kendalltau,
}


class Correlation(StrictConfig):
    """Correlations of main metrics between data sets, over systems.

    ``matrices`` are symmetric; None where a set gives every system the same score.
    """

    format: Literal["scimult-correlation/1"] = "scimult-correlation/1"
    suite: str
    systems: list[str]
    sets: list[str]
    metrics: list[str]
    matrices: dict[Method, list[list[float | None]]]
    notes: list[str]
    provenance: dict[str, Any]


def correlate(out: Path) -> Correlation:
    """Correlate, over all systems below ``out``, the sets that every one of them has.

    Raises
    ------
    DataError
        If there are fewer than three systems or two shared sets, or results of other data.
    """
    if not out.is_dir():
        raise DataError("folder does not exist", path=out, fix="check the path")
    results = load_results(out)
    if len(results) < FEWEST:
        problem = f"correlations need {FEWEST} systems"
        raise DataError(problem, path=out, value=len(results), fix="evaluate more systems")
    names = set_order(results)
    facts = check_comparable(results, results[-1].suite["name"], {})
    shared = [name for name in names if all(name in result.sets for result in results)]
    if len(shared) < 2:
        problem = "correlations need two data sets that every system has"
        raise DataError(
            problem, path=out, value=shared, fix="evaluate all systems on the same sets"
        )
    scores_SD = np.array([[result.sets[name].main_score for name in shared] for result in results])
    others = [name for name in names if name not in shared]
    notes = [
        f"Correlations of main metrics between data sets, over {len(results)} systems; {ABSENT}: "
        "a set gives every system the same score. With few systems, large correlations arise by "
        "chance."
    ]
    notes += [f"Not every system has {', '.join(others)}."] if others else []
    return Correlation(
        suite=results[-1].suite["name"],
        systems=[result.system for result in results],
        sets=shared,
        metrics=[facts[name].main_metric for name in shared],
        matrices={method: matrix(scores_SD, method) for method in METHODS},
        notes=notes,
        provenance=provenance(),
    )


def matrix(scores_SD: Scores, method: Method) -> list[list[float | None]]:
    """Return the correlation of every two columns; None where one is constant.

    Scores that differ by no more than rounding are equal, as in tests (`resampling.ROUNDING`).
    """
    scores_SD = np.round(scores_SD, _DIGITS)
    columns, constant = list(scores_SD.T), np.ptp(scores_SD, axis=0) == 0
    # Compute each pair once: swapped arguments may differ in the last bit.
    values = {
        (i, j): None
        if constant[i] or constant[j]
        else float(METHODS[method](columns[i], columns[j]).statistic)
        for i, j in combinations_with_replacement(range(len(columns)), 2)
    }
    indices = range(len(columns))
    return [[values[min(i, j), max(i, j)] for j in indices] for i in indices]


def correlation_table(correlation: Correlation, method: Method) -> Table:
    """Return one method's matrix as a table."""
    matrix = zip(correlation.sets, correlation.matrices[method], strict=True)
    rows = [[label(name), *(number(value, "{:.2f}") for value in row)] for name, row in matrix]
    title = f"Suite {correlation.suite}: {method} correlation between data sets"
    return Table(title, ["set", *correlation.sets], 1, rows, correlation.notes)
