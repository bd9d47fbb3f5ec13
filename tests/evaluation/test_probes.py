"""Linear models on embeddings against the protocols written out as loops."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import f1_score, r2_score
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC, LinearSVR
from sklearn.svm._classes import _validate_dual_parameter

from scimult.errors import DataError
from scimult.evaluation import linear_fits
from scimult.evaluation.benchmark import Benchmark, FewShot, Probe
from scimult.evaluation.few_shot import class_samples, held_out_folds, label_samples
from scimult.evaluation.probes import classification_linear, indicators, regression_linear
from scimult.evaluation.published_svr import Numbers, PublishedSVR
from scimult.evaluation.task_data import PaperSet
from scimult.types import FloatArray, Text
from tests.benchmark_sets import benchmark

TRAIN, TEST, WIDTH = 90, 40, 6
COSTS = [0.01, 1.0, 100.0]


def _papers(labels: list[list[str]], values: list[float]) -> PaperSet:
    ids = [f"p{row}" for row in range(TRAIN + TEST)]
    return PaperSet(
        "made",
        "classification",
        ids,
        [Text("paper", name) for name in ids],
        np.arange(TRAIN),
        np.arange(TRAIN, TRAIN + TEST),
        labels,
        np.array(values),
        files=[Path("made")],
    )


def _benchmark(metrics: list[str], costs: Sequence[float] = COSTS, **probe: Any) -> Benchmark:
    protocol = "regression_linear" if metrics == ["kendall_tau"] else "classification_linear"
    fitted = Probe(costs=list(costs), **probe)
    return benchmark("made", "classification", protocol, metrics, probe=fitted)


@pytest.fixture
def x() -> FloatArray:
    draw = np.random.default_rng(1)
    return draw.normal(size=(TRAIN + TEST, WIDTH)).astype(np.float32)


def _noisy(x: FloatArray, column: int) -> np.ndarray[Any, Any]:
    return x[:, column] + 0.7 * np.random.default_rng(column).normal(size=len(x))


def _svc(cost: float, **options: Any) -> LinearSVC:
    options = {"loss": "squared_hinge", "dual": "auto", **options}
    return LinearSVC(C=cost, fit_intercept=True, random_state=42, max_iter=10_000, **options)


def test_one_label_per_paper(x: FloatArray) -> None:
    """A grid by accuracy over three stratified folds, then a fit to all training papers."""
    gold = np.digitize(_noisy(x, 0), [-0.4, 0.6])
    papers = _papers([[str(label)] for label in gold], [])
    outcome = classification_linear(_benchmark(["macro_f1", "accuracy"]), papers, x)
    train, wide = gold[:TRAIN], x.astype(np.float64)
    accuracies = []
    for cost in COSTS:
        hits = []
        for fit, held in StratifiedKFold(3).split(wide[:TRAIN], train):
            predicted = _svc(cost).fit(wide[fit], train[fit]).predict(wide[held])
            hits.append(np.mean(predicted == train[held]))
        accuracies.append(np.mean(hits))
    best = COSTS[int(np.argmax(accuracies))]
    predicted = _svc(best).fit(wide[:TRAIN], train).predict(wide[TRAIN:])
    assert outcome.details["C"] == best
    assert outcome.per_query["predicted"] == [str(label) for label in predicted]
    wanted = f1_score(gold[TRAIN:], predicted, average="macro")
    assert outcome.scores["macro_f1"] == pytest.approx(wanted)
    assert outcome.scores["accuracy"] == np.mean(predicted == gold[TRAIN:])
    assert outcome.resampled == ["macro_f1"]


def test_few_shot_trains_on_each_held_out_fold(x: FloatArray) -> None:
    """16 papers: ceil(90 / 16) = 6 folds, of which the first four are samples, with C = 1."""
    # Unequal classes: F1 of either differs.
    gold = (_noisy(x, 1) > 0.4).astype(int)
    papers = _papers([[str(label)] for label in gold], [])
    shot = {"size": 16, "iterations": 4}
    outcome = classification_linear(_benchmark(["f1"], few_shot=[shot]), papers, x)
    wide, scores = x.astype(np.float64), []
    folds = StratifiedKFold(math.ceil(TRAIN / 16))
    for place, (_, sample) in enumerate(folds.split(wide[:TRAIN], gold[:TRAIN])):
        assert len(sample) <= 16
        if place < 4:
            predicted = _svc(1.0).fit(wide[sample], gold[sample]).predict(wide[TRAIN:])
            scores.append(f1_score(gold[TRAIN:], predicted))
    assert outcome.scores["f1+16shot"] == pytest.approx(np.mean(scores))
    assert outcome.scores["f1"] != outcome.scores["f1+16shot"]
    assert outcome.resampled == ["f1"]
    assert np.mean(np.array(outcome.per_query["f1"], dtype=float)) == pytest.approx(
        outcome.scores["f1"]
    )


def _of_scirepeval(
    x: Numbers, flags: Numbers, test: Numbers, costs: Sequence[float] = COSTS
) -> Numbers:
    """Predict the labels as SciRepEval's code does: a grid for each, whatever its papers."""
    model = LinearSVC(loss="hinge", max_iter=10_000, random_state=42)
    fitted = OneVsRestClassifier(GridSearchCV(model, {"C": costs}, cv=3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(fitted.fit(x, flags).predict(test))


def _named(flags: Numbers) -> list[list[str]]:
    return [[str(label) for label in np.flatnonzero(row)] for row in flags]


@pytest.mark.filterwarnings("error::sklearn.exceptions.FitFailedWarning")
def test_several_labels_per_paper(x: FloatArray) -> None:
    """One model per label with hinge loss, each with its own grid, also of one and two papers."""
    columns = [_noisy(x, column) > limit for column, limit in enumerate((0, 0.5))]
    for place, papers in ((2, 1), (3, 2)):
        has = np.zeros(TRAIN + TEST, dtype=bool)
        has[[*range(papers), *range(TRAIN, TRAIN + 9)]] = True
        x[has, place] += 8
        columns.append(has)
    flags = np.stack(columns, axis=1).astype(int)
    wide = x.astype(np.float64)
    outcome = classification_linear(
        _benchmark(["macro_f1"], multi_label=True), _papers(_named(flags), []), x
    )
    predicted = _of_scirepeval(wide[:TRAIN], flags[:TRAIN], wide[TRAIN:])
    wanted = f1_score(flags[TRAIN:], predicted, average="macro", zero_division=0)
    assert outcome.scores["macro_f1"] == pytest.approx(wanted, abs=1e-12)
    assert outcome.details["C"][2] == COSTS[0], "a fold cannot be fitted"
    assert outcome.resampled == ["macro_f1"]
    shares = np.array(outcome.per_query["macro_f1"], dtype=float)
    assert shares.mean() == pytest.approx(wanted)


@pytest.mark.long
def test_samples_of_several_labels_are_those_of_scirepeval(x: FloatArray) -> None:
    """Drawn label by label in the order of their numbers; folds follow the order of a set."""
    limits = np.linspace(-0.5, 0.8, 11)
    flags = np.stack([_noisy(x, n % WIDTH) > limit for n, limit in enumerate(limits)], axis=1)
    flags = flags.astype(int)
    costs, shot = [0.1], {"size": 1, "iterations": 2}
    benchmark = _benchmark(["macro_f1"], costs, multi_label=True, few_shot=[shot])
    outcome = classification_linear(benchmark, _papers(_named(flags), []), x)
    wide, scores, in_order = x.astype(np.float64), [], []
    for sample in range(2):
        random, drawn = np.random.RandomState(42 + sample), set[int]()
        for label in range(11):
            having = np.where(flags[:TRAIN, label] == 1)[0]
            drawn.update(random.choice(having, 1, replace=False).tolist())
        rows = list(drawn)
        in_order.append(rows == sorted(rows))
        predicted = _of_scirepeval(wide[rows], flags[rows], wide[TRAIN:], costs)
        scores.append(f1_score(flags[TRAIN:], predicted, average="macro", zero_division=0))
    assert outcome.scores["macro_f1+1shot"] == pytest.approx(np.mean(scores), abs=1e-12)
    assert not all(in_order)


def test_samples_of_several_labels_hold_enough_of_each() -> None:
    draw = np.random.default_rng(3)
    flags = (draw.random((50, 4)) < 0.4).astype(np.int64)
    labels = ["a", "b", "c", "d"]
    samples = list(label_samples(flags, FewShot(size=5, iterations=3), labels))
    assert len(samples) == 3
    for rows in samples:
        assert (flags[rows].sum(axis=0) >= 5).all()
        assert len(set(rows.tolist())) == len(rows) <= 20
    first = np.random.RandomState(42)
    drawn = {
        row
        for label in range(4)
        for row in first.choice(np.flatnonzero(flags[:, label]), 5, replace=False)
    }
    assert set(samples[0].tolist()) == drawn
    one = FewShot(size=1, iterations=1)
    (all_of_both,) = label_samples(np.eye(2, dtype=np.int64), one, ["a", "b"])
    assert sorted(all_of_both.tolist()) == [0, 1]
    with pytest.raises(DataError, match="label has 1 training papers, but 2 are drawn"):
        list(label_samples(np.eye(2, dtype=np.int64), FewShot(size=2, iterations=1), ["a", "b"]))


def test_a_fold_holds_about_as_many_papers_as_asked() -> None:
    labels = np.array(["a", "b"] * 50)
    folds = list(held_out_folds(labels, FewShot(size=24, iterations=100)))
    assert len(folds) == 5
    assert sorted(np.concatenate(folds).tolist()) == list(range(100))


@pytest.mark.filterwarnings("ignore:Liblinear failed")
def test_regression(x: FloatArray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear SVR with epsilon 0, C by R² over three folds, Kendall's τ."""
    # Threads would share the random generator of liblinear.
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    values = _noisy(x, 2)
    outcome = regression_linear(_benchmark(["kendall_tau"]), _papers([], values.tolist()), x)
    wide = x.astype(np.float64)

    def fitted(cost: float, rows: Any) -> LinearSVR:
        model = LinearSVR(
            C=cost, epsilon=0.0, fit_intercept=True, random_state=42, max_iter=1_000, dual="auto"
        )
        return model.fit(wide[rows], values[rows])

    means = []
    for cost in COSTS:
        folds = KFold(3).split(wide[:TRAIN])
        means.append(
            np.mean([r2_score(values[h], fitted(cost, f).predict(wide[h])) for f, h in folds])
        )
    best = COSTS[int(np.argmax(means))]
    predicted = fitted(best, np.arange(TRAIN)).predict(wide[TRAIN:])
    wanted = kendalltau(values[TRAIN:], predicted).statistic
    assert outcome.details["C"] == best
    assert outcome.details["cross_validated"] == round(max(means), 6)
    assert outcome.scores["kendall_tau"] == pytest.approx(wanted)
    assert outcome.scores["kendall_tau"] > 0.3
    assert outcome.resampled == ["kendall_tau"]
    assert np.mean(np.array(outcome.per_query["kendall_tau"], dtype=float)) == pytest.approx(wanted)


@pytest.mark.long
def test_regression_by_the_published_solver(x: FloatArray) -> None:
    values = _noisy(x, 2)
    benchmark = _benchmark(["kendall_tau"], solver="lightning", intercept=False)
    outcome = regression_linear(benchmark, _papers([], values.tolist()), x)
    model = PublishedSVR(C=outcome.details["C"]).fit(x[:TRAIN], values[:TRAIN])
    wanted = kendalltau(values[TRAIN:], model.predict(x[TRAIN:].astype(np.float64))).statistic
    assert outcome.scores["kendall_tau"] == pytest.approx(wanted)
    assert outcome.details["solver"] == "lightning"
    for metric in ("kendall_tau", "macro_f1"):
        with pytest.raises(ValueError, match="for regression without intercept"):
            _benchmark([metric], solver="lightning", intercept=metric == "kendall_tau")


def test_an_intercept_changes_what_a_shift_can_explain(x: FloatArray) -> None:
    """All papers lie far from the origin on one side: without an intercept the split goes wrong."""
    moved = x + np.float32(8.0)
    labels = [[str(int(value > 8))] for value in moved[:, 0]]
    without, with_one = (
        classification_linear(_benchmark(["macro_f1"], intercept=own), _papers(labels, []), moved)
        for own in (False, True)
    )
    assert with_one.details["intercept"] is True
    assert with_one.scores["macro_f1"] > without.scores["macro_f1"] or with_one.scores == {
        "macro_f1": 1.0
    }


def test_f1_is_of_the_label_1_also_where_no_test_paper_has_it(x: FloatArray) -> None:
    """Else a test set of 0s alone would score 1 by predicting 0 everywhere."""
    x[:, 0] = np.where(np.arange(TRAIN + TEST) < TRAIN // 2, 5.0, -5.0)
    labels = [[str(int(row < TRAIN // 2))] for row in range(TRAIN + TEST)]
    outcome = classification_linear(_benchmark(["f1", "accuracy"]), _papers(labels, []), x)
    assert outcome.scores == {"f1": 0.0, "accuracy": 1.0}
    # Macro F1 is resampled by counts, not together with a column of shares.
    both = classification_linear(_benchmark(["f1", "macro_f1"]), _papers(labels, []), x)
    assert both.resampled == ["macro_f1"]


@pytest.mark.long
def test_what_cannot_be_scored(x: FloatArray) -> None:
    values = list(range(TRAIN + TEST))
    benchmark = _benchmark(["kendall_tau"])
    with pytest.raises(DataError, match="all predictions are equal"):
        regression_linear(benchmark, _papers([], values), np.zeros_like(x))
    # Of a collapsed model; the last ones of 39 rows are summed in another order.
    odd = _papers([], values)
    odd = replace(odd, test_rows=odd.test_rows[:39])
    for seed in range(3):
        vector = np.random.default_rng(seed).normal(size=384).astype(np.float32)
        with pytest.raises(DataError, match="all predictions are equal"):
            regression_linear(benchmark, odd, np.tile(vector, (TRAIN + TEST, 1)))
    constant = _papers([], [*values[:TRAIN], *[1.0] * TEST])
    with pytest.raises(DataError, match="all true numbers are equal.*Fix: leave the set out"):
        regression_linear(benchmark, constant, x)
    broken = x.copy()
    broken[[3, 5]] = np.nan
    with pytest.raises(DataError, match=f"embeddings of 2 of {TRAIN + TEST} papers of made"):
        regression_linear(benchmark, _papers([], values), broken)
    with pytest.raises(DataError, match="embeddings of shape"):
        regression_linear(benchmark, _papers([], values), x[1:])
    enough = replace(_papers([], values), train_rows=np.arange(6))
    regression_linear(_benchmark(["kendall_tau"], folds=3), enough, x)
    few = replace(_papers([], values), train_rows=np.arange(5))
    with pytest.raises(DataError, match="made: 5 training papers, fewer than two for each fold"):
        regression_linear(_benchmark(["kendall_tau"], folds=3), few, x)
    three = _papers([[str(row % 3)] for row in values], [])
    with pytest.raises(DataError, match="f1 is for two labels only"):
        classification_linear(_benchmark(["f1"]), three, x)


def test_the_fewest_papers_that_can_be_scored(x: FloatArray) -> None:
    """As many folds as the largest class has papers, and two samples of half of all."""
    labels = [["a"] if row % 2 else ["b"] for row in range(TRAIN + TEST)]
    probe = {"folds": TRAIN // 2, "few_shot": [{"size": TRAIN // 2, "iterations": 2}]}
    outcome = classification_linear(_benchmark(["accuracy"], **probe), _papers(labels, []), x)
    assert outcome.scores.keys() == {"accuracy", f"accuracy+{TRAIN // 2}shot"}
    halves = np.array(["a", "b"] * (TRAIN // 2))
    pairs = list(class_samples("made", halves, FewShot(size=2, iterations=99)))
    assert [sorted(halves[rows]) for rows in pairs] == [["a", "b"]] * (TRAIN // 2)


def test_indicators() -> None:
    assert indicators([["b"], [], ["a", "b"]], ["a", "b"]).tolist() == [[0, 1], [0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("labels", "probe", "message"),
    [
        (
            ["a"] * 3 + ["b"] * (TRAIN + TEST - 3),
            {"few_shot": [{"size": 16, "iterations": 4}]},
            r"made: sample 3 of 16 papers have only one class \(value: 'b'\)",
        ),
        (["b"] * TRAIN + ["a"] * TEST, {}, "made: the training papers have only one class"),
        (["a"] + ["b"] * (TRAIN + TEST - 1), {}, "made: a training fold has only one class"),
        ([str(row) for row in range(TRAIN + TEST)], {}, "fewer than 3 folds"),
        (["a", "b"] * 65, {"multi_label": True, "folds": 80}, "made: .* 45 of .* fewer than 80"),
        (
            ["a", "b"] * ((TRAIN + TEST) // 2),
            {"few_shot": [{"size": TRAIN, "iterations": 1}]},
            "made: 90 training papers, 45 of the largest class, cannot be split into 1 samples",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_classes_too_rare_to_fit_name_set_sample_and_class(
    x: FloatArray, labels: list[str], probe: dict[str, Any], message: str
) -> None:
    papers = _papers([[label] for label in labels], [])
    with pytest.raises(DataError, match=message):
        classification_linear(_benchmark(["macro_f1"], **probe), papers, x)


@pytest.mark.parametrize("rows", range(10, 22))
def test_fits_share_no_random_numbers_where_scikit_learn_draws_them(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its dual solver does, which it takes for fewer rows than columns: of a fold first."""
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    x_ND = np.zeros((rows, 12))
    parts = [x_ND, *(x_ND[train] for train, _ in KFold(3).split(x_ND))]
    draws = any(_validate_dual_parameter("auto", "squared_hinge", "l2", "ovr", x) for x in parts)
    assert linear_fits._threads(LinearSVC(dual="auto"), x_ND, 3) == (1 if draws else 8)


def test_fits_that_did_not_converge_are_counted_as_one_thread_counts_warnings(
    x: FloatArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_fits, "_ITERATIONS", 4)
    labels = [["a"] if row % 3 else ["b"] for row in range(TRAIN + TEST)]
    papers, benchmark = _papers(labels, []), _benchmark(["macro_f1"], folds=3)
    found = [
        classification_linear(benchmark, papers, x).details["fits_not_converged"] for _ in range(3)
    ]
    y = np.array([label for (label,) in labels])[:TRAIN]
    options = {"dual": "auto", "random_state": linear_fits.SEED, "max_iter": 4}
    folds = [train for train, _ in StratifiedKFold(3).split(x[:TRAIN], y)]
    met = 0
    for cost, rows in [(cost, rows) for cost in COSTS for rows in folds]:
        met += _warns(LinearSVC(C=cost, **options), x[rows], y[rows])
    cost = classification_linear(benchmark, papers, x).details["C"]
    met += _warns(LinearSVC(C=cost, **options), x[:TRAIN], y)
    assert met == 10
    assert found == [met] * 3


def _warns(model: LinearSVC, x_ND: FloatArray, y_N: np.ndarray) -> bool:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model.fit(x_ND, y_N)
    return any(issubclass(warning.category, ConvergenceWarning) for warning in seen)
