"""Distillation losses against loops and scipy, and their gradients without known scores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import entropy
from torch import Tensor

from scimult.losses import InBatchScores, listwise_kl, margin_mse, own_teacher_scores

Loss = Callable[[InBatchScores, Tensor, float], Tensor]
NAN = float("nan")


def random_case(seed: int, queries: int, candidates: int) -> tuple[InBatchScores, Tensor]:
    """Return scores and a teacher that knows about half of them."""
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.normal(size=(queries, candidates)))
    targets = torch.from_numpy(rng.integers(candidates, size=queries))
    teacher = rng.normal(0, 3, size=(queries, candidates))
    teacher[rng.random(teacher.shape) < 0.5] = NAN
    mask = torch.zeros_like(scores, dtype=torch.bool)
    return InBatchScores(scores, targets, mask), torch.from_numpy(teacher)


def naive_kl(scores: list[float], teacher: list[float], target: int, temperature: float) -> float:
    known = [i for i, score in enumerate(teacher) if not np.isnan(score)]
    if len(known) < 2:
        return 0.0
    p = softmax([teacher[i] for i in known])
    return float(entropy(p, softmax([scores[i] / temperature for i in known])))


def naive_mse(scores: list[float], teacher: list[float], target: int, temperature: float) -> float:
    if np.isnan(teacher[target]):
        return 0.0
    squares = [
        ((scores[target] - score) / temperature - (teacher[target] - theirs)) ** 2
        for i, (score, theirs) in enumerate(zip(scores, teacher, strict=True))
        if i != target and not np.isnan(theirs)
    ]
    return float(np.mean(squares)) if squares else 0.0


@pytest.mark.parametrize(("loss", "naive"), [(listwise_kl, naive_kl), (margin_mse, naive_mse)])
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 6), st.floats(0.05, 5))
def test_against_loops(
    loss: Loss,
    naive: Callable[[list[float], list[float], int, float], float],
    seed: int,
    queries: int,
    candidates: int,
    temperature: float,
) -> None:
    batch, teacher = random_case(seed, queries, candidates)
    expected = [
        naive(scores, theirs, target, temperature)
        for scores, theirs, target in zip(
            batch.scores_BC.tolist(), teacher.tolist(), batch.targets_B.tolist(), strict=True
        )
    ]
    # Both sides compute in float64.
    assert loss(batch, teacher, temperature).tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("loss", [listwise_kl, margin_mse])
def test_only_scored_candidates_get_a_gradient_and_never_nan(loss: Loss) -> None:
    batch, teacher = random_case(3, 20, 5)
    teacher[0] = NAN
    teacher[1] = NAN
    teacher[1, batch.targets_B[1]] = 1.0
    scores = batch.scores_BC.requires_grad_()
    loss(batch, teacher, 0.1).sum().backward()
    assert scores.grad is not None
    assert not scores.grad.isnan().any()
    assert (scores.grad[teacher.isnan()] == 0).all()
    assert (scores.grad[:2] == 0).all()
    assert (scores.grad[2:] != 0).any()


@pytest.mark.parametrize("loss", [listwise_kl, margin_mse])
def test_a_student_like_its_teacher_has_nothing_to_learn(loss: Loss) -> None:
    batch, teacher = random_case(5, 8, 6)
    # Neither loss depends on a constant added to all scores of a query.
    alike = torch.where(teacher.isnan(), batch.scores_BC, teacher * 0.2 + 7)
    same = InBatchScores(alike, batch.targets_B, batch.masked_BC)
    assert loss(same, teacher, 0.2).tolist() == pytest.approx([0.0] * 8, abs=1e-9)
    assert loss(batch, teacher, 0.2).sum() > 1


def test_scores_are_in_the_columns_of_the_query() -> None:
    placed = own_teacher_scores(
        torch.tensor([1.0, 2.0]),
        torch.tensor([3.0, NAN, 5.0]),
        targets_B=torch.tensor([4, 5]),
        rows_H=torch.tensor([0, 0, 1]),
        columns_H=torch.tensor([6, 7, 8]),
        columns=9,
    )
    expected = torch.full((2, 9), NAN)
    expected[0, 4], expected[1, 5], expected[0, 6], expected[1, 8] = 1.0, 2.0, 3.0, 5.0
    assert torch.equal(placed.nan_to_num(-1), expected.nan_to_num(-1))
