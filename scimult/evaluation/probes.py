"""Linear models on frozen embeddings: classification and regression of SciRepEval and SciDocs.

Shape legend: N papers, T test papers, D width, S labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau
from sklearn.metrics import accuracy_score, f1_score

from scimult.errors import DataError
from scimult.evaluation.benchmark import Benchmark, FewShot, Probe
from scimult.evaluation.few_shot import class_samples, label_samples
from scimult.evaluation.linear_fits import (
    Flags,
    Numbers,
    Split,
    check_classes,
    classifier,
    fit_best,
    fit_one_vs_rest,
    regressor,
)
from scimult.evaluation.protocols import KENDALL_TAU, MACRO_F1, SHOT, Outcome
from scimult.evaluation.resampling import ROUNDING, f1_pseudo_values, tau_pseudo_values
from scimult.evaluation.task_data import PaperSet
from scimult.types import FloatArray

_FEW_SHOT_COST = 1.0


def classification_linear(
    benchmark: Benchmark, papers: PaperSet, embeddings_ND: FloatArray
) -> Outcome:
    """Predict the labels of the test papers; macro or binary F1, also few-shot."""
    probe = benchmark.probe
    assert probe is not None
    split = _split(papers, embeddings_ND)
    if probe.multi_label:
        return _multi_label(benchmark, probe, papers, split)
    return _single_label(benchmark, probe, papers, split)


def regression_linear(benchmark: Benchmark, papers: PaperSet, embeddings_ND: FloatArray) -> Outcome:
    """Predict the numbers of the test papers by linear support vector regression; Kendall's τ-b.

    Raises
    ------
    DataError
        If a fold would have fewer than two training papers; or if all predictions or all true
        numbers are equal, so that rank correlation is undefined.
    """
    probe = benchmark.probe
    assert probe is not None
    split = _split(papers, embeddings_ND)
    gold_T = papers.values_N[papers.test_rows]
    train_N = papers.values_N[papers.train_rows]
    if len(train_N) < 2 * probe.folds:  # R² of one paper is undefined
        problem = f"{papers.name}: {len(train_N)} training papers, fewer than two for each fold"
        raise DataError(problem, value=probe.folds, fix="lower probe.folds, or leave the set out")
    model, details = fit_best(regressor(probe), probe, split.train_ND, train_N)
    predicted_T = model.predict(split.test_TD)
    return Outcome(
        scores={KENDALL_TAU: rank_correlation(gold_T, predicted_T)},
        per_query={
            KENDALL_TAU: tau_pseudo_values(gold_T, predicted_T).tolist(),
            "gold": gold_T.tolist(),
            "predicted": predicted_T.tolist(),
        },
        details={
            **_settings(probe, "linear support vector regression"),
            "solver": probe.solver,
            **details,
        },
    )


def rank_correlation(gold_T: Numbers, predicted_T: Numbers) -> float:
    """Return Kendall's τ-b of two arrays; raise a DataError if one of them is constant."""
    checked = (
        ("true numbers", gold_T, "leave the set out, or choose other test papers"),
        ("predictions", predicted_T, "check the embeddings"),
    )
    for kind, values, fix in checked:
        # Of equal embeddings, predictions differ by how rows are summed.
        if np.ptp(values) <= ROUNDING * np.abs(values).max():
            problem = f"all {kind} are equal, so rank correlation is undefined"
            raise DataError(problem, value=float(values[0]), fix=fix)
    return float(kendalltau(gold_T, predicted_T).statistic)


def _single_label(benchmark: Benchmark, probe: Probe, papers: PaperSet, split: Split) -> Outcome:
    labels_N = np.array([labels[0] for labels in papers.labels])
    train_N, gold_T = labels_N[papers.train_rows], labels_N[papers.test_rows]
    names = np.unique(labels_N)
    if "f1" in benchmark.metrics and len(names) > 2:
        raise DataError("f1 is for two labels only", value=names.tolist(), fix="use macro_f1")
    check_classes(train_N, probe.folds, f"{papers.name}: the training papers")
    model, details = fit_best(classifier(probe), probe, split.train_ND, train_N)
    if not math.isfinite(details["cross_validated"]):
        problem = f"{papers.name}: a training fold has only one class"
        raise DataError(problem, fix="label more papers of the rare class, or leave the set out")
    predicted_T = model.predict(split.test_TD)
    scores = _label_scores(benchmark.metrics, gold_T, predicted_T, names[-1])
    for shot in probe.few_shot:
        by_sample = []
        for sample, rows in enumerate(class_samples(papers.name, train_N, shot)):
            source = f"{papers.name}: sample {sample} of {shot.size} papers"
            check_classes(train_N[rows], 1, source)
            model = classifier(probe, _FEW_SHOT_COST)
            model.fit(split.train_ND[rows], train_N[rows])
            sampled_T = model.predict(split.test_TD)
            by_sample.append(_label_scores(benchmark.metrics, gold_T, sampled_T, names[-1]))
        scores.update(_means(by_sample, shot))
    shares: dict[str, list[float] | list[str]] = {}
    # Macro F1 is resampled from the labels instead, and by itself.
    if "f1" in benchmark.metrics and MACRO_F1 not in benchmark.metrics:
        of_positive = [(x_T == names[-1]).astype(int)[:, None] for x_T in (gold_T, predicted_T)]
        shares["f1"] = f1_pseudo_values(*of_positive).tolist()
    return Outcome(
        scores=scores,
        per_query={
            **shares,
            "correct": (gold_T == predicted_T).astype(float).tolist(),
            "gold": gold_T.tolist(),
            "predicted": predicted_T.tolist(),
        },
        details={**_settings(probe, probe.model), **details},
    )


def _multi_label(benchmark: Benchmark, probe: Probe, papers: PaperSet, split: Split) -> Outcome:
    # Samples are drawn label by label: SciRepEval's, which are numbers, in their own order.
    names = {label for given in papers.labels for label in given}
    labels = sorted(names, key=lambda name: (len(name), name))
    flags_NS = indicators(papers.labels, labels)
    train_NS, gold_TS = flags_NS[papers.train_rows], flags_NS[papers.test_rows]
    predicted_TS, details = fit_one_vs_rest(
        probe, split, train_NS, f"{papers.name}: the training papers"
    )
    scores = _flag_scores(benchmark.metrics, gold_TS, predicted_TS)
    for shot in probe.few_shot:
        by_sample = []
        for sample, rows in enumerate(label_samples(train_NS, shot, labels)):
            part = Split(split.train_ND[rows], split.test_TD)
            source = f"{papers.name}: sample {sample} of {shot.size} papers per label"
            sampled_TS, _ = fit_one_vs_rest(probe, part, train_NS[rows], source)
            by_sample.append(_flag_scores(benchmark.metrics, gold_TS, sampled_TS))
        scores.update(_means(by_sample, shot))
    return Outcome(
        scores=scores,
        per_query={
            MACRO_F1: f1_pseudo_values(gold_TS, predicted_TS).tolist(),
            "gold": [_names(row, labels) for row in gold_TS],
            "predicted": [_names(row, labels) for row in predicted_TS],
        },
        details={**_settings(probe, probe.model), **details},
    )


def indicators(given: Sequence[Sequence[str]], labels: Sequence[str]) -> Flags:
    """Return 0/1 flags of which of S labels each of N papers has, shape ``(N, S)``."""
    column_of = {label: column for column, label in enumerate(labels)}
    flags_NS = np.zeros((len(given), len(labels)), dtype=np.int64)
    for row, names in enumerate(given):
        flags_NS[row, [column_of[name] for name in names]] = 1
    return flags_NS


def _settings(probe: Probe, model: str) -> dict[str, Any]:
    return {"model": model, "intercept": probe.intercept, "folds": probe.folds}


def _split(papers: PaperSet, embeddings_ND: FloatArray) -> Split:
    if embeddings_ND.ndim != 2 or len(embeddings_ND) != len(papers.ids):
        problem = f"embeddings of shape {embeddings_ND.shape} for {len(papers.ids)} papers"
        raise DataError(problem, fix="return one row per paper")
    if not np.isfinite(embeddings_ND).all():
        bad = int((~np.isfinite(embeddings_ND).all(axis=1)).sum())
        problem = f"embeddings of {bad} of {len(papers.ids)} papers of {papers.name} are not finite"
        raise DataError(problem, fix="check the model: its weights or activations overflowed")
    # liblinear computes in float64; converting here saves a copy per fit.
    x_ND = np.ascontiguousarray(embeddings_ND, dtype=np.float64)
    return Split(x_ND[papers.train_rows], x_ND[papers.test_rows])


def _label_scores(
    metrics: Sequence[str], gold_T: NDArray[Any], predicted_T: NDArray[Any], positive: str
) -> dict[str, float]:
    """Return F1 and accuracy; binary F1 is of the data's greater label (1 of 0 and 1)."""
    hits_T, marked_T = gold_T == positive, predicted_T == positive
    known = {
        "accuracy": lambda: accuracy_score(gold_T, predicted_T),
        "f1": lambda: f1_score(hits_T, marked_T, zero_division=0),
        "macro_f1": lambda: f1_score(gold_T, predicted_T, average="macro", zero_division=0),
    }
    return {metric: float(known[metric]()) for metric in metrics}


def _flag_scores(metrics: Sequence[str], gold_TS: Flags, predicted_TS: Flags) -> dict[str, float]:
    """Return macro F1, and the share of papers with all labels right."""
    known = {
        "macro_f1": lambda: f1_score(gold_TS, predicted_TS, average="macro", zero_division=0),
        "accuracy": lambda: accuracy_score(gold_TS, predicted_TS),
    }
    if "f1" in metrics:
        raise DataError("f1 does not support several labels per paper", fix="use macro_f1")
    return {metric: float(known[metric]()) for metric in metrics}


def _means(by_sample: Sequence[dict[str, float]], shot: FewShot) -> dict[str, float]:
    suffix = SHOT.format(shot.size)
    return {
        name + suffix: float(np.mean([one[name] for one in by_sample])) for name in by_sample[0]
    }


def _names(flags_S: Flags, labels: Sequence[str]) -> str:
    return "|".join(labels[int(column)] for column in np.flatnonzero(flags_S))
