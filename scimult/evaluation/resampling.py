"""Paired bootstrap, randomisation test and Holm's correction, vectorised over resamples.

A system's score is a function of sums over queries: the mean of per-query scores (weighted: the
sum of weighted scores divided by that of weights), or macro F1 of the counts of hits, gold and
predicted labels. Rank correlation, binary F1 and macro F1 of several labels are means of the
jackknife's pseudo-values. Resampled scores are therefore products of a matrix of weights or swaps
with the queries' terms, computed in blocks of bounded size. Every draw starts from the given seed,
so a comparison does not depend on what else is compared, and the block size changes no number.

Sources: Efron and Tibshirani, *An Introduction to the Bootstrap* (1993), chapter 13 (percentile
interval); Smucker, Allan and Carterette, CIKM 2007 (randomisation test for retrieval); Yeh,
COLING 2000 (swapping predictions for F1); Phipson and Smyth 2010 (a sampled p-value is never 0);
Holm, Scandinavian Journal of Statistics 6 (1979); Arvesen, Annals of Mathematical Statistics 40
(1969; the jackknife of such statistics).

Shape legend: Q queries, F terms of a query, M metrics, R resamples, S systems, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from scimult.evaluation.metrics import Scores

BLOCK = 1 << 21
"""Entries of a weight matrix in memory at once: 16 MiB of float64."""

ROUNDING = 1e-12
"""Differences closer than this are ties: sums of up to 10^6 scores in [0, 1], divided by their
number, carry errors below it."""

Seed = int | Sequence[int]


@dataclass(frozen=True)
class Sample:
    """One system's output on the queries of a data set, as terms to sum and score.

    ``score`` maps sums of terms ``(R, F)`` to scores ``(R, M)``.
    """

    terms_QF: Scores | csr_array
    score: Callable[[Scores], Scores]

    def __len__(self) -> int:
        return int(self.terms_QF.shape[0])

    @property
    def scores_M(self) -> Scores:
        """Scores on the original queries."""
        scores_M: Scores = self.score(np.ones((1, len(self))) @ self.terms_QF)[0]
        return scores_M

    def under(self, metric: int) -> Sample:
        """Return the sample under one of its M metrics."""
        metrics = len(self.scores_M)
        if metrics == 1:
            return self
        # Terms beyond those of the metrics are weights.
        terms = [metric, *range(metrics, self.terms_QF.shape[1])]
        return Sample(self.terms_QF[:, terms], self.score)


def mean_sample(scores_QM: Scores, weights_Q1: Scores | None = None) -> Sample:
    """Return a sample scored by the means of M per-query metrics, weighted if given weights.

    A draw's scores are divided by its own weights: queries drawn more often are no better.
    """
    if weights_Q1 is not None:
        terms_QF = np.hstack([weights_Q1 * scores_QM, weights_Q1])
        return Sample(terms_QF, lambda sums_RF: sums_RF[:, :-1] / sums_RF[:, -1:])
    queries = len(scores_QM)
    return Sample(scores_QM, lambda sums_RM: sums_RM / queries)


def macro_f1_samples(gold: Sequence[str], predicted: Sequence[Sequence[str]]) -> list[Sample]:
    """Return a sample per system, scored by macro F1 (one metric).

    ``predicted`` are the labels by each of S systems; an empty string is no prediction.
    """
    classes = sorted({*gold, *(label for labels in predicted for label in labels)} - {""})
    rows = {name: row for row, name in enumerate(classes)}
    gold_Q = np.array([rows[name] for name in gold])
    samples = []
    for labels in predicted:
        predicted_Q = np.array([rows.get(name, -1) for name in labels])
        hits_Q = np.where(predicted_Q == gold_Q, gold_Q, -1)
        marks_Q3 = np.stack([hits_Q, gold_Q, predicted_Q], axis=1)
        present_Q3 = marks_Q3 >= 0
        columns = (marks_Q3 + np.arange(3) * len(classes))[present_Q3]
        papers = np.nonzero(present_Q3)[0]
        shape = (len(gold), 3 * len(classes))
        terms_QF = csr_array((np.ones(len(papers)), (papers, columns)), shape=shape)
        samples.append(Sample(terms_QF, _macro_f1))
    return samples


def _macro_f1(sums_RF: Scores) -> Scores:
    """Score counts of hits, gold and predicted labels, like `metrics.macro_f1`."""
    hits_RC, gold_RC, predicted_RC = np.split(sums_RF, 3, axis=1)
    total_RC = gold_RC + predicted_RC
    f1_RC = np.divide(2 * hits_RC, total_RC, out=np.zeros_like(hits_RC), where=total_RC > 0)
    means_R: Scores = f1_RC.sum(axis=1) / np.maximum((total_RC > 0).sum(axis=1), 1)
    return means_R[:, None]


def tau_pseudo_values(gold_Q: Scores, predicted_Q: Scores) -> Scores:
    """Return each paper's share in Kendall's τ-b, its pseudo-value of the jackknife.

    That is Q τ less (Q − 1) times the τ without the paper. Tests may treat the shares as
    independent scores of papers whose mean is τ: a constant of the order of 1 / Q² makes it so.
    """
    pairs_3Q = _pairs_of_each(gold_Q, predicted_Q)
    all_31 = pairs_3Q.sum(axis=1, keepdims=True) / 2
    return _shares(_tau(all_31), _tau(all_31 - pairs_3Q))


def f1_pseudo_values(gold_QC: NDArray[np.int64], predicted_QC: NDArray[np.int64]) -> Scores:
    """Return each paper's share in macro F1, as `tau_pseudo_values`; binary F1 for one class.

    Flags say which classes each paper has; a class that none has counts 0.
    """
    counts_3QC = np.stack([gold_QC & predicted_QC, gold_QC, predicted_QC]).astype(np.float64)
    totals_31C = counts_3QC.sum(axis=1, keepdims=True)

    def score(hits_QC: Scores, gold_QC: Scores, predicted_QC: Scores) -> Scores:
        marked_QC = gold_QC + predicted_QC
        f1_QC = np.divide(2 * hits_QC, marked_QC, out=np.zeros_like(hits_QC), where=marked_QC > 0)
        means_Q: Scores = f1_QC.mean(axis=1)
        return means_Q

    return _shares(score(*totals_31C), score(*(totals_31C - counts_3QC)))


def _shares(whole_1: Scores, without_Q: Scores) -> Scores:
    """Return pseudo-values from the score of all papers and those without each of them."""
    count = len(without_Q)
    values_Q = count * whole_1 - (count - 1) * without_Q
    shares_Q: Scores = values_Q + whole_1 - values_Q.mean()
    return shares_Q


def _tau(pairs_3Q: Scores) -> Scores:
    concordance_Q, *untied_2Q = pairs_3Q
    most_Q = np.sqrt(np.prod(untied_2Q, axis=0))
    # Undefined if all papers are tied.
    tau_Q: Scores = np.divide(concordance_Q, most_Q, out=np.zeros_like(most_Q), where=most_Q > 0)
    return tau_Q


def _pairs_of_each(gold_Q: Scores, predicted_Q: Scores) -> Scores:
    """Return each paper's concordant less discordant pairs, and those untied in either."""
    blocks = []
    rows = max(1, BLOCK // len(gold_Q))
    for first in range(0, len(gold_Q), rows):
        some = slice(first, first + rows)
        gold_RQ = np.sign(gold_Q[some, None] - gold_Q)
        predicted_RQ = np.sign(predicted_Q[some, None] - predicted_Q)
        parts = (gold_RQ * predicted_RQ, np.abs(gold_RQ), np.abs(predicted_RQ))
        blocks.append([part.sum(axis=1) for part in parts])
    return np.concatenate(blocks, axis=1)


def bootstrap(samples: Sequence[Sample], resamples: int, seed: Seed) -> NDArray[np.float64]:
    """Score S systems on the same R random draws of queries with replacement.

    ``samples`` are on the same Q queries, in the same order, under the same M metrics. Returns
    scores of shape ``(S, R, M)``; differences between systems are paired.
    """
    queries = len(samples[0])
    rng = np.random.default_rng(seed)
    by_sample: list[list[Scores]] = [[] for _ in samples]
    for rows in _blocks(resamples, queries):
        draws_RQ = rng.integers(0, queries, (rows, queries))
        draws_RQ += queries * np.arange(rows)[:, None]
        counts_RQ = np.bincount(draws_RQ.ravel(), minlength=rows * queries)
        weights_RQ = counts_RQ.reshape(rows, queries).astype(np.float64)
        for sample, scores in zip(samples, by_sample, strict=True):
            scores.append(sample.score(weights_RQ @ sample.terms_QF))
    return np.stack([np.concatenate(scores) for scores in by_sample])


def randomisation_test(
    first: Sample, second: Sample, resamples: int, seed: Seed
) -> tuple[Scores, bool]:
    """Test whether two systems differ, by swapping their outputs on random queries.

    Under the null hypothesis it does not matter which system produced which output. Queries on
    which both agree change nothing. If all swaps of the others number at most ``resamples``, each
    is tried and the p-value is exact; otherwise ``resamples`` are drawn and the p-value is
    ``(1 + extreme) / (1 + resamples)``. Returns two-sided p-values of shape ``(M,)``, and whether
    they are exact.
    """
    change_QF = second.terms_QF - first.terms_QF
    differing = np.flatnonzero(abs(change_QF).sum(axis=1))
    change_QF = change_QF[differing]
    ones_1Q = np.ones((1, len(first)))
    first_1F, second_1F = ones_1Q @ first.terms_QF, ones_1Q @ second.terms_QF
    observed_M = np.abs(first.score(first_1F) - second.score(second_1F))[0]
    extreme_M = np.zeros(len(observed_M), dtype=np.int64)
    exact = len(differing) < resamples.bit_length()  # 2^differing <= resamples
    swaps = _all_swaps if exact else _drawn_swaps
    for swaps_RQ in swaps(len(differing), resamples, seed):
        moved_RF = swaps_RQ @ change_QF
        null_RM = first.score(first_1F + moved_RF) - second.score(second_1F - moved_RF)
        extreme_M += (np.abs(null_RM) >= observed_M - ROUNDING).sum(axis=0)
    p_M = extreme_M / 2 ** len(differing) if exact else (1 + extreme_M) / (1 + resamples)
    return p_M, exact


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for multiple tests (Holm's step-down method).

    Rejecting where the result is at most α keeps the chance of any false rejection at most α,
    however the tests depend on each other.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def interval(values_R: Scores, confidence: float) -> tuple[float, float]:
    """Return the central percentile interval that holds ``confidence`` of the values."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(values_R, [tail, 1 - tail])
    return float(low), float(high)


def _all_swaps(queries: int, resamples: int, seed: Seed) -> Iterator[Scores]:
    """Yield all swaps as one block: there are at most ``resamples``."""
    numbers = np.arange(2**queries)[:, None]
    yield (numbers >> np.arange(queries) & 1).astype(np.float64)


def _drawn_swaps(queries: int, resamples: int, seed: Seed) -> Iterator[Scores]:
    """Yield blocks of random 0/1 swaps, shape ``(rows, Q)``."""
    rng = np.random.default_rng(seed)
    width = -(-queries // 32) * 4  # whole 32-bit words: rng.bytes discards the rest of one
    for rows in _blocks(resamples, queries):
        bytes_RB = np.frombuffer(rng.bytes(rows * width), np.uint8).reshape(rows, width)
        yield np.unpackbits(bytes_RB, axis=1, count=queries).astype(np.float64)


def _blocks(resamples: int, queries: int) -> Iterator[int]:
    """Yield block sizes that add up to ``resamples``."""
    rows = max(1, BLOCK // max(queries, 1))
    for start in range(0, resamples, rows):
        yield min(rows, resamples - start)
