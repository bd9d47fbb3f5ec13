"""Probabilities and thresholds: against scikit-learn, by hand, and on many sampled data sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta
from sklearn.isotonic import IsotonicRegression

from scimult.tagging.calibration import (
    Curve,
    Suggestions,
    expected_calibration_error,
    precision_bound,
)


def sample(rng: np.random.Generator, papers: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scores of ten suggestions per paper, their correctness, and the papers.

    Papers differ in difficulty, so suggestions for one paper are correlated.
    """
    logits = rng.normal(-0.5, 2.0, (papers, 10))
    ease = rng.normal(0, 1.0, (papers, 1))
    right = rng.random((papers, 10)) < 1 / (1 + np.exp(-(1.5 * logits + ease)))
    return logits.ravel(), right.ravel(), np.repeat(np.arange(papers), 10)


def test_the_curve_equals_isotonic_regression_at_its_blocks_and_keeps_the_order() -> None:
    logits, right, _ = sample(np.random.default_rng(0), 200)
    curve = Curve.fit(logits, right)
    blocks = IsotonicRegression().fit_transform(logits, right.astype(float))
    for level in np.unique(blocks):
        centre = logits[blocks == level].mean()
        assert curve(np.array([centre]))[0] == pytest.approx(level, abs=1.1e-3)
    grid = np.linspace(-30, 30, 5001)
    found = curve(grid)
    assert (np.diff(found) >= 0).all()
    assert (np.diff(curve(np.linspace(-9, 9, 500))) > 0).all()
    assert ((found >= 0) & (found <= 1)).all()


@pytest.mark.parametrize("seed", range(5))
def test_beyond_the_pairs_the_curve_is_scikit_learns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, 400)
    right = rng.random(400) < 0.1 + 0.6 / (1 + np.exp(-logits))
    clipped = IsotonicRegression(out_of_bounds="clip").fit(logits, right.astype(float))
    away = np.array([0, 1, 20])
    beyond = np.concatenate([logits.min() - away, logits.max() + away])
    # Not exactly: a thousandth of the logistic function is mixed in.
    assert Curve.fit(logits, right)(beyond) == pytest.approx(clipped.predict(beyond), abs=1.1e-3)


def test_the_highest_probabilities_are_the_true_ones() -> None:
    """However sure the model is, six in ten are right, and one in ten where it is not."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 4, 40_000)
    truth = 0.1 + 0.5 / (1 + np.exp(-2 * logits))
    curve = Curve.fit(logits, rng.random(len(logits)) < truth)
    fresh = rng.normal(0, 4, 40_000)
    wanted = 0.1 + 0.5 / (1 + np.exp(-2 * fresh))
    for part in (fresh > 4, fresh < -4):
        assert np.abs(curve(fresh[part]) - wanted[part]).mean() < 0.02


def test_few_pairs_keep_the_logistic_function() -> None:
    curve = Curve.fit(np.linspace(-3, 3, 19), np.ones(19, dtype=bool))
    assert curve(np.array([0.0, np.log(3)])) == pytest.approx([0.5, 0.75])
    assert Curve.fit(np.linspace(-3, 3, 40), np.arange(40) >= 20).logits
    assert np.isfinite(curve(np.array([-1e5, 1e5]))).all()


def test_the_calibration_error_by_hand() -> None:
    probabilities = np.array([0.1, 0.15, 0.6, 0.9, 1.0])
    right = np.array([False, True, True, True, False])
    # Two bins: (.25 - 1) / 5 and (2.5 - 2) / 5.
    assert expected_calibration_error(probabilities, right, bins=2) == pytest.approx(1.25 / 5)
    assert expected_calibration_error(probabilities[:0], right[:0]) == 0


def test_calibration_holds_on_new_papers() -> None:
    logits, right, _ = sample(np.random.default_rng(1), 1000)
    fresh, truth, _ = sample(np.random.default_rng(2), 1000)
    before = expected_calibration_error(1 / (1 + np.exp(-fresh)), truth)
    after = expected_calibration_error(Curve.fit(logits, right)(fresh), truth)
    assert after < 0.03 < before


def test_the_bound_for_single_suggestions_is_near_the_exact_one() -> None:
    right = np.arange(400) % 5 > 0
    exact = beta.ppf(0.05, right.sum(), (~right).sum() + 1)
    # Student's t instead of the binomial: they differ by a few thousandths here.
    assert precision_bound(right, np.arange(400)) == pytest.approx(exact, abs=0.004)
    assert precision_bound(np.ones(59, dtype=bool), np.arange(59)) == pytest.approx(
        0.05 ** (1 / 59)
    )
    # Correlated suggestions are weaker evidence: 400 for 20 papers.
    together = np.repeat(np.arange(20) % 5 > 0, 20)
    assert precision_bound(together, np.repeat(np.arange(20), 20)) < exact - 0.1
    assert precision_bound(right, np.zeros(400, dtype=int)) == 0


@pytest.mark.long
@pytest.mark.parametrize("k", [None, 3])
def test_a_target_precision_holds_in_19_of_20_data_sets(k: int | None) -> None:
    rng = np.random.default_rng(3)
    truth_p, truth_right, truth_papers = sample(rng, 20_000)
    truth = suggestions(truth_p, truth_right, truth_papers)
    kept = np.full(len(truth_p), True) if k is None else truth.ranks_P <= k
    broken = found = 0
    for _ in range(40):
        threshold = suggestions(*sample(rng, 150)).threshold(0.8, k)
        if threshold is not None:
            found += 1
            chosen = kept & (truth.probabilities_P >= threshold)
            broken += truth.right_P[chosen].mean() < 0.8
    assert found >= 36
    # With a chance of 0.05 each, 6 or fewer of 40 samples break it with probability 0.99.
    assert broken <= 6


def suggestions(scores: np.ndarray, right: np.ndarray, papers: np.ndarray) -> Suggestions:
    ranks = np.argsort(np.argsort(-scores.reshape(-1, 10), axis=1), axis=1) + 1
    return Suggestions(1 / (1 + np.exp(-scores)), right, papers, ranks.ravel())


@pytest.mark.parametrize("k", [None, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_greatest_precision_is_the_last_with_a_threshold(k: int | None, seed: int) -> None:
    held_out = suggestions(*sample(np.random.default_rng(seed), 80))
    greatest = held_out.greatest_precision(k)
    assert held_out.threshold(greatest, k) is not None
    assert held_out.threshold(greatest + 1e-9, k) is None
    kept = held_out.ranks_P <= (k or 10)
    best = Suggestions(*(x[kept] for x in vars(held_out).values() if x is not None))
    assert best.greatest_precision(None) == greatest


def test_the_starts_share_the_chance_of_an_error() -> None:
    """Of 20 right suggestions for as many papers, the bound is that of 0.99, not of 0.95."""
    ones = np.ones(20, dtype=int)
    held_out = Suggestions(np.linspace(0.9, 0.5, 20), ones > 0, np.arange(20), ones)
    assert held_out.greatest_precision(None) == pytest.approx(0.01 ** (1 / 20))
    assert held_out.threshold(0.01 ** (1 / 20) - 1e-9, None) == 0.5
    assert held_out.threshold(0.01 ** (1 / 20) + 1e-9, None) is None


def test_a_bound_is_that_of_all_suggestions_above_its_threshold() -> None:
    p, right = np.repeat([0.9, 0.5], [25, 15]), np.arange(40) < 25
    held_out = Suggestions(p, right, np.arange(40), np.ones(40, dtype=int))
    assert held_out.threshold(0.7, None) == 0.9
    assert held_out.threshold(0.3, None) == 0.5


def test_copies_of_papers_guarantee_no_more() -> None:
    single = suggestions(*sample(np.random.default_rng(5), 60))
    twice = {name: np.tile(x, 2) for name, x in vars(single).items() if x is not None}
    twice["papers_P"] = twice["papers_P"] + 60 * (np.arange(1200) >= 600)
    wanted = single.greatest_precision(None)
    assert Suggestions(**twice).greatest_precision(None) > wanted + 0.02
    copies = Suggestions(**twice, works_P=np.tile(single.papers_P, 2))
    assert copies.greatest_precision(None) < wanted + 0.01  # longer lists have other steps


def test_no_threshold_if_none_has_the_precision() -> None:
    rng = np.random.default_rng(4)
    scores, _, papers = sample(rng, 100)
    nothing = suggestions(scores, np.zeros(len(scores), dtype=bool), papers)
    assert nothing.threshold(0.1, None) is None
    few = Suggestions(*(x[:5] for x in vars(nothing).values() if x is not None))
    assert few.threshold(0.1, None) is None


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 8)), min_size=1, max_size=60
    )
)
def test_a_threshold_never_separates_equal_scores(rows: list[tuple[int, bool, int]]) -> None:
    p = np.array([level / 4 for level, _, _ in rows])
    right, papers = np.array([r for _, r, _ in rows]), np.array([n for _, _, n in rows])
    found = Suggestions(p, right, papers, np.ones(len(p), dtype=int)).threshold(0.3, None)
    if found is not None:
        kept = p >= found
        assert right[kept].mean() >= 0.3
