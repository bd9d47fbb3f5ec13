"""Reviewers' scores against a loop over every pair, and against SciRepEval's protocol."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scimult.data.ragged import Ragged
from scimult.errors import ConfigError
from scimult.evaluation.rankings import BEST, rank_reviewers
from scimult.matching import affinity
from scimult.matching.affinity import Rule, affinities, best_pairs, recency
from scimult.types import FloatArray
from tests.matching.made_up import reviewer_dataset

RULES = [
    "max",
    "mean",
    "top2",
    "top3",
    "top5",
    "top99999999",
    "percentile:75",
    "percentile:0",
    "percentile:62.5",
]


def naive(rule: str, found: FloatArray) -> float:
    """Return one reviewer's score for one submission, as described in the help."""
    ordered = np.sort(found.astype(np.float64))[::-1]
    if rule.startswith("percentile"):
        return float(np.percentile(ordered, float(rule.partition(":")[2])))
    best = {"max": 1, "mean": len(ordered)}.get(rule) or int(rule.removeprefix("top"))
    return float(ordered[:best].mean())


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=7),
    rule=st.sampled_from(RULES),
    weighted=st.booleans(),
    seed=st.integers(0, 999),
)
def test_scores_are_those_of_a_loop(
    lengths: list[int], rule: str, weighted: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    submissions_SD = rng.normal(size=(5, 4)).astype(np.float32)
    publications_PD = rng.normal(size=(12, 4)).astype(np.float32)
    written = Ragged.from_lists(rng.choice(12, size=n, replace=False) for n in lengths)
    weights = rng.random(len(written.values)).astype(np.float32) if weighted else None
    blocks = affinities(submissions_SD, publications_PD, written, Rule.parse(rule), weights)
    scores_SR = np.concatenate([block for _, block in blocks])
    for row in range(5):
        for reviewer, rows in enumerate(written):
            found = publications_PD[rows] @ submissions_SD[row]
            if weights is not None:
                of_them = weights[written.offsets[reviewer] : written.offsets[reviewer + 1]]
                found = np.where(found > 0, found * of_them, found)
            wanted = naive(rule, found) if len(rows) else np.nan
            # Float32 products of four numbers of order 1.
            np.testing.assert_allclose(scores_SR[row, reviewer], wanted, atol=2e-6)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    submissions_SD = rng.normal(size=(300, 8)).astype(np.float32)
    publications_PD = rng.normal(size=(50, 8)).astype(np.float32)
    written = Ragged.from_lists(rng.choice(50, size=4) for _ in range(30))
    whole = np.concatenate(
        [b for _, b in affinities(submissions_SD, publications_PD, written, Rule())]
    )
    monkeypatch.setattr(affinity, "BLOCK", 7)
    monkeypatch.setattr(affinity, "_HELD", 100)
    found = list(affinities(submissions_SD, publications_PD, written, Rule()))
    assert [start for start, _ in found] == list(range(0, 300, 7))
    np.testing.assert_allclose(np.concatenate([b for _, b in found]), whole, atol=2e-6)


def test_the_default_is_the_protocol_of_scirepeval() -> None:
    """Their ranking of reviewers, computed by the evaluation on the same vectors."""
    dataset, ranking, vectors = reviewer_dataset()
    assert Rule().best == BEST
    expected = rank_reviewers(dataset, ranking)
    reviewers = dataset.reviewers
    assert reviewers is not None
    written = Ragged.from_lists(reviewers.papers)
    ((_, scores_QR),) = affinities(*vectors, written, Rule())
    for rows, scores, found in zip(expected.rows_QK, expected.scores_QK, scores_QR, strict=True):
        listed = rows >= 0
        np.testing.assert_allclose(found[rows[listed]], scores[listed], atol=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "top0",
        "top00",
        pytest.param("top" + "9" * 5000, id="top9s"),
        "best",
        "percentile:101",
        "percentile:",
        "top",
        "max3",
    ],
)
def test_an_unknown_score_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="top3 .mean of the best three"):
        Rule.parse(text)


def test_half_of_the_weight_is_gone_after_a_half_life() -> None:
    weights = recency([2026, 2023, 2020, None, 2030], now=2026, half_life=3.0)
    np.testing.assert_allclose(weights[[0, 1, 2, 4]], [1, 0.5, 0.25, 1])
    np.testing.assert_allclose(weights[3], 0.5 ** (2.25 / 3))
    np.testing.assert_allclose(recency([None, None], 2026, 3.0), [1, 1])


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 999),
    shape=st.sampled_from([(6, 5), (50, 60)]),
    rows=st.integers(1, 5),
    columns=st.integers(0, 5),
)
def test_best_pairs_are_the_best_of_rows_and_columns(
    seed: int, shape: tuple[int, int], rows: int, columns: int
) -> None:
    rng = np.random.default_rng(seed)
    scores_SR = rng.permutation(shape[0] * shape[1]).reshape(shape).astype(np.float32)
    scores_SR[rng.random(shape) < 0.2] = np.nan
    wanted = set()
    for axis, count in ((0, rows), (1, columns)):
        table = scores_SR if axis == 0 else scores_SR.T
        for i, line in enumerate(table):
            for j in np.argsort(-line)[:count]:
                if not np.isnan(line[j]):
                    wanted.add(i * shape[1] + j if axis == 0 else j * shape[1] + i)
    assert best_pairs(scores_SR, rows, columns).tolist() == sorted(wanted)
