"""Differences over seeds and queries, against numpy, scipy, sklearn, and a known truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score

from scimult.evaluation.metrics import Scores
from scimult.evaluation.resampling import macro_f1_samples, mean_sample
from scimult.evaluation.seeds import (
    Estimate,
    SeedVariance,
    compare_means,
    query_covariance,
    seed_variance,
)

RNG = np.random.default_rng(0)


def test_the_jackknife_of_means_is_their_covariance() -> None:
    scores_NQ = RNG.random((5, 40))
    found_NN = query_covariance([mean_sample(scores_Q[:, None]) for scores_Q in scores_NQ])
    np.testing.assert_allclose(found_NN, np.cov(scores_NQ) / 40, rtol=1e-10)


def test_the_jackknife_of_macro_f1_leaves_each_paper_out(monkeypatch: pytest.MonkeyPatch) -> None:
    gold = np.array([*RNG.choice(["a", "b", "c"], 27), "a", "b", "c"])
    predicted = RNG.choice(["a", "b", "c"], (3, 30))
    left_NQ = np.array(
        [
            [f1_score(np.delete(gold, q), np.delete(one, q), average="macro") for q in range(30)]
            for one in predicted
        ]
    )
    wanted_NN = 29**2 / 30 * np.cov(left_NQ)
    samples = macro_f1_samples(gold.tolist(), predicted.tolist())
    np.testing.assert_allclose(query_covariance(samples), wanted_NN, rtol=1e-9)
    # Small blocks of papers give the same result.
    monkeypatch.setattr("scimult.evaluation.seeds.BLOCK", 30)
    np.testing.assert_allclose(query_covariance(samples), wanted_NN, rtol=1e-9)


def test_the_variance_of_seeds_is_pooled_over_runs() -> None:
    runs = [RNG.random(2), RNG.random(4), RNG.random(1)]
    found = seed_variance([run.tolist() for run in runs])
    assert found is not None
    assert found.degrees == 4
    wanted = (np.var(runs[0], ddof=1) * 1 + np.var(runs[1], ddof=1) * 3) / 4
    assert found.value == pytest.approx(wanted, rel=1e-12)
    assert seed_variance([[0.3], [0.4]]) is None


def test_without_chance_of_queries_it_is_the_t_test() -> None:
    first, second = RNG.random(3), RNG.random(4)
    variance = seed_variance([first.tolist(), second.tolist()])
    found = compare_means(first, second, np.zeros((1, 7, 7)), [9], variance)
    wanted = stats.ttest_ind(first, second, equal_var=True)
    assert found.p == pytest.approx(wanted.pvalue, rel=1e-10)
    interval = wanted.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-10)
    # A baseline without seeds is a constant.
    variance = seed_variance([first.tolist()])
    found = compare_means(
        first, second[:1], np.zeros((1, 4, 4)), [9], variance, baseline_trained=False
    )
    assert found.p == pytest.approx(stats.ttest_1samp(first, second[0]).pvalue, rel=1e-10)


def _covariance(scores_NQ: Scores) -> Scores:
    return query_covariance([mean_sample(scores_Q[:, None]) for scores_Q in scores_NQ])


def test_without_seeds_it_is_the_paired_test_over_queries() -> None:
    """A normal distribution called one in nine equal models different on 5 queries."""
    scores_NQ = RNG.random((2, 5))
    first, second = scores_NQ.mean(axis=1)
    covariance_1NN = _covariance(scores_NQ)[None]
    found = compare_means(np.array([first]), np.array([second]), covariance_1NN, [5], None)
    paired = stats.ttest_rel(*scores_NQ)
    assert found.difference / found.error == pytest.approx(paired.statistic, rel=1e-9)
    assert found.p == pytest.approx(paired.pvalue, rel=1e-9)
    interval = paired.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-9)


def test_without_seeds_an_average_over_two_sets_is_welchs_test() -> None:
    """As the mean of two sets is half the difference of one and the other negated."""
    sets = [RNG.random((2, 8)), RNG.random((2, 40))]
    means_2 = np.mean([scores_NQ.mean(axis=1) for scores_NQ in sets], axis=0)
    covariance_SNN = np.stack([_covariance(scores_NQ) / 4 for scores_NQ in sets])
    found = compare_means(means_2[:1], means_2[1:], covariance_SNN, [8, 40], None)
    first_Q, second_Q = (scores_NQ[0] - scores_NQ[1] for scores_NQ in sets)
    welch = stats.ttest_ind(first_Q, -second_Q, equal_var=False)
    assert found.p == pytest.approx(welch.pvalue, rel=1e-9)
    assert found.degrees == pytest.approx(welch.df, rel=1e-9)


def test_two_seeds_each_by_hand() -> None:
    scores_NQ = RNG.random((4, 30))
    cov_NN = np.cov(scores_NQ) / 30
    means = scores_NQ.mean(axis=1)
    found = compare_means(means[:2], means[2:], cov_NN[None], [30], SeedVariance(0.0004, 6))
    seeds = 0.0004 * (1 / 2 + 1 / 2)
    across = (cov_NN[0, 2] + cov_NN[0, 3] + cov_NN[1, 2] + cov_NN[1, 3]) / 4
    queries = max(cov_NN[0, 1] + cov_NN[2, 3] - 2 * across, 0)
    variance = seeds + queries
    degrees = variance**2 / (seeds**2 / 6 + queries**2 / 29)
    assert found.error == pytest.approx(np.sqrt(variance), rel=1e-10)
    assert found.degrees == pytest.approx(degrees, rel=1e-10)
    difference = means[:2].mean() - means[2:].mean()
    wanted = 2 * stats.t.sf(abs(difference) / np.sqrt(variance), degrees)
    assert found.p == pytest.approx(wanted, rel=1e-10)
    assert (found.low + found.high) / 2 == pytest.approx(difference, rel=1e-10)


@pytest.mark.parametrize(("second", "p"), [(0.5, 1.0), (0.25, 0.0)])
def test_where_nothing_varies(second: float, p: float) -> None:
    found = compare_means(np.array([0.5]), np.array([second]), np.zeros((1, 2, 2)), [9], None)
    assert found == Estimate(0.5 - second, 0.5 - second, 0.5 - second, p, 0.0, np.inf)


def _world(effect: float, rng: np.random.Generator) -> list[Scores]:
    """Draw scores (seeds, queries) of six runs with two seeds; the second run is better."""
    shared_Q = rng.normal(0.5, 0.3, 200)
    return [
        shared_Q
        + rng.normal(0, 0.15, 200)
        + rng.normal(0, 0.03, 2)[:, None]
        + rng.normal(0, 0.1, (2, 200))
        + effect * (run == 1)
        for run in range(6)
    ]


def _estimate(runs: list[Scores]) -> Estimate:
    covariance_1NN = _covariance(np.concatenate([runs[1], runs[0]]))[None]
    means = [scores.mean(axis=1) for scores in runs]
    variance = seed_variance([scores.tolist() for scores in means])
    return compare_means(means[1], means[0], covariance_1NN, [200], variance)


def test_of_equal_runs_one_in_twenty_differs_and_intervals_hold_the_truth() -> None:
    """A test over queries alone calls more than a quarter of equal runs different.

    Of 400 worlds a share of 0.05 is found within 0.022 (two standard errors).
    """
    rng = np.random.default_rng(1)
    equal = [_world(0.0, rng) for _ in range(400)]
    false = np.mean([_estimate(runs).p <= 0.05 for runs in equal])
    assert 0.02 <= false <= 0.08
    over_queries = np.mean(
        [stats.ttest_rel(runs[1].mean(0), runs[0].mean(0)).pvalue <= 0.05 for runs in equal]
    )
    assert over_queries > 0.25
    better = [_estimate(_world(0.1, rng)) for _ in range(200)]
    held = np.mean([found.low <= 0.1 <= found.high for found in better])
    assert held >= 0.91
    assert np.mean([found.p <= 0.05 for found in better]) > 0.5
