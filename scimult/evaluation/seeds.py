"""Compare runs of several seeds: training and query variance in one confidence interval.

A run's score varies for two reasons: which queries the set has, the same for all runs, and which
seed a model was trained with. With J seeds of one run and K of another, all scored on the same Q
queries, this is the design of studies in which readers (seeds), nested in a modality (run), all
read the same cases (queries). Its analysis by Obuchowski and Rockette, with Hillis' degrees of
freedom, gives

    Var(mean - mean') = s2 (1/J + 1/K) + max(c + c' - 2 c*, 0)

where s2 is the variance of scores between seeds, pooled over the runs of a study; c and c' are
the covariances over queries of the scores of two seeds of the same run, and c* of seeds of
different runs, all by the jackknife. Of an average over sets the last term is a sum over the sets,
whose queries are independent. The difference divided by its standard error has a t distribution
with Satterthwaite's degrees of freedom: Var^2 over the sum of each term's square divided by its own
degrees, those of s2 and a set's number of queries less 1. (Hillis has the first of these terms
only, as if the queries' were known; with few queries it is not.)

A model that was not trained in the study has no seed: it adds its covariance, and nothing to s2.

Sources: Obuchowski and Rockette, Communications in Statistics 24(2), 1995 (covariances); Hillis,
Statistics in Medicine 26(3), 2007 (degrees of freedom), and 33(2), 2014 (readers nested in a
modality); Satterthwaite, Biometrics Bulletin 2(6), 1946; Efron and Stein, Annals of Statistics
9(3), 1981 (jackknife).

Shape legend: Q queries, F terms of a query, S sets, N scored models, J and K seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from scimult.evaluation.metrics import Scores
from scimult.evaluation.resampling import BLOCK, ROUNDING, Sample


@dataclass(frozen=True)
class SeedVariance:
    """Variance of a score between a run's seeds, and its degrees of freedom."""

    value: float
    degrees: int


@dataclass(frozen=True)
class Estimate:
    """The difference of two means over seeds, with its interval and two-sided p-value.

    Where nothing varies ``p`` is 0 or 1, and ``degrees`` of freedom are infinite.
    """

    difference: float
    low: float
    high: float
    p: float
    error: float
    degrees: float


def seed_variance(runs: Sequence[Sequence[float]]) -> SeedVariance | None:
    """Pool the variance between each run's seeds over runs; None if no run has two seeds."""
    repeated = [np.asarray(scores_J, dtype=np.float64) for scores_J in runs if len(scores_J) > 1]
    if not repeated:
        return None
    degrees = sum(len(scores_J) - 1 for scores_J in repeated)
    squares = sum(float(((scores_J - scores_J.mean()) ** 2).sum()) for scores_J in repeated)
    return SeedVariance(squares / degrees, degrees)


def query_covariance(samples: Sequence[Sample]) -> Scores:
    """Return the jackknife covariance of N models' first metric over queries, shape ``(N, N)``.

    For a mean it is the covariance of per-query scores over Q, of which there must be several.
    """
    queries = len(samples[0])
    left_NQ = np.stack([_left_out(sample) for sample in samples])
    around_NQ = left_NQ - left_NQ.mean(axis=1, keepdims=True)
    covariance_NN: Scores = (queries - 1) / queries * (around_NQ @ around_NQ.T)
    return covariance_NN


def _left_out(sample: Sample) -> Scores:
    """Return the score without each query in turn, shape ``(Q,)``."""
    queries = len(sample)
    # `score` divides by Q, so the sums over Q - 1 queries are scaled up first.
    total_F = (np.ones((1, queries)) @ sample.terms_QF)[0]
    rows = max(1, BLOCK // max(len(total_F), 1))
    parts = []
    for start in range(0, queries, rows):
        terms_RF = sample.terms_QF[start : start + rows]
        dense_RF = terms_RF if isinstance(terms_RF, np.ndarray) else terms_RF.toarray()
        parts.append(sample.score((total_F - dense_RF) * (queries / (queries - 1)))[:, 0])
    return np.concatenate(parts)


def compare_means(
    scores_J: Scores,
    baseline_K: Scores,
    covariance_SNN: Scores,
    queries_S: Sequence[int],
    seeds: SeedVariance | None,
    *,
    trained: bool = True,
    baseline_trained: bool = True,
    confidence: float = 0.95,
) -> Estimate:
    """Estimate the difference of the means over seeds of a run and the baseline.

    ``covariance_SNN`` are the `query_covariance` of the J models followed by the K on each set, of
    an average divided by the squared number of sets. ``seeds`` is the `seed_variance` of the study
    (None: only queries vary). ``trained`` and ``baseline_trained`` tell whether these scores depend
    on a seed.
    """
    difference = float(scores_J.mean() - baseline_K.mean())
    count = len(scores_J)
    between = (1 / count if trained else 0.0) + (1 / len(baseline_K) if baseline_trained else 0.0)
    from_seeds = between * seeds.value if seeds is not None else 0.0
    of_sets_S = np.array([_of_queries(covariance_NN, count) for covariance_NN in covariance_SNN])
    variance = from_seeds + float(of_sets_S.sum())
    error = float(np.sqrt(variance))
    if error <= ROUNDING:
        p = float(abs(difference) <= ROUNDING)
        return Estimate(difference, difference, difference, p, 0.0, np.inf)
    squares = float((of_sets_S**2 / (np.array(queries_S) - 1)).sum())
    squares += from_seeds**2 / seeds.degrees if seeds is not None else 0.0
    degrees = variance**2 / squares
    reach = float(stats.t.ppf((1 + confidence) / 2, degrees)) * error
    p = 2 * float(stats.t.sf(abs(difference) / error, degrees))
    return Estimate(difference, difference - reach, difference + reach, p, error, float(degrees))


def _of_queries(covariance_NN: Scores, count: int) -> float:
    """Return the variance over queries of the first ``count`` models' mean less the others'."""
    own = _shared(covariance_NN[:count, :count]) + _shared(covariance_NN[count:, count:])
    return max(own - 2 * float(covariance_NN[:count, count:].mean()), 0.0)


def _shared(covariance_JJ: Scores) -> float:
    """Return the mean covariance of two seeds; for one seed its variance, an upper bound."""
    count = len(covariance_JJ)
    if count == 1:
        return float(covariance_JJ[0, 0])
    return float((covariance_JJ.sum() - np.trace(covariance_JJ)) / (count * (count - 1)))
