"""Resampling against scipy, scikit-learn and loops over one resample at a time."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import f1_score

from scimult.evaluation import resampling
from scimult.evaluation.metrics import Scores, macro_f1
from scimult.evaluation.resampling import (
    bootstrap,
    f1_pseudo_values,
    holm,
    interval,
    macro_f1_samples,
    mean_sample,
    randomisation_test,
    tau_pseudo_values,
)
from scimult.types import IntArray

LABELS = ["a", "b", "c"]
ROUNDING = 1e-12  # sums of tens of numbers below 1, in another order


def _scores(seed: int, queries: int = 40) -> tuple[Scores, Scores]:
    """Two systems under two metrics, with few distinct values and many ties."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 5, (queries, 2)) / 4
    return first, np.clip(first + rng.integers(-1, 3, first.shape) / 4, 0, 1)


def _labels(seed: int, papers: int = 40) -> tuple[list[str], list[str], list[str]]:
    """Gold labels and two systems' labels; the first system leaves some papers unlabelled."""
    rng = np.random.default_rng(seed)
    gold, one, two = (rng.choice(LABELS, papers, p=[0.6, 0.3, 0.1]).tolist() for _ in range(3))
    return gold, ["" if rng.random() < 0.2 else label for label in one], two


def _f1(gold: list[str], predicted: list[str]) -> float:
    classes = sorted({*gold, *predicted} - {""})
    return float(f1_score(gold, predicted, labels=classes, average="macro"))


@settings(max_examples=40)  # scikit-learn is slow for so small a sample
@given(st.lists(st.tuples(*[st.sampled_from(["a", "b", "c", "d"])] * 2), min_size=1), st.data())
def test_macro_f1_of_a_sample(pairs: list[tuple[str, str]], data: st.DataObject) -> None:
    gold = [label for label, _ in pairs]
    predicted = [data.draw(st.sampled_from([label, ""])) for _, label in pairs]
    others = data.draw(st.permutations(gold))
    samples = macro_f1_samples(gold, [predicted, others])
    for sample, labels in zip(samples, (predicted, others), strict=True):
        assert sample.scores_M == pytest.approx([_f1(gold, labels)], abs=ROUNDING)


def test_bootstrap_scores_every_drawn_list_of_queries() -> None:
    first, second = _scores(0)
    gold, *predicted = _labels(0)
    found = bootstrap([mean_sample(first), mean_sample(second)], 20, seed=[3, 1])
    found_f1 = bootstrap(macro_f1_samples(gold, predicted), 20, seed=[3, 1])
    rng = np.random.default_rng([3, 1])
    for draw in range(20):
        rows = rng.integers(0, 40, 40).tolist()
        for system, scores in enumerate((first, second)):
            assert found[system, draw] == pytest.approx(scores[rows].mean(axis=0), abs=ROUNDING)
            labels = [predicted[system][row] for row in rows]
            wanted = _f1([gold[row] for row in rows], labels)
            assert found_f1[system, draw] == pytest.approx([wanted], abs=ROUNDING)


def test_weighted_scores_are_weighted_means_of_every_draw() -> None:
    """Of scores that are all 0.9 too, whose interval is then a point."""
    rng = np.random.default_rng(4)
    scores, weights = np.column_stack([rng.random(40), np.full(40, 0.9)]), rng.random(40) + 0.1
    sample = mean_sample(scores, weights[:, None])
    assert sample.scores_M == pytest.approx(np.average(scores, axis=0, weights=weights))
    (found,) = bootstrap([sample], 20, seed=3)
    rng = np.random.default_rng(3)
    for draw in range(20):
        rows = rng.integers(0, 40, 40)
        wanted = np.average(scores[rows], axis=0, weights=weights[rows])
        assert found[draw] == pytest.approx(wanted, abs=ROUNDING)
    assert interval(found[:, 1], 0.95) == pytest.approx((0.9, 0.9))
    others = mean_sample(1 - scores, weights[:, None])
    exact = randomisation_test(
        mean_sample(weights[:, None] * scores), mean_sample(weights[:, None] * (1 - scores)), 500, 1
    )
    assert randomisation_test(sample, others, 500, 1)[0].tolist() == exact[0].tolist()


def test_block_size_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal up to the order of addition in a matrix product."""
    pair = [mean_sample(scores) for scores in _scores(1)]
    whole, test = bootstrap(pair, 500, 7), randomisation_test(*pair, 500, 7)
    for block in (1, 90, 1234):
        monkeypatch.setattr(resampling, "BLOCK", block)
        assert bootstrap(pair, 500, 7) == pytest.approx(whole, abs=ROUNDING)
        assert randomisation_test(*pair, 500, 7)[0].tolist() == test[0].tolist()


@pytest.mark.parametrize("seed", range(4))
def test_interval_of_the_difference_against_scipy(seed: int) -> None:
    """Both draw 20,000 times: the error of an end is about 2% of the standard error of the mean."""
    first, second = np.random.default_rng(seed).random((2, 40))
    drawn = bootstrap([mean_sample(first[:, None]), mean_sample(second[:, None])], 20_000, seed)
    found = interval((drawn[1] - drawn[0])[:, 0], 0.9)
    wanted = stats.bootstrap(
        (second - first,),
        np.mean,
        n_resamples=20_000,
        confidence_level=0.9,
        method="percentile",
        rng=np.random.default_rng(100 + seed),
    ).confidence_interval
    error = stats.sem(second - first)
    assert found == pytest.approx((wanted.low, wanted.high), abs=0.12 * error)


@pytest.mark.parametrize("seed", range(6))
def test_exact_test_against_scipy(seed: int) -> None:
    first, second = _scores(seed, queries=10)
    found, exact = randomisation_test(mean_sample(first), mean_sample(second), 10_000, 0)
    assert exact
    for metric in range(2):
        wanted = stats.permutation_test(
            (first[:, metric], second[:, metric]),
            lambda x, y, axis: np.mean(x, axis=axis) - np.mean(y, axis=axis),
            permutation_type="samples",
            vectorized=True,
            n_resamples=np.inf,
        )
        assert found[metric] == pytest.approx(wanted.pvalue, abs=ROUNDING)


def test_exact_test_of_macro_f1_against_scipy() -> None:
    gold, one, two = _labels(2, papers=9)
    found, exact = randomisation_test(*macro_f1_samples(gold, [one, two]), 1000, 0)
    codes = [*LABELS, ""]
    gold_N, *data = (
        np.array([codes.index(label) for label in labels]) for labels in (gold, one, two)
    )

    def difference(x: IntArray, y: IntArray) -> float:
        x, y = (np.where(codes_N == len(LABELS), -1, codes_N) for codes_N in (x, y))
        return macro_f1(gold_N, x) - macro_f1(gold_N, y)

    wanted = stats.permutation_test(
        data, difference, permutation_type="samples", vectorized=False, n_resamples=np.inf
    )
    assert exact
    assert 0 < found[0] < 1
    assert found[0] == pytest.approx(wanted.pvalue, abs=ROUNDING)


@pytest.mark.parametrize("seed", range(3))
def test_drawn_test_approaches_the_exact_one(seed: int) -> None:
    """Four standard errors of a share of 10,000 draws are at most 0.02."""
    rng = np.random.default_rng(seed)
    first, second = rng.random((15, 1)), rng.random((15, 1)) + 0.1 * seed
    drawn, exact = randomisation_test(mean_sample(first), mean_sample(second), 10_000, seed)
    assert not exact
    flips = np.array(list(itertools.product([-1, 1], repeat=15)))
    means = np.abs(flips @ (first - second)[:, 0])
    wanted = (means >= means[0] - 1e-9).mean()  # the first line of flips changes no pair
    assert drawn[0] == pytest.approx(wanted, abs=0.02)


def test_a_drawn_p_value_is_never_zero_and_depends_on_the_seed_alone() -> None:
    better, worse = mean_sample(np.ones((50, 1))), mean_sample(np.zeros((50, 1)))
    assert randomisation_test(better, worse, 999, 0)[0].tolist() == [1 / 1000]
    pair = [mean_sample(scores) for scores in _scores(5)]
    first, again, other = (randomisation_test(*pair, 999, seed)[0].tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_equal_systems_do_not_differ() -> None:
    sample = mean_sample(_scores(0)[0])
    p_values, exact = randomisation_test(sample, sample, 100, 0)
    assert (p_values.tolist(), exact) == ([1.0, 1.0], True)
    first, second = bootstrap([sample, sample], 100, 0)
    assert interval((second - first)[:, 0], 0.95) == (0.0, 0.0)


def test_no_more_false_alarms_than_promised() -> None:
    """Without a difference p ≤ 0.1 in 10% of 400 tests; 16% would be four standard errors off."""
    rng = np.random.default_rng(0)
    alarms = 0
    for seed in range(400):
        first, second = (mean_sample(rng.random((25, 1))) for _ in range(2))
        alarms += int(randomisation_test(first, second, 199, seed)[0][0] <= 0.1)
    assert 0.04 * 400 < alarms < 0.16 * 400


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7))
def test_holm_is_the_closure_of_bonferroni(p_values: list[float]) -> None:
    """The largest Bonferroni p-value of all sets of hypotheses that contain the tested one."""
    found = holm(p_values)
    for index in range(len(p_values)):
        others = [row for row in range(len(p_values)) if row != index]
        wanted = max(
            min(1.0, (size + 1) * min(p_values[row] for row in (index, *chosen)))
            for size in range(len(p_values))
            for chosen in itertools.combinations(others, size)
        )
        assert found[index] == wanted


def test_memory_is_bounded_however_many_queries() -> None:
    """As one matrix, 30 resamples of 200,000 queries would take 48 MB, and three are needed."""
    rng = np.random.default_rng(0)
    pair = [mean_sample(rng.random((200_000, 1))) for _ in range(2)]
    tracemalloc.start()
    bootstrap(pair, 30, 0)
    randomisation_test(*pair, 30, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 70e6


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=4, max_size=25).filter(
        lambda pairs: all(len({pair[side] for pair in pairs}) > 1 for side in (0, 1))
    ),
    st.integers(1, 30),
)
def test_shares_in_tau_are_those_of_leaving_papers_out(
    pairs: list[tuple[int, int]], block: int
) -> None:
    """Against scipy's τ-b of the others, which is not defined if they are all tied."""
    gold_Q, predicted_Q = np.array(pairs, dtype=np.float64).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resampling, "BLOCK", block)
        shares_Q = tau_pseudo_values(gold_Q, predicted_Q)
    count, whole = len(pairs), stats.kendalltau(gold_Q, predicted_Q).statistic
    others = [
        stats.kendalltau(np.delete(gold_Q, row), np.delete(predicted_Q, row)).statistic
        for row in range(count)
    ]
    values_Q = count * whole - (count - 1) * np.nan_to_num(others)
    assert shares_Q.mean() == pytest.approx(whole, abs=1e-12)
    assert shares_Q - shares_Q.mean() == pytest.approx(values_Q - values_Q.mean(), abs=1e-10)


@pytest.mark.long
@settings(max_examples=25)
@given(st.integers(0, 1000), st.integers(1, 4), st.integers(2, 20))
def test_shares_in_f1_are_those_of_leaving_papers_out(seed: int, labels: int, papers: int) -> None:
    """Against scikit-learn: macro F1 of several labels, binary F1 of one."""
    rng = np.random.default_rng(seed)
    gold_QC, predicted_QC = (rng.integers(0, 2, (papers, labels)) for _ in range(2))

    def f1(kept: IntArray) -> float:
        each = [
            f1_score(gold_QC[kept, c], predicted_QC[kept, c], zero_division=0)
            for c in range(labels)
        ]
        return float(np.mean(each))

    every = np.arange(papers)
    values_Q = np.array(
        [papers * f1(every) - (papers - 1) * f1(np.delete(every, row)) for row in every]
    )
    shares_Q = f1_pseudo_values(gold_QC, predicted_QC)
    assert shares_Q.mean() == pytest.approx(f1(every), abs=1e-12)
    assert shares_Q - shares_Q.mean() == pytest.approx(values_Q - values_Q.mean(), abs=1e-10)


@pytest.mark.long
def test_shares_vary_as_f1_does_when_papers_are_drawn() -> None:
    """Macro F1 of three labels, 400 draws: 15 % as below."""
    rng = np.random.default_rng(3)
    gold_QC = (rng.random((300, 3)) < [0.5, 0.3, 0.1]).astype(int)
    predicted_QC = np.where(rng.random((300, 3)) < 0.8, gold_QC, 1 - gold_QC)
    draws = [rng.integers(0, 300, 300) for _ in range(400)]
    drawn = [f1_score(gold_QC[rows], predicted_QC[rows], average="macro") for rows in draws]
    shares_Q = f1_pseudo_values(gold_QC, predicted_QC)
    assert stats.sem(shares_Q) == pytest.approx(np.std(drawn), rel=0.15)


@pytest.mark.parametrize("strength", [0.0, 0.3, 2.0])
def test_shares_in_tau_vary_as_tau_does_when_papers_are_drawn(strength: float) -> None:
    """Differences of two systems too; 400 draws know a standard error to 4 %, hence 15 %."""
    rng = np.random.default_rng(7)
    gold_Q = rng.normal(size=200).round(1)
    systems = [strength * gold_Q + rng.normal(size=200) for _ in range(2)]
    shares_QS = np.stack([tau_pseudo_values(gold_Q, x_Q) for x_Q in systems], axis=1)
    drawn = []
    for _ in range(400):
        rows = rng.integers(0, 200, 200)
        drawn.append([stats.kendalltau(gold_Q[rows], x_Q[rows]).statistic for x_Q in systems])
    drawn_RS = np.array(drawn)
    for of_shares_Q, of_draws_R in (
        (shares_QS[:, 0], drawn_RS[:, 0]),
        (shares_QS[:, 1] - shares_QS[:, 0], drawn_RS[:, 1] - drawn_RS[:, 0]),
    ):
        assert stats.sem(of_shares_Q) == pytest.approx(of_draws_R.std(), rel=0.15)
